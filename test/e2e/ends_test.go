//go:build e2e

package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-node-provider/test/nodeagent"
	"gpu-node-provider/test/testbed"
)

// TestKEDAEndsThreeAndOneHangs has KEDA take three busy workers to none. Each
// saves and acknowledges when it is told to stop, and its node goes; the one that
// hangs keeps its node until nobody expects a save from it any more.
func TestKEDAEndsThreeAndOneHangs(t *testing.T) {
	bed := start(t, testbed.Options{Config: testbed.Config{
		// What the hanging one has acknowledged before it hung is too old when it ends.
		NodeGroups: []string{testbed.Pool("t4", t4, 3)}, Checkpoint: "{maxAge: 12s, abandonAfter: 60s}",
	}})
	workers := trainers("train:jobs", t4, 3)
	bed.Watch.Queues(workers.Queue)
	require.NoError(t, bed.Train(t.Context(), workers))
	require.NoError(t, bed.Push(t.Context(), workers.Queue, testbed.Jobs("job", 3, 1000, 0.5)...))
	_, err := bed.Watch.Until(t.Context(), 4*time.Minute, "three workers train", func(s testbed.State) bool {
		return s.Phase(corev1.PodRunning) == 3 && s.Queues[workers.Queue].InFlight == 3
	})
	require.NoError(t, err)
	var hung *corev1.Pod
	_, err = bed.Watch.Until(t.Context(), time.Minute, "one has saved", func(testbed.State) bool {
		hung, _, err = bed.WorkerOf(t.Context(), "job-1")
		return err == nil && bed.Redis.Exists(t.Context(), testbed.AckKey(hung)).Val() == 1
	})
	require.NoError(t, err)
	require.NoError(t, bed.FreezeTrainer(hung))
	since := time.Now()
	bed.Watch.Say("%s hangs", hung.Name)
	frozen, err := bed.Redis.Get(t.Context(), testbed.AckKey(hung)).Result()
	require.NoError(t, err)
	// Old also when the end of the pod is rounded down to a second, with the 5 s that are forgiven.
	const old = 20 * time.Second
	_, err = bed.Watch.Until(t.Context(), time.Minute, "its last acknowledgement is old", func(testbed.State) bool {
		return time.Since(since) > old && slices.ContainsFunc(held(t, bed), func(reason string) bool {
			return strings.Contains(reason, hung.Name) && strings.Contains(reason, "old")
		})
	})
	require.NoError(t, err)
	_, err = bed.Cluster.Kubectl(t.Context(), nil, "-n", hung.Namespace, "annotate", "scaledobject", workers.Name, "autoscaling.keda.sh/paused-replicas=0")
	require.NoError(t, err)
	_, err = bed.Watch.Until(t.Context(), 4*time.Minute, "two nodes are gone", func(s testbed.State) bool { return len(s.Nodes) == 1 && len(s.Pods) == 0 })
	require.NoError(t, err)
	said(t, bed, 2, "given back at step", "two have saved and given their jobs back")
	now, err := bed.Redis.Get(t.Context(), testbed.AckKey(hung)).Result()
	require.NoError(t, err)
	require.Equal(t, frozen, now, "it has not acknowledged")
	node, err := bed.Cluster.Client.CoreV1().Nodes().Get(t.Context(), hung.Spec.NodeName, metav1.GetOptions{})
	require.NoError(t, err, "its node stays")
	require.Equal(t, "true", node.Annotations[scaleDownDisabled])
	events, err := bed.Cluster.Client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=HeldForCheckpoint,involvedObject.name=" + node.Name})
	require.NoError(t, err)
	require.NotEmpty(t, events.Items)
	assert.Contains(t, events.Items[len(events.Items)-1].Message, hung.Name)
	goes(t, bed, node.Name) // abandoned
}

// held are the reasons that status shows.
func held(t *testing.T, bed *testbed.Bed) (reasons []string) {
	report, err := bed.Report(t.Context())
	require.NoError(t, err)
	for _, h := range report.Held {
		for _, p := range h.Pods {
			reasons = append(reasons, p.Pod+": "+p.Reason)
		}
	}
	return reasons
}

// TestNobodyHoldsForEver: a failed pod that its Job keeps, a pod whose image
// cannot be pulled, and a StatefulSet's pod that comes back under its name.
func TestNobodyHoldsForEver(t *testing.T) {
	bed := start(t, testbed.Options{WithoutKEDA: true, Config: testbed.Config{
		NodeGroups: []string{testbed.Pool("t4", t4, 3)}, Checkpoint: "{abandonAfter: 25s}",
	}})
	script := func(name, text string) testbed.Script {
		return testbed.Script{Name: name, Accelerator: t4, Script: text, Replicas: 1, Grace: 5}
	}
	stuck := script("stuck", testbed.Hasty)
	stuck.Image = nodeagent.Unpullable
	require.NoError(t, bed.StartScript(t.Context(), stuck))
	require.NoError(t, bed.StartJob(t.Context(), script("job", "sleep 5; exit 1")))
	require.NoError(t, bed.StartStatefulSet(t.Context(), script("set", testbed.Hasty)))
	on := map[string]*corev1.Pod{}
	_, err := bed.Watch.Until(t.Context(), 4*time.Minute, "all have been started", func(s testbed.State) bool {
		for name, phase := range map[string]corev1.PodPhase{"stuck": corev1.PodPending, "job": corev1.PodFailed, "set": corev1.PodRunning} {
			pods := s.PodsOf(name)
			if len(pods) != 1 || pods[0].Status.Phase != phase || pods[0].Spec.NodeName == "" {
				return false
			}
			on[name] = pods[0]
		}
		return true
	})
	require.NoError(t, err)
	reasons := strings.Join(held(t, bed), "\n")
	bed.Watch.Say("held:\n%s", reasons)
	assert.NotContains(t, reasons, "/stuck-", "it has nothing to lose")

	// The StatefulSet's pod goes without a word, and comes back.
	first := on["set"]
	require.NoError(t, bed.Cluster.Client.CoreV1().Pods(first.Namespace).Delete(t.Context(), first.Name, metav1.DeleteOptions{}))
	var second *corev1.Pod
	_, err = bed.Watch.Until(t.Context(), 2*time.Minute, "the StatefulSet's pod is back", func(s testbed.State) bool {
		for _, p := range s.PodsOf("set") {
			if p.UID != first.UID && p.Status.Phase == corev1.PodRunning {
				second = p
			}
		}
		return second != nil
	})
	require.NoError(t, err)
	require.NoError(t, bed.Acknowledge(t.Context(), second))
	_, err = bed.Watch.Until(t.Context(), 30*time.Second, "its acknowledgement is for both of them", func(testbed.State) bool {
		return !slices.ContainsFunc(held(t, bed), func(reason string) bool { return strings.Contains(reason, "/set-0") })
	})
	require.NoError(t, err)

	require.NoError(t, bed.DeleteScript(t.Context(), "stuck"))
	require.NoError(t, bed.Cluster.Client.AppsV1().StatefulSets(first.Namespace).Delete(t.Context(), "set", metav1.DeleteOptions{}))
	for _, pod := range on {
		goes(t, bed, pod.Spec.NodeName)
	}
}

// TestNodeThatIsNotReady: a machine dies with its trainer on it. It is kept for a
// while, since its disk may hold what the trainer has saved, and not for ever.
func TestNodeThatIsNotReady(t *testing.T) {
	bed := start(t, testbed.Options{WithoutKEDA: true, Config: testbed.Config{
		Simulated:  "launchDelay: 1s, bootDelay: 5s, devicePluginDelay: 2s, heartbeat: false", // so that the node controller finds it dead
		NodeGroups: []string{testbed.Pool("t4", t4, 1)}, Checkpoint: "{abandonAfter: 25s}",
	}})
	require.NoError(t, bed.StartScript(t.Context(), testbed.Script{Name: "train", Accelerator: t4, Script: testbed.Hasty, Replicas: 1, Grace: 5}))
	pod, node := running(t, bed)
	_, err := bed.Watch.Until(t.Context(), 2*time.Minute, "the node is not Ready, and held", func(testbed.State) bool {
		return slices.ContainsFunc(held(t, bed), func(reason string) bool {
			return strings.Contains(reason, pod.Name) && strings.Contains(reason, "not Ready")
		})
	})
	require.NoError(t, err)
	took, err := bed.Watch.Until(t.Context(), 2*time.Minute, "it is not held any more", func(s testbed.State) bool {
		return len(held(t, bed)) == 0 && len(s.Nodes) == 1 && s.Nodes[0].Annotations[scaleDownDisabled] == ""
	})
	require.NoError(t, err)
	bed.Watch.Say("it is let go of after %s", took.Round(time.Second))
	// Cluster Autoscaler waits for the pod, which the node controller evicts after 300 s.
	require.NoError(t, bed.DeleteScript(t.Context(), "train"))
	goes(t, bed, node.Name)
}
