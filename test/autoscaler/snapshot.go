package main

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// nodeInfo is a node with the pods on it, real ones or simulated.
type nodeInfo struct {
	node *corev1.Node
	pods []*corev1.Pod
	used map[corev1.ResourceName]int64
}

// snapshot is the cluster of one loop.
type snapshot struct {
	infos  []*nodeInfo
	byName map[string]*nodeInfo
}

func newSnapshot(nodes []*corev1.Node, pods []*corev1.Pod) *snapshot {
	s := &snapshot{byName: map[string]*nodeInfo{}}
	for _, node := range nodes {
		s.add(node)
	}
	for _, pod := range pods {
		if info := s.byName[pod.Spec.NodeName]; info != nil {
			info.put(pod)
		}
	}
	return s
}

func (s *snapshot) add(node *corev1.Node) *nodeInfo {
	info := &nodeInfo{node: node, used: map[corev1.ResourceName]int64{}}
	s.infos = append(s.infos, info)
	s.byName[node.Name] = info
	return info
}

func (s *snapshot) remove(name string) {
	delete(s.byName, name)
	for i, info := range s.infos {
		if info.node.Name == name {
			s.infos = append(s.infos[:i:i], s.infos[i+1:]...)
			return
		}
	}
}

func (s *snapshot) nodes() []*corev1.Node {
	nodes := make([]*corev1.Node, 0, len(s.infos))
	for _, info := range s.infos {
		nodes = append(nodes, info.node)
	}
	return nodes
}

// copied is a snapshot to play with.
func (s *snapshot) copied() *snapshot {
	c := &snapshot{byName: map[string]*nodeInfo{}}
	for _, info := range s.infos {
		fresh := c.add(info.node)
		for _, pod := range info.pods {
			fresh.put(pod)
		}
	}
	return c
}

// place puts a pod on the first node that takes it.
func (s *snapshot) place(pod *corev1.Pod, on func(*nodeInfo) bool) bool {
	for _, info := range s.infos {
		if on(info) && info.misfit(pod) == "" {
			info.put(pod)
			return true
		}
	}
	return false
}

func anywhere(*nodeInfo) bool { return true }

func (n *nodeInfo) put(pod *corev1.Pod) {
	n.pods = append(n.pods, pod)
	for name, amount := range requests(pod) {
		n.used[name] += amount
	}
}

func (n *nodeInfo) take(pod *corev1.Pod) {
	for i, other := range n.pods {
		if other == pod {
			n.pods = append(n.pods[:i:i], n.pods[i+1:]...)
			for name, amount := range requests(pod) {
				n.used[name] -= amount
			}
			return
		}
	}
}

func requests(pod *corev1.Pod) map[corev1.ResourceName]int64 {
	sums := map[corev1.ResourceName]int64{}
	for name, q := range resource.PodRequests(pod, resource.PodResourcesOptions{}) {
		sums[name] = amount(q, name)
	}
	return sums
}

// misfit is why a node cannot take a pod, in the scheduler's words and order;
// empty when it can.
func (n *nodeInfo) misfit(pod *corev1.Pod) string {
	noSchedule := func(t *corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
	}
	taints := n.node.Spec.Taints
	if n.node.Spec.Unschedulable {
		cordon := []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}}
		if _, bad := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), cordon, pod.Spec.Tolerations, noSchedule, false); bad {
			return "node(s) were unschedulable"
		}
	}
	if t, bad := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), taints, pod.Spec.Tolerations, noSchedule, false); bad {
		return fmt.Sprintf("node(s) had untolerated taint {%s: %s}", t.Key, t.Value)
	}
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(n.node); err != nil || !ok {
		return "node(s) didn't match Pod's node affinity/selector"
	}
	return n.shortage(pod)
}

func (n *nodeInfo) shortage(pod *corev1.Pod) string {
	if limit, ok := n.node.Status.Allocatable[corev1.ResourcePods]; ok && int64(len(n.pods)) >= limit.Value() {
		return "Too many pods"
	}
	// In a fixed order where there is more than one, so that events stay alike.
	reason := ""
	for name, wanted := range requests(pod) {
		if wanted > 0 && n.used[name]+wanted > amount(n.node.Status.Allocatable[name], name) {
			if missing := "Insufficient " + string(name); reason == "" || missing < reason {
				reason = missing
			}
		}
	}
	return reason
}

func amount(q apiresource.Quantity, name corev1.ResourceName) int64 {
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}
