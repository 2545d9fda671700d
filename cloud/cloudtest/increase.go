package cloudtest

import (
	"math"

	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
)

// Exactly requests a number of instances, whatever the group has.
func Exactly(n int) func(cloud.Group) int { return func(cloud.Group) int { return n } }

var increaseChecks = []check{
	{"the answer has the raised target", func(e *env) {
		group := e.increase(e.one, 2)
		require.Len(e, group.Instances, 2)
		group = e.increase(e.one, 1)
		require.Equal(e, 3, group.Target)
	}},
	{"every later Describe sees it", func(e *env) {
		for want := 1; want <= 4; want++ {
			e.increase(e.one, 1)
			require.Equal(e, want, e.describe(e.one).Target)
			require.Equal(e, want, e.look(e.one).Target)
		}
		e.settle()
		require.Equal(e, 4, e.look(e.one).Target)
	}},
	{"units that are there stay as they are", func(e *env) {
		running := e.machines(e.one, 2)
		e.increase(e.one, 1)
		require.Subset(e, ids(pick(e.look(e.one), staying)), running)
		e.settle()
		require.Subset(e, ids(pick(e.look(e.one), staying)), running)
	}},
	{"other groups are left alone", func(e *env) {
		e.increase(e.one, 2)
		require.Zero(e, e.look(e.two).Target)
		e.settle()
		require.Empty(e, e.look(e.two).Instances)
	}},
	{"without capacity, the placeholders carry the error and count", func(e *env) {
		e.machines(e.one, 1)
		e.failing(e.one, 2)
		group := e.look(e.one)
		require.Equal(e, 3, group.Target)
		for _, instance := range pick(group, placeholder) {
			require.NotNil(e, instance.Error)
			require.True(e, instance.Error.Code.OutOfResources(), "code %s", instance.Error.Code)
		}
	}},
	{"what is requested is decided once, by a reading of the group", func(e *env) {
		e.machines(e.one, 1)
		var shown []cloud.Group
		group, err := e.Backend.Increase(e.ctx(), e.one, func(now cloud.Group) int {
			shown = append(shown, now)
			return 3 - now.Target
		})
		require.NoError(e, err)
		e.accept(group)
		require.Len(e, shown, 1)
		e.accept(shown[0])
		require.Equal(e, []int{1, 3}, []int{shown[0].Target, group.Target})
	}},
	{"none changes nothing", func(e *env) {
		e.machines(e.one, 1)
		e.unchanged(func() {
			group, err := e.Backend.Increase(e.ctx(), e.one, Exactly(0))
			require.NoError(e, err)
			e.accept(group)
			require.Equal(e, 1, group.Target)
		})
	}},
	{"less than none is invalid", func(e *env) {
		e.machines(e.one, 1)
		for _, delta := range []int{-1, math.MinInt} {
			e.unchanged(func() {
				_, err := e.Backend.Increase(e.ctx(), e.one, Exactly(delta))
				e.failed(err, cloud.ErrInvalid)
			})
		}
	}},
	{"more than the maximum is refused as a whole", func(e *env) {
		e.machines(e.one, 1)
		group := e.look(e.one)
		for _, delta := range []int{group.Max - group.Target + 1, math.MaxInt} {
			e.unchanged(func() {
				_, err := e.Backend.Increase(e.ctx(), e.one, Exactly(delta))
				e.failed(err, cloud.ErrLimit)
			})
		}
	}},
}
