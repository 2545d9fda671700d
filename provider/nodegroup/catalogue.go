// Package nodegroup is the immutable catalogue of configured node groups: the
// template Node of each, what it answers for options and prices, what one node
// of it uses of each quota, and which Pods fit.
//
// It does not know sizes, the cloud or gRPC: everything here follows from the
// node group file alone, and is computed once when the file is read.
package nodegroup

import (
	"path"

	corev1 "k8s.io/api/core/v1"

	"gpu-node-provider/cloud"
	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/quota"
)

// Label carries the node group's id on each of its nodes. It is how a Node
// whose instance is gone keeps its group after a restart.
const Label = "gpu-node-provider.io/node-group"

// Catalogue is all node groups of one node group file.
type Catalogue struct {
	gpuLabel string
	groups   []*Group
	byID     map[string]*Group
	quotas   []quota.Quota
}

// Group is one configured node group.
type Group struct {
	config.NodeGroup

	gpuLabel    string
	templateID  string
	template    *corev1.Node
	templateErr error
	price       float64 // US dollars an hour
	priced      bool    // false: the price is an estimate
}

// New builds the catalogue of a configuration that Load accepted. templateID
// gives the provider id of a group's template Node.
func New(c *config.Config, templateID func(group string) string) *Catalogue {
	catalogue := &Catalogue{gpuLabel: c.GPULabel, byID: make(map[string]*Group, len(c.NodeGroups))}
	for _, g := range c.NodeGroups {
		group := &Group{NodeGroup: g, gpuLabel: c.GPULabel, templateID: templateID(g.ID)}
		group.template, group.templateErr = group.buildTemplate()
		group.price, group.priced = group.hourlyPrice()
		catalogue.groups = append(catalogue.groups, group)
		catalogue.byID[g.ID] = group
	}
	for _, q := range c.Quotas {
		if q.Limit != nil { // limits that the cloud tells come with its backend
			catalogue.quotas = append(catalogue.quotas, catalogue.quota(q))
		}
	}
	return catalogue
}

// GPULabel is the label key by which Cluster Autoscaler knows GPU nodes.
func (c *Catalogue) GPULabel() string { return c.gpuLabel }

// All lists the groups in the order of the file. Callers do not change it.
func (c *Catalogue) All() []*Group { return c.groups }

// Lookup finds a group by its id.
func (c *Catalogue) Lookup(id string) (*Group, bool) {
	g, ok := c.byID[id]
	return g, ok
}

// GPUTypes are the values of the GPU label, the accelerators that the groups offer.
func (c *Catalogue) GPUTypes() map[string]struct{} {
	types := map[string]struct{}{}
	for _, g := range c.groups {
		if v, ok := g.Labels[c.gpuLabel]; ok {
			types[v] = struct{}{}
		}
	}
	return types
}

// Specs are the groups as a cloud needs to know them.
func (c *Catalogue) Specs() []cloud.Spec {
	specs := make([]cloud.Spec, 0, len(c.groups))
	for _, g := range c.groups {
		specs = append(specs, cloud.Spec{ID: g.ID, AutoScalingGroup: g.AutoScalingGroup, InstanceType: g.InstanceType})
	}
	return specs
}

// Budget is what the quota ledger has to know.
func (c *Catalogue) Budget() ([]quota.Group, []quota.Quota) {
	groups := make([]quota.Group, 0, len(c.groups))
	for _, g := range c.groups {
		groups = append(groups, g.budget())
	}
	return groups, c.quotas
}

func (g *Group) budget() quota.Group {
	b := quota.Group{ID: g.ID, Max: g.MaxSize, Units: g.units()}
	if g.Retired {
		b.Max = 0
	}
	if g.Surge != nil {
		b.Surge = &quota.Surge{Max: int64(g.Surge.Max), Window: g.Surge.Window.Duration}
	}
	return b
}

// Scales of the ledger's units: thousandths of a resource, millionths of a dollar.
const (
	resourceScale = 1_000
	priceScale    = 1_000_000
)

func (g *Group) units() map[string]int64 {
	units := map[string]int64{
		config.ResourceNodes:      resourceScale,
		config.ResourceVCPU:       g.Capacity.Cpu().MilliValue(),
		config.ResourceUSDPerHour: int64(g.price * priceScale),
	}
	for name, amount := range g.Capacity {
		if extended(name) {
			units[string(name)] = amount.MilliValue()
		}
	}
	return units
}

func (c *Catalogue) quota(q config.Quota) quota.Quota {
	scale := int64(resourceScale)
	if q.Resource == config.ResourceUSDPerHour {
		scale = priceScale
	}
	out := quota.Quota{
		Name: q.Name, Resource: q.Resource, Source: "node group file",
		Limit: scaled(q.Limit.AsApproximateFloat64(), scale), Scale: scale,
	}
	if q.Surge != nil {
		out.Surge = &quota.Surge{Max: scaled(q.Surge.Max.AsApproximateFloat64(), scale), Window: q.Surge.Window.Duration}
	}
	for _, g := range c.groups {
		if covers(q.NodeGroups, g.ID) {
			out.Groups = append(out.Groups, g.ID)
		}
	}
	return out
}

// scaled rounds to the nearest unit: 0.3 has no exact float, and a limit must
// not lose a unit to that.
func scaled(amount float64, scale int64) int64 {
	return int64(amount*float64(scale) + 0.5)
}

func covers(patterns []string, id string) bool {
	for _, p := range patterns {
		if ok, err := path.Match(p, id); err == nil && ok {
			return true
		}
	}
	return false
}
