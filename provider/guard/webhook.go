package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"go.uber.org/zap"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-node-provider/cloud/logkey"
	"gpu-node-provider/provider/checkpoint"
	"gpu-node-provider/provider/cluster"
)

// EvictionPath is where the API server sends evictions.
const EvictionPath = "/evictions"

// maxReview bounds a request: an Eviction is a few hundred bytes.
const maxReview = 1 << 20

// evictionTimeout is below the five seconds that the API server waits.
const evictionTimeout = 4 * time.Second

// Webhook denies the eviction of training pods that are not clear, by whomever:
// Cluster Autoscaler, which does not look at its annotation again once it has
// tainted a node, and kubectl drain. Both repeat a denied eviction, so a trainer that
// is asked at the first denial has the time to save.
//
// It stops no direct deletion, no preemption and no eviction by the kubelet or
// for a NoExecute taint: the record catches those.
type Webhook struct {
	*Guard
	// Leads is false on a replica that stands by. Its guard does not run, so it
	// knows a managed node by the label that the leader's guard has put on it, and reads the
	// record when it needs it. So does a leader that has not looked at every node yet.
	Leads func() bool
}

// ServeHTTP answers an AdmissionReview.
func (h Webhook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxReview))
	if err == nil {
		err = json.Unmarshal(body, &review)
	}
	if err != nil || review.Request == nil {
		http.Error(w, "the body is not an AdmissionReview with a request", http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), evictionTimeout)
	defer cancel()
	review.Response = h.answer(ctx, review.Request)
	review.Response.UID = review.Request.UID
	review.Request = nil
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(review); err != nil {
		h.Log.Warn("failed to write the answer to an eviction", zap.Error(err))
	}
}

func (h Webhook) answer(ctx context.Context, r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	if r.Resource.Resource != "pods" || r.SubResource != "eviction" {
		return allowed()
	}
	blocking, err := h.judge(ctx, r.Namespace, r.Name, r.DryRun != nil && *r.DryRun)
	switch {
	case err != nil:
		h.Log.Warn("eviction denied, acknowledgements unknown", zap.String(logkey.Pod, r.Namespace+"/"+r.Name), zap.Error(err))
		return denied(http.StatusTooManyRequests, "cannot tell whether the training pod has saved its work: "+err.Error())
	case blocking != "":
		h.Log.Info("eviction denied", zap.String(logkey.Pod, r.Namespace+"/"+r.Name), zap.String(logkey.Reason, blocking))
		return denied(http.StatusTooManyRequests, blocking+"; a checkpoint has been requested, try again later")
	default:
		return allowed()
	}
}

func allowed() *admissionv1.AdmissionResponse { return &admissionv1.AdmissionResponse{Allowed: true} }

// denied has no Retry-After: with one, client-go repeats the call by itself, up to
// ten times, past its caller's own limit (client-go rest/with_retry.go).
func denied(code int32, message string) *admissionv1.AdmissionResponse {
	return &admissionv1.AdmissionResponse{Result: &metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: metav1.StatusReasonTooManyRequests, Message: message,
	}}
}

// judge says what keeps a pod from being evicted; nothing when it may go.
func (h Webhook) judge(ctx context.Context, namespace, name string, dryRun bool) (string, error) {
	pod, err := h.View.LivePod(ctx, namespace, name)
	if apierrors.IsNotFound(err) {
		return "", nil // the API server will say so
	}
	if err != nil {
		return "", err
	}
	if h.Policy().Observe || !checkpoint.Trains(pod, h.Assessor.Selector) {
		return "", nil
	}
	node, ok := h.View.NodeNamed(pod.Spec.NodeName)
	if !ok {
		return "", fmt.Errorf("node %s is not in the cache yet", pod.Spec.NodeName)
	}
	leads := h.Leads()
	switch {
	case h.manages(node):
		return h.judgeOn(ctx, pod, node, leads && h.passed.Load(), dryRun)
	case leads && !h.passed.Load():
		return "", errors.New("the provider has not examined every node yet")
	default:
		return "", nil
	}
}

// judgeOn judges a training pod on a node of ours, by the record in memory or in the API.
func (h Webhook) judgeOn(ctx context.Context, pod *corev1.Pod, node *corev1.Node, inMemory, dryRun bool) (string, error) {
	evicted, err := h.together(ctx, pod, node)
	if err != nil {
		return "", err
	}
	recorded, err := h.recorded(ctx, node, inMemory)
	if err != nil {
		return "", err
	}
	judged, err := h.Assessor.Judge(ctx, h.Assessor.Merge(releasedOf(recorded.Pods, evicted), evicted, node))
	if err != nil {
		return "", err
	}
	// The first to be evicted must not keep those that are evicted with it.
	judged = slices.DeleteFunc(judged, func(p checkpoint.Judged) bool {
		return p.UID != string(pod.UID) && p.HadSaved(h.Assessor.Policy())
	})
	blocking := checkpoint.Blocking(judged)
	if blocking != "" && !dryRun {
		h.askAll(ctx, judged)
	}
	return blocking, nil
}

// manages says whether a node is of one of our groups. The label counts too: a
// snapshot may be too old to have its instance.
func (h Webhook) manages(node *corev1.Node) bool {
	_, ours := h.Place(node.Spec.ProviderID)
	return ours || node.Labels[h.GroupLabel] != ""
}

func (h Webhook) recorded(ctx context.Context, node *corev1.Node, inMemory bool) (checkpoint.Machine, error) {
	if inMemory {
		return h.Record.Of(node.Spec.ProviderID), nil
	}
	return h.Record.Read(ctx, node.Labels[h.GroupLabel], node.Spec.ProviderID)
}

// together are the pods that have to be clear before this one may be evicted.
// Cluster Autoscaler evicts all pods of a node in parallel, so the first to pass
// would lose its node for nothing while another still trains.
func (h Webhook) together(ctx context.Context, pod *corev1.Pod, node *corev1.Node) ([]*corev1.Pod, error) {
	if !leaving(node) {
		return []*corev1.Pod{pod}, nil
	}
	live, err := h.View.LivePodsOn(ctx, node.Name)
	if err != nil {
		return nil, err
	}
	all := make([]*corev1.Pod, 0, len(live))
	for n := range live {
		all = append(all, &live[n])
	}
	return all, nil
}

// releasedOf are the recorded entries of pods that are there: they carry a
// person's release. Those that are gone do not keep others from being evicted.
func releasedOf(recorded []checkpoint.Pod, there []*corev1.Pod) []checkpoint.Pod {
	var found []checkpoint.Pod
	for _, r := range recorded {
		for _, pod := range there {
			if string(pod.UID) == r.UID {
				found = append(found, r)
			}
		}
	}
	return found
}

// leaving says whether somebody wants the node to be empty.
func leaving(node *corev1.Node) bool {
	for _, taint := range node.Spec.Taints {
		if taint.Key == cluster.ToBeDeleted {
			return true
		}
	}
	return node.Spec.Unschedulable
}

// askAll asks every pod that is not clear and can still save.
func (h Webhook) askAll(ctx context.Context, judged []checkpoint.Judged) {
	for _, p := range judged {
		if !p.Clear && p.Signals.Request == nil && (p.Stage == checkpoint.Running || p.Stage == checkpoint.Terminating) {
			h.Request(ctx, p.Pod, "its eviction was requested")
		}
	}
}
