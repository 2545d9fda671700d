package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	evictAgain    = 10 * time.Second
	goneAgain     = 5 * time.Second
	evictHeadroom = 30 * time.Second
	evictDaemons  = "cluster-autoscaler.kubernetes.io/enable-ds-eviction"
)

// empty evicts the pods of a node and waits until they are gone. DaemonSet pods
// are evicted too, unless told otherwise, on an empty node only when told so;
// neither their refusal nor their staying holds anything up but for the time of
// the tries.
func (a *autoscaler) empty(ctx context.Context, node *corev1.Node, pods []*corev1.Pod, drain bool) error {
	var full, daemons []*corev1.Pod
	for _, pod := range pods {
		switch {
		case isMirror(pod):
		case isDaemonSet(pod):
			if told := pod.Annotations[evictDaemons]; told == "true" || drain && told != "false" {
				daemons = append(daemons, pod)
			}
		case drain:
			full = append(full, pod)
		}
	}
	if err := a.evictAll(ctx, node, full, daemons); err != nil {
		return err
	}
	return a.waitGone(ctx, node, full)
}

// evictAll evicts all pods at once. One that is refused does not hold up the others.
func (a *autoscaler) evictAll(ctx context.Context, node *corev1.Node, full, daemons []*corev1.Pod) error {
	until := time.Now().Add(a.maxPodEviction)
	errs := make([]error, len(full))
	var evicting sync.WaitGroup
	for i, pod := range full {
		evicting.Go(func() { errs[i] = a.evict(ctx, pod, until) })
	}
	for _, pod := range daemons {
		evicting.Go(func() { _ = a.evict(ctx, pod, until) })
	}
	evicting.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("Failed to drain node %s, due to following errors: %w", node.Name, err) //nolint:staticcheck // the text of the real one's event
	}
	return nil
}

// evict takes every error but NotFound for a reason to try again later.
func (a *autoscaler) evict(ctx context.Context, pod *corev1.Pod, until time.Time) error {
	a.events.on(pod, corev1.EventTypeNormal, "ScaleDown", "deleting pod for node scale down")
	grace := int64(min(specGrace(pod), time.Duration(a.maxGraceful)*time.Second) / time.Second)
	for {
		a.log.Info("evicting", "pod", pod.Namespace+"/"+pod.Name, "grace_s", grace)
		err := a.kube.PolicyV1().Evictions(pod.Namespace).Evict(ctx, &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
			DeleteOptions: &metav1.DeleteOptions{GracePeriodSeconds: &grace},
		})
		if err == nil || apierrors.IsNotFound(err) {
			return nil
		}
		a.log.Warn("eviction refused", "pod", pod.Namespace+"/"+pod.Name, "error", err)
		if !pause(ctx, evictAgain) {
			return ctx.Err()
		}
		if !time.Now().Before(until) {
			a.events.on(pod, corev1.EventTypeWarning, "ScaleDownFailed", "failed to delete pod for ScaleDown")
			return fmt.Errorf("failed to evict pod %s/%s within allowed timeout (last error: %w)", pod.Namespace, pod.Name, err)
		}
	}
}

func (a *autoscaler) waitGone(ctx context.Context, node *corev1.Node, pods []*corev1.Pod) error {
	until := time.Now().Add(time.Duration(a.maxGraceful)*time.Second + evictHeadroom)
	for time.Now().Before(until) {
		if a.allGone(ctx, node, pods) {
			return nil
		}
		if !pause(ctx, goneAgain) {
			return ctx.Err()
		}
	}
	return fmt.Errorf("Failed to drain node %s: pods remaining after timeout", node.Name) //nolint:staticcheck // the text of the real one's event
}

func (a *autoscaler) allGone(ctx context.Context, node *corev1.Node, pods []*corev1.Pod) bool {
	for _, pod := range pods {
		now, err := a.kube.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err == nil && now.Spec.NodeName == node.Name || err != nil && !apierrors.IsNotFound(err) {
			return false
		}
	}
	return true
}
