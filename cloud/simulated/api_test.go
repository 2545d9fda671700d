package simulated

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/cloudtest"
)

// call is one of the Backend's calls, ready to be made.
type call struct {
	name  string
	write bool
	make  func(ctx context.Context) error
}

// calls returns each call, ready to be made.
func calls(c *Cloud, machine, placeholder string) []call {
	return []call{
		{"Describe", false, func(ctx context.Context) error { _, err := c.Describe(ctx); return err }},
		{"Lookup", false, func(ctx context.Context) error { _, err := c.Lookup(ctx, "t4", nil); return err }},
		{"Increase", true, func(ctx context.Context) error { _, err := c.Increase(ctx, "t4", cloudtest.Exactly(1)); return err }},
		{"Cancel", true, func(ctx context.Context) error {
			_, _, err := c.Cancel(ctx, "t4", cloudtest.These([]string{placeholder}))
			return err
		}},
		{"Delete", true, func(ctx context.Context) error { _, _, err := c.Delete(ctx, "t4", []string{machine}); return err }},
	}
}

// faulty opens a cloud that has a machine and a placeholder, with the given API.
// What quiet returns is seen past the API.
func faulty(t *testing.T, api API) (quiet func() cloud.Group, made []call) {
	memory := &Memory{}
	setup := open(t, Options{Memory: memory, Capacity: map[string]int{"t4": 1}}, "t4")
	g := grow(t, setup, "t4", 2)
	c := open(t, Options{Memory: memory, API: api}, "t4")
	quiet = func() cloud.Group { return moment{state: c.current, now: c.current.Clock}.describe("t4") }
	return quiet, calls(c, g.Instances[0].ID, g.Instances[1].ID)
}

func TestErrorRate(t *testing.T) {
	quiet, made := faulty(t, API{ErrorRate: 1})
	before := quiet()
	for _, call := range made {
		require.ErrorIs(t, call.make(t.Context()), cloud.ErrUnavailable, call.name)
	}
	require.Equal(t, before, quiet())
}

func TestLostAnswers(t *testing.T) {
	quiet, made := faulty(t, API{LostAnswerRate: 1})
	for _, call := range made {
		before := quiet()
		err := call.make(t.Context())
		if !call.write {
			require.NoError(t, err, call.name)
			continue
		}
		require.ErrorIs(t, err, cloud.ErrUnknownOutcome, call.name)
		require.NotEqual(t, before, quiet(), "%s was not carried out", call.name)
	}
}

func TestRatesAreShares(t *testing.T) {
	c := open(t, Options{API: API{ErrorRate: 0.2}, Rand: slowly(nil).Rand}, "t4")
	failed := 0
	for range 1000 {
		if _, err := c.Describe(t.Context()); err != nil {
			failed++
		}
	}
	require.InDelta(t, 200, failed, 50)
}

func TestLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, made := faulty(t, API{Latency: 100 * time.Millisecond})
		for _, call := range made {
			start := time.Now()
			require.NoError(t, call.make(t.Context()), call.name)
			require.Equal(t, 100*time.Millisecond, time.Since(start), call.name)
		}
	})
}

// TestDeadlineOnTheWay ends the context before and after the half of the latency
// at which a write is carried out.
func TestDeadlineOnTheWay(t *testing.T) {
	for _, after := range []int{0, 1, 49, 51, 99} { // milliseconds
		carriedOut := after > 50
		for i, name := range []string{"Describe", "Lookup", "Increase", "Cancel", "Delete"} {
			synctest.Test(t, func(t *testing.T) {
				quiet, made := faulty(t, API{Latency: 100 * time.Millisecond})
				before := quiet()
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(after)*time.Millisecond)
				defer cancel()
				err := made[i].make(ctx)
				require.ErrorIs(t, err, context.DeadlineExceeded, name)
				require.Equal(t, made[i].write && after > 0, errors.Is(err, cloud.ErrUnknownOutcome), "%s after %d ms: %v", name, after, err)
				if made[i].write && carriedOut {
					require.NotEqual(t, before.Instances, quiet().Instances, "%s after %d ms was not carried out", name, after)
				} else {
					require.Equal(t, before.Instances, quiet().Instances, "%s after %d ms changed something", name, after)
				}
			})
		}
	}
}

func TestCancelledMidway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, made := faulty(t, API{Latency: time.Second})
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		start := time.Now()
		err := made[2].make(ctx)
		require.ErrorIs(t, err, cloud.ErrUnknownOutcome)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, time.Millisecond, time.Since(start), "it does not wait on")
	})
}
