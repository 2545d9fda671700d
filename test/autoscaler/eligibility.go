package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	scaleDownDisabled       = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	safeToEvict             = "cluster-autoscaler.kubernetes.io/safe-to-evict"
	safeToEvictLocalVolumes = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
)

// moves are the pods that have to leave a node before it can go.
type moves struct {
	pods         []*corev1.Pod
	onCompletion []*corev1.Pod // waited for, never evicted
}

// podsToMove applies the pod rules. The first one that knows a pod decides.
func podsToMove(info *nodeInfo, skipLocalStorage bool, now time.Time) (moves, error) {
	var m moves
	for _, pod := range info.pods {
		annotation := pod.Annotations[safeToEvict]
		switch {
		case isMirror(pod), stuckTerminating(pod, now):
			continue
		case isDaemonSet(pod):
			continue // ends with its node
		case annotation == "true", terminal(pod):
		case annotation == "on-completion":
			m.onCompletion = append(m.onCompletion, pod)
			continue
		default:
			if why := blocking(pod, annotation, skipLocalStorage, now); why != "" {
				return moves{}, fmt.Errorf("pod %s/%s %s", pod.Namespace, pod.Name, why)
			}
		}
		m.pods = append(m.pods, pod)
	}
	return m, nil
}

func blocking(pod *corev1.Pod, annotation string, skipLocalStorage bool, now time.Time) string {
	if !replicated(pod) {
		return "is not replicated"
	}
	if pod.Namespace == metav1.NamespaceSystem {
		// Without a PodDisruptionBudget; once old enough it may go, whatever else it is.
		if now.After(pod.CreationTimestamp.Add(time.Hour)) && !pod.CreationTimestamp.IsZero() {
			return ""
		}
		return "is a system pod"
	}
	if annotation == "false" {
		return "is annotated as not safe to evict"
	}
	if skipLocalStorage && localStorage(pod) {
		return "has local storage"
	}
	return ""
}

func replicated(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return false
	}
	switch owner.Kind {
	case "ReplicationController", "Job", "ReplicaSet", "StatefulSet":
		return true
	}
	return false
}

func isDaemonSet(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind == "DaemonSet" || pod.Annotations["cluster-autoscaler.kubernetes.io/daemonset-pod"] == "true"
}

func isMirror(pod *corev1.Pod) bool {
	_, ok := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return ok
}

// stuckTerminating: such a pod is ignored, and its machine deleted under it.
func stuckTerminating(pod *corev1.Pod, now time.Time) bool {
	if pod.DeletionTimestamp == nil {
		return false
	}
	return pod.DeletionTimestamp.Add(specGrace(pod) + 30*time.Second).Before(now)
}

func specGrace(pod *corev1.Pod) time.Duration {
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		return time.Duration(*s) * time.Second
	}
	return corev1.DefaultTerminationGracePeriodSeconds * time.Second
}

func terminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed ||
		pod.Status.Phase == corev1.PodSucceeded && pod.Spec.RestartPolicy != corev1.RestartPolicyAlways
}

func localStorage(pod *corev1.Pod) bool {
	harmless := strings.Split(pod.Annotations[safeToEvictLocalVolumes], ",")
	for _, v := range pod.Spec.Volumes {
		local := v.HostPath != nil || v.EmptyDir != nil && v.EmptyDir.Medium != corev1.StorageMediumMemory
		for _, name := range harmless {
			local = local && name != v.Name
		}
		if local {
			return true
		}
	}
	return false
}

// ineligible is why a node is not looked at for removal; empty when it is.
func (a *autoscaler) ineligible(ctx context.Context, info *nodeInfo, now time.Time) string {
	node := info.node
	if beingDeleted(node, now) {
		return "is being deleted"
	}
	if node.Annotations[scaleDownDisabled] == "true" {
		return "is annotated scale-down-disabled"
	}
	g, err := a.cloud.groupForNode(ctx, node)
	if err != nil || g == nil {
		return "has no group"
	}
	o, err := g.options(ctx)
	if err != nil {
		return "has no options"
	}
	gpu := gpuOf(node, a.cloud.label(ctx))
	used, err := utilization(info, gpu, o.ignoreDaemonSets, now)
	if err != nil {
		return err.Error()
	}
	if o, err = g.options(ctx); err != nil {
		return "has no options"
	}
	threshold := o.utilization
	if gpu != "" {
		threshold = o.gpuUtilization
	}
	if used > threshold {
		return fmt.Sprintf("is used to %.0f %%", used*100)
	}
	return ""
}

// utilization of a node with GPUs is that of its GPUs alone, and 0 while it shows none.
func utilization(info *nodeInfo, gpu corev1.ResourceName, ignoreDaemonSets bool, now time.Time) (float64, error) {
	if gpu != "" {
		used, err := utilizationOf(info, gpu, ignoreDaemonSets, now)
		if err != nil {
			return 0, nil //nolint:nilerr // a broken GPU must not keep its node
		}
		return used, nil
	}
	cpu, err := utilizationOf(info, corev1.ResourceCPU, ignoreDaemonSets, now)
	if err != nil {
		return 0, err
	}
	memory, err := utilizationOf(info, corev1.ResourceMemory, ignoreDaemonSets, now)
	return max(cpu, memory), err
}

func utilizationOf(info *nodeInfo, name corev1.ResourceName, ignoreDaemonSets bool, now time.Time) (float64, error) {
	available := amount(info.node.Status.Allocatable[name], name)
	if available == 0 {
		return 0, fmt.Errorf("shows no %s", name)
	}
	var used int64
	for _, pod := range info.pods {
		switch wanted := requests(pod)[name]; {
		case ignoreDaemonSets && isDaemonSet(pod):
			available -= wanted
		case stuckTerminating(pod, now):
		default:
			used += wanted
		}
	}
	return float64(used) / float64(available), nil
}
