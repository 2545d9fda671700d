package awstest

import (
	"maps"
	"slices"
	"time"
)

// Group says what a test wants of an Auto Scaling group. Only Name is needed.
type Group struct {
	Name              string
	Min, Max, Desired int
	// Zones are us-east-1a when empty.
	Zones []string
	// InstanceType is g4dn.xlarge when empty and there are no Overrides.
	InstanceType string
	// LaunchTemplate is one of its own, version 1, when nil.
	LaunchTemplate *LaunchTemplate
	// Overrides make the group one with a mixed instances policy.
	Overrides []Override
	// OnDemandBase and OnDemandPercent belong to the mixed instances policy; an
	// instance launched with OnDemandPercent 0 is a spot instance.
	OnDemandBase, OnDemandPercent int
	// DesiredCapacityType is units when empty; vcpu and memory-mib are the others.
	DesiredCapacityType string
	Tags                map[string]string
	// Protected is NewInstancesProtectedFromScaleIn.
	Protected bool
	// Suspended names processes, such as Launch, Terminate and AZRebalance.
	Suspended           []string
	MaxInstanceLifetime int // seconds
	// HealthCheck is EC2 when empty.
	HealthCheck string
	// Refresh is the status of an instance refresh, such as InProgress; empty without one.
	Refresh           string
	CapacityRebalance bool
	// LaunchHook and TerminateHook hold instances in Pending:Wait and
	// Terminating:Wait until CompleteHook.
	LaunchHook, TerminateHook bool
	WarmPool                  *WarmPool
	ScheduledActions          []ScheduledAction
	Policies                  []Policy
	// Status is "Delete in progress" while a group is being deleted, else empty.
	Status string
}

// withDefaults is a copy of its own, with what the test left open.
func (g Group) withDefaults() Group {
	g.Zones = slices.Clone(g.Zones)
	if len(g.Zones) == 0 {
		g.Zones = []string{region + "a"}
	}
	if g.InstanceType == "" && len(g.Overrides) == 0 {
		g.InstanceType = "g4dn.xlarge"
	}
	g.Max = max(g.Max, g.Desired)
	g.Tags = maps.Clone(g.Tags)
	g.Suspended = slices.Clone(g.Suspended)
	return g
}

// first is the type of the instances that the group launches.
func (g Group) first() string {
	if len(g.Overrides) > 0 {
		return g.Overrides[0].InstanceType
	}
	return g.InstanceType
}

// LaunchTemplate names one version of a launch template.
type LaunchTemplate struct{ ID, Name, Version string }

// Override is one line of a mixed instances policy.
type Override struct {
	InstanceType string
	// Weight is the WeightedCapacity; 0 means none is given.
	Weight int
	// ByAttributes has the group name attributes instead of InstanceType, which is what AWS
	// chooses by them.
	ByAttributes bool
}

// WarmPool is a pool of prepared instances.
type WarmPool struct {
	MinSize, MaxPrepared int
	State                string // Stopped when empty; Running and Hibernated are the others
}

// ScheduledAction is one of a group's. A size of -1 is not given.
type ScheduledAction struct {
	Name              string
	Min, Max, Desired int
	Recurrence        string
}

// Policy is a scaling policy of a group.
type Policy struct{ Name, Type string }

// Instance is one of a group's, as it stands. The zero Protected and Weight are
// AWS's own.
type Instance struct {
	ID, Group, Zone, Type string
	// State is the LifecycleState: Pending, InService, Terminating:Wait, …
	State     string
	Health    string // Healthy or Unhealthy
	Protected bool
	// Weight is what the instance counts toward the desired capacity.
	Weight   int
	Spot     bool
	Launched time.Time

	weighted bool // the answer carries the weight
	activity int  // under way for it, by index; -1 for none
	template LaunchTemplate
}

// The states of the lifecycle that the model itself moves instances through.
const (
	Pending            = "Pending"
	PendingWait        = "Pending:Wait"
	PendingProceed     = "Pending:Proceed"
	InService          = "InService"
	Terminating        = "Terminating"
	TerminatingWait    = "Terminating:Wait"
	TerminatingProceed = "Terminating:Proceed"
	Standby            = "Standby"
	Warmed             = "Warmed:Stopped"
)

// counted says whether the instance is part of the desired capacity: instances
// in standby, in the warm pool and on their way out are not (Lifecycle).
func (i *Instance) counted() bool {
	switch i.State {
	case Pending, PendingWait, PendingProceed, InService:
		return true
	default:
		return false
	}
}

// shielded says whether scale-in has to spare the instance. Protection starts
// when the instance is InService (Protection): one that boots is fair game.
func (i *Instance) shielded() bool { return i.Protected && i.State == InService }

func (i *Instance) leaving() bool {
	switch i.State {
	case Terminating, TerminatingWait, TerminatingProceed, "Terminated":
		return true
	default:
		return false
	}
}

// group is a Group with what became of it.
type group struct {
	Group
	arn        string
	created    time.Time
	instances  []*Instance
	activities []Activity // oldest first

	inFlight  []bool // launches begun at EC2 and not seen yet; whether new instances were protected then
	capacity  int    // launches that will still succeed; -1 is no limit
	shortage  string // StatusMessage of those that do not
	cooldown  bool
	busy      bool // every write meets a scaling activity in progress
	lastCause string

	before  *group    // as it was ahead of the last write, for stale answers
	written time.Time // when that was
}

func (g *group) suspended(process string) bool { return slices.Contains(g.Suspended, process) }

// live is the capacity that instances make up.
func (g *group) live() int {
	n := 0
	for _, i := range g.instances {
		if i.counted() {
			n += i.Weight
		}
	}
	return n
}

func (g *group) find(id string) *Instance {
	for _, i := range g.instances {
		if i.ID == id {
			return i
		}
	}
	return nil
}

// remember keeps the group as it is for stale answers. Activities keep their
// number, not their status: a finished one shows as finished.
func (g *group) remember() {
	was := *g
	was.before = nil
	was.Tags = maps.Clone(g.Tags)
	was.Suspended = slices.Clone(g.Suspended)
	was.instances = make([]*Instance, len(g.instances))
	values := make([]Instance, len(g.instances))
	for n, i := range g.instances {
		values[n] = *i
		was.instances[n] = &values[n]
	}
	was.activities = g.activities[:len(g.activities):len(g.activities)]
	g.before = &was
}
