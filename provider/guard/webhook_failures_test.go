package guard

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-node-provider/provider/cluster"
)

// TestCK20EvictionThatCannotBeJudgedIsDenied: what the webhook fails to read, or does not
// know yet, may be a training.
func TestCK20EvictionThatCannotBeJudgedIsDenied(t *testing.T) {
	for name, row := range map[string]struct {
		fails string // verb and resource
		setup func(w *world, pod *corev1.Pod)
		want  string
	}{
		"the pod cannot be read":         {fails: "get pods"},
		"the node's pods cannot be read": {fails: "list pods", setup: func(w *world, _ *corev1.Pod) { w.cordon() }},
		"the node is not known here yet": {setup: func(w *world, pod *corev1.Pod) {
			pod.Spec.NodeName = "t4-b"
			_, err := w.client.CoreV1().Pods(pod.Namespace).Update(w.Context(), pod, metav1.UpdateOptions{})
			require.NoError(w, err)
		}, want: "t4-b"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			pod := w.train("a")
			w.acknowledge(pod)
			require.True(t, w.evict("a").Allowed)
			if row.setup != nil {
				row.setup(w, pod)
			}
			if row.fails != "" {
				w.conflict.Store(&row.fails)
			}
			denied := w.evict("a")
			require.False(t, denied.Allowed)
			require.EqualValues(t, http.StatusTooManyRequests, denied.Result.Code)
			require.Contains(t, denied.Result.Message, row.want)
			require.Nil(t, w.conflict.Load(), "the failure was met")
		})
	}
}

// TestCK20ToBeDeletedMeansLeaving: Cluster Autoscaler before 1.34 taints a node that it
// drains and does not cordon it.
func TestCK20ToBeDeletedMeansLeaving(t *testing.T) {
	w := newWorld(t)
	saved := w.train("a")
	w.train("b")
	w.acknowledge(saved)
	w.pass(time.Second)
	require.True(t, w.evict("a").Allowed, "one pod alone may move, on a node that stays")
	node := w.node()
	node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: cluster.ToBeDeleted, Effect: corev1.TaintEffectNoSchedule})
	_, err := w.client.CoreV1().Nodes().Update(w.Context(), node, metav1.UpdateOptions{})
	require.NoError(t, err)
	w.seen(func() bool { known, ok := w.view.NodeNamed("t4-a"); return ok && len(known.Spec.Taints) > 0 })
	denied := w.evict("a")
	require.False(t, denied.Allowed)
	require.Contains(t, denied.Result.Message, "train/b")
}
