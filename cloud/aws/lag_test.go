package aws

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestLag: what counts when AWS shows a value, some time after 3 was raised to 5
// and that to 6.
func TestLag(t *testing.T) {
	start := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	for name, row := range map[string]struct {
		shown []int // a look every 5 s; the last is asked about
		after time.Duration
		want  int
	}{
		"not asked yet":                    {nil, 0, 6},
		"as written":                       {[]int{6}, 0, 6},
		"lags by one write":                {[]int{5}, 0, 6},
		"lags by two":                      {[]int{3}, 0, 6},
		"still lags":                       {[]int{3, 5, 3}, 0, 6},
		"somebody else's":                  {[]int{4}, 0, 4},
		"somebody else's, and then lags":   {[]int{4, 5}, 0, 5},
		"an answer from another part lags": {[]int{6, 5}, 0, 6},
		"shown, and much later it lags":    {[]int{6, 6, 5}, 30 * time.Second, 6},
		"taken back":                       {[]int{6, 6, 6, 5}, lagTime, 5},
		"taken back before it was shown":   {[]int{5}, lagTime, 5},
	} {
		t.Run(name, func(t *testing.T) {
			var l lag
			now := start
			l.set(5, now, 3)
			l.set(6, now, 5)
			shown := 3
			for n, value := range row.shown {
				now = now.Add(5 * time.Second)
				if n == len(row.shown)-1 {
					now = now.Add(row.after)
				}
				l.seen(value, now)
				shown = value
			}
			require.Equal(t, row.want, l.desired(shown, now))
		})
	}
}

func TestLagOfTerminations(t *testing.T) {
	now := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	var l lag
	l.ended([]string{"i-1"}, now)
	l.ended([]string{"i-2"}, now.Add(lagTime/2))
	require.True(t, l.isEnded("i-1", now.Add(lagTime-1)))
	require.False(t, l.isEnded("i-1", now.Add(lagTime)))
	require.True(t, l.isEnded("i-2", now.Add(lagTime)))
	require.False(t, l.isEnded("i-3", now))
	l.seen(0, now.Add(2*lagTime))
	require.Empty(t, l.ending)
}

// TestLagAfterADoubt: two terminations lowered 6, and perhaps a third.
func TestLagAfterADoubt(t *testing.T) {
	now := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	for shown, want := range map[int]int{
		6: 3, 5: 3, // it lags, and the third was most likely ours as well
		4: 4, 3: 3, // it shows
		2: 2, 9: 9, // somebody else's
	} {
		var l lag
		l.lowered(6, terminated{from: 6, sure: 2, doubt: 1}, []string{"i-1", "i-2"}, now)
		require.Equal(t, 4, l.desired(6, now))
		require.Equal(t, 4, l.desired(5, now), "half of it shows")
		l.seen(shown, now)
		l.doubted(shown, 3, 4, now)
		require.Equal(t, want, l.desired(shown, now), "shown %d", shown)
	}
}

// TestLagOfTerminationsThatShowAlready: 6 is lowered by two, and perhaps by a
// third; 4 had been raised to 6 before.
func TestLagOfTerminationsThatShowAlready(t *testing.T) {
	now := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	for during, want := range map[int]struct {
		most int
		ok   bool
		then map[int]int // what counts, by what is shown
	}{
		// 4 was there before, so it lags, or it is so already: the same.
		6: {4, true, map[int]int{6: 4, 5: 4, 4: 4, 3: 3, 9: 9}},
		5: {4, true, map[int]int{6: 4, 5: 4, 4: 4, 3: 3}},
		4: {4, true, map[int]int{6: 4, 5: 4, 4: 4, 3: 3}},
		3: {4, true, map[int]int{6: 4, 5: 4, 4: 4, 3: 3}},
		9: {9, false, map[int]int{9: 9, 8: 8, 6: 6}},
		1: {1, false, map[int]int{1: 1, 4: 4}},
	} {
		var l lag
		l.set(6, now, 4)
		l.seen(during, now)
		most, ok := l.lowered(during, terminated{from: 6, sure: 2, doubt: 1}, []string{"i-1", "i-2"}, now)
		require.Equal(t, want.most, most, "shown %d", during)
		require.Equal(t, want.ok, ok, "shown %d", during)
		require.True(t, l.isEnded("i-2", now))
		for shown, counts := range want.then {
			require.Equal(t, counts, l.desired(shown, now), "shown %d, then %d", during, shown)
		}
	}
}

// A value from before is believed when a write whose outcome is not known may
// have brought it back.
func TestLagAfterAnUnknownOutcome(t *testing.T) {
	now := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	var l lag
	l.set(4, now, 2, 3)
	l.lost(2, 2)
	require.Equal(t, 2, l.desired(2, now))
	require.Equal(t, 4, l.desired(3, now))
}

// What a lost write may still do counts until it shows, or until nothing can come of it.
func TestUnsettled(t *testing.T) {
	now := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	unsettled := func(l *lag, desired int, after time.Duration) [2]int {
		more, fewer := l.unsettled(desired, now.Add(after))
		return [2]int{more, fewer}
	}
	var raised lag
	raised.mayShow(4, 6, 6, now)
	require.Equal(t, [2]int{2, 0}, unsettled(&raised, 4, 0))
	require.Equal(t, [2]int{1, 0}, unsettled(&raised, 5, 0), "an increase by one since")
	require.Equal(t, [2]int{3, 0}, unsettled(&raised, 3, 0), "a decrease by one since: the value is absolute")
	raised.mayShow(4, 5, 5, now.Add(time.Second))
	require.Equal(t, [2]int{2, 0}, unsettled(&raised, 4, 0), "the farthest counts")
	require.Equal(t, [2]int{}, unsettled(&raised, 4, lagTime+time.Second))
	raised.seen(6, now)
	require.Equal(t, [2]int{}, unsettled(&raised, 4, 0), "it has shown")

	var lowered lag
	lowered.mayShow(4, 2, 4, now)
	require.Equal(t, [2]int{0, 2}, unsettled(&lowered, 4, 0))
	lowered.seen(4, now)
	require.Equal(t, [2]int{0, 2}, unsettled(&lowered, 4, 0), "not yet")
	lowered.seen(2, now)
	require.Equal(t, [2]int{}, unsettled(&lowered, 4, 0))
}

// A lost write that has shown counts as if it had been acknowledged: an answer that lags does
// not take it back.
func TestLostWriteThatHasShown(t *testing.T) {
	now := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	var l lag
	l.lost(6, 6)
	l.mayShow(4, 6, 6, now)
	require.Equal(t, 4, l.desired(4, now))
	l.seen(6, now)
	require.Equal(t, 6, l.desired(4, now.Add(lagTime/2)))
	require.Equal(t, 4, l.desired(4, now.Add(lagTime)), "then another client has set it")
}
