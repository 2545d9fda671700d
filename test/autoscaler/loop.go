package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"gpu-node-provider/proto"
)

// autoscaler is one process of it.
type autoscaler struct {
	options

	kube      kubernetes.Interface
	log       *slog.Logger
	cloud     *cloud
	events    *events
	instances *instanceCache
	templates *templates
	registry  *registry
	planner   *planner
	deletions *deletions
	watch     *loopWatch

	cleanedUp           bool
	lastScaleUp         time.Time
	lastScaleDown       time.Time // started, also when it then failed
	lastScaleDownFailed time.Time // at the taints only
	tasks               sync.WaitGroup
}

func newAutoscaler(o options, client proto.CloudProviderClient, timeout time.Duration, kube kubernetes.Interface, recorder record.EventRecorder, log *slog.Logger) *autoscaler {
	c := newCloud(client, timeout, o.group, log)
	a := &autoscaler{
		options: o, kube: kube, log: log, cloud: c,
		events:    &events{recorder: recorder, status: statusMap(o)},
		instances: &instanceCache{cloud: c, byGroup: map[string][]*proto.Instance{}},
		templates: &templates{seen: map[string]*corev1.Node{}},
		planner:   &planner{unneeded: map[string]*unneededNode{}, unremovable: map[string]time.Time{}},
		deletions: &deletions{empty: map[string]string{}, drained: map[string]string{}},
		watch:     newLoopWatch(),
	}
	a.registry = &registry{
		cloud: c, instances: a.instances, templates: a.templates, events: a.events,
		backoff: &backoff{initial: o.initialBackoff, groups: map[string]backedOff{}}, requests: map[string]*scaleUpRequest{},
	}
	return a
}

// run loops until ctx ends. Then everything is dropped where it is, as when a
// process ends.
func (a *autoscaler) run(ctx context.Context) {
	defer a.tasks.Wait()
	a.tasks.Go(func() { a.instances.run(ctx) })
	pending := make(chan struct{}, 1)
	a.tasks.Go(func() { watchPending(ctx, a.kube, pending) })
	last := time.Now()
	for before := last; a.wait(ctx, before, pending); {
		before, last = last, time.Now()
		a.watch.started()
		err := a.runOnce(ctx, last)
		if err != nil && ctx.Err() == nil {
			a.log.Error("loop aborted", "error", err)
		}
		a.watch.ended(last, err)
	}
}

// wait lets a loop start at once when one of the two before it did something,
// otherwise after a pause that a new pending pod cuts short.
func (a *autoscaler) wait(ctx context.Context, before time.Time, pending <-chan struct{}) bool {
	if !a.lastScaleUp.Before(before) || !a.lastScaleDown.Before(before) {
		select {
		case <-pending:
		default:
		}
		return ctx.Err() == nil
	}
	timer := time.NewTimer(a.scanInterval)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-pending:
	case <-timer.C:
	}
	return ctx.Err() == nil
}

// exit is the end of a process that was asked to stop. Without a status config
// map the real one forgets to tell the server.
func (a *autoscaler) exit(ctx context.Context) {
	if a.events.status == nil {
		return
	}
	s := a.events.status
	if err := a.kube.CoreV1().ConfigMaps(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{}); err != nil {
		a.log.Warn("status not removed", "error", err)
	}
	if err := a.cloud.cleanup(ctx); err != nil {
		a.log.Warn("Cleanup failed", "error", err)
	}
}

// runOnce is one loop. The order of its calls is the contract.
func (a *autoscaler) runOnce(ctx context.Context, now time.Time) error {
	a.removeStaleTaints(ctx)
	listed, err := a.listNodes(ctx)
	if err != nil {
		return err
	}
	nodes, ready := splitReady(ctx, a.cloud, listed)
	a.templates.touch(ctx, a.cloud, ready)
	pods, err := a.listPods(ctx)
	if err != nil {
		return err
	}
	deleting := a.deletions.snapshot()
	if err := a.cloud.refresh(ctx); err != nil {
		return fmt.Errorf("refreshing: %w", err)
	}
	a.cloud.nodeGroups(ctx)
	snapshot := newSnapshot(nodes, pods.bound)
	a.templates.recompute(ctx, a.cloud, nodes, now)
	if err := a.registry.update(ctx, nodes, now); err != nil {
		a.planner.forget()
		return err
	}
	defer a.writeStatus(ctx, now)
	a.removeUnregistered(ctx, now)
	if !a.registry.healthy() {
		a.planner.forget()
		a.events.cluster(corev1.EventTypeWarning, "ClusterUnhealthy", "Cluster is unhealthy")
		a.log.Warn("cluster unhealthy: nothing done", "unready", a.registry.total.unready)
		return nil
	}
	a.removeFailedCreations(ctx)
	if fixed, err := a.fixSizes(ctx, now); fixed || err != nil {
		return err
	}
	nodes = a.addUpcoming(ctx, snapshot, nodes, now)
	pending := a.pendingPods(snapshot, pods.unschedulable, deleting)
	tooNew := len(pending) > 0 && allNew(pending, now)
	if len(pending) > 0 && !tooNew {
		a.scaleUp(ctx, snapshot, pending, now)
	}
	return a.scaleDown(ctx, snapshot, nodes, deleting, tooNew, now)
}

// loopPods are the pods that matter to a loop.
type loopPods struct{ bound, unschedulable []*corev1.Pod }

func (a *autoscaler) listPods(ctx context.Context) (loopPods, error) {
	// Finished pods do not count at all.
	list, err := a.kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "status.phase!=Succeeded,status.phase!=Failed"})
	if err != nil {
		return loopPods{}, fmt.Errorf("listing pods: %w", err)
	}
	var pods loopPods
	for i := range list.Items {
		pod := &list.Items[i]
		switch {
		case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		case pod.Spec.NodeName != "":
			pods.bound = append(pods.bound, pod)
		case pod.DeletionTimestamp == nil && pod.Status.NominatedNodeName == "" && unschedulable(pod) != nil:
			pods.unschedulable = append(pods.unschedulable, pod)
		}
	}
	return pods, nil
}

func (a *autoscaler) listNodes(ctx context.Context) ([]*corev1.Node, error) {
	list, err := a.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	nodes := make([]*corev1.Node, 0, len(list.Items))
	for i := range list.Items {
		nodes = append(nodes, &list.Items[i])
	}
	slices.SortFunc(nodes, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes, nil
}

// removeUnregistered deletes instances that never became a node in time. No
// cordon, no drain, no look at pods.
func (a *autoscaler) removeUnregistered(ctx context.Context, now time.Time) {
	old := map[string][]*corev1.Node{}
	for _, u := range a.registry.unregistered {
		g, err := a.cloud.groupForNode(ctx, u.node)
		if err != nil || g == nil {
			continue
		}
		o, err := g.options(ctx)
		if err != nil {
			a.log.Warn("unregistered instances stay", "error", err)
			return
		}
		if u.since.Add(o.provision).Before(now) {
			old[g.id] = append(old[g.id], u.node)
		}
	}
	for id, nodes := range old {
		if g := a.cloud.groupByID(ctx, id); g != nil && !a.removeFromGroup(ctx, g, nodes) {
			return
		}
	}
}

// removeFromGroup says whether to go on with other groups.
func (a *autoscaler) removeFromGroup(ctx context.Context, g *group, nodes []*corev1.Node) bool {
	size, err := g.targetSize(ctx)
	if err != nil || size <= g.min {
		a.log.Warn("unregistered instances stay", "group", g.id, "target", size, "min", g.min, "error", err)
		return true
	}
	nodes = nodes[:min(len(nodes), size-g.min)]
	if _, err := g.options(ctx); err != nil {
		return true
	}
	err = g.deleteNodes(ctx, nodes...)
	a.instances.invalidate(g.id)
	a.log.Info("unregistered instances deleted", "group", g.id, "instances", names(nodes), "error", err)
	for _, node := range nodes {
		if err != nil {
			a.events.cluster(corev1.EventTypeWarning, "DeleteUnregisteredFailed", "Failed to remove node %s: %v", node.Name, err)
		} else {
			a.events.cluster(corev1.EventTypeNormal, "DeleteUnregistered", "Removed unregistered node %v", node.Name)
		}
	}
	return err == nil
}

// removeFailedCreations is done every loop for as long as they are listed.
func (a *autoscaler) removeFailedCreations(ctx context.Context) {
	deleted := false
	for id, instances := range a.registry.listed {
		var nodes []*corev1.Node
		for _, i := range instances {
			if failedCreation(i) {
				nodes = append(nodes, fakeNode(i.GetId(), fakeCreateError))
			}
		}
		if len(nodes) == 0 {
			continue
		}
		g := a.cloud.groupByID(ctx, id)
		if g == nil {
			continue
		}
		_, err := g.options(ctx)
		if err == nil {
			err = g.deleteNodes(ctx, nodes...)
		}
		a.log.Info("failed instances deleted", "group", id, "instances", names(nodes), "error", err)
		if err == nil {
			deleted = true
			a.instances.invalidate(id)
		}
	}
	if deleted {
		a.registry.recalculate(ctx)
	}
}

// fixSizes lowers targets that have not been met for long. What it does, and what
// it fails at, ends the loop.
func (a *autoscaler) fixSizes(ctx context.Context, now time.Time) (bool, error) {
	fixed := false
	for _, g := range a.cloud.nodeGroups(ctx) {
		w, ok := a.registry.wrong[g.id]
		if !ok {
			continue
		}
		o, err := g.options(ctx)
		if err != nil {
			return false, fmt.Errorf("size of %s: %w", g.id, err)
		}
		if delta := w.registered - w.target; delta < 0 && w.since.Add(o.provision).Before(now) {
			a.log.Info("target lowered to what is there", "group", g.id, "target", w.target, "registered", w.registered)
			if err := g.decrease(ctx, delta); err != nil {
				return fixed, fmt.Errorf("decreasing %s: %w", g.id, err)
			}
			fixed = true
		}
	}
	return fixed, nil
}

// addUpcoming puts pictures of nodes on their way in the place of those that have
// registered and not started. It returns the other nodes.
func (a *autoscaler) addUpcoming(ctx context.Context, s *snapshot, nodes []*corev1.Node, now time.Time) []*corev1.Node {
	counts, notStarted := a.registry.upcoming(ctx, now)
	for _, g := range a.cloud.nodeGroups(ctx) {
		template := a.templates.current[g.id]
		for i := range counts[g.id] {
			if template != nil {
				s.add(upcomingNode(template, i))
			}
		}
	}
	for _, name := range notStarted {
		s.remove(name)
	}
	return slices.DeleteFunc(slices.Clone(nodes), func(n *corev1.Node) bool { return slices.Contains(notStarted, n.Name) })
}

func names(nodes []*corev1.Node) string {
	list := make([]string, 0, len(nodes))
	for _, node := range nodes {
		list = append(list, node.Name)
	}
	return strings.Join(list, " ")
}
