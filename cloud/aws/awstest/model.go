package awstest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Activity is a scaling activity.
type Activity struct {
	ID, Description, Cause string
	// Status is its StatusCode: Successful, Failed, Cancelled, InProgress, …
	Status        string
	StatusMessage string
	Start, End    time.Time
	Progress      int
	Details       string
}

const (
	busyMessage = "Scaling activity 00000000-0000-0000-0000-000000000001 is in progress and blocks this action"
	// allProtected is of Protection.
	allProtected = "Could not scale to desired capacity because all remaining instances are protected from scale in."
)

// activityLocked notes one that is under way, and returns its index.
func (s *Stub) activityLocked(g *group, status, description, cause string) int {
	s.serial++
	g.activities = append(g.activities, Activity{
		ID: fmt.Sprintf("00000000-0000-0000-0000-%012x", s.serial), Status: status,
		Description: description, Cause: cause, Start: s.tickLocked(),
		Details: `{"Subnet ID":"subnet-00000000","Availability Zone":"` + g.Zones[0] + `"}`,
	})
	return len(g.activities) - 1
}

// endLocked ends an activity; -1 is none.
func (s *Stub) endLocked(g *group, index int, status, message string) {
	if index < 0 {
		return
	}
	a := &g.activities[index]
	a.Status, a.StatusMessage, a.End, a.Progress = status, message, s.tickLocked(), 100
}

// missing is the capacity that is neither there nor on its way.
func (g *group) missing() int { return g.Desired - g.live() - len(g.inFlight)*g.weight() }

// kind is what the next instance is; the first override stands for the choice
// that an allocation strategy would make.
func (g *group) kind() Override {
	if len(g.Overrides) > 0 {
		return g.Overrides[0]
	}
	return Override{InstanceType: g.InstanceType}
}

func (g *group) weight() int { return max(1, g.kind().Weight) }

// launchLocked launches up to n instances that the desired capacity lacks, and
// says how many it did. One activity stands for all that could not be launched,
// as one request to EC2 stands behind them.
func (s *Stub) launchLocked(g *group, n int) (launched int) {
	if g.suspended("Launch") {
		return 0
	}
	for launched < n && g.missing() > 0 {
		if !s.admitLocked(g) {
			return launched
		}
		s.arriveLocked(g)
		launched++
	}
	return launched
}

// admitLocked says whether EC2 has room for one more instance of the group.
// Otherwise it notes the failure (Launch failures).
func (s *Stub) admitLocked(g *group) bool {
	if g.capacity != 0 {
		if g.capacity > 0 {
			g.capacity--
		}
		return true
	}
	at := s.activityLocked(g, "InProgress", "Launching a new EC2 instance.  Status Reason: "+g.shortage,
		s.causeLocked(g, "an instance was started in response to a difference between desired and actual capacity"))
	s.endLocked(g, at, "Failed", g.shortage)
	return false
}

func (s *Stub) causeLocked(g *group, then string) string {
	cause := "At " + s.timeLocked().UTC().Format(time.RFC3339) + " " + then + "."
	if g.lastCause != "" {
		return g.lastCause + "  " + cause
	}
	return cause
}

// arriveLocked adds an instance that boots, in the zone that has the fewest.
func (s *Stub) arriveLocked(g *group) *Instance {
	s.serial++
	kind := g.kind()
	i := &Instance{
		ID: fmt.Sprintf("i-%017x", s.serial), Group: g.Name, Zone: g.emptiest(), Type: kind.InstanceType, State: Pending,
		Health: "Healthy", Protected: g.Protected, Weight: g.weight(), weighted: kind.Weight > 0,
		Spot: len(g.Overrides) > 0 && g.OnDemandPercent == 0 && g.live() >= g.OnDemandBase, template: *g.LaunchTemplate,
	}
	i.activity = s.activityLocked(g, "PreInService", "Launching a new EC2 instance: "+i.ID,
		s.causeLocked(g, "an instance was started in response to a difference between desired and actual capacity"))
	i.Launched = s.timeLocked()
	g.instances = append(g.instances, i)
	s.owner[i.ID] = g
	return i
}

// landLocked ends the oldest launch that is under way.
//
// The document says that an instance inherits the group's setting when it
// launches. Taken here as the moment it arrives, unless InheritEarly is on.
func (s *Stub) landLocked(g *group) *Instance {
	i := s.arriveLocked(g)
	if s.early {
		i.Protected = g.inFlight[0]
	}
	g.inFlight = g.inFlight[1:]
	return i
}

func (g *group) zones() map[string]int {
	count := make(map[string]int, len(g.Zones))
	for _, i := range g.instances {
		if i.counted() {
			count[i.Zone]++
		}
	}
	return count
}

func (g *group) emptiest() string {
	if len(g.Zones) == 1 {
		return g.Zones[0]
	}
	count := g.zones()
	return slices.MinFunc(g.Zones, func(a, b string) int { return cmp.Compare(count[a], count[b]) })
}

// scaleInLocked ends instances until no more run than are desired.
//
// Assumed: AWS does so in the very moment that the desired capacity is lowered,
// which leaves nobody the time to raise it again. DeferScaleIn has it wait for
// the next Step.
//
// With the process Terminate suspended only instances that boot can be chosen
// ("Considerations" of Processes: it "applies only to instances that are
// currently in the InService state").
func (s *Stub) scaleInLocked(g *group) {
	for excess := g.live() - g.Desired; excess > 0; excess = g.live() - g.Desired {
		victim := s.victimLocked(g, excess)
		if victim == nil {
			if !g.suspended("Terminate") {
				s.blockedLocked(g)
			}
			return
		}
		s.killLocked(g, victim, Victim, s.causeLocked(g, "an instance was taken out of service in response to a difference between desired and actual capacity"))
	}
}

// blockedLocked notes once, not at every look, that all are protected. Assumed:
// a status of Failed; the document gives the message alone.
func (s *Stub) blockedLocked(g *group) {
	if n := len(g.activities); n > 0 && g.activities[n-1].StatusMessage == allProtected {
		return
	}
	at := s.activityLocked(g, "InProgress", "Terminating EC2 instance", s.causeLocked(g, "the group was to be scaled in"))
	s.endLocked(g, at, "Failed", allProtected)
}

// victimLocked chooses by the default termination policy: from the zone that has
// the most instances of those that are not protected. Which one there depends on
// templates and billing hours, so the choice is a pseudo-random one, or, with
// WorstVictims, the one in service for the longest time.
//
// Assumed: an instance that still boots may be chosen like any other.
func (s *Stub) victimLocked(g *group, excess int) *Instance {
	var open []*Instance
	for _, i := range g.instances {
		if i.counted() && !i.shielded() && i.Weight <= excess && (i.State != InService || !g.suspended("Terminate")) {
			open = append(open, i)
		}
	}
	if len(open) == 0 {
		return nil
	}
	if s.worst {
		return slices.MinFunc(open, func(a, b *Instance) int {
			return cmp.Or(cmp.Compare(rank(a), rank(b)), a.Launched.Compare(b.Launched))
		})
	}
	count := g.zones()
	fullest := slices.MaxFunc(open, func(a, b *Instance) int { return cmp.Compare(count[a.Zone], count[b.Zone]) }).Zone
	open = slices.DeleteFunc(open, func(i *Instance) bool { return i.Zone != fullest })
	return open[s.chooseLocked(len(open))]
}

func rank(i *Instance) int {
	if i.State == InService {
		return 0
	}
	return 1
}

// chooseLocked is a pseudo-random number below n (splitmix64).
func (s *Stub) chooseLocked(n int) int {
	s.random += 0x9e3779b97f4a7c15
	z := s.random
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return int((z ^ z>>31) % uint64(n))
}

// killLocked begins an instance's end, and notes who wanted it.
func (s *Stub) killLocked(g *group, i *Instance, why Why, cause string) {
	s.note(func() {
		s.kills = append(s.kills, Kill{Instance: i.ID, Group: g.Name, State: i.State, Why: why, At: s.timeLocked(), Call: len(s.calls)})
	})
	s.endLocked(g, i.activity, "Cancelled", "")
	i.State = Terminating
	status := "InProgress"
	if g.TerminateHook {
		i.State, status = TerminatingWait, "MidLifecycleAction"
	}
	i.activity = s.activityLocked(g, status, "Terminating EC2 instance: "+i.ID, cause)
}

// bootLocked brings up to n instances that boot into service, or to the hook.
func (s *Stub) bootLocked(g *group, n int) (booted int) {
	for _, i := range g.instances {
		if booted == n {
			return booted
		}
		switch {
		case i.State == Pending && g.LaunchHook:
			i.State = PendingWait
			g.activities[i.activity].Status = "MidLifecycleAction"
		case i.State == Pending || i.State == PendingProceed:
			i.State = InService
			s.endLocked(g, i.activity, "Successful", "")
			i.activity = -1
		default:
			continue
		}
		booted++
	}
	return booted
}

// reapLocked removes what has terminated.
func (s *Stub) reapLocked(g *group) (reaped int) {
	g.instances = slices.DeleteFunc(g.instances, func(i *Instance) bool {
		if i.State != Terminating && i.State != TerminatingProceed {
			return false
		}
		s.endLocked(g, i.activity, "Successful", "")
		delete(s.owner, i.ID)
		i.State = "Terminated"
		s.gone = append(s.gone, *i)
		reaped++
		return true
	})
	return reaped
}

// stepLocked moves a group on by one stage of each instance's life: what ends is
// gone, what boots is in service, what is missing is launched. It says whether
// anything changed.
func (s *Stub) stepLocked(g *group) bool {
	changed := s.reapLocked(g) > 0
	changed = s.bootLocked(g, -1) > 0 || changed
	for len(g.inFlight) > 0 {
		s.landLocked(g)
		changed = true
	}
	changed = s.launchLocked(g, g.missing()) > 0 || changed
	before := len(g.activities)
	s.scaleInLocked(g)
	return changed || len(g.activities) != before
}

func (s *Stub) settleLocked(names []string) {
	for _, name := range names {
		for range 10 { // more stages than a life has
			if !s.stepLocked(s.groups[name]) {
				break
			}
		}
	}
}

func (s *Stub) arnLocked(name string) string {
	s.serial++
	return strings.Join([]string{
		"arn:aws:autoscaling", region, account, "autoScalingGroup",
		fmt.Sprintf("00000000-0000-0000-0000-%012x", s.serial), "autoScalingGroupName/" + name,
	}, ":")
}
