package nodegroup

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestHourlyPrice(t *testing.T) {
	for price, want := range map[string]float64{"0.526": 0.526, "0": 0} { // 0 is a price too: machines of one's own
		got, fromFile := group(t, plain+", hourlyPrice: "+price).HourlyPrice()
		require.Equal(t, want, got)
		require.True(t, fromFile)
	}
}

// TestRoughPrice: without prices in the file, groups are at least in a sensible order.
func TestRoughPrice(t *testing.T) {
	last := 0.0
	for _, capacity := range []string{
		"cpu: 4, memory: 16Gi",
		"cpu: 4, memory: 32Gi",
		"cpu: 8, memory: 32Gi",
		"cpu: 4, memory: 16Gi, nvidia.com/gpu: 1}, labels: {accelerator: some",
		"cpu: 4, memory: 16Gi, nvidia.com/gpu: 4}, labels: {accelerator: some",
		"cpu: 4, memory: 16Gi, amd.com/gpu: 8}, labels: {accelerator: some",
		"cpu: 96, memory: 1152Gi, nvidia.com/gpu: 8}, labels: {accelerator: some",
	} {
		price, fromFile := group(t, "capacity: {"+capacity+"}").HourlyPrice()
		require.False(t, fromFile)
		require.Greater(t, price, last, capacity)
		last = price
	}
	price, _ := group(t, "capacity: {cpu: 4, memory: 16Gi, nvidia.com/gpu: 1}, labels: {accelerator: some}").HourlyPrice()
	require.InDelta(t, 4*roughVCPU+16*roughGiB+roughGPU, price, 1e-9)
}

// TestND06OnlyAcceleratorsHaveARoughPrice: GPU memory is counted in MiB, and network
// interfaces come with the machine.
func TestND06OnlyAcceleratorsHaveARoughPrice(t *testing.T) {
	price := func(devices string) float64 {
		text := "capacity: {cpu: 4, memory: 16Gi" + devices + "}"
		for _, gpu := range gpuResources {
			if strings.Contains(devices, string(gpu)+":") {
				text += ", labels: {accelerator: some}"
			}
		}
		p, known := group(t, text).HourlyPrice()
		require.False(t, known)
		return p
	}
	plain := 4*roughVCPU + 16*roughGiB
	require.InDelta(t, plain, price(", nvidia.com/gpumem: 24576, nvidia.com/gpucores: 100, vpc.amazonaws.com/efa: 32, vpc.amazonaws.com/pod-eni: 107, vpc.amazonaws.com/PrivateIPv4Address: 14"), 1e-9)
	for _, device := range []string{"nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi", "gpu.intel.com/xe", "aws.amazon.com/neuron", "aws.amazon.com/neuroncore", "nvidia.com/mig-1g.10gb"} {
		require.InDelta(t, plain+2*roughGPU, price(", "+device+": 2"), 1e-9, device)
	}
}

const priced = onSimulated + `
nodeGroups:
- {id: cpu, maxSize: 4, hourlyPrice: 0.2, capacity: {cpu: 4, memory: 16Gi}, reserved: {cpu: 2}}
- {id: t4, maxSize: 4, hourlyPrice: 1, capacity: {cpu: 4, memory: 16Gi, nvidia.com/gpu: 1}, labels: {accelerator: t4}}
- {id: t4x4, maxSize: 4, hourlyPrice: 3, capacity: {cpu: 16, memory: 64Gi, nvidia.com/gpu: 4}, labels: {accelerator: t4}}
- {id: idle, maxSize: 4, hourlyPrice: 0.001, capacity: {cpu: 4, memory: 16Gi}, taints: [{key: keep-off, effect: NoSchedule}]}
`

func TestPodPrice(t *testing.T) {
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want float64
	}{
		"half the CPU that a node has for Pods": {pod(asks("cpu", "1", "memory", "1Gi")), 0.2 / 2},
		"the larger of CPU and memory":          {pod(asks("cpu", "1", "memory", "12Gi")), 0.2 * 3 / 4},
		"a GPU where it is cheapest":            {pod(asks("nvidia.com/gpu", "1")), 3.0 / 4},
		"a GPU, whatever CPU comes with it":     {pod(asks("nvidia.com/gpu", "1", "cpu", "12")), 3.0 / 4},
		"a GPU where it is wanted":              {pod(asks("nvidia.com/gpu", "1"), selects(Label, "t4")), 1},
		"what only one group can take":          {pod(asks("nvidia.com/gpu", "3")), 3 * 3.0 / 4},
		"what needs GPU nodes without a GPU":    {pod(asks("cpu", "4")), 3.0 / 4},
		"none of what no node has":              {pod(asks("cpu", "1", "amd.com/gpu", "0")), 0.2 / 2},
		"nothing":                               {pod(asks()), 0},
		"what fits nowhere":                     {pod(asks("cpu", "1", "memory", "2Gi", "nvidia.com/gpu", "9")), roughVCPU + 2*roughGiB + 9*roughGPU},
	} {
		t.Run(name, func(t *testing.T) {
			require.InDelta(t, c.want, catalogue(t, priced).PodPrice(c.pod), 1e-9)
		})
	}
}

// TestPodPriceWithoutATemplate: a group that cannot be imagined is passed over.
func TestPodPriceWithoutATemplate(t *testing.T) {
	c := catalogue(t, onAWS+`
nodeGroups:
- {id: unknown, maxSize: 4, hourlyPrice: 0.001, autoScalingGroup: a}
- {id: known, maxSize: 4, hourlyPrice: 2, autoScalingGroup: b, capacity: {cpu: 4, memory: 16Gi}}
`)
	require.InDelta(t, 1.0, c.PodPrice(pod(asks("cpu", "2"))), 1e-9)
}
