package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/proto"
)

// TestCP11StartWithAFileThatDropsAGroup: a group that the file of a start does not have, and
// that has a machine with a Node or with a record, is kept as retired and reported everywhere.
func TestCP11StartWithAFileThatDropsAGroup(t *testing.T) {
	for name, row := range map[string]struct {
		discovery string
		file      string // in the file of the second start
		kept      string // pattern of the id of the kept group
	}{
		"listed":                        {"", group("other"), "old"},
		"discovered":                    {`, cluster: train, discovery: {tags: {gpu: ""}}`, group("other"), "old"},
		"another ASG under the same id": {"", strings.Replace(group("old"), "autoScalingGroup: old", "autoScalingGroup: other", 1), "old-cba06b57"},
	} {
		for _, by := range []string{"node", "record"} {
			t.Run(name+"/"+by, func(t *testing.T) {
				stub := awstest.NewStub(t)
				for _, asg := range []string{"old", "other"} {
					stub.CreateGroup(awstest.Group{Name: asg, Max: 5, Desired: 1})
					stub.Settle(asg)
				}
				machine := "aws:///us-east-1a/" + stub.Group("old").Instances[0].ID
				api := newKubeAPI(t)
				if by == "node" {
					api.set(t, target{"nodes", "", "n1"}, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1",
						"labels": {"gpu-node-provider.io/node-group": "old", "accelerator": "nvidia-tesla-t4"}}, "spec": {"providerID": %q}}`, machine))
				} else {
					entry := fmt.Sprintf(`{"v": 1, "instance": %q, "group": "old", "node": "n1", "pods": [{"namespace": "ai", "name": "p", "uid": "u"}]}`, machine)
					api.set(t, target{"configmaps", "gpu-node-provider", "record"}, fmt.Sprintf(`{"apiVersion": "v1", "kind": "ConfigMap",
						"metadata": {"name": "record", "namespace": "gpu-node-provider", "labels": {"gpu-node-provider.io/record": "old"}}, "data": {"x": %q}}`, entry))
				}
				grpcPort, httpPort := freePort(t), freePort(t)
				file := onAWS(t, stub.URL(), ports(grpcPort, httpPort), row.file)
				text, err := os.ReadFile(file)
				require.NoError(t, err)
				at := strings.Index(string(text), "kubernetes:")
				end := at + strings.Index(string(text)[at:], "\n")
				changed := strings.Replace(string(text)[:at]+api.section()+string(text)[end:], "refreshInterval: 1s", "refreshInterval: 1s"+row.discovery, 1)
				require.NoError(t, os.WriteFile(file, []byte(changed), 0o600))
				p := start(t, "serve", "--config", file)
				client := dial(t, grpcPort)
				eventually(t, "it serves", func() bool { return textOf(t, httpPort, "/readyz") == "ok\n" })

				status := start(t, "status", "--address", httpPort)
				require.Zero(t, status.wait(t))
				require.Contains(t, status.stdout.String(), "\n"+row.kept+": not in the node group file, and kept as retired until its 1 instances are gone")
				doctor := start(t, "doctor", "--config", file)
				doctor.wait(t)
				require.Contains(t, doctor.stdout.String(), "node group "+row.kept+" is not in the node group file")
				require.Contains(t, p.stderr.String(), "it is kept as retired until it is empty")
				groups, err := client.NodeGroups(t.Context(), &proto.NodeGroupsRequest{})
				require.NoError(t, err)
				require.Len(t, groups.GetNodeGroups(), 2)
				for _, g := range groups.GetNodeGroups() {
					if g.GetId() == row.kept {
						require.Zero(t, g.GetMinSize())
						require.EqualValues(t, 1, g.GetMaxSize(), "the target")
					}
				}
				_, err = client.NodeGroupIncreaseSize(t.Context(), &proto.NodeGroupIncreaseSizeRequest{Id: row.kept, Delta: 1})
				require.Error(t, err)
				where, err := client.NodeGroupForNode(t.Context(), &proto.NodeGroupForNodeRequest{Node: &proto.ExternalGrpcNode{Name: "n1", ProviderID: machine}})
				require.NoError(t, err)
				require.Equal(t, row.kept, where.GetNodeGroup().GetId())

				// Another change of the file is taken, and the group goes when it is empty.
				require.NoError(t, os.WriteFile(file, []byte(strings.Replace(changed, "maxSize: 10", "maxSize: 9", 1)), 0o600))
				eventually(t, "the changed file is in effect", func() bool {
					report := textOf(t, httpPort, "/report.json")
					return strings.Contains(report, `"maxSize":9`) && strings.Contains(report, `"dropped":true`)
				})
				api.remove(target{"nodes", "", "n1"})
				stub.Detach(stub.Group("old").Instances[0].ID, true) // it is protected from scale-in
				eventually(t, "it is gone", func() bool { return !strings.Contains(textOf(t, httpPort, "/report.json"), `"dropped":true`) })
			})
		}
	}
}

func textOf(t *testing.T, address, path string) string {
	t.Helper()
	return text(t, "http://"+address+path)
}
