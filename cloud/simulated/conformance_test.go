package simulated_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/cloudtest"
	"gpu-node-provider/cloud/simulated"
)

// ticking moves on by a second at each look, so that machines arrive while
// calls are made.
type ticking struct{ *clocktesting.FakeClock }

func (c *ticking) Now() time.Time {
	c.Step(time.Second)
	return c.FakeClock.Now()
}

type testClock interface {
	Now() time.Time
	Step(d time.Duration)
}

var conformanceSpecs = []cloud.Spec{{ID: "t4"}, {ID: "a100"}, {ID: "placeholder"}}

// harness opens a cloud that forgets nothing over its Reopen.
func harness(t *testing.T, clock testClock, options simulated.Options) cloudtest.Harness {
	options.Now = clock.Now
	options.LaunchDelay, options.BootDelay, options.TerminateDelay = 20*time.Second, time.Minute, 30*time.Second
	var current *simulated.Cloud
	reopen := func(t testing.TB) *simulated.Cloud {
		if current != nil {
			require.NoError(t, current.Close())
		}
		c, err := simulated.New(options)
		require.NoError(t, err)
		current = c
		return c
	}
	t.Cleanup(func() { require.NoError(t, current.Close()) })
	require.NoError(t, reopen(t).Configure(t.Context(), conformanceSpecs))
	return cloudtest.Harness{
		Backend: current,
		Specs:   conformanceSpecs,
		Settle:  func(testing.TB) { clock.Step(time.Hour) },
		Starve:  func(_ testing.TB, group string) { current.SetCapacity(group, 0) },
		Reopen:  func(t testing.TB) cloud.Backend { return reopen(t) },
	}
}

func newHandClock() *clocktesting.FakeClock {
	return clocktesting.NewFakeClock(time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC))
}

func TestConformanceInMemory(t *testing.T) {
	cloudtest.Run(t, func(t *testing.T) cloudtest.Harness {
		return harness(t, newHandClock(), simulated.Options{Memory: &simulated.Memory{}})
	})
}

func TestConformanceWhileTimePasses(t *testing.T) {
	cloudtest.Run(t, func(t *testing.T) cloudtest.Harness {
		return harness(t, &ticking{newHandClock()}, simulated.Options{Memory: &simulated.Memory{}})
	})
}

func TestConformanceWithStateFile(t *testing.T) {
	cloudtest.Run(t, func(t *testing.T) cloudtest.Harness {
		return harness(t, newHandClock(), simulated.Options{StateFile: filepath.Join(t.TempDir(), "state.json")})
	})
}

// TestConformanceSlowAPI has calls that take a while and are abandoned midway.
func TestConformanceSlowAPI(t *testing.T) {
	const latency = time.Millisecond
	cloudtest.Run(t, func(t *testing.T) cloudtest.Harness {
		h := harness(t, newHandClock(), simulated.Options{
			Memory: &simulated.Memory{}, API: simulated.API{Latency: latency},
		})
		after := time.Duration(0)
		h.EndMidway = func(t testing.TB) context.Context {
			after = (after + 300*time.Microsecond) % latency // on the way there, and on the way back
			ctx, cancel := context.WithTimeout(t.Context(), after)
			t.Cleanup(cancel)
			return ctx
		}
		return h
	})
}

// TestConformanceReopenedBeforeEachCall restarts the process before every single
// call: nothing that matters lives in memory.
func TestConformanceReopenedBeforeEachCall(t *testing.T) {
	cloudtest.Run(t, func(t *testing.T) cloudtest.Harness {
		clock := newHandClock()
		h := harness(t, clock, simulated.Options{StateFile: filepath.Join(t.TempDir(), "state.json")})
		r := &restarting{current: h.Backend, specs: h.Specs}
		starved := map[string]bool{}
		starve, reopen := h.Starve, h.Reopen
		h.Starve = func(_ testing.TB, group string) { starved[group] = true }
		r.reopen = func() cloud.Backend {
			b := reopen(t)
			for group := range starved {
				starve(t, group)
			}
			return b
		}
		h.Backend = r
		h.Reopen = func(testing.TB) cloud.Backend { return r }
		return h
	})
}

type restarting struct {
	mu       sync.Mutex
	reopen   func() cloud.Backend
	current  cloud.Backend
	specs    []cloud.Spec
	revision uint64
}

// numbered gives a group the next revision: those of a process are its own.
func (r *restarting) numbered(g cloud.Group) cloud.Group {
	r.revision++
	g.Revision = r.revision
	return g
}

// fresh must be called with mu held until the call is over.
func (r *restarting) fresh() cloud.Backend {
	r.current = r.reopen()
	if err := r.current.Configure(context.Background(), r.specs); err != nil {
		panic(err)
	}
	return r.current
}

func (r *restarting) Configure(ctx context.Context, specs []cloud.Spec) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.fresh().Configure(ctx, specs)
	if err == nil {
		r.specs = append([]cloud.Spec(nil), specs...)
	}
	return err
}

func (r *restarting) Describe(ctx context.Context, ids ...string) ([]cloud.Group, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	groups, err := r.fresh().Describe(ctx, ids...)
	for n := range groups {
		groups[n] = r.numbered(groups[n])
	}
	return groups, err
}

func (r *restarting) Increase(ctx context.Context, id string, more func(cloud.Group) int) (cloud.Group, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g, err := r.fresh().Increase(ctx, id, more)
	return r.numbered(g), err
}

func (r *restarting) Cancel(ctx context.Context, id string, which func(cloud.Group) []string) (cloud.Group, []string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g, given, err := r.fresh().Cancel(ctx, id, which)
	return r.numbered(g), given, err
}

func (r *restarting) Delete(ctx context.Context, id string, names []string) (cloud.Group, []string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g, confirmed, err := r.fresh().Delete(ctx, id, names)
	return r.numbered(g), confirmed, err
}

func (r *restarting) Lookup(ctx context.Context, id string, names []string) ([]cloud.Existence, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fresh().Lookup(ctx, id, names)
}

func (r *restarting) Recognizes(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current.Recognizes(id)
}

func (r *restarting) TemplateID(group string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current.TemplateID(group)
}
