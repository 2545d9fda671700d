package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// Nodes are all Nodes. They must not be changed.
func (v *View) Nodes() []*corev1.Node { return typed[*corev1.Node](v.nodeByID.List()) }

// NodeNamed finds a Node by its name. It must not be changed.
func (v *View) NodeNamed(name string) (*corev1.Node, bool) {
	obj, ok, err := v.nodeByID.GetByKey(name)
	if err != nil || !ok {
		return nil, false
	}
	node, ok := obj.(*corev1.Node)
	return node, ok
}

// ToBeDeleted is the key of the taint that Cluster Autoscaler puts on a Node before it
// drains and deletes it (cluster-autoscaler/utils/taints/taints.go).
const ToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// Drained reports whether Cluster Autoscaler is deleting a Node.
func Drained(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == ToBeDeleted })
}

// PodsOn are the Pods that are bound to a Node, as far as is known in memory, or
// those of them that are wanted. Of each only what package cluster keeps is there.
func (v *View) PodsOn(node string, wanted func(uid types.UID, of labels.Labels) bool) []*corev1.Pod {
	var all []*corev1.Pod
	for _, b := range v.boundTo(node) {
		if wanted == nil || wanted(b.uid, b.labels) {
			all = append(all, b.pod())
		}
	}
	return all
}

// DevicesOn is what the Pods on a Node ask for of each device, those less that are over.
func (v *View) DevicesOn(node string) map[corev1.ResourceName]int64 {
	used := map[corev1.ResourceName]int64{}
	for _, b := range v.boundTo(node) {
		if b.phase == corev1.PodSucceeded || b.phase == corev1.PodFailed {
			continue
		}
		for _, held := range b.devices {
			for name, amount := range held {
				used[name] += amount.Value()
			}
		}
	}
	return used
}

func (v *View) boundTo(node string) []*bound {
	found, err := v.pods.ByIndex(byNode, node)
	if err != nil { // there is such an index
		return nil
	}
	return typed[*bound](found)
}

// PodsOf are the bound Pods of a controller, as PodsOn.
func (v *View) PodsOf(controller types.UID) []*corev1.Pod {
	found, err := v.pods.ByIndex(byController, string(controller))
	if err != nil {
		return nil
	}
	all := make([]*corev1.Pod, 0, len(found))
	for _, b := range typed[*bound](found) {
		all = append(all, b.pod())
	}
	return all
}

func typed[T any](objects []any) []T {
	all := make([]T, 0, len(objects))
	for _, obj := range objects {
		if t, ok := obj.(T); ok {
			all = append(all, t)
		}
	}
	return all
}

// LivePodsOn asks the API server which Pods are bound to a Node at this moment.
func (v *View) LivePodsOn(ctx context.Context, node string) ([]corev1.Pod, error) {
	list, err := v.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("listing the pods on node %s: %w", node, err)
	}
	return list.Items, nil
}

// LivePod asks the API server for a Pod.
func (v *View) LivePod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	pod, err := v.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading pod %s/%s: %w", namespace, name, err)
	}
	return pod, nil
}

// Changes calls back with the name of a Node whenever it, or a Pod on it, has changed.
func (v *View) Changes(changed func(node string)) error {
	nodeChanged := func(obj any) {
		if node, ok := final(obj).(*corev1.Node); ok {
			changed(node.Name)
		}
	}
	podChanged := func(obj any) {
		if pod, ok := final(obj).(*bound); ok {
			changed(pod.node)
		}
	}
	for informer, tell := range map[cache.SharedIndexInformer]func(any){v.nodeInf: nodeChanged, v.podInf: podChanged} {
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: tell, UpdateFunc: func(_, obj any) { tell(obj) }, DeleteFunc: tell,
		})
		if err != nil {
			return fmt.Errorf("watching nodes and pods: %w", err)
		}
	}
	return nil
}

func final(obj any) any {
	if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		return unknown.Obj
	}
	return obj
}

// Annotate sets annotations of a Node as it is known, or removes those that are
// nil. A Node that has changed since is a conflict, and nothing is written.
func (v *View) Annotate(ctx context.Context, node *corev1.Node, annotations map[string]*string) error {
	if err := v.patchMetadata(ctx, node, "annotations", annotations); err != nil {
		return fmt.Errorf("annotating node %s: %w", node.Name, err)
	}
	return nil
}

// Label sets one label of a Node, as Annotate.
func (v *View) Label(ctx context.Context, node *corev1.Node, key, value string) error {
	if err := v.patchMetadata(ctx, node, "labels", map[string]*string{key: &value}); err != nil {
		return fmt.Errorf("labelling node %s: %w", node.Name, err)
	}
	return nil
}

func (v *View) patchMetadata(ctx context.Context, node *corev1.Node, field string, values map[string]*string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": node.ResourceVersion, "uid": node.UID, field: values}})
	if err != nil {
		return err
	}
	_, err = v.client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// Tell writes a normal Event on a Node or Pod.
func (v *View) Tell(on corev1.ObjectReference, reason, message string) {
	v.recorder.Event(&on, corev1.EventTypeNormal, reason, message)
}

// WarnOf writes a warning Event on a Node or Pod that need not be there any more.
func (v *View) WarnOf(on corev1.ObjectReference, reason, message string) {
	v.recorder.Event(&on, corev1.EventTypeWarning, reason, message)
}
