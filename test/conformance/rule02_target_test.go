package conformance

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRule02TargetSizeEqualsWhatIsListed(t *testing.T) {
	parallel(t)
	t.Run("TargetSizeCountsInstancesThatAreNotDeleting", rule02Counts)
	t.Run("InEverySnapshot", rule02EverySnapshot)
	t.Run("APlaceholderStandsForEachUnitThatIsNotThere", rule02Placeholders)
	t.Run("ItsIdNamesTheGroupAndStays", rule02Stays)
	t.Run("ItsIdIsNeverUsedAgain", rule02NeverAgain)
	t.Run("AMachineTakesThePlaceOfItsPlaceholder", rule02Replaced)
}

func rule02Counts(t *testing.T) {
	s := wire(t, file{simulated: []string{"terminateDelay: 1h"}, groups: []string{group("t4"), group("a100")}})
	for _, g := range s.nodeGroups(t) {
		s.size(t, g.GetId())
	}
	before := s.size(t, s.id)
	came := s.grown(t, 3)
	require.Len(t, came, 3)
	assert.Equal(t, before+3, s.size(t, s.id), "those that run, boot or wait count")
	s.delete(t, s.id, node(came[0]))
	assert.Equal(t, before+2, s.size(t, s.id), "those that are deleting do not")
	s.refresh(t)
	assert.Equal(t, before+2, s.size(t, s.id))
}

// rule02EverySnapshot does all that changes sizes, in any order, while units
// launch, fail, boot and go.
func rule02EverySnapshot(t *testing.T) {
	parallel(t)
	s := serve(t, file{
		simulated: []string{
			"launchDelay: 20ms", "bootDelay: 30ms", "terminateDelay: 40ms", "capacity: {t4: 5}",
			"api: {latency: 1ms, errorRate: 0.05, lostAnswerRate: 0.2}",
		},
		groups: []string{group("t4", "minSize: 1", "maxSize: 8"), group("a100", "maxSize: 3")},
		quotas: []string{"{name: nodes, resource: nodes, limit: 10}"},
	})
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		id := []string{"t4", "a100"}[random.IntN(2)]
		s.anyCall(t.Context(), random, id, s.ids(t, id))
		total := 0
		for _, g := range s.nodeGroups(t) {
			size := s.size(t, g.GetId())
			assert.LessOrEqual(t, size, map[string]int{"t4": 8, "a100": 3}[g.GetId()])
			total += size
		}
		require.LessOrEqual(t, total, 10, "the quota of both groups")
	}
}

// anyCall makes a call that may change sizes. It may fail: the cloud does.
func (s *server) anyCall(ctx context.Context, random *rand.Rand, id string, ids []string) {
	switch random.IntN(4) {
	case 0:
		_ = s.tryIncrease(ctx, id, 1+random.IntN(3))
	case 1:
		_ = s.tryDecrease(ctx, id, -1-random.IntN(3))
	case 2:
		random.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
		_ = s.tryDelete(ctx, id, fakes("unregistered", ids[:min(len(ids), 1+random.IntN(2))]...)...)
	default:
		_, _ = s.Refresh(ctx, nil)
	}
}

func rule02Placeholders(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: []string{"launchDelay: 1h"}, groups: []string{group("t4", "maxSize: 7")}})
	for n := 1; n <= 7; n++ {
		s.increase(t, s.id, 1)
		require.Len(t, unique(s.ids(t, s.id, creating)), n, "creating, each with an id of its own")
		require.Equal(t, n, s.size(t, s.id))
	}
}

func unique(ids []string) map[string]bool {
	set := map[string]bool{}
	for _, id := range ids {
		set[id] = true
	}
	return set
}

func rule02Stays(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: []string{"launchDelay: 1h"}, groups: []string{group("t4"), group("a100")}})
	s.increase(t, "t4", 2)
	s.increase(t, "a100", 1)
	before := map[string][]string{"t4": s.ids(t, "t4"), "a100": s.ids(t, "a100")}
	same := func(when string) {
		for id, ids := range before {
			assert.ElementsMatch(t, ids, s.ids(t, id, creating), when)
			for _, placeholder := range ids {
				assert.Contains(t, placeholder, id, "an id names its group")
				assert.Equal(t, id, s.groupFor(t, fake(placeholder, "unregistered")).GetId())
			}
		}
	}
	s.refresh(t)
	same("after a Refresh")
	s.restart(t)
	same("after a kill -9")
}

func rule02NeverAgain(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: []string{"launchDelay: 1h"}})
	seen := map[string]bool{}
	for round := range 40 {
		s.increase(t, s.id, 3)
		ids := s.ids(t, s.id)
		require.Len(t, ids, 3)
		for _, id := range ids {
			require.False(t, seen[id], "%s again, in round %d", id, round)
			seen[id] = true
		}
		// Both ways in which a placeholder goes.
		require.NoError(t, s.tryDecrease(t.Context(), s.id, -2))
		s.delete(t, s.id, fakes("create-error", s.ids(t, s.id)...)...)
		if round%10 == 9 {
			s.restart(t) // nothing is in flight, so nothing will be absorbed
		}
	}
}

func rule02Replaced(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: []string{"launchDelay: 300ms", "bootDelay: 300ms"}})
	s.increase(t, s.id, 2)
	waiting := s.ids(t, s.id, creating)
	require.Len(t, waiting, 2)
	eventually(t, "the machines run", func() bool {
		s.refresh(t)
		require.Equal(t, 2, s.size(t, s.id))
		return len(s.ids(t, s.id, running)) == 2
	})
	machines := s.ids(t, s.id)
	assert.Len(t, machines, 2)
	for _, id := range machines {
		assert.NotContains(t, waiting, id, "no placeholder's id is ever a machine's")
		assert.Equal(t, s.id, s.groupFor(t, node(id)).GetId())
	}
	for _, id := range waiting {
		assert.False(t, strings.Contains(strings.Join(machines, " "), id))
	}
}
