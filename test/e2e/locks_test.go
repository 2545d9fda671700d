//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-node-provider/test/testbed"
)

func drained(s testbed.State, node string) bool {
	for _, n := range s.Nodes {
		if n.Name == node {
			return testbed.Tainted(n)
		}
	}
	return false
}

// goes waits until the Node is gone.
func goes(t *testing.T, bed *testbed.Bed, node string) {
	t.Helper()
	took, err := bed.Watch.Until(t.Context(), 4*time.Minute, "node "+node+" is gone", func(testbed.State) bool {
		_, err := bed.Cluster.Client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	require.NoError(t, err)
	bed.Watch.Say("node %s is gone after %s", node, took.Round(time.Second))
}

// TestF01WebhookAlone: nothing keeps Cluster Autoscaler from tainting the node,
// and no training pod is evicted before it has acknowledged.
func TestF01WebhookAlone(t *testing.T) {
	bed := start(t, testbed.Options{
		WithoutKEDA: true, Webhook: true, Config: testbed.Config{NodeGroups: []string{fourGPUs}},
	})
	require.NoError(t, bed.WithoutGuard(t.Context()))
	require.NoError(t, bed.StartScript(t.Context(), testbed.Script{Name: "train", Accelerator: t4, Script: testbed.Hasty, Replicas: 1, Grace: 30}))
	pod, node := running(t, bed)
	require.NoError(t, bed.SpareNode(t.Context(), "spare", t4, 4)) // so that it could move
	_, err := bed.Watch.Until(t.Context(), 2*time.Minute, "the node is drained, and its trainer asked", func(s testbed.State) bool {
		return drained(s, node.Name) && bed.Redis.Exists(t.Context(), testbed.RequestKey(pod)).Val() == 1
	})
	require.NoError(t, err)
	require.NoError(t, bed.Loop(t.Context(), 5))
	there, err := bed.Cluster.Client.CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
	require.NoError(t, err)
	require.Nil(t, there.DeletionTimestamp, "evicted before it has acknowledged")
	require.NoError(t, bed.Acknowledge(t.Context(), pod))
	bed.Watch.Say("it acknowledges")
	goes(t, bed, node.Name)
	moved, _ := running(t, bed)
	assert.Equal(t, "spare", moved.Spec.NodeName)
}

// TestF01GateAlone: nothing but the gate keeps an empty machine whose trainer went
// without an acknowledgement.
func TestF01GateAlone(t *testing.T) {
	bed := start(t, testbed.Options{WithoutKEDA: true, Config: testbed.Config{NodeGroups: []string{testbed.Pool("t4", t4, 2)}}})
	require.NoError(t, bed.WithoutGuard(t.Context()))
	require.NoError(t, bed.StartScript(t.Context(), testbed.Script{Name: "train", Accelerator: t4, Script: testbed.Hasty, Replicas: 1, Grace: 30}))
	pod, node := running(t, bed)
	require.NoError(t, bed.DeleteScript(t.Context(), "train"))
	_, err := bed.Watch.Until(t.Context(), 2*time.Minute, "two deletions are refused", func(testbed.State) bool {
		n, err := bed.Refusals()
		return err == nil && n >= 2
	})
	require.NoError(t, err)
	report, err := bed.Report(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, report.NodeGroups[0].Running)
	require.NoError(t, bed.Acknowledge(t.Context(), pod))
	bed.Watch.Say("what it saved is found and acknowledged")
	goes(t, bed, node.Name)
}

// TestF02F17TrainerLandsOnANodeThatGoes: the node was let go of, rightly, and is
// drained when another trainer lands there. The deletion is refused and the node
// held again, so that it is not tainted and untainted over and over.
func TestF02F17TrainerLandsOnANodeThatGoes(t *testing.T) {
	bed := start(t, testbed.Options{
		WithoutKEDA: true, Config: testbed.Config{NodeGroups: []string{fourGPUs}},
	})
	require.NoError(t, bed.StartScript(t.Context(), testbed.Script{Name: "train", Accelerator: t4, Script: testbed.Stubborn, Replicas: 1, Grace: 15}))
	pod, node := running(t, bed)
	require.NoError(t, bed.SpareNode(t.Context(), "spare", t4, 4))
	require.NoError(t, bed.Acknowledge(t.Context(), pod))
	_, err := bed.Watch.Until(t.Context(), 2*time.Minute, "the node is drained", func(s testbed.State) bool {
		for _, p := range s.PodsOf("train") {
			if p.UID == pod.UID && p.DeletionTimestamp != nil {
				return drained(s, node.Name)
			}
		}
		return false
	})
	require.NoError(t, err)
	require.NoError(t, bed.Land(t.Context(), node.Name, testbed.Script{Name: "second", Accelerator: t4, Script: testbed.Hasty, Grace: 5}))
	bed.Watch.Say("a second trainer lands")
	_, err = bed.Watch.Until(t.Context(), time.Minute, "the deletion is refused", func(testbed.State) bool {
		n, err := bed.Refusals()
		return err == nil && n >= 1
	})
	require.NoError(t, err)

	before, err := bed.Loops(t.Context())
	require.NoError(t, err)
	taints, was := 0, true
	_, err = bed.Watch.Until(t.Context(), 2*time.Minute, "fifteen loops", func(s testbed.State) bool {
		is := drained(s, node.Name)
		if is && !was {
			taints++
		}
		was = is
		now, err := bed.Loops(t.Context())
		return err == nil && now.Count >= before.Count+15
	})
	require.NoError(t, err)
	assert.LessOrEqual(t, taints, 1, "tainted over and over")
	second, err := bed.Cluster.Client.CoreV1().Pods(pod.Namespace).Get(t.Context(), "second", metav1.GetOptions{})
	require.NoError(t, err)
	stays(t, bed, node.Name, second)
	require.NoError(t, bed.Acknowledge(t.Context(), second))
	goes(t, bed, node.Name)
}

// TestNoneOfFourGoesBeforeTheFourth: three of four trainers of a node have
// acknowledged, and a person drains it.
func TestNoneOfFourGoesBeforeTheFourth(t *testing.T) {
	bed := start(t, testbed.Options{WithoutKEDA: true, Webhook: true, Config: testbed.Config{NodeGroups: []string{fourGPUs}}})
	require.NoError(t, bed.StartScript(t.Context(), testbed.Script{Name: "train", Accelerator: t4, Script: testbed.Hasty, Replicas: 4, Grace: 30}))
	var four []*corev1.Pod
	_, err := bed.Watch.Until(t.Context(), 3*time.Minute, "four trainers run", func(s testbed.State) bool {
		four = s.PodsOf("train")
		return s.Phase(corev1.PodRunning) == 4
	})
	require.NoError(t, err)
	node := four[0].Spec.NodeName
	for _, p := range four[:3] {
		require.Equal(t, node, p.Spec.NodeName)
		require.NoError(t, bed.Acknowledge(t.Context(), p))
	}
	drained := make(chan error, 1)
	go func() {
		_, err := bed.Cluster.Kubectl(t.Context(), nil, "drain", node, "--ignore-daemonsets", "--timeout=3m")
		drained <- err
	}()
	_, err = bed.Watch.Until(t.Context(), time.Minute, "the fourth is asked", func(testbed.State) bool {
		return bed.Redis.Exists(t.Context(), testbed.RequestKey(four[3])).Val() == 1
	})
	require.NoError(t, err)
	require.NoError(t, bed.Loop(t.Context(), 5)) // kubectl tries every 5 s
	for _, p := range four {
		now, err := bed.Cluster.Client.CoreV1().Pods(p.Namespace).Get(t.Context(), p.Name, metav1.GetOptions{})
		require.NoError(t, err)
		require.Nil(t, now.DeletionTimestamp, "%s is evicted before the fourth has acknowledged", p.Name)
	}
	require.NoError(t, bed.Acknowledge(t.Context(), four[3]))
	bed.Watch.Say("the fourth acknowledges")
	require.NoError(t, <-drained)
}
