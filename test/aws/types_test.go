package aws

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"gpu-node-provider/cloud/aws/awstest"
)

// TestCP04LimitInDollars: a group without a real price counts high, and the text tells so;
// one with a price tells its list.
func TestCP04LimitInDollars(t *testing.T) {
	t.Parallel()
	stub := awstest.NewStub(t)
	stub.AddInstanceType(awstest.InstanceType{
		Name: "p5e.48xlarge", CPUs: 192, MemoryMiB: 2048 << 10, GPUs: []awstest.GPU{{Name: "H200", Maker: "NVIDIA", Count: 8, MemoryMiB: 141 << 10}}, Interfaces: 64, Addresses: 50,
	})
	template := awstest.LaunchTemplate{ID: "lt-1", Name: "h200", Version: "1"}
	stub.AddLaunchTemplate(template, "p5e.48xlarge")
	stub.CreateGroup(awstest.Group{Name: "h200", Max: 5, LaunchTemplate: &template, InstanceType: "p5e.48xlarge"})
	stub.CreateGroup(awstest.Group{Name: "t4", Max: 50})
	w := serve(t, stub, setup{
		complete: true,
		groups:   []string{"{id: h200, autoScalingGroup: h200, maxSize: 4, labels: {accelerator: x}}", "{id: t4, autoScalingGroup: t4, maxSize: 40, labels: {accelerator: y}}"},
		quotas:   []string{"{name: spend, resource: usd-per-hour, limit: 70}", "{name: t4, resource: usd-per-hour, limit: 2, nodeGroups: [t4]}"},
	})
	text := w.code(codes.ResourceExhausted, w.tryIncrease(t.Context(), "h200", 4))
	require.Contains(t, text, "quota spend: 0 of 70 usd-per-hour used, a node of h200 needs 207.616 by a rough estimate, since its real price is not known")
	require.Equal(t, 1, w.logs.FilterMessageSnippet("rough price").Len())
	w.increase("t4", 3)
	text = w.code(codes.ResourceExhausted, w.tryIncrease(t.Context(), "t4", 1))
	require.Contains(t, text, "quota t4: 1.578 of 2 usd-per-hour used, a node of t4 needs 0.526 by list price of g4dn.xlarge in us-east-1 on 2026-01-21")
}

// TestCP08MachinesCountAsWhatTheyAre: two machines of 8 GPUs run when the launch template
// of their group turns to one of 1 GPU. A quota of 16 stays used up, also after a restart.
func TestCP08MachinesCountAsWhatTheyAre(t *testing.T) {
	t.Parallel()
	big := awstest.LaunchTemplate{ID: "lt-1", Name: "train", Version: "1"}
	latest := big
	latest.Version = "$Latest"
	stub := awstest.NewStub(t)
	stub.AddLaunchTemplate(big, "p5.48xlarge")
	stub.CreateGroup(awstest.Group{Name: train, Max: 100, Desired: 2, LaunchTemplate: &latest, InstanceType: "p5.48xlarge", Protected: true})
	stub.Settle()
	file := setup{
		complete: true,
		groups:   []string{"{id: train, autoScalingGroup: train, maxSize: 100, labels: {accelerator: some-gpu}}"},
		quotas:   []string{"{name: gpus, resource: nvidia.com/gpu, limit: 16}"},
	}
	w := serve(t, stub, file)
	require.EqualValues(t, 2, w.trainGroup().GetMaxSize())

	small := big
	small.Version = "2"
	stub.AddLaunchTemplate(small, "g4dn.xlarge")
	stub.SetInstanceType(train, "g4dn.xlarge")
	require.NoError(t, w.server.Reload(t.Context(), w.catalogue(file)))
	for range 2 {
		require.InDelta(t, 16, w.metric("gpu_node_provider_quota_used"), 0)
		require.EqualValues(t, 2, w.trainGroup().GetMaxSize())
		require.Contains(t, w.code(codes.ResourceExhausted, w.tryIncrease(t.Context(), train, 14)), "16 of 16")
		require.Equal(t, 2, w.desired())
		w = w.restart()
	}

	w.delete(nodes(w.states(train)[running][0])...)
	stub.Settle()
	w.refresh()
	w.increase(train, 14)
	require.Equal(t, 1+8, w.desired(), "a machine of 8 GPUs is left, and 8 of 1 fit beside it")
	require.InDelta(t, 16, w.metric("gpu_node_provider_quota_used"), 0)
	stub.Settle()
	w.refresh()
	require.InDelta(t, 16, w.metric("gpu_node_provider_quota_used"), 0)
}
