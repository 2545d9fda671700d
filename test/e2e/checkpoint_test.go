//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-node-provider/test/testbed"
)

const scaleDownDisabled = "cluster-autoscaler.kubernetes.io/scale-down-disabled"

// fourGPUs is a pool whose nodes are underused with one trainer on them.
const fourGPUs = `{id: t4, maxSize: 2, labels: {accelerator: nvidia-tesla-t4}, capacity: {cpu: 8, memory: 32Gi, nvidia.com/gpu: 4}}`

// running waits until the script's Pod runs, and returns it and its Node.
func running(t *testing.T, bed *testbed.Bed) (pod *corev1.Pod, node *corev1.Node) {
	t.Helper()
	_, err := bed.Watch.Until(t.Context(), 3*time.Minute, "the trainer runs", func(s testbed.State) bool {
		up := 0
		for _, p := range s.PodsOf("train") {
			if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
				pod, up = p, up+1
			}
		}
		return up == 1
	})
	require.NoError(t, err)
	node, err = bed.Cluster.Client.CoreV1().Nodes().Get(t.Context(), pod.Spec.NodeName, metav1.GetOptions{})
	require.NoError(t, err)
	return pod, node
}

// stays checks that the Node is held, not drained, and that the Pod is left alone.
func stays(t *testing.T, bed *testbed.Bed, node string, pod *corev1.Pod) {
	t.Helper()
	n, err := bed.Cluster.Client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	require.NoError(t, err)
	assert.False(t, testbed.Tainted(n), "the node of an unacknowledged trainer is drained")
	assert.Equal(t, "true", n.Annotations[scaleDownDisabled])
	p, err := bed.Cluster.Client.CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, pod.UID, p.UID)
	assert.Nil(t, p.DeletionTimestamp, "an unacknowledged trainer is evicted")
}

func TestF01NodeGoesOnlyAfterTheAcknowledgement(t *testing.T) {
	bed := start(t, testbed.Options{WithoutKEDA: true, Config: testbed.Config{
		NodeGroups: []string{fourGPUs}, Checkpoint: "{askAfter: 5s, askEvery: 10s}",
	}})
	require.NoError(t, bed.StartScript(t.Context(), testbed.Script{Name: "train", Accelerator: t4, Script: testbed.Hasty, Replicas: 1, Grace: 30}))
	pod, node := running(t, bed)
	require.NoError(t, bed.SpareNode(t.Context(), "spare", t4, 4)) // so that it could move
	_, err := bed.Watch.Until(t.Context(), time.Minute, "the guard asks for a checkpoint", func(testbed.State) bool {
		return bed.Redis.Exists(t.Context(), testbed.RequestKey(pod)).Val() == 1
	})
	require.NoError(t, err)
	bed.Watch.Say("the trainer is asked; it does not answer")
	require.NoError(t, bed.Loop(t.Context(), 12)) // far more than the unneeded time
	stays(t, bed, node.Name, pod)

	require.NoError(t, bed.Acknowledge(t.Context(), pod))
	bed.Watch.Say("it acknowledges")
	took, err := bed.Watch.Until(t.Context(), 2*time.Minute, "the node is gone", func(testbed.State) bool {
		_, err := bed.Cluster.Client.CoreV1().Nodes().Get(t.Context(), node.Name, metav1.GetOptions{})
		return err != nil
	})
	require.NoError(t, err)
	bed.Watch.Say("the node went %s after the acknowledgement", took.Round(time.Second))
	moved, _ := running(t, bed)
	assert.Equal(t, "spare", moved.Spec.NodeName)
}

func TestF03PodDeletedWithoutAcknowledgement(t *testing.T) {
	bed := start(t, testbed.Options{
		WithoutKEDA: true, AutoscalerFlags: []string{"--max-node-provision-time=20s"},
		Config: testbed.Config{NodeGroups: []string{testbed.Pool("t4", t4, 2)}, Checkpoint: "{abandonAfter: 30m}"},
	})
	require.NoError(t, bed.StartScript(t.Context(), testbed.Script{Name: "train", Accelerator: t4, Script: testbed.Hasty, Replicas: 1, Grace: 30}))
	pod, node := running(t, bed)
	require.NoError(t, bed.DeleteScript(t.Context(), "train"))
	_, err := bed.Watch.Until(t.Context(), time.Minute, "the pod is gone", func(s testbed.State) bool { return len(s.PodsOf("train")) == 0 })
	require.NoError(t, err)
	bed.Watch.Say("the trainer was deleted and has not acknowledged; its node is empty")
	require.NoError(t, bed.Loop(t.Context(), 10))
	kept, err := bed.Cluster.Client.CoreV1().Nodes().Get(t.Context(), node.Name, metav1.GetOptions{})
	require.NoError(t, err)
	assert.False(t, testbed.Tainted(kept))

	bed.KillProvider()
	require.NoError(t, bed.Redis.FlushAll(t.Context()).Err())
	require.NoError(t, bed.StartProvider(t.Context()))
	require.NoError(t, bed.Cluster.Client.CoreV1().Nodes().Delete(t.Context(), node.Name, metav1.DeleteOptions{}))
	bed.Watch.Say("provider killed, Redis wiped, Node deleted")
	require.NoError(t, bed.Loop(t.Context(), 20)) // past the time at which an instance without a Node is taken for one that never came
	report, err := bed.Report(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, report.NodeGroups[0].Running, "the machine is still there")

	require.NoError(t, bed.Acknowledge(t.Context(), pod))
	bed.Watch.Say("what it saved is found and acknowledged")
	_, err = bed.Watch.Until(t.Context(), 2*time.Minute, "the instance is gone", func(testbed.State) bool {
		report, err := bed.Report(t.Context())
		return err == nil && report.NodeGroups[0].Target == 0
	})
	require.NoError(t, err)
}

func TestTrainerThatHangsKeepsItsNode(t *testing.T) {
	bed := start(t, testbed.Options{WithoutKEDA: true, Config: testbed.Config{
		NodeGroups: []string{testbed.Pool("t4", t4, 2)}, Checkpoint: "{abandonAfter: 45s}",
	}})
	require.NoError(t, bed.StartScript(t.Context(), testbed.Script{Name: "train", Accelerator: t4, Script: testbed.Stubborn, Replicas: 1, Grace: 5}))
	_, node := running(t, bed)
	require.NoError(t, bed.DeleteScript(t.Context(), "train"))
	_, err := bed.Watch.Until(t.Context(), time.Minute, "the pod is gone", func(s testbed.State) bool { return len(s.PodsOf("train")) == 0 })
	require.NoError(t, err)
	require.NoError(t, bed.Loop(t.Context(), 8))
	kept, err := bed.Cluster.Client.CoreV1().Nodes().Get(t.Context(), node.Name, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "true", kept.Annotations[scaleDownDisabled])
	events, err := bed.Cluster.Client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=HeldForCheckpoint"})
	require.NoError(t, err)
	require.NotEmpty(t, events.Items, "an Event says why it stays")
	_, err = bed.Watch.Until(t.Context(), 3*time.Minute, "the node goes once nobody can save any more", func(s testbed.State) bool { return len(s.Nodes) == 0 })
	require.NoError(t, err)
}
