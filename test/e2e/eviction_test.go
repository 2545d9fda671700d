//go:build e2e

package e2e

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// TestWhatAPersonMaySay goes through the commands about held nodes.
func TestWhatAPersonMaySay(t *testing.T) {
	bed := start(t, testbed.Options{WithoutKEDA: true, Config: testbed.Config{NodeGroups: []string{testbed.Pool("t4", t4, 2)}}})
	require.NoError(t, bed.StartScript(t.Context(), testbed.Script{Name: "train", Accelerator: t4, Script: testbed.Hasty, Replicas: 1, Grace: 30}))
	pod, node := running(t, bed)
	command := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), "../../bin/gpu-node-provider", args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		bed.Watch.Say("gpu-node-provider %v\n%s", args, out)
		return string(out)
	}
	held := func(want bool) {
		_, err := bed.Watch.Until(t.Context(), time.Minute, "the node is held, or not", func(testbed.State) bool {
			n, err := bed.Cluster.Client.CoreV1().Nodes().Get(t.Context(), node.Name, metav1.GetOptions{})
			return err == nil && (n.Annotations[scaleDownDisabled] == "true") == want
		})
		require.NoError(t, err)
	}
	held(true)
	doctor := func(want string) { // by the rights of the manifests
		out, err := exec.CommandContext(t.Context(), "../../bin/gpu-node-provider", "doctor", "--config", bed.ConfigFile("")).CombinedOutput()
		bed.Watch.Say("gpu-node-provider doctor: %v\n%s", err, out)
		assert.Regexp(t, want, string(out))
		assert.NotContains(t, string(out), "forbidden")
		assert.Equal(t, strings.HasPrefix(want, "(?m)^fail"), err != nil)
	}
	doctor(`(?m)^fail +namespaces +namespace ` + pod.Namespace + ` has 1 training pods`)
	_, err := bed.Cluster.Kubectl(t.Context(), nil, "label", "namespace", pod.Namespace, "gpu-node-provider.io/checkpoint=enabled")
	require.NoError(t, err)
	doctor(`(?m)^ok +namespaces +all 1 training pods`)
	status := command("status", "--address", bed.HTTP())
	assert.Contains(t, status, node.Name)
	assert.Contains(t, status, pod.Name)
	command("checkpoint", "request", node.Name, "--by", "alex", "--kubeconfig", bed.Cluster.Kubeconfig)
	_, err = bed.Watch.Until(t.Context(), time.Minute, "the trainer is asked", func(testbed.State) bool {
		return bed.Redis.Exists(t.Context(), testbed.RequestKey(pod)).Val() == 1
	})
	require.NoError(t, err)
	held(true)
	command("checkpoint", "release", node.Name, "--by", "alex", "--kubeconfig", bed.Cluster.Kubeconfig)
	held(false)
	assert.NotContains(t, command("status", "--address", bed.HTTP()), pod.Name)

	require.NoError(t, bed.DeleteScript(t.Context(), "train"))
	require.NoError(t, bed.StartScript(t.Context(), testbed.Script{Name: "again", Accelerator: t4, Script: testbed.Hasty, Replicas: 1, Grace: 30}))
	held(true)
	bed.KillProvider()
	assert.Contains(t, command("uninstall", "--kubeconfig", bed.Cluster.Kubeconfig), "1 nodes freed")
	held(false)
	records, err := bed.Cluster.Client.CoreV1().ConfigMaps("gpu-node-provider").List(t.Context(), metav1.ListOptions{LabelSelector: "gpu-node-provider.io/record"})
	require.NoError(t, err)
	assert.Empty(t, records.Items)
}
