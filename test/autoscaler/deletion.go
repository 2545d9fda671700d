package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// deletions run across loops.
type deletions struct {
	mu             sync.Mutex
	empty, drained map[string]string // node → group
}

// deletionsInProgress are those at one moment.
type deletionsInProgress struct{ empty, drained map[string]string }

func (d *deletions) snapshot() deletionsInProgress {
	d.mu.Lock()
	defer d.mu.Unlock()
	return deletionsInProgress{maps.Clone(d.empty), maps.Clone(d.drained)}
}

func (d deletionsInProgress) has(node string) bool {
	_, empty := d.empty[node]
	_, drained := d.drained[node]
	return empty || drained
}

func (d deletionsInProgress) count(group string) int {
	n := 0
	for _, nodes := range []map[string]string{d.empty, d.drained} {
		for _, g := range nodes {
			if g == group {
				n++
			}
		}
	}
	return n
}

func (d *deletions) start(node, group string, drain bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if drain {
		d.drained[node] = group
	} else {
		d.empty[node] = group
	}
}

func (d *deletions) end(node string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.empty, node)
	delete(d.drained, node)
}

// batch is the nodes of one group that go at once.
type batch struct {
	group *group
	nodes []*corev1.Node
}

// startDeletion taints as many nodes as may go at once, all or none, and then
// deletes them in the background.
func (a *autoscaler) startDeletion(ctx context.Context, s *snapshot, empty, drained []*corev1.Node) (bool, error) {
	emptyGroups, drainedGroups := a.byGroup(ctx, empty), a.byGroup(ctx, drained)
	running := a.deletions.snapshot()
	budget := mostDeletions - len(running.empty) - len(running.drained)
	emptyGroups, budget = cropped(emptyGroups, budget)
	drainedGroups, _ = cropped(drainedGroups, min(budget, mostDrained-len(running.drained)))
	if len(emptyGroups) == 0 && len(drainedGroups) == 0 {
		return false, nil
	}
	if err := a.startBatches(ctx, s, emptyGroups, false); err != nil {
		return false, err
	}
	if err := a.startBatches(ctx, s, drainedGroups, true); err != nil {
		return false, err
	}
	return true, nil
}

func (a *autoscaler) byGroup(ctx context.Context, nodes []*corev1.Node) []*batch {
	var batches []*batch
	known := map[string]*batch{}
	for _, node := range nodes {
		g, err := a.cloud.groupForNode(ctx, node)
		if err != nil || g == nil {
			continue
		}
		b := known[g.id]
		if b == nil {
			b = &batch{group: g}
			known[g.id], batches = b, append(batches, b)
		}
		b.nodes = append(b.nodes, node)
	}
	var readable []*batch
	for _, b := range batches {
		if _, err := b.group.options(ctx); err == nil {
			readable = append(readable, b)
		}
	}
	return readable
}

func cropped(batches []*batch, budget int) ([]*batch, int) {
	var kept []*batch
	for _, b := range batches {
		if budget < 1 {
			break
		}
		b.nodes = b.nodes[:min(budget, len(b.nodes))]
		budget -= len(b.nodes)
		kept = append(kept, b)
	}
	return kept, budget
}

func (a *autoscaler) startBatches(ctx context.Context, s *snapshot, batches []*batch, drain bool) error {
	if len(batches) == 0 {
		return nil
	}
	if err := a.taintAll(ctx, batches); err != nil {
		return err
	}
	for _, b := range batches {
		for _, node := range b.nodes {
			_, _ = b.group.options(ctx) // for the utilization that is reported
			a.log.Info("removing node", "node", node.Name, "group", b.group.id, "pods", len(s.byName[node.Name].pods), "drain", drain)
			if drain {
				a.events.cluster(corev1.EventTypeNormal, "ScaleDown", "Scale-down: removing node %s, pods to reschedule: %s",
					node.Name, podNames(s.byName[node.Name].pods))
			} else {
				a.events.cluster(corev1.EventTypeNormal, "ScaleDownEmpty", "Scale-down: removing empty node %q", node.Name)
			}
			a.deletions.start(node.Name, b.group.id, drain)
		}
	}
	for _, b := range batches {
		a.tasks.Go(func() { a.deleteBatch(ctx, b, drain) })
	}
	return nil
}

// taintAll takes all taints back when one fails.
func (a *autoscaler) taintAll(ctx context.Context, batches []*batch) error {
	var failed []error
	var tainted []*corev1.Node
	for _, b := range batches {
		for _, node := range b.nodes {
			if err := addTaint(ctx, a.kube, node.Name, toBeDeleted, corev1.TaintEffectNoSchedule, a.cordon); err != nil {
				a.events.on(node, corev1.EventTypeWarning, "ScaleDownFailed", "failed to mark the node as toBeDeleted/unschedulable: %v", err)
				failed = append(failed, err)
				continue
			}
			a.events.on(node, corev1.EventTypeNormal, "ScaleDown", "marked the node as toBeDeleted/unschedulable")
			tainted = append(tainted, node)
		}
	}
	if len(failed) == 0 {
		return nil
	}
	for _, node := range tainted {
		failed = append(failed, removeTaint(ctx, a.kube, node.Name, toBeDeleted, a.cordon))
	}
	return fmt.Errorf("tainting: %w", errors.Join(failed...))
}

// deleteBatch looks at the pods once more after a while. The annotation that
// forbids scale-down is not looked at again.
func (a *autoscaler) deleteBatch(ctx context.Context, b *batch, drain bool) {
	if a.deleteDelayAfterTaint > 0 && !pause(ctx, a.deleteDelayAfterTaint) {
		return
	}
	pods, err := a.listPods(ctx)
	s := newSnapshot(b.nodes, pods.bound)
	var deleting sync.WaitGroup
	defer deleting.Wait()
	for _, node := range b.nodes {
		if err != nil {
			a.abort(ctx, node, drain, err)
			continue
		}
		m, err := podsToMove(s.byName[node.Name], a.skipLocalStorage, time.Now())
		switch {
		case err != nil:
		case !drain && len(m.pods) > 0:
			err = fmt.Errorf("failed to delete empty node %q, new pods scheduled", node.Name)
		case !drain && len(m.onCompletion) > 0:
			err = fmt.Errorf("failed to delete empty node %q, active on-completion pods present", node.Name)
		}
		if err != nil {
			a.abort(ctx, node, drain, err)
			continue
		}
		deleting.Go(func() { a.deleteNode(ctx, b.group, node, s.byName[node.Name].pods, drain) })
	}
}

func (a *autoscaler) deleteNode(ctx context.Context, g *group, node *corev1.Node, pods []*corev1.Pod, drain bool) {
	if _, err := g.options(ctx); err != nil {
		a.abort(ctx, node, drain, fmt.Errorf("GetOptions returned error %w", err))
		return
	}
	if err := a.empty(ctx, node, pods, drain); err != nil {
		a.abort(ctx, node, drain, err)
		return
	}
	a.waitForDelay(ctx, node)
	if ctx.Err() != nil {
		return
	}
	of, err := a.cloud.groupForNode(ctx, node)
	switch {
	case err != nil:
		err = fmt.Errorf("failed to find node group for %s: %w", node.Name, err)
	case of == nil:
		err = fmt.Errorf("picked node that doesn't belong to a node group: %s", node.Name)
	default:
		if err = of.deleteNodes(ctx, node); err != nil {
			err = fmt.Errorf("failed to delete nodes from group %s: %w", of.id, err)
		}
	}
	if err != nil {
		a.abort(ctx, node, drain, err)
		return
	}
	a.log.Info("node deleted", "node", node.Name, "group", of.id)
	a.events.on(node, corev1.EventTypeNormal, "ScaleDown", "nodes removed by cluster autoscaler")
	a.cloud.label(ctx)
	a.cloud.askGPUTypes(ctx)
	if _, err := of.template(ctx); err != nil {
		a.log.Warn("no template", "group", of.id, "error", err)
	}
	if drain {
		a.events.cluster(corev1.EventTypeNormal, "ScaleDown", "Scale-down: node %s removed with drain", node.Name)
	} else {
		a.events.cluster(corev1.EventTypeNormal, "ScaleDownEmpty", "Scale-down: empty node %s removed", node.Name)
	}
	a.deletions.end(node.Name)
}

// abort frees a node again. What was evicted stays evicted, and the soft taint stays.
func (a *autoscaler) abort(ctx context.Context, node *corev1.Node, drain bool, err error) {
	if ctx.Err() != nil {
		return // the process is gone: nobody cleans up
	}
	a.log.Warn("node not deleted", "node", node.Name, "error", err)
	what := "failed to delete empty node"
	if drain {
		what = "failed to drain and delete node"
	}
	a.events.on(node, corev1.EventTypeWarning, "ScaleDownFailed", "%s: %v", what, err)
	if err := removeTaint(ctx, a.kube, node.Name, toBeDeleted, a.cordon); err != nil {
		a.log.Warn("taint not removed", "node", node.Name, "error", err)
	}
	a.deletions.end(node.Name)
}

const (
	delayPrefix  = "delay-deletion.cluster-autoscaler.kubernetes.io/"
	delayTimeout = 2 * time.Minute
	delayPoll    = 5 * time.Second
)

// waitForDelay waits only for annotations that the node had as the loop began,
// and goes on when they stay too long.
func (a *autoscaler) waitForDelay(ctx context.Context, node *corev1.Node) {
	for waited := time.Duration(0); delayed(node) && waited < delayTimeout; waited += delayPoll {
		if !pause(ctx, delayPoll) {
			return
		}
		fresh, err := a.kube.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
		if err != nil {
			a.log.Warn("node not read", "node", node.Name, "error", err)
			return
		}
		node = fresh
	}
}

func delayed(node *corev1.Node) bool {
	for key := range node.Annotations {
		if strings.HasPrefix(key, delayPrefix) {
			return true
		}
	}
	return false
}
