//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"gpu-node-provider/test/testbed"
)

// surgeWindow is a minute in the article, scaled down.
const surgeWindow = 10 * time.Second

func TestS7FiftyJobsAtOnce(t *testing.T) {
	bed := start(t, testbed.Options{Config: testbed.Config{NodeGroups: []string{testbed.Pool("t4", t4, 8, "surge: {max: 2, window: 10s}")}}})
	r := testbed.Round{Trainers: trainers("train:jobs", t4, 40), Pool: "t4", PoolMax: 8, Jobs: testbed.Jobs("job", 50, 10, 0.4)}
	play(t, bed, r)
	assert.Equal(t, 8, bed.Watch.MostNodes(t4), "the pool's maximum is reached, and not passed")
	growth, err := bed.Growth()
	require.NoError(t, err)
	require.NotEmpty(t, growth)
	for n, first := range growth {
		nodes := 0
		for _, g := range growth[n:] {
			if g.At.Sub(first.At) < surgeWindow {
				nodes += g.Nodes
			}
		}
		assert.LessOrEqual(t, nodes, 2, "nodes granted within %s of %s", surgeWindow, first.At)
	}
}

func TestS12TwoQueuesTwoPools(t *testing.T) {
	const a10 = "nvidia-a10"
	bed := start(t, testbed.Options{Config: testbed.Config{NodeGroups: []string{testbed.Pool("t4", t4, 2), testbed.Pool("a10", a10, 1)}}})
	small, large := trainers("train:jobs", t4, 2), trainers("train:large", a10, 1)
	large.Name = "train-large"
	bed.Watch.Queues(small.Queue, large.Queue)
	for _, trainers := range []testbed.Trainers{small, large} {
		require.NoError(t, bed.Train(t.Context(), trainers))
	}
	require.NoError(t, bed.Push(t.Context(), small.Queue, testbed.Jobs("small", 6, 10, 0.5)...))
	require.NoError(t, bed.Push(t.Context(), large.Queue, testbed.Jobs("large", 3, 10, 0.5)...))
	both := false
	_, err := bed.Watch.Until(t.Context(), 4*time.Minute, "both queues are trained", func(s testbed.State) bool {
		both = both || s.Queues[small.Queue].InFlight > 0 && s.Queues[large.Queue].InFlight > 0
		return s.Queues[small.Queue].Done == 6 && s.Queues[large.Queue].Done == 3
	})
	require.NoError(t, err)
	assert.True(t, both, "neither waits for the other")
	_, err = bed.Watch.Until(t.Context(), 3*time.Minute, "all nodes are gone", func(s testbed.State) bool { return len(s.Nodes) == 0 })
	require.NoError(t, err)
	assert.LessOrEqual(t, bed.Watch.MostNodes(t4), 2)
	assert.LessOrEqual(t, bed.Watch.MostNodes(a10), 1)
	assert.LessOrEqual(t, bed.Watch.MostReplicas(small.Name), 2)
	assert.LessOrEqual(t, bed.Watch.MostReplicas(large.Name), 1)
}

func TestS13KilledWorker(t *testing.T) {
	bed := start(t, testbed.Options{Config: testbed.Config{NodeGroups: []string{testbed.Pool("t4", t4, 2)}}})
	workers := trainers("train:jobs", t4, 2)
	bed.Watch.Queues(workers.Queue)
	require.NoError(t, bed.Train(t.Context(), workers))
	require.NoError(t, bed.Push(t.Context(), workers.Queue, testbed.Job{ID: "long", Steps: 80, StepSeconds: 0.5}, testbed.Job{ID: "short", Steps: 4, StepSeconds: 0.5}))
	_, err := bed.Watch.Until(t.Context(), 4*time.Minute, "the short job is done, the long one at work", func(s testbed.State) bool {
		return s.Queues[workers.Queue].Done == 1 && s.Phase(corev1.PodRunning) == 2
	})
	require.NoError(t, err)
	victim, saved, err := bed.WorkerOf(t.Context(), "long")
	require.NoError(t, err)
	bed.Watch.Say("the worker of job long, %s, is killed; its checkpoint is at step %d", victim.Name, saved)
	require.NoError(t, bed.KillTrainer(victim))
	_, err = bed.Watch.Until(t.Context(), 4*time.Minute, "the long job is done", func(s testbed.State) bool {
		q := s.Queues[workers.Queue]
		return q.Done == 2 && q.Empty()
	})
	require.NoError(t, err)
	resumed, err := bed.Resumed("long")
	require.NoError(t, err)
	require.Len(t, resumed, 1, "once, by one worker")
	assert.NotEqual(t, victim.Name, resumed[0].Pod, "another worker takes the job, before the killed one is back")
	assert.GreaterOrEqual(t, resumed[0].Step, saved)
	said(t, bed, 1, "job long committed", "its result is committed once")
}

func TestQuotaInTheMiddle(t *testing.T) {
	config := func(limit string) testbed.Config {
		return testbed.Config{
			Simulated:  "launchDelay: 1s, bootDelay: 5s, devicePluginDelay: 2s",
			NodeGroups: []string{testbed.Pool("t4", t4, 4)},
			Quotas:     []string{"{name: gpus, resource: nvidia.com/gpu, nodeGroups: ['*'], limit: " + limit + "}"},
		}
	}
	bed := start(t, testbed.Options{Config: config("2")})
	workers := trainers("train:jobs", t4, 4)
	bed.Watch.Queues(workers.Queue)
	require.NoError(t, bed.Train(t.Context(), workers))
	require.NoError(t, bed.Push(t.Context(), workers.Queue, testbed.Jobs("job", 3, 200, 0.5)...))
	_, err := bed.Watch.Until(t.Context(), 3*time.Minute, "two trainers run, one waits", func(s testbed.State) bool {
		return s.Phase(corev1.PodRunning) == 2 && s.Phase(corev1.PodPending) == 1
	})
	require.NoError(t, err)
	event, err := bed.EventOnPendingPod(t.Context(), "QuotaExhausted")
	require.NoError(t, err)
	bed.Watch.Say("Event on the Pod that waits: %s", event)
	assert.Contains(t, event, "quota gpus")
	assert.Contains(t, event, "2 of 2 nvidia.com/gpu", "its use and its limit")
	assert.Equal(t, 2, bed.Watch.MostNodes(t4))

	require.NoError(t, bed.Reconfigure(config("3")))
	_, err = bed.Watch.Until(t.Context(), 3*time.Minute, "the third runs", func(s testbed.State) bool { return s.Phase(corev1.PodRunning) == 3 })
	require.NoError(t, err)
	assert.Equal(t, 3, bed.Watch.MostNodes(t4))
}
