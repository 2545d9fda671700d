package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpu-node-provider/cloud"
	"gpu-node-provider/provider/report"
)

// provider checks that the provider answers and uses the file on disk.
func provider(s *Snapshot) []Finding {
	switch {
	case s.StandsBy != "":
		return []Finding{{Level: Warn, Text: s.StandsBy, Do: "run doctor in the Pod of the leader to check node groups and quotas"}}
	case s.ProviderErr != nil:
		return []Finding{{Level: Fail, Text: s.ProviderErr.Error(), Do: "start the provider, or set --address"}}
	case s.Provider.ReloadError != "":
		return []Finding{{Level: Fail, Text: "the node group file on disk is rejected: " + s.Provider.ReloadError, Do: "correct the file; the provider reloads it when it changes"}}
	default:
		return []Finding{{Level: OK, Text: "the provider answers, and uses the file on disk"}}
	}
}

// withoutReport returns the finding of a check that needs the leader's report, when there
// is none.
func (s *Snapshot) withoutReport() []Finding {
	if s.StandsBy != "" || s.ProviderErr != nil {
		return []Finding{{Level: Warn, Text: "unknown without a report of the leader"}}
	}
	return nil
}

func nodeGroups(s *Snapshot) (found []Finding) {
	if cannot := s.withoutReport(); cannot != nil {
		return cannot
	}
	for _, g := range s.Provider.NodeGroups {
		if g.Dropped {
			found = append(found, Finding{
				Level: Warn, Text: fmt.Sprintf("node group %s is not in the node group file, and is kept as retired until its %d instances are gone", g.ID, len(g.Instances)),
				Do: "write it into the file, with retired: true if its nodes are to go",
			})
		}
		for _, ignored := range g.Ignored {
			found = append(found, Finding{Level: Warn, Text: fmt.Sprintf("node group %s: ignored %s", g.ID, ignored), Do: "correct or remove it where the cloud's group has it"})
		}
		switch {
		case g.Problem != "":
			found = append(found, Finding{Level: Fail, Text: fmt.Sprintf("node group %s cannot be served: %s", g.ID, g.Problem)})
		case g.EffectiveMax <= g.Target && g.Target < g.MaxSize && !g.Retired:
			found = append(found, Finding{Level: Warn, Text: fmt.Sprintf("node group %s cannot grow: %s", g.ID, g.Limit)})
		}
	}
	if len(found) == 0 {
		return []Finding{{Level: OK, Text: "all are served, and can grow to their maximum"}}
	}
	return found
}

// recentFailure is the age up to which a failed launch is a warning: Cluster Autoscaler's
// backoff of a group ends within half an hour.
const recentFailure = time.Hour

// launches reports the last failed launches of each group.
func launches(s *Snapshot) (found []Finding) {
	if cannot := s.withoutReport(); cannot != nil {
		return cannot
	}
	for _, g := range s.Provider.NodeGroups {
		for _, f := range g.LaunchFailures {
			found = append(found, launch(g.ID, f, s.Now))
		}
	}
	if len(found) == 0 {
		return []Finding{{Level: OK, Text: "none has failed since the provider started"}}
	}
	return found
}

func launch(group string, f report.LaunchFailure, now time.Time) Finding {
	age := max(0, now.Sub(f.Last))
	found := Finding{Level: OK, Text: fmt.Sprintf("node group %s: %d failed, the last %s ago: %s: %s", group, f.Count, age.Round(time.Second), f.Code, f.Message)}
	if age >= recentFailure {
		return found
	}
	found.Level, found.Do = Warn, "correct what the cloud names, in the launch template or the group"
	if cloud.LaunchCode(f.Code).OutOfResources() {
		found.Do = "raise the limit that the cloud names, or add a node group of another instance type or zone"
	}
	return found
}

// quotas reports the limit and use of each quota, with source and age.
func quotas(s *Snapshot) (found []Finding) {
	if cannot := s.withoutReport(); cannot != nil {
		return cannot
	}
	for _, q := range s.Provider.Quotas {
		found = append(found, quota(q, s.Now))
	}
	if len(found) == 0 {
		return []Finding{{Level: OK, Text: "the file has no quotas"}}
	}
	return found
}

func quota(q report.Quota, now time.Time) Finding {
	if q.Unknown {
		return Finding{Level: Warn, Text: fmt.Sprintf("%s: the limit has not been read from %s yet, and does not apply: %s", q.Name, q.Source, q.Problem)}
	}
	f := Finding{Level: OK, Text: fmt.Sprintf("%s: %s of %s %s used, limit from %s", q.Name, number(q.Used), number(q.Limit), q.Resource, q.Source)}
	if q.ReadAt != nil {
		f.Text += fmt.Sprintf(", read %s ago", max(0, now.Sub(*q.ReadAt)).Round(time.Second))
	}
	if q.Used >= q.Limit {
		f.Level, f.Do = Warn, "raise the limit at its source, or delete nodes; until then its node groups cannot grow"
	}
	if q.Problem != "" {
		f.Level, f.Do = Warn, "these are the last known values; the newest reading failed: "+q.Problem
	}
	return f
}

func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// prices checks that groups have a real price: without one a quota on usd-per-hour limits
// something else than money, and the expander `price` of Cluster Autoscaler compares
// estimates.
func prices(s *Snapshot) (found []Finding) {
	if s.CatalogueErr != nil {
		return []Finding{{Level: Warn, Text: "unknown: " + s.CatalogueErr.Error()}}
	}
	const do = "set hourlyPrice in the node group file"
	unpriced := s.Catalogue.Unpriced()
	for _, quota := range slices.Sorted(maps.Keys(unpriced)) {
		found = append(found, Finding{
			Level: Fail, Text: fmt.Sprintf("quota %s is in dollars, and the real price is not known of node groups: %s", quota, strings.Join(unpriced[quota], ", ")), Do: do,
		})
	}
	var without []string
	for _, g := range s.Catalogue.All() {
		if _, known := g.HourlyPrice(); !known {
			without = append(without, g.ID)
		}
	}
	switch {
	case len(found) > 0:
		return found
	case len(without) == 0:
		return []Finding{{Level: OK, Text: "all node groups have a price"}}
	default:
		return []Finding{{Level: Warn, Text: "estimated from their resources, above any real price, for node groups: " + strings.Join(without, ", "), Do: do}}
	}
}

// overrides warns of scaleDown overrides: the answer to NodeGroupGetOptions has no field for
// the time that a node may take to start, so Cluster Autoscaler 1.35 and later reads zero.
func overrides(s *Snapshot) []Finding {
	var with []string
	for _, g := range s.Catalogue.All() {
		if _, some := g.Overrides(); some {
			with = append(with, g.ID)
		}
	}
	if len(with) == 0 {
		return []Finding{{Level: OK, Text: "no node group has scaleDown overrides"}}
	}
	return []Finding{{
		Level: Warn, Text: "scaleDown overrides make Cluster Autoscaler 1.35 and later treat a booting GPU node as unready, and request another: " + strings.Join(with, ", "),
		Do: "use the flags of Cluster Autoscaler instead where possible",
	}}
}

// conflicts checks for settings in the cloud that change a group's size or terminate its
// instances.
func conflicts(s *Snapshot) (found []Finding) {
	if s.ConflictsErr != nil {
		found = append(found, Finding{Level: Warn, Text: "failed to read all conflicting settings: " + s.ConflictsErr.Error()})
	}
	for _, m := range s.Conflicts {
		found = append(found, Finding{Level: Fail, Text: fmt.Sprintf("node group %s: %s", m.Group, m.What), Do: m.Do})
	}
	if len(found) == 0 {
		return []Finding{{Level: OK, Text: "no conflicting setting in the cloud"}}
	}
	return found
}

func redis(s *Snapshot) (found []Finding) {
	if !s.HasCluster {
		return []Finding{{Level: OK, Text: "not needed without a Kubernetes API"}}
	}
	if s.RedisErr != nil {
		return []Finding{{Level: Fail, Text: s.RedisErr.Error(), Do: "nodes with training pods stay held until Redis answers"}}
	}
	for _, warning := range s.RedisWarnings {
		found = append(found, Finding{Level: Warn, Text: warning})
	}
	if s.RedisWarningsErr != nil {
		found = append(found, Finding{
			Level: Warn, Text: "unknown whether Redis evicts acknowledgements: " + s.RedisWarningsErr.Error(), Do: "check that maxmemory-policy is noeviction",
		})
	}
	if len(found) == 0 {
		return []Finding{{Level: OK, Text: "Redis answers, and evicts no acknowledgements"}}
	}
	return found
}
