package guard

import (
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-node-provider/provider/checkpoint"
)

func TestHeldUntilAcknowledged(t *testing.T) {
	w := newWorld(t)
	w.pass(0)
	w.requireHeld(false, "nobody trains")
	pod := w.train("a")
	w.pass(time.Second)
	w.requireHeld(true, "it has not acknowledged")
	require.Equal(t, "train/a", w.node().Annotations[blockedBy])
	w.requireGate("training pod train/a: it has not acknowledged")

	w.acknowledge(pod)
	w.pass(time.Second)
	w.requireHeld(false, "it has acknowledged")
	require.NotContains(t, w.node().Annotations, blockedBy)
	w.requireGate("")

	w.pass(w.policy.MaxAge + time.Minute)
	w.requireHeld(true, "the acknowledgement has aged out")
	w.requireGate("maxAge is 20m0s")
}

func TestE06PodWithoutAGPUIsHeldToo(t *testing.T) {
	w := newWorld(t)
	w.train("a", func(p *corev1.Pod) { p.Spec.Containers[0].Resources = corev1.ResourceRequirements{} })
	w.pass(time.Second)
	w.requireHeld(true, "it matches the selector, whatever it requests")
	w.requireGate("training pod train/a: it has not acknowledged")
}

func TestNothingIsWrittenWhenNothingChanges(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"a", "b", "c", "d"} {
		w.train(name)
	}
	w.pass(time.Second)
	w.seen(func() bool { // it is written by another goroutine
		events, err := w.client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
		return err == nil && len(events.Items) == 1
	})
	w.client.ClearActions()
	for range 9 {
		w.pass(time.Minute)
	}
	for _, action := range w.client.Actions() {
		require.NotContains(t, []string{"create", "update", "patch", "delete"}, action.GetVerb(), "%v", action)
	}
}

func TestFourTrainersOneNode(t *testing.T) {
	w := newWorld(t)
	var pods []*corev1.Pod
	for _, name := range []string{"a", "b", "c", "d"} {
		pods = append(pods, w.train(name))
	}
	for _, pod := range pods[:3] {
		w.acknowledge(pod)
	}
	w.pass(time.Second)
	w.requireHeld(true, "one of four has not")
	w.requireGate("train/d")
	w.acknowledge(pods[3])
	w.pass(time.Second)
	w.requireHeld(false, "all have")
}

func TestF02PodThatLandsAfterTheAcknowledgement(t *testing.T) {
	w := newWorld(t)
	w.acknowledge(w.train("a"))
	w.pass(time.Second)
	w.requireHeld(false, "it has acknowledged")
	w.train("b") // and the guard has not looked since
	w.requireGate("train/b")
	w.pass(time.Second)
	w.requireHeld(true, "held again")
}

func TestAPersonsAnnotationStays(t *testing.T) {
	w := newWorld(t)
	w.annotate(scaleDownDisabled, "true")
	pod := w.train("a")
	w.pass(time.Second)
	require.NotContains(t, w.node().Annotations, heldBy, "it is held already, by somebody else")
	w.acknowledge(pod)
	w.pass(time.Second)
	require.Equal(t, "true", w.node().Annotations[scaleDownDisabled])
}

func TestObserveHoldsNothing(t *testing.T) {
	w := newWorld(t)
	w.train("a")
	w.pass(time.Second)
	w.requireHeld(true, "enforce")
	w.policy.Observe = true
	w.pass(time.Second)
	w.requireHeld(false, "observe")
	require.Len(t, w.guard.Holds(), 1, "it is reported all the same")
}

func TestRedisDown(t *testing.T) {
	w := newWorld(t)
	acknowledged := w.train("a")
	w.acknowledge(acknowledged)
	w.pass(time.Second)
	w.requireHeld(false, "it has acknowledged")
	w.redis.SetError("LOADING Redis is loading the dataset in memory")
	w.pass(time.Second)
	w.requireHeld(false, "a blip is no reason to write to every training node")
	_, err := w.gate("t4-a")
	require.ErrorIs(t, err, checkpoint.ErrRedis, "but nothing goes")
	require.ErrorContains(t, err, "LOADING")
	w.pass(redisPatience)
	w.requireHeld(true, "who cannot tell for long lets nothing go")
	w.redis.SetError("")
	w.pass(time.Second)
	w.requireHeld(false, "the acknowledgement is there again")
	w.redis.SetError("LOADING")
	w.train("b")
	w.pass(time.Second)
	w.requireHeld(true, "who was never clear is held at once")
	w.remove(acknowledged)
	w.redis.SetError("")
	w.pass(time.Second)
	w.acknowledge(w.pod("b"))
	w.remove(w.pod("b"))
	w.redis.SetError("")
	w.pass(time.Second)
	w.requireHeld(false, "all is well again by itself")

	w.redis.SetError("LOADING")
	w.requireGate("") // nobody trains there, so Redis is not needed
}

func TestF03RecordOutlivesEverything(t *testing.T) {
	w := newWorld(t)
	pod := w.train("a")
	w.pass(time.Second)
	w.remove(pod)
	w.pass(time.Second)
	w.requireHeld(true, "the pod vanished, its work with it")
	w.redis.FlushAll()
	require.NoError(t, w.client.CoreV1().Nodes().Delete(t.Context(), "t4-a", metav1.DeleteOptions{}))
	w.restart()
	w.pass(time.Second)
	reason, err := w.gate(instance)
	require.NoError(t, err)
	require.Contains(t, reason, "train/a: it disappeared")
	require.Len(t, w.guard.Holds(), 1)

	w.acknowledge(pod)
	w.pass(time.Second)
	reason, err = w.gate(instance)
	require.NoError(t, err)
	require.Empty(t, reason, "a late acknowledgement is one")
	require.Empty(t, w.guard.Record.Machines(), "what is over and clear is forgotten")
}

func TestAbandonedInTheEnd(t *testing.T) {
	w := newWorld(t)
	pod := w.train("a")
	w.pass(time.Second)
	w.remove(pod)
	w.pass(time.Second)
	until := w.guard.Holds()[0].Pods[0].Until
	require.Equal(t, w.clock.Now().Add(time.Hour), *until)
	w.pass(time.Hour - time.Second)
	w.requireHeld(true, "not yet")
	w.pass(2 * time.Second)
	w.requireHeld(false, "nobody can save it any more")
}

func TestReleaseIsForThePodsOfThatMoment(t *testing.T) {
	w := newWorld(t)
	w.train("a")
	w.pass(time.Second)
	w.annotate(ReleaseAnnotation, "alex")
	w.pass(time.Second)
	require.NotContains(t, w.node().Annotations, ReleaseAnnotation, "carried out, and removed")
	w.pass(time.Second)
	w.requireHeld(false, "released")
	w.requireGate("")
	w.restart()
	w.pass(time.Second)
	w.requireHeld(false, "a restart does not forget it")
	w.train("b")
	w.pass(time.Second)
	w.requireHeld(true, "a pod that came later is not released")
	w.requireGate("train/b")
}

func TestAPersonAsks(t *testing.T) {
	w := newWorld(t)
	pod := w.train("a")
	w.pass(time.Second)
	require.False(t, w.asked(pod))
	w.annotate(RequestAnnotation, "alex")
	w.pass(time.Second)
	require.True(t, w.asked(pod))
	require.NotContains(t, w.node().Annotations, RequestAnnotation, "carried out, and removed")
	w.requireHeld(true, "asking frees nothing")
}

func TestRecordGoesWithItsInstance(t *testing.T) {
	w := newWorld(t)
	w.guard.Metrics = NewMetrics(prometheus.NewRegistry())
	w.acknowledge(w.train("saved"))
	w.train("a")
	w.pass(time.Second)
	w.here = false
	for range 3 {
		w.pass(time.Minute)
	}
	require.NotEmpty(t, w.guard.Record.Of(instance).Pods, "its group cannot be read, which says nothing")
	w.read = w.clock.Now()
	for range 3 {
		w.pass(time.Minute)
	}
	require.NotEmpty(t, w.guard.Record.Of(instance).Pods, "one reading may have a gap")
	w.here, w.read = true, w.clock.Now()
	w.pass(time.Minute)
	w.requireHeld(true, "it is there again")
	w.here, w.read = false, w.clock.Now()
	w.pass(time.Minute)
	require.NotEmpty(t, w.guard.Record.Of(instance).Pods)
	w.read = w.clock.Now()
	w.pass(time.Minute)
	require.Empty(t, w.guard.Record.Machines())
	require.EqualValues(t, 1, testutil.ToFloat64(w.guard.Metrics.losses), "one of two had not acknowledged")
}

// TestPatienceWithRedisEnds: looks at other nodes, which read nothing, do not
// prolong it.
func TestPatienceWithRedisEnds(t *testing.T) {
	w := newWorld(t)
	w.acknowledge(w.train("a"))
	w.pass(time.Second)
	w.requireHeld(false, "it has acknowledged")
	w.redis.SetError("LOADING")
	for range 4 {
		w.pass(pollEvery)
		w.guard.pass(w.Context(), map[string]bool{"another": true})
	}
	w.requireHeld(true, "who cannot tell for long lets nothing go")
}

func TestNeverStartedHoldsNothing(t *testing.T) {
	w := newWorld(t)
	w.train("pulls", func(p *corev1.Pod) { p.Status = corev1.PodStatus{Phase: corev1.PodPending} })
	w.pass(time.Second)
	w.requireHeld(false, "an image that cannot be pulled holds no node")
	w.requireGate("")
}

func TestDaemonSetAndStrangersHoldNothing(t *testing.T) {
	w := newWorld(t)
	w.train("daemon", func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "d", UID: "d", Controller: new(true)}}
	})
	w.train("other", func(p *corev1.Pod) { p.Labels = nil })
	w.train("mirror", func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} })
	w.pass(time.Second)
	w.requireHeld(false, "none of them trains")
}

func TestSuccessorClearsItsPredecessor(t *testing.T) {
	w := newWorld(t)
	slot := func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "StatefulSet", Name: "s", UID: "s", Controller: new(true)}}
		p.Labels["apps.kubernetes.io/pod-index"] = "0"
	}
	first := w.train("s-0", slot)
	w.pass(time.Second)
	w.remove(first)
	w.pass(time.Minute)
	w.requireHeld(true, "it disappeared")
	second := w.train("s-0", slot, func(p *corev1.Pod) { p.UID = "uid-second" })
	w.pass(time.Minute)
	w.requireHeld(true, "its successor has not acknowledged either")
	w.acknowledge(second)
	w.pass(time.Second)
	w.requireHeld(false, "the successor's acknowledgement is for both")
}

func TestWhoIsAskedAndWhen(t *testing.T) {
	w := newWorld(t)
	pod := w.train("a")
	w.pass(time.Second)
	require.False(t, w.asked(pod))
	w.pass(w.policy.AskAfter - time.Second)
	require.False(t, w.asked(pod), "underused, but not for long enough")
	w.pass(2 * time.Second)
	require.True(t, w.asked(pod), "underused for long enough")
	w.redis.Del(checkpoint.RequestKey("checkpoint", checkpoint.IDOf(pod)))
	w.pass(time.Minute)
	require.False(t, w.asked(pod), "not again before askEvery")
	w.pass(w.policy.AskEvery)
	require.True(t, w.asked(pod))
}

func TestBusyNodeIsNotAsked(t *testing.T) {
	w := newWorld(t)
	pod := w.train("a", func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Limits[gpu] = *resourceOf(3) })
	w.pass(time.Second)
	w.pass(time.Hour)
	require.False(t, w.asked(pod))
}

func TestDeletionAsksAtOnce(t *testing.T) {
	w := newWorld(t)
	pod := w.train("a", func(p *corev1.Pod) { p.Finalizers = []string{"test/kept"} })
	w.pass(time.Second)
	w.update(pod, func(p *corev1.Pod) {
		p.DeletionTimestamp = &metav1.Time{Time: w.clock.Now().Add(time.Minute)}
		p.DeletionGracePeriodSeconds = new(int64(60))
	})
	w.pass(time.Second)
	require.True(t, w.asked(pod))
}

func TestCordonAsksAtOnce(t *testing.T) {
	w := newWorld(t)
	pod := w.train("a")
	node := w.node()
	node.Spec.Unschedulable = true
	_, err := w.client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
	require.NoError(t, err)
	w.seen(func() bool { known, ok := w.view.NodeNamed("t4-a"); return ok && known.Spec.Unschedulable })
	w.pass(time.Second)
	require.True(t, w.asked(pod))
}

// said waits for an Event of a reason.
func (w *world) said(reason string) {
	w.Helper()
	w.seen(func() bool {
		events, err := w.client.CoreV1().Events("").List(w.Context(), metav1.ListOptions{})
		require.NoError(w, err)
		return slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return e.Reason == reason })
	})
}

func TestAcknowledgementOfTheFuture(t *testing.T) {
	w := newWorld(t)
	pod := w.train("a")
	w.clock.Step(time.Hour)
	w.acknowledge(pod)
	w.clock.Step(-time.Hour)
	w.pass(time.Second)
	w.requireHeld(true, "its clock is wrong by an hour")
	w.requireGate("acknowledgement ignored: dated in the future")
	w.said("BadAcknowledgement")
}

func TestAbandonedWhileTheProviderWasDown(t *testing.T) {
	w := newWorld(t)
	pod := w.train("a")
	w.pass(time.Second)
	w.remove(pod)
	w.pass(time.Second)
	w.requireHeld(true, "it disappeared")
	w.restart()
	w.pass(w.policy.AbandonAfter + time.Second)
	w.requireHeld(false, "its time is over")
	w.said("CheckpointAbandoned")
}

func TestWhatHoldingCosts(t *testing.T) {
	w := newWorld(t)
	w.guard.Metrics = NewMetrics(prometheus.NewRegistry())
	pod := w.train("a") // one GPU of four
	w.pass(time.Second)
	w.pass(10 * time.Second)
	cost := w.guard.Metrics.gpuSeconds.WithLabelValues("t4")
	require.InDelta(t, 40, testutil.ToFloat64(cost), 1e-9)
	require.InDelta(t, 3.912*10/3600, testutil.ToFloat64(w.guard.Metrics.dollars.WithLabelValues("t4")), 1e-9)
	w.acknowledge(pod)
	w.pass(0)
	w.pass(time.Minute)
	require.InDelta(t, 40, testutil.ToFloat64(cost), 1e-9, "nobody holds it")
	w.train("b", func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Limits[gpu] = resource.MustParse("3") })
	w.pass(0)
	w.pass(time.Minute)
	require.InDelta(t, 40, testutil.ToFloat64(cost), 1e-9, "Cluster Autoscaler would not take a busy node")
}
