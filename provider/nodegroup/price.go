package nodegroup

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"gpu-node-provider/provider/config"
)

// Rough prices in US dollars per hour, for groups without a real one. They are above the
// on-demand prices of 2026-01-21 for every accelerated type in every region (the dearest
// accelerator is an eighth of p6-b300.48xlarge, 17.80), so that a limit in dollars errs on
// the safe side.
const (
	roughVCPU = 0.10
	roughGiB  = 0.015
	roughGPU  = 20.0
	gib       = 1 << 30
)

// HourlyPrice returns the price of one node in US dollars per hour, of the dearest type
// that the cloud may launch. known is false for an estimate from the node's resources.
func (g *Group) HourlyPrice() (dollars float64, known bool) { return g.price, g.priced }

// PriceSource tells where HourlyPrice is from, for a person.
func (g *Group) PriceSource() string {
	switch {
	case !g.priced:
		return "a rough estimate, since its real price is not known"
	case g.NodeGroup.PriceSource != "":
		return g.NodeGroup.PriceSource
	default:
		return "hourlyPrice in the node group file"
	}
}

func (g *Group) hourlyPrice() (float64, bool) {
	if g.NodeGroup.HourlyPrice != nil {
		return *g.NodeGroup.HourlyPrice, true
	}
	if g.MostCapacity != nil {
		return roughPrice(g.MostCapacity), false
	}
	return roughPrice(g.Capacity), false
}

// Unpriced returns, by quota on usd-per-hour, the ids of its groups whose real price is not
// known: with those the quota limits something else than money.
func (c *Catalogue) Unpriced() map[string][]string {
	without := map[string][]string{}
	for _, q := range c.quotas {
		for _, id := range q.Groups {
			if q.Resource == config.ResourceUSDPerHour && !c.byID[id].priced {
				without[q.Name] = append(without[q.Name], id)
			}
		}
	}
	return without
}

// PriceOf returns the price of one machine of a type in US dollars per hour.
func (g *Group) PriceOf(t config.MachineType) float64 {
	if t.HourlyPrice != nil {
		return *t.HourlyPrice
	}
	return roughPrice(t.Capacity)
}

func roughPrice(amounts corev1.ResourceList) float64 {
	price := roughVCPU*amounts.Cpu().AsApproximateFloat64() + roughGiB*amounts.Memory().AsApproximateFloat64()/gib
	for name, amount := range amounts {
		if accelerator(name) {
			price += roughGPU * amount.AsApproximateFloat64()
		}
	}
	return price
}

// accelerators are the resources of devices that a node costs more for, besides those
// that Cluster Autoscaler counts as GPUs: the names of the Neuron device plugin.
var accelerators = []corev1.ResourceName{"aws.amazon.com/neuron", "aws.amazon.com/neurondevice", "aws.amazon.com/neuroncore"}

// migPrefix begins the resources of parts of a GPU (nvidia.com/mig-1g.10gb).
const migPrefix = "nvidia.com/mig-"

// accelerator reports whether a resource counts accelerators. Other extended resources
// count network interfaces, or MiB of GPU memory by the thousand.
func accelerator(name corev1.ResourceName) bool {
	return slices.Contains(gpuResources, name) || slices.Contains(accelerators, name) || strings.HasPrefix(string(name), migPrefix)
}

// PodPrice returns the Pod's cost in US dollars per hour: its share of a node of the
// cheapest group that it fits. A Pod that fits no group gets an estimate, not an error,
// since Cluster Autoscaler drops every option for which a Pod has no price and then
// does not scale up at all (cluster-autoscaler/expander/price/price.go).
func (c *Catalogue) PodPrice(pod *corev1.Pod) float64 {
	shape := shapeOf(pod)
	cheapest, found := 0.0, false
	for _, g := range c.groups {
		if !g.Fits(shape) {
			continue
		}
		price := g.price * g.share(shape.requests)
		if !found || price < cheapest {
			cheapest, found = price, true
		}
	}
	if !found {
		return roughPrice(shape.requests)
	}
	return cheapest
}

// share returns the largest fraction of any resource of the node that is requested. Where
// GPUs are requested, only GPUs count.
func (g *Group) share(requests corev1.ResourceList) float64 {
	largest, gpus := 0.0, 0.0
	for name, want := range requests {
		have := g.template.Status.Allocatable[name]
		if have.IsZero() {
			continue
		}
		part := want.AsApproximateFloat64() / have.AsApproximateFloat64()
		if Extended(name) {
			gpus = max(gpus, part)
		}
		largest = max(largest, part)
	}
	if gpus > 0 {
		return gpus
	}
	return largest
}
