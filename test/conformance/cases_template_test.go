package conformance

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

var templateCases = []row{
	{"D-01 label or taint only in kubelet args", caseD01},
	{"D-02 insufficient GPUs at zero", caseD02},
	{"D-03 a stale taint is kept", caseD03},
	{"D-05 a template without pods", caseD05},
	{"D-06 a group that can never come up", caseD06},
	{"E-01 a slow device plugin buys a second node", caseE01},
	{"E-03 the GPU label on nodes without a GPU", caseE03},
	{"E-04 MIG and time slicing", caseE04},
	{"E-08 all nodes of a group are not ready", caseE08},
	{"E-09 a node without a working driver", caseE09},
}

func caseD01(t *testing.T) {
	s := serve(t, file{groups: []string{group("t4", "region: eu-west-1")}})
	require.Zero(t, s.size(t, "t4"))
	n := s.template(t, "t4")
	assert.Equal(t, "nvidia-tesla-t4", n.Labels["accelerator"])
	assert.Equal(t, "linux", n.Labels["kubernetes.io/os"])
	assert.Equal(t, "amd64", n.Labels["kubernetes.io/arch"])
	assert.Equal(t, "g4dn.xlarge", n.Labels["node.kubernetes.io/instance-type"])
	assert.Equal(t, "eu-west-1", n.Labels["topology.kubernetes.io/region"])
	assert.NotEmpty(t, n.Labels["kubernetes.io/hostname"])
	assert.Contains(t, n.Spec.Taints, corev1.Taint{Key: "nvidia.com/gpu", Value: "present", Effect: corev1.TaintEffectNoSchedule})
	assert.Positive(t, s.max(t, "t4"), "so that it can grow from zero")
}

// caseD02: on the simulated cloud the file says how many GPUs a node has.
func caseD02(t *testing.T) {
	s := serve(t, file{groups: []string{
		group("g4dn-xlarge"),
		group("g4dn-12xlarge", "capacity: {cpu: 48, memory: 192Gi, nvidia.com/gpu: 4}"),
		group("g4dn-metal", "capacity: {cpu: 96, memory: 384Gi, nvidia.com/gpu: 8}"),
	}})
	for id, want := range map[string]int64{"g4dn-xlarge": 1, "g4dn-12xlarge": 4, "g4dn-metal": 8} {
		n := s.template(t, id)
		capacity, allocatable := n.Status.Capacity["nvidia.com/gpu"], n.Status.Allocatable["nvidia.com/gpu"]
		assert.Equal(t, want, capacity.Value(), id)
		assert.Equal(t, want, allocatable.Value(), id)
	}
}

func caseD03(t *testing.T) {
	s := serve(t, file{})
	require.Len(t, s.template(t, "t4").Spec.Taints, 1)
	file{groups: []string{group("t4", "taints:", "labels: {accelerator: nvidia-tesla-t4, pool: new}")}}.write(t, s.dir)
	eventually(t, "the template follows the file", func() bool { return len(s.template(t, "t4").Spec.Taints) == 0 })
	assert.Equal(t, "new", s.template(t, "t4").Labels["pool"])
}

func caseD05(t *testing.T) {
	s := serve(t, file{groups: []string{group("t4", "capacity: {cpu: 4, memory: 16Gi, nvidia.com/gpu: 1}", "reserved: {memory: 2Gi}")}})
	n := s.template(t, "t4")
	pods, memory, storage := n.Status.Allocatable["pods"], n.Status.Allocatable["memory"], n.Status.Allocatable["ephemeral-storage"]
	assert.Positive(t, pods.Value())
	assert.Equal(t, "14Gi", memory.String())
	assert.Positive(t, storage.Value())
}

func caseD06(t *testing.T) {
	s := serve(t, file{simulated: []string{"launchErrors: {rate: 1, code: LaunchTemplateError}"}})
	s.increase(t, "t4", 1)
	for range 3 {
		s.refresh(t)
		instances := s.instances(t, "t4")
		require.Len(t, instances, 1)
		assert.Equal(t, "LaunchTemplateError", instances[0].GetStatus().GetErrorInfo().GetErrorCode())
	}
}

// caseE01: a node that carries exactly this key and has no GPU yet counts as
// not ready and on its way.
func caseE01(t *testing.T) {
	s := serve(t, file{
		top:    []string{"gpuLabel: example.com/accelerator"},
		groups: []string{group("t4", "labels: {example.com/accelerator: nvidia-tesla-t4}")},
	})
	key := s.newAutoscaler(t)
	assert.Equal(t, "example.com/accelerator", key)
	assert.Equal(t, "nvidia-tesla-t4", s.template(t, "t4").Labels[key])
}

// refused checks that validate refuses a file, in one line that contains the
// words, and that serve starts nothing of it.
func refused(t *testing.T, f file, words ...string) {
	t.Helper()
	for _, command := range []string{"validate", "serve"} {
		dir := t.TempDir()
		f.write(t, dir)
		p := finish(t, command, "--config", configPath(dir))
		assert.Equal(t, 2, p.cmd.ProcessState.ExitCode(), command)
		assertLines(t, p, words)
		assertNothingStarted(t, dir)
	}
}

func assertNothingStarted(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, entry := range left {
		assert.Equal(t, configPath(dir), dir+"/"+entry.Name(), "a file that only a running provider writes")
	}
}

func caseE03(t *testing.T) {
	for _, capacity := range []string{"{cpu: 4, memory: 16Gi}", "{cpu: 4, memory: 16Gi, nvidia.com/gpu: 0}"} {
		refused(t, file{groups: []string{group("cpu", "capacity: "+capacity)}}, "nodeGroups[0].labels[accelerator]", "GPU")
	}
}

func caseE04(t *testing.T) {
	refused(t, file{groups: []string{group("mig", "capacity: {cpu: 4, memory: 16Gi, nvidia.com/mig-1g.5gb: 7}")}},
		"nodeGroups[0].labels[accelerator]", "nvidia.com/gpu", "never treat a node as ready")
	s := serve(t, file{groups: []string{
		group("sliced", "capacity: {cpu: 4, memory: 16Gi, nvidia.com/gpu: 4}"),
		group("mig", "capacity: {cpu: 4, memory: 16Gi, nvidia.com/mig-1g.5gb: 7}", "labels: {a: b}"),
	}})
	sliced, mig := s.template(t, "sliced").Status.Allocatable["nvidia.com/gpu"], s.template(t, "mig").Status.Allocatable["nvidia.com/mig-1g.5gb"]
	assert.Equal(t, "4", sliced.String())
	assert.Equal(t, "7", mig.String())
	assert.NotContains(t, s.template(t, "mig").Labels, s.newAutoscaler(t))
}

func caseE08(t *testing.T) {
	s := serve(t, file{simulated: []string{"capacity: {t4: 1}", "terminateDelay: 1h"}})
	before := s.template(t, "t4")
	s.increase(t, "t4", 2)
	s.delete(t, "t4", node(s.ids(t, "t4", running)[0]))
	s.refresh(t)
	assert.Equal(t, before, s.template(t, "t4"))
}

func caseE09(t *testing.T) {
	s := serve(t, file{simulated: []string{"devicePluginDelay: 1h"}})
	s.increase(t, "t4", 1)
	s.refresh(t)
	ids := s.ids(t, "t4", running)
	require.Len(t, ids, 1, "Cluster Autoscaler's own unready path removes it")
	s.delete(t, "t4", node(ids[0]))
	assert.Zero(t, s.size(t, "t4"))
}
