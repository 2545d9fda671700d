package aws

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What AWS does by itself with a group, and what an IncreaseSize buys after it.

func TestCP01MachineThatAWSReplacesIsNotBoughtAgain(t *testing.T) {
	stub := trained(t, 1, protected)
	w := serve(t, stub, setup{readEvery: 30 * time.Second})
	stub.Advance(time.Hour)
	w.refresh()
	stub.End(stub.Group(train).Instances[0].ID, "a spot interruption")
	stub.Step() // the replacement boots
	w.increase(train, 1)
	require.Equal(t, 1, w.desired(), "the last snapshot is older than the replacement, the reading of the increase is not")
	w.increase(train, 1)
	require.Equal(t, 2, w.desired(), "now Cluster Autoscaler counts it")
}

func TestCP01TargetRaisedByAnOperator(t *testing.T) {
	stub := trained(t, 0, protected)
	w := serve(t, stub, setup{})
	stub.SetDesired(train, 2)
	stub.Step()
	w.increase(train, 2)
	require.Equal(t, 2, w.desired())
	w.increase(train, 3)
	require.Equal(t, 5, w.desired())
}

// An increase reads the group once and writes once, and a deletion likewise; a decrease
// looks for machines that arrived meanwhile.
func TestCP10CallsOfAWrite(t *testing.T) {
	stub := trained(t, 3, protected)
	w := serve(t, stub, setup{})
	w.increase(train, 1) // short of one: there is something to explain
	stub.Step()          // a new instance: there is a launch time to ask for
	w.increase(train, 1) // a placeholder to cancel
	for name, row := range map[string]struct {
		write func()
		calls []string
	}{
		"increase": {func() { w.increase(train, 1) }, []string{"DescribeAutoScalingGroups", setDesired}},
		"decrease": {func() { require.NoError(t, w.tryDecrease(-1)) }, []string{"DescribeAutoScalingGroups", setDesired, "DescribeAutoScalingGroups"}},
		"delete":   {func() { w.delete(nodes(w.instances(train)[0].GetId())...) }, []string{"DescribeAutoScalingGroups", terminate}},
	} {
		before := len(stub.Calls())
		row.write()
		var calls []string
		for _, c := range stub.Calls()[before:] {
			calls = append(calls, c.Action)
		}
		require.Equal(t, row.calls, calls, name)
	}
}

// A launch that failed days ago does not explain what is missing today.
func TestCP03OldFailureExplainsNothing(t *testing.T) {
	for name, row := range map[string]struct {
		age    time.Duration
		failed int
	}{
		"three days ago":  {72 * time.Hour, 0},
		"two minutes ago": {2 * time.Minute, 1},
	} {
		t.Run(name, func(t *testing.T) {
			stub := trained(t, 1, protected)
			stub.Record(train, "Failed", "Launching a new EC2 instance.  Status Reason: "+noCapacity, noCapacity)
			stub.Advance(row.age)
			stub.SetDesired(train, 2)
			w := serve(t, stub, setup{}) // before AWS has begun an activity for it
			w.refresh()
			require.Len(t, w.placeholders(train), 1)
			require.Len(t, w.failures(train), row.failed)
		})
	}
}

// A maximum that was lowered at AWS grants what it leaves room for.
func TestCP14LoweredMaximumGrantsInPart(t *testing.T) {
	stub := trained(t, 1, protected)
	w := serve(t, stub, setup{readEvery: 30 * time.Second})
	stub.SetSize(train, 0, 3)
	w.increase(train, 5)
	require.Equal(t, 3, w.desired())
	require.Equal(t, 3, w.size(train))
}

func TestCP16SuspendedLaunchIsNamed(t *testing.T) {
	stub := trained(t, 1, protected)
	w := serve(t, stub, setup{})
	stub.Suspend(train, "Launch")
	w.refresh()
	require.Equal(t, "launching is suspended for the group in the cloud", w.server.Report().NodeGroups[0].Limit)
	require.EqualValues(t, 1, w.trainGroup().GetMaxSize())
	require.ErrorContains(t, w.tryIncrease(t.Context(), train, 1), "suspended")
	require.Equal(t, 1, w.desired())
}
