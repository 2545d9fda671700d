package cloudtest

import (
	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
)

var configureChecks = []check{
	{"a group that is no longer named is not found", func(e *env) {
		e.configure(e.Specs[1:])
		groups, err := e.Backend.Describe(e.ctx())
		require.NoError(e, err)
		require.NotContains(e, e.accept(groups...), e.one)
		_, err = e.Backend.Describe(e.ctx(), e.one)
		e.failed(err, cloud.ErrNotFound)
		_, err = e.Backend.Increase(e.ctx(), e.one, Exactly(1))
		e.failed(err, cloud.ErrNotFound)
	}},
	{"instances outlive that their group is not named", func(e *env) {
		machines, placeholders := e.machines(e.one, 2), e.failing(e.one, 1)
		e.configure(e.Specs[1:])
		e.settle()
		e.lookAll()
		e.configure(e.Specs)
		group := e.look(e.one)
		require.Equal(e, 3, group.Target)
		require.ElementsMatch(e, append(machines, placeholders...), ids(group.Instances))
	}},
	{"other groups are left alone", func(e *env) {
		machines := e.machines(e.two, 2)
		e.configure(e.Specs[1:])
		require.ElementsMatch(e, machines, ids(e.look(e.two).Instances))
		e.increase(e.two, 1)
		require.Equal(e, 3, e.look(e.two).Target)
	}},
	{"the caller's list is not kept", func(e *env) {
		specs := append([]cloud.Spec(nil), e.Specs...)
		e.configure(specs)
		specs[0].ID = "scribbled-over"
		require.Contains(e, e.lookAll(), e.one)
	}},
}

// reopenChecks need a Backend that keeps what it was asked for.
var reopenChecks = []check{
	{"a new process finds everything that was acknowledged", func(e *env) {
		machines := e.machines(e.one, 3)
		e.destroy(e.one, machines[0])
		placeholders := e.failing(e.one, 2)
		e.cancel(e.one, placeholders[0])
		e.increase(e.two, 2)

		e.Backend = e.Reopen(e.TB)
		e.configure(e.Specs)
		all := e.lookAll() // the ledger compares it with what was seen before
		require.ElementsMatch(e, []string{machines[1], machines[2], placeholders[1]}, ids(pick(all[e.one], staying)))
		require.Equal(e, 2, all[e.two].Target)
		e.settle()
		require.Len(e, e.look(e.two).Instances, 2)
		require.Equal(e, cloud.Gone, e.lookup(e.one, machines[0]))
		require.Equal(e, cloud.Gone, e.lookup(e.one, placeholders[0]))
	}},
}

func (e *env) configure(specs []cloud.Spec) {
	e.Helper()
	require.NoError(e, e.Backend.Configure(e.ctx(), specs))
}
