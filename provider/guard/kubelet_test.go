package guard

// What kubelets, and controllers with finalizers, really do to a pod.

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-node-provider/provider/checkpoint"
)

// delete asks for a pod's deletion, with a grace period.
func (w *world) delete(pod *corev1.Pod) {
	w.update(pod, func(p *corev1.Pod) {
		end := metav1.NewTime(w.clock.Now().Add(30 * time.Second))
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &end, new(int64(30))
	})
}

// end is a kubelet's word that a pod's processes are over.
func (w *world) end(pod *corev1.Pod, phase corev1.PodPhase) {
	w.update(pod, func(p *corev1.Pod) {
		p.Status.Phase = phase
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			FinishedAt: metav1.NewTime(w.clock.Now()), Reason: "Completed",
		}}}}
	})
}

// TestF03StoppedIsNotSucceeded: who ends with code 0 on SIGTERM is called Succeeded
// by the kubelet for a moment, and has saved nothing.
func TestF03StoppedIsNotSucceeded(t *testing.T) {
	w := newWorld(t)
	pod := w.train("a")
	w.pass(time.Second)
	w.delete(pod)
	w.clock.Step(time.Second)
	w.end(pod, corev1.PodSucceeded)
	w.requireGate("train/a: it is gone: it has not acknowledged") // also before the guard has looked
	w.pass(0)
	w.requireHeld(true, "it was told to stop")
	w.remove(pod)
	w.pass(time.Second)
	w.requireHeld(true, "its object has gone too")
	w.acknowledge(pod)
	w.pass(time.Second)
	w.requireHeld(false, "what it saved was found")
}

// TestStoppedAndKeptByAFinalizer: a Job's finalizer outlives the grace period, and
// with it the proof that the pod was told to stop.
func TestStoppedAndKeptByAFinalizer(t *testing.T) {
	w := newWorld(t)
	pod := w.train("a")
	w.delete(pod)
	w.pass(time.Second)
	w.clock.Step(-time.Minute) // the node's clock is behind
	w.end(pod, corev1.PodSucceeded)
	w.clock.Step(time.Minute)
	w.update(pod, func(p *corev1.Pod) {
		end := metav1.NewTime(w.clock.Now())
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &end, new(int64)
	})
	w.requireGate("it has not acknowledged")
	w.pass(time.Second)
	w.requireHeld(true, "it was told to stop")
	w.pass(w.policy.AbandonAfter + time.Minute)
	w.requireHeld(false, "abandoned")
}

// TestAbandonedOnceIsEnough: nobody says when the pod ended, so that is when it was
// first seen to have, not anew at each look while a finalizer keeps the object.
func TestAbandonedOnceIsEnough(t *testing.T) {
	w := newWorld(t)
	pod := w.train("a")
	w.delete(pod)
	w.update(pod, func(p *corev1.Pod) { p.Status.Phase, p.Status.ContainerStatuses = corev1.PodSucceeded, nil })
	w.pass(time.Second)
	w.requireHeld(true, "it was told to stop")
	w.pass(w.policy.AbandonAfter)
	w.requireHeld(false, "abandoned")
	w.pass(time.Second)
	w.requireHeld(false, "once and for all")
}

// TestReleaseOfWhoIsGoneAndThere: the object of a pod that has ended may stay.
func TestReleaseOfWhoIsGoneAndThere(t *testing.T) {
	w := newWorld(t)
	pod := w.train("a")
	w.delete(pod)
	w.end(pod, corev1.PodFailed)
	w.pass(time.Second)
	w.requireHeld(true, "it has not acknowledged")
	w.annotate(ReleaseAnnotation, "alex")
	for range 3 {
		w.pass(time.Second)
	}
	w.requireHeld(false, "released")
	w.remove(pod)
	w.pass(time.Second)
	w.requireHeld(false, "released")
	require.Empty(t, w.guard.Record.Machines())
}

// TestWhoSucceedsByItselfHoldsNothing, also while its Job keeps it.
func TestWhoSucceedsByItselfHoldsNothing(t *testing.T) {
	w := newWorld(t)
	pod := w.train("a", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever })
	w.pass(time.Second)
	w.end(pod, corev1.PodSucceeded)
	w.pass(time.Second)
	w.requireHeld(false, "it succeeded")
	w.requireGate("")
	require.Empty(t, w.guard.Record.Machines())
}

// TestEvictedByTheKubeletIsNotSucceeded: an eviction for pressure, or a shutdown of
// the node, deletes nothing; the trainer ends with code 0 all the same.
func TestEvictedByTheKubeletIsNotSucceeded(t *testing.T) {
	w := newWorld(t)
	pod := w.train("a", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways })
	w.pass(time.Second)
	w.end(pod, corev1.PodSucceeded)
	w.requireGate("it failed or was stopped: it has not acknowledged")
	w.pass(time.Second)
	w.requireHeld(true, "a pod that is always restarted has no end of its own")
	w.pass(w.policy.AbandonAfter)
	w.requireHeld(false, "nobody can save it any more")
}

// runs has a pod's container run anew, or crash.
func (w *world) runs(pod *corev1.Pod, state corev1.ContainerState) {
	w.update(pod, func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: state, RestartCount: 1}}
	})
	w.seen(func() bool {
		for _, p := range w.view.PodsOn("t4-a", nil) {
			if p.UID == pod.UID {
				return (p.Status.ContainerStatuses[0].State.Running == nil) == (state.Running == nil)
			}
		}
		return false
	})
}

func (w *world) running() corev1.ContainerState {
	return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(w.clock.Now())}}
}

var crashed = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}

// TestWhoCrashesAgainAndAgainHoldsNobodyForEver: it is Running for the API, and
// nobody trains.
func TestWhoCrashesAgainAndAgainHoldsNobodyForEver(t *testing.T) {
	w := newWorld(t)
	pod := w.train("a")
	for range 6 {
		w.runs(pod, crashed)
		w.pass(5 * time.Minute)
		w.requireHeld(true, "it may run again")
		w.runs(pod, w.running())
		w.pass(5 * time.Minute)
		w.requireHeld(true, "it runs")
	}
	require.False(t, w.evict("a").Allowed)
	w.runs(pod, crashed)
	w.pass(5 * time.Minute)
	w.requireHeld(false, "it has crashed for an hour")
	w.requireGate("")
	require.True(t, w.evict("a").Allowed)
	w.runs(pod, w.running())
	w.pass(time.Minute)
	w.requireHeld(false, "a minute is not long")
	w.pass(10 * time.Minute)
	w.requireHeld(true, "it has recovered, and trains")
	w.requireGate("it has not acknowledged")
}

// TestOneCrashIsForgiven: who was restarted and trains is held, for as long as it runs.
func TestOneCrashIsForgiven(t *testing.T) {
	w := newWorld(t)
	pod := w.train("a")
	w.runs(pod, crashed)
	w.pass(time.Minute)
	w.runs(pod, w.running())
	for range 30 {
		w.pass(5 * time.Minute)
		w.requireHeld(true, "it trains")
	}
	require.Zero(t, w.guard.Record.Of(instance).Pods[0].StuckSince)
}

// TestWhoNeverGetsPastItsInitContainers may have trained before the provider saw it,
// and holds its node for a time, not for ever.
func TestWhoNeverGetsPastItsInitContainers(t *testing.T) {
	w := newWorld(t)
	w.train("a", func(p *corev1.Pod) {
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"}}}}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}}}
	})
	w.pass(time.Second)
	w.requireHeld(true, "something has run")
	require.NotNil(t, w.guard.Holds()[0].Pods[0].Until)
	w.pass(w.policy.AbandonAfter)
	w.requireHeld(false, "an image that cannot be pulled holds no node for ever")
	require.True(t, w.evict("a").Allowed)
}

// TestNodeThatDoesNotSayWhichMachineItIs: a cloud controller manager that is broken
// leaves spec.providerID empty, and Cluster Autoscaler takes the instance for one
// that never came.
func TestNodeThatDoesNotSayWhichMachineItIs(t *testing.T) {
	w := newWorld(t)
	w.train("a")
	w.edit(func(node *corev1.Node) { node.Spec.ProviderID = "" })
	w.seen(func() bool { _, known := w.view.Node(instance); return !known })
	reason, err := w.gate(instance)
	require.NoError(t, err)
	require.Contains(t, reason, "train/a: it has not acknowledged")
	require.Contains(t, reason, "Node t4-a has no spec.providerID and may be this instance")
	w.acknowledge(w.pod("a"))
	reason, err = w.gate(instance)
	require.NoError(t, err)
	require.Empty(t, reason)

	w.train("b")
	w.unlabel()
	reason, err = w.gate(instance)
	require.NoError(t, err)
	require.NotContains(t, reason, "providerID", "a machine of nobody's cloud has none, and is not ours")
	w.edit(func(node *corev1.Node) {
		node.Spec.Taints = []corev1.Taint{{Key: "node.cloudprovider.kubernetes.io/uninitialized"}}
	})
	w.seen(func() bool {
		reason, err = w.gate(instance)
		return err == nil && strings.Contains(reason, "no spec.providerID")
	})
}

func (w *world) edit(edit func(*corev1.Node)) {
	node := w.node()
	edit(node)
	_, err := w.client.CoreV1().Nodes().Update(w.Context(), node, metav1.UpdateOptions{})
	require.NoError(w, err)
}

// TestMarksGoWithTheGroup: a person has taken the instance out of its Auto Scaling
// group, and keeps it.
func TestMarksGoWithTheGroup(t *testing.T) {
	w := newWorld(t)
	w.train("a")
	w.pass(time.Second)
	w.requireHeld(true, "it is ours")
	w.here, w.read = false, w.clock.Now()
	w.pass(time.Second)
	w.requireHeld(true, "one reading may have a gap")
	w.read = w.clock.Now()
	w.pass(time.Second)
	w.pass(time.Second)
	w.requireHeld(false, "it is ours no more")
}

// TestWhoLosesTheLabelTrainsNoMore: a person says so. It has not vanished.
func TestWhoLosesTheLabelTrainsNoMore(t *testing.T) {
	w := newWorld(t)
	pod := w.train("a")
	w.pass(time.Second)
	w.requireHeld(true, "it trains")
	w.update(pod, func(p *corev1.Pod) { p.Labels = nil })
	w.seen(func() bool { return len(w.view.PodsOn("t4-a", nil)[0].Labels) == 0 })
	w.pass(time.Second)
	w.requireHeld(false, "nobody asks for a checkpoint of it")
	w.requireGate("")
	require.Empty(t, w.guard.Record.Machines())
}

// TestPodsAreRecordedWhileTheCloudIsAway: a provider that starts in an outage of the
// cloud sees trainings come and go all the same.
func TestPodsAreRecordedWhileTheCloudIsAway(t *testing.T) {
	w := newWorld(t)
	w.guard.placed.Store(false)
	w.guard.passed.Store(false)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.guard.Run(ctx) }()
	pod := w.train("a")
	w.seen(func() bool { return len(w.guard.Record.Of(instance).Pods) == 1 })
	w.remove(pod)
	w.seen(func() bool { return w.guard.Record.Of(instance).Pods[0].Stage == checkpoint.Vanished })
	require.False(t, w.guard.passed.Load(), "not every instance is known")
	soon, cancel := context.WithTimeout(ctx, pollEvery-time.Second)
	defer cancel()
	require.NoError(t, w.guard.FirstPass(soon), "the port waits for the first pass, which must not wait for the next poll")
	require.True(t, w.guard.passed.Load())
	stop()
	require.NoError(t, <-ended)
	w.requireGate("train/a: it disappeared")
}
