package aws

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/proto"
)

// TestA05AnswersThatComeAfterTheDeadline: AWS takes 8 s, the caller waits 5 s, as
// Cluster Autoscaler does. Nothing more is started then, and what was started
// counts when the caller asks again.
func TestA05AnswersThatComeAfterTheDeadline(t *testing.T) {
	t.Parallel()
	const deadline, answer = 5 * time.Second, 8 * time.Second
	t.Run("terminate", func(t *testing.T) {
		t.Parallel()
		stub := trained(t, 3)
		w := serve(t, stub, setup{})
		doomed := w.states(train)[running][0]
		done := make(chan struct{})
		stub.Faults(awstest.Rule{Action: terminate, Times: 1, Fault: awstest.Do(func() {
			defer close(done)
			<-time.After(answer)
		})})
		w.code(codes.DeadlineExceeded, w.tryDelete(w.within(deadline), train, nodes(doomed)...))
		<-done
		eventually(t, "the call takes effect", func() bool { return len(stub.Kills()) == 1 })
		require.Equal(t, 1, stub.Count(terminate), "nothing is started after the deadline")
		w.delete(nodes(doomed)...)
		require.Equal(t, 1, stub.Count(terminate))
		require.Equal(t, 2, w.desired())
		require.Equal(t, 2, w.size(train))
		require.Len(t, stub.Kills(), 1)
	})
	t.Run("increase", func(t *testing.T) {
		t.Parallel()
		stub := trained(t, 1)
		w := serve(t, stub, setup{})
		done := make(chan struct{})
		stub.Faults(awstest.Rule{Action: setDesired, Times: 1, Fault: awstest.Do(func() {
			defer close(done)
			<-time.After(answer)
		})})
		w.code(codes.DeadlineExceeded, w.tryIncrease(w.within(deadline), train, 2))
		calls := stub.Count(setDesired)
		<-done
		eventually(t, "the call takes effect", func() bool { return w.desired() == 3 })
		require.Equal(t, calls, stub.Count(setDesired), "nothing is started after the deadline")
		w.increase(train, 2)
		require.Equal(t, 3, w.desired(), "bought once")
		require.Equal(t, 3, w.size(train))
		w.increase(train, 2)
		require.Equal(t, 5, w.desired(), "and once only")
	})
}

// TestA15IdsByteForByte: an instance is found under its one spelling, and under
// no other is anything ended.
func TestA15IdsByteForByte(t *testing.T) {
	t.Parallel()
	stub := trained(t, 2, func(g *awstest.Group) { g.Zones = []string{"us-east-1a", "us-east-1b"} })
	w := serve(t, stub, setup{})
	ids := w.states(train)[running]
	want := []string{}
	for _, i := range stub.Group(train).Instances {
		want = append(want, "aws:///"+i.Zone+"/"+i.ID)
	}
	require.Equal(t, want, ids)
	require.NotEqual(t, stub.Group(train).Instances[0].Zone, stub.Group(train).Instances[1].Zone)
	name := stub.Group(train).Instances[0].ID
	for _, other := range []string{
		"aws:///us-east-1/" + name, "aws:///us-east-1b/" + name, "aws:////us-east-1a/" + name, "aws:///us-east-1a//" + name, "aws://us-east-1a/" + name,
		"AWS:///us-east-1a/" + name, "aws:///us-east-1a/" + strings.ToUpper(name), "aws:///us-east-1a/" + name + "/", " aws:///us-east-1a/" + name, name,
	} {
		require.Empty(t, w.groupOf(nodes(other)[0]), "%q", other)
		w.code(codes.InvalidArgument, w.tryDelete(t.Context(), train, nodes(other)...))
		w.code(codes.InvalidArgument, w.tryDelete(t.Context(), train, append(nodes(ids[1]), fakes(other)...)...))
	}
	require.Zero(t, stub.Count(terminate))
	require.Equal(t, train, w.groupOf(nodes(ids[0])[0]))
	w.delete(nodes(ids[0])...)
	require.Equal(t, name, stub.Kills()[0].Instance)
}

// TestA17AWSIsAwayWhileANodeBoots: an error of NodeGroupNodes would make Cluster
// Autoscaler forget its instances and start its clocks anew. Refresh is what fails.
func TestA17AWSIsAwayWhileANodeBoots(t *testing.T) {
	t.Parallel()
	stub := trained(t, 1)
	w := serve(t, stub, setup{})
	w.increase(train, 1)
	stub.Launch(train, 1)
	w.refresh()
	before := w.instances(train)
	back := stub.Faults(awstest.Rule{Fault: awstest.Refuse(503, "ServiceUnavailable", "away")})
	var failed int
	for range 6 {
		stub.Advance(30 * time.Second)
		if err := w.tryRefresh(); err != nil {
			w.code(codes.Unavailable, err)
			failed++
		}
		require.Len(t, w.instances(train), len(before))
		for n, i := range w.instances(train) {
			require.Equal(t, before[n].GetId(), i.GetId())
			require.Equal(t, before[n].GetStatus().GetInstanceState(), i.GetStatus().GetInstanceState())
		}
		require.Equal(t, 2, w.size(train))
	}
	require.GreaterOrEqual(t, failed, 4, "from the age of a minute on")
	require.InDelta(t, 180, w.metric("gpu_node_provider_snapshot_age_seconds"), 1)
	back()
	stub.Settle()
	w.refresh()
	require.Len(t, w.states(train)[running], 2)
	require.InDelta(t, 0, w.metric("gpu_node_provider_snapshot_age_seconds"), 1)
}

// TestC01ProcessesAreSuspended: a group that cannot launch is not chosen, and
// says why when it is.
func TestC01ProcessesAreSuspended(t *testing.T) {
	t.Parallel()
	stub := trained(t, 2)
	w := serve(t, stub, setup{})
	stub.Suspend(train, "Launch")
	text := w.code(codes.FailedPrecondition, w.tryIncrease(t.Context(), train, 1)) // the snapshot does not know yet
	require.Contains(t, text, "Launch is suspended on Auto Scaling group train")
	w.refresh()
	require.EqualValues(t, 2, w.trainGroup().GetMaxSize())
	require.Error(t, w.tryIncrease(t.Context(), train, 1))
	require.Equal(t, 2, w.desired())
	require.Zero(t, stub.Count(setDesired))
	w.delete(nodes(w.states(train)[running][0])...)
	require.Equal(t, 1, w.desired())

	stub.Resume(train, "Launch")
	w.refresh()
	require.EqualValues(t, 100, w.trainGroup().GetMaxSize())
	w.increase(train, 1)
	require.Equal(t, 2, w.desired())

	stub.Settle()
	stub.Suspend(train, "Terminate") // AWS's own choices alone; what is asked for by id still goes
	w.refresh()
	doomed := w.states(train)[running][0]
	w.delete(nodes(doomed)...)
	require.Equal(t, 1, w.desired())
	require.Equal(t, []string{doomed}, w.states(train)[deleting])
}

// TestC05StatesOfInstances: the answer for each lifecycle state of AWS.
func TestC05StatesOfInstances(t *testing.T) {
	t.Parallel()
	const omitted = proto.InstanceStatus_unspecified
	rows := map[string]proto.InstanceStatus_InstanceState{
		"Pending": creating, "Pending:Wait": creating, "Pending:Proceed": creating,
		"InService": running, "EnteringStandby": running, "Standby": running, "Detaching": running,
		"Terminating": deleting, "Terminating:Wait": deleting, "Terminating:Proceed": deleting, "Terminated": deleting,
		"Warmed:Pending": omitted, "Warmed:Running": omitted, "Warmed:Stopped": omitted, "Warmed:Terminating": omitted, "Detached": omitted,
	}
	stub := trained(t, 0)
	ids := map[string]string{}
	stub.DeferScaleIn(true)
	for state := range rows {
		ids[state] = machine(stub.Add(train, state, 1)[0])
	}
	sick := stub.Add(train, awstest.InService, 1)[0]
	stub.SetHealth(sick, "Unhealthy")
	w := serve(t, stub, setup{})
	states := map[string]proto.InstanceStatus_InstanceState{}
	for _, i := range w.instances(train) {
		states[i.GetId()] = i.GetStatus().GetInstanceState()
	}
	for state, want := range rows {
		require.Equal(t, want.String(), states[ids[state]].String(), state)
		if want == omitted {
			require.NotContains(t, states, ids[state], state)
		} else {
			require.Equal(t, train, w.groupOf(nodes(ids[state])[0]), state)
		}
	}
	require.Equal(t, running, states[machine(sick)], "AWS replaces it, or nobody does")
	require.Equal(t, 3+4+1, w.size(train))
}

// TestC07DetachedByHand: an instance that somebody took out of the group, or
// stopped, which AWS finds unhealthy later.
func TestC07DetachedByHand(t *testing.T) {
	t.Parallel()
	stub := trained(t, 4)
	w := serve(t, stub, setup{})
	ids := stub.Group(train).IDs()
	stub.SetHealth(ids[0], "Unhealthy") // stopped
	stub.Detach(ids[1], true)
	stub.Detach(ids[2], false)
	w.refresh()
	require.Equal(t, 3, w.size(train))
	require.Len(t, w.placeholders(train), 1, "AWS will replace the one")
	states := w.states(train)
	require.ElementsMatch(t, []string{machine(ids[0]), machine(ids[3])}, states[running])
	for _, detached := range ids[1:3] {
		require.Equal(t, train, w.groupOf(nodes(machine(detached))[0]), "its Node is still there, and no group's to delete")
		w.delete(nodes(machine(detached))...)
	}
	require.Zero(t, stub.Count(terminate), "it is somebody else's now")
	require.Equal(t, 3, w.desired())
	w.delete(nodes(machine(ids[0]))...)
	require.Equal(t, 2, w.desired())
	require.Equal(t, ids[0], stub.Kills()[0].Instance)
}
