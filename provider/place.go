package provider

import "time"

// Place is where an instance belongs, and what it costs.
type Place struct {
	Group string
	// AboveMin is false when the group could not do with one less.
	AboveMin bool
	GPUs     int64
	// HourlyPrice is in dollars, a rough one where the file has none.
	HourlyPrice float64
}

// GroupRead is when a group was last read from the cloud, by a whole reading and
// not in the middle of a write to it; false when it is not in the file, or when the
// cloud could not tell of it then.
func (s *Server) GroupRead(group string) (time.Time, bool) {
	now := s.current.Load()
	if now == nil {
		return time.Time{}, false
	}
	g, ok := now.groups[group]
	if !ok || g.read.IsZero() {
		return time.Time{}, false
	}
	return g.read, g.problem() == ""
}

// Place finds an instance; false when it is none of the file's groups', or gone.
func (s *Server) Place(instance string) (Place, bool) {
	now := s.current.Load()
	if now == nil {
		return Place{}, false
	}
	group, ok := now.owner[instance]
	if !ok {
		return Place{}, false
	}
	g := now.groups[group]
	price, _ := g.HourlyPrice()
	gpus := g.Capacity[g.GPUResource()]
	return Place{Group: group, AboveMin: g.state.Target > max(g.minSize(), g.state.Min), GPUs: gpus.Value(), HourlyPrice: price}, true
}
