package provider

import (
	"time"

	"go.uber.org/zap"

	"gpu-node-provider/cloud/logkey"
)

// Capacity that Cluster Autoscaler has forgotten is not bought twice.
//
// From 1.36 on it counts what is in flight in a group only while it has a
// scale-up request of its own for it, in memory
// (cluster-autoscaler/clusterstate/clusterstate.go, GetUpcomingNodes). A new
// process has none, and asks again for the same Pods. Its request cannot be
// told from one for more, but it need not be: any answer of OK makes it count
// everything in flight, and what is still missing then it asks for in its next
// loop. So the next IncreaseSize of such a group is answered without buying, once.

// cause says how capacity came to be forgotten. It is a metric label.
type cause string

const (
	// causeNewAutoscaler: a Cluster Autoscaler process that is new to us.
	causeNewAutoscaler cause = "new_autoscaler"
	// causeProviderStart: we are new, and do not know whom we missed.
	causeProviderStart cause = "provider_start"
	// causeUnreadAnswer: the caller had gone before it could read our OK.
	causeUnreadAnswer cause = "unread_answer"
)

// autoscalerIsNew marks everything in flight as forgotten, now and when the
// cloud is read next: the snapshot may be older than what is in flight.
func (s *Server) autoscalerIsNew() {
	s.autoscalers.Add(1)
	s.forgetNext.Store(true)
	if !s.current.Load().anyInFlight() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetAllLocked(causeNewAutoscaler)
}

func (n *snapshot) anyInFlight() bool {
	for _, g := range n.order {
		if g.inFlight > 0 {
			return true
		}
	}
	return false
}

func (s *Server) forgetAllLocked(why cause) {
	now := s.current.Load()
	for _, g := range now.order {
		record := s.recordLocked(g.ID)
		if g.inFlight == 0 || why == causeNewAutoscaler && record.absorbed == s.autoscalers.Load() {
			continue // one answer of OK was enough
		}
		record.forgotten = g.inFlight
		s.log.Info("Cluster Autoscaler may have forgotten capacity in flight",
			zap.String(logkey.NodeGroup, g.ID), zap.Int(logkey.InFlight, g.inFlight), zap.String(logkey.Reason, string(why)))
	}
	s.publishLocked(now.catalogue, nil, time.Time{})
}

// absorb answers for an IncreaseSize that asks again for forgotten capacity.
// It holds for the whole of it and for one time only.
func (w *write) absorb(delta int) bool {
	s := w.s
	s.mu.Lock()
	forgotten := min(w.record.forgotten, s.inFlight(w.view.Group, w.now()))
	w.record.forgotten, w.record.unread = 0, false
	if forgotten > 0 {
		w.record.absorbed = s.autoscalers.Load()
	}
	s.mu.Unlock()
	if forgotten == 0 {
		return false
	}
	w.learned(w.now()) // so that the end of the write publishes the lower maximum
	s.metrics.absorbed.WithLabelValues(w.id).Inc()
	s.log.Info("increase absorbed by capacity in flight",
		zap.String(logkey.NodeGroup, w.id), zap.Int(logkey.Delta, delta), zap.Int(logkey.Forgotten, forgotten))
	s.warnWaiting(w.view, reasonAbsorbed, "Cluster Autoscaler requested nodes again that are already being added to group "+w.id)
	return true
}

// unreadAnswer marks what an IncreaseSize brought as forgotten, because the
// caller's deadline had passed: it takes the call for failed.
func (w *write) unreadAnswer(granted int) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.record.forgotten += granted
	w.record.unread = true
	w.s.log.Warn("increase carried out after the deadline of its call", zap.String(logkey.NodeGroup, w.id),
		zap.Int(logkey.Granted, granted), zap.String(logkey.Reason, string(causeUnreadAnswer)))
}

// countUnavoidable counts what absorbing cannot prevent: growth here while
// capacity that Cluster Autoscaler gave up on is in flight in another group.
func (s *Server) countUnavoidable(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.current.Load().order {
		switch {
		case g.ID == id:
		case s.recordLocked(g.ID).unread:
			s.metrics.unavoidable.WithLabelValues("after_timeout").Inc()
			return
		case g.inFlight > 0 && g.failedLaunches() > 0:
			s.metrics.unavoidable.WithLabelValues("after_partial_launch_failure").Inc()
			return
		}
	}
}

func (g *groupView) failedLaunches() int {
	n := 0
	for _, i := range g.state.Instances {
		if i.Error != nil {
			n++
		}
	}
	return n
}
