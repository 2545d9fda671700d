package provider

import (
	"time"

	"gpu-node-provider/provider/nodegroup"
)

// GroupRead is when a group was last read from the cloud, by a whole reading and
// not in the middle of a write to it; false when it is not in the file, or when the
// cloud could not tell of it then.
func (s *Server) GroupRead(group string) (time.Time, bool) {
	g, ok := s.current.Load().groups[group]
	if !ok || g.read.IsZero() {
		return time.Time{}, false
	}
	return g.read, g.problem() == ""
}

// Place finds an instance; false when it is none of the file's groups', or gone.
func (s *Server) Place(instance string) (nodegroup.Place, bool) {
	now := s.current.Load()
	group, ok := now.owner[instance]
	if !ok {
		return nodegroup.Place{}, false
	}
	g := now.groups[group]
	price, _ := g.HourlyPrice()
	gpus := g.Capacity[g.GPUResource()]
	return nodegroup.Place{Group: group, AboveMin: g.state.Target > max(g.minSize(), g.state.Min), GPUs: gpus.Value(), HourlyPrice: price}, true
}
