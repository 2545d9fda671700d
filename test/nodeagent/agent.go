// Package nodeagent runs the Pods of simulated Nodes as real processes of this
// machine, as a kubelet would run their containers: it starts the command when
// a Pod is bound, reports Running, Succeeded and Failed, restarts by the Pod's
// restart policy, sends SIGTERM on deletion, waits for the grace period, then
// sends SIGKILL. When a Node is gone its machine is, and so are its processes,
// without a warning.
//
// It leaves out images, volumes, probes, init containers, hooks, and all
// containers but the first; the command must be written in the Pod.
package nodeagent

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Agent is the kubelet of every Node that Skip does not name.
type Agent struct {
	// Client of the cluster.
	Client kubernetes.Interface
	// Logs is the folder that takes a log for each Pod.
	Logs string
	// Skip says which Nodes are somebody else's, kwok's for instance. Nil: none.
	Skip func(*corev1.Node) bool

	mu    sync.Mutex
	nodes map[string]bool // ours
	pods  map[types.UID]*container
	wait  sync.WaitGroup
}

// Run runs until ctx is done; then every process is killed.
func (a *Agent) Run(ctx context.Context) error {
	a.nodes, a.pods = map[string]bool{}, map[types.UID]*container{}
	factory := informers.NewSharedInformerFactory(a.Client, 0)
	nodes, pods := factory.Core().V1().Nodes().Informer(), factory.Core().V1().Pods().Informer()
	if _, err := nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { a.nodeSeen(ctx, o, pods.GetStore()) },
		DeleteFunc: a.nodeGone,
	}); err != nil {
		return fmt.Errorf("watching Nodes: %w", err)
	}
	if _, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { a.podSeen(ctx, o) },
		UpdateFunc: func(_, o any) { a.podSeen(ctx, o) },
		DeleteFunc: a.podGone,
	}); err != nil {
		return fmt.Errorf("watching Pods: %w", err)
	}
	factory.Start(ctx.Done())
	<-ctx.Done()
	factory.Shutdown()
	a.wait.Wait()
	return nil
}

// nodeSeen takes a Node over, with the Pods that were bound to it before it was seen.
func (a *Agent) nodeSeen(ctx context.Context, o any, pods cache.Store) {
	node, ok := o.(*corev1.Node)
	if !ok || a.Skip != nil && a.Skip(node) {
		return
	}
	a.mu.Lock()
	a.nodes[node.Name] = true
	a.mu.Unlock()
	for _, o := range pods.List() {
		if pod, ok := o.(*corev1.Pod); ok && pod.Spec.NodeName == node.Name {
			a.podSeen(ctx, pod)
		}
	}
}

func (a *Agent) nodeGone(o any) {
	node, ok := final(o).(*corev1.Node)
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.nodes, node.Name)
	for _, c := range a.pods {
		if c.node == node.Name {
			c.lost()
		}
	}
}

func (a *Agent) podSeen(ctx context.Context, o any) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.pods[pod.UID]
	if c == nil {
		over := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		if !a.nodes[pod.Spec.NodeName] || over && pod.DeletionTimestamp == nil {
			return
		}
		c = newContainer(a.Client, pod, a.Logs)
		a.pods[pod.UID] = c
		a.wait.Go(func() {
			c.run(ctx)
			a.mu.Lock()
			defer a.mu.Unlock()
			if c.deleted {
				delete(a.pods, pod.UID)
			}
		})
	}
	if pod.DeletionTimestamp != nil {
		c.terminate(pod.DeletionTimestamp.Time)
	}
}

// Kill sends SIGKILL to a Pod's process, as the kernel does to one that takes
// too much memory. It says whether there was one.
func (a *Agent) Kill(uid types.UID) bool {
	a.mu.Lock()
	c := a.pods[uid]
	a.mu.Unlock()
	return c != nil && c.kill()
}

// Freeze stops a Pod's process as a device that does not answer does: it lives,
// and no handler of its runs. It says whether there was one.
func (a *Agent) Freeze(uid types.UID) bool {
	a.mu.Lock()
	c := a.pods[uid]
	a.mu.Unlock()
	return c != nil && c.freeze()
}

// podGone covers a Pod that was deleted by force: nobody waits for its process.
func (a *Agent) podGone(o any) {
	pod, ok := final(o).(*corev1.Pod)
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.pods[pod.UID]; c != nil {
		c.deleted = true
		c.lost()
		delete(a.pods, pod.UID)
	}
}

// final is the object itself, also when its deletion was missed.
func final(o any) any {
	if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
		return unknown.Obj
	}
	return o
}
