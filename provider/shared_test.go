package provider

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/record"

	"gpu-node-provider/proto"
	"gpu-node-provider/provider/cluster"
	"gpu-node-provider/provider/config"
)

// TestCP05SharedLimitIsGivenOnce: two groups are told of the whole room under one limit,
// and both ask for it. The second is answered OK once, and buys nothing.
func TestCP05SharedLimitIsGivenOnce(t *testing.T) {
	two := resource.MustParse("2")
	for name, q := range map[string]config.Quota{
		"SurgeLimited":   {Limit: new(resource.MustParse("99")), Surge: &config.QuotaSurge{Max: two, Window: config.Duration{Duration: time.Hour}}},
		"QuotaExhausted": {Limit: &two},
	} {
		t.Run(name, func(t *testing.T) {
			c := testConfig()
			q.Name, q.Resource, q.NodeGroups = "gpus", "nvidia.com/gpu", []string{"*"}
			c.Quotas = []config.Quota{q}
			events := record.NewFakeRecorder(100)
			view, memory := cluster.NewMemory(nil, events)
			require.NoError(t, memory.Put(waitingPod("train")))
			core, logs := observer.New(zap.WarnLevel)
			clock := newClock()
			s := start(t, Options{Catalogue: catalogue(c), Backend: newTestCloud(t, clock.Now), Now: clock.Now, Cluster: view, Log: zap.New(core)})
			size := func(id string) int { return s.current.Load().groups[id].state.Target }

			require.NoError(t, increase(s, "t4", 2))
			require.NoError(t, increase(s, "opts", 2), "an error would back the group off")
			require.Equal(t, []int{2, 0}, []int{size("t4"), size("opts")})
			require.InDelta(t, 1, testutil.ToFloat64(s.metrics.notBought.WithLabelValues("opts")), 0)
			require.InDelta(t, 0, testutil.ToFloat64(s.metrics.notBought.WithLabelValues("t4")), 0)
			require.InDelta(t, 2, testutil.ToFloat64(s.metrics.refusedNodes.WithLabelValues("opts")), 0)
			require.Equal(t, 1, logs.FilterMessageSnippet("without buying").Len())
			require.Contains(t, <-events.Events, "Warning "+name+" other node groups have used up what group opts shares with them: ")
			require.Zero(t, s.current.Load().groups["opts"].max, "so it is not asked for again")

			require.Equal(t, codes.ResourceExhausted, status.Code(increase(s, "opts", 1)), "what asks again does not listen")
			require.Equal(t, codes.ResourceExhausted, status.Code(increase(s, "t4", 1)), "it has had all of its own")
		})
	}
}

// NodeGroups announces by the newest snapshot, so also after a write; what is announced in
// it must count as announced.
func TestCP05WhatIsAnnouncedAfterAWriteIsNotRefused(t *testing.T) {
	c := testConfig()
	more := c.NodeGroups[0]
	more.ID = "plain"
	c.NodeGroups = append(c.NodeGroups, more)
	c.Quotas = []config.Quota{{
		Name: "gpus", Resource: "nvidia.com/gpu", NodeGroups: []string{"t4", "opts"}, Limit: new(resource.MustParse("99")),
		Surge: &config.QuotaSurge{Max: resource.MustParse("2"), Window: config.Duration{Duration: time.Minute}},
	}}
	clock := newClock()
	s := start(t, Options{Catalogue: catalogue(c), Backend: newTestCloud(t, clock.Now), Now: clock.Now, ReadEvery: time.Hour})
	require.NoError(t, increase(s, "t4", 2))
	require.NoError(t, s.refresh(t.Context()))  // announces 0 to opts
	clock.Step(time.Minute)                     // the window has moved on
	require.NoError(t, increase(s, "plain", 1)) // a write of another group publishes
	groups, err := s.NodeGroups(t.Context(), &proto.NodeGroupsRequest{})
	require.NoError(t, err)
	announced := map[string]int32{}
	for _, g := range groups.GetNodeGroups() {
		announced[g.GetId()] = g.GetMaxSize()
	}
	require.Equal(t, map[string]int32{"t4": 4, "opts": 2, "plain": 4}, announced, "room for 2 more in each")
	require.NoError(t, increase(s, "t4", 2)) // one loop of a salvo
	require.NoError(t, increase(s, "opts", 2), "an error backs the group off although 2 were announced")
}
