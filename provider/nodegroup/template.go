package nodegroup

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// defaultPods is the kubelet's default of --max-pods. No Pod fits a template without
// pods (cluster-autoscaler/simulator, NodeResourcesFit).
const defaultPods = 110

// errNoCapacity is the reason why a group has no template.
var errNoCapacity = errors.New("unknown capacity: set nodeGroups[].capacity in the node group file")

// Template returns the Node that Cluster Autoscaler simulates for a new node of the
// group, or an error when its capacity is unknown. Callers must not change it.
func (g *Group) Template() (*corev1.Node, error) {
	return g.template, g.templateErr
}

func (g *Group) buildTemplate() (*corev1.Node, error) {
	return g.NewNode("template-"+g.ID, g.templateID)
}

// NewNode returns a Node of the group as its kubelet registers it, Ready and with all
// devices.
func (g *Group) NewNode(name, providerID string) (*corev1.Node, error) {
	if g.Capacity.Cpu().IsZero() || g.Capacity.Memory().IsZero() {
		if g.Unknown != "" {
			return nil, fmt.Errorf("node group %s: unknown capacity: %s", g.ID, g.Unknown)
		}
		return nil, fmt.Errorf("node group %s: %w", g.ID, errNoCapacity)
	}
	capacity := g.Capacity.DeepCopy()
	if _, ok := capacity[corev1.ResourcePods]; !ok {
		capacity[corev1.ResourcePods] = *resource.NewQuantity(defaultPods, resource.DecimalSI)
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: g.nodeLabels(name)},
		Spec:       corev1.NodeSpec{ProviderID: providerID, Taints: append([]corev1.Taint(nil), g.Taints...)},
		Status: corev1.NodeStatus{
			Capacity:    capacity,
			Allocatable: allocatable(capacity, g.Reserved),
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}},
		},
	}, nil
}

func allocatable(capacity, reserved corev1.ResourceList) corev1.ResourceList {
	left := capacity.DeepCopy()
	for name, amount := range reserved {
		if total, ok := left[name]; ok {
			total.Sub(amount)
			left[name] = total
		}
	}
	return left
}

// nodeLabels returns the labels that kubelets and cloud controller managers set, with
// those of the file over them.
func (g *Group) nodeLabels(name string) map[string]string {
	labels := map[string]string{
		corev1.LabelHostname:   name,
		corev1.LabelOSStable:   g.OS,
		corev1.LabelArchStable: g.Arch,
		Label:                  g.ID,
	}
	if g.InstanceType != "" {
		labels[corev1.LabelInstanceTypeStable] = g.InstanceType
	}
	if g.Region != "" {
		labels[corev1.LabelTopologyRegion] = g.Region
	}
	// A template with one of several zones would fit Pods bound to that zone, while the
	// cloud may launch the node in another.
	if len(g.Zones) == 1 {
		labels[corev1.LabelTopologyZone] = g.Zones[0]
		for _, name := range g.ZoneLabels {
			labels[name] = g.Zones[0]
		}
	}
	maps.Copy(labels, g.Labels)
	return labels
}

// Extended reports whether a resource is an extended resource, as device plugins offer.
func Extended(name corev1.ResourceName) bool {
	return strings.Contains(string(name), "/") && !strings.HasPrefix(string(name), corev1.ResourceDefaultNamespacePrefix)
}

// GPUResource returns the resource of a node that Cluster Autoscaler counts as GPUs,
// or "" for a group without GPUs.
func (g *Group) GPUResource() corev1.ResourceName { return GPUResource(g.Capacity) }

// GPUResource returns the first of the resources that Cluster Autoscaler counts as
// GPUs, or "".
func GPUResource(resources corev1.ResourceList) corev1.ResourceName {
	for _, name := range gpuResources {
		if amount, ok := resources[name]; ok && !amount.IsZero() {
			return name
		}
	}
	return ""
}

// gpuResources are the resources that Cluster Autoscaler counts as GPUs, in its order
// (cluster-autoscaler/utils/gpu/gpu.go, GPUVendorResources).
var gpuResources = []corev1.ResourceName{
	"nvidia.com/gpu", "habana.ai/gaudi", "gpu.intel.com/xe", "amd.com/gpu", "microsoft.com/directx",
}
