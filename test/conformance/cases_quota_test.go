package conformance

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"gpu-node-provider/proto"
)

var quotaCases = []row{
	{"G-03 errors that Cluster Autoscaler ignores", caseG03},
	{"G-06 all or nothing above a quota", caseG06},
	{"G-08 an error of IncreaseSize means an immediate backoff", caseG08},
}

// caseG03: an error only with state creating and with a code.
func caseG03(t *testing.T) {
	s := serve(t, file{simulated: []string{"capacity: {t4: 2}", "terminateDelay: 1h"}, groups: []string{group("t4", "maxSize: 9")}})
	s.increase(t, s.id, 5)
	s.delete(t, s.id, node(s.ids(t, s.id, running)[0]))
	errors := map[proto.InstanceStatus_InstanceState]int{}
	for _, i := range s.instances(t, s.id) {
		state, e := i.GetStatus().GetInstanceState(), i.GetStatus().GetErrorInfo()
		if e == nil {
			assert.NotEqual(t, creating, state)
			continue
		}
		errors[state]++
		assert.NotEmpty(t, e.GetErrorCode())
	}
	assert.Equal(t, map[proto.InstanceStatus_InstanceState]int{creating: 3}, errors)
}

// caseG06: rule 7 grants the part that fits, without placeholders for the rest:
// the reported maximum keeps Cluster Autoscaler from asking for it, and the log
// (with Kubernetes an Event, too) has the numbers.
func caseG06(t *testing.T) {
	s := serve(t, file{
		groups: []string{group("t4", "maxSize: 10")},
		quotas: []string{"{name: gpus, resource: nvidia.com/gpu, limit: 1}"},
	})
	s.increase(t, s.id, 3)
	assert.Equal(t, 1, s.size(t, s.id))
	assert.Equal(t, 1, s.max(t, s.id), "so that it is not asked for again")
	told := s.told(t, "node group partially increased")
	require.Len(t, told, 1, "never silently")
	assert.Contains(t, told[0]["limit"], "quota gpus")
	text := code(t, codes.ResourceExhausted, s.tryIncrease(t.Context(), s.id, 3))
	assert.Contains(t, text, "quota gpus: 1 of 1 nvidia.com/gpu")
	assert.Contains(t, text, "node group file", "the limit's source")
}

// caseG08: an error only where nothing was changed, and no error where only the
// cloud's answer was lost.
func caseG08(t *testing.T) {
	lost := serve(t, file{simulated: []string{"api: {lostAnswerRate: 1}"}})
	lost.increase(t, lost.id, 2)
	assert.Equal(t, 2, lost.size(t, lost.id))

	s := serve(t, file{simulated: booting("api: {errorRate: 0.3, lostAnswerRate: 0.5}"), groups: []string{group("t4", "maxSize: 1000")}})
	failed, owed := 0, 0
	for range 40 {
		before := s.size(t, s.id)
		err := s.tryIncrease(t.Context(), s.id, 1)
		if err == nil {
			require.Equal(t, before+1-owed, s.size(t, s.id), "bought, or absorbed by what an earlier error has bought all the same")
			owed = 0
			continue
		}
		code(t, codes.Unavailable, err)
		failed++
		// Where the answer was lost, and the cloud failed again when it was asked
		// what it had done, the next reading tells.
		taken := s.snapshotTime(t)
		eventually(t, "the cloud is read", func() bool {
			s.refresh(t)
			return s.snapshotTime(t) != taken
		})
		raised := s.size(t, s.id) - before
		require.Contains(t, []int{0, 1}, raised)
		owed = max(owed, raised)
	}
	assert.Positive(t, failed)
}
