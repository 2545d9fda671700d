package aws

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/proto"
)

// leastTime is what the provider leaves of a caller's deadline for the answer.
const leastTime = 500 * time.Millisecond

// sentInTime: with less time left AWS would carry out what the caller takes for failed.
// Protection may be switched on at any time, and so may be kept what arrives during a
// cancellation.
func (w *region) sentInTime(s *sent) {
	if s.action != setDesired && s.action != terminate || s.by.deadline.IsZero() || w.keepsArrivals(s) {
		return
	}
	if left := time.Until(s.by.deadline); left < leastTime {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.fail("%s was sent %s before the deadline of its call", s.action, left)
	}
}

// keepsArrivals reports whether a call for fewer nodes raises the desired capacity.
func (w *region) keepsArrivals(s *sent) bool {
	desired, err := strconv.Atoi(s.desired)
	return err == nil && s.action == setDesired && s.by.kind != "increase" && desired > w.stub.Group(s.group).Desired
}

// happens has others than the provider change AWS.
func (w *region) happens(event func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.happensLocked(event)
}

func (w *region) happensLocked(event func()) {
	before := w.truths()
	event()
	after := w.truths()
	w.say("    AWS: t4 %v, l4 %v", after["t4"], after["l4"])
	w.driftedLocked(before, after)
	w.nobodyDiedLocked()
}

func (w *region) driftedLocked(before, after map[string]truth) {
	w.drift += max(0, gpusUsed(after)-gpusUsed(before))
	for _, id := range pools {
		b, a := before[id].target(), after[id].target()
		w.raised[id] += max(0, a-b)
		w.fallen[id] += max(0, b-a)
		w.unclear = w.unclear || a < b
		w.changedLocked(id, b, a)
		w.followLocked(id, after[id])
		w.moved[id] = w.moved[id] || a != b
		for c := range w.active {
			if c.group == id {
				c.arrived += max(0, after[id].live-before[id].live)
			}
		}
	}
}

func (w *region) changedLocked(id string, before, after int) {
	if before != after {
		w.version[id]++
		w.shown[id] = notKnown
	}
}

// followLocked notes what the group's increase may find in flight.
func (w *region) followLocked(id string, now truth) {
	for c := range w.active {
		if c.group == id {
			c.inFlight, c.running = max(c.inFlight, now.inFlight()), max(c.running, now.inService)
		}
	}
	if now.inFlight() <= 0 {
		w.absorbed[id] = false
	}
}

// nobodyDiedLocked: no machine ends in service that the caller has not named.
func (w *region) nobodyDiedLocked() {
	kills := w.stub.Kills()
	for _, k := range kills[w.judged:] {
		switch {
		case k.Why == awstest.Victim && k.State == awstest.InService:
			w.fail("instance %s of %s was in service, and scale-in ended it", k.Instance, k.Group)
		case k.Why == awstest.Asked && !w.asked[k.Instance]:
			w.fail("instance %s of %s was ended by its id, and nobody asked for that", k.Instance, k.Group)
		}
	}
	w.judged = len(kills)
}

// judgeLocked holds the effect of a call of AWS against the rules.
func (w *region) judgeLocked(s *sent, before, after map[string]truth) {
	if !s.write {
		w.readingLocked(s, before)
		return
	}
	w.nobodyDiedLocked()
	w.wrote[s.group] = w.now()
	defer func() { s.version = w.version[s.group] }()
	switch {
	case s.from.dead.Load(): // a new process cannot know of it
		w.driftedLocked(before, after)
		return
	case !w.active[s.by] && (s.by.read || s.by.ended.Before(w.acked[s.group])): // it was repeated, or another write came after it
		w.driftedLocked(before, after)
		w.moved[s.group], w.outside[s.group] = true, w.now()
		return
	}
	for other := range w.active {
		other.overlaps = other.overlaps || other != s.by
	}
	for _, id := range pools {
		b, a := before[id], after[id]
		w.followLocked(id, a)
		if id == s.group {
			s.known = w.shown[id] == aWrite
			if s.action == setDesired { // machines may have come since the reading
				s.known = s.by.seen != nil && s.by.seen.live == b.live
			}
		}
		w.changedLocked(id, b.target(), a.target())
		switch {
		case a == b:
		case s.action == setDesired && a.desired > b.target():
			w.grewLocked(s, id, b, after)
		case s.action == setDesired:
			s.by.lowered += b.desired - a.desired
			if a.desired < b.desired {
				s.by.arrived = 0
			}
			s.known = s.known && a.live == b.live // AWS's choice is not told
		case s.action == terminate:
			w.aboveMinimumLocked(id, b, a)
		}
	}
}

// grewLocked holds growth against the limits and the need.
func (w *region) grewLocked(s *sent, id string, before truth, all map[string]truth) {
	after := all[id]
	grown := after.desired - max(before.target(), s.by.base)
	if s.by.kind != "increase" {
		if after.desired > max(s.by.began[id].target(), s.by.base) && !w.deniedLocked(id) {
			w.fail("a call of %s raised the desired capacity of %s from %d to %d", s.by.kind, id, before.target(), after.desired)
		}
		s.by.lowered -= after.desired - before.desired
		return
	}
	s.by.grown += after.desired - before.target()
	if most := w.group(id).MaxSize; after.desired > most {
		w.fail("%s grew to %d, its maximum is %d", id, after.desired, most)
	}
	if used := gpusUsed(all); used > w.quota+max(0, w.drift) {
		w.fail("%s grew by %d to %d, and %d GPUs are used of %d (%d of them added by others since the last reading)", id, grown, after.desired, used, w.quota, w.drift)
	}
	if most := s.by.need + s.by.failed + max(0, w.raised[id]) + max(0, s.by.running-s.by.ready); after.desired > most {
		w.fail("%s grew from %d to %d, and %d nodes are needed (in flight %d, failed %d, raised by others %d)",
			id, before.target(), after.desired, s.by.need, before.inFlight(), s.by.failed, w.raised[id])
	}
	if grown > 0 {
		w.growth = append(w.growth, growth{s.by.at, id, grown})
		w.withinSurgeLocked()
	}
}

// withinSurgeLocked holds what was requested in the last minutes against the quota's surge.
func (w *region) withinSurgeLocked() {
	if w.unclear {
		return
	}
	sum := 0
	for _, g := range w.growth {
		if w.now().Sub(g.at) < surgeWindow {
			sum += g.nodes * gpusOf[g.group]
		}
	}
	if sum > w.surge {
		w.fail("%d GPUs were requested within %s, the surge is %d", sum, surgeWindow, w.surge)
	}
}

// refund takes placeholders that were given up off the surge, the newest first.
func (w *region) refund(id string, nodes int) {
	for i := len(w.growth) - 1; i >= 0 && nodes > 0; i-- {
		if w.growth[i].group != id {
			continue
		}
		back := min(nodes, w.growth[i].nodes)
		w.growth[i].nodes -= back
		nodes -= back
	}
}

// aboveMinimumLocked: a termination leaves as many as the file wants at least, by what the
// provider has read last of all groups.
func (w *region) aboveMinimumLocked(id string, before, after truth) {
	if least := w.group(id).MinSize; after.target() < before.target() && after.target() < least && w.fallen[id] <= 0 {
		w.fail("%s went down from %d to %d, its minimum is %d", id, before.target(), after.target(), least)
	}
}

// readingLocked takes note of what a call of the provider gets to know.
func (w *region) readingLocked(s *sent, now map[string]truth) {
	if s.action != describe {
		return
	}
	if s.by.group != "" {
		s.by.base = max(s.by.base, now[s.by.group].target())
	}
	for _, id := range pools {
		w.followLocked(id, now[id])
	}
	s.now = now[s.by.group]
	s.whole = &reading{version: maps.Clone(w.version), drift: w.drift, raised: maps.Clone(w.raised), fallen: maps.Clone(w.fallen)}
}

// told takes note of an answer that the provider has read.
func (w *region) told(s *sent, t trouble, answer *http.Response, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err != nil || answer.StatusCode != http.StatusOK:
		if s.write { // it may have been carried out
			w.shown[s.group] = notKnown
		}
	case s.write:
		w.acked[s.group] = w.now()
		if s.known && w.version[s.group] == s.version {
			w.shown[s.group] = aWrite
		}
	case t == stale:
		s.by.lagged = true
		for _, id := range pools {
			if w.shown[id] != aWrite { // it may hide a write that was not acknowledged, and has been seen
				w.shown[id], w.moved[id] = notKnown, true
			}
		}
	case s.whole == nil:
	case s.by.group == "":
		s.by.whole = s.whole
	default:
		s.by.seen, s.by.arrived = &s.now, 0
	}
}

// restarted takes note that a new process remembers nothing but what AWS tells it.
func (w *region) restarted() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.settled, w.readAt = w.now().Add(time.Minute), w.now()
	var growth []growth
	for _, id := range pools {
		w.shown[id], w.absorbed[id], w.moved[id] = notKnown, false, false
		growth = append(growth, w.rememberedLocked(id)...)
	}
	w.growth = growth
}

// rememberedLocked is what a new process can tell of the surge: units that are there. One
// counts from when it was requested or launched, whichever is earlier.
func (w *region) rememberedLocked(id string) []growth {
	var requests, units []time.Time
	for _, g := range w.growth {
		for range g.nodes {
			if g.group == id {
				requests = append(requests, g.at)
			}
		}
	}
	g := w.stub.Group(id)
	for _, i := range g.Instances {
		if !strings.HasPrefix(i.State, awstest.Terminating) {
			units = append(units, i.Launched)
		}
	}
	for range g.Desired - g.Live() {
		units = append(units, w.now())
	}
	slices.SortFunc(requests, time.Time.Compare)
	slices.SortFunc(units, time.Time.Compare)
	var left []growth
	for n := range min(len(requests), len(units)) {
		at := requests[n]
		if units[n].Before(at) {
			at = units[n]
		}
		left = append(left, growth{at, id, 1})
	}
	return left
}

// holds is what must be true whenever no call is under way.
func (w *region) holds() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nobodyDiedLocked()
	maxima := w.maxima()
	listed := map[string]bool{}
	for _, id := range pools {
		target, units := w.target(id), 0
		for _, i := range w.instances(id) {
			if i.GetStatus().GetInstanceState() != proto.InstanceStatus_instanceDeleting {
				units++
			}
			if listed[i.GetId()] {
				w.fail("%s is listed twice", i.GetId())
			}
			listed[i.GetId()] = true
			if w.past[i.GetId()] {
				w.fail("placeholder %s was gone and is there again", i.GetId())
			}
		}
		if units != target {
			w.fail("the target of %s is %d, and %d units are listed", id, target, units)
		}
		if maxima[id] < target {
			w.fail("the maximum of %s is %d, its target %d", id, maxima[id], target)
		}
		if now := w.truth(id); w.shown[id] != notKnown && target != now.target() {
			w.fail("the target of %s is shown as %d, and is %d (desired %d, live %d)", id, target, now.target(), now.desired, now.live)
		}
	}
	for id := range w.listed {
		if isPlaceholder(id) && !listed[id] {
			w.past[id] = true
		}
	}
	w.listed = listed
	return w.found
}
