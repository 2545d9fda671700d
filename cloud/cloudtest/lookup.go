package cloudtest

import (
	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
)

// foreignID is in the form of a cloud that no Backend here stands for.
const foreignID = "elsewhere:///zone-1/machine-0123456789"

var lookupChecks = []check{
	{"what Describe lists is present", func(e *env) {
		e.increase(e.one, 2)
		e.present(e.one)
		e.settle()
		e.present(e.one)
		e.failing(e.one, 1)
		e.present(e.one)
		e.destroy(e.one, ids(pick(e.look(e.one), func(i cloud.Instance) bool { return !i.Placeholder }))...)
		e.present(e.one)
	}},
	{"a deleted instance is gone", func(e *env) {
		machines := e.machines(e.one, 1)
		e.destroy(e.one, machines...)
		e.settle()
		require.Equal(e, cloud.Gone, e.lookup(e.one, machines[0]))
	}},
	{"a cancelled placeholder is gone", func(e *env) {
		placeholders := e.failing(e.one, 1)
		e.cancel(e.one, placeholders...)
		require.Equal(e, cloud.Gone, e.lookup(e.one, placeholders[0]))
	}},
	{"ids of no instance are foreign", func(e *env) {
		e.machines(e.one, 1)
		for _, id := range []string{"", foreignID, e.one, e.Backend.TemplateID(e.one)} {
			require.Equal(e, cloud.Foreign, e.lookup(e.one, id), "%q", id)
		}
	}},
	{"instances of another group are foreign", func(e *env) {
		machines := e.machines(e.two, 1)
		require.Equal(e, cloud.Foreign, e.lookup(e.one, machines[0]))
		require.Equal(e, cloud.Present, e.lookup(e.two, machines[0]))
	}},
	{"the result has the order of the ids", func(e *env) {
		machines := e.machines(e.one, 2)
		e.destroy(e.one, machines[0])
		e.settle()
		found, err := e.Backend.Lookup(e.ctx(), e.one,
			[]string{foreignID, machines[1], machines[0], foreignID, machines[1]})
		require.NoError(e, err)
		require.Equal(e, []cloud.Existence{cloud.Foreign, cloud.Present, cloud.Gone, cloud.Foreign, cloud.Present}, found)
		found, err = e.Backend.Lookup(e.ctx(), e.one, nil)
		require.NoError(e, err)
		require.Empty(e, found)
	}},
	{"ids of this cloud are recognized, also when gone", func(e *env) {
		machines, placeholders := e.machines(e.one, 1), e.failing(e.two, 1)
		e.destroy(e.one, machines...)
		e.cancel(e.two, placeholders...)
		e.settle()
		require.True(e, e.Backend.Recognizes(machines[0]))
		require.True(e, e.Backend.Recognizes(placeholders[0]))
	}},
	{"ids of other clouds are not recognized", func(e *env) {
		for _, id := range []string{"", "node", foreignID, "kind://docker/kind/control-plane", e.one} {
			require.False(e, e.Backend.Recognizes(id), "%q", id)
		}
	}},
	{"the template's id is recognized, stable and no instance's", func(e *env) {
		e.machines(e.one, 1) // no look finds the template's id on an instance
		id := e.Backend.TemplateID(e.one)
		require.NotEmpty(e, id)
		require.Equal(e, id, e.Backend.TemplateID(e.one))
		require.True(e, e.Backend.Recognizes(id))
	}},
}

// lookupArrivedChecks need a placeholder that becomes a machine.
var lookupArrivedChecks = []check{
	{"a placeholder that became a machine is gone", func(e *env) {
		waiting := e.pending(e.one, 1)
		e.settle()
		require.Equal(e, cloud.Gone, e.lookup(e.one, waiting[0]))
	}},
}

// present requires that all a group lists is present.
func (e *env) present(group string) {
	e.Helper()
	for _, id := range ids(e.look(group).Instances) {
		existence := e.lookup(group, id)
		if existence != cloud.Present { // unless it went between the two looks
			require.NotContains(e, ids(e.look(group).Instances), id, "existence %d", existence)
		}
	}
}
