package guard

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// evict asks the webhook what the API server asks.
func (w *world) evict(pod string, edits ...func(*admissionv1.AdmissionRequest)) *admissionv1.AdmissionResponse {
	w.Helper()
	request := &admissionv1.AdmissionRequest{
		UID: "review", Namespace: "train", Name: pod, SubResource: "eviction", Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
	}
	for _, edit := range edits {
		edit(request)
	}
	body, err := json.Marshal(admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: request})
	require.NoError(w, err)
	recorder := httptest.NewRecorder()
	Webhook{Guard: w.guard, Leads: func() bool { return w.leads }}.ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, EvictionPath, bytes.NewReader(body)))
	require.Equal(w, http.StatusOK, recorder.Code)
	var review admissionv1.AdmissionReview
	require.NoError(w, json.Unmarshal(recorder.Body.Bytes(), &review))
	require.Equal(w, "AdmissionReview", review.Kind)
	require.EqualValues(w, "review", review.Response.UID)
	return review.Response
}

func (w *world) cordon() {
	node := w.node()
	node.Spec.Unschedulable = true
	_, err := w.client.CoreV1().Nodes().Update(w.Context(), node, metav1.UpdateOptions{})
	require.NoError(w, err)
	w.seen(func() bool { known, ok := w.view.NodeNamed("t4-a"); return ok && known.Spec.Unschedulable })
}

func TestEvictionWaitsForTheAcknowledgement(t *testing.T) {
	w := newWorld(t)
	pod := w.train("a")
	denied := w.evict("a")
	require.False(t, denied.Allowed)
	require.EqualValues(t, http.StatusTooManyRequests, denied.Result.Code)
	require.Contains(t, denied.Result.Message, "train/a: it has not acknowledged")
	require.Nil(t, denied.Result.Details, "a Retry-After would make client-go repeat it by itself")
	require.True(t, w.asked(pod), "it is asked at the first denial")
	w.acknowledge(pod)
	require.True(t, w.evict("a").Allowed)
}

func TestNoneOfFourIsEvictedBeforeTheFourth(t *testing.T) {
	w := newWorld(t)
	var pods []*corev1.Pod
	for _, name := range []string{"a", "b", "c", "d"} {
		pods = append(pods, w.train(name))
	}
	for _, pod := range pods[:3] {
		w.acknowledge(pod)
	}
	require.True(t, w.evict("a").Allowed, "one pod alone may move, on a node that stays")
	w.cordon()
	for _, name := range []string{"a", "b", "c", "d"} {
		denied := w.evict(name)
		require.False(t, denied.Allowed)
		require.Contains(t, denied.Result.Message, "train/d")
	}
	w.acknowledge(pods[3])
	for _, name := range []string{"a", "b", "c", "d"} {
		require.True(t, w.evict(name).Allowed)
	}
}

// Cluster Autoscaler evicts all of a node at once: the API server has deleted the
// first before the second is asked about.
func TestEvictionsInParallel(t *testing.T) {
	for name, before := range map[string]struct{ saved, long bool }{
		"the first had saved": {saved: true}, "the first had not": {}, "the first had, long ago": {saved: true, long: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			saved := before.saved && !before.long
			first, second := w.train("a", func(p *corev1.Pod) { p.Finalizers = []string{"test/kept"} }), w.train("b")
			w.pass(time.Second)
			if before.saved {
				w.acknowledge(first)
			}
			if before.long {
				w.pass(time.Hour)
			}
			w.acknowledge(second)
			w.cordon()
			w.pass(time.Minute)
			require.Equal(t, saved, w.evict("a").Allowed)
			w.update(first, func(p *corev1.Pod) {
				p.DeletionTimestamp = &metav1.Time{Time: w.clock.Now().Add(10 * time.Minute)}
				p.DeletionGracePeriodSeconds = new(int64(600))
			})
			require.Equal(t, saved, w.evict("b").Allowed)
			require.False(t, w.evict("a").Allowed, "it may save once more")
			w.requireGate("train/a")
		})
	}
}

func TestEvictionsThatAreNoneOfOurs(t *testing.T) {
	w := newWorld(t)
	w.train("a")
	w.train("web", func(p *corev1.Pod) { p.Labels = nil })
	w.redis.SetError("LOADING")
	require.True(t, w.evict("web").Allowed, "no training pod, no Redis")
	require.True(t, w.evict("gone").Allowed, "the API server says that there is none")
	require.True(t, w.evict("a", func(r *admissionv1.AdmissionRequest) { r.SubResource = "status" }).Allowed)
	w.here = false
	require.False(t, w.evict("a").Allowed, "the snapshot may be old: the label says that it is ours")
	w.unlabel()
	require.True(t, w.evict("a").Allowed, "its node is no instance of ours")
}

func TestEvictionWithoutRedisIsDenied(t *testing.T) {
	w := newWorld(t)
	w.train("a")
	w.redis.SetError("LOADING")
	denied := w.evict("a")
	require.False(t, denied.Allowed)
	require.Contains(t, denied.Result.Message, "LOADING")
	w.redis.SetError("")
}

func TestDryRunAsksNobody(t *testing.T) {
	w := newWorld(t)
	pod := w.train("a")
	require.False(t, w.evict("a", func(r *admissionv1.AdmissionRequest) { r.DryRun = new(true) }).Allowed)
	require.False(t, w.asked(pod))
}

func TestReleasedPodIsEvicted(t *testing.T) {
	w := newWorld(t)
	w.train("a")
	w.pass(time.Second)
	w.annotate(ReleaseAnnotation, "alex")
	w.pass(time.Second)
	require.True(t, w.evict("a").Allowed)
}

func TestNoReview(t *testing.T) {
	w := newWorld(t)
	for _, body := range []string{"", "x", "{}", "[]"} {
		recorder := httptest.NewRecorder()
		Webhook{Guard: w.guard, Leads: func() bool { return true }}.ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, EvictionPath, bytes.NewReader([]byte(body))))
		require.Equal(t, http.StatusBadRequest, recorder.Code)
	}
}

// TestStandbyAnswersEvictions: a replica whose guard does not run, and that knows
// nothing of the cloud, denies and allows as the leader does.
func TestStandbyAnswersEvictions(t *testing.T) {
	w := newWorld(t)
	pod := w.train("a")
	w.pass(time.Second) // the leader records it
	w.restart()
	w.leads, w.here = false, false
	w.guard.passed.Store(false)
	require.False(t, w.evict("a").Allowed)
	require.True(t, w.asked(pod))
	w.acknowledge(pod)
	require.True(t, w.evict("a").Allowed)

	// What a person says to the leader is in the record.
	w.train("b")
	require.False(t, w.evict("b").Allowed)
	w.annotate(ReleaseAnnotation, "alex")
	standby := w.guard
	w.restart()
	w.here = true
	w.pass(time.Second)
	w.guard, w.view, w.here = standby, standby.View, false
	require.True(t, w.evict("b").Allowed)

	w.leads = true // and has not looked at every node yet
	require.True(t, w.evict("b").Allowed)
	w.train("c")
	require.False(t, w.evict("c").Allowed)
	w.train("service", func(p *corev1.Pod) { p.Labels = nil })
	require.True(t, w.evict("service").Allowed)
	w.unlabel()
	require.Contains(t, w.evict("c").Result.Message, "has not examined every node yet")
	require.True(t, w.evict("service").Allowed, "it does not train, wherever it is")
}

func (w *world) unlabel() {
	node := w.node()
	node.Labels = nil
	_, err := w.client.CoreV1().Nodes().Update(w.Context(), node, metav1.UpdateOptions{})
	require.NoError(w, err)
	w.seen(func() bool { known, _ := w.view.NodeNamed("t4-a"); return known.Labels[groupLabel] == "" })
}

// TestNodeIsLabelled: other replicas and people find a group's Nodes by it, also
// where the kubelet does not set it.
func TestNodeIsLabelled(t *testing.T) {
	w := newWorld(t)
	w.unlabel()
	w.pass(time.Second)
	require.Equal(t, "t4", w.node().Labels[groupLabel])
}
