package nodeagent

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
)

// kubelet is an agent with one Node on an API that keeps objects and no more.
type kubelet struct {
	*testing.T
	client *fake.Clientset
	agent  *Agent
}

func newKubelet(t *testing.T) *kubelet {
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other"}})
	k := &kubelet{t, client, &Agent{Client: client, Logs: t.TempDir(), Skip: func(n *corev1.Node) bool { return n.Name == "other" }}}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- k.agent.Run(ctx) }()
	t.Cleanup(func() { stop(); require.NoError(t, <-ended) })
	return k
}

func (k *kubelet) bind(node, script string, policy corev1.RestartPolicy) {
	_, err := k.client.CoreV1().Pods("ns").Create(k.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod", Namespace: "ns", UID: "uid-1"},
		Spec: corev1.PodSpec{NodeName: node, RestartPolicy: policy, Containers: []corev1.Container{{
			Name: "c", Command: []string{"sh", "-c", script},
			Env: []corev1.EnvVar{
				{Name: "POD_UID", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"}}},
				{Name: "GREETING", Value: "I am $(POD_UID)"},
			},
		}}},
	}, metav1.CreateOptions{})
	require.NoError(k, err)
}

func (k *kubelet) pod() *corev1.Pod {
	pod, err := k.client.CoreV1().Pods("ns").Get(k.Context(), "pod", metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return pod
}

func (k *kubelet) until(what string, holds func() bool) {
	k.Helper()
	require.Eventually(k, holds, 15*time.Second, 10*time.Millisecond, what)
}

func (k *kubelet) log() string {
	text, err := os.ReadFile(filepath.Join(k.agent.Logs, "ns_pod.log"))
	if err != nil {
		return ""
	}
	return string(text)
}

// terminate does what the API server does on a deletion with a grace period.
func (k *kubelet) terminate(grace time.Duration) {
	pod := k.pod()
	pod.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(grace)}
	_, err := k.client.CoreV1().Pods("ns").Update(k.Context(), pod, metav1.UpdateOptions{})
	require.NoError(k, err)
}

func (k *kubelet) phase(phase corev1.PodPhase) func() bool {
	return func() bool { p := k.pod(); return p != nil && p.Status.Phase == phase }
}

func TestRunsToItsEnd(t *testing.T) {
	k := newKubelet(t)
	k.bind("node", `echo "$GREETING"`, corev1.RestartPolicyNever)
	k.until("succeeded", k.phase(corev1.PodSucceeded))
	require.Contains(t, k.log(), "I am uid-1")
	k.terminate(time.Minute)
	k.until("a Pod that is over goes at once", func() bool { return k.pod() == nil })
}

func TestFailureIsReported(t *testing.T) {
	k := newKubelet(t)
	k.bind("node", `exit 7`, corev1.RestartPolicyNever)
	k.until("failed", k.phase(corev1.PodFailed))
	require.EqualValues(t, 7, k.pod().Status.ContainerStatuses[0].State.Terminated.ExitCode)
}

func TestGracePeriod(t *testing.T) {
	k := newKubelet(t)
	k.bind("node", `trap 'echo saving; sleep 0.2; echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done`, corev1.RestartPolicyAlways)
	k.until("up", func() bool { return strings.Contains(k.log(), "up") })
	require.True(t, k.phase(corev1.PodRunning)() || k.pod().Status.Phase == "")
	k.terminate(time.Minute)
	k.until("removed", func() bool { return k.pod() == nil })
	require.Contains(t, k.log(), "saved", "it had the time")
}

func TestSignalWithoutAHandlerIsDropped(t *testing.T) {
	k := newKubelet(t)
	k.bind("node", `echo up; while :; do sleep 0.05; done`, corev1.RestartPolicyAlways)
	k.until("up", func() bool { return strings.Contains(k.log(), "up") })
	k.until("running", k.phase(corev1.PodRunning))
	k.terminate(time.Hour)
	k.until("terminating", func() bool {
		k.agent.mu.Lock()
		defer k.agent.mu.Unlock()
		return len(k.agent.pods["uid-1"].deadline) == 0 // it has been taken
	})
	require.NotNil(t, k.pod(), "process 1 of a container would not have heard it")
	k.terminate(0)
	k.until("removed at the end of its grace period", func() bool { return k.pod() == nil })
}

func TestGracePeriodThatIsCutShort(t *testing.T) {
	k := newKubelet(t)
	k.bind("node", `trap 'echo no' TERM; echo up; while :; do sleep 0.05; done`, corev1.RestartPolicyAlways)
	k.until("up", func() bool { return strings.Contains(k.log(), "up") })
	k.terminate(time.Hour)
	k.until("asked", func() bool { return strings.Contains(k.log(), "no") })
	k.terminate(0) // an eviction with less grace than the deletion before it
	k.until("removed", func() bool { return k.pod() == nil })
}

func TestMachineThatGoesTakesItsProcessesAlong(t *testing.T) {
	k := newKubelet(t)
	k.bind("node", `trap 'echo warned' TERM; echo up; while :; do sleep 0.05; done`, corev1.RestartPolicyAlways)
	k.until("running", k.phase(corev1.PodRunning))
	k.until("up", func() bool { return strings.Contains(k.log(), "up") })
	require.NoError(t, k.client.CoreV1().Nodes().Delete(t.Context(), "node", metav1.DeleteOptions{}))
	k.until("the process is gone", func() bool {
		k.agent.mu.Lock()
		defer k.agent.mu.Unlock()
		c := k.agent.pods[types.UID("uid-1")]
		select {
		case <-c.process.Ended():
			return true
		default:
			return false
		}
	})
	require.NotContains(t, k.log(), "warned")
	require.True(t, k.phase(corev1.PodRunning)(), "nobody is left to report")
}

func TestNodesOfOthersAreLeftAlone(t *testing.T) {
	k := newKubelet(t)
	k.bind("other", `echo up`, corev1.RestartPolicyNever)
	_, err := k.client.CoreV1().Pods("ns").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "later", Namespace: "ns", UID: "uid-2"},
		Spec:       corev1.PodSpec{NodeName: "node", RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Command: []string{"true"}}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	k.until("the later one is over", func() bool {
		pod, err := k.client.CoreV1().Pods("ns").Get(t.Context(), "later", metav1.GetOptions{})
		return err == nil && pod.Status.Phase == corev1.PodSucceeded
	})
	require.Empty(t, k.pod().Status.Phase)
}
