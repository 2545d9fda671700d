package conformance

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"

	"gpu-node-provider/proto"
)

// That a template which cannot be built is an error shows for a group that does
// not exist; the simulated cloud's groups cannot be configured without what a
// template needs.
func TestRule05TemplateIsFull(t *testing.T) {
	parallel(t)
	t.Run("BothFieldsAlwaysHoldTheNode", rule05BothFields)
	t.Run("ResourcesOfAGPUNode", rule05Resources)
	t.Run("ReservedIsTakenOff", rule05Reserved)
	t.Run("Labels", rule05Labels)
	t.Run("ZoneOnlyForAGroupWithOne", rule05Zones)
	t.Run("Taints", rule05Taints)
	t.Run("AnErrorNeverAnEmptyOK", rule05Error)
}

func rule05BothFields(t *testing.T) {
	s := wire(t, file{groups: []string{group("t4"), group("cpu", "capacity: {cpu: 2, memory: 4Gi}", "labels: {a: b}")}})
	for _, g := range s.nodeGroups(t) {
		r, err := s.NodeGroupTemplateNodeInfo(t.Context(), &proto.NodeGroupTemplateNodeInfoRequest{Id: g.GetId()})
		require.NoError(t, err)
		assert.Equal(t, r.GetNodeBytes(), r.GetNodeInfo(), "the same Node for old and new clients")
		n := s.template(t, g.GetId())
		for _, name := range []corev1.ResourceName{"cpu", "memory", "pods", "ephemeral-storage"} {
			for where, amounts := range map[string]corev1.ResourceList{"capacity": n.Status.Capacity, "allocatable": n.Status.Allocatable} {
				amount := amounts[name]
				assert.Positive(t, amount.Sign(), "%s of %s in group %s", name, where, g.GetId())
			}
		}
		for _, label := range []string{"kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch"} {
			assert.NotEmpty(t, n.Labels[label], label)
		}
		assert.Equal(t, g.GetId(), n.Labels[groupLabel])
		assert.False(t, n.Spec.Unschedulable)
	}
}

func rule05Resources(t *testing.T) {
	parallel(t)
	s := serve(t, file{groups: []string{
		group("a100", "capacity: {cpu: 96, memory: 1152Gi, ephemeral-storage: 1000Gi, pods: 250, nvidia.com/gpu: 8}"),
		group("few", "capacity: {cpu: 500m, memory: 1Gi, nvidia.com/gpu: 1}"),
		group("amd", "capacity: {cpu: 8, memory: 64Gi, amd.com/gpu: 2}"),
	}})
	for id, want := range map[string]map[corev1.ResourceName]string{
		"a100": {"cpu": "96", "memory": "1152Gi", "ephemeral-storage": "1000Gi", "pods": "250", "nvidia.com/gpu": "8"},
		"few":  {"cpu": "500m", "memory": "1Gi", "nvidia.com/gpu": "1"},
		"amd":  {"cpu": "8", "memory": "64Gi", "amd.com/gpu": "2"},
	} {
		n := s.template(t, id)
		for name, amount := range want {
			capacity, allocatable := n.Status.Capacity[name], n.Status.Allocatable[name]
			assert.Equal(t, amount, capacity.String(), "capacity of %s: %s", id, name)
			assert.Equal(t, amount, allocatable.String(), "allocatable of %s: %s", id, name)
		}
	}
}

func rule05Reserved(t *testing.T) {
	parallel(t)
	s := serve(t, file{groups: []string{group("t4",
		"capacity: {cpu: 4, memory: 16Gi, ephemeral-storage: 100Gi, pods: 50, nvidia.com/gpu: 1}",
		"reserved: {cpu: 250m, memory: 1Gi, ephemeral-storage: 10Gi, pods: 2}")}})
	n := s.template(t, "t4")
	for name, want := range map[corev1.ResourceName][2]string{
		"cpu": {"4", "3750m"}, "memory": {"16Gi", "15Gi"}, "ephemeral-storage": {"100Gi", "90Gi"}, "pods": {"50", "48"}, "nvidia.com/gpu": {"1", "1"},
	} {
		capacity, allocatable := n.Status.Capacity[name], n.Status.Allocatable[name]
		assert.Equal(t, want, [2]string{capacity.String(), allocatable.String()}, name)
	}
}

func rule05Labels(t *testing.T) {
	parallel(t)
	s := serve(t, file{
		top: []string{"gpuLabel: example.com/gpu"},
		groups: []string{
			group("arm", "os: linux", "arch: arm64", "instanceType: g5g.xlarge", "region: eu-west-1",
				"labels: {example.com/gpu: nvidia-t4g, team: research}"),
			group("bare", "instanceType:", "labels: {example.com/gpu: t4}"),
		},
	})
	arm := s.template(t, "arm").Labels
	assert.NotEmpty(t, arm["kubernetes.io/hostname"])
	delete(arm, "kubernetes.io/hostname")
	assert.Equal(t, map[string]string{
		"kubernetes.io/os": "linux", "kubernetes.io/arch": "arm64", "node.kubernetes.io/instance-type": "g5g.xlarge",
		"topology.kubernetes.io/region": "eu-west-1", "example.com/gpu": "nvidia-t4g", "team": "research", groupLabel: "arm",
	}, arm)
	bare := s.template(t, "bare").Labels
	assert.Equal(t, "t4", bare[s.newAutoscaler(t)], "the GPU label")
	assert.NotContains(t, bare, "node.kubernetes.io/instance-type", "an empty label would match nothing and promise something")
	assert.NotContains(t, bare, "topology.kubernetes.io/region")
}

func rule05Zones(t *testing.T) {
	parallel(t)
	s := serve(t, file{groups: []string{
		group("none"), group("one", "zones: [eu-west-1a]"), group("two", "zones: [eu-west-1a, eu-west-1b]"),
	}})
	const zone = "topology.kubernetes.io/zone"
	assert.NotContains(t, s.template(t, "none").Labels, zone)
	assert.Equal(t, "eu-west-1a", s.template(t, "one").Labels[zone])
	assert.NotContains(t, s.template(t, "two").Labels, zone, "it would promise a zone that the cloud may not choose")
}

func rule05Taints(t *testing.T) {
	parallel(t)
	s := serve(t, file{groups: []string{
		group("t4", "taints: [{key: nvidia.com/gpu, value: present, effect: NoSchedule}, {key: spot, effect: NoExecute}]"),
		group("open", "taints:"),
	}})
	assert.Equal(t, []corev1.Taint{
		{Key: "nvidia.com/gpu", Value: "present", Effect: corev1.TaintEffectNoSchedule},
		{Key: "spot", Effect: corev1.TaintEffectNoExecute},
	}, s.template(t, "t4").Spec.Taints)
	assert.Empty(t, s.template(t, "open").Spec.Taints)
}

func rule05Error(t *testing.T) {
	s := wire(t, file{})
	for _, id := range []string{"", "no-such-group"} {
		r, err := s.NodeGroupTemplateNodeInfo(t.Context(), &proto.NodeGroupTemplateNodeInfoRequest{Id: id})
		code(t, codes.NotFound, err)
		assert.Nil(t, r)
	}
}
