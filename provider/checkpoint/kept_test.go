package checkpoint

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"gpu-node-provider/provider/cluster"
)

// TestAPodInMemorySaysWhatTheWholePodSays: the guard judges Pods less what package
// cluster drops of them, the gate whole ones, and they must never disagree.
func TestAPodInMemorySaysWhatTheWholePodSays(t *testing.T) {
	at := func(minute int) metav1.Time { return metav1.NewTime(time.Date(2026, 1, 1, 12, minute, 0, 0, time.UTC)) }
	ran := func(minute int) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: at(minute), ExitCode: 0, Reason: "Completed"}}
	}
	runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at(1)}}
	waits := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	statuses := func(states ...corev1.ContainerState) (all []corev1.ContainerStatus) {
		for _, s := range states {
			all = append(all, corev1.ContainerStatus{Name: "c", State: s})
		}
		return all
	}
	start := at(0)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{ProviderID: "aws:///a/i-1"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, LastTransitionTime: at(2)}, {Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: at(9)},
	}}}
	selector := labels.SelectorFromSet(labels.Set{"trains": "yes"})
	for name, edit := range map[string]func(*corev1.Pod){
		"runs":                func(p *corev1.Pod) { p.Status.ContainerStatuses = statuses(waits, runs, ran(3)) },
		"nothing has started": func(p *corev1.Pod) { p.Status.ContainerStatuses = statuses(waits, waits) },
		"an init container runs": func(p *corev1.Pod) {
			p.Status.InitContainerStatuses, p.Status.ContainerStatuses = statuses(runs), statuses(waits)
		},
		"a native sidecar runs": func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "c", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}}
			p.Status.InitContainerStatuses, p.Status.ContainerStatuses = statuses(runs), []corev1.ContainerStatus{{Name: "main", State: waits}}
		},
		"an init container has run": func(p *corev1.Pod) {
			p.Status.InitContainerStatuses, p.Status.ContainerStatuses = statuses(ran(1)), statuses(waits)
		},
		"a container has crashed": func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: waits, LastTerminationState: ran(4)}}
		},
		"a container was restarted": func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: waits, RestartCount: 1}}
		},
		"has failed": func(p *corev1.Pod) {
			p.Status.Phase, p.Status.ContainerStatuses = corev1.PodFailed, statuses(ran(5), ran(7), ran(6))
		},
		"is called failed and runs": func(p *corev1.Pod) {
			p.Status.Phase, p.Status.ContainerStatuses = corev1.PodFailed, statuses(ran(5), runs)
		},
		"has succeeded": func(p *corev1.Pod) {
			p.Status.Phase, p.Status.ContainerStatuses = corev1.PodSucceeded, statuses(ran(5))
		},
		"was evicted by the kubelet, and ended with 0": func(p *corev1.Pod) {
			alwaysRestarted(p)
			p.Status.Phase, p.Status.ContainerStatuses = corev1.PodSucceeded, statuses(ran(5))
		},
		"was shut down with its node, and ended with 0": func(p *corev1.Pod) {
			disrupted(p)
			p.Status.Phase, p.Status.ContainerStatuses = corev1.PodSucceeded, statuses(ran(5))
		},
		"runs again": func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at(7)}}, RestartCount: 3}, {State: runs}}
		},
		"does not say since when it runs": func(p *corev1.Pod) {
			p.Status.ContainerStatuses = statuses(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
		},
		"was told to stop, and ended with 0": func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &start, new(int64(30))
			p.Status.Phase, p.Status.ContainerStatuses = corev1.PodSucceeded, statuses(ran(5))
		},
		"terminates": func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds, p.Status.ContainerStatuses = &start, new(int64(30)), statuses(runs)
		},
		"is no training pod": func(p *corev1.Pod) { p.Labels = map[string]string{"trains": "no"} },
		"has a place in an Job": func(p *corev1.Pod) {
			p.Labels["batch.kubernetes.io/job-completion-index"] = "4"
			p.OwnerReferences = owner("Job")
		},
		"has a place in a StatefulSet, before 1.28": func(p *corev1.Pod) { p.OwnerReferences = owner("StatefulSet") },
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "train", Name: "p-4", UID: "u", Labels: map[string]string{"trains": "yes"}},
				Spec:       corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "c"}}},
				Status:     corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &start},
			}
			edit(pod)
			view, memory := cluster.NewMemory(fake.NewClientset(), &record.FakeRecorder{})
			require.NoError(t, memory.Put(pod))
			require.NoError(t, memory.Put(node))
			all := view.PodsOn("n", nil)
			require.Len(t, all, 1)
			kept, ok := view.Node("aws:///a/i-1")
			require.True(t, ok)
			require.Equal(t, PodOf(pod, node), PodOf(all[0], kept))
			require.Equal(t, Trains(pod, selector), Trains(all[0], selector))
		})
	}
}

func owner(kind string) []metav1.OwnerReference {
	return []metav1.OwnerReference{{Kind: kind, Name: "o", UID: "o", Controller: new(true)}}
}
