package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"gpu-node-provider/proto"
)

// gpuResources are what makes a node one with GPUs besides the label.
var gpuResources = []corev1.ResourceName{
	"nvidia.com/gpu", "habana.ai/gaudi", "gpu.intel.com/xe", "amd.com/gpu", "microsoft.com/directx",
}

const upcomingAnnotation = "cluster-autoscaler.k8s.io/upcoming-node"

// allocatableGPU names the first resource of GPUs that a node has some of.
func allocatableGPU(node *corev1.Node) (corev1.ResourceName, bool) {
	for _, name := range gpuResources {
		if q, ok := node.Status.Allocatable[name]; ok && !q.IsZero() {
			return name, true
		}
	}
	return "", false
}

// gpuOf is the resource of GPUs of a node, empty for a node without.
func gpuOf(node *corev1.Node, label string) corev1.ResourceName {
	if name, ok := allocatableGPU(node); ok {
		return name
	}
	if _, ok := node.Labels[label]; ok {
		return gpuResources[0]
	}
	return ""
}

func wantsGPU(pod *corev1.Pod) bool {
	wanted := requests(pod)
	return slices.ContainsFunc(gpuResources, func(name corev1.ResourceName) bool { _, ok := wanted[name]; return ok })
}

// nodeReady says whether a node is ready and since when it is what it is.
func nodeReady(node *corev1.Node) (bool, time.Time) {
	ready, found, since := true, false, time.Time{}
	for _, c := range node.Status.Conditions {
		switch c.Type {
		case corev1.NodeReady:
			found = true
			ready = ready && c.Status == corev1.ConditionTrue
		case corev1.NodeDiskPressure, corev1.NodeNetworkUnavailable:
			ready = ready && c.Status != corev1.ConditionTrue
		default:
			continue
		}
		if since.Before(c.LastTransitionTime.Time) {
			since = c.LastTransitionTime.Time
		}
	}
	for _, t := range node.Spec.Taints {
		switch t.Key {
		case corev1.TaintNodeNotReady, corev1.TaintNodeDiskPressure, corev1.TaintNodeNetworkUnavailable:
			ready = false
			if t.TimeAdded != nil && since.Before(t.TimeAdded.Time) {
				since = t.TimeAdded.Time
			}
		}
	}
	return ready && found, since
}

// splitReady finds the ready nodes. One that should have a GPU and shows none yet
// is made unready, in all as well.
func splitReady(ctx context.Context, c *cloud, nodes []*corev1.Node) (all, ready []*corev1.Node) {
	for _, node := range nodes {
		if ok, _ := nodeReady(node); ok {
			_, labelled := node.Labels[c.label(ctx)]
			if _, has := allocatableGPU(node); labelled && !has {
				c.log.Debug("node shows no GPU yet: taken for unready", "node", node.Name)
				node = unreadyCopy(node)
			} else {
				ready = append(ready, node)
			}
		}
		all = append(all, node)
	}
	return all, ready
}

func unreadyCopy(node *corev1.Node) *corev1.Node {
	node = node.DeepCopy()
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == corev1.NodeReady {
			node.Status.Conditions[i].Status = corev1.ConditionFalse
			node.Status.Conditions[i].Reason = "cluster-autoscaler.kubernetes.io/resource-not-ready"
		}
	}
	return node
}

// templates are the nodes that a group would get, by group.
type templates struct {
	current map[string]*corev1.Node // of the last recompute
	seen    map[string]*corev1.Node // copied from real nodes once, kept until their group goes
}

// touch makes the calls by which Dynamic Resource Allocation looks at ready nodes.
func (t *templates) touch(ctx context.Context, c *cloud, ready []*corev1.Node) {
	for _, node := range ready {
		g, err := c.groupForNode(ctx, node)
		if err != nil || g == nil {
			continue
		}
		if t.current[g.id] == nil {
			if _, err := g.template(ctx); err != nil {
				c.log.Warn("no template", "group", g.id, "error", err)
			}
		}
	}
}

// recompute prefers a real, ready, settled node over one of earlier loops, that
// over the server's template, and that over a node which is not fit to be copied.
func (t *templates) recompute(ctx context.Context, c *cloud, nodes []*corev1.Node, now time.Time) {
	t.current = map[string]*corev1.Node{}
	var bad []*corev1.Node
	for _, node := range nodes {
		if !worthCopying(node, now) {
			bad = append(bad, node)
		} else if id := t.copyOf(ctx, c, node); id != "" {
			t.seen[id] = t.current[id]
		}
	}
	exists := map[string]bool{}
	for _, g := range c.nodeGroups(ctx) {
		exists[g.id] = true
		if t.current[g.id] != nil {
			continue
		}
		if seen := t.seen[g.id]; seen != nil {
			t.current[g.id] = seen
			continue
		}
		node, err := g.template(ctx)
		if err != nil {
			c.log.Warn("no template", "group", g.id, "error", err)
			continue
		}
		t.current[g.id] = asTemplate(node, g.id)
	}
	for id := range t.seen {
		if !exists[id] {
			delete(t.seen, id)
		}
	}
	for _, node := range bad {
		t.copyOf(ctx, c, node)
	}
}

// copyOf makes a node the template of its group, if that has none, and names the group.
func (t *templates) copyOf(ctx context.Context, c *cloud, node *corev1.Node) string {
	g, err := c.groupForNode(ctx, node)
	if err != nil || g == nil || t.current[g.id] != nil {
		return ""
	}
	t.current[g.id] = asTemplate(node, g.id)
	return g.id
}

func worthCopying(node *corev1.Node, now time.Time) bool {
	ready, since := nodeReady(node)
	return ready && since.Add(time.Minute).Before(now) && !node.Spec.Unschedulable && !hasTaint(node, toBeDeleted)
}

// passingTaints are on a node for a while only, so a new one is not expected to have them.
var passingTaints = map[string]bool{
	toBeDeleted: true, deletionCandidate: true,
	corev1.TaintNodeNotReady: true, corev1.TaintNodeUnreachable: true, corev1.TaintNodeUnschedulable: true,
	corev1.TaintNodeMemoryPressure: true, corev1.TaintNodeDiskPressure: true, corev1.TaintNodePIDPressure: true,
	corev1.TaintNodeNetworkUnavailable: true, "node.cloudprovider.kubernetes.io/uninitialized": true,
	"node.cloudprovider.kubernetes.io/shutdown": true,
}

func asTemplate(node *corev1.Node, id string) *corev1.Node {
	node = renamed(node, fmt.Sprintf("template-node-for-%s-%d", id, rand.Int64()))
	taints := node.Spec.Taints
	node.Spec.Taints = nil
	for _, t := range taints {
		if !passingTaints[t.Key] && !strings.HasPrefix(t.Key, "ignore-taint.cluster-autoscaler.kubernetes.io/") &&
			!strings.HasPrefix(t.Key, "startup-taint.cluster-autoscaler.kubernetes.io/") &&
			!strings.HasPrefix(t.Key, "status-taint.cluster-autoscaler.kubernetes.io/") {
			node.Spec.Taints = append(node.Spec.Taints, t)
		}
	}
	node.Labels["cluster-autoscaler.kubernetes.io/template-node"] = "true"
	return node
}

func renamed(node *corev1.Node, name string) *corev1.Node {
	node = node.DeepCopy()
	node.Name = name
	labels := map[string]string{}
	maps.Copy(labels, node.Labels)
	labels[corev1.LabelHostname] = name
	node.Labels = labels
	return node
}

// upcomingNode stands for a node that was asked for and is not there yet.
func upcomingNode(template *corev1.Node, i int) *corev1.Node {
	node := renamed(template, fmt.Sprintf("%s-upcoming-%d", template.Name, i))
	annotations := map[string]string{upcomingAnnotation: "true"}
	maps.Copy(annotations, node.Annotations)
	node.Annotations = annotations
	return node
}

// walkForQuotas makes the calls by which nodes are counted for limits. Their
// first error stops the scale-up, or the choice of nodes to remove.
func walkForQuotas(ctx context.Context, c *cloud, nodes []*corev1.Node) error {
	for _, node := range nodes {
		g, err := c.groupForNode(ctx, node)
		if err != nil {
			return fmt.Errorf("counting node %s: %w", node.Name, err)
		}
		_, labelled := node.Labels[c.label(ctx)]
		if _, has := allocatableGPU(node); !labelled || has {
			continue
		}
		if g == nil {
			return fmt.Errorf("counting node %s: it has the GPU label, no GPU and no group", node.Name)
		}
		if _, err := g.template(ctx); err != nil {
			return fmt.Errorf("counting node %s: %w", node.Name, err)
		}
	}
	return nil
}

// errorOf is an instance's error, for logs and events.
func errorOf(i *proto.Instance) (code, message string) {
	e := i.GetStatus().GetErrorInfo()
	return e.GetErrorCode(), e.GetErrorMessage()
}
