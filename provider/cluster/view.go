// Package cluster is the read model of the Kubernetes cluster: which Node
// stands for an instance and whether it is usable, and which Pods wait for a
// node. It also carries the two things the provider says back: Events and
// cordons.
//
// It does not know node groups, clouds, quotas or gRPC.
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
)

// component is the source that Events name.
const component = "gpu-node-provider"

// Nodes are indexed by spec.providerID, and by what is left of it when zone,
// slashes and case are put aside.
const (
	byProviderID = "providerID"
	byMachine    = "machine"
)

// View follows the cluster through informers. Its reads are answered from
// memory and never fail.
type View struct {
	client   kubernetes.Interface
	self     *corev1.ObjectReference
	nodes    informers.SharedInformerFactory
	pods     informers.SharedInformerFactory
	nodeByID cache.Indexer
	waiting  listers.PodLister
	synced   []cache.InformerSynced

	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
}

// New makes a View; Run fills it. Events that concern the provider as a whole
// are about self.
func New(client kubernetes.Interface, self *corev1.ObjectReference) (*View, error) {
	v := &View{
		client: client,
		self:   self,
		nodes:  informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(slim)),
		// A Pod that is bound may still be Pending, while its image is pulled;
		// one that waits for a node always is.
		pods: informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(slim),
			informers.WithTweakListOptions(func(o *metav1.ListOptions) {
				o.FieldSelector = fields.OneTermEqualSelector("status.phase", string(corev1.PodPending)).String()
			})),
		broadcaster: record.NewBroadcaster(),
	}
	nodes := v.nodes.Core().V1().Nodes().Informer()
	if err := nodes.AddIndexers(cache.Indexers{byProviderID: providerID, byMachine: machine}); err != nil {
		return nil, fmt.Errorf("indexing Nodes by provider id: %w", err)
	}
	v.nodeByID = nodes.GetIndexer()
	pods := v.pods.Core().V1().Pods()
	v.waiting = pods.Lister()
	v.synced = []cache.InformerSynced{nodes.HasSynced, pods.Informer().HasSynced}
	v.recorder = v.broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component})
	return v, nil
}

// slim drops what nobody reads, most of an object's size.
func slim(obj any) (any, error) {
	if accessor, err := meta.Accessor(obj); err == nil {
		accessor.SetManagedFields(nil)
	}
	if node, ok := obj.(*corev1.Node); ok {
		node.Status.Images = nil
	}
	return obj, nil
}

func providerID(obj any) ([]string, error) {
	node, ok := obj.(*corev1.Node)
	if !ok || node.Spec.ProviderID == "" {
		return nil, nil
	}
	return []string{node.Spec.ProviderID}, nil
}

func machine(obj any) ([]string, error) {
	ids, err := providerID(obj)
	for n, id := range ids {
		ids[n] = machineOf(id)
	}
	return ids, err
}

func machineOf(id string) string {
	return strings.ToLower(path.Base(strings.TrimRight(id, "/")))
}

// Run follows the cluster and sends Events until ctx is done.
func (v *View) Run(ctx context.Context) error {
	v.broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: v.client.CoreV1().Events("")})
	v.nodes.Start(ctx.Done())
	v.pods.Start(ctx.Done())
	<-ctx.Done()
	v.nodes.Shutdown()
	v.pods.Shutdown()
	v.broadcaster.Shutdown()
	return nil
}

// WaitForSync returns once everything there was at the start has been read.
// It needs Run.
func (v *View) WaitForSync(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), v.synced...) {
		return fmt.Errorf("reading Nodes and Pods from the API server: %w", context.Cause(ctx))
	}
	return nil
}

// Node finds the Node that stands for an instance. The result must not be changed.
func (v *View) Node(id string) (*corev1.Node, bool) {
	found, err := v.nodeByID.ByIndex(byProviderID, id)
	if err != nil || len(found) == 0 {
		return nil, false
	}
	node, ok := found[0].(*corev1.Node)
	return node, ok
}

// OtherSpelling finds a Node that seems to stand for an instance although its
// provider id is written differently. The result must not be changed.
func (v *View) OtherSpelling(id string) (*corev1.Node, bool) {
	if _, exact := v.Node(id); exact {
		return nil, false
	}
	found, err := v.nodeByID.ByIndex(byMachine, machineOf(id))
	if err != nil || len(found) == 0 {
		return nil, false
	}
	node, ok := found[0].(*corev1.Node)
	return node, ok
}

// Usable says whether an instance's Node takes Pods: it is registered, Ready,
// and its device plugin has brought the extended resource, if one is named.
func (v *View) Usable(id string, device corev1.ResourceName) bool {
	node, ok := v.Node(id)
	if !ok {
		return false
	}
	if device != "" {
		amount := node.Status.Allocatable[device]
		if amount.IsZero() {
			return false
		}
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// WaitingPods are those that the scheduler has found no node for.
func (v *View) WaitingPods() []*corev1.Pod {
	pods, err := v.waiting.List(labels.Everything())
	if err != nil { // a lister over memory has no way to fail
		return nil
	}
	waiting := pods[:0]
	for _, pod := range pods {
		if pod.Spec.NodeName == "" && unschedulable(pod) {
			waiting = append(waiting, pod)
		}
	}
	return waiting
}

func unschedulable(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
		}
	}
	return false
}

// Warn writes a warning Event on a Pod.
func (v *View) Warn(pod *corev1.Pod, reason, message string) {
	v.recorder.Event(pod, corev1.EventTypeWarning, reason, message)
}

// WarnSelf writes a warning Event about the provider itself.
func (v *View) WarnSelf(reason, message string) {
	v.recorder.Event(v.self, corev1.EventTypeWarning, reason, message)
}

// cordonTimeout bounds a cordon, which nobody waits for.
const cordonTimeout = 5 * time.Second

// Cordon makes the Node of an instance unschedulable, if there is one and it is not yet.
func (v *View) Cordon(ctx context.Context, id string) error {
	node, ok := v.Node(id)
	if !ok || node.Spec.Unschedulable {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": node.ResourceVersion},
		"spec":     map[string]any{"unschedulable": true},
	})
	if err != nil {
		return fmt.Errorf("cordoning node %s: %w", node.Name, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, cordonTimeout, errors.New("the API server took too long"))
	defer cancel()
	_, err = v.client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("cordoning node %s: %w", node.Name, err)
	}
	return nil
}
