package aws

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"gpu-node-provider/cloud/aws/awstest"
)

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
