//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gpu-node-provider/test/testbed"
)

// TestKubectlDrainWaitsForTheSave drains the node of a trainer that saves when
// it is asked.
func TestKubectlDrainWaitsForTheSave(t *testing.T) {
	bed := start(t, testbed.Options{WithoutKEDA: true, Webhook: true, Config: testbed.Config{NodeGroups: []string{testbed.Pool("t4", t4, 2)}}})
	require.NoError(t, bed.StartScript(t.Context(), testbed.Script{Name: "train", Accelerator: t4, Script: testbed.Hasty, Replicas: 1, Grace: 30}))
	pod, node := running(t, bed)
	drained := make(chan error, 1)
	go func() {
		out, err := bed.Cluster.Kubectl(t.Context(), nil, "drain", node.Name, "--ignore-daemonsets", "--timeout=3m")
		bed.Watch.Say("kubectl drain says:\n%s", out)
		drained <- err
	}()
	_, err := bed.Watch.Until(t.Context(), time.Minute, "the trainer is asked", func(testbed.State) bool {
		return bed.Redis.Exists(t.Context(), testbed.RequestKey(pod)).Val() == 1
	})
	require.NoError(t, err)
	require.NoError(t, bed.Loop(t.Context(), 4)) // kubectl tries every 5 s
	select {
	case err := <-drained:
		require.Fail(t, "the drain did not wait", "%v", err)
	default:
	}
	stays(t, bed, node.Name, pod)
	require.NoError(t, bed.Acknowledge(t.Context(), pod))
	bed.Watch.Say("the trainer has saved and acknowledges")
	require.NoError(t, <-drained)
	_, err = bed.Watch.Until(t.Context(), time.Minute, "the pod is gone from the node", func(s testbed.State) bool {
		for _, p := range s.PodsOf("train") {
			if p.UID == pod.UID {
				return false
			}
		}
		return true
	})
	assert.NoError(t, err)
}
