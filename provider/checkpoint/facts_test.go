package checkpoint

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestStageOfAPodThatIsOver: a kubelet calls a Pod Succeeded or Failed by its exit
// codes alone, so whether it was told to stop is in the times.
func TestStageOfAPodThatIsOver(t *testing.T) {
	deleted := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	ended := func(after time.Duration) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(deleted.Add(after))}}}}
	}
	for name, c := range map[string]struct {
		phase    corev1.PodPhase
		statuses []corev1.ContainerStatus
		lives    bool // nobody deletes it
		want     Stage
		ended    time.Time
	}{
		"code 0, by itself":                        {phase: corev1.PodSucceeded, statuses: ended(0), lives: true, want: Succeeded},
		"code 0, long before it was deleted":       {phase: corev1.PodSucceeded, statuses: ended(-time.Minute), want: Succeeded},
		"code 0, after SIGTERM":                    {phase: corev1.PodSucceeded, statuses: ended(time.Second), want: Gone, ended: deleted.Add(time.Second)},
		"code 0, after SIGTERM, by a clock behind": {phase: corev1.PodSucceeded, statuses: ended(-4 * time.Second), want: Gone, ended: deleted.Add(-4 * time.Second)},
		"code 0, nobody knows when":                {phase: corev1.PodSucceeded, want: Gone},
		"code 143, after SIGTERM":                  {phase: corev1.PodFailed, statuses: ended(time.Second), want: Gone, ended: deleted.Add(time.Second)},
		"code 1, before it was deleted":            {phase: corev1.PodFailed, statuses: ended(-time.Minute), want: Failed, ended: deleted.Add(-time.Minute)},
		"never started":                            {phase: corev1.PodFailed, want: Waiting},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Status: corev1.PodStatus{Phase: c.phase, ContainerStatuses: c.statuses}}
			if !c.lives {
				end := metav1.NewTime(deleted.Add(30 * time.Second))
				pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &end, new(int64(30))
			}
			facts := FactsOf(pod, nil)
			require.Equal(t, c.want, facts.Stage)
			require.True(t, c.ended.Equal(facts.Ended), "ended at %s", facts.Ended)
		})
	}
}
