package provider

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.uber.org/zap"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/logkey"
	"gpu-node-provider/proto"
	"gpu-node-provider/provider/checkpoint"
)

// NodeGroupDeleteNodes ends the named instances and cancels the named
// placeholders, lowering the target by one for each. Every node is checked, and
// the gate asked, before anything is changed; what is already gone or going is
// OK and counts no second time.
func (s *Server) NodeGroupDeleteNodes(ctx context.Context, req *proto.NodeGroupDeleteNodesRequest) (*proto.NodeGroupDeleteNodesResponse, error) {
	nodes, err := named(req.GetNodes())
	if err != nil {
		return nil, toStatus(err)
	}
	if err := s.delete(ctx, req.GetId(), nodes, s.labelled(req)); err != nil {
		return nil, toStatus(err)
	}
	return &proto.NodeGroupDeleteNodesResponse{}, nil
}

// named checks the form of the request and drops repetitions.
func named(nodes []*proto.ExternalGrpcNode) ([]checkpoint.Instance, error) {
	seen := map[string]bool{}
	var all []checkpoint.Instance
	for n, node := range nodes {
		id := node.GetProviderID()
		if id == "" {
			return nil, invalid("node %d (%q) has no provider id", n, shorten(node.GetName(), maxIDInMessage))
		}
		if !seen[id] {
			seen[id] = true
			all = append(all, checkpoint.Instance{ID: id, Node: node.GetName()})
		}
	}
	return all, nil
}

// labelled returns the ids of nodes that NodeGroupForNode places in the group. Some of
// them only by their label, when nothing is known of their instance any more.
func (s *Server) labelled(req *proto.NodeGroupDeleteNodesRequest) map[string]bool {
	now := s.current.Load()
	ids := map[string]bool{}
	for _, node := range req.GetNodes() {
		if g := s.groupOf(now, node); g != nil && g.ID == req.GetId() {
			ids[node.GetProviderID()] = true
		}
	}
	return ids
}

func (s *Server) delete(ctx context.Context, id string, nodes []checkpoint.Instance, labelled map[string]bool) error {
	w, err := s.begin(ctx, id)
	if err != nil {
		return err
	}
	defer w.end()
	plan, err := w.plan(ctx, nodes, labelled)
	if err != nil {
		return err
	}
	held, err := s.ask(ctx, plan.terminate)
	if err != nil {
		return fmt.Errorf("no node of group %s was deleted: %w", id, err)
	}
	maps.Copy(held, w.notOrdered(plan.terminate))
	kept, err := plan.keep(held)
	if err != nil {
		s.metrics.refused.WithLabelValues(id).Add(float64(len(held)))
		return err
	}
	if err := w.carryOut(ctx, plan); err != nil {
		return err
	}
	if kept != "" {
		s.metrics.refused.WithLabelValues(id).Add(float64(len(held)))
		done := "nothing was deleted"
		if len(plan.terminate)+len(plan.cancel) > 0 {
			done = "the other nodes were deleted"
		}
		return precondition("%s; kept %s", done, kept)
	}
	return nil
}

// deletion is what a DeleteNodes comes down to.
type deletion struct {
	terminate []checkpoint.Instance
	cancel    []string
}

// keep takes what the gate refused out of the plan. For real nodes a refusal
// keeps all: Cluster Autoscaler cannot hear of a part, and would uncordon nodes
// that are on their way out. Its fakes have no cordon to lose, so their clear
// ones go and the text names the rest.
func (d *deletion) keep(held map[string]checkpoint.Held) (kept string, err error) {
	if len(held) == 0 {
		return "", nil
	}
	kept = reasons(d.terminate, held)
	for _, n := range d.terminate {
		if _, ok := held[n.ID]; ok && !n.Fake() {
			return "", precondition("nothing was deleted; %s", kept)
		}
	}
	d.terminate = slices.DeleteFunc(d.terminate, func(n checkpoint.Instance) bool {
		_, ok := held[n.ID]
		return ok
	})
	return kept, nil
}

// plan sorts the nodes and checks them all. It changes nothing.
func (w *write) plan(ctx context.Context, nodes []checkpoint.Instance, labelled map[string]bool) (*deletion, error) {
	plan, strangers := sortNodes(w.now(), nodes)
	if len(strangers) > 0 {
		// The snapshot is older than an instance that has just arrived, so the
		// cloud is asked before anything is called foreign.
		if err := w.describe(ctx); err != nil {
			return nil, err
		}
		plan, strangers = sortNodes(w.now(), nodes)
		if err := w.identify(ctx, strangers, labelled); err != nil {
			return nil, err
		}
	}
	if err := w.spellings(plan.terminate); err != nil {
		return nil, err
	}
	least := max(w.view.minSize(), w.now().Min)
	left := w.now().Target - w.now().Unsettled.Fewer - len(plan.cancel) - len(plan.terminate)
	if len(plan.terminate) > 0 && left < least {
		unsettled := ""
		if n := w.now().Unsettled.Fewer; n > 0 {
			unsettled = fmt.Sprintf(" (up to %d fewer by an unconfirmed deletion)", n)
		}
		return nil, precondition("nothing was deleted; group %s has a target of %d%s, and without %d nodes it would be below its minimum of %d",
			w.id, w.now().Target, unsettled, len(plan.terminate), least)
	}
	return plan, nil
}

// sortNodes tells live instances, placeholders and what is already going from
// ids that are not in the group now.
func sortNodes(state cloud.Group, nodes []checkpoint.Instance) (*deletion, []checkpoint.Instance) {
	known := make(map[string]cloud.Instance, len(state.Instances))
	for _, i := range state.Instances {
		known[i.ID] = i
	}
	plan := &deletion{}
	var strangers []checkpoint.Instance
	for _, n := range nodes {
		i, ok := known[n.ID]
		switch {
		case !ok:
			strangers = append(strangers, n)
		case i.Placeholder:
			plan.cancel = append(plan.cancel, n.ID)
		case i.State != cloud.Deleting:
			plan.terminate = append(plan.terminate, n)
		}
	}
	return plan, strangers
}

// identify tells ids that are gone, which is fine, from those that never
// belonged to the group, which is not. What is labelled did, also when the cloud has
// no memory of it.
func (w *write) identify(ctx context.Context, strangers []checkpoint.Instance, labelled map[string]bool) error {
	now := w.s.current.Load()
	var unknown []string
	for _, n := range strangers {
		if owner, ok := now.owner[n.ID]; ok && owner != w.id {
			return invalid("instance %s belongs to node group %s, not %s", shorten(n.ID, maxIDInMessage), owner, w.id)
		}
		if d, ok := now.departed[n.ID]; !ok || d.group != w.id {
			unknown = append(unknown, n.ID)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	found, err := w.s.backend.Lookup(ctx, w.id, unknown)
	if err != nil {
		return fmt.Errorf("looking up %d instances that are not in node group %s: %w", len(unknown), w.id, err)
	}
	for n, existence := range found {
		switch existence {
		case cloud.Gone:
		case cloud.Present: // it arrived between two questions; the next try finds it
			return fmt.Errorf("instance %s has just joined node group %s; try again: %w", shorten(unknown[n], maxIDInMessage), w.id, cloud.ErrUnavailable)
		default:
			if labelled[unknown[n]] {
				continue
			}
			return invalid("instance %s does not belong to node group %s and never did", shorten(unknown[n], maxIDInMessage), w.id)
		}
	}
	return nil
}

// spellings refuses to end an instance that is said to have no Node while a
// Node for it exists whose provider id is written differently: all healthy
// nodes of the group would follow.
func (w *write) spellings(nodes []checkpoint.Instance) error {
	if w.s.cluster == nil {
		return nil
	}
	for _, n := range nodes {
		if !n.Fake() {
			continue
		}
		if other, ok := w.s.cluster.OtherSpelling(n.ID); ok {
			return precondition("nothing was deleted; instance %s has the Node %s, whose spec.providerID is %q; the two must be equal byte for byte",
				n.ID, other.Name, other.Spec.ProviderID)
		}
	}
	return nil
}

// carryOut is the part that changes something.
func (w *write) carryOut(ctx context.Context, plan *deletion) error {
	cancelled := 0
	if len(plan.cancel) > 0 {
		var err error
		if cancelled, err = w.cancel(ctx, func(cloud.Group) []string { return plan.cancel }); err != nil {
			return err
		}
	}
	terminated, err := w.terminate(ctx, plan.terminate)
	if cancelled+terminated > 0 {
		w.s.log.Info("nodes deleted", zap.String(logkey.NodeGroup, w.id), zap.Int(logkey.Cancelled, cancelled),
			zap.Int(logkey.Terminated, terminated), zap.Int(logkey.Target, w.now().Target))
	}
	if err != nil {
		w.s.cordonSoon()
	}
	return err
}

func (w *write) terminate(ctx context.Context, nodes []checkpoint.Instance) (int, error) {
	if len(nodes) == 0 {
		return 0, nil
	}
	if err := hasTime(ctx, leastTime); err != nil {
		return 0, fmt.Errorf("nothing was terminated: %w", err)
	}
	ids := make([]string, 0, len(nodes))
	for _, n := range nodes {
		ids = append(ids, n.ID)
	}
	state, confirmed, err := w.s.backend.Delete(ctx, w.id, ids)
	w.learned(state)
	if isUnknown(err) && state.ID != "" {
		confirmed = append(confirmed, notLive(state, without(ids, confirmed))...)
	}
	w.s.metrics.terminated.WithLabelValues(w.id).Add(float64(len(confirmed)))
	missing := without(ids, confirmed)
	if len(missing) == 0 {
		return len(confirmed), nil
	}
	if err == nil {
		err = cloud.ErrUnavailable
	}
	if errors.Is(err, cloud.ErrInvalid) {
		// It was checked; the group has changed under us, so a later try may do.
		err = fmt.Errorf("%w: %v", cloud.ErrUnavailable, err) //nolint:errorlint // its class is what must not show
	}
	return len(confirmed), fmt.Errorf("%d of %d terminations are not confirmed (%s): %w",
		len(missing), len(nodes), shorten(strings.Join(missing, ", "), maxIDInMessage), err)
}

func without(ids, these []string) []string {
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return slices.Contains(these, id) })
}

// notLive returns which of the instances are going or gone.
func notLive(state cloud.Group, ids []string) []string {
	live := map[string]bool{}
	for _, i := range state.Instances {
		live[i.ID] = i.State != cloud.Deleting
	}
	return slices.DeleteFunc(ids, func(id string) bool { return live[id] })
}
