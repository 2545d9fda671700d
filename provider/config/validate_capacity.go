package config

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// knownGPUs are the resources that Cluster Autoscaler takes for GPUs
// (cluster-autoscaler/utils/gpu/gpu.go).
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

// capacityKnown is whether the file alone says what a node has. On AWS the
// instance type adds to a capacity that leaves out cpu or memory.
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

// gpuLabel ties the GPU label to GPUs that Cluster Autoscaler knows. With the
// label alone it never takes a node for ready, and a few of those stop all
// scaling; with the GPU alone it takes a node for ready before its device plugin
// runs, and buys another.
func (g groupRules) gpuLabel() {
	label := g.c.GPULabel
	if !isLabelKey(label) || onEveryNode(label) {
		return // reported once, for the file
	}
	causes := []string{g.at("capacity")}
	model, labelled := g.Labels[label]
	switch {
	case labelled && model == "":
		g.add(key(g.at("labels"), label), "is empty; write the GPU's model, by which Cluster Autoscaler counts GPUs")
	case labelled && g.capacityKnown() && !g.hasGPU():
		g.addFrom(causes, key(g.at("labels"), label), "is the GPU label, but capacity has none of the GPUs that Cluster Autoscaler knows (%s), so it would never take a node for ready; remove the label, or write the GPU", knownGPUList())
	case !labelled && g.hasGPU():
		g.addFrom(causes, g.at("labels"), "lack the GPU label, so Cluster Autoscaler would take a node for ready before its GPU is there, and buy another; write %s: and the GPU's model", label)
	}
}

// amounts are the bounds of a resource. They keep sums over all nodes within
// 64 bits in the quotas' smallest unit.
type amounts struct {
	least, most string
	whole       bool
	help        string
}

func boundsOf(name corev1.ResourceName) (amounts, bool) {
	switch {
	case name == corev1.ResourceCPU:
		return amounts{"1m", "10k", false, "write cores from 1m to 10k"}, true
	case name == corev1.ResourceMemory:
		return amounts{"1Mi", "1Pi", true, "write bytes with a unit, such as 16Gi, from 1Mi to 1Pi"}, true
	case name == corev1.ResourcePods:
		return amounts{"1", "10k", true, "write a whole number from 1 to 10k"}, true
	case name == corev1.ResourceEphemeralStorage, hugePages.MatchString(string(name)):
		return amounts{"0", "1Pi", true, "write bytes with a unit, such as 100Gi, from 0 to 1Pi"}, true
	case isExtendedResource(string(name)):
		return amounts{"0", "100M", true, "write a whole number from 0 to 100M"}, true
	default:
		return amounts{}, false
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
			g.add(field, "has no %s; write what a node has, since the simulated cloud has no instance types to ask", strings.Join(missing, " and "))
		}
	}
	for _, name := range sortedKeys(g.Capacity) {
		at, amount := key(field, string(name)), g.Capacity[name]
		switch bounds, known := boundsOf(name); {
		case !known:
			g.add(at, "is not a resource of nodes; write cpu, memory, pods, ephemeral-storage, hugepages-<size>, or a device's full name such as nvidia.com/gpu")
		case !bounds.hold(amount):
			g.add(at, "%s is out of bounds; %s", &amount, bounds.help)
		}
	}
}

func (b amounts) hold(amount resource.Quantity) bool {
	return amount.Cmp(resource.MustParse(b.least)) >= 0 && amount.Cmp(resource.MustParse(b.most)) <= 0 && (!b.whole || isWhole(amount))
}

func isWhole(amount resource.Quantity) bool {
	rounded := amount.DeepCopy()
	return rounded.RoundUp(0)
}

// reserved is taken off capacity, and what is left has to be something.
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
