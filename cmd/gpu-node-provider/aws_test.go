package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/proto"
)

// onAWS is a node group file for a stub of AWS. groups are entries of nodeGroups.
func onAWS(t *testing.T, endpoint, server string, groups ...string) string {
	t.Helper()
	t.Setenv("AWS_ACCESS_KEY_ID", "testing")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "testing")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	api := newAPIServer(t)
	api.answer()
	path := t.TempDir() + "/config.yaml"
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `apiVersion: gpu-node-provider.io/v1
kind: ProviderConfig
server: {%s}
%s
cloud: {aws: {region: us-east-1, endpoint: %q, refreshInterval: 1s}}
redis: {addresses: ["127.0.0.1:1"]}
nodeGroups: [%s]
`, server, api.section(), endpoint, strings.Join(groups, ",\n  ")), 0o600))
	return path
}

func group(id string) string {
	return fmt.Sprintf("{id: %s, maxSize: 10, autoScalingGroup: %s, labels: {accelerator: nvidia-tesla-t4}}", id, id)
}

// text returns the body that a URL answers with.
func text(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return string(body)
}

// TestErrorsOfUsersOnAWS: status shows the errors of wrong groups, and the other groups work.
func TestErrorsOfUsersOnAWS(t *testing.T) {
	stub := awstest.NewStub(t)
	stub.CreateGroup(awstest.Group{Name: "good", Max: 5, Desired: 1})
	stub.CreateGroup(awstest.Group{Name: "weighted", Max: 5, Overrides: []awstest.Override{{InstanceType: "g4dn.xlarge", Weight: 1}, {InstanceType: "g4dn.2xlarge", Weight: 2}}})
	stub.CreateGroup(awstest.Group{Name: "by-vcpu", Max: 5, DesiredCapacityType: "vcpu"})
	empty := awstest.LaunchTemplate{ID: "lt-empty", Name: "empty", Version: "1"}
	stub.AddLaunchTemplate(empty, "")
	stub.CreateGroup(awstest.Group{Name: "no-type", Max: 5, LaunchTemplate: &empty})
	grpcPort, httpPort := freePort(t), freePort(t)
	p := start(t, "serve", "--config", onAWS(t, stub.URL(), ports(grpcPort, httpPort),
		group("good"), group("weighted"), group("by-vcpu"), group("no-type"), group("missing")))
	eventually(t, "it serves", func() bool { return text(t, "http://"+httpPort+"/readyz") == "ok\n" })

	status := start(t, "status", "--address", httpPort)
	require.Zero(t, status.wait(t))
	for _, line := range []string{"weighted: ", "by-vcpu: ", "missing: ", "no-type: "} {
		require.Contains(t, status.stdout.String(), "\n"+line)
	}
	t.Log(status.stdout.String())
	for _, id := range []string{"weighted", "by-vcpu", "missing", "no-type"} {
		require.Contains(t, p.stderr.String(), id, "the log says so at the start")
	}

	client := dial(t, grpcPort)
	_, err := client.NodeGroupTemplateNodeInfo(t.Context(), &proto.NodeGroupTemplateNodeInfoRequest{Id: "no-type"})
	require.ErrorContains(t, err, "no-type")
	_, err = client.NodeGroupIncreaseSize(t.Context(), &proto.NodeGroupIncreaseSizeRequest{Id: "missing", Delta: 1})
	require.ErrorContains(t, err, "missing")
	template, err := client.NodeGroupTemplateNodeInfo(t.Context(), &proto.NodeGroupTemplateNodeInfoRequest{Id: "good"})
	require.NoError(t, err)
	require.NotEmpty(t, template.GetNodeBytes())
	// When the provider starts, Cluster Autoscaler has no open request for the instance that
	// boots, so that instance is one of the two.
	_, err = client.NodeGroupIncreaseSize(t.Context(), &proto.NodeGroupIncreaseSizeRequest{Id: "good", Delta: 2})
	require.NoError(t, err)
	require.Equal(t, 2, stub.Group("good").Desired)
	_, err = client.NodeGroupIncreaseSize(t.Context(), &proto.NodeGroupIncreaseSizeRequest{Id: "good", Delta: 2})
	require.NoError(t, err)
	require.Equal(t, 4, stub.Group("good").Desired)

	stub.CreateGroup(awstest.Group{Name: "missing", Max: 5})
	eventually(t, "a group that is made later is served", func() bool {
		again := start(t, "status", "--address", httpPort)
		return again.wait(t) == 0 && !strings.Contains(again.stdout.String(), "\nmissing: ")
	})
}

// TestNoPermissionOnAWS: readiness and the log name the missing permission, and the provider
// serves once it is granted.
func TestNoPermissionOnAWS(t *testing.T) {
	stub := awstest.NewStub(t)
	stub.CreateGroup(awstest.Group{Name: "good", Max: 5})
	allow := stub.Faults(awstest.Rule{Action: "DescribeAutoScalingGroups", Fault: awstest.Deny()})
	grpcPort, httpPort := freePort(t), freePort(t)
	start(t, "serve", "--config", onAWS(t, stub.URL(), ports(grpcPort, httpPort), group("good")))
	eventually(t, "readiness says why", func() bool {
		said := text(t, "http://"+httpPort+"/readyz")
		return strings.Contains(said, "the cloud has not been read yet: ") && strings.Contains(said, "autoscaling:DescribeAutoScalingGroups")
	})
	allow()
	eventually(t, "it serves", func() bool { return text(t, "http://"+httpPort+"/readyz") == "ok\n" })
}

func TestNoCredentialsOnAWS(t *testing.T) {
	stub := awstest.NewStub(t)
	httpPort := freePort(t)
	config := onAWS(t, stub.URL(), ports(freePort(t), httpPort), group("good"))
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", t.TempDir()+"/none")
	t.Setenv("AWS_CONFIG_FILE", t.TempDir()+"/none")
	start(t, "serve", "--config", config)
	eventually(t, "readiness says why", func() bool {
		return strings.Contains(strings.ToLower(text(t, "http://"+httpPort+"/readyz")), "credentials")
	})
}

// TestWrongRegionOnAWS: readiness names the field to check.
func TestWrongRegionOnAWS(t *testing.T) {
	t.Setenv("AWS_MAX_ATTEMPTS", "1")
	httpPort := freePort(t)
	path := onAWS(t, "", ports(freePort(t), httpPort), group("good"))
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(file), "region: us-east-1", "region: eu-nowhere-9", 1)), 0o600))
	start(t, "serve", "--config", path)
	eventually(t, "readiness says what to look at", func() bool {
		return strings.Contains(text(t, "http://"+httpPort+"/readyz"), "check that cloud.aws.region is an AWS region")
	})
}

func dial(t *testing.T, address string) proto.CloudProviderClient {
	t.Helper()
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	return proto.NewCloudProviderClient(connection)
}

// startProcess starts the program in a separate process; kill ends it at once.
func startProcess(t *testing.T, config, httpPort string) (kill func()) {
	t.Helper()
	p := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0], "serve", "--config", config)
	p.Env = append(os.Environ(), asProgram+"=1")
	p.Stderr = testWriter{t}
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, p.Start())
	kill = sync.OnceFunc(func() {
		_ = p.Process.Kill() // fails when the process has ended; the test notices that
		_ = p.Wait()
	})
	t.Cleanup(kill)
	eventually(t, "it serves", func() bool { return text(t, "http://"+httpPort+"/readyz") == "ok\n" })
	return kill
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// TestKilledBetweenAnyTwoCalls kills the provider at each call of a write to AWS in turn,
// before and after the call takes effect, and restarts it; Cluster Autoscaler repeats calls
// without an answer.
func TestKilledBetweenAnyTwoCalls(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts some thirty processes")
	}
	increase := func(ctx context.Context, c proto.CloudProviderClient, _ *awstest.Stub) error {
		_, err := c.NodeGroupIncreaseSize(ctx, &proto.NodeGroupIncreaseSizeRequest{Id: "train", Delta: 2})
		return err
	}
	remove := func(ctx context.Context, c proto.CloudProviderClient, stub *awstest.Stub) error {
		id := "aws:///us-east-1a/" + first(stub)
		_, err := c.NodeGroupDeleteNodes(ctx, &proto.NodeGroupDeleteNodesRequest{Id: "train", Nodes: []*proto.ExternalGrpcNode{{Name: "node", ProviderID: id}}})
		return err
	}
	for name, row := range map[string]struct {
		desired, want int
		write         func(context.Context, proto.CloudProviderClient, *awstest.Stub) error
	}{
		"IncreaseSize": {0, 2, increase},
		"DeleteNodes":  {3, 2, remove},
	} {
		for _, effect := range []bool{false, true} {
			for nth, killed := 0, true; killed; nth++ {
				t.Run(fmt.Sprintf("%s/%d/effect=%t", name, nth, effect), func(t *testing.T) {
					killed = killedAt(t, nth, effect, row.desired, row.want, row.write)
				})
			}
		}
	}
}

// first returns the oldest instance, which is the one to delete.
func first(stub *awstest.Stub) string { return stub.Group("train").Instances[0].ID }

func killedAt(t *testing.T, nth int, effect bool, desired, want int, write func(context.Context, proto.CloudProviderClient, *awstest.Stub) error) (killed bool) {
	stub := awstest.NewStub(t)
	stub.CreateGroup(awstest.Group{Name: "train", Max: 10, Desired: desired})
	stub.Settle("train")
	victim := ""
	if desired > 0 {
		victim = first(stub)
	}
	grpcPort, httpPort := freePort(t), freePort(t)
	config := onAWS(t, stub.URL(), ports(grpcPort, httpPort), group("train"))
	kill := startProcess(t, config, httpPort)
	client := dial(t, grpcPort)
	dead := make(chan struct{})
	rules := []awstest.Rule{{Skip: nth, Times: 1, Match: ofWrite, Fault: awstest.Do(func() {
		kill()
		close(dead)
	})}}
	if !effect {
		rules = append(rules, awstest.Rule{Skip: nth, Times: 1, Match: ofWrite, Fault: awstest.CutBefore()})
	}
	undo := stub.Faults(rules...)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := write(ctx, client, stub); err == nil { // the write makes fewer calls
		require.Equal(t, want, stub.Group("train").Desired)
		return false
	}
	eventually(t, "the provider is killed", func() bool {
		select {
		case <-dead:
			return true
		default:
			return false
		}
	})
	undo()
	startProcess(t, config, httpPort)
	again := dial(t, grpcPort)
	if victim != "" && first(stub) != victim { // it is gone, so Cluster Autoscaler does not repeat the call
		require.Equal(t, want, stub.Group("train").Desired)
		return true
	}
	require.NoError(t, write(ctx, again, stub))
	require.Equal(t, want, stub.Group("train").Desired)
	return true
}

// ofWrite excludes the reads that the provider makes periodically.
func ofWrite(c awstest.Call) bool {
	return c.Action != "DescribeAutoScalingGroups" && c.Action != "DescribeScalingActivities"
}
