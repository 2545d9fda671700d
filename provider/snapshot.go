package provider

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/logkey"
	"gpu-node-provider/proto"
	"gpu-node-provider/provider/nodegroup"
	"gpu-node-provider/provider/quota"
)

// snapshot is everything that reads are answered from. It is never changed:
// refreshes and writes put a new one in its place. The responses in it are
// shared between calls, which is why no handler changes one.
type snapshot struct {
	catalogue *nodegroup.Catalogue
	// taken is when the cloud was last read as a whole.
	taken    time.Time
	groups   map[string]*groupView
	order    []*groupView
	owner    map[string]string // instance or placeholder id → node group id
	deleting map[string]bool   // ids in owner whose instance is being deleted
	departed map[string]departure
	// unsettled is true while something may come of a write whose outcome is not known.
	unsettled bool

	nodeGroups *proto.NodeGroupsResponse
	gpuLabel   *proto.GPULabelResponse
	gpuTypes   *proto.GetAvailableGPUTypesResponse
}

// groupView is a node group at one moment.
type groupView struct {
	*nodegroup.Group
	state cloud.Group
	// read is the time of the last whole reading of the cloud whose answer for it
	// was taken.
	read time.Time
	// troubled is since when the cloud cannot serve it; zero while it can.
	troubled time.Time
	// inFlight counts capacity that is asked for and not yet a usable node.
	inFlight int
	// unrequested is the part of it for which Cluster Autoscaler has no open request:
	// all or nothing.
	unrequested int
	// max is the effective maximum, and limit what makes it so.
	max   int
	limit quota.Limit

	forNode    *proto.NodeGroupForNodeResponse
	targetSize *proto.NodeGroupTargetSizeResponse
	nodes      *proto.NodeGroupNodesResponse
	template   *proto.NodeGroupTemplateNodeInfoResponse
	noTemplate error
}

// states are the groups as the cloud has told them.
func (n *snapshot) states() map[string]cloud.Group {
	states := make(map[string]cloud.Group, len(n.order))
	for _, g := range n.order {
		states[g.ID] = g.state
	}
	return states
}

// departure is an instance that is gone, whose Node may still be there.
type departure struct {
	group string
	at    time.Time
}

// departedFor is how long a gone instance is remembered. Cloud controllers
// delete its Node within minutes; a Node that stays longer is placed by its label.
const departedFor = time.Hour

// startupTime is how long a machine may take to become a usable node and still
// count as in flight. It is Cluster Autoscaler's own --max-node-provision-time:
// afterwards it does not wait for the node either.
const startupTime = 15 * time.Minute

// publishLocked puts the next snapshot in place: states are what is newly
// known of some groups, the others keep what they have. With a whole reading
// of the cloud, taken is its time; with a write, it is zero.
func (s *Server) publishLocked(catalogue *nodegroup.Catalogue, states map[string]cloud.Group, taken time.Time) {
	old := s.current.Load()
	if old == nil {
		old = &snapshot{}
	}
	next := &snapshot{
		catalogue: catalogue,
		taken:     taken,
		groups:    make(map[string]*groupView, len(catalogue.All())),
		gpuLabel:  &proto.GPULabelResponse{Label: catalogue.GPULabel()},
		gpuTypes:  gpuTypes(catalogue),
	}
	if taken.IsZero() {
		next.taken = old.taken
	}
	for _, g := range catalogue.All() {
		before := old.groups[g.ID]
		state, fresh := latest(g.ID, before, states)
		read := taken
		if before != nil && (!fresh || taken.IsZero()) {
			read = before.read
		}
		since := s.troubledSince(before, state)
		if errors.Is(state.Problem, cloud.ErrNotFound) && s.now().Sub(since) >= goneAfter {
			state, fresh = cloud.Group{ID: g.ID, Problem: state.Problem}, true
		}
		state = s.giveUpSilent(g, state)
		next.unsettled = next.unsettled || state.Unsettled != cloud.Unsettled{}
		if fresh {
			s.observeLocked(state)
			s.noteFailuresLocked(state)
			s.recordLocked(g.ID).arrivedLocked(g.Discovered || g.Dropped, state)
		}
		next.order = append(next.order, &groupView{Group: g, state: state, read: read, troubled: since})
		next.groups[g.ID] = next.order[len(next.order)-1]
	}
	s.nodeIndex(old, next)
	s.fillLocked(old, next)
	s.current.Store(next)
}

// warnOfOverrides logs what a group's own options cost: an answer to
// NodeGroupGetOptions has no field for the time a node may take to start, so
// from 1.35 on it becomes zero.
func (s *Server) warnOfOverrides(c *nodegroup.Catalogue) {
	for _, g := range c.All() {
		if _, some := g.Overrides(); some {
			s.log.Warn("scaleDown overrides make Cluster Autoscaler 1.35 and later treat a booting GPU node as unready and request another",
				zap.String(logkey.NodeGroup, g.ID))
		}
	}
}

// giveUpSilent puts an error on each placeholder that has been waited for almost as
// long as Cluster Autoscaler waits, without a word of the cloud. Without an error it
// would drop the placeholder when its time is over and request it again of the same
// group, round after round; with one it turns to another group for a while.
func (s *Server) giveUpSilent(g *nodegroup.Group, state cloud.Group) cloud.Group {
	patience := s.provisionTime(g) * 4 / 5
	silent := func(i cloud.Instance) bool {
		return patience > 0 && i.Placeholder && i.Error == nil && s.now().Sub(i.Since) >= patience
	}
	if !slices.ContainsFunc(state.Instances, silent) {
		return state
	}
	state.Instances = slices.Clone(state.Instances) // the old snapshot may share them
	for n, i := range state.Instances {
		if silent(i) {
			state.Instances[n].Error = &cloud.LaunchError{
				Code:    cloud.UnfulfillableCapacity,
				Message: fmt.Sprintf("the cloud has not delivered it within %s and gives no reason", patience),
			}
		}
	}
	return state
}

// warnOfPrices logs the groups for which a limit in dollars goes by a rough estimate.
func (s *Server) warnOfPrices(c *nodegroup.Catalogue) {
	for name, groups := range c.Unpriced() {
		for _, id := range groups {
			s.log.Warn("quota in dollars goes by a rough price, set hourlyPrice", zap.String(logkey.Quota, name), zap.String(logkey.NodeGroup, id))
		}
	}
}

// goneAfter is how long a group that the cloud does not know any more keeps the
// instances that it had. An answer without it may be a lapse; after so long nothing
// of it may keep counting against quotas and in the way of changes.
const goneAfter = 10 * time.Minute

func (s *Server) troubledSince(before *groupView, state cloud.Group) time.Time {
	switch {
	case state.Problem == nil:
		return time.Time{}
	case before != nil && !before.troubled.IsZero():
		return before.troubled
	default:
		return s.now()
	}
}

// latest returns what states has of a group, and true, or else what was last known of it.
func latest(id string, before *groupView, states map[string]cloud.Group) (state cloud.Group, fresh bool) {
	now, told := states[id]
	if told && now.Problem == nil {
		return now, true
	}
	state = lastKnown(id, before)
	if told {
		state.Problem = now.Problem
	}
	return state, false
}

// lastKnown is what a group was when the cloud last told of it. One that it has
// not told of yet is empty and cannot grow.
func lastKnown(id string, before *groupView) cloud.Group {
	if before == nil {
		return cloud.Group{ID: id}
	}
	return before.state
}

func (s *Server) recordLocked(id string) *groupRecord {
	r, ok := s.groups[id]
	if !ok {
		r = &groupRecord{lane: newLane()}
		s.groups[id] = r
	}
	return r
}

// observeLocked tells the ledger the size of a group. What may still come of an increase
// whose outcome is not known counts, so that it is not bought elsewhere.
func (s *Server) observeLocked(state cloud.Group) {
	s.ledger.Observe(state.ID, quota.Size{
		Target: state.Target + state.Unsettled.More, Deleting: len(state.Instances) - state.Target,
		CloudMax: state.Max, Machines: byType(state),
	})
}

// byType counts the machines of a group by their own type.
func byType(state cloud.Group) map[string]int {
	machines := map[string]int{}
	for _, i := range state.Instances {
		if i.Type != "" {
			machines[i.Type]++
		}
	}
	return machines
}

// nodeIndex says which group each id belongs to, and remembers which ids have gone.
func (s *Server) nodeIndex(old, next *snapshot) {
	if sameInstances(old, next) {
		next.owner = old.owner
	} else {
		next.owner = make(map[string]string, len(old.owner))
		for _, g := range next.order {
			for _, i := range g.state.Instances {
				next.owner[i.ID] = g.ID
			}
		}
	}
	next.deleting = map[string]bool{}
	for _, g := range next.order {
		for _, i := range g.state.Instances {
			if i.State == cloud.Deleting {
				next.deleting[i.ID] = true
			}
		}
	}
	next.departed = s.departed(old, next)
}

func sameInstances(old, next *snapshot) bool {
	if len(old.order) != len(next.order) {
		return false
	}
	for n, g := range next.order {
		if before := old.order[n]; before.ID != g.ID || !slices.EqualFunc(before.state.Instances, g.state.Instances,
			func(a, b cloud.Instance) bool { return a.ID == b.ID }) {
			return false
		}
	}
	return true
}

func (s *Server) departed(old, next *snapshot) map[string]departure {
	now := s.now()
	departed := make(map[string]departure, len(old.departed))
	for id, d := range old.departed {
		if now.Sub(d.at) < departedFor {
			departed[id] = d
		}
	}
	for id, group := range old.owner {
		if _, still := next.owner[id]; !still {
			departed[id] = departure{group, now}
		}
	}
	return departed
}

// fillLocked works out maxima and answers, once all sizes are known: quotas
// are shared, so one group's size moves another's maximum.
func (s *Server) fillLocked(old, next *snapshot) {
	next.nodeGroups = &proto.NodeGroupsResponse{NodeGroups: make([]*proto.NodeGroup, 0, len(next.order))}
	for _, g := range next.order {
		before := old.groups[g.ID]
		g.inFlight = s.inFlight(g.Group, g.state)
		s.followRequestLocked(before, g)
		g.limit = s.ledger.Room(g.ID)
		if more := g.state.Unsettled.More; more > 0 {
			g.limit.Text += fmt.Sprintf("; %d nodes of an unconfirmed increase included", more)
		}
		if g.state.Suspended {
			g.limit = quota.Limit{Reason: quota.AtMaximum, Text: "launching is suspended for the group in the cloud"}
		}
		s.tellProblem(before, g)
		s.tellDropped(before, g)
		s.tellIgnored(before, g)
		g.max = g.state.Target + g.limit.Room
		if g.unrequested > 0 && g.canGrow() { // so that Cluster Autoscaler can ask, and be told that it need not
			g.max = max(g.max, g.state.Target+1)
		}
		g.answers(before)
		next.nodeGroups.NodeGroups = append(next.nodeGroups.NodeGroups, g.forNode.GetNodeGroup())
	}
}

// canGrow is false for a group that takes no new nodes whatever the limits are.
func (g *groupView) canGrow() bool { return !g.Retired && !g.state.Suspended && g.unserved() == nil }

// tellProblem says what keeps a group from being served, once, and puts it in
// the place of the limit that it amounts to.
func (s *Server) tellProblem(before, g *groupView) {
	was, is := before.problem(), g.problem()
	if is != "" {
		g.limit = quota.Limit{Reason: quota.NotServed, Text: "group " + g.ID + " cannot be served: " + is}
	}
	switch {
	case is == was:
	case is != "":
		s.log.Error("node group cannot be served", zap.String(logkey.NodeGroup, g.ID), zap.String(logkey.Reason, is))
	default:
		s.log.Info("node group is served again", zap.String(logkey.NodeGroup, g.ID))
	}
}

// tellDropped tells of a group that is kept although no file has it, once.
func (s *Server) tellDropped(before, g *groupView) {
	n := len(g.state.Instances)
	if !g.Dropped || n == 0 || before != nil && before.Dropped {
		return
	}
	s.log.Warn("node group is not in the node group file and has instances, so it is kept as retired until it is empty",
		zap.String(logkey.NodeGroup, g.ID), zap.Int(logkey.Instances, n))
	if s.cluster != nil {
		s.cluster.WarnSelf("GroupNotInFile", fmt.Sprintf("node group %s is not in the node group file and has %d instances; it is kept as retired until it is empty", g.ID, n))
	}
}

// tellIgnored tells once what the cloud's group declares and does not apply.
func (s *Server) tellIgnored(before, g *groupView) {
	for _, ignored := range g.Ignored {
		if before != nil && slices.Contains(before.Ignored, ignored) {
			continue
		}
		s.log.Warn("declaration of the cloud's group ignored", zap.String(logkey.NodeGroup, g.ID), zap.String(logkey.Reason, ignored))
		if s.cluster != nil {
			s.cluster.WarnSelf("DeclarationIgnored", fmt.Sprintf("node group %s: ignored %s", g.ID, ignored))
		}
	}
}

// problem is empty for a group that is as it should be. One whose machines are
// not known has no template, and no budget could be kept with it.
func (g *groupView) problem() string {
	switch {
	case g == nil:
		return ""
	case g.state.Problem != nil:
		return g.state.Problem.Error()
	default:
		return g.Unknown
	}
}

// inFlight counts capacity that was asked for and is not yet a usable node.
func (s *Server) inFlight(g *nodegroup.Group, state cloud.Group) int {
	n := 0
	for _, i := range state.Instances {
		switch {
		case i.State == cloud.Deleting, i.Error != nil:
		case i.State == cloud.Creating:
			n++
		case s.cluster != nil && s.now().Sub(i.Since) < startupTime && !s.cluster.Usable(i.ID, g.GPUResource()):
			n++
		}
	}
	return n
}

// answers prepares the responses; what has not changed is taken over.
func (g *groupView) answers(before *groupView) {
	g.forNode = &proto.NodeGroupForNodeResponse{NodeGroup: &proto.NodeGroup{
		Id:      g.ID,
		MinSize: int32(g.minSize()),
		MaxSize: int32(g.max),
		Debug:   g.debug(),
	}}
	if before != nil && before.state.Target == g.state.Target {
		g.targetSize = before.targetSize
	} else {
		g.targetSize = &proto.NodeGroupTargetSizeResponse{TargetSize: int32(g.state.Target)}
	}
	if before != nil && slices.EqualFunc(before.state.Instances, g.state.Instances, sameAnswer) {
		g.nodes = before.nodes
	} else {
		g.nodes = nodesResponse(g.state.Instances)
	}
	if before != nil && before.Group == g.Group {
		g.template, g.noTemplate = before.template, before.noTemplate
	} else {
		g.template, g.noTemplate = templateResponse(g.Group)
	}
}

func (g *groupView) minSize() int {
	if g.Retired {
		return 0
	}
	return min(max(g.MinSize, g.state.Min), g.max)
}

// debug is what Cluster Autoscaler logs about the group; short, for all groups
// travel in one message.
func (g *groupView) debug() string {
	return fmt.Sprintf("target %d, maxSize %d, bound by %s", g.state.Target, g.MaxSize, g.limit.Text)
}
