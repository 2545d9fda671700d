package guard

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"gpu-node-provider/provider/checkpoint"
	"gpu-node-provider/provider/cluster"
	"gpu-node-provider/provider/nodegroup"
)

const (
	gpu        = "nvidia.com/gpu"
	label      = "gpu-node-provider.io/checkpoint"
	instance   = "simulated:///t4/t4-a"
	patience   = 10 * time.Second
	groupLabel = "gpu-node-provider.io/node-group"
)

// world is a guard on a cluster with one Node of four GPUs. Passes are made by
// hand, so that every step is seen.
type world struct {
	*testing.T
	client   *fake.Clientset
	redis    *miniredis.Miniredis
	clock    *clocktesting.FakeClock
	policy   Policy
	view     *cluster.View
	guard    *Guard
	here     bool                   // the instance is in the cloud
	conflict atomic.Pointer[string] // verb and resource of the next call that somebody was quicker than
	read     time.Time              // when the cloud was read
	leads    bool                   // this replica does
}

func newWorld(t *testing.T) *world {
	w := &world{
		T: t, redis: miniredis.RunT(t), clock: clocktesting.NewFakeClock(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)), here: true, leads: true,
		policy: Policy{Policy: checkpoint.Policy{MaxAge: 20 * time.Minute, AbandonAfter: time.Hour}, AskAfter: 10 * time.Minute, AskEvery: 30 * time.Minute},
		client: fake.NewClientset(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "t4-a", UID: "node", Labels: map[string]string{groupLabel: "t4"}},
			Spec:       corev1.NodeSpec{ProviderID: instance},
			Status: corev1.NodeStatus{
				Allocatable: corev1.ResourceList{gpu: resource.MustParse("4")},
				Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			},
		}),
	}
	w.redis.SetTime(w.clock.Now())
	// Here, and not when a test wants it: Events are written all the time.
	w.client.PrependReactor("*", "*", w.conflicts)
	w.restart()
	return w
}

func (w *world) conflicts(a k8stesting.Action) (bool, runtime.Object, error) {
	call := a.GetVerb() + " " + a.GetResource().Resource
	next := w.conflict.Load()
	if next == nil || *next != call || !w.conflict.CompareAndSwap(next, nil) {
		return false, nil, nil
	}
	return true, nil, apierrors.NewConflict(a.GetResource().GroupResource(), "x", nil)
}

// restart makes everything anew that lives in memory.
func (w *world) restart() {
	view, err := cluster.New(w.client, &corev1.ObjectReference{Kind: "Pod", Name: "provider"})
	require.NoError(w, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- view.Run(ctx) }()
	w.Cleanup(func() { stop(); require.NoError(w, <-ended) })
	require.NoError(w, view.WaitForSync(ctx))
	store, err := checkpoint.NewStore(checkpoint.RedisOptions{Addresses: []string{w.redis.Addr()}}, "checkpoint")
	require.NoError(w, err)
	w.Cleanup(func() { _ = store.Close() })
	record := checkpoint.NewRecord(w.client, "gpu-node-provider")
	require.NoError(w, record.Load(w.Context()))
	selector, err := labels.Parse(label + "=required")
	require.NoError(w, err)
	w.view = view
	w.guard = New(Options{
		View: view, Record: record, Asker: store, Policy: func() Policy { return w.policy }, Log: zaptest.NewLogger(w), Now: w.clock.Now, GroupLabel: groupLabel,
		Read: func(string) (time.Time, bool) { return w.read, !w.read.IsZero() },
		Place: func(id string) (nodegroup.Place, bool) {
			return nodegroup.Place{Group: "t4", AboveMin: true, GPUs: 4, HourlyPrice: 3.912}, w.here && id == instance
		},
		Assessor: &checkpoint.Assessor{
			View: view, Record: record, Signals: store, Selector: selector, GroupLabel: groupLabel, Now: w.clock.Now,
			Policy: func() checkpoint.Policy { return w.policy.Policy },
		},
	})
	w.guard.AllPlaced()
	w.guard.passed.Store(true)
}

func (w *world) pass(d time.Duration) {
	w.clock.Step(d)
	w.redis.SetTime(w.clock.Now())
	w.guard.pass(w.Context(), nil)
	w.seen(func() bool { // the View has to learn of what was written
		live, err := w.client.CoreV1().Nodes().List(w.Context(), metav1.ListOptions{})
		require.NoError(w, err)
		for _, n := range live.Items {
			known, ok := w.view.NodeNamed(n.Name)
			if !ok || known.Annotations[heldBy] != n.Annotations[heldBy] || known.Annotations[ReleaseAnnotation] != n.Annotations[ReleaseAnnotation] ||
				known.Annotations[RequestAnnotation] != n.Annotations[RequestAnnotation] {
				return false
			}
		}
		return true
	})
}

func (w *world) seen(holds func() bool) {
	w.Helper()
	require.Eventually(w, holds, patience, time.Millisecond)
}

// train starts a trainer on the Node.
func (w *world) train(name string, edits ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "train", UID: types.UID("uid-" + name), Labels: map[string]string{label: "required"}},
		Spec: corev1.PodSpec{NodeName: "t4-a", Containers: []corev1.Container{{
			Name: "c", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{gpu: resource.MustParse("1")}},
		}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, StartTime: &metav1.Time{Time: w.clock.Now()},
			ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
		},
	}
	for _, edit := range edits {
		edit(pod)
	}
	pod, err := w.client.CoreV1().Pods("train").Create(w.Context(), pod, metav1.CreateOptions{})
	require.NoError(w, err)
	w.seen(func() bool { return len(w.view.PodsOn("t4-a", nil)) > 0 && w.known(pod) })
	return pod
}

func (w *world) known(pod *corev1.Pod) bool {
	for _, p := range w.view.PodsOn("t4-a", nil) {
		if p.UID == pod.UID {
			return true
		}
	}
	return false
}

func (w *world) remove(pod *corev1.Pod) {
	require.NoError(w, w.client.CoreV1().Pods(pod.Namespace).Delete(w.Context(), pod.Name, metav1.DeleteOptions{}))
	w.seen(func() bool { return !w.known(pod) })
}

func (w *world) pod(name string) *corev1.Pod {
	pod, err := w.client.CoreV1().Pods("train").Get(w.Context(), name, metav1.GetOptions{})
	require.NoError(w, err)
	return pod
}

func (w *world) update(pod *corev1.Pod, edit func(*corev1.Pod)) {
	edit(pod)
	_, err := w.client.CoreV1().Pods(pod.Namespace).Update(w.Context(), pod, metav1.UpdateOptions{})
	require.NoError(w, err)
	w.seen(func() bool {
		for _, p := range w.view.PodsOn("t4-a", nil) {
			if p.UID == pod.UID && (p.DeletionTimestamp == nil) == (pod.DeletionTimestamp == nil) && p.Status.Phase == pod.Status.Phase {
				return true
			}
		}
		return false
	})
}

func (w *world) acknowledge(pod *corev1.Pod) {
	text, err := json.Marshal(map[string]any{"v": 1, "savedAt": w.clock.Now().Format(time.RFC3339)})
	require.NoError(w, err)
	require.NoError(w, w.redis.Set(checkpoint.AckKey("checkpoint", checkpoint.IDOf(pod)), string(text)))
}

func (w *world) asked(pod *corev1.Pod) bool {
	return w.redis.Exists(checkpoint.RequestKey("checkpoint", checkpoint.IDOf(pod)))
}

func (w *world) node() *corev1.Node {
	node, err := w.client.CoreV1().Nodes().Get(w.Context(), "t4-a", metav1.GetOptions{})
	require.NoError(w, err)
	return node
}

func (w *world) annotate(key, value string) {
	node := w.node()
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	node.Annotations[key] = value
	_, err := w.client.CoreV1().Nodes().Update(w.Context(), node, metav1.UpdateOptions{})
	require.NoError(w, err)
	w.seen(func() bool { known, ok := w.view.NodeNamed("t4-a"); return ok && known.Annotations[key] == value })
}

func (w *world) requireHeld(held bool, why string) {
	w.Helper()
	a := w.node().Annotations
	require.Equal(w, held, a[scaleDownDisabled] == "true" && a[heldBy] == marker, "%s: %v", why, a)
}

// gate asks what a DeleteNodes would ask.
func (w *world) gate(node string) (string, error) {
	held, err := w.guard.Assessor.Hold(w.Context(), []checkpoint.Instance{{ID: instance, Node: node}})
	if err != nil || len(held) == 0 {
		return "", err
	}
	return held[0].Reason, nil
}

func (w *world) requireGate(contains string) {
	w.Helper()
	for _, node := range []string{"t4-a", instance} { // and by Cluster Autoscaler's fake, too
		reason, err := w.gate(node)
		require.NoError(w, err)
		if contains == "" {
			require.Empty(w, reason)
		} else {
			require.Contains(w, reason, contains)
		}
	}
}

func resourceOf(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.DecimalSI) }
