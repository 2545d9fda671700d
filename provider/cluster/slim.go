package cluster

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"unique"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// slim drops what nobody reads, most of an object. It is also given what
// it has made: client-go transforms the objects of the first reading twice.
func slim(obj any) (any, error) {
	switch o := obj.(type) {
	case *bystander, *bound:
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
		return boundOf(o), nil
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
			Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion,
			CreationTimestamp: node.CreationTimestamp, DeletionTimestamp: node.DeletionTimestamp,
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

// bound is a Pod that has its node: whose it is, how far it has come, and which
// devices it holds. A corev1.Pod of the same would be ten times as large, most of
// it room for what nobody reads.
type bound struct {
	metav1.Object

	namespace, name, version string
	uid                      types.UID
	node                     string
	labels                   pairs
	mirror                   bool // of a static Pod
	always                   bool // restarted
	disrupted                bool // it was decided that it has to go
	owner                    unique.Handle[owner]
	devices                  []corev1.ResourceList // of each container that holds some
	phase                    corev1.PodPhase
	started                  metav1.Time // zero when it has not
	deletion                 *deletion
	runs                     *corev1.ContainerStateRunning // of the container that has been running the longest
	init, containers         []corev1.ContainerStatus
	sidecars                 []corev1.Container // native ones
}

// owner is a Pod's controller; all zero without one.
type owner struct {
	apiVersion, kind, name string
	uid                    types.UID
}

// deletion is of a Pod whose deletion has been asked for.
type deletion struct {
	timestamp   metav1.Time
	gracePeriod *int64
}

func (b *bound) GetNamespace() string       { return b.namespace }
func (b *bound) GetName() string            { return b.name }
func (b *bound) GetResourceVersion() string { return b.version }

func boundOf(pod *corev1.Pod) *bound {
	b := &bound{
		Object: nothing, namespace: one(pod.Namespace), name: pod.Name, version: pod.ResourceVersion, uid: pod.UID,
		node: one(pod.Spec.NodeName), labels: pairsOf(pod.Labels), devices: holders(pod), phase: one(pod.Status.Phase),
	}
	_, b.mirror = pod.Annotations[corev1.MirrorPodAnnotationKey]
	var o owner
	if controller := metav1.GetControllerOfNoCopy(pod); controller != nil {
		o = owner{apiVersion: controller.APIVersion, kind: controller.Kind, name: controller.Name, uid: controller.UID}
	}
	b.owner = unique.Make(o)
	if pod.Status.StartTime != nil {
		b.started = *pod.Status.StartTime
	}
	if pod.DeletionTimestamp != nil {
		b.deletion = &deletion{timestamp: *pod.DeletionTimestamp, gracePeriod: pod.DeletionGracePeriodSeconds}
	}
	b.always = pod.Spec.RestartPolicy == corev1.RestartPolicyAlways
	for _, c := range pod.Status.Conditions {
		b.disrupted = b.disrupted || c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue
	}
	if b.runs = Running(pod); b.runs == nil {
		b.init, b.containers = slimStatuses(pod.Status.InitContainerStatuses), slimStatuses(pod.Status.ContainerStatuses)
		b.sidecars = sidecars(pod)
	}
	return b
}

// pod is the Pod again, less what was dropped. Its statuses and amounts are shared.
func (b *bound) pod() *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: b.name, Namespace: b.namespace, UID: b.uid, ResourceVersion: b.version, Labels: b.labels.asMap()},
		Spec:       corev1.PodSpec{NodeName: b.node, InitContainers: b.sidecars},
		Status:     corev1.PodStatus{Phase: b.phase, InitContainerStatuses: b.init, ContainerStatuses: b.containers},
	}
	if b.mirror {
		pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: ""}
	}
	if b.always {
		pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	}
	if b.disrupted {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}
	}
	if b.runs != nil { // it has started, and has no end: what is said of others does not matter
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: b.runs}}}
	}
	if o := b.owner.Value(); o != (owner{}) {
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: o.apiVersion, Kind: o.kind, Name: o.name, UID: o.uid, Controller: &yes}}
	}
	for _, held := range b.devices {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Resources: corev1.ResourceRequirements{Limits: held, Requests: held}})
	}
	if !b.started.IsZero() {
		pod.Status.StartTime = b.started.DeepCopy()
	}
	if b.deletion != nil {
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = b.deletion.timestamp.DeepCopy(), b.deletion.gracePeriod
	}
	return pod
}

// pairs are labels: a key, its value, the next key. A map would be three times as large.
type pairs []string

func pairsOf(all map[string]string) pairs {
	if len(all) == 0 {
		return nil
	}
	list := make(pairs, 0, 2*len(all))
	for _, key := range slices.Sorted(maps.Keys(all)) {
		list = append(list, one(key), one(all[key]))
	}
	return list
}

func (p pairs) asMap() map[string]string {
	if len(p) == 0 {
		return nil
	}
	all := make(map[string]string, len(p)/2)
	for pair := range slices.Chunk(p, 2) {
		all[pair[0]] = pair[1]
	}
	return all
}

// Lookup, Get and Has are what selectors ask for.
func (p pairs) Lookup(key string) (value string, exists bool) {
	for pair := range slices.Chunk(p, 2) {
		if pair[0] == key {
			return pair[1], true
		}
	}
	return "", false
}

func (p pairs) Get(key string) string {
	value, _ := p.Lookup(key)
	return value
}

func (p pairs) Has(key string) bool {
	_, exists := p.Lookup(key)
	return exists
}

var yes = true

// Running is the container of a Pod that has been running the longest; nil when none
// does. An init container counts, but a native sidecar does not: it runs on,
// whatever becomes of the others.
func Running(pod *corev1.Pod) *corev1.ContainerStateRunning {
	var first *corev1.ContainerStateRunning
	for _, s := range slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses) {
		if r := s.State.Running; r != nil && (first == nil || r.StartedAt.Before(&first.StartedAt)) && !sidecar(pod, s.Name) {
			first = r
		}
	}
	return first
}

func sidecar(pod *corev1.Pod, container string) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == container && runsOn(c) })
}

func runsOn(init corev1.Container) bool {
	return init.RestartPolicy != nil && *init.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

func sidecars(pod *corev1.Pod) (all []corev1.Container) {
	for _, c := range pod.Spec.InitContainers {
		if runsOn(c) {
			all = append(all, corev1.Container{Name: one(c.Name), RestartPolicy: c.RestartPolicy})
		}
	}
	return all
}

func slimStatuses(all []corev1.ContainerStatus) []corev1.ContainerStatus {
	var slim []corev1.ContainerStatus
	for _, s := range all {
		slim = append(slim, corev1.ContainerStatus{Name: one(s.Name), State: s.State, LastTerminationState: s.LastTerminationState, RestartCount: s.RestartCount})
	}
	return slim
}

// holders are the devices of each container that holds some. Extended resources
// are requested as they are limited.
func holders(pod *corev1.Pod) []corev1.ResourceList {
	var all []corev1.ResourceList
	for _, c := range pod.Spec.Containers {
		if held := devices(c.Resources.Limits); held != nil {
			all = append(all, held)
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
