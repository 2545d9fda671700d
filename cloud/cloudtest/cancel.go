package cloudtest

import (
	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
)

// These cancels the named placeholders, whatever the group has.
func These(placeholders []string) func(cloud.Group) []string {
	return func(cloud.Group) []string { return placeholders }
}

var cancelChecks = []check{
	{"gives up the named placeholders and lowers the target", func(e *env) {
		placeholders := e.failing(e.one, 3)
		group, given := e.cancel(e.one, placeholders[:2]...)
		require.ElementsMatch(e, placeholders[:2], given)
		require.Equal(e, 1, group.Target)
		require.Equal(e, placeholders[2:], ids(e.look(e.one).Instances))
	}},
	{"a placeholder that is gone changes nothing", func(e *env) {
		placeholders := e.failing(e.one, 2)
		e.cancel(e.one, placeholders[0])
		e.unchanged(func() {
			_, given := e.cancel(e.one, placeholders[0])
			require.Empty(e, given)
		})
		group, given := e.cancel(e.one, placeholders...)
		require.Equal(e, placeholders[1:], given)
		require.Zero(e, group.Target)
	}},
	{"a live machine is never ended", func(e *env) {
		live := e.machines(e.one, 2)
		e.unchanged(func() { e.cancelMachines(live) })
		e.settle()
		require.ElementsMatch(e, live, ids(pick(e.look(e.one), staying)))
	}},
	{"a booting machine is never ended", func(e *env) {
		e.increase(e.one, 3)
		booting := ids(pick(e.look(e.one), func(i cloud.Instance) bool { return !i.Placeholder }))
		e.cancelMachines(booting)
		e.settle()
		require.Subset(e, ids(pick(e.look(e.one), staying)), booting)
		require.Equal(e, 3, e.look(e.one).Target)
	}},
	{"live machines outlive the placeholders beside them", func(e *env) {
		live := e.machines(e.one, 2)
		failed := e.failing(e.one, 2)
		e.cancel(e.one, failed...)
		e.settle()
		group := e.look(e.one)
		require.Equal(e, 2, group.Target)
		require.ElementsMatch(e, live, ids(pick(group, staying)))
	}},
	{"a name given twice counts once", func(e *env) {
		placeholders := e.failing(e.one, 3)
		group, given := e.cancel(e.one, placeholders[0], placeholders[0])
		require.Equal(e, placeholders[:1], given)
		require.Equal(e, 2, group.Target)
	}},
	{"no names change nothing", func(e *env) {
		e.failing(e.one, 1)
		e.unchanged(func() {
			_, given := e.cancel(e.one)
			require.Empty(e, given)
		})
	}},
	{"a foreign id is invalid and nothing changes", func(e *env) {
		placeholders := e.failing(e.one, 1)
		e.unchanged(func() {
			_, _, err := e.Backend.Cancel(e.ctx(), e.one, These(append(placeholders, foreignID)))
			e.failed(err, cloud.ErrInvalid)
		})
	}},
	{"a placeholder of another group is invalid and nothing changes", func(e *env) {
		own, other := e.failing(e.one, 1), e.failing(e.two, 1)
		e.unchanged(func() {
			_, _, err := e.Backend.Cancel(e.ctx(), e.one, These(append(own, other...)))
			e.failed(err, cloud.ErrInvalid)
		})
	}},
}

// cancelArrivedChecks need placeholders that become machines.
var cancelArrivedChecks = []check{
	{"what was given up does not arrive later", func(e *env) {
		waiting := e.pending(e.one, 2)
		_, given := e.cancel(e.one, waiting...)
		left := 2 - len(given)
		require.Equal(e, left, e.look(e.one).Target)
		e.settle()
		require.Len(e, pick(e.look(e.one), staying), left)
	}},
	{"a placeholder that became a machine is left out", func(e *env) {
		waiting := e.pending(e.one, 2)
		e.settle()
		require.Empty(e, pick(e.look(e.one), placeholder))
		e.unchanged(func() {
			_, given := e.cancel(e.one, waiting...)
			require.Empty(e, given)
		})
		e.settle()
		require.Equal(e, 2, e.look(e.one).Target)
	}},
	{"among others, a placeholder that became a machine is left out", func(e *env) {
		became := e.pending(e.one, 1)
		e.settle()
		live := ids(pick(e.look(e.one), staying))
		failed := e.failing(e.one, 1)
		group, given := e.cancel(e.one, append(became, failed...)...)
		require.Equal(e, failed, given)
		require.Equal(e, 1, group.Target)
		require.Equal(e, live, ids(pick(e.look(e.one), staying)))
	}},
}

// cancelMachines passes ids of machines to Cancel. It may refuse them or leave
// them out, and must not give one up.
func (e *env) cancelMachines(machines []string) {
	e.Helper()
	_, given, err := e.Backend.Cancel(e.ctx(), e.one, These(machines))
	require.Empty(e, given)
	if err != nil {
		e.failed(err, cloud.ErrInvalid)
	}
}
