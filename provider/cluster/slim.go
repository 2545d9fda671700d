package cluster

import (
	"strings"
	"sync"
	"unique"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// slim drops what nobody reads, most of an object. It is also given what
// it has made: client-go transforms the objects of the first reading twice.
func slim(obj any) (any, error) {
	switch o := obj.(type) {
	case *bystander:
		return o, nil
	case *corev1.Node:
		return slimNode(o), nil
	case *corev1.Pod:
		if o.Spec.NodeName == "" { // the groups that fit it are found by its whole spec
			o.ManagedFields = nil
			return o, nil
		}
		if ofItsNode(o) && len(holders(o)) == 0 {
			return bystanderOf(o), nil
		}
		return slimBound(o), nil
	}
	if accessor, err := meta.Accessor(obj); err == nil {
		accessor.SetManagedFields(nil)
	}
	return obj, nil
}

// ours and theirs are the domains of the labels and annotations that are read.
const (
	ours   = "gpu-node-provider.io/"
	theirs = "cluster-autoscaler.kubernetes.io/"
)

// slimNode leaves of a Node which machine it is, what marks it has, whether it is
// usable and what devices it has.
func slimNode(node *corev1.Node) *corev1.Node {
	slimmed := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion, DeletionTimestamp: node.DeletionTimestamp,
			Labels: within(node.Labels, ours), Annotations: within(node.Annotations, ours, theirs),
		},
		Spec: corev1.NodeSpec{ProviderID: node.Spec.ProviderID, Unschedulable: node.Spec.Unschedulable},
	}
	for _, t := range node.Spec.Taints {
		slimmed.Spec.Taints = append(slimmed.Spec.Taints, corev1.Taint{Key: one(t.Key), Value: one(t.Value), Effect: one(t.Effect)})
	}
	slimmed.Status.Allocatable = devices(node.Status.Allocatable)
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			slimmed.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: one(c.Status), LastTransitionTime: c.LastTransitionTime}}
		}
	}
	return slimmed
}

// ofItsNode says whether a Pod goes with its node and has no one to resume it, so
// that it is no training pod, whatever is selected.
func ofItsNode(pod *corev1.Pod) bool {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return true
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	return owner != nil && owner.Kind == "DaemonSet"
}

// bystander stands for a Pod that is of no use here. On a large cluster these are
// most of the Pods. client-go asks for no more of it than the three texts.
type bystander struct {
	metav1.Object

	namespace, name, version string
}

func (b *bystander) GetNamespace() string       { return b.namespace }
func (b *bystander) GetName() string            { return b.name }
func (b *bystander) GetResourceVersion() string { return b.version }

var nothing = &metav1.ObjectMeta{}

func bystanderOf(pod *corev1.Pod) *bystander {
	return &bystander{Object: nothing, namespace: one(pod.Namespace), name: pod.Name, version: pod.ResourceVersion}
}

// slimBound leaves of a Pod that has its node what says whose it is, how far it
// has come, and which devices it holds.
func slimBound(pod *corev1.Pod) *corev1.Pod {
	slimmed := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, Namespace: one(pod.Namespace), UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			DeletionTimestamp: pod.DeletionTimestamp, DeletionGracePeriodSeconds: pod.DeletionGracePeriodSeconds,
			Labels: within(pod.Labels, ""), Annotations: within(pod.Annotations, corev1.MirrorPodAnnotationKey),
		},
		Spec:   corev1.PodSpec{NodeName: one(pod.Spec.NodeName), Containers: holders(pod)},
		Status: corev1.PodStatus{Phase: one(pod.Status.Phase), StartTime: pod.Status.StartTime},
	}
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		slimmed.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: one(owner.APIVersion), Kind: one(owner.Kind), Name: one(owner.Name), UID: one(owner.UID), Controller: &yes,
		}}
	}
	if runs(pod.Status.ContainerStatuses) {
		slimmed.Status.ContainerStatuses = running
	} else {
		slimmed.Status.InitContainerStatuses, slimmed.Status.ContainerStatuses = slimStatuses(pod.Status.InitContainerStatuses), slimStatuses(pod.Status.ContainerStatuses)
	}
	return slimmed
}

var yes = true

// running are the statuses of all Pods of which a container runs: they have
// started, and have no end. That is all that is asked of them.
var running = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}

func runs(all []corev1.ContainerStatus) bool {
	for _, s := range all {
		if s.State.Running != nil {
			return true
		}
	}
	return false
}

func slimStatuses(all []corev1.ContainerStatus) []corev1.ContainerStatus {
	var slim []corev1.ContainerStatus
	for _, s := range all {
		slim = append(slim, corev1.ContainerStatus{State: s.State, LastTerminationState: s.LastTerminationState, RestartCount: s.RestartCount})
	}
	return slim
}

// holders are the containers that hold devices. Extended resources are requested
// as they are limited.
func holders(pod *corev1.Pod) []corev1.Container {
	var all []corev1.Container
	for _, c := range pod.Spec.Containers {
		if held := devices(c.Resources.Limits); held != nil {
			all = append(all, corev1.Container{Name: one(c.Name), Resources: corev1.ResourceRequirements{Limits: held, Requests: held}})
		}
	}
	return all
}

// known are the amounts of one device that there have been: about as many as there
// are kinds of machines. Whoever invents devices does not fill the memory.
var known = struct {
	sync.Mutex
	amounts map[string]corev1.ResourceList
}{amounts: map[string]corev1.ResourceList{}}

const mostKnown = 1000

// devices are the extended resources among others. Equal ones share a map.
func devices(all corev1.ResourceList) corev1.ResourceList {
	var found corev1.ResourceList
	text := ""
	for name, amount := range all {
		if strings.Contains(string(name), "/") {
			if found == nil {
				found = corev1.ResourceList{}
			}
			found[one(name)] = amount
			text = string(name) + "=" + amount.String()
		}
	}
	if len(found) != 1 {
		return found
	}
	known.Lock()
	defer known.Unlock()
	if same, ok := known.amounts[text]; ok {
		return same
	}
	if len(known.amounts) < mostKnown {
		known.amounts[text] = found
	}
	return found
}

// within are the entries whose keys begin with one of the prefixes; nil when
// there are none.
func within(all map[string]string, prefixes ...string) map[string]string {
	var found map[string]string
	for key, value := range all {
		for _, prefix := range prefixes {
			if strings.HasPrefix(key, prefix) {
				if found == nil {
					found = map[string]string{}
				}
				found[one(key)] = one(value)
			}
		}
	}
	return found
}

// one is the same text, in memory once for all who have it.
func one[T ~string](text T) T { return unique.Make(text).Value() }
