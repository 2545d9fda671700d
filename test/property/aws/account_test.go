package aws

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// call is one call of the provider, as its caller sees it.
type call struct {
	kind, group string
	named       []string // to be deleted
	at          time.Time
	deadline    time.Time // zero without one
	from        *process
	failed      int // placeholders of the group that were listed as failed
	need, ready int // of the group, as Cluster Autoscaler counted them

	// what has come of it, guarded by region.mu
	began    map[string]truth
	grown    int
	lowered  int  // by giving up placeholders, less what was raised again
	inFlight int  // the most that the group has had in flight since it began
	running  int  // the most that it has had in service
	base     int  // the largest target that the group has had at one of its readings
	overlaps bool // another call was under way, or had an effect
	lagged   bool // a reading was from before the last write
	read     bool // its caller has read OK
	ended    time.Time
	struck   bool // a call of AWS met trouble
	arrived  int  // machines that have come since the group was last read
	seen     *truth
	whole    *reading
}

// reading is what AWS was when a call of the provider read all groups afresh.
type reading struct {
	version        map[string]int
	drift          int
	raised, fallen map[string]int
}

type callKey struct{}

// account is what the search remembers, to hold the provider against.
type account struct {
	turns   []turn // of the next calls of AWS
	nesting bool   // a nested call is under way
	found   error
	// settled is until when readings do not lag. A new process cannot know what its
	// predecessor has just written, and takes longer to start than AWS lags.
	settled time.Time
	wrote   map[string]time.Time // when a group was last written to
	acked   map[string]time.Time // when the provider was last told that it was

	need   map[string]int // Pods, one a node
	ready  map[string]int // nodes that Cluster Autoscaler has counted last
	asked  map[string]bool
	judged int // of the Stub's kills
	active map[*call]bool

	// drift counts GPUs that others than the provider have added since it last read all
	// groups, and raised by how much they have raised the target of each.
	drift  int
	raised map[string]int
	fallen map[string]int // likewise, by how much they have lowered it
	growth []growth
	// unclear is set once the surge that is left cannot be told any more.
	unclear bool
	// version counts the changes of each group's target. shown holds the groups of which
	// the provider must show the truth: since a reading, until one that lags is answered, or
	// since an acknowledged write. outside is when somebody else last changed the desired
	// capacity of a group.
	version map[string]int
	shown   map[string]since
	outside map[string]time.Time
	// moved holds the groups whose target others than the provider have changed since it
	// started.
	moved  map[string]bool
	readAt time.Time // when it last read all groups
	// absorbed holds the groups whose last increase was answered without buying, by
	// capacity in flight that Cluster Autoscaler counts from then on.
	absorbed map[string]bool
}

// since is what makes the provider know the truth about a group.
type since int

const (
	notKnown since = iota
	aReading
	aWrite
)

func newAccount() account {
	return account{
		need: map[string]int{}, ready: map[string]int{}, asked: map[string]bool{}, active: map[*call]bool{}, raised: map[string]int{}, fallen: map[string]int{},
		version: map[string]int{}, wrote: map[string]time.Time{}, acked: map[string]time.Time{}, shown: map[string]since{}, outside: map[string]time.Time{}, moved: map[string]bool{}, absorbed: map[string]bool{},
	}
}

// fail keeps the first thing that must not have happened.
func (w *region) fail(format string, arguments ...any) {
	if w.found == nil {
		w.found = fmt.Errorf(format, arguments...)
	}
}

// doubtful notes a termination whose answer may be lost. The provider takes it for
// somebody else's change when AWS cannot be read either.
func (w *region) doubtful(s *sent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.moved[s.group] = w.moved[s.group] || s.action == terminate
}

// deniedFor is how long a desired capacity that somebody else takes back to a value from
// before a write may pass for an answer that lags.
const deniedFor = 2 * time.Minute

// keptLocked: what arrives while placeholders are given up is desired again.
func (w *region) keptLocked(c *call, err error) {
	now, before := w.truth(c.group), c.began[c.group]
	if err != nil || c.struck || c.overlaps || w.deniedLocked(c.group) {
		return
	}
	if surplus := now.live - now.desired; surplus > max(0, before.live-before.desired)+c.arrived {
		w.fail("%d machines of %s came while placeholders were given up, and were not kept", surplus, c.group)
	}
}

// blamed: nobody else is blamed for what the provider has done.
func (w *region) blamed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range pools {
		if n := w.counter("capacity_changed_outside_total", id); n > 0 && !w.moved[id] {
			w.fail("%d changes of the target of %s were taken for somebody else's", n, id)
		}
	}
}

func (w *region) deniedLocked(id string) bool { return w.now().Sub(w.outside[id]) < deniedFor }

// doubtFor is how long a change may be the effect of a write whose answer was lost.
const doubtFor = 50 * time.Second

// begin opens the account of a call.
func (w *region) begin(kind, group string) *call {
	all := w.truths()
	c := &call{kind: kind, group: group, at: w.now(), from: w.process, need: w.need[group], ready: w.ready[group], began: all}
	if group != "" {
		c.inFlight, c.running, c.base = all[group].inFlight(), all[group].inService, all[group].target()
		for _, i := range w.instances(group) {
			if i.GetStatus().GetErrorInfo() != nil {
				c.failed++
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for other := range w.active {
		other.overlaps, c.overlaps = true, true
	}
	w.active[c] = true
	return c
}

// end closes it. The error is nil if the caller has read an answer of OK.
func (w *region) end(c *call, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.active, c)
	c.read, c.ended = err == nil, w.now()
	if c.lowered > 0 {
		w.refund(c.group, c.lowered)
		w.keptLocked(c, err)
	}
	if err != nil || c.whole == nil || c.overlaps {
		return
	}
	if w.now().Sub(w.readAt) > doubtFor {
		w.moved["t4"], w.moved["l4"] = true, true
	}
	w.readAt = w.now()
	if slices.ContainsFunc(pools, w.deniedLocked) {
		return
	}
	w.drift -= c.whole.drift
	for _, id := range pools {
		w.raised[id] -= c.whole.raised[id]
		w.fallen[id] -= c.whole.fallen[id]
		if w.version[id] == c.whole.version[id] {
			w.shown[id] = max(w.shown[id], aReading)
		}
	}
}

// perform makes a call of the provider with a deadline, as Cluster Autoscaler does.
func (w *region) perform(kind, group string, named []string, do func(ctx context.Context) error) (*call, error) {
	c := w.begin(kind, group)
	c.named = named
	c.deadline = time.Now().Add(grpcTimeout)
	ctx, cancel := context.WithDeadline(context.WithValue(context.Background(), callKey{}, c), c.deadline)
	defer cancel()
	err := do(ctx)
	if end := ctx.Err(); end != nil {
		err = end // the answer came too late
	}
	if c.from.dead.Load() {
		err = errKilled
	}
	w.end(c, err)
	w.say("  %s %s: %v; targets t4 %d, l4 %d", kind, group, err, w.target("t4"), w.target("l4"))
	return c, err
}

var errKilled = errors.New("the provider was killed")

// growth is what one increase has requested.
type growth struct {
	at    time.Time
	group string
	nodes int
}
