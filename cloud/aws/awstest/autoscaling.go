package awstest

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
)

// autoscalingActions are the actions of Auto Scaling that are known here.
var autoscalingActions = map[string]handler{
	"DescribeAutoScalingGroups":           {run: (*Stub).describeGroupsLocked},
	"DescribeAutoScalingInstances":        {run: (*Stub).describeGroupInstancesLocked},
	"DescribeScalingActivities":           {run: (*Stub).describeActivitiesLocked},
	"DescribeWarmPool":                    {run: (*Stub).describeWarmPoolLocked},
	"DescribeScheduledActions":            {run: (*Stub).describeScheduledLocked},
	"DescribeInstanceRefreshes":           {run: (*Stub).describeRefreshesLocked},
	"DescribePolicies":                    {run: (*Stub).describePoliciesLocked},
	"SetDesiredCapacity":                  {run: (*Stub).setDesiredCapacityLocked, write: true},
	"TerminateInstanceInAutoScalingGroup": {run: (*Stub).terminateLocked, write: true},
	"UpdateAutoScalingGroup":              {run: (*Stub).updateGroupLocked, write: true},
	"SetInstanceProtection":               {run: (*Stub).setProtectionLocked, write: true},
	"SuspendProcesses":                    {run: (*Stub).suspendLocked, write: true},
	"ResumeProcesses":                     {run: (*Stub).resumeLocked, write: true},
}

// page is one page of a list: [from:to], and the token of the next one.
//
// Tokens of AWS are opaque; these are numbers, which nobody should rely on.
func page(r request, total, usual, most int) (from, to int, next string, e *Error) {
	size, e := r.num("MaxRecords", usual)
	if e != nil {
		return 0, 0, "", e
	}
	if size < 1 || size > most {
		return 0, 0, "", invalid("1 validation error detected: Value '%d' at 'maxRecords' failed to satisfy constraint: Member must have value less than or equal to %d", size, most)
	}
	return cut(r, total, size)
}

// cut is the page that a token stands for, and the token of the next.
func cut(r request, total, size int) (from, to int, next string, e *Error) {
	if token := r.str("NextToken"); token != "" {
		n, err := strconv.Atoi(token)
		if err != nil || n < 0 || n > total {
			return 0, 0, "", badParam("InvalidNextToken", "The token '%s' is invalid.", token)
		}
		from = n
	}
	if to = from + size; to >= total {
		return from, total, "", nil
	}
	return from, to, strconv.Itoa(to), nil
}

// describeGroupsLocked: a name that is not there is left out without an error,
// and the order is that of the names. Assumed: more names than MaxRecords (50
// when not given) are an error, since "By default, you can only specify up to 50
// names. You can optionally increase this limit using the MaxRecords property".
func (s *Stub) describeGroupsLocked(r request, w *xmlWriter) *Error {
	names := r.list("AutoScalingGroupNames.member")
	most, e := r.num("MaxRecords", 50)
	if e != nil {
		return e
	}
	if len(names) > most {
		return invalid("The number of group names is greater than the maximum of %d", most)
	}
	if len(names) == 0 {
		names = s.names
	} else {
		slices.Sort(names)
		names = slices.Compact(names)
	}
	filters := r.filters()
	var found []*group
	for _, name := range names {
		if g := s.groups[name]; g != nil && g.matches(filters) {
			found = append(found, g)
		}
	}
	from, to, next, e := page(r, len(found), 50, 100)
	if e != nil {
		return e
	}
	instances := r.str("IncludeInstances") != "false"
	w.open("AutoScalingGroups")
	for _, g := range found[from:to] {
		w.open("member")
		w.group(g, instances)
		w.close("member")
	}
	w.close("AutoScalingGroups")
	w.str("NextToken", next)
	return nil
}

// matches says whether the group passes all filters: tag-key, tag-value and
// tag:<key>, any of whose values will do ("Filter" of the API reference).
func (g *group) matches(filters []filter) bool {
	for _, f := range filters {
		if !slices.ContainsFunc(f.values, func(v string) bool { return g.hasTag(f.name, v) }) {
			return false
		}
	}
	return true
}

func (g *group) hasTag(filter, want string) bool {
	for key, value := range g.Tags {
		switch filter {
		case "tag-key":
			if key == want {
				return true
			}
		case "tag-value":
			if value == want {
				return true
			}
		case "tag:" + key:
			if value == want {
				return true
			}
		}
	}
	return false
}

func (w *xmlWriter) group(g *group, instances bool) {
	w.str("AutoScalingGroupName", g.Name)
	w.str("AutoScalingGroupARN", g.arn)
	if len(g.Overrides) > 0 {
		w.mixed(g)
	} else {
		w.template("LaunchTemplate", *g.LaunchTemplate)
	}
	w.num("MinSize", g.Min)
	w.num("MaxSize", g.Max)
	w.num("DesiredCapacity", g.Desired)
	w.str("DesiredCapacityType", g.DesiredCapacityType)
	w.num("DefaultCooldown", 300)
	w.list("AvailabilityZones", "member", g.Zones)
	w.str("HealthCheckType", cmp.Or(g.HealthCheck, "EC2"))
	w.num("HealthCheckGracePeriod", 300)
	w.open("Instances")
	if instances {
		for _, i := range g.instances {
			if !isWarmed(i) {
				w.open("member")
				w.instance(i, false)
				w.close("member")
			}
		}
	}
	w.close("Instances")
	w.when("CreatedTime", g.created)
	w.open("SuspendedProcesses")
	for _, p := range g.Suspended {
		w.in("member", func() {
			w.str("ProcessName", p)
			w.str("SuspensionReason", "User suspended")
		})
	}
	w.close("SuspendedProcesses")
	w.str("VPCZoneIdentifier", "subnet-00000000")
	w.str("Status", g.Status)
	w.open("Tags")
	for _, key := range slices.Sorted(maps.Keys(g.Tags)) {
		w.in("member", func() {
			w.str("ResourceId", g.Name)
			w.str("ResourceType", "auto-scaling-group")
			w.str("Key", key)
			w.open("Value") // an empty value is one
			w.escape(g.Tags[key])
			w.close("Value")
			w.flag("PropagateAtLaunch", true)
		})
	}
	w.close("Tags")
	w.list("TerminationPolicies", "member", []string{"Default"})
	w.flag("NewInstancesProtectedFromScaleIn", g.Protected)
	if g.MaxInstanceLifetime > 0 {
		w.num("MaxInstanceLifetime", g.MaxInstanceLifetime)
	}
	w.flag("CapacityRebalance", g.CapacityRebalance)
	if g.WarmPool != nil {
		w.in("WarmPoolConfiguration", func() { w.warmPool(g.WarmPool) })
		w.num("WarmPoolSize", g.warmed())
	}
}

func (w *xmlWriter) template(name string, t LaunchTemplate) {
	w.open(name)
	w.str("LaunchTemplateId", t.ID)
	w.str("LaunchTemplateName", t.Name)
	w.str("Version", t.Version)
	w.close(name)
}

func (w *xmlWriter) mixed(g *group) {
	w.in("MixedInstancesPolicy", func() {
		w.in("LaunchTemplate", func() {
			w.template("LaunchTemplateSpecification", *g.LaunchTemplate)
			w.in("Overrides", func() {
				for _, o := range g.Overrides {
					w.in("member", func() {
						if o.ByAttributes {
							w.in("InstanceRequirements", func() {
								w.in("VCpuCount", func() { w.num("Min", 1) })
								w.in("MemoryMiB", func() { w.num("Min", 1) })
							})
						} else {
							w.str("InstanceType", o.InstanceType)
						}
						if o.Weight > 0 {
							w.str("WeightedCapacity", strconv.Itoa(o.Weight))
						}
					})
				}
			})
		})
		w.in("InstancesDistribution", func() {
			w.str("OnDemandAllocationStrategy", "prioritized")
			w.num("OnDemandBaseCapacity", g.OnDemandBase)
			w.num("OnDemandPercentageAboveBaseCapacity", g.OnDemandPercent)
			w.str("SpotAllocationStrategy", "price-capacity-optimized")
		})
	})
}

// instance writes one; DescribeAutoScalingInstances has the group's name, and
// the health in capitals.
func (w *xmlWriter) instance(i *Instance, alone bool) {
	w.str("InstanceId", i.ID)
	health := i.Health
	if alone {
		w.str("AutoScalingGroupName", i.Group)
		if health == "Healthy" {
			health = "HEALTHY"
		} else {
			health = "UNHEALTHY"
		}
	}
	w.str("InstanceType", i.Type)
	w.str("AvailabilityZone", i.Zone)
	w.str("LifecycleState", i.State)
	w.str("HealthStatus", health)
	w.template("LaunchTemplate", i.template)
	w.flag("ProtectedFromScaleIn", i.Protected)
	if i.weighted {
		w.str("WeightedCapacity", strconv.Itoa(i.Weight))
	}
}

// describeGroupInstancesLocked: ids that belong to no group are left out.
func (s *Stub) describeGroupInstancesLocked(r request, w *xmlWriter) *Error {
	ids := r.list("InstanceIds.member")
	if len(ids) > 50 {
		return invalid("The number of instance IDs is greater than the maximum of 50")
	}
	var found []*Instance
	for _, id := range ids {
		if g := s.owner[id]; g != nil {
			found = append(found, g.find(id))
		}
	}
	if len(ids) == 0 {
		for _, name := range s.names {
			found = append(found, s.groups[name].instances...)
		}
	}
	from, to, next, e := page(r, len(found), 50, 50)
	if e != nil {
		return e
	}
	w.open("AutoScalingInstances")
	for _, i := range found[from:to] {
		w.in("member", func() { w.instance(i, true) })
	}
	w.close("AutoScalingInstances")
	w.str("NextToken", next)
	return nil
}

// describeActivitiesLocked: the newest come first.
func (s *Stub) describeActivitiesLocked(r request, w *xmlWriter) *Error {
	names := s.names
	if name := r.str("AutoScalingGroupName"); name != "" {
		if _, e := s.groupLocked(name); e != nil {
			return e
		}
		names = []string{name}
	}
	ids := r.list("ActivityIds.member")
	type entry struct {
		group    *group
		activity *Activity
	}
	var found []entry
	for _, name := range names {
		g := s.groups[name]
		for n := len(g.activities) - 1; n >= 0; n-- {
			if a := &g.activities[n]; len(ids) == 0 || slices.Contains(ids, a.ID) {
				found = append(found, entry{g, a})
			}
		}
	}
	if len(names) > 1 {
		slices.SortStableFunc(found, func(a, b entry) int { return b.activity.Start.Compare(a.activity.Start) })
	}
	from, to, next, e := page(r, len(found), 100, 100)
	if e != nil {
		return e
	}
	w.open("Activities")
	for _, f := range found[from:to] {
		w.in("member", func() { w.activity(f.group, f.activity) })
	}
	w.close("Activities")
	w.str("NextToken", next)
	return nil
}

func (w *xmlWriter) activity(g *group, a *Activity) {
	w.str("ActivityId", a.ID)
	w.str("AutoScalingGroupName", g.Name)
	w.str("AutoScalingGroupARN", g.arn)
	w.str("Description", a.Description)
	w.str("Cause", a.Cause)
	w.when("StartTime", a.Start)
	w.when("EndTime", a.End)
	w.str("StatusCode", a.Status)
	w.str("StatusMessage", a.StatusMessage)
	w.num("Progress", a.Progress)
	w.str("Details", a.Details)
}
