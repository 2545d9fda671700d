package config

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The label decides which nodes Cluster Autoscaler treats as ready GPU nodes, so both
// mistakes stop or double its scaling.
func TestGPULabel(t *testing.T) {
	const (
		noGPU   = "is the GPU label, but capacity has none of the GPUs that Cluster Autoscaler knows"
		noLabel = "lack the GPU label"
	)
	for _, tt := range []struct {
		name, capacity, labels, want string
	}{
		{"E-01 a GPU without the label", "cpu: 4, memory: 16Gi, nvidia.com/gpu: 1", "a: b", noLabel},
		{"E-01 a GPU of another maker without the label", "cpu: 4, memory: 16Gi, habana.ai/gaudi: 8", "a: b", noLabel},
		{"E-03 the label without a GPU", "cpu: 4, memory: 16Gi", "accelerator: x", noGPU},
		{"E-03 the label with zero GPUs", "cpu: 4, memory: 16Gi, nvidia.com/gpu: 0", "accelerator: x", noGPU},
		{"E-04 the label with MIG slices", "cpu: 4, memory: 16Gi, nvidia.com/mig-1g.5gb: 7", "accelerator: x", noGPU},
		{"E-04 the label with shared GPUs under a name of their own", "cpu: 4, memory: 16Gi, nvidia.com/gpu.shared: 4", "accelerator: x", noGPU},
		{"E-04 time slicing under the known name", "cpu: 4, memory: 16Gi, nvidia.com/gpu: 4", "accelerator: x", ""},
		{"E-04 MIG slices without the label", "cpu: 4, memory: 16Gi, nvidia.com/mig-1g.5gb: 7", "a: b", ""},
		{"neither", "cpu: 4, memory: 16Gi", "a: b", ""},
		{"an AMD GPU", "cpu: 4, memory: 16Gi, amd.com/gpu: 1", "accelerator: x", ""},
		{"an Intel GPU", "cpu: 4, memory: 16Gi, gpu.intel.com/xe: 1", "accelerator: x", ""},
		{"a DirectX GPU", "cpu: 4, memory: 16Gi, microsoft.com/directx: 1", "accelerator: x", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse([]byte(edited(t, "cpu: 4, memory: 16Gi, nvidia.com/gpu: 1", tt.capacity, "accelerator: nvidia-tesla-t4", tt.labels)))
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.want)
			assert.Len(t, strings.Split(err.Error(), "\n"), 1)
		})
	}
}

func TestGPULabelIsNotJudgedWhereTheInstanceTypeTells(t *testing.T) {
	parsed(t, onAWS)
	for _, partly := range []string{"ephemeral-storage: 200Gi", "cpu: 4", "memory: 16Gi"} {
		parsed(t, strings.Replace(onAWS, "maxSize: 4", "maxSize: 4, capacity: {"+partly+"}", 1))
	}

	_, err := Parse([]byte(strings.Replace(onAWS, "maxSize: 4", "maxSize: 4, capacity: {cpu: 4, memory: 16Gi}", 1)))
	require.ErrorContains(t, err, "nodeGroups[0].labels[accelerator]: is the GPU label")

	// A missing capacity is reported alone.
	found := problemsOf(t, edited(t, "    capacity: {cpu: 4, memory: 16Gi, nvidia.com/gpu: 1}\n", ""))
	assert.Len(t, found, 1, "%v", found)
}
