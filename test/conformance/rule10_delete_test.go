package conformance

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gpu-node-provider/proto"
)

// The simulated cloud runs without Kubernetes here, so the gate has nothing to hold:
// its refusals are tested in provider/checkpoint, test/property and test/e2e, and so
// are the cordons of nodes on their way out.
func TestRule10DeleteNodes(t *testing.T) {
	parallel(t)
	t.Run("TheTargetFallsInTheSameCall", rule10SameCall)
	t.Run("EveryNodeIsCheckedFirst", rule10AllOrNothing)
	t.Run("AnIdThatWasNeverOursIsInvalidArgument", rule10Foreign)
	t.Run("NotBelowTheMinimum", rule10Minimum)
	t.Run("PlaceholdersAsideFromTheMinimum", rule10PlaceholdersAside)
	t.Run("GoneOrGoingIsOKWithoutASecondDecrement", rule10Again)
	t.Run("AlsoAfterARestart", rule10AgainAfterRestart)
	t.Run("APlaceholderThatNoLongerExistsIsOK", rule10OldPlaceholder)
	t.Run("APlaceholderThatBecameAMachineIsNotTerminated", rule10Launched)
	t.Run("FakesGoLikeRealNodes", rule10Fakes)
	t.Run("TerminationsAreConfirmedOneByOne", rule10Confirmed)
	t.Run("NothingIsStartedAfterTheDeadline", rule10Deadline)
	t.Run("TwoCallersForOneNodeDecrementOnce", rule10Concurrent)
	t.Run("NothingToDeleteChangesNothing", rule10Empty)
}

func rule10SameCall(t *testing.T) {
	s := wire(t, file{simulated: []string{"terminateDelay: 1h"}})
	before := s.size(t, s.id)
	came := s.grown(t, 3)
	s.delete(t, s.id, node(came[0]))
	assert.Equal(t, before+2, s.size(t, s.id))
	s.delete(t, s.id, nodes(came[1:]...)...)
	assert.Equal(t, before, s.size(t, s.id))
	s.refresh(t)
	assert.Equal(t, before, s.size(t, s.id))
	for _, id := range came {
		assert.NotContains(t, s.ids(t, s.id, creating, running), id)
	}
}

func rule10AllOrNothing(t *testing.T) {
	parallel(t)
	s := serve(t, file{groups: []string{group("t4", "minSize: 1"), group("a100")}})
	s.increase(t, "t4", 3)
	s.increase(t, "a100", 1)
	mine, other := s.ids(t, "t4"), s.ids(t, "a100")[0]
	for name, c := range map[string]struct {
		want codes.Code
		with []*proto.ExternalGrpcNode
	}{
		"a foreign node":             {codes.InvalidArgument, nodes(mine[0], "kind://x")},
		"a foreign node first":       {codes.InvalidArgument, nodes("kind://x", mine[0])},
		"a node of another group":    {codes.InvalidArgument, nodes(mine[0], other)},
		"a node without provider id": {codes.InvalidArgument, append(nodes(mine[0]), &proto.ExternalGrpcNode{Name: "x"})},
		"a nil node":                 {codes.InvalidArgument, append(nodes(mine[0]), nil)},
		"more than the minimum lets": {codes.FailedPrecondition, nodes(mine...)},
	} {
		code(t, c.want, s.tryDelete(t.Context(), "t4", c.with...))
		assert.Equal(t, mine, s.ids(t, "t4", running), name)
	}
	code(t, codes.NotFound, s.tryDelete(t.Context(), "no-such-group", nodes(mine[0])...))
	s.refresh(t)
	assert.Equal(t, []int{3, 1}, []int{s.size(t, "t4"), s.size(t, "a100")})
	assert.Equal(t, mine, s.ids(t, "t4", running))
}

func rule10Foreign(t *testing.T) {
	s := wire(t, file{})
	before := s.size(t, s.id)
	for _, id := range []string{
		"x", "kind://docker/kind/worker", "aws:///eu-west-1a/i-0123456789abcdef0", "sim://gpu-1", "simulated:///",
		"simulated:///" + s.id + "/", "simulated:///no-such-group/no-such-group-bcdfg", s.template(t, s.id).Spec.ProviderID,
	} {
		text := code(t, codes.InvalidArgument, s.tryDelete(t.Context(), s.id, node(id)))
		assert.Contains(t, text, id)
		code(t, codes.InvalidArgument, s.tryDelete(t.Context(), s.id, fake(id, "unregistered")))
	}
	assert.Equal(t, before, s.size(t, s.id))
}

func rule10Minimum(t *testing.T) {
	parallel(t)
	s := serve(t, file{groups: []string{group("t4", "minSize: 2")}})
	s.increase(t, s.id, 3)
	ids := s.ids(t, s.id)
	text := code(t, codes.FailedPrecondition, s.tryDelete(t.Context(), s.id, nodes(ids[:2]...)...))
	assert.Contains(t, text, "2") // the minimum
	assert.Equal(t, 3, s.size(t, s.id))
	s.delete(t, s.id, node(ids[0]))
	code(t, codes.FailedPrecondition, s.tryDelete(t.Context(), s.id, node(ids[1])))
	code(t, codes.FailedPrecondition, s.tryDelete(t.Context(), s.id, fake(ids[1], "unregistered")))
	s.delete(t, s.id, node(ids[0])) // what is going takes nothing from the minimum
	assert.Equal(t, 2, s.size(t, s.id))
}

func rule10PlaceholdersAside(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: []string{"capacity: {t4: 2}"}, groups: []string{group("t4", "minSize: 3")}})
	s.increase(t, s.id, 4)
	waiting, machines := s.ids(t, s.id, creating), s.ids(t, s.id, running)
	require.Len(t, waiting, 2)
	// Cluster Autoscaler removes errored placeholders whatever the minimum is.
	s.delete(t, s.id, fakes("create-error", waiting...)...)
	assert.Equal(t, 2, s.size(t, s.id))
	code(t, codes.FailedPrecondition, s.tryDelete(t.Context(), s.id, node(machines[0])))
	assert.ElementsMatch(t, machines, s.ids(t, s.id, running))
}

func rule10Again(t *testing.T) {
	s := wire(t, file{groups: []string{group("t4", "maxSize: 8")}})
	came := s.grown(t, 3)
	before := s.size(t, s.id)
	s.delete(t, s.id, node(came[0]), node(came[0]), fake(came[0], "unregistered")) // one node, three times
	assert.Equal(t, before-1, s.size(t, s.id))
	again := func(when string) {
		s.delete(t, s.id, node(came[0]))
		s.delete(t, s.id, fake(came[0], "unregistered"))
		assert.Equal(t, before-1, s.size(t, s.id), when)
	}
	again("at once")
	eventually(t, "the instance is gone", func() bool {
		s.refresh(t)
		again("going")
		return !unique(s.ids(t, s.id))[came[0]]
	})
	again("gone")
	s.delete(t, s.id, nodes(came[0], came[1])...) // one is gone, the other is not
	assert.Equal(t, before-2, s.size(t, s.id))
}

func rule10AgainAfterRestart(t *testing.T) {
	parallel(t)
	for name, terminate := range map[string]string{"gone": "0s", "going": "1h"} {
		s := serve(t, file{simulated: []string{"terminateDelay: " + terminate}})
		s.increase(t, s.id, 2)
		ids := s.ids(t, s.id)
		s.delete(t, s.id, node(ids[0]))
		s.restart(t) // kill -9: Cluster Autoscaler may not have read the answer
		require.Equal(t, 1, s.size(t, s.id), name)
		s.delete(t, s.id, node(ids[0]))
		s.delete(t, s.id, fake(ids[0], "unregistered"))
		assert.Equal(t, 1, s.size(t, s.id), name)
		assert.Equal(t, ids[1:], s.ids(t, s.id, running), name)
	}
}

func rule10OldPlaceholder(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: []string{"launchDelay: 1h"}})
	s.increase(t, s.id, 3)
	ids := s.ids(t, s.id)
	s.delete(t, s.id, fake(ids[0], "create-error"))
	require.NoError(t, s.tryDecrease(t.Context(), s.id, -1))
	left := s.ids(t, s.id)
	require.Len(t, left, 1)
	for range 2 {
		for _, id := range ids {
			if id != left[0] {
				s.delete(t, s.id, fake(id, "unregistered"))
			}
		}
		assert.Equal(t, left, s.ids(t, s.id, creating))
		assert.Equal(t, 1, s.size(t, s.id))
		s.restart(t)
	}
}

// rule10Launched: Cluster Autoscaler asks for a placeholder to be removed just
// when its machine has come.
func rule10Launched(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: booting("launchDelay: 400ms")})
	s.increase(t, s.id, 1)
	placeholder := s.ids(t, s.id)[0]
	throughout(t, 600*time.Millisecond, "nobody asks meanwhile", s.running)
	s.delete(t, s.id, fake(placeholder, "unregistered"))
	s.refresh(t)
	assert.Equal(t, 1, s.size(t, s.id), "the machine stays, and so does the target")
	assert.NotContains(t, s.ids(t, s.id, creating), placeholder)
	s.delete(t, s.id, fake(placeholder, "unregistered")) // it no longer exists
	assert.Equal(t, 1, s.size(t, s.id))
}

func rule10Fakes(t *testing.T) {
	s := wire(t, file{})
	came := s.grown(t, 3)
	before := s.size(t, s.id)
	for i, reason := range []string{"unregistered", "create-error", ""} {
		s.delete(t, s.id, fake(came[i], reason))
		assert.Equal(t, before-i-1, s.size(t, s.id), "fake %q", reason)
	}
}

// rule10Confirmed: the cloud's answers get lost, so each termination has to be
// looked up; and where the cloud refuses, nothing has changed.
func rule10Confirmed(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: []string{"terminateDelay: 1h", "api: {lostAnswerRate: 1}"}})
	s.increase(t, s.id, 4)
	ids := s.ids(t, s.id)
	s.delete(t, s.id, nodes(ids[:3]...)...)
	assert.Equal(t, 1, s.size(t, s.id))
	assert.ElementsMatch(t, ids[:3], s.ids(t, s.id, deleting))
	assert.Equal(t, 3.0, s.metric(t, `gpu_node_provider_instances_terminated_total{node_group="t4"}`))

	broken := serve(t, file{simulated: []string{"api: {errorRate: 0.4}"}, groups: []string{group("t4", "maxSize: 50")}})
	eventually(t, "all have come", func() bool {
		_ = broken.tryIncrease(t.Context(), "t4", 50)
		return broken.size(t, "t4") == 50
	})
	for _, id := range broken.ids(t, "t4") {
		before := broken.size(t, "t4")
		if err := broken.tryDelete(t.Context(), "t4", node(id)); err != nil {
			code(t, codes.Unavailable, err)
			require.Equal(t, before, broken.size(t, "t4"), "an error means that it was not terminated")
			continue
		}
		require.Equal(t, before-1, broken.size(t, "t4"))
	}
}

func rule10Deadline(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: []string{"api: {latency: 1s}"}})
	s.increase(t, s.id, 2)
	ids := s.ids(t, s.id)
	// Too little time for the way to the cloud.
	code(t, codes.DeadlineExceeded, s.tryDelete(within(t, 200*time.Millisecond), s.id, nodes(ids...)...))
	s.refresh(t)
	assert.Equal(t, ids, s.ids(t, s.id, running))
	// Enough for the way there and not for the way back: carried out, and the
	// repeat is OK without a second decrement.
	code(t, codes.DeadlineExceeded, s.tryDelete(within(t, 750*time.Millisecond), s.id, nodes(ids[0])...))
	s.delete(t, s.id, node(ids[0]))
	assert.Equal(t, 1, s.size(t, s.id))
	assert.Equal(t, ids[1:], s.ids(t, s.id, running))
}

func rule10Concurrent(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: []string{"api: {latency: 50ms}"}, groups: []string{group("t4", "minSize: 1", "maxSize: 4")}})
	s.increase(t, s.id, 4)
	ids := s.ids(t, s.id)
	deleteFirst := func() { assert.NoError(t, s.tryDelete(t.Context(), s.id, node(ids[0]))) }
	together(deleteFirst, deleteFirst, deleteFirst, deleteFirst)
	require.Equal(t, 3, s.size(t, s.id))

	var gone atomic.Int32
	var all []func()
	for _, id := range ids[1:] { // three, of which two may go
		all = append(all, func() {
			err := s.tryDelete(t.Context(), s.id, node(id))
			if err == nil {
				gone.Add(1)
				return
			}
			assert.Equal(t, codes.FailedPrecondition, status.Code(err))
		})
	}
	together(all...)
	assert.EqualValues(t, 2, gone.Load())
	assert.Equal(t, 1, s.size(t, s.id))
}

func rule10Empty(t *testing.T) {
	s := wire(t, file{})
	s.grown(t, 1)
	before := s.size(t, s.id)
	s.delete(t, s.id)
	assert.Equal(t, before, s.size(t, s.id))
}
