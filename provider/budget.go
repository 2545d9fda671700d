package provider

import (
	"math"

	corev1 "k8s.io/api/core/v1"

	"gpu-node-provider/provider/nodegroup"
	"gpu-node-provider/provider/quota"
)

// The resources of quotas that no Kubernetes resource stands for. The words are
// those of the node group file.
const (
	vcpu       = "vcpu"
	nodes      = "nodes"
	usdPerHour = "usd-per-hour"
)

// Scales of the ledger's units: thousandths of a resource, millionths of a dollar.
const (
	resourceScale = 1_000
	priceScale    = 1_000_000
)

// budget is what the ledger has to know of groups and quotas.
func budget(c *nodegroup.Catalogue) ([]quota.Group, []quota.Quota) {
	groups := make([]quota.Group, 0, len(c.All()))
	for _, g := range c.All() {
		groups = append(groups, groupBudget(g))
	}
	var quotas []quota.Quota
	for _, q := range c.Quotas() {
		quotas = append(quotas, quotaBudget(q))
	}
	return groups, quotas
}

func groupBudget(g *nodegroup.Group) quota.Group {
	b := quota.Group{ID: g.ID, Max: g.MaxSize, Units: units(g), Each: make(map[string]map[string]int64, len(g.Each))}
	for name, t := range g.Each {
		b.Each[name] = unitsOf(t.Capacity, g.PriceOf(t))
	}
	b.Sources = map[string]string{usdPerHour: g.PriceSource()}
	if g.Retired {
		b.Max = 0
	}
	if g.Surge != nil {
		b.Surge = &quota.Surge{Max: int64(g.Surge.Max), Window: g.Surge.Window.Duration}
	}
	return b
}

// units is what one node of the group uses of each resource, whichever of its types
// the cloud launches.
func units(g *nodegroup.Group) map[string]int64 {
	price, _ := g.HourlyPrice()
	most := g.Capacity
	if g.MostCapacity != nil {
		most = g.MostCapacity
	}
	return unitsOf(most, price)
}

func unitsOf(most corev1.ResourceList, price float64) map[string]int64 {
	used := map[string]int64{
		nodes:      resourceScale,
		vcpu:       most.Cpu().MilliValue(),
		usdPerHour: scaled(price, priceScale),
	}
	for name, amount := range most {
		if nodegroup.Extended(name) {
			used[string(name)] = amount.MilliValue()
		}
	}
	return used
}

func quotaBudget(q nodegroup.Quota) quota.Quota {
	scale := int64(resourceScale)
	if q.Resource == usdPerHour {
		scale = priceScale
	}
	b := quota.Quota{Name: q.Name, Resource: q.Resource, Source: "node group file", Scale: scale, Groups: q.Groups}
	if q.Limit != nil {
		b.Limit = scaled(q.Limit.AsApproximateFloat64(), scale)
	} else {
		b.Measured, b.Source = true, q.ServiceQuota()+" of the cloud, not read yet"
	}
	if q.Surge != nil {
		b.Surge = &quota.Surge{Max: scaled(q.Surge.Max.AsApproximateFloat64(), scale), Window: q.Surge.Window.Duration}
	}
	return b
}

// scaled rounds to the nearest unit: 0.3 has no exact float, and a limit must
// not lose a unit to that.
func scaled(amount float64, scale int64) int64 {
	return int64(math.Round(amount * float64(scale)))
}
