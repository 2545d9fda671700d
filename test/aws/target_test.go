package aws

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/proto"
)

const (
	setDesired = "SetDesiredCapacity"
	terminate  = "TerminateInstanceInAutoScalingGroup"
	describe   = "DescribeAutoScalingGroups"
)

const noCapacity = "We currently do not have sufficient g4dn.xlarge capacity in the Availability Zone you requested (us-east-1a). " +
	"Our system will be working on provisioning additional capacity. Launching EC2 instance failed."

// TestB01TheSeventhArrivesWhileItsPlaceholderIsDeleted: between what is read and
// what is written, the node that Cluster Autoscaler gives up on comes into service.
func TestB01TheSeventhArrivesWhileItsPlaceholderIsDeleted(t *testing.T) {
	t.Parallel()
	stub := trained(t, 6, protected)
	stub.SetDesired(train, 7)
	stub.BeginLaunch(train, 1)
	w := serve(t, stub, setup{})
	waiting := w.placeholders(train)
	require.Len(t, waiting, 1)
	stub.Faults(awstest.Rule{Action: setDesired, Times: 1, Fault: awstest.Do(func() { stub.Arrive(train, 1, true) })})
	w.delete(fakes(waiting...)...)
	require.Equal(t, 7, w.size(train), "before any refresh")
	require.Equal(t, 7, w.desired())
	stub.Settle()
	w.refresh()
	require.Equal(t, 7, w.size(train))
	require.Len(t, w.states(train)[running], 7)
	require.Empty(t, stub.Kills())
	require.InDelta(t, 1, w.metric("gpu_node_provider_aws_placeholder_race_total"), 0)
}

// TestB02B03HalfAnIncreaseFails: 32 are asked for, 16 launches fail, and while
// the 16 placeholders are given up five come after all. Whatever runs, stays. Of
// what still boots AWS may take some: no protection reaches it (protection.go).
func TestB02B03HalfAnIncreaseFails(t *testing.T) {
	t.Parallel()
	for name, booted := range map[string]int{"all others run": 16, "some others boot": 10} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stub := trained(t, 8) // busy, and nobody has protected them
			stub.WorstVictims(true)
			w := serve(t, stub, setup{})
			stub.Capacity(train, 16, noCapacity)
			w.increase(train, 32)
			require.Equal(t, 16, stub.Launch(train, 32))
			stub.Boot(train, booted)
			w.refresh()
			require.Equal(t, 40, w.size(train))
			waiting := w.placeholders(train)
			require.Len(t, waiting, 16)

			stub.Capacity(train, -1, "")
			require.Equal(t, 5, stub.BeginLaunch(train, 5))
			stub.Faults(
				awstest.Rule{Action: "SetInstanceProtection", Times: 1, Fault: awstest.Do(func() { stub.Arrive(train, 2, true) })},
				awstest.Rule{Action: setDesired, Times: 1, Fault: awstest.Do(func() { stub.Arrive(train, 3, true) })},
			)
			w.delete(fakes(waiting...)...)
			require.Equal(t, w.desired(), w.size(train), "before any refresh")
			stub.Settle()
			w.refresh()
			require.Equal(t, w.desired(), w.size(train))
			require.Len(t, w.states(train)[running], w.desired())
			require.Empty(t, stub.Victims())
			require.Positive(t, stub.Count("SetInstanceProtection"))
			if booted == 16 {
				require.Empty(t, stub.Kills(), "AWS had nothing to choose from")
				require.Equal(t, 8+16+5, w.desired())
			}
		})
	}
}

// TestB04DecreaseByMoreThanIsMissing: Cluster Autoscaler subtracts what has
// registered, and a booting node has not.
func TestB04DecreaseByMoreThanIsMissing(t *testing.T) {
	t.Parallel()
	stub := trained(t, 2, protected)
	w := serve(t, stub, setup{})
	w.increase(train, 3)
	stub.Launch(train, 1) // the snapshot does not know it
	require.NoError(t, w.tryDecrease(-3))
	require.Equal(t, 3, w.size(train))
	require.Equal(t, 3, w.desired())
	require.Len(t, w.states(train)[creating], 1, "it still boots")
	stub.Settle()

	stub.SetDesired(train, 5)
	stub.Step()
	w.refresh()
	calls := stub.Count(setDesired)
	text := w.code(codes.FailedPrecondition, w.tryDecrease(-3))
	require.Contains(t, text, "all 5 nodes of its target are instances")
	require.Equal(t, 5, w.desired())
	require.Equal(t, calls, stub.Count(setDesired))
	require.Empty(t, stub.Kills())
	require.Zero(t, stub.Count(terminate))
}

// TestB06DecreaseOfANodeThatDrains: for Cluster Autoscaler a node that drains
// for long is gone, and a finished scale-up looks unfinished.
func TestB06DecreaseOfANodeThatDrains(t *testing.T) {
	t.Parallel()
	stub := trained(t, 1)
	w := serve(t, stub, setup{})
	w.increase(train, 1)
	stub.Settle()
	w.code(codes.FailedPrecondition, w.tryDecrease(-1)) // the snapshot still has a placeholder
	w.refresh()
	w.code(codes.FailedPrecondition, w.tryDecrease(-1))
	require.Equal(t, 2, w.size(train))
	require.Equal(t, 2, w.desired())
	require.Equal(t, 1, stub.Count(setDesired), "the increase alone")
	require.Empty(t, stub.Kills())
}

// TestB07TargetIsWhatIsListed: after whatever happens on AWS and whatever is
// asked, so that Cluster Autoscaler never finds sizes to fix. size checks it.
func TestB07TargetIsWhatIsListed(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			stub := trained(t, 3)
			w := serve(t, stub, setup{})
			random := rand.New(rand.NewPCG(seed, seed))
			mine := map[string]bool{} // what a DeleteNodes has named
			for range 60 {
				w.happens(random)
				w.asks(random, mine)
				w.size(train)
				require.GreaterOrEqual(t, int(w.trainGroup().GetMaxSize()), w.size(train))
			}
			stub.Capacity(train, -1, "")
			stub.Resume(train, "Launch")
			stub.Settle()
			stub.Advance(2 * time.Minute)
			w.refresh()
			require.Equal(t, w.size(train), len(w.states(train)[running]))
			for _, k := range stub.Kills() {
				require.True(t, k.Why != awstest.Asked || mine[machine(k.Instance)], "%+v", k)
			}
		})
	}
}

// happens is something on AWS.
func (w *world) happens(random *rand.Rand) {
	stub := w.stub
	live := stub.Group(train).IDs(awstest.InService)
	pick := func() string { return live[random.IntN(len(live))] }
	switch n := random.IntN(12); {
	case n < 3:
		stub.Step()
	case n == 3:
		stub.Launch(train, 2)
	case n == 4:
		stub.Boot(train, 1)
	case n == 5:
		stub.BeginLaunch(train, 1)
	case n == 6:
		stub.Capacity(train, random.IntN(3)-1, noCapacity)
	case n == 7:
		stub.SetDesired(train, random.IntN(8))
	case n == 8 && len(live) > 0:
		stub.End(pick(), awstest.Unhealthy)
	case n == 9 && len(live) > 0:
		stub.Detach(pick(), random.IntN(2) == 0)
	case n == 10 && len(live) > 0:
		stub.SetState(pick(), awstest.Standby)
	default:
		stub.Advance(time.Duration(random.IntN(40)) * time.Second)
	}
}

// asks is a call of Cluster Autoscaler's. It may be refused.
func (w *world) asks(random *rand.Rand, mine map[string]bool) {
	states := w.states(train)
	switch n := random.IntN(8); {
	case n < 3:
		w.refresh()
	case n == 3:
		_ = w.tryIncrease(w.t.Context(), train, 1+random.IntN(3))
	case n == 4:
		_ = w.tryDecrease(-1 - random.IntN(3))
	case n == 5:
		_ = w.tryDelete(w.t.Context(), train, fakes(w.placeholders(train)...)...)
	case n == 6 && len(states[running]) > 0:
		id := states[running][random.IntN(len(states[running]))]
		mine[id] = true
		_ = w.tryDelete(w.t.Context(), train, nodes(id)...)
	default:
	}
}

// TestB08NothingComes: AWS says nothing at all for longer than Cluster
// Autoscaler waits, and the group has no node by which it could notice. The
// placeholder fails before Cluster Autoscaler gives it up (CP12).
func TestB08NothingComes(t *testing.T) {
	t.Parallel()
	stub := trained(t, 0)
	w := serve(t, stub, setup{})
	w.increase(train, 1)
	waiting := w.placeholders(train)
	require.Len(t, waiting, 1)
	for minute := 1; minute <= 16; minute++ {
		stub.Advance(time.Minute)
		w.refresh()
		require.Equal(t, map[proto.InstanceStatus_InstanceState][]string{creating: waiting}, w.states(train))
		require.Equal(t, minute >= 12, w.instances(train)[0].GetStatus().GetErrorInfo() != nil, "minute %d", minute)
	}
	w.delete(fakes(waiting...)...)
	require.Zero(t, w.desired())
	require.Zero(t, w.size(train))
	require.Zero(t, stub.Count(terminate))
	w.delete(fakes(waiting...)...) // as after an answer that was not read
	require.Zero(t, w.desired())
}

// TestB13SomebodyElseLowersTheTarget: the node that AWS chose is shown as going
// and then gone, and keeps its group as long as its Node may be there.
func TestB13SomebodyElseLowersTheTarget(t *testing.T) {
	t.Parallel()
	stub := trained(t, 3)
	w := serve(t, stub, setup{})
	before := w.states(train)[running]
	stub.SetDesired(train, 2)
	victim := machine(stub.Kills()[0].Instance)
	require.Equal(t, 3, w.size(train), "reads are from the snapshot")
	w.refresh()
	require.Equal(t, 2, w.size(train))
	require.Equal(t, []string{victim}, w.states(train)[deleting])
	require.Equal(t, train, w.groupOf(nodes(victim)[0]))
	w.delete(nodes(victim)...) // Cluster Autoscaler may have chosen it as well
	require.Equal(t, 2, w.desired(), "counted once")
	stub.Settle()
	w.refresh()
	require.Empty(t, w.states(train)[deleting])
	require.Len(t, w.states(train)[running], 2)
	require.Equal(t, train, w.groupOf(nodes(victim)[0]), "its Node object may still be there")
	require.Contains(t, before, victim)
	require.Zero(t, stub.Count(terminate))

	stub.SetDesired(train, 4)
	w.refresh()
	require.Equal(t, 4, w.size(train))
	require.Len(t, w.placeholders(train), 2)
}

// TestB16DeletedNodesStayDeleted: the target goes down in the same call, so
// nothing is launched in their place, and repeating changes nothing.
func TestB16DeletedNodesStayDeleted(t *testing.T) {
	t.Parallel()
	stub := trained(t, 4)
	w := serve(t, stub, setup{})
	doomed := w.states(train)[running][:2]
	w.delete(nodes(doomed...)...)
	require.Equal(t, 2, w.size(train), "before any refresh")
	require.ElementsMatch(t, doomed, w.states(train)[deleting])
	for range 3 {
		w.delete(nodes(doomed...)...)
		w.refresh()
	}
	stub.Settle()
	w.delete(nodes(doomed...)...) // they are gone, the snapshot does not know
	w.refresh()
	w.delete(nodes(doomed...)...)
	again := w.restart() // and neither does a provider that has never seen them
	again.delete(nodes(doomed...)...)
	stub.Settle()
	again.refresh()
	require.Equal(t, 2, again.size(train))
	require.Equal(t, 2, w.desired())
	require.Len(t, again.states(train)[running], 2)
	require.Equal(t, 2, stub.Count(terminate))
	require.Len(t, stub.Kills(), 2)
	require.Zero(t, stub.Count(setDesired))
}

// TestB17CooldownAndActivitiesInProgress: a cooldown holds nothing up; a group
// that is busy is asked again within the caller's time, and then is unavailable.
func TestB17CooldownAndActivitiesInProgress(t *testing.T) {
	t.Parallel()
	stub := trained(t, 1)
	w := serve(t, stub, setup{})
	stub.Cooldown(train, true)
	w.increase(train, 1)
	require.Equal(t, 2, w.desired())
	stub.Settle()
	w.refresh()

	stub.Faults(
		awstest.Rule{Action: setDesired, Times: 2, Fault: awstest.InProgress()},
		awstest.Rule{Action: terminate, Times: 2, Fault: awstest.InProgress()},
	)
	require.NoError(t, w.tryIncrease(w.within(5*time.Second), train, 1))
	require.Equal(t, 3, w.desired())
	require.NoError(t, w.tryDelete(w.within(5*time.Second), train, nodes(w.states(train)[running][0])...))
	require.Equal(t, 2, w.desired())
	require.Len(t, stub.Kills(), 1)

	stub.Settle()
	w.refresh()
	stub.Busy(train, true)
	text := w.code(codes.Unavailable, w.tryIncrease(w.within(2*time.Second), train, 1))
	require.Contains(t, text, "ScalingActivityInProgress")
	text = w.code(codes.Unavailable, w.tryDelete(w.within(2*time.Second), train, nodes(w.states(train)[running][0])...))
	require.Contains(t, text, "ScalingActivityInProgress")
	require.Equal(t, 2, w.desired())
	require.Len(t, stub.Kills(), 1)
	stub.Busy(train, false)
	w.refresh()
	require.Equal(t, 2, w.size(train))
}

// What else changes a group's size or its machines is found for doctor.
func TestConflictsAreFound(t *testing.T) {
	t.Parallel()
	w := serve(t, trained(t, 1, func(g *awstest.Group) { g.Policies = []awstest.Policy{{Name: "busy", Type: "TargetTrackingScaling"}} }), setup{})
	found, err := w.cloud.Conflicts(t.Context())
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, train, found[0].Group)
	require.Contains(t, found[0].What, "scaling policy busy")
}
