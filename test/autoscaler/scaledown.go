package main

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Most nodes in deletion at once, and most of them with pods.
const (
	mostDeletions = 10
	mostDrained   = 1
)

// unneededNode could go, and has been able to since.
type unneededNode struct {
	node      *corev1.Node
	since     time.Time
	threshold time.Duration
	unsure    bool // the threshold could not be read
	moves     moves
}

// planner remembers between loops which nodes could go.
type planner struct {
	unneeded    map[string]*unneededNode // rebuilt each loop, so one loop that misses a node restarts its timer
	unremovable map[string]time.Time     // not looked at until then
}

func (p *planner) forget() { p.unneeded = map[string]*unneededNode{} }

// scaleDown finds out what is unneeded, and starts deleting what has been for long.
func (a *autoscaler) scaleDown(ctx context.Context, s *snapshot, nodes []*corev1.Node, deleting deletionsInProgress, forbidden bool, now time.Time) error {
	candidates := a.candidates(ctx, s, nodes, now)
	a.categorize(ctx, s.copied(), nodes, candidates, deleting, now)
	cooldown := forbidden || a.lastScaleUp.Add(a.delayAfterAdd).After(now) || a.lastScaleDownFailed.Add(a.delayAfterFailure).After(now)
	if cooldown || len(candidates) == 0 {
		a.updateSoftTaints(ctx, nodes)
		return nil
	}
	empty, drained := a.nodesToDelete(ctx, s, deleting, now)
	started, err := a.startDeletion(ctx, s, empty, drained)
	if started {
		a.lastScaleDown = now
		a.registry.recalculate(ctx)
	}
	a.updateSoftTaints(ctx, nodes)
	if err != nil {
		a.lastScaleDownFailed = now
	}
	return err
}

// candidates are the nodes of groups above their minimum: the empty ones first,
// then those that were unneeded before.
func (a *autoscaler) candidates(ctx context.Context, s *snapshot, nodes []*corev1.Node, now time.Time) []*corev1.Node {
	sizes := a.sizes(ctx)
	var candidates []*corev1.Node
	for _, node := range nodes {
		g, err := a.cloud.groupForNode(ctx, node)
		if err != nil || g == nil {
			continue
		}
		if size, ok := sizes[g.id]; ok && size > g.min {
			candidates = append(candidates, node)
		}
	}
	rank := func(node *corev1.Node) int {
		r := 3
		if info := s.byName[node.Name]; info != nil {
			if m, err := podsToMove(info, a.skipLocalStorage, now); err == nil && len(m.pods) == 0 {
				r -= 2
			}
		}
		if a.planner.unneeded[node.Name] != nil {
			r--
		}
		return r
	}
	slices.SortStableFunc(candidates, func(a, b *corev1.Node) int { return rank(a) - rank(b) })
	return candidates
}

func (a *autoscaler) sizes(ctx context.Context) map[string]int {
	sizes := map[string]int{}
	for _, g := range a.cloud.nodeGroups(ctx) {
		if size, err := g.targetSize(ctx); err == nil {
			sizes[g.id] = size
		}
	}
	return sizes
}

// categorize finds the unneeded nodes. Each that could go is gone for the next
// one, and its pods have moved.
func (a *autoscaler) categorize(ctx context.Context, s *snapshot, nodes, candidates []*corev1.Node, deleting deletionsInProgress, now time.Time) {
	destinations := map[string]bool{}
	for _, node := range nodes {
		destinations[node.Name] = !deleting.has(node.Name)
	}
	var removable []*unneededNode
	for _, info := range a.eligible(ctx, s, candidates, deleting, now) {
		m, why := a.simulateRemoval(s, info, destinations, now)
		if why != "" {
			a.log.Info("node cannot be emptied", "node", info.node.Name, "why", why, "again_in", a.unremovableRecheck)
			a.planner.unremovable[info.node.Name] = now.Add(a.unremovableRecheck)
			continue
		}
		destinations[info.node.Name] = false
		removable = append(removable, &unneededNode{node: info.node, since: now, moves: m})
		if g, err := a.cloud.groupForNode(ctx, info.node); err == nil && g != nil {
			_, _ = g.options(ctx) // whether it is of zero-or-max size
		}
	}
	a.rememberUnneeded(ctx, removable)
}

// eligible are the candidates whose removal is worth simulating.
func (a *autoscaler) eligible(ctx context.Context, s *snapshot, candidates []*corev1.Node, deleting deletionsInProgress, now time.Time) []*nodeInfo {
	unremovable := a.planner.unremovable
	for name, until := range unremovable {
		if s.byName[name] == nil || !until.After(now) {
			delete(unremovable, name)
		}
	}
	var eligible []*nodeInfo
	for _, node := range candidates {
		info := s.byName[node.Name]
		if _, recent := unremovable[node.Name]; deleting.has(node.Name) || info == nil || recent {
			continue
		}
		if why := a.ineligible(ctx, info, now); why != "" {
			a.log.Debug("node stays", "node", node.Name, "why", why)
			continue
		}
		eligible = append(eligible, info)
	}
	return eligible
}

// simulateRemoval moves the pods of a node to others, or leaves all as it was and
// says what is in the way.
func (a *autoscaler) simulateRemoval(s *snapshot, info *nodeInfo, destinations map[string]bool, now time.Time) (moves, string) {
	m, err := podsToMove(info, a.skipLocalStorage, now)
	if err != nil {
		return m, err.Error()
	}
	type placed struct {
		on  *nodeInfo
		pod *corev1.Pod
	}
	var done []placed
	for _, pod := range m.pods {
		free := pod.DeepCopy()
		free.Spec.NodeName = ""
		var on *nodeInfo
		if !s.place(free, func(n *nodeInfo) bool { on = n; return n != info && destinations[n.node.Name] }) {
			for _, p := range done {
				p.on.take(p.pod)
			}
			return m, "no place for pod " + pod.Namespace + "/" + pod.Name
		}
		done = append(done, placed{on, free})
	}
	return m, ""
}

func (a *autoscaler) rememberUnneeded(ctx context.Context, removable []*unneededNode) {
	updated := map[string]*unneededNode{}
	for _, u := range removable {
		old := a.planner.unneeded[u.node.Name]
		if old != nil {
			u.since = old.since
		} else {
			a.log.Info("node is unneeded", "node", u.node.Name, "pods_to_move", len(u.moves.pods))
		}
		updated[u.node.Name] = u
		g, err := a.cloud.groupForNode(ctx, u.node)
		if err != nil || g == nil {
			continue
		}
		o, err := g.options(ctx)
		u.unsure, u.threshold = err != nil, o.unneeded
		if ready, _ := nodeReady(u.node); !ready {
			u.threshold = o.unready
		}
	}
	for name := range a.planner.unneeded {
		if updated[name] == nil {
			a.log.Info("node is not unneeded any more", "node", name)
		}
	}
	a.planner.unneeded = updated
}

// nodesToDelete are the nodes that may go now.
func (a *autoscaler) nodesToDelete(ctx context.Context, s *snapshot, deleting deletionsInProgress, now time.Time) (empty, drained []*corev1.Node) {
	if err := walkForQuotas(ctx, a.cloud, s.nodes()); err != nil {
		a.log.Warn("no scale-down", "error", err)
		return nil, nil
	}
	for _, u := range a.due(ctx, deleting, now) {
		g, err := a.cloud.groupForNode(ctx, u.node)
		if err != nil || g == nil {
			continue
		}
		if _, err := g.options(ctx); err != nil {
			continue
		}
		switch {
		case len(u.moves.onCompletion) > 0:
		case len(u.moves.pods) > 0:
			drained = append(drained, u.node)
		default:
			empty = append(empty, u.node)
		}
	}
	return empty, drained
}

// due are the nodes that have been unneeded for long, as many as groups can lose.
func (a *autoscaler) due(ctx context.Context, deleting deletionsInProgress, now time.Time) []*unneededNode {
	sizes := a.sizes(ctx)
	var due []*unneededNode
	for _, u := range a.planner.unneeded {
		long := u.threshold <= 0 || u.since.Add(u.threshold).Before(now)
		if u.unsure || !long {
			continue
		}
		g, err := a.cloud.groupForNode(ctx, u.node)
		if err != nil || g == nil {
			continue
		}
		size, ok := sizes[g.id]
		if !ok || size-deleting.count(g.id) <= g.min {
			a.log.Info("node stays: its group is at the minimum", "node", u.node.Name, "group", g.id)
			continue
		}
		sizes[g.id]--
		due = append(due, u)
	}
	return due
}
