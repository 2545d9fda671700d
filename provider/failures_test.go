package provider

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/simulated"
	"gpu-node-provider/proto"
	"gpu-node-provider/provider/cluster"
	"gpu-node-provider/provider/report"
)

// waitingPod requests one GPU, and the scheduler has found no node for it.
func waitingPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ai-train", Name: name, UID: types.UID(name)},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}}}},
		},
		Status: corev1.PodStatus{
			Phase:      corev1.PodPending,
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}},
		},
	}
}

// TestOP02LaunchFailuresStay: Cluster Autoscaler deletes the failed placeholders after two
// seconds. Why they failed is in the report, a counter, a log line and an Event then, once.
func TestOP02LaunchFailuresStay(t *testing.T) {
	clock := newClock()
	pretend, err := simulated.New(simulated.Options{Now: clock.Now, BootDelay: bootDelay, LaunchDelay: time.Second, Capacity: map[string]int{"t4": 1}})
	require.NoError(t, err)
	events := record.NewFakeRecorder(100)
	view, memory := cluster.NewMemory(nil, events)
	require.NoError(t, memory.Put(waitingPod("train")))
	core, logs := observer.New(zap.WarnLevel)
	s := start(t, Options{Catalogue: catalogue(testConfig()), Backend: pretend, Now: clock.Now, Cluster: view, Log: zap.New(core)})
	require.NoError(t, increase(s, "t4", 3))
	require.Empty(t, s.Report().NodeGroups[0].LaunchFailures)

	clock.Step(2 * time.Second)
	seen := clock.Now()
	require.NoError(t, s.refresh(t.Context()))
	var failed []*proto.ExternalGrpcNode
	for _, i := range s.current.Load().groups["t4"].state.Instances {
		if i.Error != nil {
			failed = append(failed, &proto.ExternalGrpcNode{Name: i.ID, ProviderID: i.ID})
		}
	}
	require.Len(t, failed, 2)
	clock.Step(2 * time.Second)
	_, err = s.NodeGroupDeleteNodes(t.Context(), &proto.NodeGroupDeleteNodesRequest{Id: "t4", Nodes: failed})
	require.NoError(t, err)
	clock.Step(10 * time.Second)
	require.NoError(t, s.refresh(t.Context()))

	r := s.Report().NodeGroups[0]
	require.Zero(t, r.Failed)
	require.Equal(t, []report.LaunchFailure{{
		Code: "InsufficientInstanceCapacity", Message: "the simulated cloud has 1 instances for group t4, all in use", Count: 2, First: seen, Last: seen,
	}}, r.LaunchFailures)
	require.Empty(t, s.Report().NodeGroups[1].LaunchFailures)
	require.InDelta(t, 2, testutil.ToFloat64(s.metrics.launchFailures.WithLabelValues("t4", "InsufficientInstanceCapacity")), 0)
	lines := logs.FilterMessage("launch failed").All()
	require.Len(t, lines, 1)
	require.Equal(t, map[string]any{
		"node_group": "t4", "instances": int64(2), "reason": "InsufficientInstanceCapacity", "error": "the simulated cloud has 1 instances for group t4, all in use",
	}, lines[0].ContextMap())
	require.Len(t, events.Events, 1)
	require.Equal(t, "Warning LaunchFailed 2 launches of node group t4 failed: InsufficientInstanceCapacity: the simulated cloud has 1 instances for group t4, all in use", <-events.Events)
}

// TestOP02FailureThatADecreaseFinds: no reading has shown it before it is cancelled.
func TestOP02FailureThatADecreaseFinds(t *testing.T) {
	clock := newClock()
	pretend, err := simulated.New(simulated.Options{Now: clock.Now, BootDelay: bootDelay, LaunchDelay: time.Second, Capacity: map[string]int{"t4": 1}})
	require.NoError(t, err)
	s := start(t, Options{Catalogue: catalogue(testConfig()), Backend: pretend, Now: clock.Now})
	require.NoError(t, increase(s, "t4", 2))
	clock.Step(2 * time.Second)
	_, err = s.NodeGroupDecreaseTargetSize(t.Context(), &proto.NodeGroupDecreaseTargetSizeRequest{Id: "t4", Delta: -1})
	require.NoError(t, err)
	r := s.Report().NodeGroups[0]
	require.Equal(t, []int{1, 0}, []int{r.Target, r.Failed})
	require.Len(t, r.LaunchFailures, 1)
	require.Equal(t, 1, r.LaunchFailures[0].Count)
}

// TestOP02FailuresAreBounded: the newest reasons stay, and equal ones are counted.
func TestOP02FailuresAreBounded(t *testing.T) {
	clock := newClock()
	b := &scripted{Backend: newTestCloud(t, clock.Now)}
	s := start(t, Options{Catalogue: catalogue(testConfig()), Backend: b, Now: clock.Now})
	require.NoError(t, increase(s, "t4", 1))
	round := 0
	b.describe = func(_ context.Context, groups []cloud.Group) ([]cloud.Group, error) {
		for n := range groups {
			for m := range groups[n].Instances {
				i := &groups[n].Instances[m]
				i.ID, i.Placeholder, i.State = fmt.Sprintf("placeholder-%d", round), true, cloud.Creating
				i.Error = &cloud.LaunchError{Code: cloud.Other, Message: fmt.Sprintf("reason %d", round/2)}
			}
		}
		return groups, nil
	}
	const reasons = 2 * maxFailures
	for round = range 2 * reasons {
		require.NoError(t, s.refresh(t.Context()))
		require.NoError(t, s.refresh(t.Context()), "a failure that stays counts once")
	}
	kept := s.Report().NodeGroups[0].LaunchFailures
	require.Len(t, kept, maxFailures)
	for n, f := range kept {
		require.Equal(t, fmt.Sprintf("reason %d", reasons-1-n), f.Message)
		require.Equal(t, 2, f.Count)
	}
}
