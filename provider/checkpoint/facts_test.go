package checkpoint

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestStageOfAPodThatIsOver: a kubelet calls a Pod Succeeded or Failed by its exit
// codes alone. Whether it was told to stop is elsewhere.
func TestStageOfAPodThatIsOver(t *testing.T) {
	deleted := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	after := func(d time.Duration) time.Time { return deleted.Add(d) }
	const noGrace, grace = int64(0), int64(30)
	for name, c := range map[string]struct {
		phase  corev1.PodPhase
		ended  time.Time // zero: nobody says
		reason string
		grace  *int64 // nil: nobody deletes it
		edit   func(*corev1.Pod)
		want   Stage
		since  time.Time
	}{
		"code 0, by itself":                                 {phase: corev1.PodSucceeded, ended: after(0), reason: "Completed", want: Succeeded},
		"code 0, and deleted, which a finalizer stops":      {phase: corev1.PodSucceeded, ended: after(-time.Minute), grace: new(noGrace), want: Succeeded},
		"code 0, after SIGTERM":                             {phase: corev1.PodSucceeded, ended: after(time.Second), grace: new(grace), want: Gone, since: after(time.Second)},
		"code 0, after SIGTERM, the node's clock is behind": {phase: corev1.PodSucceeded, ended: after(-time.Hour), grace: new(grace), want: Gone, since: after(0)},
		"code 0, after SIGTERM without grace":               {phase: corev1.PodSucceeded, ended: after(-4 * time.Second), grace: new(noGrace), want: Gone, since: after(0)},
		"code 0, nobody knows when":                         {phase: corev1.PodSucceeded, grace: new(noGrace), want: Gone},
		"code 0, as its node shuts down":                    {phase: corev1.PodSucceeded, ended: after(0), edit: disrupted, want: Failed, since: after(0)},
		"code 0, as it was evicted by the kubelet":          {phase: corev1.PodSucceeded, ended: after(0), edit: alwaysRestarted, want: Failed, since: after(0)},
		"code 0, and a child of it took the memory":         {phase: corev1.PodSucceeded, ended: after(0), reason: "OOMKilled", want: Failed, since: after(0)},
		"code 143, after SIGTERM":                           {phase: corev1.PodFailed, ended: after(time.Second), grace: new(grace), want: Gone, since: after(time.Second)},
		"code 1, before it was deleted":                     {phase: corev1.PodFailed, ended: after(-time.Minute), grace: new(noGrace), want: Failed, since: after(-time.Minute)},
		"code 1, by itself":                                 {phase: corev1.PodFailed, ended: after(0), want: Failed, since: after(0)},
		"never started":                                     {phase: corev1.PodFailed, grace: new(grace), want: Waiting},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Status: corev1.PodStatus{Phase: c.phase}}
			if !c.ended.IsZero() {
				pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
					FinishedAt: metav1.NewTime(c.ended), Reason: c.reason,
				}}}}
			}
			if c.grace != nil {
				end := metav1.NewTime(after(time.Duration(*c.grace) * time.Second))
				pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &end, c.grace
			}
			if c.edit != nil {
				c.edit(pod)
			}
			facts := FactsOf(pod, nil)
			require.Equal(t, c.want, facts.Stage)
			require.True(t, c.since.Equal(facts.Ended), "ended at %s", facts.Ended)
		})
	}
}

func disrupted(p *corev1.Pod) {
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "TerminationByKubelet"}}
}

func alwaysRestarted(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways }

// TestSinceWhenAPodRuns: an init container that fetches weights for hours is at work;
// a native sidecar of a trainer that crashes is not.
func TestSinceWhenAPodRuns(t *testing.T) {
	early, late := metav1.NewTime(time.Unix(1000, 0)), metav1.NewTime(time.Unix(2000, 0))
	runs := func(name string, since metav1.Time) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: since}}}
	}
	waits := corev1.ContainerStatus{Name: "trainer", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}, RestartCount: 4}
	for name, c := range map[string]struct {
		init, main []corev1.ContainerStatus
		want       time.Time
	}{
		"a trainer":                         {main: []corev1.ContainerStatus{runs("trainer", late)}, want: late.Time},
		"a trainer beside another":          {main: []corev1.ContainerStatus{runs("trainer", late), runs("proxy", early)}, want: early.Time},
		"a crash":                           {main: []corev1.ContainerStatus{waits}},
		"an init container after a sidecar": {init: []corev1.ContainerStatus{runs("mesh", early), runs("weights", late)}, main: []corev1.ContainerStatus{waits}, want: late.Time},
		"a crash beside a sidecar":          {init: []corev1.ContainerStatus{runs("mesh", early)}, main: []corev1.ContainerStatus{waits}},
		"nobody says since when":            {main: []corev1.ContainerStatus{runs("trainer", metav1.Time{})}, want: time.Unix(0, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{
				Spec: corev1.PodSpec{InitContainers: []corev1.Container{
					{Name: "mesh", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}, {Name: "weights"},
				}},
				Status: corev1.PodStatus{Phase: corev1.PodRunning, InitContainerStatuses: c.init, ContainerStatuses: c.main},
			}
			require.Equal(t, c.want, FactsOf(pod, nil).UpSince)
		})
	}
}
