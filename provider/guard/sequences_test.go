package guard

// What random sequences (test/property) have found.

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"gpu-node-provider/provider/checkpoint"
)

// ofJob puts a pod into a place of an indexed Job.
func ofJob(p *corev1.Pod) {
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "j", UID: "j", Controller: new(true)}}
	p.Labels["batch.kubernetes.io/job-completion-index"] = "0"
}

func TestSuccessorWhoseClockIsAheadClearsNobody(t *testing.T) {
	w := newWorld(t)
	first := w.train("a", ofJob)
	w.pass(time.Second)
	w.remove(first)
	w.pass(time.Minute)
	second := w.train("b", ofJob)
	w.update(second, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	require.NoError(t, w.redis.Set(checkpoint.AckKey("checkpoint", checkpoint.IDOf(second)), w.clock.Now().Add(time.Hour).Format(time.RFC3339)))
	w.pass(time.Second)
	w.requireGate("train/a: it disappeared")
	w.acknowledge(second)
	w.pass(time.Second)
	w.requireGate("")
}

// TestPodThatLivesHasNoSuccessor: an indexed Job may replace a pod that still
// terminates, and its replacement acknowledges while it saves.
func TestPodThatLivesHasNoSuccessor(t *testing.T) {
	w := newWorld(t)
	first := w.train("a", ofJob)
	w.pass(time.Second)
	w.train("b", ofJob)
	w.pass(time.Second)
	w.remove(first)
	w.pass(time.Second)
	w.pass(time.Second)
	w.acknowledge(w.train("c", ofJob))
	w.requireGate("train/b: it has not acknowledged") // also before the guard has looked
	w.pass(time.Second)
	w.requireGate("train/b: it has not acknowledged")
}

// TestPredecessorIsNoSuccessor: who started first has not taken over from who
// started later, however late it saves.
func TestPredecessorIsNoSuccessor(t *testing.T) {
	w := newWorld(t)
	first := w.train("a", ofJob)
	w.pass(time.Second)
	second := w.train("b", ofJob)
	w.pass(time.Second)
	w.remove(second)
	w.pass(time.Second)
	w.clock.Step(time.Second)
	w.acknowledge(first)
	w.pass(0)
	w.requireGate("train/b: it disappeared")
}

func TestUnreachableAPIServerKeepsAlsoWhoHasNoNode(t *testing.T) {
	w := newWorld(t)
	instances := []checkpoint.Instance{{ID: "simulated:///t4/t4-new", Node: "simulated:///t4/t4-new"}}
	held, err := w.guard.Assessor.Hold(t.Context(), instances)
	require.NoError(t, err)
	require.Empty(t, held)
	w.client.PrependReactor("list", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("unreachable")
	})
	_, err = w.guard.Assessor.Hold(t.Context(), instances)
	require.ErrorContains(t, err, "unreachable", "its Node may have come meanwhile")
}

// TestNoPatienceForWhoHasJustStarted: a pod that waited was clear, but had
// nothing to acknowledge.
func TestNoPatienceForWhoHasJustStarted(t *testing.T) {
	w := newWorld(t)
	started := w.train("a").Status
	pod := w.train("b", func(p *corev1.Pod) { p.Status = corev1.PodStatus{Phase: corev1.PodPending} })
	w.acknowledge(w.train("c"))
	w.pass(time.Second)
	w.redis.SetError("LOADING")
	w.update(pod, func(p *corev1.Pod) { p.Status = started })
	w.pass(time.Second)
	require.Equal(t, "train/a, train/b", w.node().Annotations[blockedBy])
}
