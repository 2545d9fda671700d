package cloudtest

import (
	"slices"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
)

var describeChecks = []check{
	{"no ids means all configured groups, empty at first", func(e *env) {
		all := e.lookAll()
		require.Len(e, all, len(e.Specs))
		for _, spec := range e.Specs {
			group, ok := all[spec.ID]
			require.True(e, ok, "group %s is missing", spec.ID)
			require.Zero(e, group.Target)
			require.Empty(e, group.Instances)
			require.GreaterOrEqual(e, group.Max, Room, "the harness's groups are too small")
		}
	}},
	{"named groups only", func(e *env) {
		require.Equal(e, e.two, e.describe(e.two).ID)
	}},
	{"target counts what is not deleting, at every stage", func(e *env) {
		e.increase(e.one, 3)
		require.Equal(e, 3, e.look(e.one).Target)
		e.settle()
		require.Equal(e, 3, e.look(e.one).Target)
		e.destroy(e.one, e.look(e.one).Instances[0].ID)
		require.Equal(e, 2, e.look(e.one).Target)
		e.settle()
		require.Equal(e, 2, e.look(e.one).Target)
		e.failing(e.one, 2)
		require.Equal(e, 4, e.look(e.one).Target)
	}},
	{"a machine that has arrived is running", func(e *env) {
		e.increase(e.one, 2)
		e.settle()
		group := e.look(e.one)
		require.Len(e, group.Instances, 2)
		for _, instance := range group.Instances {
			require.Equal(e, cloud.Running, instance.State)
			require.False(e, instance.Placeholder)
		}
	}},
	{"ids are unique and never used again", func(e *env) {
		for range 3 { // the ledger of all looks does the checking
			e.increase(e.one, 2)
			e.increase(e.two, 2)
			e.lookAll()
			e.settle()
			for id, group := range e.lookAll() {
				e.destroy(id, ids(pick(group, staying))...)
			}
			e.settle()
			require.Empty(e, e.look(e.one).Instances)
		}
		e.Starve(e.TB, e.one)
		for range 3 {
			e.increase(e.one, 2)
			e.settle()
			e.cancel(e.one, ids(e.look(e.one).Instances)...)
			require.Empty(e, e.look(e.one).Instances)
		}
	}},
	{"a placeholder keeps its id as long as it exists", func(e *env) {
		first := e.failing(e.one, 2)
		more := e.failing(e.one, 1)
		e.cancel(e.one, first[0])
		e.settle()
		require.ElementsMatch(e, []string{first[1], more[0]}, ids(pick(e.look(e.one), placeholder)))
	}},
	{"a launch error stays until the placeholder goes", func(e *env) {
		e.failing(e.one, 2)
		before := e.look(e.one)
		for _, instance := range before.Instances {
			require.NotNil(e, instance.Error, "a launch that failed shows no error")
			require.True(e, instance.Error.Code.OutOfResources(), "code %s", instance.Error.Code)
		}
		e.settle()
		require.Empty(e, difference(before, e.look(e.one)))
	}},
	{"returned values are the caller's", func(e *env) {
		e.machines(e.one, 2)
		e.failing(e.one, 1)
		original := e.describe(e.one)
		copied := deepCopy(original)

		increased, err := e.Backend.Increase(e.ctx(), e.one, Exactly(1))
		require.NoError(e, err)
		increasedCopy := deepCopy(increased)
		e.destroy(e.one, ids(pick(original, func(i cloud.Instance) bool { return !i.Placeholder }))...)
		e.settle()
		require.Empty(e, cmp.Diff(copied, original), "what Describe returned was changed later")
		require.Empty(e, cmp.Diff(increasedCopy, increased), "what Increase returned was changed later")

		before := deepCopy(e.look(e.one))
		mine := e.look(e.one)
		for i := range mine.Instances {
			mine.Instances[i].ID = "scribbled over"
			if mine.Instances[i].Error != nil {
				mine.Instances[i].Error.Message = "scribbled over"
			}
		}
		require.Empty(e, difference(before, e.look(e.one)), "the caller's copy is the backend's own")
	}},
	{"a newer picture has a higher revision", func(e *env) {
		pictures := []cloud.Group{e.look(e.one), e.increase(e.one, 2), e.look(e.one)}
		e.settle()
		pictures = append(pictures, e.describe(e.one))
		pictures = append(pictures, e.destroy(e.one, ids(pictures[3].Instances)...), e.look(e.one))
		for n := range pictures[1:] {
			require.Greater(e, pictures[n+1].Revision, pictures[n].Revision, "of picture %d", n+1)
		}
	}},
}

// difference is what two pictures differ in, whenever they were taken.
func difference(a, b cloud.Group) string {
	return cmp.Diff(sorted(a), sorted(b), cmpopts.IgnoreFields(cloud.Group{}, "Revision"))
}

func deepCopy(group cloud.Group) cloud.Group {
	group.Instances = slices.Clone(group.Instances)
	for i, instance := range group.Instances {
		if instance.Error != nil {
			copied := *instance.Error
			group.Instances[i].Error = &copied
		}
	}
	return group
}

func sorted(group cloud.Group) cloud.Group {
	slices.SortFunc(group.Instances, func(a, b cloud.Instance) int {
		switch {
		case a.ID < b.ID:
			return -1
		case a.ID > b.ID:
			return 1
		default:
			return 0
		}
	})
	return group
}
