package provider

import (
	"cmp"
	"time"
)

// Report is the state of the provider for people: what status prints and the
// status page shows.
type Report struct {
	Time        time.Time     `json:"time"`
	Snapshot    time.Time     `json:"snapshot"` // when the cloud was last read
	NodeGroups  []GroupReport `json:"nodeGroups"`
	Quotas      []QuotaReport `json:"quotas"`
	GPULabel    string        `json:"gpuLabel"`
	ReloadError string        `json:"reloadError,omitempty"` // why the file on disk is not in force
	Held        []HeldReport  `json:"held,omitempty"`        // nodes that wait for a checkpoint
}

// HeldReport is an instance that is held for training pods. Whoever holds fills it in.
type HeldReport struct {
	Instance  string    `json:"instance"`
	Node      string    `json:"node,omitempty"` // empty without one
	NodeGroup string    `json:"nodeGroup"`
	Since     time.Time `json:"since"`
	Pods      []HeldPod `json:"pods"`
}

// HeldPod is a training pod that is not clear.
type HeldPod struct {
	Pod    string     `json:"pod"` // namespace/name
	Reason string     `json:"reason"`
	Until  *time.Time `json:"until,omitempty"` // when it lets go by itself, if it will
}

// GroupReport is one node group.
type GroupReport struct {
	ID           string           `json:"id"`
	MinSize      int              `json:"minSize"`
	MaxSize      int              `json:"maxSize"`      // of the file
	EffectiveMax int              `json:"effectiveMax"` // what Cluster Autoscaler is told
	Target       int              `json:"target"`
	Running      int              `json:"running"`
	Creating     int              `json:"creating"` // booting machines
	Placeholders int              `json:"placeholders"`
	Failed       int              `json:"failed"` // placeholders with an error
	Deleting     int              `json:"deleting"`
	Forgotten    int              `json:"forgotten"` // in flight, and the next increase is absorbed by it
	Retired      bool             `json:"retired"`
	Limit        string           `json:"limit"`             // what bounds growth, with numbers and source
	Problem      string           `json:"problem,omitempty"` // why the cloud cannot serve it
	Instances    []InstanceReport `json:"instances"`
}

// InstanceReport is one instance or placeholder.
type InstanceReport struct {
	ID          string    `json:"id"`
	State       string    `json:"state"`
	Placeholder bool      `json:"placeholder,omitempty"`
	Error       string    `json:"error,omitempty"`
	Since       time.Time `json:"since"`
}

// QuotaReport is one quota, in its resource's own unit.
type QuotaReport struct {
	Name     string  `json:"name"`
	Resource string  `json:"resource"`
	Used     float64 `json:"used"`
	Limit    float64 `json:"limit"`
	Source   string  `json:"source"`
	// Unknown is true while a limit that the cloud keeps has not been read: it binds nobody.
	Unknown bool       `json:"unknown,omitempty"`
	ReadAt  *time.Time `json:"readAt,omitempty"`  // when a limit of the cloud, and its use, were read
	Problem string     `json:"problem,omitempty"` // why they are not newer
}

// Report tells the present state; ready is false before the first snapshot.
func (s *Server) Report() (report Report, ready bool) {
	now := s.current.Load()
	if now == nil {
		return Report{}, false
	}
	report = Report{Time: s.now(), Snapshot: now.taken, GPULabel: now.catalogue.GPULabel(), NodeGroups: []GroupReport{}, Quotas: []QuotaReport{}}
	for _, g := range now.order {
		report.NodeGroups = append(report.NodeGroups, g.report())
	}
	for _, q := range s.ledger.Usage() {
		report.Quotas = append(report.Quotas, s.quotas.report(q))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reloadError != nil {
		report.ReloadError = s.reloadError.Error()
	}
	return report, true
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

func (g *groupView) report() GroupReport {
	n := g.count()
	r := GroupReport{
		ID: g.ID, MinSize: g.minSize(), MaxSize: g.MaxSize, EffectiveMax: g.max, Target: g.state.Target,
		Running: n["running"], Creating: n["creating"], Placeholders: n["placeholder"], Failed: n["failed"], Deleting: n["deleting"],
		Forgotten: g.forgotten, Retired: g.Retired, Limit: g.limitForTable(), Problem: cmp.Or(g.problem(), g.templateProblem()), Instances: []InstanceReport{},
	}
	for _, i := range g.state.Instances {
		instance := InstanceReport{ID: i.ID, State: i.State.String(), Placeholder: i.Placeholder, Since: i.Since}
		if i.Error != nil {
			instance.Error = string(i.Error.Code) + ": " + shorten(i.Error.Message, maxErrorMessage)
		}
		r.Instances = append(r.Instances, instance)
	}
	return r
}
