//go:build e2e

package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"gpu-node-provider/test/testbed"
)

func roundOf(jobs, poolMax int) testbed.Round {
	return testbed.Round{
		Trainers: trainers("train:jobs", t4, 4), Pool: "t4", PoolMax: poolMax, Jobs: testbed.Jobs("job", jobs, 20, 0.5),
	}
}

func TestS9AcceptanceRound(t *testing.T) {
	bed := start(t, testbed.Options{Config: testbed.Config{NodeGroups: []string{testbed.Pool("t4", t4, 4)}}})
	r := roundOf(3, 4)
	go func() { // what a person would see meanwhile
		_, err := bed.Watch.Until(t.Context(), 5*time.Minute, "three trainers", func(s testbed.State) bool { return s.Phase(corev1.PodRunning) == 3 })
		if err != nil {
			return // the round says why
		}
		if nodes, err := bed.Cluster.Kubectl(t.Context(), nil, "get", "nodes", "-l", "accelerator="+t4, "-L", "accelerator"); err == nil {
			bed.Watch.Say("kubectl get nodes -l accelerator=%s -L accelerator\n%s", t4, nodes)
		}
	}()
	play(t, bed, r)
	require.Equal(t, 3, bed.Watch.EverNodes(), "one node a job, and none twice")
}

// slowly gives the tests that kill something the time to do so.
const slowly = "launchDelay: 2s, bootDelay: 20s, devicePluginDelay: 2s"

func TestProviderKilledWhileNodesBoot(t *testing.T) {
	bed := start(t, testbed.Options{Config: testbed.Config{Simulated: slowly, NodeGroups: []string{testbed.Pool("t4", t4, 4)}}})
	r := roundOf(3, 4)
	r.Midway = func(ctx context.Context) error {
		bed.KillProvider()
		return bed.StartProvider(ctx)
	}
	play(t, bed, r)
	bought(t, bed, 3)
}

func TestAutoscalerKilledWhileNodesBoot(t *testing.T) {
	bed := start(t, testbed.Options{Config: testbed.Config{Simulated: slowly, NodeGroups: []string{testbed.Pool("t4", t4, 8)}}})
	r := roundOf(3, 8)
	r.Midway = func(ctx context.Context) error {
		bed.KillAutoscaler()
		return bed.StartAutoscaler(ctx)
	}
	play(t, bed, r)
	bought(t, bed, 3)
}

func TestNodeIsReadyLongBeforeItsGPU(t *testing.T) {
	bed := start(t, testbed.Options{Config: testbed.Config{
		Simulated: "launchDelay: 1s, bootDelay: 3s, devicePluginDelay: 45s", NodeGroups: []string{testbed.Pool("t4", t4, 4)},
	}})
	play(t, bed, roundOf(1, 4))
	calls, err := bed.Calls("NodeGroupIncreaseSize")
	require.NoError(t, err)
	require.Equal(t, 1, calls, "the node without its GPU is one that comes, not one that is broken")
}

func TestI01JobLongerThanTheCooldown(t *testing.T) {
	bed := start(t, testbed.Options{Config: testbed.Config{NodeGroups: []string{testbed.Pool("t4", t4, 4)}}})
	r := roundOf(1, 4)
	r.Jobs = testbed.Jobs("long", 1, 80, 0.5) // five times the cooldown
	play(t, bed, r)
	said(t, bed, 0, "given back", "a trainer was stopped in the middle of its job")
}
