package quota

import (
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// clock is a time that stands still until it is moved.
type clock struct{ at time.Time }

func (c *clock) now() time.Time          { return c.at }
func (c *clock) advance(d time.Duration) { c.at = c.at.Add(d) }

func newClock() *clock { return &clock{time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)} }

func gpuQuota(limit int64, groups ...string) Quota {
	return Quota{Name: "gpus", Resource: "nvidia.com/gpu", Limit: limit, Scale: 1, Source: "node group file", Groups: groups}
}

func group(id string, most int, gpus int64) Group {
	return Group{ID: id, Max: most, Units: map[string]int64{"nvidia.com/gpu": gpus}}
}

func observe(l *Ledger, id string, target, deleting int) {
	l.Observe(id, Size{Target: target, Deleting: deleting, CloudMax: math.MaxInt})
}

func TestRoom(t *testing.T) {
	surge := &Surge{Max: 2, Window: 5 * time.Minute}
	for _, tc := range []struct {
		name   string
		groups []Group
		quotas []Quota
		prior  func(*Ledger)
		room   int
		reason Reason
		text   string
	}{
		{
			name: "the file's maximum", groups: []Group{group("t4", 4, 1)},
			prior: func(l *Ledger) { observe(l, "t4", 1, 0) },
			room:  3, reason: AtMaximum, text: "maxSize 4 of group t4 in the node group file",
		},
		{
			name: "a target above a lowered maximum", groups: []Group{group("t4", 2, 1)},
			prior: func(l *Ledger) { observe(l, "t4", 3, 0) },
			room:  0, reason: AtMaximum, text: "maxSize 2 of group t4 in the node group file",
		},
		{
			name: "a retired group", groups: []Group{group("t4", 0, 1)},
			room: 0, reason: AtMaximum, text: "group t4 cannot grow (maxSize 0 or retired in the node group file)",
		},
		{
			name: "the cloud's maximum", groups: []Group{group("t4", 4, 1)},
			prior: func(l *Ledger) { l.Observe("t4", Size{Target: 1, CloudMax: 2}) },
			room:  1, reason: AtMaximum, text: "maximum 2 of the group in the cloud",
		},
		{
			name: "a quota, in whole nodes", groups: []Group{group("a100", 4, 8)}, quotas: []Quota{gpuQuota(20, "a100")},
			room: 2, reason: QuotaExhausted, text: "quota gpus: 0 of 20 nvidia.com/gpu used, a node of a100 needs 8 (node group file)",
		},
		{
			name: "a quota shared with another group", groups: []Group{group("t4", 9, 1), group("a100", 4, 8)}, quotas: []Quota{gpuQuota(10, "t4", "a100")},
			prior: func(l *Ledger) { observe(l, "a100", 1, 0) },
			room:  2, reason: QuotaExhausted, text: "quota gpus: 8 of 10 nvidia.com/gpu used, a node of t4 needs 1 (node group file)",
		},
		{
			name: "what is terminating counts until it is gone", groups: []Group{group("t4", 9, 1)}, quotas: []Quota{gpuQuota(3, "t4")},
			prior: func(l *Ledger) { observe(l, "t4", 1, 2) },
			room:  0, reason: QuotaExhausted, text: "quota gpus: 3 of 3 nvidia.com/gpu used, a node of t4 needs 1 (node group file)",
		},
		{
			name: "a quota whose resource the group does not use", groups: []Group{group("cpu", 9, 0)}, quotas: []Quota{gpuQuota(0, "cpu")},
			room: 9, reason: AtMaximum, text: "maxSize 9 of group cpu in the node group file",
		},
		{
			name: "a quota that does not cover the group", groups: []Group{group("t4", 9, 1)}, quotas: []Quota{gpuQuota(0, "other")},
			room: 9, reason: AtMaximum, text: "maxSize 9 of group t4 in the node group file",
		},
		{
			name: "the group's surge", groups: []Group{{ID: "t4", Max: 9, Surge: surge}},
			prior: func(l *Ledger) { l.Reserve("t4", 1) },
			room:  1, reason: SurgeLimited, text: "surge of group t4: 1 of 2 nodes requested within 5m0s, more in 5m0s",
		},
		{
			name: "a quota's surge across groups", groups: []Group{group("t4", 9, 1), group("a100", 9, 8)},
			quotas: []Quota{{Name: "gpus", Resource: "nvidia.com/gpu", Limit: 100, Scale: 1, Source: "node group file", Groups: []string{"t4", "a100"}, Surge: &Surge{Max: 10, Window: time.Minute}}},
			prior:  func(l *Ledger) { l.Reserve("a100", 1) },
			room:   2, reason: SurgeLimited, text: "surge of quota gpus: 8 of 10 nvidia.com/gpu requested within 1m0s, a node of t4 needs 1, more in 1m0s",
		},
		{
			name: "a surge too small for one node", groups: []Group{group("a100", 9, 8)},
			quotas: []Quota{{Name: "gpus", Resource: "nvidia.com/gpu", Limit: 100, Scale: 1, Source: "node group file", Groups: []string{"a100"}, Surge: &Surge{Max: 4, Window: time.Minute}}},
			room:   0, reason: SurgeLimited, text: "surge of quota gpus: 0 of 4 nvidia.com/gpu requested within 1m0s, a node of a100 needs 8",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := New(newClock().now)
			l.Configure(tc.groups, tc.quotas)
			if tc.prior != nil {
				tc.prior(l)
			}
			require.Equal(t, Limit{tc.reason, tc.room, tc.text}, l.Room(tc.groups[0].ID))
		})
	}
}

func TestReserveGrantsInPart(t *testing.T) {
	l := New(newClock().now)
	l.Configure([]Group{group("t4", 9, 1)}, []Quota{gpuQuota(2, "t4")})
	granted, limit := l.Reserve("t4", 3)
	require.Equal(t, 2, granted)
	require.Equal(t, QuotaExhausted, limit.Reason)
	granted, _ = l.Reserve("t4", 1)
	require.Zero(t, granted)
	l.Release("t4", 1)
	granted, _ = l.Reserve("t4", 1)
	require.Equal(t, 1, granted, "what was released is there again")
}

func TestRaceForTheLastUnitHasOneWinner(t *testing.T) {
	l := New(newClock().now)
	l.Configure([]Group{group("t4", 9, 1), group("l4", 9, 1)}, []Quota{gpuQuota(1, "t4", "l4")})
	var won atomic.Int64
	var racers sync.WaitGroup
	for n := range 64 {
		racers.Go(func() {
			granted, _ := l.Reserve([]string{"t4", "l4"}[n%2], 1)
			won.Add(int64(granted))
		})
	}
	racers.Wait()
	require.EqualValues(t, 1, won.Load())
}

func TestSurgeSlides(t *testing.T) {
	c := newClock()
	l := New(c.now)
	l.Configure([]Group{{ID: "t4", Max: 99, Surge: &Surge{Max: 2, Window: 5 * time.Minute}}}, nil)
	reserve := func(want int) int {
		granted, _ := l.Reserve("t4", want)
		return granted
	}
	require.Equal(t, 1, reserve(1))
	c.advance(time.Minute)
	require.Equal(t, 1, reserve(5))
	require.Equal(t, 0, reserve(1))
	c.advance(4*time.Minute - time.Nanosecond)
	require.Equal(t, 0, reserve(1), "a nanosecond early")
	c.advance(time.Nanosecond)
	require.Equal(t, 1, reserve(5), "only the first has left the window")
	l.Refund("t4", 1)
	require.Equal(t, 1, reserve(5), "a cancelled placeholder is refunded")
}

// TestND06TextsTellWhatANodeNeeds: a quota with nothing used and no room tells why.
func TestND06TextsTellWhatANodeNeeds(t *testing.T) {
	spend := Quota{Name: "spend", Resource: "usd-per-hour", Limit: 40_000_000, Scale: 1_000_000, Source: "node group file", Groups: []string{"a", "b"}}
	a := Group{ID: "a", Max: 9, Units: map[string]int64{"usd-per-hour": 55_040_000}}
	b := Group{ID: "b", Max: 100, Units: map[string]int64{"usd-per-hour": 526_000}}
	l := New(newClock().now)
	l.Configure([]Group{a, b}, []Quota{spend})
	require.Equal(t, Limit{QuotaExhausted, 0, "quota spend: 0 of 40 usd-per-hour used, a node of a needs 55.04 (node group file)"}, l.Room("a"))

	spend.Limit, spend.Surge = 1_000_000_000, &Surge{Max: 40_000_000, Window: time.Minute}
	l.Configure([]Group{a, b}, []Quota{spend})
	require.Equal(t, "surge of quota spend: 0 of 40 usd-per-hour requested within 1m0s, a node of a needs 55.04", l.Room("a").Text)
	l.Reserve("b", 76)
	require.Equal(t, "surge of quota spend: 39.976 of 40 usd-per-hour requested within 1m0s, a node of b needs 0.526, more in 1m0s", l.Room("b").Text)
}

// TestCP08MachinesCountByTheirType: after a change of type the old machines keep their use,
// machines of an unknown type and what is not launched yet count as the new.
func TestCP08MachinesCountByTheirType(t *testing.T) {
	l := New(newClock().now)
	g := group("train", 99, 1)
	g.Each = map[string]map[string]int64{"p5": {"nvidia.com/gpu": 8}, "t4": {"nvidia.com/gpu": 1}}
	l.Configure([]Group{g}, []Quota{gpuQuota(30, "train")})
	l.Observe("train", Size{Target: 5, Deleting: 1, CloudMax: 99, Machines: map[string]int{"p5": 3, "t4": 1, "new": 1}})
	used := func() float64 { return l.Usage()[0].Used }
	require.InDelta(t, 3*8+1+1+1, used(), 0)
	granted, _ := l.Reserve("train", 9)
	require.Equal(t, 3, granted)
	l.Release("train", 3)
	require.InDelta(t, 27, used(), 0)

	cpu := group("train", 99, 0)
	cpu.Each = map[string]map[string]int64{"p5": {"nvidia.com/gpu": 8}}
	l.Configure([]Group{cpu}, []Quota{gpuQuota(20, "train")})
	require.InDelta(t, 24, used(), 0)
	require.Equal(t, AtMaximum, l.Room("train").Reason, "a node without a GPU needs none of the quota")
}

// TestCP05SharedSurgeIsGivenOnce: each of five groups was told of the whole surge.
func TestCP05SharedSurgeIsGivenOnce(t *testing.T) {
	l := New(newClock().now)
	ids := []string{"a", "b", "c", "d", "e"}
	quota := gpuQuota(100, ids...)
	quota.Surge = &Surge{Max: 4, Window: time.Minute}
	var groups []Group
	for _, id := range ids {
		groups = append(groups, group(id, 9, 1))
	}
	l.Configure(groups, []Quota{quota})
	total := 0
	for _, id := range ids {
		require.Equal(t, 4-total, l.Room(id).Room)
		granted, limit := l.Reserve(id, 3)
		total += granted
		require.Equal(t, SurgeLimited, limit.Reason)
	}
	require.Equal(t, 4, total)
}

func TestReloadIsNoWayRoundASurge(t *testing.T) {
	l := New(newClock().now)
	groups := []Group{{ID: "t4", Max: 9, Surge: &Surge{Max: 2, Window: time.Minute}, Units: map[string]int64{"nvidia.com/gpu": 1}}}
	l.Configure(groups, []Quota{gpuQuota(5, "t4")})
	l.Reserve("t4", 2)
	l.Configure(groups, []Quota{gpuQuota(5, "t4")})
	require.Equal(t, SurgeLimited, l.Room("t4").Reason)
	require.InDelta(t, 2, l.Usage()[0].Used, 0)
}

func TestRestartIsNoWayRoundASurge(t *testing.T) {
	c := newClock()
	l := New(c.now)
	l.Configure([]Group{{ID: "t4", Max: 9, Surge: &Surge{Max: 2, Window: time.Minute}}}, nil)
	l.Remember("t4", c.at.Add(-30*time.Second), 1)
	l.Remember("t4", c.at.Add(-2*time.Minute), 5) // long ago
	require.Equal(t, 1, l.Room("t4").Room)
}

func TestUnknownGroup(t *testing.T) {
	l := New(newClock().now)
	l.Observe("nope", Size{Target: 1})
	l.Release("nope", 1)
	l.Refund("nope", 1)
	l.Remember("nope", time.Time{}, 1)
	granted, _ := l.Reserve("nope", 1)
	require.Zero(t, granted)
	require.Zero(t, l.Room("nope").Room)
}
