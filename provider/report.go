package provider

import (
	"cmp"

	"gpu-node-provider/provider/report"
)

// Report returns the present state, without what is held for checkpoints.
func (s *Server) Report() report.Provider {
	now := s.current.Load()
	r := report.Provider{Time: s.now(), Snapshot: now.taken, GPULabel: now.catalogue.GPULabel(), NodeGroups: []report.NodeGroup{}, Quotas: []report.Quota{}}
	for _, g := range now.order {
		r.NodeGroups = append(r.NodeGroups, g.report())
	}
	for _, q := range s.ledger.Usage() {
		r.Quotas = append(r.Quotas, s.quotas.report(q))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for n, g := range r.NodeGroups {
		r.NodeGroups[n].LaunchFailures = s.recordLocked(g.ID).reportFailures()
	}
	if s.reloadError != nil {
		r.ReloadError = s.reloadError.Error()
	}
	return r
}

// limitForTable leaves a problem to the lines below the table.
func (g *groupView) limitForTable() string {
	if g.problem() != "" {
		return "cannot be served"
	}
	return g.limit.Text
}

// templateProblem is why Cluster Autoscaler cannot plan with a group.
func (g *groupView) templateProblem() string {
	if g.noTemplate == nil {
		return ""
	}
	return g.noTemplate.Error()
}

func (g *groupView) report() report.NodeGroup {
	n := g.count()
	r := report.NodeGroup{
		ID: g.ID, MinSize: g.minSize(), MaxSize: g.MaxSize, EffectiveMax: g.max, Target: g.state.Target,
		Running: n["running"], Creating: n["creating"], Placeholders: n["placeholder"], Failed: n["failed"], Deleting: n["deleting"],
		Forgotten: g.unrequested, Retired: g.Retired, Dropped: g.Dropped, Limit: g.limitForTable(), Problem: cmp.Or(g.problem(), g.templateProblem()), Ignored: g.Ignored, Instances: []report.Instance{},
	}
	for _, i := range g.state.Instances {
		instance := report.Instance{ID: i.ID, State: i.State.String(), Placeholder: i.Placeholder, Since: i.Since}
		if i.Error != nil {
			instance.Error = string(i.Error.Code) + ": " + shorten(i.Error.Message, maxErrorMessage)
		}
		r.Instances = append(r.Instances, instance)
	}
	return r
}
