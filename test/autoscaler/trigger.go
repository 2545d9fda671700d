package main

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// watchPending says on pending that a pod has lately become unschedulable.
func watchPending(ctx context.Context, kube kubernetes.Interface, pending chan<- struct{}) {
	const again = time.Second // after the API server ended the watch or refused it
	for ctx.Err() == nil {
		w, err := kube.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=,status.phase!=Succeeded,status.phase!=Failed"})
		if err == nil {
			func() {
				defer w.Stop()
				for {
					select {
					case <-ctx.Done():
						return
					case event, open := <-w.ResultChan():
						if !open {
							return
						}
						if pod, ok := event.Object.(*corev1.Pod); ok && lately(pod) {
							select {
							case pending <- struct{}{}:
							default:
							}
						}
					}
				}
			}()
		}
		pause(ctx, again)
	}
}

// lately: becoming unschedulable triggers a loop for ten seconds.
func lately(pod *corev1.Pod) bool {
	c := unschedulable(pod)
	return c != nil && pod.Spec.NodeName == "" && !c.LastTransitionTime.Add(10*time.Second).Before(time.Now())
}

// unschedulable is the condition by which the scheduler says so.
func unschedulable(pod *corev1.Pod) *corev1.PodCondition {
	for i, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}
