package awstest

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Call is one call of the API that arrived.
type Call struct {
	// Service and Action are as in an IAM policy: autoscaling, SetDesiredCapacity.
	Service, Action string
	Params          map[string]string
	At              time.Time
	// Outcome is "ok", an error code, "cut", or "hung" when the caller has given
	// up; empty while under way.
	Outcome string
	// Applied says whether the call took effect, whatever the caller was told.
	Applied bool
}

// Names are the values of a list parameter, such as "InstanceIds.member".
func (c Call) Names(prefix string) []string { return request{params: c.Params}.list(prefix) }

// Why is the reason an instance was ended.
type Why string

// The reasons. All but Asked are deaths that no caller of the API asked for by id.
const (
	Asked       Why = "asked by id"
	Victim      Why = "chosen by scale-in"
	Rebalanced  Why = "availability zone rebalancing"
	Unhealthy   Why = "found unhealthy"
	Interrupted Why = "ended outside the group"
)

// Kill is the end of one instance.
type Kill struct {
	Instance string
	Group    string
	// State is the lifecycle state the instance was in.
	State string
	Why   Why
	At    time.Time
	// Call is the number of calls that had arrived by then.
	Call int
}

// ledger is what was done, in order. Its own lock lets calls that hang be noted.
type ledger struct {
	mu    sync.Mutex
	calls []*Call
	kills []Kill
}

func (l *ledger) arrive(r request, at time.Time) *Call {
	c := &Call{Service: r.service, Action: r.action, Params: r.params, At: at}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, c)
	return c
}

func (l *ledger) note(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

// Calls are the calls of these actions, or all, in the order of their arrival.
func (l *ledger) Calls(actions ...string) []Call {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []Call
	for _, c := range l.calls {
		if len(actions) == 0 || slices.Contains(actions, c.Action) {
			list = append(list, *c)
		}
	}
	return list
}

// Count is how often an action was called, whatever came of it.
func (l *ledger) Count(action string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, c := range l.calls {
		if c.Action == action {
			n++
		}
	}
	return n
}

// Counts are the calls of each action.
func (l *ledger) Counts() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	counts := map[string]int{}
	for _, c := range l.calls {
		counts[c.Action]++
	}
	return counts
}

// Actions are the actions that were called, as an IAM policy names them, sorted.
func (l *ledger) Actions() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := map[string]bool{}
	for _, c := range l.calls {
		seen[c.Service+":"+c.Action] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

// Kills are the instances that were ended, in order.
func (l *ledger) Kills() []Kill {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.kills)
}

// Victims are the instances in service that scale-in chose. Where the caller
// only ever asks by id, there must be none.
func (l *ledger) Victims() []Kill {
	var list []Kill
	for _, k := range l.Kills() {
		if k.Why == Victim && k.State == InService {
			list = append(list, k)
		}
	}
	return list
}
