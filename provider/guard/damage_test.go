package guard

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestFailedByTheGarbageCollector: the Node object is deleted while the machine
// trains; the Pod is marked Failed while its containers are still said to run.
func TestFailedByTheGarbageCollector(t *testing.T) {
	w := newWorld(t)
	pod := w.train("a", func(p *corev1.Pod) { p.CreationTimestamp = metav1.Time{Time: w.clock.Now()} })
	w.pass(2 * time.Hour)
	require.NoError(t, w.client.CoreV1().Nodes().Delete(t.Context(), "t4-a", metav1.DeleteOptions{}))
	w.seen(func() bool { _, ok := w.view.NodeNamed("t4-a"); return !ok })
	w.update(pod, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
	w.requireGate("train/a: it failed")
	w.pass(time.Second)
	w.pass(w.policy.AbandonAfter - time.Minute)
	w.requireGate("train/a: it failed")
	w.pass(2 * time.Minute)
	w.requireGate("")
}

func TestFailedWithItsStatusesWiped(t *testing.T) {
	w := newWorld(t)
	pod := w.train("a")
	w.pass(time.Second)
	w.update(pod, func(p *corev1.Pod) {
		p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "UnexpectedAdmissionError", StartTime: p.Status.StartTime}
	})
	w.pass(time.Second)
	w.requireHeld(true, "it has run, whatever its status says now")
	w.requireGate("train/a: it failed")
	w.pass(w.policy.AbandonAfter + time.Second)
	w.requireHeld(false, "but not for ever")
}

// conflictOnce makes the next write of a kind fail as if somebody had been quicker.
func conflictOnce(w *world, verb, resource string) { w.conflict.Store(new(verb + " " + resource)) }

func TestRecordThatSomebodyEmptied(t *testing.T) {
	w := newWorld(t)
	w.train("a")
	w.pass(time.Second)
	list, err := w.client.CoreV1().ConfigMaps("gpu-node-provider").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	list.Items[0].Data = nil
	_, err = w.client.CoreV1().ConfigMaps("gpu-node-provider").Update(t.Context(), &list.Items[0], metav1.UpdateOptions{})
	require.NoError(t, err)
	conflictOnce(w, "update", "configmaps")
	w.train("b")
	w.pass(time.Second)
	w.pass(time.Second)
	w.restart()
	require.Len(t, w.guard.Record.Of(instance).Pods, 2)
}

func TestReleaseThatMeetsAConflictIsForNobodyYet(t *testing.T) {
	w := newWorld(t)
	w.train("a")
	w.pass(time.Second)
	w.annotate(ReleaseAnnotation, "alex")
	conflictOnce(w, "patch", "nodes")
	w.pass(time.Second)
	w.requireGate("train/a")
	w.pass(time.Second)
	w.requireGate("")
	w.train("b")
	w.pass(time.Second)
	w.requireGate("train/b")
}

func TestReleaseIsForClearPodsToo(t *testing.T) {
	w := newWorld(t)
	w.train("a")
	w.acknowledge(w.train("b"))
	w.pass(19 * time.Minute)
	w.annotate(ReleaseAnnotation, "alex")
	w.pass(time.Second)
	w.pass(2 * time.Minute)
	w.requireHeld(false, "the acknowledgement of b has aged out, and it is released all the same")
}

func TestRequestOutlivesRedis(t *testing.T) {
	w := newWorld(t)
	pod := w.train("a")
	w.pass(time.Second)
	w.redis.SetError("LOADING")
	w.annotate(RequestAnnotation, "alex")
	w.pass(time.Second)
	w.redis.SetError("")
	w.pass(time.Second)
	require.True(t, w.asked(pod))
	require.NotContains(t, w.node().Annotations, RequestAnnotation)
}
