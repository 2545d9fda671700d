package cloudtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/simulated"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sound is a harness around a Backend that keeps the contract.
func sound(t testing.TB) Harness {
	var mu sync.Mutex
	now := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	options := simulated.Options{
		Memory:      &simulated.Memory{},
		LaunchDelay: time.Minute, BootDelay: time.Minute, TerminateDelay: time.Minute,
		Now: func() time.Time {
			mu.Lock()
			defer mu.Unlock()
			return now
		},
		Rand: rand.NewPCG(1, 2),
	}
	specs := []cloud.Spec{{ID: "one"}, {ID: "two"}, {ID: "three"}}
	open := func() *simulated.Cloud {
		c, err := simulated.New(options)
		require.NoError(t, err)
		return c
	}
	current := open()
	require.NoError(t, current.Configure(t.Context(), specs))
	return Harness{
		Backend: &midway{Backend: current},
		Specs:   specs,
		Settle: func(testing.TB) {
			mu.Lock()
			defer mu.Unlock()
			now = now.Add(time.Hour)
		},
		Starve: func(_ testing.TB, group string) { current.SetCapacity(group, 0) },
		Reopen: func(testing.TB) cloud.Backend {
			current = open()
			return &midway{Backend: current}
		},
		EndMidway: func(t testing.TB) context.Context {
			ctx, cancel := context.WithCancel(context.WithValue(t.Context(), midwayKey{}, true))
			cancel()
			return ctx
		},
	}
}

type midwayKey struct{}

// midway makes every other write whose context comes from EndMidway take
// effect. Such a context has ended already, and counts as ending midway.
type midway struct {
	cloud.Backend
	calls atomic.Int32
}

// through returns the context to go on with, and what to answer if the write is
// not, or not known to be, carried out.
func (m *midway) through(ctx context.Context) (context.Context, error) {
	if ctx.Value(midwayKey{}) == nil {
		return ctx, nil
	}
	unknown := fmt.Errorf("%w: %w", cloud.ErrUnknownOutcome, ctx.Err())
	if m.calls.Add(1)%2 == 0 {
		return ctx, unknown
	}
	return context.WithoutCancel(ctx), unknown
}

func (m *midway) Increase(ctx context.Context, id string, more func(cloud.Group) int) (cloud.Group, error) {
	ctx, unknown := m.through(ctx)
	group, err := m.Backend.Increase(ctx, id, more)
	if unknown != nil {
		return is(m.Backend, id), unknown
	}
	return group, err
}

func (m *midway) Cancel(ctx context.Context, id string, which func(cloud.Group) []string) (cloud.Group, []string, error) {
	ctx, unknown := m.through(ctx)
	group, given, err := m.Backend.Cancel(ctx, id, which)
	if unknown != nil {
		return is(m.Backend, id), nil, unknown
	}
	return group, given, err
}

func (m *midway) Delete(ctx context.Context, id string, instances []string) (cloud.Group, []string, error) {
	ctx, unknown := m.through(ctx)
	group, confirmed, err := m.Backend.Delete(ctx, id, instances)
	if unknown != nil {
		return is(m.Backend, id), nil, unknown
	}
	return group, confirmed, err
}

// recorder is a test that may fail without the surrounding one failing.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	failed   bool
	messages []string
}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
	r.messages = append(r.messages, fmt.Sprintf(format, args...))
}

func (r *recorder) FailNow() {
	r.mu.Lock()
	r.failed = true
	r.mu.Unlock()
	runtime.Goexit()
}

// try runs a check to its end, as the testing package would.
func try(t testing.TB, check check, h Harness) *recorder {
	r := &recorder{TB: t}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		check.run(newEnv(r, h))
	}()
	<-ended
	return r
}

func TestSoundBackendPassesEveryCheck(t *testing.T) {
	for _, topic := range topics(sound(t)) {
		for _, check := range topic.checks {
			r := try(t, check, sound(t))
			require.False(t, r.failed, "%s/%s: %v", topic.name, check.name, r.messages)
		}
	}
}

// TestEveryCheckCatchesSomething runs the suite against backends that each break
// one promise: each is caught by the check it is named for, and no check is
// there that nothing can fail.
func TestEveryCheckCatchesSomething(t *testing.T) {
	idle := map[string]bool{}
	for _, topic := range topics(sound(t)) {
		for _, check := range topic.checks {
			idle[topic.name+"/"+check.name] = true
		}
	}
	for _, mutant := range mutants() {
		t.Run(mutant.name, func(t *testing.T) {
			caught := map[string]bool{}
			for _, topic := range topics(sound(t)) {
				for _, check := range topic.checks {
					// Most broken backends are not made for concurrent calls.
					if topic.name == "concurrency" && !slices.Contains(mutant.caughtBy, topic.name+"/"+check.name) {
						continue
					}
					h := sound(t)
					mutant.breaks(&h)
					if try(t, check, h).failed {
						caught[topic.name+"/"+check.name] = true
					}
				}
			}
			for _, name := range mutant.caughtBy {
				require.True(t, caught[name], "it was not caught by %q but by %v", name, caught)
				delete(idle, name)
			}
		})
	}
	require.Empty(t, idle, "checks that no broken backend is named for")
}
