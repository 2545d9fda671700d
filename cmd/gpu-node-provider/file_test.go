package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/provider/cluster"
	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/nodegroup"
	"gpu-node-provider/provider/reload"
)

// TestFileThatAStandbyRefuses: a standby replica may lead with the file that it accepts, so
// it rejects one that drops groups with Nodes.
func TestFileThatAStandbyRefuses(t *testing.T) {
	view, known := cluster.NewMemory(fake.NewClientset(), &record.FakeRecorder{})
	require.NoError(t, known.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{nodegroup.Label: "t4"}}}))
	parse := func(groups string) *config.Config {
		c, err := config.Parse([]byte(`apiVersion: gpu-node-provider.io/v1
kind: ProviderConfig
cloud: {aws: {region: us-east-1}}
redis: {addresses: ["127.0.0.1:1"]}
nodeGroups: [` + groups + "]\n"))
		require.NoError(t, err)
		return c
	}
	before := parse("{id: t4, autoScalingGroup: train-t4, maxSize: 4}, {id: a10, autoScalingGroup: train-a10, maxSize: 4}")
	for groups, refused := range map[string]bool{
		"{id: t4, autoScalingGroup: train-t4, maxSize: 9}":                                                 false,
		"{id: a10, autoScalingGroup: train-a10, maxSize: 4}":                                               true,
		"{id: t4, autoScalingGroup: other, maxSize: 4}":                                                    true,
		"{id: t4, autoScalingGroup: train-t4, maxSize: 4}, {id: a10, autoScalingGroup: other, maxSize: 4}": false, // a10 has no Nodes
		"{id: t4, autoScalingGroup: train-t4, maxSize: 4}, {id: new, autoScalingGroup: new, maxSize: 4}":   false,
	} {
		core, logs := observer.New(zap.ErrorLevel)
		r := &replica{kube: &kube{view: view}, serveOptions: serveOptions{file: "groups.yaml", config: before, log: zap.New(core)}}
		r.effective.Store(before)
		text, err := parse(groups).Marshal()
		require.NoError(t, err)
		changed := change{contents: reload.Contents{"groups.yaml": text}}
		for range 3 {
			require.Equal(t, refused, r.acceptFile(t.Context(), changed), "a rejected file is tried again: %s", groups)
		}
		if !refused {
			require.Equal(t, parse(groups).NodeGroups, r.effective.Load().NodeGroups)
			require.Equal(t, changed.contents, r.contents)
			continue
		}
		require.Same(t, before, r.effective.Load())
		require.Nil(t, r.contents, "a new leader tries the file again")
		require.Equal(t, 1, logs.Len(), "it logs that once")
		require.Contains(t, logs.All()[0].ContextMap()["error"], "t4: set retired: true until the nodes are gone")
	}
}

// TestChangedFileIsTriedAgain: a valid file that fails while AWS does not answer becomes
// effective once AWS answers.
func TestChangedFileIsTriedAgain(t *testing.T) {
	t.Setenv("AWS_MAX_ATTEMPTS", "1")
	stub := awstest.NewStub(t)
	stub.CreateGroup(awstest.Group{Name: "train", Max: 20})
	grpcPort, httpPort := freePort(t), freePort(t)
	file := onAWS(t, stub.URL(), ports(grpcPort, httpPort), group("train"))
	start(t, "serve", "--config", file)
	report := func() string { return text(t, "http://"+httpPort+"/report.json") }
	eventually(t, "it serves", func() bool { return strings.Contains(report(), `"maxSize":10`) })
	undo := stub.Faults(awstest.Rule{Action: "DescribeAutoScalingGroups", Fault: awstest.Throttle()})
	known, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(known), "maxSize: 10", "maxSize: 11", 1)), 0o600))
	eventually(t, "status shows why it is not in effect", func() bool { return strings.Contains(report(), "reloadError") })
	undo()
	eventually(t, "it is in effect", func() bool {
		return strings.Contains(report(), `"maxSize":11`) && !strings.Contains(report(), "reloadError")
	})
}
