package cloudtest

import (
	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
)

var deleteChecks = []check{
	{"ends the named instances only, and lowers the target at once", func(e *env) {
		machines := e.machines(e.one, 4)
		group := e.destroy(e.one, machines[0], machines[2])
		require.Equal(e, 2, group.Target)
		require.ElementsMatch(e, []string{machines[1], machines[3]}, ids(pick(e.look(e.one), staying)))
		e.settle()
		require.ElementsMatch(e, []string{machines[1], machines[3]}, ids(e.look(e.one).Instances))
	}},
	{"a second time, it confirms without lowering the target", func(e *env) {
		machines := e.machines(e.one, 4)
		e.destroy(e.one, machines[0])
		e.unchanged(func() { e.destroy(e.one, machines[0]) })
	}},
	{"once gone, it confirms without lowering the target", func(e *env) {
		machines := e.machines(e.one, 4)
		e.destroy(e.one, machines[0])
		e.settle()
		e.unchanged(func() { e.destroy(e.one, machines[0]) })
	}},
	{"those going and those not are told apart in one call", func(e *env) {
		machines := e.machines(e.one, 4)
		e.destroy(e.one, machines[0])
		group := e.destroy(e.one, machines[0], machines[1])
		require.Equal(e, 2, group.Target)
	}},
	{"a name given twice counts once", func(e *env) {
		machines := e.machines(e.one, 2)
		group, confirmed, err := e.Backend.Delete(e.ctx(), e.one, []string{machines[0], machines[0]})
		require.NoError(e, err)
		require.Equal(e, 1, group.Target)
		require.Equal(e, machines[:1], confirmed)
	}},
	{"no names change nothing", func(e *env) {
		e.machines(e.one, 2)
		e.unchanged(func() { e.destroy(e.one) })
	}},
	{"nothing comes in its place", func(e *env) {
		machines := e.machines(e.one, 2)
		e.destroy(e.one, machines[1])
		e.settle()
		e.settle()
		require.Equal(e, machines[:1], ids(e.look(e.one).Instances))
	}},
	{"the last one can go", func(e *env) {
		e.destroy(e.one, e.machines(e.one, 1)...)
		e.settle()
		group := e.look(e.one)
		require.Zero(e, group.Target)
		require.Empty(e, group.Instances)
	}},
	{"a placeholder is invalid and nothing changes", func(e *env) {
		machines := e.machines(e.one, 1)
		placeholders := e.failing(e.one, 1)
		e.refusesDelete(placeholders...)
		e.refusesDelete(append(machines, placeholders...)...)
	}},
	{"an instance of another group is invalid and nothing changes", func(e *env) {
		own, other := e.machines(e.one, 1), e.machines(e.two, 1)
		e.refusesDelete(other...)
		e.refusesDelete(append(own, other...)...)
	}},
	{"a foreign id is invalid and nothing changes", func(e *env) {
		own := e.machines(e.one, 1)
		e.refusesDelete(foreignID)
		e.refusesDelete(append(own, foreignID)...)
		e.refusesDelete("")
		e.refusesDelete(e.Backend.TemplateID(e.one))
	}},
}

// refusesDelete requires that the deletion of these of group one is invalid.
func (e *env) refusesDelete(instances ...string) {
	e.Helper()
	e.unchanged(func() {
		_, confirmed, err := e.Backend.Delete(e.ctx(), e.one, instances)
		e.failed(err, cloud.ErrInvalid)
		require.Empty(e, confirmed)
	})
}
