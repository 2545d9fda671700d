package conformance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
)

func TestRule08CapacityOnItsWayIsNotBoughtTwice(t *testing.T) {
	parallel(t)
	t.Run("OfAnAutoscalerThatIsNew", rule08NewAutoscaler)
	t.Run("OfOneSeenWhileTheSnapshotIsOld", rule08OldSnapshot)
	t.Run("WhenWeStart", rule08WeStart)
	t.Run("OfAnAnswerThatWasNotRead", rule08Unread)
	t.Run("ARepeatBeforeTheNextRefreshIsNotBoughtEither", rule08UnreadRepeat)
	t.Run("WhatWasAcknowledgedAfterAFailureIsNotAbsorbed", rule08Acknowledged)
	t.Run("MaxIsAtLeastTargetPlusOneWhileItWaits", rule08Max)
	t.Run("OnceAndOnlyTheGroupsOwn", rule08Once)
	t.Run("OnlyWhatIsInFlight", rule08InFlight)
	t.Run("ItIsLoggedAndCounted", rule08Told)
	t.Run("WhatItCannotPreventIsCounted", rule08Unavoidable)
}

// booting is a cloud whose machines are in flight for as long as a test lasts.
func booting(lines ...string) []string { return append([]string{"bootDelay: 1h"}, lines...) }

// absorbsOnce checks that the next increase buys nothing and the one after does: delta
// is not more than what is in flight.
func (s *server) absorbsOnce(t *testing.T, id string, delta int) {
	t.Helper()
	before := s.size(t, id)
	s.increase(t, id, delta)
	assert.Equal(t, before, s.size(t, id), "absorbed")
	s.increase(t, id, delta)
	assert.Equal(t, before+delta, s.size(t, id), "bought: it is absorbed once")
}

// learns waits until a Refresh has found what a call did whose caller had gone.
// One that began before that call was over does not.
func (s *server) learns(t *testing.T, id string, target int) {
	t.Helper()
	eventually(t, "the increase was carried out, and its answer not read", func() bool {
		s.refresh(t)
		return s.size(t, id) == target
	})
}

func rule08NewAutoscaler(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: booting(), groups: []string{group("t4", "maxSize: 20")}})
	s.newAutoscaler(t)
	s.increase(t, s.id, 2)
	assert.Equal(t, 2, s.size(t, s.id), "nothing was in flight when it came")
	s.newAutoscaler(t)
	s.refresh(t)
	s.absorbsOnce(t, s.id, 2)
	s.newAutoscaler(t) // and another
	s.refresh(t)
	s.increase(t, s.id, 5)
	assert.Equal(t, 5, s.size(t, s.id), "of 5, 4 are in flight")
}

// rule08OldSnapshot: GPULabel comes before the first Refresh of a process, so
// the snapshot may be older than what is in flight. Here the cloud carried an
// increase out whose outcome we do not know yet.
func rule08OldSnapshot(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: booting("api: {latency: 2s}")})
	code(t, codes.DeadlineExceeded, s.tryIncrease(within(t, 1500*time.Millisecond), s.id, 1))
	s.newAutoscaler(t)
	s.learns(t, s.id, 1)
	s.increase(t, s.id, 1)
	assert.Equal(t, 1, s.size(t, s.id), "absorbed")
	s.increase(t, s.id, 1)
	assert.Equal(t, 2, s.size(t, s.id), "bought: it is absorbed once")
}

func rule08WeStart(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: booting(), groups: []string{group("t4"), group("a100")}})
	s.increase(t, "t4", 2)
	s.restart(t) // we do not know whether Cluster Autoscaler has read our answer
	s.increase(t, "a100", 1)
	assert.Equal(t, 1, s.size(t, "a100"), "nothing was in flight there")
	s.absorbsOnce(t, "t4", 1)
}

// rule08Unread: the cloud carries the call out while its caller gives up.
func rule08Unread(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: booting("api: {latency: 2s}")})
	code(t, codes.DeadlineExceeded, s.tryIncrease(within(t, 1500*time.Millisecond), s.id, 2))
	s.learns(t, s.id, 2)
	assert.Equal(t, 4, s.max(t, s.id))
	s.increase(t, s.id, 2)
	assert.Equal(t, 2, s.size(t, s.id), "absorbed")
	s.increase(t, s.id, 2)
	assert.Equal(t, 4, s.size(t, s.id), "bought: it is absorbed once")
}

// rule08UnreadRepeat: the caller asks again at once. Whether the first call was
// carried out is the cloud's to say.
func rule08UnreadRepeat(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: booting("api: {latency: 2s}")})
	code(t, codes.DeadlineExceeded, s.tryIncrease(within(t, 1500*time.Millisecond), s.id, 1))
	s.increase(t, s.id, 1)
	assert.Equal(t, 1, s.size(t, s.id), "the repeat is absorbed by what its first try bought")
	s.refresh(t)
	assert.Equal(t, 1, s.size(t, s.id))
}

// rule08Acknowledged: a call whose outcome was not known came to nothing, the
// next one was answered OK, and Cluster Autoscaler counts what that one bought.
func rule08Acknowledged(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: booting("api: {latency: 1s}")})
	code(t, codes.DeadlineExceeded, s.tryIncrease(within(t, 300*time.Millisecond), s.id, 1)) // too short to reach the cloud
	s.increase(t, s.id, 1)
	s.refresh(t)
	require.Equal(t, 1, s.size(t, s.id))
	assert.Zero(t, s.metric(t, `gpu_node_provider_node_group_forgotten_capacity{node_group="t4"}`))
	s.increase(t, s.id, 1)
	assert.Equal(t, 2, s.size(t, s.id), "a request is open, so nothing is absorbed")
}

func rule08Max(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: booting(), groups: []string{group("t4", "maxSize: 3")}})
	s.increase(t, s.id, 3)
	assert.Equal(t, 3, s.max(t, s.id))
	s.newAutoscaler(t)
	for range 3 {
		s.refresh(t)
		assert.Equal(t, 4, s.max(t, s.id), "so that Cluster Autoscaler can ask")
		assert.EqualValues(t, 4, s.groupFor(t, node(s.ids(t, s.id)[0])).GetMaxSize())
	}
	s.increase(t, s.id, 1)
	assert.Equal(t, 3, s.size(t, s.id))
	assert.Equal(t, 3, s.max(t, s.id), "nothing waits any more")
	code(t, codes.ResourceExhausted, s.tryIncrease(t.Context(), s.id, 1))
}

func rule08Once(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: booting(), groups: []string{group("t4", "maxSize: 9"), group("a100", "maxSize: 9")}})
	s.increase(t, "t4", 3)
	s.newAutoscaler(t)
	s.refresh(t)
	s.newAutoscaler(t) // asked again while nothing was absorbed yet: still once
	s.refresh(t)
	s.increase(t, "a100", 1)
	assert.Equal(t, 1, s.size(t, "a100"), "another group's capacity absorbs nothing here")
	s.absorbsOnce(t, "t4", 1)
}

// rule08InFlight: what runs, failed or went away absorbs nothing.
func rule08InFlight(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: []string{"capacity: {t4: 1}"}, groups: []string{group("t4", "maxSize: 9")}})
	s.increase(t, s.id, 2) // one runs at once, one has failed
	s.newAutoscaler(t)
	s.refresh(t)
	s.increase(t, s.id, 1)
	assert.Equal(t, 3, s.size(t, s.id))

	gone := serve(t, file{simulated: booting()})
	gone.increase(t, gone.id, 2)
	gone.newAutoscaler(t)
	gone.refresh(t)
	gone.delete(t, gone.id, fakes("unregistered", gone.ids(t, gone.id)...)...)
	gone.increase(t, gone.id, 1)
	assert.Equal(t, 1, gone.size(t, gone.id), "what waited is gone")
}

func rule08Told(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: booting()})
	const counter = `gpu_node_provider_increases_absorbed_total{node_group="t4"}`
	s.increase(t, s.id, 2)
	assert.Zero(t, s.metric(t, counter))
	s.newAutoscaler(t)
	s.refresh(t)
	assert.Equal(t, 2.0, s.metric(t, `gpu_node_provider_node_group_forgotten_capacity{node_group="t4"}`))
	s.increase(t, s.id, 1)
	assert.Equal(t, 1.0, s.metric(t, counter))
	assert.Zero(t, s.metric(t, `gpu_node_provider_node_group_forgotten_capacity{node_group="t4"}`))
	told := s.told(t, "increase absorbed by capacity in flight")
	require.Len(t, told, 1)
	assert.Equal(t, []any{"t4", 1.0, 1.0}, []any{told[0]["node_group"], told[0]["delta"], told[0]["absorbed"]})
}

// rule08Unavoidable: Cluster Autoscaler turns to another group while what it
// gave up on is still in flight in the first.
func rule08Unavoidable(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: booting("api: {latency: 2s}"), groups: []string{group("t4"), group("a100")}})
	const counter = `gpu_node_provider_unavoidable_duplicates_total{reason="after_timeout"}`
	code(t, codes.DeadlineExceeded, s.tryIncrease(within(t, 1500*time.Millisecond), "t4", 1))
	s.learns(t, "t4", 1)
	s.increase(t, "a100", 1)
	assert.Equal(t, 1.0, s.metric(t, counter))

	part := serve(t, file{simulated: booting("capacity: {t4: 1}"), groups: []string{group("t4"), group("a100")}})
	part.increase(t, "t4", 2) // one boots, one failed: the whole group is backed off
	part.increase(t, "a100", 1)
	assert.Equal(t, 1.0, part.metric(t, `gpu_node_provider_unavoidable_duplicates_total{reason="after_partial_launch_failure"}`))
}
