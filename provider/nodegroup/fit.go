package nodegroup

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
	corehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// Shape is all that decides whether a Pod fits an empty node of a group. The Pods of a Job
// share one, and most Jobs of a cluster share a few.
type Shape struct {
	requests    corev1.ResourceList
	tolerations []corev1.Toleration
	affinity    nodeaffinity.RequiredNodeAffinity
}

func shapeOf(pod *corev1.Pod) *Shape {
	return &Shape{
		requests:    resource.PodRequests(pod, resource.PodResourcesOptions{}),
		tolerations: pod.Spec.Tolerations,
		affinity:    nodeaffinity.GetRequiredNodeAffinity(pod),
	}
}

// Shapes holds each shape once, so that what follows from it is computed once.
type Shapes map[string]*Shape

// Of returns the shape of a Pod, the same for all Pods that have it.
func (s Shapes) Of(pod *corev1.Pod) *Shape {
	decisive := corev1.PodSpec{
		NodeSelector: pod.Spec.NodeSelector,
		Tolerations:  pod.Spec.Tolerations,
		Overhead:     resource.PodRequests(pod, resource.PodResourcesOptions{}),
	}
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		decisive.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution,
		}}
	}
	key, err := decisive.Marshal() // with the keys of maps in order
	if err != nil {                // it is a shape of its own
		return shapeOf(pod)
	}
	shape, known := s[string(key)]
	if !known {
		shape = shapeOf(pod)
		s[string(key)] = shape
	}
	return shape
}

// Fits reports whether a Pod of the shape fits an empty node of the group. It checks
// resources, taints, the node selector and required node affinity, not what depends on other
// Pods. No Pod fits a group without a template.
func (g *Group) Fits(s *Shape) bool {
	if g.templateErr != nil {
		return false
	}
	node := g.template
	for name, want := range s.requests {
		have := node.Status.Allocatable[name]
		if want.Cmp(have) > 0 {
			return false
		}
	}
	if _, untolerated := corehelpers.FindMatchingUntoleratedTaint(klog.Logger{}, node.Spec.Taints, s.tolerations, blocksScheduling, false); untolerated {
		return false
	}
	matches, err := s.affinity.Match(node)
	return err == nil && matches // the scheduler binds no Pod with an invalid affinity
}

// blocksScheduling reports whether a taint keeps Pods off a node for good. Startup and status
// taints go once a node is ready, so Cluster Autoscaler takes them off a template.
func blocksScheduling(t *corev1.Taint) bool {
	for _, prefix := range passingTaints {
		if strings.HasPrefix(t.Key, prefix) {
			return false
		}
	}
	return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
}

// passingTaints are the prefixes of keys that Cluster Autoscaler knows without
// --startup-taint and --status-taint (cluster-autoscaler/utils/taints/taints.go).
var passingTaints = []string{
	"startup-taint.cluster-autoscaler.kubernetes.io/", "ignore-taint.cluster-autoscaler.kubernetes.io/", "status-taint.cluster-autoscaler.kubernetes.io/",
}
