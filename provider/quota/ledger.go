package quota

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

// Ledger accounts for all groups and quotas. All methods are safe for concurrent use
// and block on nothing but its mutex.
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
	quotas []*quotaState // quotas that cover the group and count a resource it uses
}

type quotaState struct {
	Quota
	used   int64 // units used by the groups it covers
	others int64 // units used outside those groups, from Measure
	window window
	known  bool // the limit is set
}

// total returns the units that count against the limit.
func (q *quotaState) total() int64 { return q.used + q.others }

// New returns a ledger without groups.
func New(now func() time.Time) *Ledger {
	return &Ledger{now: now, groups: map[string]*groupState{}}
}

// Configure replaces groups and quotas. Those that stay keep their sizes and surge
// windows, so that a reload does not reset a surge.
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
			if g, ok := l.groups[id]; ok && g.uses(q.Resource) {
				g.quotas = append(g.quotas, state)
				state.used += g.used(q.Resource)
			}
		}
	}
}

// uses reports whether a node of the group, or a machine that it has, uses a resource.
func (g *groupState) uses(resource string) bool {
	for _, units := range g.Each {
		if units[resource] > 0 {
			return true
		}
	}
	return g.Units[resource] > 0
}

// used counts machines by their own type, and the rest as what the group launches.
func (g *groupState) used(resource string) int64 {
	rest, used := g.size.Target+g.size.Deleting, int64(0)
	for machine, n := range g.size.Machines {
		used += int64(n) * g.UnitsOf(machine)[resource]
		rest -= n
	}
	return used + int64(max(0, rest))*g.Units[resource]
}

// Observe sets a group's size as read from the cloud. The caller must not observe a
// group between a Reserve and its effect in the cloud, else the reservation is lost.
// It ignores an unknown group.
func (l *Ledger) Observe(group string, size Size) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g, ok := l.groups[group]; ok {
		g.resize(size)
	}
}

func (g *groupState) resize(size Size) {
	for _, q := range g.quotas {
		q.used -= g.used(q.Resource)
	}
	g.size = size
	for _, q := range g.quotas {
		q.used += g.used(q.Resource)
	}
}

// grow changes the target alone.
func (g *groupState) grow(nodes int) {
	size := g.size
	size.Target += nodes
	g.resize(size)
}

// Remember adds nodes requested before this process started to the surge windows, so
// that a restart does not reset a surge. It ignores an unknown group.
func (l *Ledger) Remember(group string, requested time.Time, nodes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g, ok := l.groups[group]; ok {
		g.request(requested, nodes)
	}
}

func (g *groupState) request(at time.Time, nodes int) {
	if g.Surge != nil {
		g.window.add(request{at, g.ID, int64(nodes)})
	}
	for _, q := range g.quotas {
		if q.Surge != nil {
			q.window.add(request{at, g.ID, int64(nodes) * g.Units[q.Resource]})
		}
	}
}

// Room returns the limit that binds the group now. An unknown group has no room.
func (l *Ledger) Room(group string) Limit {
	l.mu.Lock()
	defer l.mu.Unlock()
	g, ok := l.groups[group]
	if !ok {
		return Limit{Reason: AtMaximum, Text: "the node group is not configured"}
	}
	return g.room(l.now())
}

// Reserve reserves up to want nodes and returns the number granted, with the limit
// that binds after the grant. A reservation counts until Observe or Release.
func (l *Ledger) Reserve(group string, want int) (granted int, limit Limit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g, ok := l.groups[group]
	if !ok {
		return 0, Limit{Reason: AtMaximum, Text: "the node group is not configured"}
	}
	limit = g.room(l.now())
	granted = min(want, limit.Room)
	if granted > 0 {
		g.grow(granted)
		g.request(l.now(), granted)
		limit = g.room(l.now())
	}
	return granted, limit
}

// Release cancels a reservation that had no effect in the cloud.
func (l *Ledger) Release(group string, nodes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g, ok := l.groups[group]; ok {
		g.grow(-nodes)
		g.refund(nodes)
	}
}

// Measure sets the limit of a measured quota and the use outside the groups that it
// covers, both in units. It ignores an unknown name.
func (l *Ledger) Measure(name string, limit, others int64, source string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, q := range l.quotas {
		if q.Name == name && q.Measured {
			q.Limit, q.others, q.Source, q.known = limit, others, source, true
		}
	}
}

// Refund removes cancelled placeholders from the surge windows.
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

// Usage returns the state of every quota, in configuration order.
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

// candidate is a limit with a deferred text: every refresh compares all limits, and
// only the text of the one that binds is used.
type candidate struct {
	reason Reason
	room   int
	text   func() string
}

// room returns the limit that binds.
func (g *groupState) room(now time.Time) Limit {
	candidates := []candidate{
		{AtMaximum, max(0, g.Max-g.size.Target), g.maximumText},
		{AtMaximum, max(0, g.size.CloudMax-g.size.Target), g.cloudMaximumText},
	}
	if g.Surge != nil {
		g.window.slide(now, g.Surge.Window)
		candidates = append(candidates, candidate{SurgeLimited, fitting(g.Surge.Max-g.window.sum, 1), func() string { return g.surgeText(now) }})
	}
	for _, q := range g.quotas {
		unit := g.Units[q.Resource]
		if unit == 0 {
			continue // only machines from before the group's type changed use it
		}
		if q.known {
			candidates = append(candidates, candidate{QuotaExhausted, fitting(q.Limit-q.total(), unit), func() string { return q.text(g) }})
		}
		if q.Surge != nil {
			q.window.slide(now, q.Surge.Window)
			candidates = append(candidates, candidate{SurgeLimited, fitting(q.Surge.Max-q.window.sum, unit), func() string { return q.surgeText(g, now) }})
		}
	}
	binds := slices.MinFunc(candidates, func(a, b candidate) int { return a.room - b.room })
	return Limit{Reason: binds.reason, Room: binds.room, Text: binds.text()}
}

func (g *groupState) maximumText() string {
	if g.Max == 0 {
		return fmt.Sprintf("group %s cannot grow (maxSize 0 or retired in the node group file)", g.ID)
	}
	return fmt.Sprintf("maxSize %d of group %s in the node group file", g.Max, g.ID)
}

func (g *groupState) cloudMaximumText() string {
	return fmt.Sprintf("maximum %d of the group in the cloud", g.size.CloudMax)
}

// fitting returns how many nodes of unit units fit into left.
func fitting(left, unit int64) int {
	return int(max(0, left/unit))
}
