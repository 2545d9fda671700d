package provider

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"gpu-node-provider/provider/nodegroup"
)

// TestPF03OneDecisionForEachShape: what thousands of Jobs wait for is computed once for each
// shape of Pod, not for each Job.
func TestPF03OneDecisionForEachShape(t *testing.T) {
	const shapes = 3
	var pods []*corev1.Pod
	for n := range 1000 {
		pod := waitingPod(fmt.Sprintf("job-%d", n))
		pod.Spec.NodeSelector = map[string]string{"pool": fmt.Sprint(n % shapes)}
		pods = append(pods, pod)
	}
	computed := 0
	results := map[string]int{} // by selector
	seen := 0
	for pod, result := range byShape(pods, func(*nodegroup.Shape) int { computed++; return computed }) {
		seen++
		pool := pod.Spec.NodeSelector["pool"]
		if first, known := results[pool]; known {
			require.Equal(t, first, result)
		}
		results[pool] = result
	}
	require.Equal(t, len(pods), seen)
	require.Equal(t, shapes, computed)
	require.Len(t, results, shapes)
}
