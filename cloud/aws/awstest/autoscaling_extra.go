package awstest

import (
	"slices"
	"strings"
)

func isWarmed(i *Instance) bool { return strings.HasPrefix(i.State, "Warmed:") }

func (g *group) warmed() int {
	n := 0
	for _, i := range g.instances {
		if isWarmed(i) {
			n++
		}
	}
	return n
}

func (w *xmlWriter) warmPool(p *WarmPool) {
	w.num("MinSize", p.MinSize)
	if p.MaxPrepared > 0 {
		w.num("MaxGroupPreparedCapacity", p.MaxPrepared)
	}
	state := p.State
	if state == "" {
		state = "Stopped"
	}
	w.str("PoolState", state)
}

// describeWarmPoolLocked: a group without a warm pool has an empty answer.
func (s *Stub) describeWarmPoolLocked(r request, w *xmlWriter) *Error {
	g, e := s.groupLocked(r.str("AutoScalingGroupName"))
	if e != nil {
		return e
	}
	found := slices.DeleteFunc(slices.Clone(g.instances), func(i *Instance) bool { return !isWarmed(i) })
	from, to, next, e := page(r, len(found), 50, 50)
	if e != nil {
		return e
	}
	if g.WarmPool != nil {
		w.in("WarmPoolConfiguration", func() { w.warmPool(g.WarmPool) })
	}
	w.open("Instances")
	for _, i := range found[from:to] {
		w.in("member", func() { w.instance(i, false) })
	}
	w.close("Instances")
	w.str("NextToken", next)
	return nil
}

// ofGroups collects what the named group, or all, have of something.
func ofGroups[T any](s *Stub, r request, get func(*group) []T) (list []T, owners []*group, e *Error) {
	names := s.names
	if name := r.str("AutoScalingGroupName"); name != "" {
		if _, e := s.groupLocked(name); e != nil {
			return nil, nil, e
		}
		names = []string{name}
	}
	for _, name := range names {
		g := s.groups[name]
		for _, t := range get(g) {
			list, owners = append(list, t), append(owners, g)
		}
	}
	return list, owners, nil
}

func (s *Stub) describeScheduledLocked(r request, w *xmlWriter) *Error {
	found, owners, e := ofGroups(s, r, func(g *group) []ScheduledAction { return g.ScheduledActions })
	if e != nil {
		return e
	}
	from, to, next, e := page(r, len(found), 50, 100)
	if e != nil {
		return e
	}
	w.open("ScheduledUpdateGroupActions")
	for n := from; n < to; n++ {
		w.in("member", func() {
			w.str("AutoScalingGroupName", owners[n].Name)
			w.str("ScheduledActionName", found[n].Name)
			w.str("Recurrence", found[n].Recurrence)
			for name, size := range map[string]int{"MinSize": found[n].Min, "MaxSize": found[n].Max, "DesiredCapacity": found[n].Desired} {
				if size >= 0 {
					w.num(name, size)
				}
			}
		})
	}
	w.close("ScheduledUpdateGroupActions")
	w.str("NextToken", next)
	return nil
}

func (s *Stub) describeRefreshesLocked(r request, w *xmlWriter) *Error {
	g, e := s.groupLocked(r.str("AutoScalingGroupName"))
	if e != nil {
		return e
	}
	w.open("InstanceRefreshes")
	if g.Refresh != "" {
		w.in("member", func() {
			w.str("InstanceRefreshId", "08b91cf7-8fa6-48af-b6a6-d227f40f1b9b")
			w.str("AutoScalingGroupName", g.Name)
			w.str("Status", g.Refresh)
		})
	}
	w.close("InstanceRefreshes")
	return nil
}

func (s *Stub) describePoliciesLocked(r request, w *xmlWriter) *Error {
	found, owners, e := ofGroups(s, r, func(g *group) []Policy { return g.Policies })
	if e != nil {
		return e
	}
	from, to, next, e := page(r, len(found), 50, 100)
	if e != nil {
		return e
	}
	w.open("ScalingPolicies")
	for n := from; n < to; n++ {
		w.in("member", func() {
			w.str("AutoScalingGroupName", owners[n].Name)
			w.str("PolicyName", found[n].Name)
			w.str("PolicyType", found[n].Type)
			w.flag("Enabled", true)
		})
	}
	w.close("ScalingPolicies")
	w.str("NextToken", next)
	return nil
}
