//go:build e2e

package e2e

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/test/testbed"
)

// Machines bought are machines needed, also where something else than Cluster
// Autoscaler adds them; and a Pod that needs one more gets it.

// TestCP01NodeGoneAtOnce: AWS ends the only machine and launches another by itself.
func TestCP01NodeGoneAtOnce(t *testing.T) { replaced(t, 1, 1, false) }

// TestCP01NodeStaysReady: the old instance waits in Terminating:Wait for as long as the
// story lasts, and its Node stays Ready.
func TestCP01NodeStaysReady(t *testing.T) { replaced(t, 1, 1, true) }

// TestCP01SpotWave: a third of the group is interrupted at a time.
func TestCP01SpotWave(t *testing.T) { replaced(t, 6, 2, false) }

// TestCP01TargetRaisedByAnOperator: the machines that the Pods wait for boot already.
func TestCP01TargetRaisedByAnOperator(t *testing.T) {
	s := onASG(t, false)
	s.stub.SetDesired(train, 2)
	s.stub.Step() // they boot
	s.want(2)
	s.buysNothing(2)
	s.runs(2)
	s.oneMore(2)
}

const train = "train-t4"

// asgStory is a story on an Auto Scaling group whose machines move when they are told.
type asgStory struct {
	*testing.T
	bed  *testbed.Bed
	stub *awstest.Stub
}

func onASG(t *testing.T, hook bool) asgStory {
	stub := awstest.NewStub(t)
	stub.CreateGroup(awstest.Group{
		Name: train, Max: 9, Protected: true, TerminateHook: hook,
		Tags: map[string]string{
			"k8s.io/cluster-autoscaler/node-template/label/accelerator":    t4,
			"k8s.io/cluster-autoscaler/node-template/taint/nvidia.com/gpu": "present:NoSchedule",
		},
	})
	bed := start(t, testbed.Options{
		AWS:         &testbed.AWS{Endpoint: stub.URL(), Labels: map[string]map[string]string{train: {"accelerator": t4, "kwok": "true"}}},
		Config:      testbed.Config{NodeGroups: []string{"{id: t4, maxSize: 9, autoScalingGroup: train-t4}"}},
		WithoutKEDA: true,
		// What is idle stays: these stories are about growth.
		AutoscalerFlags: []string{"--scale-down-unneeded-time=1h", "--scale-down-unready-time=1h"},
	})
	return asgStory{t, bed, stub}
}

// want has n Pods that need a machine each.
func (s asgStory) want(n int) { require.NoError(s, s.bed.PretendTrainers(s.Context(), t4, n)) }

// runs lets all machines come and waits for n Pods to run.
func (s asgStory) runs(n int) {
	s.Helper()
	s.stub.Settle()
	_, err := s.bed.Watch.Until(s.Context(), 2*time.Minute, "the pods run", func(now testbed.State) bool { return now.Phase(corev1.PodRunning) == n })
	require.NoError(s, err)
}

// buys waits until n machines are desired.
func (s asgStory) buys(n int) {
	s.Helper()
	_, err := s.bed.Watch.Until(s.Context(), 3*time.Minute, "machines are requested", func(testbed.State) bool { return s.stub.Group(train).Desired == n })
	require.NoError(s, err)
}

// considered is longer than Cluster Autoscaler leaves a new Pod with a GPU alone.
const considered = 35 * time.Second

// buysNothing waits until Cluster Autoscaler has looked at every waiting Pod several
// times, and requires that n machines are still desired.
func (s asgStory) buysNothing(n int) {
	s.Helper()
	_, err := s.bed.Watch.Until(s.Context(), 3*time.Minute, "the pods have waited for some time", func(now testbed.State) bool {
		waiting := false
		for _, pod := range now.Pods {
			if pod.Spec.NodeName == "" {
				waiting = true
				if time.Since(pod.CreationTimestamp.Time) < considered {
					return false
				}
			}
		}
		return waiting
	})
	require.NoError(s, err)
	require.NoError(s, s.bed.Loop(s.Context(), 5))
	require.Equal(s, n, s.stub.Group(train).Desired, "machines desired for the same pods")
}

// oneMore has one more Pod than machines, which gets its machine.
func (s asgStory) oneMore(n int) {
	s.Helper()
	s.want(n + 1)
	s.buys(n + 1)
	s.runs(n + 1)
	require.NoError(s, s.bed.Loop(s.Context(), 5))
	require.Equal(s, n+1, s.stub.Group(train).Desired)
}

// replaced has AWS replace some of the machines of running Pods.
func replaced(t *testing.T, pods, ends int, hook bool) {
	s := onASG(t, hook)
	s.want(pods)
	s.buys(pods)
	s.runs(pods)
	require.NoError(t, s.bed.Loop(t.Context(), 3)) // the scale-up is over for Cluster Autoscaler

	ended := s.stub.Group(train).IDs(awstest.InService)[:ends]
	for _, id := range ended {
		s.stub.End(id, "a spot interruption")
	}
	s.stub.Step() // the replacements boot
	_, err := s.bed.Watch.Until(t.Context(), time.Minute, "the ended nodes take no pods", func(now testbed.State) bool {
		return !slices.ContainsFunc(now.Nodes, func(n *corev1.Node) bool { return slices.Contains(ended, n.Name) && !n.Spec.Unschedulable })
	})
	require.NoError(t, err)
	s.loses(ended)
	s.buysNothing(pods)
	s.runs(pods)
	s.oneMore(pods)
	for _, id := range ended {
		if hook {
			s.stub.CompleteHook(id)
		}
	}
}

// loses removes the Pods of Nodes, whose owner makes new ones.
func (s asgStory) loses(nodes []string) {
	s.Helper()
	all, err := s.bed.Cluster.Client.CoreV1().Pods("").List(s.Context(), metav1.ListOptions{LabelSelector: "app=pretend"})
	require.NoError(s, err)
	for _, pod := range all.Items {
		if slices.Contains(nodes, pod.Spec.NodeName) {
			require.NoError(s, s.bed.Cluster.Client.CoreV1().Pods(pod.Namespace).Delete(s.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
		}
	}
}
