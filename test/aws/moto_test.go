package aws

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"

	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/proto"
	"gpu-node-provider/test/testbed/process"
)

// tagged begins the tags by which an ASG describes its Nodes to Cluster
// Autoscaler's own AWS provider; discover is the tag by which it is found, and ofThis names the cluster.
const (
	tagged   = "k8s.io/cluster-autoscaler/node-template/"
	discover = "k8s.io/cluster-autoscaler/enabled"
	ofThis   = "k8s.io/cluster-autoscaler/moto"
)

// machineTypes have the GPUs of case D-02.
var machineTypes = []struct {
	name      string
	cpus, gpu int64
}{{"g4dn.xlarge", 4, 1}, {"g4dn.12xlarge", 48, 4}, {"g4dn.metal", 96, 8}, {"g5.xlarge", 4, 1}, {"p4d.24xlarge", 96, 8}}

const motoGroups = 50

func motoGroup(n int) string { return fmt.Sprintf("train-%02d", n) }

// TestMotoLifecycleOfFiftyGroups runs the program as people do, with a file that
// names no group, on an AWS that others have written: the groups are found by a
// tag, their templates follow from instance types and tags (D-01, D-02, D-03,
// D-05), and they grow and shrink.
func TestMotoLifecycleOfFiftyGroups(t *testing.T) {
	t.Parallel()
	binary := built(t)
	moto, proxy := fiftyGroups(t)
	w := program(t, binary(), proxy.URL())
	w.refresh()
	list, err := w.NodeGroups(t.Context(), &proto.NodeGroupsRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetNodeGroups(), motoGroups+1, "and the one with a launch configuration, without the one that has no tag")
	for n := range motoGroups {
		w.templateOf(t, n)
	}
	require.EqualValues(t, 4, w.template(t, "configured").Status.Capacity.Cpu().Value())

	var calls errgroup.Group
	calls.SetLimit(10)
	for n := range motoGroups {
		calls.Go(func() error { return w.lifecycle(t, motoGroup(n)) })
	}
	require.NoError(t, calls.Wait())
	w.refresh()
	for n := range motoGroups {
		require.Equal(t, 2, w.size(motoGroup(n)))
	}

	scaling := autoscaling.NewFromConfig(awstest.Config(t, moto.URL()))
	_, err = scaling.DeleteTags(t.Context(), &autoscaling.DeleteTagsInput{Tags: []types.Tag{{
		ResourceId: awssdk.String(motoGroup(0)), ResourceType: awssdk.String("auto-scaling-group"), Key: awssdk.String(tagged + "taint/nvidia.com/gpu"),
	}}})
	require.NoError(t, err)
	eventually(t, "D-03: the template follows", func() bool { return len(w.template(t, motoGroup(0)).Spec.Taints) == 0 })
	require.Len(t, w.template(t, motoGroup(1)).Spec.Taints, 1)
	assert.Empty(t, called.add(proxy.Actions()), "actions that aws.Permissions does not name")
}

// fiftyGroups are on moto, empty and with room for four machines each.
func fiftyGroups(t *testing.T) (*awstest.Moto, *awstest.Proxy) {
	t.Helper()
	if _, err := os.Stat("../../.cache/moto/bin/python"); err != nil && os.Getenv("MOTO_PYTHON") == "" {
		called.skipped = true // StartMoto says what to do
	}
	moto := awstest.StartMoto(t)
	for n := range motoGroups {
		zones := []string{"us-east-1a", "us-east-1b"}
		if n%2 == 0 {
			zones = zones[:1]
		}
		moto.CreateGroup(t, awstest.Group{
			Name: motoGroup(n), Max: 4, InstanceType: machineTypes[n%len(machineTypes)].name, Zones: zones,
			Tags: map[string]string{
				discover: "true", ofThis: "owned", tagged + "label/accelerator": "nvidia-tesla-t4", tagged + "taint/nvidia.com/gpu": "present:NoSchedule",
				tagged + "resources/ephemeral-storage": "200Gi", tagged + "label/number": fmt.Sprint(n),
			},
		})
	}
	moto.CreateGroup(t, awstest.Group{Name: "somebody-elses", Max: 4})
	scaling := autoscaling.NewFromConfig(awstest.Config(t, moto.URL()))
	_, err := scaling.CreateLaunchConfiguration(t.Context(), &autoscaling.CreateLaunchConfigurationInput{
		LaunchConfigurationName: awssdk.String("old"), ImageId: awssdk.String("ami-12345678"), InstanceType: awssdk.String("g4dn.xlarge"),
	})
	require.NoError(t, err)
	_, err = scaling.CreateAutoScalingGroup(t.Context(), &autoscaling.CreateAutoScalingGroupInput{
		AutoScalingGroupName: awssdk.String("configured"), LaunchConfigurationName: awssdk.String("old"), AvailabilityZones: []string{"us-east-1a"},
		MinSize: awssdk.Int32(0), MaxSize: awssdk.Int32(2),
		Tags: []types.Tag{
			{Key: awssdk.String(discover), Value: awssdk.String("true"), ResourceId: awssdk.String("configured"), ResourceType: awssdk.String("auto-scaling-group"), PropagateAtLaunch: awssdk.Bool(true)},
			{Key: awssdk.String(ofThis), Value: awssdk.String("owned"), ResourceId: awssdk.String("configured"), ResourceType: awssdk.String("auto-scaling-group"), PropagateAtLaunch: awssdk.Bool(true)},
			{Key: awssdk.String(tagged + "label/accelerator"), Value: awssdk.String("nvidia-tesla-t4"), ResourceId: awssdk.String("configured"), ResourceType: awssdk.String("auto-scaling-group"), PropagateAtLaunch: awssdk.Bool(true)},
		},
	})
	require.NoError(t, err)
	return moto, awstest.NewProxy(t, moto.URL())
}

func (w *world) template(t *testing.T, id string) *corev1.Node {
	t.Helper()
	r, err := w.NodeGroupTemplateNodeInfo(t.Context(), &proto.NodeGroupTemplateNodeInfoRequest{Id: id})
	require.NoError(t, err)
	node := &corev1.Node{}
	require.NoError(t, node.Unmarshal(r.GetNodeBytes()))
	return node
}

// templateOf is what a Pod that waits for the first node of a group is held to.
func (w *world) templateOf(t *testing.T, n int) {
	t.Helper()
	id, kind := motoGroup(n), machineTypes[n%len(machineTypes)]
	node := w.template(t, id)
	labels := map[string]string{
		corev1.LabelHostname: node.Name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64", corev1.LabelTopologyRegion: "us-east-1",
		corev1.LabelInstanceTypeStable: kind.name, "gpu-node-provider.io/node-group": id, "accelerator": "nvidia-tesla-t4", "number": fmt.Sprint(n),
	}
	if n%2 == 0 { // in one zone
		labels[corev1.LabelTopologyZone], labels["topology.ebs.csi.aws.com/zone"] = "us-east-1a", "us-east-1a"
	}
	require.Equal(t, labels, node.Labels)
	require.Equal(t, []corev1.Taint{{Key: "nvidia.com/gpu", Value: "present", Effect: corev1.TaintEffectNoSchedule}}, node.Spec.Taints)
	for name, list := range map[string]corev1.ResourceList{"capacity": node.Status.Capacity, "allocatable": node.Status.Allocatable} {
		gpus := list["nvidia.com/gpu"]
		require.Equal(t, kind.gpu, gpus.Value(), "%s of %s", name, kind.name)
		require.Positive(t, list.Pods().Value())
		require.Positive(t, list.Memory().Value())
		require.Positive(t, list.StorageEphemeral().Value())
	}
	require.Equal(t, kind.cpus, node.Status.Capacity.Cpu().Value())
	require.Equal(t, "200Gi", node.Status.Capacity.StorageEphemeral().String())
	require.Negative(t, node.Status.Allocatable.Memory().Cmp(*node.Status.Capacity.Memory()), "what the kubelet keeps is taken off")
	require.Negative(t, node.Status.Allocatable.Cpu().Cmp(*node.Status.Capacity.Cpu()))
}

// lifecycle grows a group to its maximum, gives up what has become machines
// already, and deletes two of four.
func (w *world) lifecycle(t *testing.T, id string) error {
	if err := w.tryIncrease(t.Context(), id, 4); err != nil {
		return err
	}
	promised := w.placeholders(id)
	if err := w.tryDelete(t.Context(), id, fakes(promised...)...); err != nil {
		return fmt.Errorf("cancelling: %w", err)
	}
	live := w.states(id)[running]
	if len(live) != 4 || w.size(id) != 4 {
		return fmt.Errorf("moto launches at once, and nothing of it is cancelled: %v", w.states(id))
	}
	if err := w.tryIncrease(t.Context(), id, 1); err == nil {
		return fmt.Errorf("%s has grown above its maximum", id)
	}
	// One after the other: moto takes two at a time off a capacity that it has read
	// once, and AWS does not.
	for _, i := range live[:2] {
		if err := w.tryDelete(t.Context(), id, nodes(i)...); err != nil {
			return fmt.Errorf("deleting: %w", err)
		}
	}
	if err := w.tryDelete(t.Context(), id, nodes(live[:2]...)...); err != nil {
		return fmt.Errorf("deleting again: %w", err)
	}
	if slices.ContainsFunc(live[:2], func(i string) bool { return slices.Contains(w.states(id)[running], i) }) {
		return fmt.Errorf("%s still has what was deleted", id)
	}
	w.code(codes.InvalidArgument, w.tryDelete(t.Context(), id, nodes("aws:///us-east-1a/i-0123456789abcdef0")...))
	return nil
}

// built begins to build the program; what it returns waits until that is done.
func built(t *testing.T) (path func() string) {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "gpu-node-provider")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-o", binary, "gpu-node-provider/cmd/gpu-node-provider")
	var output bytes.Buffer
	build.Stdout, build.Stderr = &output, &output
	require.NoError(t, build.Start())
	done := sync.OnceValue(build.Wait)
	t.Cleanup(func() { _ = done() }) // where the test did not get so far
	return func() string {
		require.NoError(t, done(), "%s", output.String())
		return binary
	}
}

// program starts the real one, with discovery, and a client of it.
func program(t *testing.T, binary, endpoint string) *world {
	t.Helper()
	dir := t.TempDir()
	ports, err := process.FreePorts(2)
	require.NoError(t, err)
	address, web := fmt.Sprintf("127.0.0.1:%d", ports[0]), fmt.Sprintf("127.0.0.1:%d", ports[1])
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.yaml"), fmt.Appendf(nil, `apiVersion: gpu-node-provider.io/v1
kind: ProviderConfig
server: {address: %q, httpAddress: %q}
kubernetes: {kubeconfig: %q, leaderElection: false}
cloud: {aws: {region: us-east-1, endpoint: %q, refreshInterval: 1s, discovery: {tags: {%s: "true"}}}}
redis: {addresses: ["127.0.0.1:1"]}
`, address, web, emptyCluster(t, dir), endpoint, discover), 0o600))
	p, err := process.Start(process.Spec{Name: "provider", Path: binary, Args: []string{"serve", "--config", filepath.Join(dir, "config.yaml")}, LogDir: dir})
	require.NoError(t, err)
	t.Cleanup(func() {
		p.Kill()
		if log, err := os.ReadFile(p.Log); err == nil && t.Failed() {
			t.Logf("%s", log)
		}
	})
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithChainUnaryInterceptor(bounded, audited(t)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() }) // its server may be gone
	w := &world{t: t, CloudProviderClient: proto.NewCloudProviderClient(conn)}
	_, err = w.Refresh(w.within(patience), &proto.RefreshRequest{}, grpc.WaitForReady(true))
	require.NoError(t, err)
	return w
}

// emptyCluster is an API server without Nodes and Pods, and a kubeconfig of it.
func emptyCluster(t *testing.T, dir string) (kubeconfig string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		switch query := r.URL.Query(); {
		case query.Get("sendInitialEvents") != "": // one that knows only lists and watches
			rw.WriteHeader(http.StatusBadRequest)
		case query.Get("watch") != "":
			_ = http.NewResponseController(rw).Flush() // the client may be gone
			<-r.Context().Done()
		default:
			kind := map[string]string{"nodes": "NodeList", "pods": "PodList"}[filepath.Base(r.URL.Path)]
			_, _ = fmt.Fprintf(rw, `{"kind": %q, "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}`, kind)
		}
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	kubeconfig = filepath.Join(dir, "kubeconfig.yaml")
	require.NoError(t, os.WriteFile(kubeconfig, []byte(strings.ReplaceAll(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "URL"}}]
contexts: [{name: c, context: {cluster: c}}]
current-context: c
`, "URL", server.URL)), 0o600))
	return kubeconfig
}
