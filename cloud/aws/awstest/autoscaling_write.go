package awstest

import (
	"fmt"
	"time"
)

// writeLocked is what precedes every write: the group is there, and not busy.
func (s *Stub) writeLocked(r request) (*group, *Error) {
	g, e := s.groupLocked(r.str("AutoScalingGroupName"))
	if e != nil {
		return nil, e
	}
	return g, s.freeLocked(g)
}

func (s *Stub) freeLocked(g *group) *Error {
	if g.busy {
		return badParam("ScalingActivityInProgress", busyMessage)
	}
	g.remember()
	g.written = s.timeLocked()
	return nil
}

// setDesiredCapacityLocked: outside of the bounds nothing changes (Scaling limits).
func (s *Stub) setDesiredCapacityLocked(r request, _ *xmlWriter) *Error {
	desired, e := r.num("DesiredCapacity", -1)
	if e != nil {
		return e
	}
	g, e := s.writeLocked(r)
	if e != nil {
		return e
	}
	if desired > g.Max {
		return invalid("New SetDesiredCapacity value %d is above max value %d for the AutoScalingGroup.", desired, g.Max)
	}
	if desired < g.Min {
		return invalid("New SetDesiredCapacity value %d is below min value %d for the AutoScalingGroup.", desired, g.Min)
	}
	if r.flag("HonorCooldown") && g.cooldown {
		return badParam("ScalingActivityInProgress", busyMessage)
	}
	s.desireLocked(g, desired)
	return nil
}

func (s *Stub) desireLocked(g *group, desired int) {
	if desired != g.Desired {
		g.lastCause = fmt.Sprintf("At %s a user request explicitly set group desired capacity changing the desired capacity from %d to %d.",
			s.tickLocked().UTC().Format(time.RFC3339), g.Desired, desired)
		g.Desired = desired
	}
	if !s.deferred {
		s.scaleInLocked(g)
	}
}

// terminateLocked ends instances by their ids: one by InstanceId, or up to 100
// of one group by InstanceIds. Protection does not stop it (Protection).
//
// Assumed: it works in every lifecycle state but those of the warm pool, and
// with the process Terminate suspended; of several instances all are ended or,
// when there is something wrong with one, none.
func (s *Stub) terminateLocked(r request, w *xmlWriter) *Error {
	ids := r.list("InstanceIds.member")
	many := len(ids) > 0
	if !many {
		ids = []string{r.str("InstanceId")}
	}
	g, e := s.doomedLocked(ids)
	if e != nil {
		return e
	}
	if many && r.str("AutoScalingGroupName") != g.Name {
		return invalid("Instance %s is not part of Auto Scaling group %s", ids[0], r.str("AutoScalingGroupName"))
	}
	if e := s.freeLocked(g); e != nil {
		return e
	}
	if r.flag("ShouldDecrementDesiredCapacity") {
		if e := s.decrementLocked(g, ids); e != nil {
			return e
		}
	}
	ended := make([]int, 0, len(ids))
	for _, id := range ids {
		i := g.find(id)
		if !i.leaving() {
			s.killLocked(g, i, Asked, s.causeLocked(g, "instance "+id+" was taken out of service in response to a user request"))
		}
		if i.activity >= 0 {
			ended = append(ended, i.activity)
		}
	}
	if !s.deferred {
		s.scaleInLocked(g) // a second decrement may have cost another instance
	}
	w.activities(g, ended, many)
	return nil
}

// decrementLocked takes the instances off the desired capacity.
//
// Assumed: nothing for one that is not part of it, such as one in standby; but
// for one that ends already as much again, unless OnRepeatedTerminate differs.
func (s *Stub) decrementLocked(g *group, ids []string) *Error {
	desired := g.Desired
	for _, id := range ids {
		if i := g.find(id); i.counted() || i.leaving() && s.repeated == DecrementsAgain {
			desired -= i.Weight
		}
	}
	if desired < g.Min && desired != g.Desired {
		return invalid("Currently, desiredSize equals minSize (%d). Terminating instance without replacement will violate group's min size constraint. "+
			"Either set shouldDecrementDesiredCapacity flag to false or lower group's min size.", g.Min)
	}
	g.Desired = desired
	return nil
}

// doomedLocked is the group of the instances, unless one cannot be ended.
func (s *Stub) doomedLocked(ids []string) (*group, *Error) {
	if len(ids) > 100 {
		return nil, invalid("The number of instance IDs is greater than the maximum of 100")
	}
	for _, id := range ids {
		g := s.owner[id]
		switch {
		case g == nil || g != s.owner[ids[0]]:
			return nil, invalid("Instance Id not found - No managed instance found for instance ID: %s", id)
		case isWarmed(g.find(id)):
			return nil, invalid("The instance %s is in a warm pool", id)
		case g.find(id).leaving() && s.repeated == IsRefused:
			return nil, badParam("ScalingActivityInProgress", busyMessage)
		}
	}
	return s.owner[ids[0]], nil
}

// activities writes those of a termination, which has an element of its own for
// a single one.
func (w *xmlWriter) activities(g *group, indexes []int, many bool) {
	if many {
		w.open("Activities")
		defer w.close("Activities")
	}
	for _, n := range indexes {
		name := "Activity"
		if many {
			name = "member"
		}
		w.in(name, func() { w.activity(g, &g.activities[n]) })
	}
}

// updateGroupLocked: when new bounds leave the desired capacity outside, it
// follows them ("UpdateAutoScalingGroup" of the API reference).
func (s *Stub) updateGroupLocked(r request, _ *xmlWriter) *Error {
	g, e := s.writeLocked(r)
	if e != nil {
		return e
	}
	least, e := r.num("MinSize", g.Min)
	if e != nil {
		return e
	}
	most, e := r.num("MaxSize", g.Max)
	if e != nil {
		return e
	}
	desired, e := r.num("DesiredCapacity", min(max(g.Desired, least), most))
	if e != nil {
		return e
	}
	switch {
	case least > most:
		return invalid("Max bound, %d, must be greater than or equal to min bound, %d", most, least)
	case desired < least || desired > most:
		return invalid("Desired capacity:%d must be between the specified min size:%d and max size:%d", desired, least, most)
	}
	g.Min, g.Max = least, most
	if r.has("NewInstancesProtectedFromScaleIn") {
		g.Protected = r.flag("NewInstancesProtectedFromScaleIn")
	}
	s.desireLocked(g, desired)
	return nil
}

// setProtectionLocked: either all instances are changed or none. The message of
// AWS: https://github.com/infrahouse/infrahouse-toolkit/issues/223
func (s *Stub) setProtectionLocked(r request, _ *xmlWriter) *Error {
	g, e := s.writeLocked(r)
	if e != nil {
		return e
	}
	ids := r.list("InstanceIds.member")
	if len(ids) > 50 { // "You can specify up to 50 instances."
		return invalid("The number of instance IDs is greater than the maximum of 50")
	}
	for _, id := range ids {
		i := g.find(id)
		switch {
		case i == nil:
			return invalid("The instance %s is not part of Auto Scaling group %s.", id, g.Name)
		case i.State != InService && i.State != "EnteringStandby" && i.State != Standby:
			return invalid("The instance %s is not in InService or EnteringStandby or Standby.", id)
		}
	}
	for _, id := range ids {
		g.find(id).Protected = r.flag("ProtectedFromScaleIn")
	}
	if !s.deferred {
		s.scaleInLocked(g) // what has waited for an instance to be laid open
	}
	return nil
}

// processes are all that can be suspended (Processes), and what is when a call
// names none.
var processes = []string{
	"Launch", "Terminate", "AddToLoadBalancer", "AlarmNotification", "AZRebalance",
	"HealthCheck", "InstanceRefresh", "ReplaceUnhealthy", "ScheduledActions",
}

func (s *Stub) suspendLocked(r request, _ *xmlWriter) *Error {
	return s.switchLocked(r, (*group).suspend)
}

func (s *Stub) resumeLocked(r request, _ *xmlWriter) *Error {
	return s.switchLocked(r, (*group).resume)
}

func (s *Stub) switchLocked(r request, change func(*group, []string)) *Error {
	g, e := s.writeLocked(r)
	if e != nil {
		return e
	}
	names := r.list("ScalingProcesses.member")
	if len(names) == 0 {
		names = processes
	}
	change(g, names)
	if !s.deferred {
		s.scaleInLocked(g) // what a suspended Terminate has kept
	}
	return nil
}
