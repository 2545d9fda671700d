// Package cloudtest is the contract of cloud.Backend as tests: one subtest for
// each sentence of it, which every Backend passes.
//
// It does not know any Backend. It assumes neither that machines boot at once
// nor that they take time, and nothing about the form of ids.
package cloudtest

import (
	"context"
	"slices"
	"testing"

	"gpu-node-provider/cloud"
)

// Room is how many units each group of a Harness must be able to hold.
const Room = 8

// Harness is a Backend with what a check needs to make things happen to it.
// Each check gets a fresh one.
type Harness struct {
	// Backend is under test, configured with Specs.
	Backend cloud.Backend
	// Specs are at least two groups, empty, with a Min of 0, a Max of Room or
	// more, and no faults.
	Specs []cloud.Spec
	// Settle returns once nothing is under way any more: machines that will come
	// are running, launches that fail show their error, and what was deleting is
	// gone.
	Settle func(t testing.TB)
	// Starve makes the launches of a group which are asked for from now on fail
	// for lack of capacity.
	Starve func(t testing.TB, group string)
	// Immediate is set where a unit may be a machine as soon as it is asked for.
	// Then the checks that need a placeholder which becomes a machine are no part
	// of the suite.
	Immediate bool
	// Reopen is optional. It ends the Backend's process and returns one, not
	// configured, that a new process would have of the same cloud. Without it
	// reopenChecks are no part of the suite.
	Reopen func(t testing.TB) cloud.Backend
	// EndMidway is optional. It returns a context that ends while the next call
	// is under way, as far as that can be arranged. Without it midwayChecks are no part
	// of the suite.
	EndMidway func(t testing.TB) context.Context
}

// Run runs the suite, with a new Harness for each check.
func Run(t *testing.T, fresh func(t *testing.T) Harness) {
	for _, topic := range topics(fresh(t)) {
		t.Run(topic.name, func(t *testing.T) {
			for _, check := range topic.checks {
				t.Run(check.name, func(t *testing.T) { check.run(newEnv(t, fresh(t))) })
			}
		})
	}
}

// check is one promise of the contract.
type check struct {
	name string
	run  func(e *env)
}

// topic is what the checks of one file are about.
type topic struct {
	name   string
	checks []check
}

// topics returns the checks that a Harness can play.
func topics(h Harness) []topic {
	cancel, lookup, configure, deadlines := cancelChecks, lookupChecks, configureChecks, deadlineChecks
	if !h.Immediate {
		cancel = slices.Concat(cancel, cancelArrivedChecks)
		lookup = slices.Concat(lookup, lookupArrivedChecks)
	}
	if h.Reopen != nil {
		configure = slices.Concat(configure, reopenChecks)
	}
	if h.EndMidway != nil {
		deadlines = slices.Concat(deadlines, midwayChecks)
	}
	return []topic{
		{"describe", describeChecks},
		{"increase", increaseChecks},
		{"cancel", cancel},
		{"delete", deleteChecks},
		{"lookup", lookup},
		{"configure", configure},
		{"errors", errorChecks},
		{"deadlines", deadlines},
		{"concurrency", concurrencyChecks},
	}
}
