// Package nodegroup completes a node group file from the cloud's description of its
// groups, and builds the immutable catalogue of the result: template Nodes, autoscaling
// options, prices, quotas, and which Pods fit a group.
//
// It does not know sizes, budgets or gRPC. A catalogue follows from its file alone and is
// computed once per file.
package nodegroup

import (
	"path"

	corev1 "k8s.io/api/core/v1"

	"gpu-node-provider/cloud"
	"gpu-node-provider/provider/config"
)

// Label holds the node group's id on each Node, so that a Node whose instance is gone
// keeps its group after a restart.
const Label = "gpu-node-provider.io/node-group"

// Catalogue is the node groups and quotas of one node group file.
type Catalogue struct {
	gpuLabel string
	groups   []*Group
	byID     map[string]*Group
	quotas   []Quota
}

// Group is one configured node group.
type Group struct {
	config.NodeGroup

	gpuLabel    string
	templateID  string
	template    *corev1.Node
	templateErr error
	price       float64 // US dollars an hour
	priced      bool    // false for an estimated price
}

// New returns the catalogue of a configuration that Load accepted. templateID
// returns the provider id of a group's template Node.
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
		catalogue.quotas = append(catalogue.quotas, catalogue.quota(q))
	}
	return catalogue
}

// GPULabel returns the label key by which Cluster Autoscaler recognises GPU nodes.
func (c *Catalogue) GPULabel() string { return c.gpuLabel }

// All returns the groups in file order. Callers must not change the slice.
func (c *Catalogue) All() []*Group { return c.groups }

// Lookup returns the group with the id.
func (c *Catalogue) Lookup(id string) (*Group, bool) {
	g, ok := c.byID[id]
	return g, ok
}

// GPUTypes returns the values of the GPU label over all groups.
func (c *Catalogue) GPUTypes() map[string]struct{} {
	types := map[string]struct{}{}
	for _, g := range c.groups {
		if v, ok := g.Labels[c.gpuLabel]; ok {
			types[v] = struct{}{}
		}
	}
	return types
}

// Quotas returns the quotas of the file, in file order.
func (c *Catalogue) Quotas() []Quota { return c.quotas }

// Quota is a quota with its patterns resolved to node groups.
type Quota struct {
	config.Quota
	Groups []string // ids of the groups that the quota covers
}

func (c *Catalogue) quota(q config.Quota) Quota {
	out := Quota{Quota: q}
	for _, g := range c.groups {
		if covers(q.NodeGroups, g.ID) {
			out.Groups = append(out.Groups, g.ID)
		}
	}
	return out
}

func covers(patterns []string, id string) bool {
	for _, p := range patterns {
		if ok, err := path.Match(p, id); err == nil && ok {
			return true
		}
	}
	return false
}

// Specs returns the groups as a cloud.Backend configures them.
func (c *Catalogue) Specs() []cloud.Spec {
	all := make([]cloud.Spec, 0, len(c.All()))
	for _, g := range c.All() {
		all = append(all, cloud.Spec{ID: g.ID, Name: g.CloudName(), InstanceType: g.InstanceType, Discovered: g.Discovered})
	}
	return all
}
