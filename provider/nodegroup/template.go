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

// defaultPods is the kubelet's own default of --max-pods. A template without
// pods fits none (cluster-autoscaler/simulator, NodeResourcesFit).
const defaultPods = 110

// errNoCapacity is why a group can have no template.
var errNoCapacity = errors.New("its capacity is not known: write nodeGroups[].capacity in the node group file")

// Template is the Node that Cluster Autoscaler is to imagine when it thinks
// about growing the group. The result must not be changed.
func (g *Group) Template() (*corev1.Node, error) {
	return g.template, g.templateErr
}

func (g *Group) buildTemplate() (*corev1.Node, error) {
	return g.NewNode("template-"+g.ID, g.templateID)
}

// NewNode makes a Node of the group, as its kubelet would register it once
// everything on it works.
func (g *Group) NewNode(name, providerID string) (*corev1.Node, error) {
	if g.Capacity.Cpu().IsZero() || g.Capacity.Memory().IsZero() {
		if g.Unknown != "" {
			return nil, fmt.Errorf("node group %s: its capacity is not known: %s", g.ID, g.Unknown)
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

// nodeLabels are what kubelets and cloud controllers set by themselves, then
// what the file says.
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
	// With several zones a template with one of them would promise a place to
	// Pods bound to it that the cloud may not keep.
	if len(g.Zones) == 1 {
		labels[corev1.LabelTopologyZone] = g.Zones[0]
	}
	maps.Copy(labels, g.Labels)
	return labels
}

// Extended says whether a resource is one that a device plugin brings.
func Extended(name corev1.ResourceName) bool {
	return strings.Contains(string(name), "/") && !strings.HasPrefix(string(name), corev1.ResourceDefaultNamespacePrefix)
}

// GPUResource is the extended resource that makes a node of the group a GPU
// node in the eyes of Cluster Autoscaler; empty for a group without.
func (g *Group) GPUResource() corev1.ResourceName { return GPUResource(g.Capacity) }

// GPUResource is the one of these resources that Cluster Autoscaler takes for GPUs;
// empty where there is none.
func GPUResource(resources corev1.ResourceList) corev1.ResourceName {
	for _, name := range gpuResources {
		if amount, ok := resources[name]; ok && !amount.IsZero() {
			return name
		}
	}
	return ""
}

// gpuResources are the resources Cluster Autoscaler takes for GPUs
// (cluster-autoscaler/utils/gpu/gpu.go, GPUVendorResources).
var gpuResources = []corev1.ResourceName{
	"nvidia.com/gpu", "habana.ai/gaudi", "gpu.intel.com/xe", "amd.com/gpu", "microsoft.com/directx",
}
