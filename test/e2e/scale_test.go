//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"gpu-node-provider/test/testbed"
)

// TestKwokScale measures; what it asserts is only that the size is reached.
func TestKwokScale(t *testing.T) {
	const nodes, pods = 200, 600
	bed := start(t, testbed.Options{WithoutKEDA: true, Config: testbed.Config{
		Simulated: "launchDelay: 1s, bootDelay: 5s, devicePluginDelay: 2s, heartbeat: false",
		NodeGroups: []string{`{id: t4, maxSize: 200, labels: {accelerator: nvidia-tesla-t4, kwok: "true"}, ` +
			`taints: [{key: nvidia.com/gpu, value: present, effect: NoSchedule}], capacity: {cpu: 48, memory: 192Gi, nvidia.com/gpu: 3}}`},
	}})
	begin := time.Now()
	require.NoError(t, bed.PretendTrainers(t.Context(), t4, pods))
	_, err := bed.Watch.Until(t.Context(), 6*time.Minute, "200 nodes and 600 pods", func(s testbed.State) bool {
		return s.NodesOf(t4) == nodes && s.Phase(corev1.PodRunning) == pods
	})
	require.NoError(t, err)
	before, err := bed.Loops(t.Context())
	require.NoError(t, err)
	var after testbed.Loops
	_, err = bed.Watch.Until(t.Context(), 2*time.Minute, "ten loops at full size", func(testbed.State) bool {
		after, err = bed.Loops(t.Context())
		return err == nil && after.Count >= before.Count+10
	})
	require.NoError(t, err)
	memory, err := bed.ProviderMemory()
	require.NoError(t, err)
	loop := (after.Seconds - before.Seconds) / float64(after.Count-before.Count)
	bed.Watch.Say("%d nodes and %d pods after %s; a loop of Cluster Autoscaler takes %.0f ms; the provider has %.0f MiB",
		nodes, pods, time.Since(begin).Round(time.Second), loop*1000, memory)
}
