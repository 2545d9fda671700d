package conformance

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gpu-node-provider/proto"
)

// The Events of a partial grant need a Kubernetes API.
func TestRule07IncreaseSizeGrantsWhatFits(t *testing.T) {
	parallel(t)
	t.Run("DeltaIsAtLeastOne", rule07Delta)
	t.Run("TargetSizeRisesBeforeTheAnswer", rule07Rises)
	t.Run("SerialWithinAGroup", rule07Serial)
	t.Run("ParallelAcrossGroups", rule07Parallel)
	t.Run("NothingIsStartedAfterTheDeadline", rule07Deadline)
	t.Run("AnUnknownOutcomeIsSettledByTheCloud", rule07Unknown)
	t.Run("AnErrorMeansThatNothingChanged", rule07Failed)
	t.Run("APartThatFitsIsGranted", rule07Partial)
	t.Run("RefusedOnlyWhenNothingFitsWithLimitAndSource", rule07Refused)
	t.Run("WhatWasAnnouncedIsNotRefusedForSurge", rule07Announced)
	t.Run("TwoCallersRaceForTheLastUnit", rule07Race)
}

func rule07Delta(t *testing.T) {
	s := wire(t, file{})
	before := s.size(t, s.id)
	for _, delta := range []int{0, -1, math.MinInt32} {
		code(t, codes.InvalidArgument, s.tryIncrease(t.Context(), s.id, delta))
	}
	for _, id := range []string{"", "no-such-group", s.id + " "} {
		code(t, codes.NotFound, s.tryIncrease(t.Context(), id, 1))
	}
	assert.Equal(t, before, s.size(t, s.id))
}

func rule07Rises(t *testing.T) {
	s := wire(t, file{})
	before := s.size(t, s.id)
	s.grown(t, 1) // looks at the target at once
	assert.Equal(t, before+1, s.size(t, s.id))
	s.refresh(t)
	assert.Equal(t, before+1, s.size(t, s.id))
	s.grown(t, 2)
	assert.Equal(t, before+3, s.size(t, s.id))
}

// rule07Serial: calls to a slow cloud take as long as all of them one after
// another, and each is carried out in full.
func rule07Serial(t *testing.T) {
	parallel(t)
	const latency = 300 * time.Millisecond
	s := serve(t, file{simulated: []string{"api: {latency: " + latency.String() + "}"}, groups: []string{group("t4", "maxSize: 20")}})
	began := time.Now()
	increase := func() { assert.NoError(t, s.tryIncrease(t.Context(), "t4", 2)) }
	together(increase, increase, increase)
	assert.GreaterOrEqual(t, time.Since(began), 3*latency)
	assert.Equal(t, 6, s.size(t, "t4"))
}

func rule07Parallel(t *testing.T) {
	parallel(t)
	const latency, n = time.Second, 8
	f := file{simulated: []string{"api: {latency: " + latency.String() + "}"}}
	for i := range n {
		f.groups = append(f.groups, group(fmt.Sprintf("g%d", i)))
	}
	s := serve(t, f)
	began := time.Now()
	var all []func()
	for i := range n {
		all = append(all, func() { assert.NoError(t, s.tryIncrease(t.Context(), fmt.Sprintf("g%d", i), 1)) })
	}
	together(all...)
	assert.Less(t, time.Since(began), n*latency/2, "one after another they would take %s", n*latency)
	for i := range n {
		assert.Equal(t, 1, s.size(t, fmt.Sprintf("g%d", i)))
	}
}

// rule07Deadline: a call that waits for its turn until its time is over buys nothing.
func rule07Deadline(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: []string{"api: {latency: 2s}"}})
	started := make(chan struct{})
	together(
		func() {
			close(started)
			assert.NoError(t, s.tryIncrease(t.Context(), s.id, 1))
		},
		func() {
			<-started
			// Should this one come first all the same, then its time ends while
			// the call is on its way to the cloud, and that is not carried out.
			err := s.tryIncrease(within(t, 500*time.Millisecond), s.id, 1)
			assert.Equal(t, codes.DeadlineExceeded, status.Code(err))
		},
	)
	s.refresh(t)
	assert.Equal(t, 1, s.size(t, s.id))
	assert.Zero(t, s.metric(t, `gpu_node_provider_increases_absorbed_total{node_group="t4"}`))
}

func rule07Unknown(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: []string{"api: {lostAnswerRate: 1}"}})
	for n := 1; n <= 4; n++ {
		s.increase(t, s.id, 1) // the cloud carried it out and its answer was lost
		assert.Equal(t, n, s.size(t, s.id), "neither lost nor bought twice")
	}
	s.refresh(t)
	assert.Equal(t, 4, s.size(t, s.id))
	code(t, codes.ResourceExhausted, s.tryIncrease(t.Context(), s.id, 1))
}

func rule07Failed(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: []string{"api: {errorRate: 0.4}"}, groups: []string{group("t4", "maxSize: 1000")}})
	want, failed := 0, 0
	for range 60 {
		if err := s.tryIncrease(t.Context(), s.id, 1); err != nil {
			code(t, codes.Unavailable, err)
			failed++
		} else {
			want++
		}
		require.Equal(t, want, s.size(t, s.id))
		require.Equal(t, 1000, s.max(t, s.id), "a failed call gives its reservation back")
	}
	assert.Positive(t, failed)
	s.refresh(t)
	assert.Equal(t, want, s.size(t, s.id))
}

func rule07Partial(t *testing.T) {
	parallel(t)
	s := serve(t, file{
		groups: []string{group("t4", "maxSize: 10"), group("other", "maxSize: 2")},
		quotas: []string{"{name: gpus, resource: nvidia.com/gpu, limit: 3}"},
	})
	s.increase(t, "t4", 5)
	assert.Equal(t, 3, s.size(t, "t4"), "3 of 5")
	told := s.told(t, "node group partially increased")
	require.Len(t, told, 1)
	assert.Equal(t, []any{"t4", 5.0, 3.0}, []any{told[0]["node_group"], told[0]["delta"], told[0]["granted"]})
	assert.Contains(t, told[0]["limit"], "quota gpus")
	for counter, want := range map[string]float64{"asked": 5, "granted": 3, "refused": 2} {
		assert.Equal(t, want, s.metric(t, `gpu_node_provider_increase_nodes_`+counter+`_total{node_group="t4"}`), counter)
	}
	s.delete(t, "t4", nodes(s.ids(t, "t4")[0])...)
	s.refresh(t)
	s.increase(t, "other", math.MaxInt32)
	assert.Equal(t, 1, s.size(t, "other"), "the largest delta there is")
}

// limits are files in which nothing fits any more once the group has been grown
// by fill, and what the refusal has to name.
var limits = map[string]struct {
	file file
	fill int
	text []string
}{
	"the group's maximum": {file{groups: []string{group("t4", "maxSize: 2")}}, 2, []string{"maxSize 2", "t4", "node group file"}},
	"no size at all":      {file{groups: []string{group("t4", "maxSize: 0")}}, 0, []string{"t4", "maxSize 0", "node group file"}},
	"a retired group":     {file{groups: []string{group("t4", "maxSize:", "retired: true")}}, 0, []string{"t4", "retired", "node group file"}},
	"the group's surge": {
		file{groups: []string{group("t4", "surge: {max: 2, window: 1h}")}}, 2, []string{"surge", "t4", "2 of 2", "1h"},
	},
	"a quota of GPUs": {
		file{quotas: []string{"{name: gpus, resource: nvidia.com/gpu, limit: 2}"}}, 2, []string{"quota gpus", "2 of 2 nvidia.com/gpu", "node group file"},
	},
	"a quota of vCPUs": {
		file{quotas: []string{"{name: cpus, resource: vcpu, limit: 11}"}}, 2, []string{"quota cpus", "8 of 11 vcpu", "node group file"},
	},
	"a quota of money": {
		file{quotas: []string{"{name: spend, resource: usd-per-hour, limit: 1}"}}, 1, []string{"quota spend", "0.526 of 1 usd-per-hour", "node group file"},
	},
	"a quota of nodes": {
		file{quotas: []string{"{name: few, resource: nodes, limit: 1}"}}, 1, []string{"quota few", "1 of 1 nodes", "node group file"},
	},
	"a quota's surge": {
		file{quotas: []string{"{name: gpus, resource: nvidia.com/gpu, limit: 9, surge: {max: 1, window: 1h}}"}}, 1, []string{"surge", "gpus", "1 of 1", "1h"},
	},
}

func rule07Refused(t *testing.T) {
	for name, limit := range limits {
		t.Run(name, func(t *testing.T) {
			parallel(t)
			s := serve(t, limit.file)
			if limit.fill > 0 {
				s.increase(t, "t4", limit.fill)
			}
			for range 3 { // each time the same
				text := code(t, codes.ResourceExhausted, s.tryIncrease(t.Context(), "t4", 1))
				for _, want := range limit.text {
					assert.Contains(t, text, want)
				}
				s.refresh(t)
				assert.Equal(t, limit.fill, s.size(t, "t4"))
				assert.Equal(t, limit.fill, s.max(t, "t4"), "so Cluster Autoscaler does not even ask")
			}
			assert.Equal(t, 3.0, s.metric(t, `gpu_node_provider_increase_nodes_refused_total{node_group="t4"}`))
		})
	}
}

// rule07Announced: one surge covers two groups, NodeGroups promised each of them
// all of it, and Cluster Autoscaler takes both at their word in one loop. The second
// gets nothing, and is not backed off for it.
func rule07Announced(t *testing.T) {
	parallel(t)
	s := serve(t, file{
		groups: []string{group("t4"), group("a100")},
		quotas: []string{"{name: gpus, resource: nvidia.com/gpu, limit: 100, surge: {max: 2, window: 1h}}"},
	})
	s.refresh(t)
	for _, id := range []string{"t4", "a100"} {
		require.Equal(t, 2, s.max(t, id))
	}
	s.increase(t, "t4", 2)
	s.increase(t, "a100", 2)
	assert.Equal(t, []int{2, 0}, []int{s.size(t, "t4"), s.size(t, "a100")})
	assert.Equal(t, 1.0, s.metric(t, `gpu_node_provider_increases_not_bought_total{node_group="a100"}`))

	// What was promised is used up, and the next loop is told so.
	for _, id := range []string{"t4", "a100"} {
		assert.Equal(t, s.size(t, id), s.max(t, id))
		code(t, codes.ResourceExhausted, s.tryIncrease(t.Context(), id, 1))
	}
	s.refresh(t)
	for _, id := range []string{"t4", "a100"} {
		assert.Equal(t, s.size(t, id), s.max(t, id))
		code(t, codes.ResourceExhausted, s.tryIncrease(t.Context(), id, 1))
	}
}

// rule07Race: the quota has one unit, and many ask for it in two groups. One buys it,
// one of the other group is told OK since its group was promised the unit, and the rest
// is refused.
func rule07Race(t *testing.T) {
	parallel(t)
	s := serve(t, file{
		simulated: []string{"api: {latency: 50ms}"},
		groups:    []string{group("t4"), group("a100")},
		quotas:    []string{"{name: gpus, resource: nvidia.com/gpu, limit: 1}"},
	})
	var mu sync.Mutex
	answered := 0
	var all []func()
	for i := range 10 {
		all = append(all, func() {
			_, err := s.NodeGroupIncreaseSize(t.Context(), &proto.NodeGroupIncreaseSizeRequest{Id: []string{"t4", "a100"}[i%2], Delta: 1})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				answered++
			} else {
				assert.Equal(t, codes.ResourceExhausted, status.Code(err))
			}
		})
	}
	together(all...)
	assert.Equal(t, 2, answered)
	assert.Equal(t, 1, s.size(t, "t4")+s.size(t, "a100"))
}
