package conformance

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gpu-node-provider/proto"
)

// provider/doctor tests that `doctor` finds unmanaged nodes with the label and no GPU.
func TestRule12GPULabelIsTheConfiguredKey(t *testing.T) {
	parallel(t)
	t.Run("TheKeyOfTheFile", rule12Key)
	t.Run("TheSameOverAndOver", rule12Same)
	t.Run("TypesAreTheLabelsValues", rule12Types)
	t.Run("ValidateRefusesItWithoutAGPUThatIsKnown", rule12Validate)
}

func rule12Key(t *testing.T) {
	parallel(t)
	assert.Equal(t, "accelerator", serve(t, file{}).newAutoscaler(t), "by default")
	own := serve(t, file{
		top:    []string{"gpuLabel: example.com/gpu"},
		groups: []string{group("t4", "labels: {example.com/gpu: nvidia-tesla-t4}")},
	})
	assert.Equal(t, "example.com/gpu", own.newAutoscaler(t))
	assert.Equal(t, "nvidia-tesla-t4", own.template(t, "t4").Labels["example.com/gpu"])
}

func rule12Same(t *testing.T) {
	s := wire(t, file{})
	first := s.newAutoscaler(t)
	assert.NotEmpty(t, first)
	for range 20 {
		assert.Equal(t, first, s.newAutoscaler(t), "it is cached for the client's lifetime")
	}
}

func rule12Types(t *testing.T) {
	parallel(t)
	s := serve(t, file{groups: []string{
		group("t4"), group("more-t4"),
		group("a100", "labels: {accelerator: nvidia-tesla-a100}"),
		group("cpu", "labels: {a: b}", "capacity: {cpu: 2, memory: 4Gi}"),
	}})
	r, err := s.GetAvailableGPUTypes(t.Context(), &proto.GetAvailableGPUTypesRequest{})
	require.NoError(t, err)
	assert.Equal(t, []string{"nvidia-tesla-a100", "nvidia-tesla-t4"}, slices.Sorted(maps.Keys(r.GetGpuTypes())))
}

// rule12Validate: with the label and without one of the five resources that it
// knows, Cluster Autoscaler would never take the node for ready.
func rule12Validate(t *testing.T) {
	needsOwnServer(t)
	parallel(t)
	for resource, known := range map[string]bool{
		"nvidia.com/gpu": true, "habana.ai/gaudi": true, "gpu.intel.com/xe": true, "amd.com/gpu": true, "microsoft.com/directx": true,
		"nvidia.com/mig-1g.5gb": false, "nvidia.com/gpu.shared": false, "gpu.intel.com/i915": false, "example.com/fpga": false,
	} {
		dir := t.TempDir()
		file{groups: []string{group("g", "capacity: {cpu: 4, memory: 16Gi, "+resource+": 1}")}}.write(t, dir)
		p := finish(t, "validate", "--config", configPath(dir))
		if known {
			assert.Zero(t, p.cmd.ProcessState.ExitCode(), "%s: %s", resource, p.stderr.String())
			continue
		}
		assert.Equal(t, 2, p.cmd.ProcessState.ExitCode(), resource)
		assert.Contains(t, p.stderr.String(), "nodeGroups[0].labels[accelerator]", resource)
	}
}
