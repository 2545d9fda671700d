package conformance

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
)

func TestRule09DecreaseTargetSizeCancelsPlaceholdersOnly(t *testing.T) {
	parallel(t)
	t.Run("DeltaIsNegative", rule09Delta)
	t.Run("UpToAsManyPlaceholdersAsThereAre", rule09Cancels)
	t.Run("WithNoneItIsFailedPreconditionAndNothingChanges", rule09Nothing)
	t.Run("LiveAndBootingInstancesAreNotTouched", rule09Machines)
	t.Run("NorThoseThatHaveJustBecomeMachines", rule09Launched)
	t.Run("FailedPlaceholdersGoFirst", rule09Failed)
	t.Run("ALostAnswerIsSettledByTheCloud", rule09Lost)
	t.Run("ItStaysCancelled", rule09Durable)
}

func rule09Delta(t *testing.T) {
	s := wire(t, file{simulated: []string{"launchDelay: 1h"}})
	s.grown(t, 1)
	before := s.size(t, s.id)
	for _, delta := range []int{0, 1, math.MaxInt32} {
		code(t, codes.InvalidArgument, s.tryDecrease(t.Context(), s.id, delta))
	}
	for _, id := range []string{"", "no-such-group"} {
		code(t, codes.NotFound, s.tryDecrease(t.Context(), id, -1))
	}
	assert.Equal(t, before, s.size(t, s.id))
}

func rule09Cancels(t *testing.T) {
	parallel(t)
	for _, c := range []struct{ delta, left int }{{-1, 3}, {-3, 1}, {-4, 0}, {-5, 0}, {math.MinInt32, 0}} {
		s := serve(t, file{simulated: []string{"launchDelay: 1h"}})
		s.increase(t, s.id, 4)
		require.NoError(t, s.tryDecrease(t.Context(), s.id, c.delta))
		assert.Equal(t, c.left, s.size(t, s.id), "4 placeholders, %d", c.delta)
		s.refresh(t)
		assert.Equal(t, c.left, s.size(t, s.id), "4 placeholders, %d", c.delta)
	}
}

func rule09Nothing(t *testing.T) {
	parallel(t)
	s := serve(t, file{})
	code(t, codes.FailedPrecondition, s.tryDecrease(t.Context(), s.id, -1)) // an empty group
	s.increase(t, s.id, 3)
	before := s.ids(t, s.id, running)
	for _, delta := range []int{-1, -3, -4} {
		code(t, codes.FailedPrecondition, s.tryDecrease(t.Context(), s.id, delta))
	}
	s.refresh(t)
	assert.Equal(t, before, s.ids(t, s.id, running))
	assert.Equal(t, 3, s.size(t, s.id))
}

// rule09Machines: Cluster Autoscaler sends the whole of a request that timed
// out, although part of it has arrived.
func rule09Machines(t *testing.T) {
	for name, simulated := range map[string][]string{"live": {"capacity: {t4: 2}"}, "booting": booting("capacity: {t4: 2}")} {
		t.Run(name, func(t *testing.T) {
			parallel(t)
			s := serve(t, file{simulated: simulated})
			s.increase(t, s.id, 2)
			machines := s.ids(t, s.id)
			s.increase(t, s.id, 2) // the cloud has no more
			require.NoError(t, s.tryDecrease(t.Context(), s.id, -4))
			assert.ElementsMatch(t, machines, s.ids(t, s.id))
			assert.Equal(t, 2, s.size(t, s.id))
			code(t, codes.FailedPrecondition, s.tryDecrease(t.Context(), s.id, -2))
			s.refresh(t)
			assert.ElementsMatch(t, machines, s.ids(t, s.id, creating, running))
		})
	}
}

// rule09Launched: the snapshot still shows placeholders where the cloud has
// machines already.
func rule09Launched(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: booting("launchDelay: 400ms")})
	s.increase(t, s.id, 2)
	waiting := s.ids(t, s.id)
	throughout(t, 600*time.Millisecond, "nobody asks meanwhile", s.running)
	code(t, codes.FailedPrecondition, s.tryDecrease(t.Context(), s.id, -2))
	s.refresh(t)
	assert.Equal(t, 2, s.size(t, s.id))
	for _, id := range s.ids(t, s.id, creating) {
		assert.NotContains(t, waiting, id, "a machine, no placeholder")
	}
}

func rule09Failed(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: []string{"launchDelay: 300ms", "bootDelay: 1h", "capacity: {t4: 0}"}})
	s.increase(t, s.id, 1)
	eventually(t, "the first has failed", func() bool {
		s.refresh(t)
		return s.instances(t, s.id)[0].GetStatus().GetErrorInfo() != nil
	})
	failed := s.ids(t, s.id)
	s.increase(t, s.id, 1)
	require.NoError(t, s.tryDecrease(t.Context(), s.id, -1))
	assert.NotContains(t, s.ids(t, s.id), failed[0], "nothing comes of it, so it goes first")
	assert.Equal(t, 1, s.size(t, s.id))
}

func rule09Lost(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: []string{"launchDelay: 1h", "api: {lostAnswerRate: 1}"}})
	s.increase(t, s.id, 3)
	require.NoError(t, s.tryDecrease(t.Context(), s.id, -2))
	assert.Equal(t, 1, s.size(t, s.id))
	require.NoError(t, s.tryDecrease(t.Context(), s.id, -2))
	assert.Equal(t, 0, s.size(t, s.id))
	code(t, codes.FailedPrecondition, s.tryDecrease(t.Context(), s.id, -2))
}

func rule09Durable(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: []string{"launchDelay: 1h"}})
	s.increase(t, s.id, 3)
	require.NoError(t, s.tryDecrease(t.Context(), s.id, -2))
	s.restart(t)
	assert.Equal(t, 1, s.size(t, s.id))
}
