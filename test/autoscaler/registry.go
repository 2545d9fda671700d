package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"gpu-node-provider/proto"
)

const (
	okUnready        = 3
	okUnreadyPercent = 45
)

// readiness counts the nodes of a group, or of the cluster.
type readiness struct {
	registered, ready, unready, deleted int
	unregistered, longUnregistered      int
	notStarted                          []string
}

// upcoming is how much of a target has not come yet.
func (r readiness) upcoming(target int) int { return target - r.ready - r.unready - r.longUnregistered }

type scaleUpRequest struct {
	group      *group
	increase   int
	since, due time.Time
}

type wrongSize struct {
	registered, target int
	since              time.Time
}

type unregistered struct {
	node  *corev1.Node
	since time.Time
}

// registry compares what was asked for with what is there. Requests live in
// memory only: a new process, or one loop without groups, forgets them.
type registry struct {
	cloud     *cloud
	instances *instanceCache
	templates *templates
	backoff   *backoff
	events    *events

	nodes          int
	targets        map[string]int
	perGroup       map[string]readiness
	total          readiness
	requests       map[string]*scaleUpRequest
	unregistered   map[string]unregistered
	listed, before map[string][]*proto.Instance
	wrong          map[string]wrongSize
}

// update reads targets and instances, and draws the conclusions that need no
// deletion. After an error nothing has changed.
func (r *registry) update(ctx context.Context, nodes []*corev1.Node, now time.Time) error {
	targets := map[string]int{}
	for _, g := range r.cloud.nodeGroups(ctx) {
		size, err := g.targetSize(ctx)
		if err != nil {
			return fmt.Errorf("target size of %s: %w", g.id, err)
		}
		targets[g.id] = size
	}
	for _, g := range r.cloud.nodeGroups(ctx) {
		if r.requests[g.id] != nil {
			r.instances.invalidate(g.id)
		}
	}
	listed, err := r.instances.all(ctx)
	if err != nil {
		return fmt.Errorf("instances: %w", err)
	}
	r.nodes, r.targets = len(nodes), targets
	r.before, r.listed = r.listed, listed
	r.findUnregistered(nodes, now)
	r.countReadiness(ctx, nodes, now)
	r.settleRequests(ctx, now)
	for _, g := range r.cloud.nodeGroups(ctx) {
		r.noticeFailedCreations(ctx, g, now)
	}
	r.findWrongSizes(ctx, now)
	return nil
}

// recalculate reads the targets again. An error makes all of them 0.
func (r *registry) recalculate(ctx context.Context) {
	r.targets = map[string]int{}
	for _, g := range r.cloud.nodeGroups(ctx) {
		size, err := g.targetSize(ctx)
		if err != nil {
			r.cloud.log.Warn("TargetSize failed: taking all for 0", "group", g.id, "error", err)
			r.targets = map[string]int{}
			return
		}
		r.targets[g.id] = size
	}
}

// findUnregistered: an instance is registered when a node has exactly its id.
func (r *registry) findUnregistered(nodes []*corev1.Node, now time.Time) {
	registered := map[string]bool{}
	for _, node := range nodes {
		registered[node.Spec.ProviderID] = true
	}
	found := map[string]unregistered{}
	for _, instances := range r.listed {
		for _, i := range instances {
			if registered[i.GetId()] || !expectedToRegister(i) {
				continue
			}
			if earlier, ok := r.unregistered[i.GetId()]; ok {
				found[i.GetId()] = earlier
			} else {
				found[i.GetId()] = unregistered{fakeNode(i.GetId(), fakeUnregistered), now}
			}
		}
	}
	r.unregistered = found
}

func (r *registry) countReadiness(ctx context.Context, nodes []*corev1.Node, now time.Time) {
	startup := 15 * time.Minute
	count := func(in *readiness, node *corev1.Node) {
		if g, err := r.cloud.groupForNode(ctx, node); err == nil && g != nil {
			if o, err := g.options(ctx); err == nil {
				startup = o.startup // the next nodes have it too, if theirs cannot be read
			}
		}
		in.registered++
		ready, _ := nodeReady(node)
		switch {
		case hasTaint(node, toBeDeleted):
			in.deleted++
		case ready:
			in.ready++
		case node.CreationTimestamp.Add(startup).After(now):
			in.notStarted = append(in.notStarted, node.Name)
		default:
			in.unready++
		}
	}
	r.perGroup, r.total = map[string]readiness{}, readiness{}
	for _, node := range nodes {
		if g, err := r.cloud.groupForNode(ctx, node); err == nil && g != nil {
			counted := r.perGroup[g.id]
			count(&counted, node)
			r.perGroup[g.id] = counted
		}
		count(&r.total, node)
	}
	r.countUnregistered(ctx, now)
}

func (r *registry) countUnregistered(ctx context.Context, now time.Time) {
	for _, u := range r.unregistered {
		g, err := r.cloud.groupForNode(ctx, u.node)
		if err != nil || g == nil {
			continue
		}
		o, err := g.options(ctx)
		if err != nil {
			continue
		}
		counted := r.perGroup[g.id]
		if u.since.Add(o.provision).Before(now) {
			counted.longUnregistered++
		} else {
			counted.unregistered++
		}
		r.perGroup[g.id] = counted
	}
}

// settleRequests ends scale-ups that are complete or overdue. The overdue one is
// taken back as a whole, although part of it may have come.
func (r *registry) settleRequests(ctx context.Context, now time.Time) {
	r.backoff.forget(now)
	for id, request := range r.requests {
		if r.perGroup[id].upcoming(r.targets[id]) <= 0 {
			r.cloud.log.Info("scale-up finished", "group", id, "after", now.Sub(request.since))
			delete(r.requests, id)
			continue
		}
		if !request.due.Before(now) {
			continue
		}
		r.events.cluster(corev1.EventTypeWarning, "ScaleUpTimedOut",
			"Nodes added to group %s failed to register within %v", id, now.Sub(request.since))
		r.fail(request.group, "timeout", now)
		if err := request.group.decrease(ctx, -request.increase); err != nil {
			r.events.cluster(corev1.EventTypeWarning, "FailedToRevertScaleUp",
				"Failed to decrease target size for group %s after scale-up timeout: %v", id, err)
		}
		delete(r.requests, id)
	}
}

// request notes a change of what was asked for. Without the group's options
// nothing is noted.
func (r *registry) request(ctx context.Context, g *group, delta int, now time.Time) {
	o, err := g.options(ctx)
	if err != nil {
		r.cloud.log.Warn("scale-up not noted", "group", g.id, "error", err)
		return
	}
	old := r.requests[g.id]
	switch {
	case old == nil && delta > 0:
		r.requests[g.id] = &scaleUpRequest{g, delta, now, now.Add(o.provision)}
	case old == nil:
	case old.increase+delta <= 0:
		delete(r.requests, g.id)
	default:
		old.increase += delta
		if delta > 0 {
			old.since, old.due = now, now.Add(o.provision)
		}
	}
}

// fail backs a group off. Without a template that cannot be done.
func (r *registry) fail(g *group, code string, now time.Time) {
	if r.templates.current[g.id] == nil {
		return
	}
	until := r.backoff.add(g.id, now)
	r.cloud.log.Warn("group backed off", "group", g.id, "why", code, "until", until)
}

func (r *registry) backedOff(g *group, now time.Time) bool {
	return r.templates.current[g.id] != nil && r.backoff.active(g.id, now)
}

// noticeFailedCreations backs a group off that is scaling up and lists new errors.
func (r *registry) noticeFailedCreations(ctx context.Context, g *group, now time.Time) {
	seen := map[string]bool{}
	for _, i := range r.before[g.id] {
		seen[i.GetId()] = failedCreation(i)
	}
	fresh, messages := map[string]int{}, map[string][]string{}
	for _, i := range r.listed[g.id] {
		if !failedCreation(i) || seen[i.GetId()] {
			continue
		}
		code, message := errorOf(i)
		fresh[code]++
		if !slices.Contains(messages[code], message) {
			messages[code] = append(messages[code], message)
		}
	}
	for code, n := range fresh {
		if r.requests[g.id] == nil {
			continue
		}
		r.events.cluster(corev1.EventTypeWarning, "ScaleUpFailed", "Failed adding %d nodes to group %s due to %s; source errors: %s",
			n, g.id, code, strings.Join(messages[code], ", "))
		r.request(ctx, g, -n, now)
		r.fail(g, code, now)
	}
}

func (r *registry) findWrongSizes(ctx context.Context, now time.Time) {
	wrong := map[string]wrongSize{}
	for _, g := range r.cloud.nodeGroups(ctx) {
		counted, ok := r.perGroup[g.id]
		target := r.targets[g.id]
		if !ok || counted.registered <= target && counted.registered >= target-counted.unregistered-counted.longUnregistered {
			continue
		}
		w := wrongSize{counted.registered, target, now}
		if old, ok := r.wrong[g.id]; ok && old.registered == w.registered && old.target == w.target {
			w = old
		}
		wrong[g.id] = w
	}
	r.wrong = wrong
}

// healthy says whether so few nodes are unready that anything may be done at all.
func (r *registry) healthy() bool {
	return r.total.unready <= okUnready || r.total.unready*100 <= okUnreadyPercent*r.nodes
}

func (r *registry) groupHealthy(id string) bool {
	target, listed := r.targets[id]
	if !listed {
		return false
	}
	counted, ok := r.perGroup[id]
	least := target - counted.longUnregistered
	if request := r.requests[id]; request != nil {
		least -= request.increase
	}
	if !ok {
		return target == 0 || least == 0
	}
	missing := max(0, least-counted.ready)
	return missing <= okUnready || missing*100 <= okUnreadyPercent*(counted.ready+counted.unready+len(counted.notStarted))
}

// upcoming counts nodes on their way, only of groups with a scale-up in memory
// and without backoff, and names the nodes that are there and not started.
func (r *registry) upcoming(ctx context.Context, now time.Time) (counts map[string]int, notStarted []string) {
	counts = map[string]int{}
	for _, g := range r.cloud.nodeGroups(ctx) {
		counted := r.perGroup[g.id]
		n := counted.upcoming(r.targets[g.id])
		if n > 0 && r.requests[g.id] != nil && !r.backedOff(g, now) {
			counts[g.id] = n
			notStarted = append(notStarted, counted.notStarted...)
		}
	}
	return counts, notStarted
}

const (
	maxBackoff   = 30 * time.Minute
	resetBackoff = 3 * time.Hour
)

// backoff keeps groups from scaling up for a while after they failed.
type backoff struct {
	initial time.Duration
	groups  map[string]backedOff
}

type backedOff struct {
	duration      time.Duration
	until, failed time.Time
}

// add starts over within a backoff, and doubles after one.
func (b *backoff) add(id string, now time.Time) time.Time {
	duration := b.initial
	if old, ok := b.groups[id]; ok && old.until.Before(now) {
		duration = min(2*old.duration, maxBackoff)
	}
	b.groups[id] = backedOff{duration, now.Add(duration), now}
	return now.Add(duration)
}

func (b *backoff) active(id string, now time.Time) bool { return b.groups[id].until.After(now) }

func (b *backoff) forget(now time.Time) {
	for id, g := range b.groups {
		if g.failed.Add(resetBackoff).Before(now) {
			delete(b.groups, id)
		}
	}
}
