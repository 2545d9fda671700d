package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
)

const (
	toBeDeleted       = "ToBeDeletedByClusterAutoscaler"
	deletionCandidate = "DeletionCandidateOfClusterAutoscaler"
)

func hasTaint(node *corev1.Node, key string) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}

// addTaint leaves a taint that is there as it is, with its old time.
func addTaint(ctx context.Context, kube kubernetes.Interface, name, key string, effect corev1.TaintEffect, cordon bool) error {
	return changeNode(ctx, kube, name, func(node *corev1.Node) bool {
		if hasTaint(node, key) {
			return false
		}
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{
			Key: key, Value: strconv.FormatInt(time.Now().Unix(), 10), Effect: effect,
		})
		node.Spec.Unschedulable = node.Spec.Unschedulable || cordon
		return true
	})
}

func removeTaint(ctx context.Context, kube kubernetes.Interface, name, key string, uncordon bool) error {
	return changeNode(ctx, kube, name, func(node *corev1.Node) bool {
		if !hasTaint(node, key) {
			return false
		}
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
		node.Spec.Unschedulable = node.Spec.Unschedulable && !uncordon
		return true
	})
}

func changeNode(ctx context.Context, kube kubernetes.Interface, name string, change func(*corev1.Node) bool) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		node, err := kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("node %s: %w", name, err)
		}
		if !change(node) {
			return nil
		}
		_, err = kube.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{})
		return err
	})
}

// beingDeleted says whether a node has had its taint for less than five minutes.
func beingDeleted(node *corev1.Node, now time.Time) bool {
	for _, t := range node.Spec.Taints {
		if t.Key != toBeDeleted {
			continue
		}
		since, err := strconv.ParseInt(t.Value, 10, 64)
		return err == nil && now.Sub(time.Unix(since, 0)) < 5*time.Minute
	}
	return false
}

// removeStaleTaints frees the nodes that an earlier process was deleting. It is
// tried once in a process, even when the server does not answer.
func (a *autoscaler) removeStaleTaints(ctx context.Context) {
	if a.cleanedUp {
		return
	}
	a.cleanedUp = true
	nodes, err := a.listNodes(ctx)
	if err != nil {
		a.log.Warn("stale taints stay: nodes not listed", "error", err)
		return
	}
	for _, node := range a.managed(ctx, nodes) {
		if !hasTaint(node, toBeDeleted) {
			continue
		}
		err := removeTaint(ctx, a.kube, node.Name, toBeDeleted, a.cordon)
		a.log.Info("taint of an earlier process removed", "node", node.Name, "error", err)
		if err != nil {
			a.events.on(node, corev1.EventTypeWarning, "ClusterAutoscalerCleanup", "failed to clean toBeDeletedTaint: %v", err)
		} else {
			a.events.on(node, corev1.EventTypeNormal, "ClusterAutoscalerCleanup", "removed ToBeDeletedTaint taint from node %v", node.Name)
		}
	}
}

// managed picks the nodes that belong to a group.
func (a *autoscaler) managed(ctx context.Context, nodes []*corev1.Node) []*corev1.Node {
	var managed []*corev1.Node
	for _, node := range nodes {
		if g, err := a.cloud.groupForNode(ctx, node); err == nil && g != nil {
			managed = append(managed, node)
		}
	}
	return managed
}

const softTaintsALoop = 10

// updateSoftTaints marks the unneeded nodes, and unmarks the others first.
func (a *autoscaler) updateSoftTaints(ctx context.Context, nodes []*corev1.Node) {
	left := softTaintsALoop
	change := func(node *corev1.Node, do func() error) {
		if left == 0 {
			return
		}
		left--
		if err := do(); err != nil {
			a.log.Warn("soft taint", "node", node.Name, "error", err)
		}
	}
	managed := a.managed(ctx, nodes)
	for _, node := range managed {
		if a.planner.unneeded[node.Name] == nil && !hasTaint(node, toBeDeleted) && hasTaint(node, deletionCandidate) {
			change(node, func() error { return removeTaint(ctx, a.kube, node.Name, deletionCandidate, false) })
		}
	}
	for _, node := range managed {
		if a.planner.unneeded[node.Name] != nil && !hasTaint(node, toBeDeleted) && !hasTaint(node, deletionCandidate) {
			change(node, func() error {
				return addTaint(ctx, a.kube, node.Name, deletionCandidate, corev1.TaintEffectPreferNoSchedule, false)
			})
		}
	}
}
