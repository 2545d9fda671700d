package simulated

import (
	"maps"
	"math/rand/v2"
	"slices"
	"time"
)

// keepGone is how long a gone machine is remembered, so that its Node is
// removed even while its group is not configured. Nothing else needs it: Lookup
// tells gone ids by their form, and serials never come again.
const keepGone = time.Hour

// state is all the cloud remembers. A state that was handed out is never
// changed, nor are the slices in it.
type state struct {
	// Clock is the latest time at which anybody looked.
	Clock    time.Time
	Sequence sequence
	Groups   map[string][]unit
}

func newState(random *rand.Rand) *state {
	return &state{Sequence: newSequence(random), Groups: map[string][]unit{}}
}

// edit returns a copy that may be changed in the named group only. What has
// been gone for long is left out of it.
func (s *state) edit(group string, now time.Time) *state {
	next := *s
	next.Groups = maps.Clone(s.Groups)
	next.Groups[group] = slices.DeleteFunc(slices.Clone(s.Groups[group]), func(u unit) bool {
		return u.isGone(now.Add(-keepGone))
	})
	if len(next.Groups[group]) == 0 {
		delete(next.Groups, group)
	}
	return &next
}

// used holds the serials of all known units.
func (s *state) used() map[string]bool {
	used := map[string]bool{}
	for _, units := range s.Groups {
		for _, u := range units {
			used[u.Serial] = true
		}
	}
	return used
}
