package conformance

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gpu-node-provider/proto"
)

func TestRule11ErrorsOnInstances(t *testing.T) {
	parallel(t)
	t.Run("StateCodeAndClass", rule11Codes)
	t.Run("KeptWithTheTargetUntilThePlaceholderIsDeleted", rule11Kept)
	t.Run("OnlyOnThoseThatFailed", rule11OnlyFailed)
}

// failures are the codes there are, with the class of each: 1 for lack of
// capacity or quota, 99 otherwise.
var failures = map[string]int32{
	"InsufficientInstanceCapacity":      1,
	"MaxSpotInstanceCountExceeded":      1,
	"VcpuLimitExceeded":                 1,
	"UnfulfillableCapacity":             1,
	"Unsupported":                       1,
	"InsufficientFreeAddressesInSubnet": 1,
	"LaunchTemplateError":               99,
	"Other":                             99,
}

func rule11Codes(t *testing.T) {
	for name, class := range failures {
		t.Run(name, func(t *testing.T) {
			parallel(t)
			s := serve(t, file{simulated: []string{"launchErrors: {rate: 1, code: " + name + "}"}})
			s.increase(t, s.id, 2)
			instances := s.instances(t, s.id)
			require.Len(t, instances, 2)
			for _, i := range instances {
				assert.Equal(t, creating, i.GetStatus().GetInstanceState())
				e := i.GetStatus().GetErrorInfo()
				assert.Equal(t, name, e.GetErrorCode())
				assert.Equal(t, class, e.GetInstanceErrorClass())
				assert.NotEmpty(t, e.GetErrorMessage())
				assert.LessOrEqual(t, len(e.GetErrorMessage()), maxMessage, "thousands of them have to fit in one answer")
			}
		})
	}
}

func rule11Kept(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: []string{"capacity: {t4: 0}"}})
	s.increase(t, s.id, 3)
	ids := s.ids(t, s.id)
	kept := func(when string) {
		assert.ElementsMatch(t, ids, s.ids(t, s.id, creating), when)
		for _, i := range s.instances(t, s.id) {
			assert.Equal(t, "InsufficientInstanceCapacity", i.GetStatus().GetErrorInfo().GetErrorCode(), when)
		}
		assert.Equal(t, 3, s.size(t, s.id), when)
	}
	kept("at once")
	for range 3 {
		s.refresh(t)
		kept("after a Refresh")
	}
	s.restart(t)
	kept("after a kill -9")
	s.delete(t, s.id, fakes("create-error", ids...)...) // all in one call, as Cluster Autoscaler does
	assert.Empty(t, s.ids(t, s.id))
	assert.Equal(t, 0, s.size(t, s.id))
}

func rule11OnlyFailed(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: []string{"capacity: {t4: 1}", "terminateDelay: 1h"}})
	s.increase(t, s.id, 3)
	s.delete(t, s.id, node(s.ids(t, s.id, running)[0]))
	found := map[proto.InstanceStatus_InstanceState]int{}
	for _, i := range s.instances(t, s.id) {
		state := i.GetStatus().GetInstanceState()
		found[state]++
		assert.Equal(t, state == creating, i.GetStatus().GetErrorInfo() != nil, "%v", i)
	}
	assert.Equal(t, map[proto.InstanceStatus_InstanceState]int{creating: 2, deleting: 1}, found)
}
