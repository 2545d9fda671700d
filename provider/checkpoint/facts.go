package checkpoint

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"gpu-node-provider/provider/cluster"
)

// Trains says whether a Pod is a training pod: it matches the selector, is bound
// to a node, and is neither a DaemonSet's nor a mirror of a static one, which go
// with their node and have no one to resume them.
func Trains(pod *corev1.Pod, selector labels.Selector) bool {
	if pod.Spec.NodeName == "" || !selector.Matches(labels.Set(pod.Labels)) {
		return false
	}
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return false
	}
	owner := metav1.GetControllerOf(pod)
	return owner == nil || owner.Kind != "DaemonSet"
}

// IDOf is a Pod's identity.
func IDOf(pod *corev1.Pod) PodID {
	return PodID{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
}

// FactsOf reads a Pod that is there. node may be nil, when there is no Node.
func FactsOf(pod *corev1.Pod, node *corev1.Node) Facts {
	f := Facts{Stage: stageOf(pod)}
	if pod.Status.StartTime != nil && f.Stage != Waiting {
		f.Started = pod.Status.StartTime.Time
	}
	if pod.DeletionTimestamp != nil {
		f.Grace, f.TerminatingSince = graceOf(pod), terminatingSince(pod)
	}
	switch f.Stage {
	case Running:
		f.UpSince = upSince(pod)
	case Failed:
		f.Ended = finished(pod)
	case Gone:
		if f.Ended = finished(pod); !f.Ended.IsZero() && f.Ended.Before(f.TerminatingSince) { // the node's clock is behind
			f.Ended = f.TerminatingSince
		}
	}
	if node != nil {
		f.NodeNotReadySince = notReadySince(node)
	}
	return f
}

func stageOf(pod *corev1.Pod) Stage {
	succeeded, failed := pod.Status.Phase == corev1.PodSucceeded, pod.Status.Phase == corev1.PodFailed
	switch {
	case succeeded && !deleted(pod) && completed(pod):
		return Succeeded
	case !succeeded && !everStarted(pod):
		return Waiting
	case (succeeded || failed) && deleted(pod):
		return Gone
	case succeeded, failed:
		return Failed
	case pod.DeletionTimestamp != nil:
		return Terminating
	default:
		return Running
	}
}

// deleted says whether the processes of a Pod that is over ended because its
// deletion had been asked for. A trainer that ends with code 0 when it gets SIGTERM
// has not succeeded, and may have saved nothing; since 1.27 a kubelet calls it
// Succeeded all the same, before the object goes (KEP-3329).
func deleted(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp == nil {
		return false
	}
	if graceOf(pod) > 0 {
		return true // one that is over when it is deleted gets no grace (registry/core/pod/strategy.go, CheckGracefulDelete)
	}
	// Who still holds the object, a finalizer, tells nothing. The times are those of a
	// kubelet and of the API server.
	end := finished(pod)
	if end.IsZero() { // of a failed one, when it is first seen to be is known
		return pod.Status.Phase == corev1.PodSucceeded
	}
	return !end.Before(terminatingSince(pod).Add(-skew))
}

// completed says whether a Pod that is called Succeeded has ended by itself. A
// kubelet that evicts a Pod, or shuts its node down, deletes nothing, and goes by the
// exit codes too (kubernetes issues 118310, 120182).
func completed(pod *corev1.Pod) bool {
	if pod.Spec.RestartPolicy == corev1.RestartPolicyAlways { // such a Pod has no end of its own
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return false
		}
	}
	for _, s := range pod.Status.ContainerStatuses {
		if t := s.State.Terminated; t != nil && t.Reason != "" && t.Reason != "Completed" {
			return false
		}
	}
	return true
}

// upSince is since when a container of a Pod has been running; zero when none does.
func upSince(pod *corev1.Pod) time.Time {
	running := cluster.Running(pod)
	switch {
	case running == nil:
		return time.Time{}
	case running.StartedAt.IsZero(): // who does not say since when has long been running
		return time.Unix(0, 0)
	default:
		return running.StartedAt.Time
	}
}

// terminatingSince is when a Pod's deletion was asked for, of one for which it was.
func terminatingSince(pod *corev1.Pod) time.Time { return pod.DeletionTimestamp.Add(-graceOf(pod)) }

func graceOf(pod *corev1.Pod) time.Duration {
	if pod.DeletionGracePeriodSeconds == nil {
		return 0
	}
	return time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second
}

// everStarted says whether a container of the Pod has ever run. Init containers
// count: a trainer may load its weights there and save them again.
func everStarted(pod *corev1.Pod) bool {
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, s := range statuses {
			if s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil || s.RestartCount > 0 {
				return true
			}
		}
	}
	return false
}

// finished is when the last container ended; zero when nobody says. A Pod whose
// Node is gone is marked Failed by the Pod garbage collector while its containers
// are still said to run.
func finished(pod *corev1.Pod) time.Time {
	var last time.Time
	for _, s := range pod.Status.ContainerStatuses {
		switch t := s.State.Terminated; {
		case t == nil:
			return time.Time{}
		case t.FinishedAt.After(last):
			last = t.FinishedAt.Time
		}
	}
	return last
}

func notReadySince(node *corev1.Node) time.Time {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// SlotOf names the place that a Pod has with its controller, where it has one: a
// later Pod in the same place goes on with the same work. Empty without.
func SlotOf(pod *corev1.Pod) string {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return ""
	}
	for _, label := range []string{"apps.kubernetes.io/pod-index", "batch.kubernetes.io/job-completion-index"} {
		if index, ok := pod.Labels[label]; ok {
			return string(owner.UID) + "/" + index
		}
	}
	if owner.Kind == "StatefulSet" { // before 1.28 the name alone carries the index
		return string(owner.UID) + "/" + pod.Name
	}
	return ""
}

// cutSlot takes a slot apart.
func cutSlot(slot string) (controller, index string, ok bool) { return strings.Cut(slot, "/") }
