package provider

import (
	"cmp"
	"time"

	"go.uber.org/zap"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/logkey"
	"gpu-node-provider/proto"
	"gpu-node-provider/provider/nodegroup"
)

// Nothing is bought for what is on its way.
//
// From 1.36 on Cluster Autoscaler counts the nodes that a group is short of as
// upcoming only while it has a scale-up request of its own for the group, in memory
// (cluster-autoscaler/clusterstate/clusterstate.go, GetUpcomingNodes). Without one it
// requests nodes again for Pods that are about to get them: after its restart, when
// the cloud replaces a machine by itself, when a person raises the target. Such a
// call cannot be told from one for more nodes, but it need not be: any answer of OK
// opens a request, with which everything in flight counts, and what is still missing
// then is requested in the next loop. So the first IncreaseSize that meets capacity in
// flight without an open request buys only what exceeds that capacity.

// scaleUpRequest tracks whether Cluster Autoscaler has an open request for a group.
// The zero value has none. Server.mu guards it.
type scaleUpRequest struct {
	// expires is when Cluster Autoscaler gives the request up; zero without one.
	expires time.Time
	// ended is why the last request is no longer open.
	ended ending
}

// ending is why a request ended. It is a value in the log.
type ending string

const (
	endedFulfilled     ending = "fulfilled"      // nothing is in flight any more
	endedExpired       ending = "expired"        // the nodes took longer than the provision time
	endedLaunchFailed  ending = "launch_failed"  // the group is backed off, and its upcoming nodes do not count
	endedNewAutoscaler ending = "new_autoscaler" // requests are kept in the memory of a process
	endedUnreadAnswer  ending = "unread_answer"  // the caller took the call for failed
)

func (r *scaleUpRequest) isOpen(now time.Time) bool { return now.Before(r.expires) }

func (r *scaleUpRequest) end(why ending) { *r = scaleUpRequest{ended: why} }

// followRequestLocked ends the group's request when Cluster Autoscaler does.
func (s *Server) followRequestLocked(before, g *groupView) {
	r := &s.recordLocked(g.ID).request
	switch {
	case r.expires.IsZero():
	case g.inFlight == 0:
		r.end(endedFulfilled)
	case !r.isOpen(s.now()):
		r.end(endedExpired)
	case g.failedSince(before):
		r.end(endedLaunchFailed)
	default:
		return
	}
	g.unrequested = g.inFlight
	if g.unrequested > 0 && (before == nil || before.unrequested == 0) {
		s.log.Info("capacity in flight without an open scale-up request", zap.String(logkey.NodeGroup, g.ID),
			zap.Int(logkey.InFlight, g.inFlight), zap.String(logkey.Reason, string(cmp.Or(r.ended, "not_requested"))))
	}
}

// failedSince reports whether a launch has failed that had not failed before.
func (g *groupView) failedSince(before *groupView) bool {
	known := map[string]bool{}
	if before != nil {
		for _, i := range before.state.Instances {
			known[i.ID] = i.Error != nil
		}
	}
	for _, i := range g.state.Instances {
		if i.Error != nil && !known[i.ID] {
			return true
		}
	}
	return false
}

// autoscalerIsNew ends all requests: a new process has none.
func (s *Server) autoscalerIsNew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	ended := false
	for _, record := range s.groups {
		ended = ended || !record.request.expires.IsZero()
		record.request.end(endedNewAutoscaler)
	}
	if ended {
		s.publishLocked(s.current.Load().catalogue, nil, time.Time{})
	}
}

// absorb returns how many of the nodes that an IncreaseSize asks for are in flight
// already, unknown to Cluster Autoscaler.
func (w *write) absorb(now cloud.Group, delta int) int {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	if w.record.request.isOpen(w.s.now()) {
		return 0
	}
	return min(delta, w.s.inFlight(w.view.Group, now))
}

// answered opens a request: the caller is about to read OK.
func (w *write) answered() {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.record.request = scaleUpRequest{expires: w.s.now().Add(w.s.provisionTime(w.view.Group))}
}

// unread ends the request, because the caller takes the call for failed.
func (w *write) unread() {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.record.request.end(endedUnreadAnswer)
}

// defaultProvisionTime is the default of --max-node-provision-time.
const defaultProvisionTime = 15 * time.Minute

// provisionTime is how long Cluster Autoscaler waits for a node of the group: the
// group's own setting, else the default of its last NodeGroupGetOptions.
func (s *Server) provisionTime(g *nodegroup.Group) time.Duration {
	if overrides, _ := g.Overrides(); overrides.MaxNodeProvisionTime != nil {
		return *overrides.MaxNodeProvisionTime
	}
	return cmp.Or(time.Duration(s.provision.Load()), defaultProvisionTime)
}

// noteDefaults remembers the autoscaler's own --max-node-provision-time.
func (s *Server) noteDefaults(defaults *proto.NodeGroupAutoscalingOptions) {
	d, ok := choose(nil, defaults.GetMaxNodeProvisionDuration(), defaults.GetMaxNodeProvisionTime())
	if ok && s.provision.Load() != int64(d) { // thousands of calls bring the same one
		s.provision.Store(int64(d))
	}
}

// countUnavoidable counts what absorbing cannot prevent: growth here while
// capacity that Cluster Autoscaler gave up on is in flight in another group.
func (s *Server) countUnavoidable(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.current.Load().order {
		switch {
		case g.ID == id || g.inFlight == 0:
		case s.recordLocked(g.ID).request.ended == endedUnreadAnswer:
			s.metrics.unavoidable.WithLabelValues("after_timeout").Inc()
			return
		case g.failedSince(nil):
			s.metrics.unavoidable.WithLabelValues("after_partial_launch_failure").Inc()
			return
		}
	}
}
