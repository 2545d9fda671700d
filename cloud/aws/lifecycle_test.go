package aws

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/cloud/cloudtest"
)

// TestLifecycle is case C-05: every state that the SDK knows, and some that it
// does not.
func TestLifecycle(t *testing.T) {
	want := map[types.LifecycleState]stage{
		"Pending": {cloud.Creating, true, true}, "Pending:Wait": {cloud.Creating, true, true}, "Pending:Proceed": {cloud.Creating, true, true},
		"InService":           {cloud.Running, true, true},
		"ReplacingRootVolume": {cloud.Running, true, true}, "ReplacingRootVolume:Wait": {cloud.Running, true, true},
		"ReplacingRootVolume:Proceed": {cloud.Running, true, true}, "RootVolumeReplaced": {cloud.Running, true, true},
		"EnteringStandby": {cloud.Running, false, true}, "Standby": {cloud.Running, false, true}, "Detaching": {cloud.Running, false, true},
		"Terminating": {cloud.Deleting, false, true}, "Terminating:Wait": {cloud.Deleting, false, true},
		"Terminating:Proceed": {cloud.Deleting, false, true}, "Terminating:Retained": {cloud.Deleting, false, true}, "Terminated": {cloud.Deleting, false, true},
		"Detached": {}, "Warmed:Pending": {}, "Warmed:Pending:Wait": {}, "Warmed:Pending:Proceed": {}, "Warmed:Pending:Retained": {},
		"Warmed:Terminating": {}, "Warmed:Terminating:Wait": {}, "Warmed:Terminating:Proceed": {}, "Warmed:Terminating:Retained": {},
		"Warmed:Terminated": {}, "Warmed:Stopped": {}, "Warmed:Running": {}, "Warmed:Hibernated": {},
		"Quarantined":           {cloud.Creating, true, true}, // not used, says AWS
		"Terminating:Something": {cloud.Deleting, false, true},
		"Warmed:Something":      {},
		"Something":             {cloud.Creating, true, true},
	}
	for _, state := range types.LifecycleState("").Values() {
		require.Contains(t, want, state)
	}
	for state, stage := range want {
		require.Equal(t, stage, stageOf(state), state)
	}
}

// TestStandby: such a machine is part of Target, but not of what AWS desires.
func TestStandby(t *testing.T) {
	c, stub := one(t, awstest.Group{Min: 1, Desired: 2, Max: 4}, Options{})
	stub.Add("train-t4", awstest.Standby, 1)
	stub.Add("train-t4", awstest.Warmed, 1)
	g := get(t, c)
	require.Len(t, g.Instances, 3)
	require.Equal(t, []int{3, 2, 5}, []int{g.Target, g.Min, g.Max})

	g, err := c.Increase(t.Context(), "t4", cloudtest.Exactly(2))
	require.NoError(t, err)
	require.Equal(t, 5, g.Target)
	require.Equal(t, 4, stub.Group("train-t4").Desired)
	_, err = c.Increase(t.Context(), "t4", cloudtest.Exactly(1))
	require.ErrorIs(t, err, cloud.ErrLimit)

	g, given, err := c.Cancel(t.Context(), "t4", cloudtest.These(idsOf(g, isPlaceholder)))
	require.NoError(t, err)
	require.Len(t, given, 2)
	require.Equal(t, 3, g.Target)
	require.Equal(t, 2, stub.Group("train-t4").Desired)

	standby := "aws:///us-east-1a/" + stub.Group("train-t4").IDs(awstest.Standby)[0]
	g, _, err = c.Delete(t.Context(), "t4", []string{standby})
	require.NoError(t, err)
	require.Equal(t, 2, g.Target)
	require.Equal(t, 2, stub.Group("train-t4").Desired, "it was no part of it")
	require.Equal(t, "false", stub.Calls(terminate)[0].Params["ShouldDecrementDesiredCapacity"])
}
