package config

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// knownGPUs are the resources that Cluster Autoscaler treats as GPUs
// (cluster-autoscaler/utils/gpu/gpu.go, GPUVendorResources).
var knownGPUs = []corev1.ResourceName{
	"nvidia.com/gpu",
	"habana.ai/gaudi",
	"gpu.intel.com/xe",
	"amd.com/gpu",
	"microsoft.com/directx",
}

func knownGPUList() string {
	names := make([]string, 0, len(knownGPUs))
	for _, name := range knownGPUs {
		names = append(names, string(name))
	}
	return strings.Join(names, ", ")
}

// capacityKnown reports whether the file sets the whole capacity. On AWS the instance
// type completes a capacity without cpu or memory.
func (g groupRules) capacityKnown() bool {
	_, cpu := g.Capacity[corev1.ResourceCPU]
	_, memory := g.Capacity[corev1.ResourceMemory]
	return cpu && memory || g.onSimulated() && len(g.Capacity) > 0
}

func (g groupRules) hasGPU() bool {
	return slices.ContainsFunc(knownGPUs, func(name corev1.ResourceName) bool {
		amount := g.Capacity[name]
		return amount.Sign() > 0
	})
}

// gpuLabel requires the GPU label and a GPU that Cluster Autoscaler knows together.
// With the label alone it never treats a node as ready, and a few unready nodes stop
// all scaling. With the GPU alone it treats a node as ready before its device plugin
// runs, and requests another node.
func (g groupRules) gpuLabel() {
	label := g.c.GPULabel
	if !isLabelKey(label) || isCommonLabel(label) {
		return // gpuLabelKey reports it
	}
	causes := []string{g.at("capacity")}
	model, labelled := g.Labels[label]
	switch {
	case labelled && model == "":
		g.add(key(g.at("labels"), label), "is empty; write the GPU's model, by which Cluster Autoscaler counts GPUs")
	case labelled && g.capacityKnown() && !g.hasGPU():
		g.addFrom(causes, key(g.at("labels"), label), "is the GPU label, but capacity has none of the GPUs that Cluster Autoscaler knows (%s), so it would never treat a node as ready; remove the label, or add the GPU to capacity", knownGPUList())
	case !labelled && g.hasGPU():
		g.addFrom(causes, g.at("labels"), "lack the GPU label, so Cluster Autoscaler would treat a node as ready before its GPU appears, and request another node; write %s: and the GPU's model", label)
	}
}

// bounds are the bounds of a resource, inclusive. They keep sums over all nodes within
// 64 bits in the smallest unit of quotas.
type bounds struct {
	least, most string
	whole       bool
	help        string
}

func boundsOf(name corev1.ResourceName) (bounds, bool) {
	switch {
	case name == corev1.ResourceCPU:
		return bounds{"1m", "10k", false, "write cores from 1m to 10k"}, true
	case name == corev1.ResourceMemory:
		return bounds{"1Mi", "1Pi", true, "write bytes with a unit, such as 16Gi, from 1Mi to 1Pi"}, true
	case name == corev1.ResourcePods:
		return bounds{"1", "10k", true, "write a whole number from 1 to 10k"}, true
	case name == corev1.ResourceEphemeralStorage, hugePages.MatchString(string(name)):
		return bounds{"0", "1Pi", true, "write bytes with a unit, such as 100Gi, from 0 to 1Pi"}, true
	case isExtendedResource(string(name)):
		return bounds{"0", "100M", true, "write a whole number from 0 to 100M"}, true
	default:
		return bounds{}, false
	}
}

func (g groupRules) capacity() {
	field := g.at("capacity")
	if g.onSimulated() {
		var missing []string
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			if _, given := g.Capacity[name]; !given {
				missing = append(missing, string(name))
			}
		}
		if len(missing) > 0 {
			g.add(field, "has no %s; write what a node has, since the simulated cloud has no instance types to read it from", strings.Join(missing, " and "))
		}
	}
	for _, name := range sortedKeys(g.Capacity) {
		at, amount := key(field, string(name)), g.Capacity[name]
		switch bounds, known := boundsOf(name); {
		case !known:
			g.add(at, "is not a resource of nodes; write cpu, memory, pods, ephemeral-storage, hugepages-<size>, or a device's full name such as nvidia.com/gpu")
		case !bounds.contain(amount):
			g.add(at, "%s is out of bounds; %s", &amount, bounds.help)
		}
	}
}

func (b bounds) contain(amount resource.Quantity) bool {
	return amount.Cmp(resource.MustParse(b.least)) >= 0 && amount.Cmp(resource.MustParse(b.most)) <= 0 && (!b.whole || isWhole(amount))
}

func isWhole(amount resource.Quantity) bool {
	rounded := amount.DeepCopy()
	return rounded.RoundUp(0)
}

// reserved is subtracted from capacity, and allocatable must not become negative.
func (g groupRules) reserved() {
	for _, name := range sortedKeys(g.Reserved) {
		at, amount := key(g.at("reserved"), string(name)), g.Reserved[name]
		capacity, given := g.Capacity[name]
		_, known := boundsOf(name)
		switch {
		case !known || isExtendedResource(string(name)):
			g.add(at, "cannot be reserved; write cpu, memory, pods, ephemeral-storage or hugepages-<size>")
		case amount.Sign() < 0:
			g.add(at, "%s is negative; write 0 or more", &amount)
		case given && amount.Cmp(capacity) > 0:
			g.addFrom([]string{key(g.at("capacity"), string(name))}, at, "%s is more than the capacity of %s; lower it", &amount, &capacity)
		case !given && g.capacityKnown():
			g.addFrom([]string{g.at("capacity")}, at, "is not in capacity; write it there too, or remove it")
		}
	}
}
