package doctor

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"gpu-node-provider/provider/report"
)

// provider: is there one, and does it serve what the file says.
func provider(s *Scene) []Finding {
	switch {
	case s.StandsBy != "":
		return []Finding{{Level: Warn, Text: s.StandsBy, Do: "run doctor in that Pod for what only the leader knows"}}
	case s.ProviderErr != nil:
		return []Finding{{Level: Fail, Text: s.ProviderErr.Error(), Do: "start it, or say where it is by --address"}}
	case s.Provider.ReloadError != "":
		return []Finding{{Level: Fail, Text: "the node group file on disk is not in force: " + s.Provider.ReloadError, Do: "correct the file; it is read again when it changes"}}
	default:
		return []Finding{{Level: OK, Text: "it answers, and its file is in force"}}
	}
}

// unheard is the finding of a check that needs the leader's own words.
func (s *Scene) unheard() []Finding {
	if s.StandsBy != "" || s.ProviderErr != nil {
		return []Finding{{Level: Warn, Text: "not known without the provider that leads"}}
	}
	return nil
}

func nodeGroups(s *Scene) (found []Finding) {
	if cannot := s.unheard(); cannot != nil {
		return cannot
	}
	for _, g := range s.Provider.NodeGroups {
		switch {
		case g.Problem != "":
			found = append(found, Finding{Level: Fail, Text: fmt.Sprintf("node group %s cannot be served: %s", g.ID, g.Problem)})
		case g.EffectiveMax <= g.Target && g.Target < g.MaxSize && !g.Retired:
			found = append(found, Finding{Level: Warn, Text: fmt.Sprintf("node group %s cannot grow: %s", g.ID, g.Limit)})
		}
	}
	if len(found) == 0 {
		return []Finding{{Level: OK, Text: "all can be served, and grow up to their maximum"}}
	}
	return found
}

// quotas tells of each its limit, its use, where they come from, and how old they are.
func quotas(s *Scene) (found []Finding) {
	if cannot := s.unheard(); cannot != nil {
		return cannot
	}
	for _, q := range s.Provider.Quotas {
		found = append(found, quota(q, s.Now))
	}
	if len(found) == 0 {
		return []Finding{{Level: OK, Text: "the file has none"}}
	}
	return found
}

func quota(q report.Quota, now time.Time) Finding {
	if q.Unknown {
		return Finding{Level: Warn, Text: fmt.Sprintf("%s: its limit has not been read from %s yet and binds nobody: %s", q.Name, q.Source, q.Problem)}
	}
	f := Finding{Level: OK, Text: fmt.Sprintf("%s: %s of %s %s used, limit by %s", q.Name, number(q.Used), number(q.Limit), q.Resource, q.Source)}
	if q.ReadAt != nil {
		f.Text += fmt.Sprintf(", read %s ago", max(0, now.Sub(*q.ReadAt)).Round(time.Second))
	}
	if q.Used >= q.Limit {
		f.Level, f.Do = Warn, "it is used up and nothing grows: raise it where it comes from, or end machines"
	}
	if q.Problem != "" {
		f.Level, f.Do = Warn, "these are the last known values, there are none newer: "+q.Problem
	}
	return f
}

func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// prices: Cluster Autoscaler's expander price compares groups by them, and so do budgets in dollars.
func prices(s *Scene) []Finding {
	if s.CatalogueErr != nil {
		return []Finding{{Level: Warn, Text: "not known: " + s.CatalogueErr.Error()}}
	}
	var without []string
	for _, g := range s.Catalogue.All() {
		if _, known := g.HourlyPrice(); !known {
			without = append(without, g.ID)
		}
	}
	if len(without) == 0 {
		return []Finding{{Level: OK, Text: "all groups have one"}}
	}
	return []Finding{{
		Level: Warn, Text: "a rough price by their resources stands for these groups: " + strings.Join(without, ", "),
		Do: "write hourlyPrice in the node group file",
	}}
}

// overrides cost a field that the answer to NodeGroupGetOptions does not have.
func overrides(s *Scene) []Finding {
	var with []string
	for _, g := range s.Catalogue.All() {
		if _, some := g.Overrides(); some {
			with = append(with, g.ID)
		}
	}
	if len(with) == 0 {
		return []Finding{{Level: OK, Text: "no group has scaleDown overrides"}}
	}
	return []Finding{{
		Level: Warn, Text: "scaleDown overrides make Cluster Autoscaler 1.35 and later take a booting GPU node for unready, and buy another: " + strings.Join(with, ", "),
		Do: "use Cluster Autoscaler's flags instead where you can",
	}}
}

// conflicts fails for every setting by which something else changes a group's size or ends its machines.
func conflicts(s *Scene) (found []Finding) {
	if s.ConflictsErr != nil {
		found = append(found, Finding{Level: Warn, Text: "what else changes the groups is not known, or not all: " + s.ConflictsErr.Error()})
	}
	for _, m := range s.Conflicts {
		found = append(found, Finding{Level: Fail, Text: fmt.Sprintf("node group %s: %s", m.Group, m.What), Do: m.Do})
	}
	if len(found) == 0 {
		return []Finding{{Level: OK, Text: "nothing else changes the groups"}}
	}
	return found
}

func redis(s *Scene) (found []Finding) {
	if !s.HasCluster {
		return []Finding{{Level: OK, Text: "not needed without a Kubernetes API"}}
	}
	if s.RedisErr != nil {
		return []Finding{{Level: Fail, Text: s.RedisErr.Error(), Do: "until it answers, no node with a training pod goes"}}
	}
	for _, warning := range s.RedisWarnings {
		found = append(found, Finding{Level: Warn, Text: warning})
	}
	if s.RedisWarningsErr != nil {
		found = append(found, Finding{
			Level: Warn, Text: "whether it evicts acknowledgements is not known: " + s.RedisWarningsErr.Error(), Do: "look yourself: maxmemory-policy has to be noeviction",
		})
	}
	if len(found) == 0 {
		return []Finding{{Level: OK, Text: "it answers, and evicts nothing"}}
	}
	return found
}
