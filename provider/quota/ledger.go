package quota

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

// Ledger is the budget of all groups. All methods are safe for concurrent use;
// none of them waits for anything but the others.
type Ledger struct {
	now func() time.Time

	mu     sync.Mutex
	groups map[string]*groupState
	quotas []*quotaState
}

type groupState struct {
	Group
	size   Size
	window window
	quotas []*quotaState // those that cover the group and whose resource it uses
}

type quotaState struct {
	Quota
	used   int64 // by the groups it covers
	others int64 // measured, by whoever else shares it
	window window
	known  bool
}

// total is what counts against the limit.
func (q *quotaState) total() int64 { return q.used + q.others }

// New makes a ledger without groups.
func New(now func() time.Time) *Ledger {
	return &Ledger{now: now, groups: map[string]*groupState{}}
}

// Configure replaces groups and quotas. Sizes and surge windows of groups and
// quotas that stay are kept, so that a reload is no way round a surge.
func (l *Ledger) Configure(groups []Group, quotas []Quota) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.groups
	before := map[string]*quotaState{}
	for _, q := range l.quotas {
		before[q.Name+"/"+q.Resource] = q
	}
	l.groups = make(map[string]*groupState, len(groups))
	for _, g := range groups {
		state := &groupState{Group: g, size: Size{CloudMax: math.MaxInt}}
		if before, ok := old[g.ID]; ok {
			state.size, state.window = before.size, before.window
		}
		l.groups[g.ID] = state
	}
	l.quotas = nil
	for _, q := range quotas {
		state := &quotaState{Quota: q, known: !q.Measured}
		if b, ok := before[q.Name+"/"+q.Resource]; ok {
			state.window = b.window
			if q.Measured && b.Measured {
				state.known, state.others, state.Limit, state.Source = b.known, b.others, b.Limit, b.Source
			}
		}
		l.quotas = append(l.quotas, state)
		for _, id := range q.Groups {
			if g, ok := l.groups[id]; ok && g.Units[q.Resource] > 0 {
				g.quotas = append(g.quotas, state)
				state.used += g.used(q.Resource)
			}
		}
	}
}

func (g *groupState) used(resource string) int64 {
	return int64(g.size.Target+g.size.Deleting) * g.Units[resource]
}

// Observe replaces what is known of a group's size. The caller must not
// observe a group while a reservation of it is neither observed nor released,
// else what was reserved is forgotten. An unknown group is ignored.
func (l *Ledger) Observe(group string, size Size) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g, ok := l.groups[group]; ok {
		g.resize(size)
	}
}

func (g *groupState) resize(size Size) {
	delta := int64(size.Target + size.Deleting - g.size.Target - g.size.Deleting)
	for _, q := range g.quotas {
		q.used += delta * g.Units[q.Resource]
	}
	g.size = size
}

// Remember puts growth into the surge windows that was asked for before this
// process began, so that a restart is no way round a surge.
func (l *Ledger) Remember(group string, asked time.Time, nodes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g, ok := l.groups[group]; ok {
		g.ask(asked, nodes)
	}
}

func (g *groupState) ask(at time.Time, nodes int) {
	if g.Surge != nil {
		g.window.add(ask{at, g.ID, int64(nodes)})
	}
	for _, q := range g.quotas {
		if q.Surge != nil {
			q.window.add(ask{at, g.ID, int64(nodes) * g.Units[q.Resource]})
		}
	}
}

// Room says how many more nodes of the group fit now, and which limit binds.
// An unknown group has no room.
func (l *Ledger) Room(group string) Limit {
	l.mu.Lock()
	defer l.mu.Unlock()
	g, ok := l.groups[group]
	if !ok {
		return Limit{Reason: AtMaximum, Text: "the node group is not configured"}
	}
	return g.room(l.now(), 0)
}

// Reserve takes up to want nodes out of the budget and says how many it took;
// limit tells what keeps it from taking more. Surges are not held against the
// first announced nodes: the caller has already said that there is room for
// those. What is reserved counts until Observe or Release.
func (l *Ledger) Reserve(group string, want, announced int) (granted int, limit Limit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g, ok := l.groups[group]
	if !ok {
		return 0, Limit{Reason: AtMaximum, Text: "the node group is not configured"}
	}
	limit = g.room(l.now(), announced)
	granted = min(want, limit.Room)
	if granted > 0 {
		g.resize(Size{g.size.Target + granted, g.size.Deleting, g.size.CloudMax})
		g.ask(l.now(), granted)
		limit = g.room(l.now(), announced-granted) // as it is with the grant
	}
	return granted, limit
}

// Release gives a reservation back that led to nothing.
func (l *Ledger) Release(group string, nodes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g, ok := l.groups[group]; ok {
		g.resize(Size{g.size.Target - nodes, g.size.Deleting, g.size.CloudMax})
		g.refund(nodes)
	}
}

// Measure gives a measured quota its limit, and what others use than the groups it
// covers, in units. An unknown name is ignored.
func (l *Ledger) Measure(name string, limit, others int64, source string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, q := range l.quotas {
		if q.Name == name && q.Measured {
			q.Limit, q.others, q.Source, q.known = limit, others, source, true
		}
	}
}

// Refund takes cancelled placeholders out of the surge windows.
func (l *Ledger) Refund(group string, nodes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g, ok := l.groups[group]; ok {
		g.refund(nodes)
	}
}

func (g *groupState) refund(nodes int) {
	g.window.refund(g.ID, int64(nodes))
	for _, q := range g.quotas {
		q.window.refund(g.ID, int64(nodes)*g.Units[q.Resource])
	}
}

// Usage tells the state of every quota, in the order of the configuration.
func (l *Ledger) Usage() []Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	usage := make([]Usage, 0, len(l.quotas))
	for _, q := range l.quotas {
		usage = append(usage, Usage{
			Name: q.Name, Resource: q.Resource, Source: q.Source,
			Used:  float64(q.total()) / float64(q.Scale),
			Limit: float64(q.Limit) / float64(q.Scale),
			Known: q.known,
		})
	}
	return usage
}

// candidate is a limit whose text is not written yet: of all that are looked
// at on every refresh, only the one that binds is read.
type candidate struct {
	reason Reason
	room   int
	text   func() string
}

// room finds the limit that binds. Surges leave at least surgeFloor nodes.
func (g *groupState) room(now time.Time, surgeFloor int) Limit {
	candidates := []candidate{
		{AtMaximum, max(0, g.Max-g.size.Target), g.maximumText},
		{AtMaximum, max(0, g.size.CloudMax-g.size.Target), g.cloudMaximumText},
	}
	if g.Surge != nil {
		g.window.slide(now, g.Surge.Window)
		left := whole(g.Surge.Max-g.window.sum, 1)
		candidates = append(candidates, candidate{SurgeLimited, max(left, surgeFloor), func() string { return g.surgeText(now) }})
	}
	for _, q := range g.quotas {
		unit := g.Units[q.Resource]
		if q.known {
			candidates = append(candidates, candidate{QuotaExhausted, whole(q.Limit-q.total(), unit), q.text})
		}
		if q.Surge != nil {
			q.window.slide(now, q.Surge.Window)
			left := whole(q.Surge.Max-q.window.sum, unit)
			candidates = append(candidates, candidate{SurgeLimited, max(left, surgeFloor), func() string { return q.surgeText(now) }})
		}
	}
	binds := slices.MinFunc(candidates, func(a, b candidate) int { return a.room - b.room })
	return Limit{Reason: binds.reason, Room: binds.room, Text: binds.text()}
}

func (g *groupState) maximumText() string {
	if g.Max == 0 {
		return fmt.Sprintf("group %s takes no new nodes (maxSize 0 or retired in the node group file)", g.ID)
	}
	return fmt.Sprintf("maxSize %d of group %s in the node group file", g.Max, g.ID)
}

func (g *groupState) cloudMaximumText() string {
	return fmt.Sprintf("maximum %d of the cloud's own group", g.size.CloudMax)
}

// whole is how many nodes of unit fit into left.
func whole(left, unit int64) int {
	return int(max(0, left/unit))
}
