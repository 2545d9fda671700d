package cluster

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
)

func nodeIndexers() cache.Indexers {
	return cache.Indexers{byMachine: machine}
}

func podIndexers() cache.Indexers {
	return cache.Indexers{byNode: nodeOf, byController: controllerOf}
}

// Memory is what a View knows, filled by hand and not by informers: for whoever
// plays many thousand short lives of a cluster, and decides when news arrives.
type Memory struct{ nodes, pods cache.Indexer }

// NewMemory makes a View that knows what its Memory is told. There is nothing to
// Run, and its Changes are nobody's to follow.
func NewMemory(client kubernetes.Interface, events record.EventRecorder) (*View, Memory) {
	m := Memory{
		nodes: cache.NewIndexer(cache.MetaNamespaceKeyFunc, nodeIndexers()),
		pods:  cache.NewIndexer(cache.MetaNamespaceKeyFunc, podIndexers()),
	}
	return &View{client: client, nodeByID: m.nodes, pods: m.pods, recorder: events}, m
}

// Put takes a copy of a Node or Pod, less what informers drop of it.
func (m Memory) Put(obj runtime.Object) error {
	slimmed, err := slim(obj.DeepCopyObject())
	if err != nil {
		return err
	}
	all, err := m.of(obj)
	if err != nil {
		return err
	}
	return all.Update(slimmed)
}

// Delete forgets a Node or Pod.
func (m Memory) Delete(obj runtime.Object) error {
	all, err := m.of(obj)
	if err != nil {
		return err
	}
	return all.Delete(obj)
}

func (m Memory) of(obj runtime.Object) (cache.Indexer, error) {
	switch obj.(type) {
	case *corev1.Node:
		return m.nodes, nil
	case *corev1.Pod:
		return m.pods, nil
	default:
		return nil, fmt.Errorf("type %T is not supported: a View reads Nodes and Pods", obj)
	}
}
