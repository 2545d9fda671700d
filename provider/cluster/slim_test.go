package cluster

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// slimmed is what is known of a Node or Pod.
func slimmed[T any](t *testing.T, obj T) T {
	t.Helper()
	once, err := slim(obj)
	require.NoError(t, err)
	twice, err := slim(once)
	require.NoError(t, err)
	require.Equal(t, once, twice, "client-go may do it again")
	if b, ok := once.(*bound); ok {
		once = b.pod()
	}
	kept, ok := once.(T)
	require.True(t, ok, "%T", once)
	return kept
}

func TestOfANodeWhatIsReadIsKept(t *testing.T) {
	since := metav1.NewTime(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC))
	kept := slimmed(t, node("n", "aws:///a/i-1", func(n *corev1.Node) {
		n.UID, n.DeletionTimestamp, n.Finalizers = "u-1", &since, []string{"x"}
		n.Labels = map[string]string{"gpu-node-provider.io/node-group": "t4", "accelerator": "nvidia-tesla-t4"}
		n.Annotations = map[string]string{
			"gpu-node-provider.io/held-by": "guard", "gpu-node-provider.io/release": "me",
			"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true", "csi.volume.kubernetes.io/nodeid": "{}",
		}
		n.Spec.Unschedulable, n.Spec.PodCIDR = true, "10.0.0.0/24"
		n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Value: "1767268800", Effect: corev1.TaintEffectNoSchedule, TimeAdded: &since}}
		n.Status.Allocatable = corev1.ResourceList{gpu: resource.MustParse("4"), "vpc.amazonaws.com/efa": resource.MustParse("1"), "cpu": resource.MustParse("48")}
		n.Status.Capacity = n.Status.Allocatable
		n.Status.Conditions = []corev1.NodeCondition{
			{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse},
			{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown", LastHeartbeatTime: since, LastTransitionTime: since},
		}
		n.Status.NodeInfo.BootID = "b"
	}))
	require.Equal(t, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "n", UID: "u-1", ResourceVersion: "1", DeletionTimestamp: &since,
			Labels: map[string]string{"gpu-node-provider.io/node-group": "t4"},
			Annotations: map[string]string{
				"gpu-node-provider.io/held-by": "guard", "gpu-node-provider.io/release": "me", "cluster-autoscaler.kubernetes.io/scale-down-disabled": "true",
			},
		},
		Spec: corev1.NodeSpec{
			ProviderID: "aws:///a/i-1", Unschedulable: true,
			Taints: []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Value: "1767268800", Effect: corev1.TaintEffectNoSchedule}},
		},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{gpu: resource.MustParse("4"), "vpc.amazonaws.com/efa": resource.MustParse("1")},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: since}},
		},
	}, kept)
}

func owned(by string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "ConfigMap", Name: "not-the-controller", UID: "o-0"},
			{APIVersion: "batch/v1", Kind: by, Name: "o", UID: "o-1", Controller: new(true), BlockOwnerDeletion: new(true)},
		}
	}
}

func placed(p *corev1.Pod) { p.Spec.NodeName = "n" }

// holds has a pod's second container hold a GPU, whose request the API server fills in.
func holds(p *corev1.Pod) {
	one := corev1.ResourceList{gpu: resource.MustParse("1"), "cpu": resource.MustParse("4")}
	p.Spec.Containers = []corev1.Container{{Name: "proxy", Image: "proxy"}, {Name: "trainer", Image: "trainer", Resources: corev1.ResourceRequirements{Limits: one, Requests: one}}}
}

func TestOfABoundPodWhatIsReadIsKept(t *testing.T) {
	since, device := metav1.NewTime(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)), corev1.ResourceList{gpu: resource.MustParse("1")}
	kept := slimmed(t, pod("trains", placed, holds, owned("Job"), func(p *corev1.Pod) {
		p.ResourceVersion, p.DeletionTimestamp, p.DeletionGracePeriodSeconds, p.GenerateName = "7", &since, new(int64(30)), "trains-"
		p.Labels, p.Annotations = map[string]string{"batch.kubernetes.io/job-completion-index": "3"}, map[string]string{"kubectl.kubernetes.io/restartedAt": "x"}
		p.Spec.Volumes = []corev1.Volume{{Name: "data"}}
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &since, PodIP: "10.0.0.1", ContainerStatuses: []corev1.ContainerStatus{
			{Name: "proxy", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: since}}},
			{Name: "trainer", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: since}}},
		}}
	}))
	require.Equal(t, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "trains", Namespace: "training", UID: "u-1", ResourceVersion: "7", DeletionTimestamp: &since, DeletionGracePeriodSeconds: new(int64(30)),
			Labels:          map[string]string{"batch.kubernetes.io/job-completion-index": "3"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "o", UID: "o-1", Controller: new(true)}},
		},
		Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: device, Requests: device}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &since, ContainerStatuses: []corev1.ContainerStatus{
			{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: since}}},
		}},
	}, kept)
}

// TestEndsAreKept: when the last container ended, and whether one has ever run,
// are read off the statuses.
func TestEndsAreKept(t *testing.T) {
	at := metav1.NewTime(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC))
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: at}}
	kept := slimmed(t, pod("fails", placed, func(p *corev1.Pod) {
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "weights", State: ended}}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{
			{Name: "a", Image: "a", State: ended}, {Name: "b", LastTerminationState: ended, RestartCount: 2},
		}
	}))
	require.Equal(t, []corev1.ContainerStatus{{Name: "weights", State: ended}}, kept.Status.InitContainerStatuses)
	require.Equal(t, []corev1.ContainerStatus{{Name: "a", State: ended}, {Name: "b", LastTerminationState: ended, RestartCount: 2}}, kept.Status.ContainerStatuses)
}

func TestAWaitingPodKeepsItsSpec(t *testing.T) {
	kept := slimmed(t, pod("waits", holds, owned("DaemonSet")))
	require.Equal(t, pod("waits", holds).Spec, kept.Spec)
	require.NotEmpty(t, kept.Status.Conditions)
}

// TestWhoGoesWithItsNodeIsForgotten: three of four Pods of a large cluster are a
// DaemonSet's, and count only while they wait, or hold a device.
func TestWhoGoesWithItsNodeIsForgotten(t *testing.T) {
	mirror := func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }
	client := apiServer(
		pod("daemon", owned("DaemonSet")), pod("daemon-with-a-device", placed, holds, owned("DaemonSet")),
		pod("static", placed, mirror), pod("static-with-a-device", placed, holds, mirror), pod("worker", placed, owned("Job")),
	)
	v, _ := follow(t, client)
	there := func() map[string]bool {
		names := map[string]bool{}
		for _, p := range v.PodsOn("n", nil) {
			names[p.Name] = true
		}
		return names
	}
	want := map[string]bool{"daemon-with-a-device": true, "static-with-a-device": true, "worker": true}
	require.Equal(t, want, there())
	require.Len(t, v.WaitingPods(), 1)

	stale, err := client.CoreV1().Pods("training").Update(t.Context(), pod("daemon", placed, owned("DaemonSet")), metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(v.WaitingPods()) == 0 }, patience, time.Millisecond)
	require.Equal(t, want, there())
	require.NoError(t, client.CoreV1().Pods("training").Delete(t.Context(), stale.Name, metav1.DeleteOptions{}))
	require.Eventually(t, func() bool { _, there, _ := v.pods.GetByKey("training/daemon"); return !there }, patience, time.Millisecond)
	require.Equal(t, want, there())
	require.Len(t, v.PodsOf(types.UID("o-1")), 2)
	for _, p := range v.PodsOn("n", nil) {
		if p.Name == "static-with-a-device" {
			require.Contains(t, p.Annotations, corev1.MirrorPodAnnotationKey, "it is no training pod, whatever its labels")
		}
	}
}

func TestDevicesOfPodsThatAreOverAreFree(t *testing.T) {
	v, known := NewMemory(apiServer(), nil)
	for name, phase := range map[string]corev1.PodPhase{"runs": corev1.PodRunning, "too": corev1.PodPending, "succeeded": corev1.PodSucceeded, "failed": corev1.PodFailed} {
		require.NoError(t, known.Put(pod(name, placed, holds, func(p *corev1.Pod) { p.Status.Phase = phase })))
	}
	require.Equal(t, map[corev1.ResourceName]int64{gpu: 2}, v.DevicesOn("n"))
	require.Empty(t, v.DevicesOn("another"))
}
