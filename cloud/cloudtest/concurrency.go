package cloudtest

import (
	"context"
	"fmt"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"gpu-node-provider/cloud"
)

// rounds of writes for each group; enough for writers and readers to meet, and
// few enough for a backend whose calls take a while.
const rounds = 12

var concurrencyChecks = []check{
	{"groups are written to side by side while others read", func(e *env) {
		reading, stop := context.WithCancel(e.ctx())
		var readers, writers errgroup.Group
		started := make(chan struct{}, 2)
		for range cap(started) {
			readers.Go(func() error { return e.readUntil(reading, started) })
		}
		for range cap(started) { // else the writers could be done before anybody reads
			<-started
		}
		targets := make([]int, len(e.Specs))
		for i, spec := range e.Specs {
			writers.Go(func() (err error) {
				targets[i], err = e.churn(spec.ID)
				return err
			})
		}
		err := writers.Wait()
		stop()
		require.NoError(e, err)
		require.NoError(e, readers.Wait())
		e.settle()
		all := e.lookAll()
		for i, spec := range e.Specs {
			require.Equal(e, targets[i], all[spec.ID].Target, "group %s", spec.ID)
		}
	}},
}

// readUntil looks at everything until ctx ends, and returns the first flaw.
func (e *env) readUntil(ctx context.Context, started chan<- struct{}) error {
	started <- struct{}{}
	seen := ledger{}
	for ctx.Err() == nil {
		groups, err := e.Backend.Describe(e.ctx())
		if err != nil {
			return err
		}
		for _, group := range groups {
			if err := e.flaw(group); err != nil {
				return err
			}
			if err := seen.note(group); err != nil {
				return err
			}
			if _, err := e.Backend.Lookup(e.ctx(), group.ID, ids(group.Instances)); err != nil {
				return err
			}
		}
	}
	return nil
}

// churn is the only writer of a group, so it knows its target at all times.
func (e *env) churn(id string) (target int, err error) {
	for round := range rounds {
		delta := 1 + round%2
		group, err := e.Backend.Increase(e.ctx(), id, Exactly(delta))
		if err != nil {
			return 0, err
		}
		if target += delta; group.Target != target {
			return 0, fmt.Errorf("group %s: target is %d after an increase to %d", id, group.Target, target)
		}
		for tries := 0; len(pick(group, staying)) > 2; tries++ {
			if tries > Room { // each unit can dodge once, by becoming a machine
				return 0, fmt.Errorf("group %s: units are neither cancelled nor deleted", id)
			}
			var removed int
			if group, removed, err = e.remove(group); err != nil {
				return 0, err
			}
			if target -= removed; group.Target != target {
				return 0, fmt.Errorf("group %s: target is %d after a decrease to %d", id, group.Target, target)
			}
		}
		if err := e.flaw(group); err != nil {
			return 0, err
		}
	}
	return target, nil
}

// remove takes one unit out of a group, unless it is a placeholder that turns
// into a machine meanwhile, and says how many it took.
func (e *env) remove(group cloud.Group) (cloud.Group, int, error) {
	unit := pick(group, staying)[0]
	if unit.Placeholder {
		after, given, err := e.Backend.Cancel(e.ctx(), group.ID, These([]string{unit.ID}))
		return after, len(given), err
	}
	after, _, err := e.Backend.Delete(e.ctx(), group.ID, []string{unit.ID})
	return after, 1, err
}
