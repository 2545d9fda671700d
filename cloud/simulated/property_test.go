package simulated

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/cloudtest"
)

// machineModel plays random calls, passing time, lost answers and restarts
// against one cloud, and keeps account of what must be there.
type machineModel struct {
	clock   *clocktesting.FakeClock
	options Options
	c       *Cloud
	groups  []string
	targets map[string]int
	seen    map[string]cloud.Instance // every instance ever shown, as last seen
	removed map[string]bool           // ids that were shown and are not any more
	doomed  map[string]bool           // machines that were deleted or interrupted
}

func (m *machineModel) restart(t *rapid.T) {
	m.options.Rand = rand.NewPCG(3, 4) // the same draws again must not give the same ids again
	c, err := New(m.options)
	require.NoError(t, err)
	require.NoError(t, c.Configure(t.Context(), specs(m.groups...)))
	m.c = c
}

func (m *machineModel) describe(t *rapid.T, group string) cloud.Group {
	groups, err := m.c.Describe(t.Context(), group)
	require.NoError(t, err)
	return groups[0]
}

func (m *machineModel) pick(t *rapid.T, wanted func(cloud.Instance) bool) (string, []string) {
	group := rapid.SampledFrom(m.groups).Draw(t, "group")
	var ids []string
	for id, i := range m.seen {
		if owner, _, _ := parseID(id); owner == group && wanted(i) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	if len(ids) == 0 {
		t.Skip("there is none")
	}
	return group, rapid.SliceOfN(rapid.SampledFrom(ids), 1, 3).Draw(t, "ids")
}

func (m *machineModel) increase(t *rapid.T) {
	group := rapid.SampledFrom(m.groups).Draw(t, "group")
	delta := rapid.IntRange(1, 3).Draw(t, "delta")
	_, err := m.c.Increase(t.Context(), group, cloudtest.Exactly(delta))
	if err != nil {
		require.ErrorIs(t, err, cloud.ErrUnknownOutcome)
	}
	m.targets[group] += delta
}

func (m *machineModel) cancel(t *rapid.T) {
	group, ids := m.pick(t, func(i cloud.Instance) bool { return i.Placeholder })
	there := map[string]bool{}
	for _, id := range idsOf(m.describe(t, group)) {
		there[id] = slices.Contains(ids, id)
	}
	want := slices.DeleteFunc(withoutDuplicates(ids), func(id string) bool { return !there[id] })
	_, given, err := m.c.Cancel(t.Context(), group, cloudtest.These(ids))
	if err != nil {
		require.ErrorIs(t, err, cloud.ErrUnknownOutcome)
	} else {
		require.ElementsMatch(t, want, given)
	}
	m.targets[group] -= len(want)
}

func (m *machineModel) remove(t *rapid.T) {
	group, ids := m.pick(t, func(i cloud.Instance) bool { return !i.Placeholder })
	for _, id := range withoutDuplicates(ids) {
		if !m.doomed[id] {
			m.targets[group]--
			m.doomed[id] = true
		}
	}
	_, confirmed, err := m.c.Delete(t.Context(), group, ids)
	if err != nil {
		require.ErrorIs(t, err, cloud.ErrUnknownOutcome)
		return
	}
	require.ElementsMatch(t, withoutDuplicates(ids), confirmed)
}

func (m *machineModel) interrupt(t *rapid.T) {
	_, ids := m.pick(t, func(i cloud.Instance) bool { return !i.Placeholder })
	err := m.c.Interrupt(t.Context(), ids[0])
	if m.doomed[ids[0]] {
		require.ErrorIs(t, err, cloud.ErrPrecondition)
		return
	}
	require.NoError(t, err)
	m.doomed[ids[0]] = true
}

// check holds what the cloud shows against the account.
func (m *machineModel) check(t *rapid.T) {
	there := map[string]bool{}
	for _, group := range m.groups {
		g := m.describe(t, group)
		require.Equal(t, m.targets[group], g.Target, "target of %s", group)
		staying := 0
		for _, i := range g.Instances {
			require.False(t, there[i.ID], "%s is there twice", i.ID)
			require.False(t, m.removed[i.ID], "%s is there again", i.ID)
			require.Equal(t, m.doomed[i.ID], i.State == cloud.Deleting, "%s is %s", i.ID, i.State)
			require.GreaterOrEqual(t, i.State, m.seen[i.ID].State)
			there[i.ID] = true
			m.seen[i.ID] = i
			if i.State != cloud.Deleting {
				staying++
			}
		}
		require.Equal(t, g.Target, staying)
	}
	for id, i := range m.seen {
		if !there[id] {
			m.removed[id] = true
			require.True(t, i.Placeholder || m.doomed[id], "machine %s has gone by itself", id)
		}
	}
}

func TestRandomCalls(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clock := newClock()
		m := &machineModel{
			clock: clock, options: slowly(clock.Now), groups: []string{"t4", "a100"},
			targets: map[string]int{}, seen: map[string]cloud.Instance{},
			removed: map[string]bool{}, doomed: map[string]bool{},
		}
		m.options.LaunchErrorRate = 0.2
		m.options.Capacity = map[string]int{"t4": 4}
		m.options.API.LostAnswerRate = 0.2
		m.restart(t)
		t.Repeat(map[string]func(*rapid.T){
			"":          m.check,
			"increase":  m.increase,
			"cancel":    m.cancel,
			"delete":    m.remove,
			"interrupt": m.interrupt,
			"restart":   m.restart,
			"wait": func(t *rapid.T) {
				clock.Step(rapid.SampledFrom([]time.Duration{time.Second, launch, terminate, boot, 2 * time.Hour}).Draw(t, "how long"))
			},
		})
		for group, n := range m.targets {
			require.GreaterOrEqual(t, n, 0, "%s of %v", group, maps.Clone(m.targets))
		}
	})
}
