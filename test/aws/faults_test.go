package aws

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gpu-node-provider/cloud/aws/awstest"
)

// write is a call of Cluster Autoscaler's that changes something, which it
// repeats until it is answered with OK.
type write struct {
	call func(ctx context.Context, w *world) error
	// want is the target afterwards; before, it is 5: 3 run and 2 are missing.
	want int
	ends int // instances
	// stale is the desired capacity before the last call of AWS.
	stale int
}

var writes = map[string]write{
	"increase": {func(ctx context.Context, w *world) error { return w.tryIncrease(ctx, train, 2) }, 7, 0, 5},
	"delete": {func(ctx context.Context, w *world) error {
		return w.tryDelete(ctx, train, nodes(machine(w.first[0]), machine(w.first[1]))...)
	}, 3, 2, 4},
	"cancel": {func(ctx context.Context, w *world) error { return w.tryDelete(ctx, train, fakes(w.waiting...)...) }, 3, 0, 5},
}

// faults befall every call of AWS there is in a write, reads included, one call
// after the other.
var faults = map[string]awstest.Fault{
	"500":                     awstest.Internal(),
	"500 after the effect":    awstest.InternalAfter(),
	"cut before the effect":   awstest.CutBefore(),
	"cut after the effect":    awstest.CutAfter(),
	"hung before the effect":  awstest.HangBefore(),
	"hung after the effect":   awstest.HangAfter(),
	"throttled":               awstest.Throttle(),
	"refused while it scales": awstest.InProgress(),
}

// TestFaultsOfEachCallOfAWrite: whatever goes wrong with the nth call to AWS of a
// write, nothing is bought twice, nothing is ended but what was named, and the
// target is right after one refresh.
func TestFaultsOfEachCallOfAWrite(t *testing.T) {
	t.Parallel()
	for what, call := range writes {
		for name, fault := range faults {
			for nth := range 5 {
				t.Run(fmt.Sprintf("%s/%s/%d", what, name, nth), func(t *testing.T) {
					t.Parallel()
					short(t).survives(call, awstest.Rule{Skip: nth, Times: 1, Fault: fault})
				})
			}
		}
	}
}

// TestFaultsOfAllChanges: everything that changes something loses its answer, or
// is answered later than anybody waits, until the caller has asked three times.
func TestFaultsOfAllChanges(t *testing.T) {
	t.Parallel()
	for what, call := range writes {
		for name, fault := range map[string]awstest.Fault{"cut": awstest.CutAfter(), "500": awstest.InternalAfter(), "hung": awstest.HangAfter()} {
			t.Run(what+"/"+name, func(t *testing.T) {
				t.Parallel()
				w := short(t)
				undo := w.proxy.Faults(
					awstest.Rule{Action: setDesired, Fault: fault}, awstest.Rule{Action: terminate, Fault: fault},
					awstest.Rule{Action: "SetInstanceProtection", Fault: fault}, awstest.Rule{Action: "UpdateAutoScalingGroup", Fault: fault},
				)
				err := call.call(w.within(deadlineOfFaults), w.world)
				for tries := 1; err != nil && tries < 3; tries++ {
					err = call.call(w.within(deadlineOfFaults), w.world)
				}
				undo()
				w.ends(call, err)
			})
		}
	}
}

// TestAnswersFromBeforeAWrite: AWS's readings lag behind what it has acknowledged.
func TestAnswersFromBeforeAWrite(t *testing.T) {
	t.Parallel()
	for what, call := range writes {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := short(t)
			require.NoError(t, call.call(t.Context(), w.world))
			undo := w.stub.Faults(awstest.Rule{Action: describe, Fault: awstest.Stale()})
			for range 5 {
				w.stub.Advance(time.Second)
				w.refresh()
				require.Equal(t, call.want, w.size(train), "what was acknowledged counts")
			}
			// Computed from what was acknowledged, and not sent while AWS shows more: should that
			// be so after all, AWS would end instances (CP17).
			if call.stale > call.want+1 {
				require.Equal(t, codes.Unavailable, status.Code(w.tryIncrease(t.Context(), train, 1)))
			} else {
				w.increase(train, 1)
			}
			undo()
			if call.stale > call.want+1 {
				w.increase(train, 1)
			}
			require.Equal(t, call.want+1, w.desired())
			w.refresh()
			require.Equal(t, call.want+1, w.size(train))
			require.Len(t, w.stub.Kills(), call.ends)
		})
	}
}

// faulty is a world behind a Proxy: three instances run and two are missing.
type faulty struct {
	*world
	proxy *awstest.Proxy
}

// deadlineOfFaults is the caller's, short so that what hangs does not take long.
const deadlineOfFaults = 1500 * time.Millisecond

func short(t *testing.T) *faulty {
	t.Helper()
	stub := trained(t, 3)
	stub.WorstVictims(true)
	proxy := awstest.NewProxy(t, stub.URL())
	w := &faulty{world: serve(t, stub, setup{endpoint: proxy.URL()}), proxy: proxy}
	w.first = stub.Group(train).IDs()
	w.increase(train, 2)
	stub.Advance(time.Minute)
	w.refresh()
	w.waiting = w.placeholders(train)
	require.Len(t, w.waiting, 2)
	return w
}

// survives makes the call under a fault.
func (w *faulty) survives(call write, rule awstest.Rule) {
	w.t.Helper()
	undo := w.proxy.Faults(rule)
	err := call.call(w.within(deadlineOfFaults), w.world)
	undo()
	w.ends(call, err)
}

// ends repeats a call like Cluster Autoscaler until it is answered with OK; then
// all has to be as if nothing had gone wrong.
func (w *faulty) ends(call write, err error) {
	w.t.Helper()
	for tries := 0; err != nil; tries++ {
		require.Less(w.t, tries, 3, "%v", err)
		w.refresh()
		err = call.call(w.t.Context(), w.world)
	}
	w.refresh()
	require.Equal(w.t, call.want, w.desired())
	require.Equal(w.t, call.want, w.size(train))
	require.Len(w.t, w.stub.Kills(), call.ends)
	for _, k := range w.stub.Kills() {
		require.Equal(w.t, awstest.Asked, k.Why)
	}
	w.stub.Settle()
	w.stub.Advance(2 * time.Minute)
	w.refresh()
	require.Equal(w.t, call.want, w.size(train))
	require.Len(w.t, w.states(train)[running], call.want)
	require.Equal(w.t, call.want, w.stub.Group(train).Live())
}
