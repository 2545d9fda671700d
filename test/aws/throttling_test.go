package aws

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/proto"
)

// TestB15Throttling: AWS refuses readings for a minute and more. Calls that read
// go on, Refresh is OK while the snapshot is young, and then says why it is not.
func TestB15Throttling(t *testing.T) {
	t.Parallel()
	stub := trained(t, 2)
	const interval = 30 * time.Second
	w := serve(t, stub, setup{readEvery: interval})
	start := stub.Count(describe)
	relent := stub.Faults(awstest.Rule{Action: describe, Fault: awstest.Throttle()})
	for age := 10 * time.Second; age <= 60*time.Second; age += 10 * time.Second { // as Cluster Autoscaler refreshes
		stub.Advance(10 * time.Second)
		before := stub.Count(describe)
		w.refresh()
		require.Equal(t, 2, w.size(train))
		if age < interval {
			require.Equal(t, before, stub.Count(describe), "the snapshot does")
		}
		require.LessOrEqual(t, stub.Count(describe)-before, 3, "the SDK's attempts of one reading")
	}
	stub.Advance(10 * time.Second)
	text := w.code(codes.Unavailable, w.tryRefresh())
	require.Contains(t, text, "the cloud was last read 1m10s ago")
	require.Contains(t, text, "Rate exceeded")
	require.Equal(t, 2, w.size(train))
	require.Positive(t, w.metric("gpu_node_provider_refresh_errors_total"))
	require.Greater(t, stub.Count(describe), start)
	text = w.code(codes.Unavailable, w.tryIncrease(t.Context(), train, 1))
	require.Contains(t, text, "Rate exceeded")
	require.Zero(t, stub.Count(setDesired))

	relent()
	stub.Advance(interval) // a cloud that throttles is not asked more often than another
	w.refresh()
	w.increase(train, 1)
	require.Equal(t, 3, w.desired())
}

// TestB15ReadingsDoNotGrowWithCalls: however many ask at a time, AWS is read once
// an interval.
func TestB15ReadingsDoNotGrowWithCalls(t *testing.T) {
	t.Parallel()
	stub := trained(t, 2)
	w := serve(t, stub, setup{readEvery: 30 * time.Second})
	for range 3 {
		stub.Advance(31 * time.Second)
		before := stub.Count(describe)
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if _, err := w.Refresh(t.Context(), &proto.RefreshRequest{}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		require.Equal(t, 1, stub.Count(describe)-before)
	}
}
