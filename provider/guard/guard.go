package guard

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpu-node-provider/cloud/logkey"
	"gpu-node-provider/provider/checkpoint"
	"gpu-node-provider/provider/cluster"
	"gpu-node-provider/provider/nodegroup"
	"gpu-node-provider/provider/report"
)

// Asker asks trainers for checkpoints and hears of their acknowledgements.
type Asker interface {
	Ask(ctx context.Context, p checkpoint.PodID, r checkpoint.Request, ttl time.Duration) (checkpoint.Request, error)
	Listen(ctx context.Context, heard func(checkpoint.PodID))
}

// Policy is the part of the node group file that the guard goes by.
type Policy struct {
	checkpoint.Policy
	Observe     bool // judge and report, hold nothing
	AskAfter    time.Duration
	AskEvery    time.Duration
	AskOnTaints []string
}

// Options are the parts of a Guard.
type Options struct {
	Assessor *checkpoint.Assessor
	View     *cluster.View
	Record   *checkpoint.Record
	Asker    Asker
	Policy   func() Policy
	// Place finds the node group of an instance; false when the instance is in none of ours, or gone.
	Place func(instance string) (nodegroup.Place, bool)
	// Read returns when a group was last read from the cloud; false when that failed or
	// the group is unknown.
	Read func(group string) (time.Time, bool)
	// GroupLabel names its group on every Node of ours. The guard adds it where the
	// kubelet did not.
	GroupLabel string
	Log        *zap.Logger
	Now        func() time.Time
	Metrics    *Metrics // may be nil
}

// Guard is the controller; Run runs it.
type Guard struct {
	Options

	kicked chan struct{}      // there are dirty nodes
	whole  chan chan struct{} // asks for a pass over all nodes, and is told of its end

	placed atomic.Bool // Place finds every instance
	passed atomic.Bool // every instance has been looked at since

	mu    sync.Mutex
	dirty map[string]bool        // names of Nodes to look at
	holds map[string]report.Hold // by instance
	asked map[types.UID]time.Time

	// What the guard itself remembers, used by its own goroutine only.
	underused map[string]time.Time // since when, by instance
	last      map[types.UID]outcome
	missing   map[string]time.Time // the reading that did not have an instance first
	paidUntil time.Time            // up to when the cost of holding is counted
	unread    time.Time            // since when Redis cannot be read; zero while it can
}

// New makes a Guard that has looked at nothing yet.
func New(o Options) *Guard {
	return &Guard{
		Options: o,
		kicked:  make(chan struct{}, 1), whole: make(chan chan struct{}),
		dirty: map[string]bool{}, holds: map[string]report.Hold{}, asked: map[types.UID]time.Time{},
		underused: map[string]time.Time{}, last: map[types.UID]outcome{}, missing: map[string]time.Time{},
	}
}

// outcome is what was said of a pod before, so that Events tell of changes only.
type outcome struct {
	stage checkpoint.Stage
	clear bool
	bad   string
}

// pollEvery is how often every trainer's keys are read: acknowledgements are
// announced too, but an announcement can be lost.
const pollEvery = 5 * time.Second

// settleFor gathers changes that come together.
const settleFor = 100 * time.Millisecond

// AllPlaced tells the guard that Place finds every instance from now on. Until then
// Nodes are placed by their labels, and no mark is taken off for want of an instance.
func (g *Guard) AllPlaced() { g.placed.Store(true) }

// FirstPass calls AllPlaced and returns once every instance has been looked at since.
// Run must be running.
func (g *Guard) FirstPass(ctx context.Context) error {
	g.AllPlaced()
	done := make(chan struct{})
	select {
	case g.whole <- done:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run follows the cluster until ctx is done. The record must have been loaded.
func (g *Guard) Run(ctx context.Context) error {
	if err := g.View.Changes(g.Kick); err != nil {
		return err
	}
	var listening sync.WaitGroup
	listening.Go(func() {
		g.Asker.Listen(ctx, g.kickPod)
	})
	defer listening.Wait()
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	g.Pass(ctx)
	for {
		select {
		case <-ctx.Done():
			return nil
		case done := <-g.whole:
			g.Pass(ctx)
			close(done)
		case <-poll.C:
			g.Pass(ctx)
		case <-g.kicked:
			if !wait(ctx, settleFor) {
				return nil
			}
			g.mu.Lock()
			nodes := g.dirty
			g.dirty = map[string]bool{}
			g.mu.Unlock()
			g.pass(ctx, nodes)
		}
	}
}

func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Kick has a node looked at soon.
func (g *Guard) Kick(node string) {
	g.mu.Lock()
	g.dirty[node] = true
	g.mu.Unlock()
	select {
	case g.kicked <- struct{}{}:
	default: // it has been kicked already
	}
}

// kickPod has the node of a pod looked at. Who is not recorded yet is found by
// the next poll.
func (g *Guard) kickPod(p checkpoint.PodID) {
	for _, m := range g.Record.Machines() {
		for _, recorded := range m.Pods {
			if recorded.UID == string(p.UID) {
				g.Kick(m.Node)
				return
			}
		}
	}
}

// subject is an instance to look at.
type subject struct {
	instance string
	place    nodegroup.Place
	node     *corev1.Node // nil without a Node
	recorded checkpoint.Machine
	pods     []checkpoint.Pod
}

// Pass looks at every instance once. Run does so by itself, and nothing else may
// while it runs.
func (g *Guard) Pass(ctx context.Context) {
	placed := g.placed.Load()
	g.pass(ctx, nil)
	if placed && ctx.Err() == nil {
		g.passed.Store(true)
	}
}

// pass looks at the named nodes, or at all.
func (g *Guard) pass(ctx context.Context, names map[string]bool) {
	subjects := g.subjects(ctx, names)
	var pods []checkpoint.Pod
	for _, s := range subjects {
		pods = append(pods, s.pods...)
	}
	judged, err := g.Assessor.Judge(ctx, pods)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		g.Metrics.redisFailed(err)
		g.Log.Error("failed to read acknowledgements, training nodes stay held", zap.Error(err), zap.Int(logkey.Pods, len(pods)))
		judged = g.unknown(pods, err)
	} else if len(pods) > 0 { // without any, Redis is not read
		g.unread = time.Time{}
	}
	verdicts := make([][]checkpoint.Judged, 0, len(subjects)) // of each
	machines := make([]checkpoint.Machine, 0, len(subjects))
	for _, s := range subjects {
		of := judged[:len(s.pods)]
		judged = judged[len(s.pods):]
		verdicts = append(verdicts, of)
		machines = append(machines, machine(s, kept(of)))
	}
	g.remember(ctx, machines...) // before any mark, and each ConfigMap once
	for n, s := range subjects {
		g.settle(ctx, s, verdicts[n])
	}
	if names == nil {
		g.forget(pods)
		g.bill(subjects)
	}
	g.Metrics.holding(g.Holds())
}

// redisPatience is how long a trainer that was clear stays so while Redis cannot
// be read, as far as marks on Nodes go. Without it one lost packet would be a write
// to every training node, and another one at the next look. Nothing dies of it: webhook and
// gate read for themselves.
const redisPatience = 3 * pollEvery

// unknown are verdicts without Redis: whoever may have something to lose is not clear.
func (g *Guard) unknown(pods []checkpoint.Pod, err error) []checkpoint.Judged {
	if g.unread.IsZero() {
		g.unread = g.Now()
	}
	patient := g.Now().Sub(g.unread) < redisPatience
	judged := make([]checkpoint.Judged, 0, len(pods))
	for _, p := range pods {
		nothing := p.Stage == checkpoint.Waiting || p.Stage == checkpoint.Succeeded || p.Released != ""
		before := g.last[p.ID().UID]
		nothing = nothing || patient && p.Stage == checkpoint.Running && before.stage == p.Stage && before.clear
		judged = append(judged, checkpoint.Judged{Pod: p, Verdict: checkpoint.Verdict{Clear: nothing, Reason: "its acknowledgement is unknown: " + checkpoint.Cause(err)}})
	}
	return judged
}

// subjects finds the instances behind the names: those whose Node is there, and
// those that the record remembers although it is not.
func (g *Guard) subjects(ctx context.Context, names map[string]bool) []subject {
	candidates := map[string]*corev1.Node{}
	for _, node := range g.nodes(names) {
		if node.Spec.ProviderID != "" {
			candidates[node.Spec.ProviderID] = node
		}
	}
	for _, m := range g.Record.Machines() {
		if _, known := candidates[m.Instance]; !known && (names == nil || names[m.Node]) {
			candidates[m.Instance], _ = g.View.Node(m.Instance) // nil without a Node
		}
	}
	var all []subject
	for _, instance := range slices.Sorted(maps.Keys(candidates)) {
		if s, worth := g.subject(ctx, instance, candidates[instance]); worth {
			all = append(all, s)
		}
	}
	return all
}

func (g *Guard) nodes(names map[string]bool) []*corev1.Node {
	if names == nil {
		return g.View.Nodes()
	}
	var nodes []*corev1.Node
	for name := range names {
		if node, ok := g.View.NodeNamed(name); ok {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// subject is not worth looking at without pods, record or mark.
func (g *Guard) subject(ctx context.Context, instance string, node *corev1.Node) (s subject, worth bool) {
	place, ours := g.Place(instance)
	s = subject{instance: instance, place: place, node: node, recorded: g.Record.Of(instance)}
	if !ours {
		g.gone(ctx, s)
		return s, false
	}
	delete(g.missing, instance)
	on := s.recorded.Node // Pods may outlive the object of their Node
	if node != nil {
		on = node.Name
	}
	s.pods = g.Assessor.Merge(s.recorded.Pods, g.Assessor.On(on, s.recorded.Pods), node)
	g.label(ctx, s)
	return s, len(s.pods) > 0 || len(s.recorded.Pods) > 0 || marked(node) || wished(node)
}

// label names a Node's group on it, for replicas that stand by and for people.
func (g *Guard) label(ctx context.Context, s subject) {
	if s.node == nil || s.node.Labels[g.GroupLabel] == s.place.Group {
		return
	}
	if err := g.View.Label(ctx, s.node, g.GroupLabel, s.place.Group); err != nil {
		g.Log.Warn("failed to label a node, will retry", zap.String(logkey.Node, s.node.Name), zap.Error(err))
	}
}

// gone drops what is remembered of an instance, once the cloud has said twice
// that there is no such instance in its group. A group that cannot be read, or
// that is not in the node group file at this moment, says nothing.
func (g *Guard) gone(ctx context.Context, s subject) {
	g.mu.Lock()
	delete(g.holds, s.instance)
	g.mu.Unlock()
	delete(g.underused, s.instance)
	if len(s.recorded.Pods) == 0 {
		delete(g.missing, s.instance)
		if g.placed.Load() && marked(s.node) { // a person took the instance out of its group
			g.mark(ctx, s, nil, false, false)
		}
		return
	}
	read, ok := g.Read(s.recorded.Group)
	if !ok {
		return
	}
	first, before := g.missing[s.instance]
	if !before {
		g.missing[s.instance] = read
	}
	if !before || !read.After(first) {
		return
	}
	delete(g.missing, s.instance)
	lost := g.lost(ctx, s.recorded.Pods)
	g.Metrics.lost(lost)
	g.Log.Warn("an instance is gone, its training pods leave the record", zap.String(logkey.Instance, s.instance), zap.Int(logkey.Pods, len(s.recorded.Pods)), zap.Int(logkey.PodsUnsaved, lost))
	s.recorded.Pods = nil
	if err := g.Record.Put(ctx, s.recorded); err != nil {
		g.Log.Error("failed to write the record of training pods", zap.Error(err))
	}
}

// lost counts the pods that had not saved when their machine went.
func (g *Guard) lost(ctx context.Context, pods []checkpoint.Pod) (lost int) {
	judged, err := g.Assessor.Judge(ctx, pods)
	if err != nil {
		return len(pods)
	}
	for _, p := range judged {
		if !p.Clear {
			lost++
		}
	}
	return lost
}

// bill counts what holding costs: the time of nodes that Cluster Autoscaler could
// take if nobody held them.
func (g *Guard) bill(subjects []subject) {
	now := g.Now()
	elapsed := now.Sub(g.paidUntil)
	first := g.paidUntil.IsZero()
	g.paidUntil = now
	if first || g.Policy().Observe { // in observe nothing is held, so nothing is paid for it
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range subjects {
		if _, held := g.holds[s.instance]; held && s.place.AboveMin && (s.node == nil || g.mostlyFree(s.node)) {
			g.Metrics.cost(s.place, elapsed)
		}
	}
}

// forget drops what is remembered of pods that are no more.
func (g *Guard) forget(pods []checkpoint.Pod) {
	there := map[types.UID]bool{}
	for _, p := range pods {
		there[types.UID(p.UID)] = true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.DeleteFunc(g.asked, func(uid types.UID, _ time.Time) bool { return !there[uid] })
	maps.DeleteFunc(g.last, func(uid types.UID, _ outcome) bool { return !there[uid] })
}

// Holds are the nodes that are held now.
func (g *Guard) Holds() []report.Hold {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make([]report.Hold, 0, len(g.holds))
	for _, instance := range slices.Sorted(maps.Keys(g.holds)) {
		all = append(all, g.holds[instance])
	}
	return all
}
