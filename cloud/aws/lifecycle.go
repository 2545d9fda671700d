package aws

import (
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"

	"gpu-node-provider/cloud"
)

// stage is what a lifecycle state means here.
type stage struct {
	state cloud.State
	// counted is true when the instance is part of the desired capacity.
	counted bool
	// listed is false for what is no part of the group's capacity at all.
	listed bool
}

// lifecycle is
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-lifecycle.html.
// Standby and what enters it or detaches is a machine, and perhaps a Node with
// Pods, but no part of the desired capacity: AWS lowers that, or launches
// another instance, when the call is made.
var lifecycle = map[types.LifecycleState]stage{
	types.LifecycleStatePending:        {cloud.Creating, true, true},
	types.LifecycleStatePendingWait:    {cloud.Creating, true, true},
	types.LifecycleStatePendingProceed: {cloud.Creating, true, true},

	types.LifecycleStateInService:                  {cloud.Running, true, true},
	types.LifecycleStateReplacingRootVolume:        {cloud.Running, true, true},
	types.LifecycleStateReplacingRootVolumeWait:    {cloud.Running, true, true},
	types.LifecycleStateReplacingRootVolumeProceed: {cloud.Running, true, true},
	types.LifecycleStateRootVolumeReplaced:         {cloud.Running, true, true},

	types.LifecycleStateEnteringStandby: {cloud.Running, false, true},
	types.LifecycleStateStandby:         {cloud.Running, false, true},
	types.LifecycleStateDetaching:       {cloud.Running, false, true},

	types.LifecycleStateTerminating:         {cloud.Deleting, false, true},
	types.LifecycleStateTerminatingWait:     {cloud.Deleting, false, true},
	types.LifecycleStateTerminatingProceed:  {cloud.Deleting, false, true},
	types.LifecycleStateTerminatingRetained: {cloud.Deleting, false, true},
	types.LifecycleStateTerminated:          {cloud.Deleting, false, true},

	types.LifecycleStateDetached: {}, // no longer the group's
}

// stageOf knows states that do not exist yet by their first word: a new kind of
// Terminating must not turn a departing machine into a live one.
func stageOf(state types.LifecycleState) stage {
	if s, ok := lifecycle[state]; ok {
		return s
	}
	switch word, _, _ := strings.Cut(string(state), ":"); word {
	case "Warmed": // prepared, but neither asked for nor running
		return stage{}
	case "Terminating":
		return lifecycle[types.LifecycleStateTerminating]
	default:
		return lifecycle[types.LifecycleStatePending]
	}
}
