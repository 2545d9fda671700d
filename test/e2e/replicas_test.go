//go:build e2e

package e2e

import (
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-node-provider/test/testbed"
)

// TestLeaderKilledWhileANodeIsHeld kills the replica that leads. The node stays
// held, no trainer is evicted, and the other replica carries on.
func TestLeaderKilledWhileANodeIsHeld(t *testing.T) {
	bed := start(t, testbed.Options{WithoutKEDA: true, Webhook: true, Replicas: 2, Config: testbed.Config{
		NodeGroups: []string{fourGPUs}, Checkpoint: "{askAfter: 5s, askEvery: 10s}",
	}})
	require.NoError(t, bed.StartScript(t.Context(), testbed.Script{Name: "train", Accelerator: t4, Script: testbed.Hasty, Replicas: 1, Grace: 30}))
	pod, node := running(t, bed)
	require.NoError(t, bed.SpareNode(t.Context(), "spare", t4, 4)) // so that it could move
	require.NoError(t, bed.Loop(t.Context(), 8))                   // unneeded for long enough
	stays(t, bed, node.Name, pod)
	evict := func() error {
		return bed.Cluster.Client.CoreV1().Pods(pod.Namespace).EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}})
	}
	require.ErrorContains(t, evict(), "has not acknowledged")

	first, err := bed.Leader(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, first)
	require.NoError(t, bed.KillReplica(first))
	bed.Watch.Say("%s, which led, is killed", first)
	require.ErrorContains(t, evict(), "has not acknowledged", "the standby replica answers")
	took, err := bed.Watch.Until(t.Context(), time.Minute, "the other replica leads", func(s testbed.State) bool {
		for _, n := range s.Nodes {
			assert.True(t, n.Name != node.Name || n.Annotations[scaleDownDisabled] == "true" && !testbed.Tainted(n), "the node is let go of meanwhile")
		}
		leader, err := bed.Leader(t.Context())
		if err != nil || leader == "" || leader == first {
			return false
		}
		_, err = bed.Report(t.Context()) // its port is open
		return err == nil
	})
	require.NoError(t, err)
	bed.Watch.Say("the other leads after %s", took.Round(time.Second))
	require.NoError(t, bed.StartProvider(t.Context())) // the first returns as a standby replica
	out, err := exec.CommandContext(t.Context(), "../../bin/gpu-node-provider", "doctor", "--config", bed.ConfigFile(first)).CombinedOutput()
	assert.Regexp(t, `(?m)^warn +provider +.*this replica is on standby; ask the leader: `, string(out), "%v", err)
	require.NoError(t, bed.Loop(t.Context(), 8))
	stays(t, bed, node.Name, pod)
	second, err := bed.Leader(t.Context())
	require.NoError(t, err, "one leads")
	require.NotEqual(t, first, second)

	require.NoError(t, bed.Acknowledge(t.Context(), pod))
	_, err = bed.Watch.Until(t.Context(), 3*time.Minute, "the node is gone", func(testbed.State) bool {
		_, err := bed.Cluster.Client.CoreV1().Nodes().Get(t.Context(), node.Name, metav1.GetOptions{})
		return err != nil
	})
	require.NoError(t, err)
}
