// Package cluster is the read model of the Kubernetes cluster: which Node
// stands for an instance and whether it is usable, which Pods are on it, and
// which wait for a node. It also carries what the provider says back: Events,
// cordons, and patches of its own marks on Nodes.
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
)

// component is the source that Events name.
const component = "gpu-node-provider"

// byMachine indexes Nodes by what is left of spec.providerID when zone, slashes and
// case are put aside. One index finds the right spelling as well as others.
const byMachine = "machine"

// Pods are indexed by the Node they are bound to, and by their controller.
const (
	byNode       = "node"
	byController = "controller"
)

// View follows the cluster through informers. Its reads are answered from
// memory and never fail.
type View struct {
	client   kubernetes.Interface
	self     *corev1.ObjectReference
	all      informers.SharedInformerFactory
	nodeInf  cache.SharedIndexInformer
	podInf   cache.SharedIndexInformer
	nodeByID cache.Indexer
	pods     cache.Indexer
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
		all:    informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(slim)),

		broadcaster: record.NewBroadcaster(),
	}
	v.nodeInf, v.podInf = nodeInformer(v.all), podInformer(v.all)
	if err := v.nodeInf.AddIndexers(nodeIndexers()); err != nil {
		return nil, fmt.Errorf("indexing Nodes by provider id: %w", err)
	}
	if err := v.podInf.AddIndexers(podIndexers()); err != nil {
		return nil, fmt.Errorf("indexing Pods by node: %w", err)
	}
	v.nodeByID, v.pods = v.nodeInf.GetIndexer(), v.podInf.GetIndexer()
	v.synced = []cache.InformerSynced{v.nodeInf.HasSynced, v.podInf.HasSynced}
	v.recorder = v.broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component})
	return v, nil
}

func nodeOf(obj any) ([]string, error) {
	pod, ok := obj.(*bound)
	if !ok {
		return nil, nil
	}
	return []string{pod.node}, nil
}

// controllerOf is of bound Pods only: no other has taken anybody's place.
func controllerOf(obj any) ([]string, error) {
	pod, ok := obj.(*bound)
	if !ok || pod.owner.Value() == (owner{}) {
		return nil, nil
	}
	return []string{string(pod.owner.Value().uid)}, nil
}

func machine(obj any) ([]string, error) {
	node, ok := obj.(*corev1.Node)
	if !ok || node.Spec.ProviderID == "" {
		return nil, nil
	}
	return []string{machineOf(node.Spec.ProviderID)}, nil
}

func machineOf(id string) string {
	return strings.ToLower(path.Base(strings.TrimRight(id, "/")))
}

// Run follows the cluster and sends Events until ctx is done.
func (v *View) Run(ctx context.Context) error {
	v.broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: v.client.CoreV1().Events("")})
	v.all.Start(ctx.Done())
	<-ctx.Done()
	v.all.Shutdown()
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
	for _, node := range v.spelled(id) {
		if node.Spec.ProviderID == id {
			return node, true
		}
	}
	return nil, false
}

// OtherSpelling finds a Node that seems to stand for an instance although its
// provider id is written differently. The result must not be changed.
func (v *View) OtherSpelling(id string) (*corev1.Node, bool) {
	all := v.spelled(id)
	if _, exact := v.Node(id); exact || len(all) == 0 {
		return nil, false
	}
	return all[0], true
}

// spelled are the Nodes whose provider id means the instance, however it is written.
func (v *View) spelled(id string) []*corev1.Node {
	found, err := v.nodeByID.ByIndex(byMachine, machineOf(id))
	if err != nil { // there is such an index
		return nil
	}
	return typed[*corev1.Node](found)
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
	var waiting []*corev1.Pod
	for _, obj := range v.pods.List() {
		if pod, ok := obj.(*corev1.Pod); ok && pod.Spec.NodeName == "" && pod.Status.Phase == corev1.PodPending && unschedulable(pod) {
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
	ctx, cancel := context.WithTimeoutCause(ctx, cordonTimeout, errors.New("the API server did not answer in time"))
	defer cancel()
	_, err = v.client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("cordoning node %s: %w", node.Name, err)
	}
	return nil
}
