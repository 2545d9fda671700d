package simulated

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/cloudtest"
)

func TestUnitBecomesWhatItsTimesSay(t *testing.T) {
	clock := newClock()
	c := open(t, slowly(clock.Now), "t4")
	asked := clock.Now()
	grow(t, c, "t4", 1)
	placeholder := get(t, c, "t4").Instances[0]
	require.Equal(t, cloud.Instance{ID: placeholder.ID, State: cloud.Creating, Placeholder: true, Since: asked}, placeholder)

	clock.Step(launch - 1)
	require.Equal(t, placeholder, get(t, c, "t4").Instances[0])
	clock.Step(1)
	machine := get(t, c, "t4").Instances[0]
	require.NotEqual(t, placeholder.ID, machine.ID)
	require.Equal(t, cloud.Instance{ID: machine.ID, State: cloud.Creating, Since: asked.Add(launch)}, machine)

	clock.Step(boot - 1)
	require.Equal(t, cloud.Creating, get(t, c, "t4").Instances[0].State)
	clock.Step(1)
	machine.State = cloud.Running
	require.Equal(t, machine, get(t, c, "t4").Instances[0])

	g, confirmed, err := c.Delete(t.Context(), "t4", []string{machine.ID})
	require.NoError(t, err)
	require.Equal(t, []string{machine.ID}, confirmed)
	require.Zero(t, g.Target)
	machine.State = cloud.Deleting
	clock.Step(terminate - 1)
	require.Equal(t, []cloud.Instance{machine}, get(t, c, "t4").Instances)
	clock.Step(1)
	require.Empty(t, get(t, c, "t4").Instances)
}

// Cluster Autoscaler repeats a deletion that it has not seen succeed.
func TestDeletingAgainPostponesNothing(t *testing.T) {
	clock := newClock()
	c := open(t, slowly(clock.Now), "t4")
	grow(t, c, "t4", 1)
	clock.Step(launch + boot)
	ids := idsOf(get(t, c, "t4"))
	for range 3 {
		_, _, err := c.Delete(t.Context(), "t4", ids)
		require.NoError(t, err)
		clock.Step(terminate / 3)
	}
	require.Empty(t, get(t, c, "t4").Instances)
}

func TestWithoutDelaysMachinesRunAtOnce(t *testing.T) {
	c := open(t, Options{}, "t4")
	g := grow(t, c, "t4", 2)
	require.Equal(t, map[string]int{"running": 2}, states(g))
	g, _, err := c.Delete(t.Context(), "t4", idsOf(g))
	require.NoError(t, err)
	require.Empty(t, g.Instances)
}

func TestCapacity(t *testing.T) {
	clock := newClock()
	options := slowly(clock.Now)
	options.Capacity = map[string]int{"t4": 2}
	c := open(t, options, "t4", "free")

	grow(t, c, "t4", 3)
	grow(t, c, "free", 5)
	require.Equal(t, map[string]int{"placeholder": 3}, states(get(t, c, "t4")), "it is not known before the launch")
	clock.Step(launch)
	require.Equal(t, map[string]int{"creating": 2, "failed": 1}, states(get(t, c, "t4")))
	require.Equal(t, map[string]int{"creating": 5}, states(get(t, c, "free")))
	clock.Step(boot)
	g := get(t, c, "t4")
	require.Equal(t, 3, g.Target)
	require.Equal(t, map[string]int{"running": 2, "failed": 1}, states(g))
	failed := g.Instances[2]
	require.Equal(t, cloud.InsufficientInstanceCapacity, failed.Error.Code)
	require.Contains(t, failed.Error.Message, "has 2 instances for group t4")

	_, _, err := c.Delete(t.Context(), "t4", []string{g.Instances[0].ID})
	require.NoError(t, err)
	grow(t, c, "t4", 1)
	clock.Step(launch)
	require.Equal(t, map[string]int{"running": 1, "deleting": 1, "failed": 2}, states(get(t, c, "t4")), "a departing machine takes up its place")
	clock.Step(terminate)
	grow(t, c, "t4", 1)
	clock.Step(launch)
	require.Equal(t, map[string]int{"running": 1, "creating": 1, "failed": 2}, states(get(t, c, "t4")), "an error is for good")

	c.SetCapacity("t4", -1)
	grow(t, c, "t4", 3)
	clock.Step(launch + boot)
	require.Equal(t, map[string]int{"running": 5, "failed": 2}, states(get(t, c, "t4")))
}

func TestLaunchErrors(t *testing.T) {
	clock := newClock()
	options := slowly(clock.Now)
	options.LaunchErrorRate, options.LaunchErrorCode = 0.25, cloud.LaunchTemplateError
	c := open(t, options, "t4")
	grow(t, c, "t4", 1000)
	clock.Step(launch)
	counts := states(get(t, c, "t4"))
	require.InDelta(t, 250, counts["failed"], 60)
	require.Equal(t, 1000, counts["failed"]+counts["creating"])
	for _, i := range get(t, c, "t4").Instances {
		if i.Error != nil {
			require.Equal(t, cloud.LaunchTemplateError, i.Error.Code)
		}
	}
}

func TestFailedLaunchesTakeNoCapacity(t *testing.T) {
	options := Options{Capacity: map[string]int{"t4": 1}, LaunchErrorRate: 1, LaunchErrorCode: cloud.VcpuLimitExceeded}
	memory := &Memory{}
	options.Memory = memory
	c := open(t, options, "t4")
	require.Equal(t, map[string]int{"failed": 3}, states(grow(t, c, "t4", 3)))
	options.LaunchErrorRate = 0
	c = open(t, options, "t4")
	require.Equal(t, map[string]int{"failed": 3, "running": 1}, states(grow(t, c, "t4", 1)))
}

func TestSameSeedSameCloud(t *testing.T) {
	run := func() cloud.Group {
		clock := newClock()
		options := slowly(clock.Now)
		options.LaunchErrorRate = 0.5
		c := open(t, options, "t4")
		grow(t, c, "t4", 20)
		clock.Step(launch)
		return get(t, c, "t4")
	}
	require.Empty(t, cmp.Diff(run(), run()))
}

// A clock that is set back must not turn a machine into a placeholder, which
// may be cancelled.
func TestClockSetBack(t *testing.T) {
	clock := newClock()
	options := slowly(clock.Now)
	c := open(t, options, "t4")
	waiting := idsOf(grow(t, c, "t4", 1))
	clock.Step(launch + boot)
	before := get(t, c, "t4")
	clock.Step(-24 * time.Hour)
	require.Equal(t, before, get(t, c, "t4"))
	_, given, err := c.Cancel(t.Context(), "t4", cloudtest.These(waiting))
	require.NoError(t, err)
	require.Empty(t, given)
	grow(t, c, "t4", 1)

	c = open(t, options, "t4")
	require.Equal(t, map[string]int{"running": 1, "placeholder": 1}, states(get(t, c, "t4")), "also after a restart")
	clock.Step(24*time.Hour + launch)
	require.Equal(t, map[string]int{"running": 1, "creating": 1}, states(get(t, c, "t4")), "time goes on when the clock has caught up")
}

func TestInterrupt(t *testing.T) {
	clock := newClock()
	options := slowly(clock.Now)
	options.Capacity = map[string]int{"t4": 2}
	c := open(t, options, "t4")
	grow(t, c, "t4", 2)
	clock.Step(launch + boot)
	g := get(t, c, "t4")
	lost := g.Instances[0].ID

	require.NoError(t, c.Interrupt(t.Context(), lost))
	g = get(t, c, "t4")
	require.Equal(t, 2, g.Target)
	require.Equal(t, map[string]int{"deleting": 1, "running": 1, "placeholder": 1}, states(g))
	require.ErrorIs(t, c.Interrupt(t.Context(), lost), cloud.ErrPrecondition)
	_, confirmed, err := c.Delete(t.Context(), "t4", []string{lost})
	require.NoError(t, err)
	require.Equal(t, []string{lost}, confirmed)
	require.Equal(t, 2, get(t, c, "t4").Target, "deleting what the cloud took away lowers nothing")

	clock.Step(launch + boot)
	g = get(t, c, "t4")
	require.Equal(t, map[string]int{"running": 2}, states(g), "the new one has the place of the old one")
	require.NotContains(t, idsOf(g), lost)
	require.ErrorIs(t, c.Interrupt(t.Context(), lost), cloud.ErrPrecondition)

	for _, id := range []string{"", "i-0", c.TemplateID("t4"), placeholderID("t4", "bbbbb", "ccccc")} {
		require.ErrorIs(t, c.Interrupt(t.Context(), id), cloud.ErrInvalid, id)
	}
	require.ErrorIs(t, c.Interrupt(t.Context(), machineID("other", "bbbbb")), cloud.ErrNotFound)
}

func TestGoneMachinesAreForgotten(t *testing.T) {
	clock := newClock()
	c := open(t, slowly(clock.Now), "t4")
	grow(t, c, "t4", 3)
	clock.Step(launch)
	gone := idsOf(get(t, c, "t4"))
	_, _, err := c.Delete(t.Context(), "t4", gone)
	require.NoError(t, err)
	clock.Step(terminate + keepGone)
	grow(t, c, "t4", 1)
	require.Len(t, c.current.Groups["t4"], 1)
	found, err := c.Lookup(t.Context(), "t4", gone)
	require.NoError(t, err)
	require.Equal(t, []cloud.Existence{cloud.Gone, cloud.Gone, cloud.Gone}, found)
	g, confirmed, err := c.Delete(t.Context(), "t4", gone)
	require.NoError(t, err)
	require.Equal(t, gone, confirmed)
	require.Equal(t, 1, g.Target)
}

func TestConfigureRefusesBadGroups(t *testing.T) {
	c := open(t, Options{}, "t4")
	for _, list := range [][]cloud.Spec{
		specs(""), specs("T4"), specs("a/b"), specs("a.b"), specs("-a"), specs("a", "b", "a"), specs(strings.Repeat("a", 58)),
	} {
		require.ErrorIs(t, c.Configure(t.Context(), list), cloud.ErrInvalid)
		require.Zero(t, get(t, c, "t4").Target, "the groups are as they were")
	}
	require.NoError(t, c.Configure(t.Context(), specs(strings.Repeat("a", 57), "placeholder", "template", "0")))
}

func TestDescribeKeepsTheOrder(t *testing.T) {
	c := open(t, Options{}, "c", "a", "b")
	names := func(ids ...string) string {
		groups, err := c.Describe(t.Context(), ids...)
		require.NoError(t, err)
		order := make([]string, 0, len(groups))
		for _, g := range groups {
			order = append(order, g.ID)
		}
		return strings.Join(order, "")
	}
	require.Equal(t, "cab", names())
	require.Equal(t, "bc", names("b", "c"))
}

func TestOptionsAreChecked(t *testing.T) {
	for name, row := range map[string]struct {
		options Options
		want    string
	}{
		"negative delay":    {Options{BootDelay: -time.Second}, "bootDelay must not be negative, is -1s"},
		"negative latency":  {Options{API: API{Latency: -1}}, "api.latency must not be negative, is -1ns"},
		"rate above one":    {Options{LaunchErrorRate: 1.5}, "launchErrors.rate must be from 0 to 1, is 1.5"},
		"rate not a number": {Options{API: API{ErrorRate: math.NaN()}}, "api.errorRate must be from 0 to 1, is NaN"},
		"negative rate":     {Options{API: API{LostAnswerRate: -1}}, "api.lostAnswerRate must be from 0 to 1, is -1"},
		"unknown code":      {Options{LaunchErrorCode: "Oops"}, `launchErrors.code "Oops" is not one of`},
		"negative capacity": {Options{Capacity: map[string]int{"t4": -1}}, `capacity of "t4" must not be negative, is -1`},
		"two places":        {Options{StateFile: "f", Memory: &Memory{}}, "exclude each other"},
		"no client":         {Options{Kubernetes: &Kubernetes{}}, "kubernetes needs a client"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(row.options)
			require.ErrorContains(t, err, row.want)
		})
	}
	_, err := New(Options{LaunchDelay: -1, BootDelay: -1})
	require.ErrorContains(t, err, "launchDelay")
	require.ErrorContains(t, err, "bootDelay", "all problems are told at once")
}

func TestClosed(t *testing.T) {
	c, err := New(Options{})
	require.NoError(t, err)
	require.NoError(t, c.Configure(t.Context(), specs("t4")))
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
	_, err = c.Describe(t.Context())
	require.ErrorIs(t, err, cloud.ErrUnavailable)
	_, err = c.Increase(t.Context(), "t4", cloudtest.Exactly(1))
	require.ErrorIs(t, err, cloud.ErrUnavailable)
	require.ErrorIs(t, c.Configure(t.Context(), nil), cloud.ErrUnavailable)
}

func TestMemoryTakenOver(t *testing.T) {
	options := Options{Memory: &Memory{}}
	first := open(t, options, "t4")
	ids := idsOf(grow(t, first, "t4", 2))
	second := open(t, options, "t4")
	require.Equal(t, ids, idsOf(get(t, second, "t4")))
	_, err := first.Increase(t.Context(), "t4", cloudtest.Exactly(1))
	require.ErrorIs(t, err, cloud.ErrUnavailable, "the killed process cannot write any more")
	require.Len(t, get(t, second, "t4").Instances, 2)
}

func TestSequenceUsesEachSerialOnce(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		s := newSequence(random)
		require.True(t, s.valid())
		seen := map[string]bool{}
		for range 2000 {
			var serial string
			serial, s = s.take(nil)
			require.True(t, isCode(serial, serialLen))
			require.False(t, seen[serial])
			seen[serial] = true
		}
	}
}

func TestSerialsInUseAreSkipped(t *testing.T) {
	s := sequence{Next: 0, Step: 1}
	serial, next := s.take(map[string]bool{code(0): true, code(1): true})
	require.Equal(t, code(2), serial)
	require.Equal(t, uint32(3), next.Next)
}
