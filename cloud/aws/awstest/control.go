package awstest

import (
	"fmt"
	"maps"
	"slices"
)

// RepeatedTerminate is what a call does that ends an instance which ends already.
type RepeatedTerminate int

// No document says which it is. DecrementsAgain is the worst and the default.
const (
	DecrementsAgain RepeatedTerminate = iota
	ChangesNothing
	IsRefused // ScalingActivityInProgress
)

// CreateGroup adds a group. It has no instances until it is moved: Settle gives
// it all that it desires.
func (s *Stub) CreateGroup(spec Group) {
	spec = spec.withDefaults()
	s.mu.Lock()
	defer s.mu.Unlock()
	if spec.LaunchTemplate == nil {
		spec.LaunchTemplate = s.templateLocked(spec)
	}
	g := &group{Group: spec, arn: s.arnLocked(spec.Name), created: s.tickLocked(), capacity: -1}
	s.addLocked(g)
	if s.immediate {
		s.settleLocked([]string{g.Name})
	}
}

// DeleteGroup removes a group at once, as if somebody had deleted it by force.
func (s *Stub) DeleteGroup(name string) {
	s.with(name, func(g *group) {
		for _, i := range g.instances {
			s.killLocked(g, i, Interrupted, "the group was deleted")
			delete(s.owner, i.ID)
			i.State = "Terminated"
			s.gone = append(s.gone, *i)
		}
		delete(s.groups, name)
		s.names = slices.DeleteFunc(s.names, func(n string) bool { return n == name })
	})
}

// with runs change on a group; a name that is not there is a mistake of the test.
func (s *Stub) with(name string, change func(*group)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.groups[name]
	if g == nil {
		panic(fmt.Sprintf("awstest: no group %q", name))
	}
	change(g)
}

// withInstance is with for the group of an instance.
func (s *Stub) withInstance(id string, change func(*group, *Instance)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.owner[id]
	if g == nil {
		panic(fmt.Sprintf("awstest: no instance %q", id))
	}
	change(g, g.find(id))
}

// Immediate has every write carried out to its end before it is answered.
func (s *Stub) Immediate(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.immediate = on
}

// DeferScaleIn has AWS look for victims at the next Step, not at the write.
func (s *Stub) DeferScaleIn(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deferred = on
}

// WorstVictims has scale-in choose what is in service before what still boots.
func (s *Stub) WorstVictims(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.worst = on
}

// InheritEarly has an instance take the group's protection as it was when its
// launch began, not when it arrives.
func (s *Stub) InheritEarly(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.early = on
}

// OnRepeatedTerminate chooses among what AWS might do.
func (s *Stub) OnRepeatedTerminate(do RepeatedTerminate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.repeated = do
}

// Step moves the named groups, or all, on by one stage: what ends is gone, what
// boots is in service, launches under way arrive, what is missing is launched,
// what is too much is ended.
func (s *Stub) Step(names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range s.orAllLocked(names) {
		s.stepLocked(s.groups[name])
	}
}

// Settle repeats Step until nothing moves any more.
func (s *Stub) Settle(names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settleLocked(s.orAllLocked(names))
}

func (s *Stub) orAllLocked(names []string) []string {
	if len(names) == 0 {
		return s.names
	}
	return names
}

// Launch launches up to n instances that the group lacks; they boot until Boot.
func (s *Stub) Launch(name string, n int) (launched int) {
	s.with(name, func(g *group) { launched = s.launchLocked(g, n) })
	return launched
}

// BeginLaunch has up to n launches under way that nobody can see yet. They
// arrive with Arrive or Step, whatever the desired capacity is by then.
func (s *Stub) BeginLaunch(name string, n int) (begun int) {
	s.with(name, func(g *group) {
		for begun < n && g.missing() > 0 && !g.suspended("Launch") && s.admitLocked(g) {
			g.inFlight = append(g.inFlight, g.Protected)
			begun++
		}
	})
	return begun
}

// Arrive ends up to n launches that are under way, and scales in if they have
// become too many. With inService they are in service at once.
func (s *Stub) Arrive(name string, n int, inService bool) (arrived int) {
	s.with(name, func(g *group) {
		for ; arrived < n && len(g.inFlight) > 0; arrived++ {
			i := s.landLocked(g)
			if inService {
				i.State = InService
				s.endLocked(g, i.activity, "Successful", "")
				i.activity = -1
			}
		}
		if !s.deferred {
			s.scaleInLocked(g)
		}
	})
	return arrived
}

// FailArrival ends up to n launches under way without an instance.
func (s *Stub) FailArrival(name string, n int, message string) (failed int) {
	s.with(name, func(g *group) {
		for ; failed < n && len(g.inFlight) > 0; failed++ {
			g.inFlight = g.inFlight[1:]
			at := s.activityLocked(g, "InProgress", "Launching a new EC2 instance.  Status Reason: "+message, s.causeLocked(g, "an instance was started in response to a difference between desired and actual capacity"))
			s.endLocked(g, at, "Failed", message)
		}
	})
	return failed
}

// Boot brings up to n instances that boot into service.
func (s *Stub) Boot(name string, n int) (booted int) {
	s.with(name, func(g *group) { booted = s.bootLocked(g, n) })
	return booted
}

// Reap removes the instances that have come to their end.
func (s *Stub) Reap(name string) (reaped int) {
	s.with(name, func(g *group) { reaped = s.reapLocked(g) })
	return reaped
}

// CompleteHook lets an instance go on that a lifecycle hook holds.
func (s *Stub) CompleteHook(id string) {
	s.withInstance(id, func(_ *group, i *Instance) {
		switch i.State {
		case PendingWait:
			i.State = PendingProceed
		case TerminatingWait:
			i.State = TerminatingProceed
		}
	})
}

// Capacity lets n more launches succeed; the next ones fail with the message, as
// a StatusMessage of AWS. With -1 all succeed.
func (s *Stub) Capacity(name string, n int, message string) {
	s.with(name, func(g *group) { g.capacity, g.shortage = n, message })
}

// SetDesired changes the desired capacity as somebody else would, by the API.
func (s *Stub) SetDesired(name string, desired int) {
	s.with(name, func(g *group) { s.desireLocked(g, desired) })
}

// SetSize changes the bounds of the desired capacity, and nothing else.
func (s *Stub) SetSize(name string, least, most int) {
	s.with(name, func(g *group) { g.Min, g.Max = least, most })
}

// Suspend and Resume change the processes of a group as somebody else would.
func (s *Stub) Suspend(name string, processes ...string) {
	s.with(name, func(g *group) { g.suspend(processes) })
}

// Resume undoes Suspend.
func (s *Stub) Resume(name string, processes ...string) {
	s.with(name, func(g *group) { g.resume(processes) })
}

// SetInstanceType changes what a group launches from now on; its instances stay as they are.
func (s *Stub) SetInstanceType(name, kind string) {
	s.with(name, func(g *group) { g.InstanceType = kind })
}

// SetTags replaces the tags of a group.
func (s *Stub) SetTags(name string, tags map[string]string) {
	s.with(name, func(g *group) { g.Tags = maps.Clone(tags) })
}

// Cooldown has the group refuse changes that honour the cooldown.
func (s *Stub) Cooldown(name string, on bool) {
	s.with(name, func(g *group) { g.cooldown = on })
}

// Busy has every write to the group refused as ScalingActivityInProgress.
func (s *Stub) Busy(name string, on bool) {
	s.with(name, func(g *group) { g.busy = on })
}

// Record adds an activity that has ended, such as a launch that failed.
func (s *Stub) Record(name, status, description, message string) {
	s.with(name, func(g *group) {
		at := s.activityLocked(g, "InProgress", description, s.causeLocked(g, "the activity was begun"))
		s.endLocked(g, at, status, message)
	})
}

// Add puts instances into the group in any lifecycle state, beyond what it
// desires if need be, and returns their ids.
func (s *Stub) Add(name, state string, n int) (ids []string) {
	s.with(name, func(g *group) {
		for range n {
			i := s.arriveLocked(g)
			i.State = state
			if state != Pending && state != PendingWait && state != PendingProceed {
				s.endLocked(g, i.activity, "Successful", "")
				i.activity = -1
			}
			ids = append(ids, i.ID)
		}
	})
	return ids
}

// SetState puts an instance into any lifecycle state.
func (s *Stub) SetState(id, state string) {
	s.withInstance(id, func(_ *group, i *Instance) { i.State = state })
}

// SetHealth reports an instance Healthy or Unhealthy.
func (s *Stub) SetHealth(id, health string) {
	s.withInstance(id, func(_ *group, i *Instance) { i.Health = health })
}

// SetProtected protects an instance from scale-in, or lays it open, as somebody
// else would.
func (s *Stub) SetProtected(id string, on bool) {
	s.withInstance(id, func(_ *group, i *Instance) { i.Protected = on })
}

// SetGroupProtected changes NewInstancesProtectedFromScaleIn as somebody else would.
func (s *Stub) SetGroupProtected(name string, on bool) {
	s.with(name, func(g *group) { g.Protected = on })
}

// End ends an instance for a reason of AWS's own, such as a spot interruption;
// the desired capacity stays, and a Step launches another.
func (s *Stub) End(id string, why Why) {
	s.withInstance(id, func(g *group, i *Instance) {
		i.Health = "Unhealthy"
		s.killLocked(g, i, why, s.causeLocked(g, "an instance was taken out of service: "+string(why)))
	})
}

// Detach takes an instance out of the group, alive; with decrement the desired
// capacity falls with it.
func (s *Stub) Detach(id string, decrement bool) {
	s.withInstance(id, func(g *group, i *Instance) {
		if decrement && i.counted() {
			g.Desired = max(g.Min, g.Desired-i.Weight)
		}
		g.instances = slices.DeleteFunc(g.instances, func(other *Instance) bool { return other == i })
		delete(s.owner, id)
		i.State = "Detached"
		s.gone = append(s.gone, *i)
	})
}

// GroupState is a group as it stands.
type GroupState struct {
	Group
	Instances []Instance
	// Activities are the newest first.
	Activities []Activity
	// InFlight are the launches under way that nobody can see.
	InFlight int
}

// Group is the named group as it stands.
func (s *Stub) Group(name string) (state GroupState) {
	s.with(name, func(g *group) {
		state = GroupState{Group: g.Group, InFlight: len(g.inFlight)}
		state.Tags, state.Suspended = maps.Clone(g.Tags), slices.Clone(g.Suspended)
		for _, i := range g.instances {
			state.Instances = append(state.Instances, *i)
		}
		state.Activities = slices.Clone(g.activities)
		slices.Reverse(state.Activities)
	})
	return state
}

// IDs are the group's instances in a lifecycle state, or all of them.
func (s GroupState) IDs(states ...string) (ids []string) {
	for _, i := range s.Instances {
		if len(states) == 0 || slices.Contains(states, i.State) {
			ids = append(ids, i.ID)
		}
	}
	return ids
}

// Live is the capacity of what is in service or boots.
func (s GroupState) Live() (n int) {
	for _, i := range s.Instances {
		if i.counted() {
			n += i.Weight
		}
	}
	return n
}

func (g *group) suspend(processes []string) {
	for _, p := range processes {
		if !g.suspended(p) {
			g.Suspended = append(g.Suspended, p)
		}
	}
}

func (g *group) resume(processes []string) {
	g.Suspended = slices.DeleteFunc(slices.Clone(g.Suspended), func(p string) bool { return slices.Contains(processes, p) })
}
