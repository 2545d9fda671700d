package provider

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/logkey"
)

// write is one write to one group, from its turn in the lane to its end. What may still come
// of an earlier one whose outcome is not known is the Backend's to say, in Group.Unsettled.
type write struct {
	s      *Server
	id     string
	record *groupRecord
	// view is the group when the write began.
	view *groupView
	// state is what the cloud said last; nil when it has not been asked.
	state *cloud.Group
}

// leastTime has to be left of the caller's deadline when the cloud is sent a
// write: with less, the cloud carries out what the caller takes for failed.
const leastTime = time.Second

// hasTime is an error when less than this is left.
func hasTime(ctx context.Context, least time.Duration) error {
	deadline, ok := ctx.Deadline()
	if !ok {
		return ctx.Err()
	}
	early, cancel := context.WithDeadline(ctx, deadline.Add(-least))
	defer cancel()
	if err := early.Err(); err != nil {
		return fmt.Errorf("less than %s remains before the caller's deadline: %w", least, err)
	}
	return nil
}

// isUnknown reports whether a write may or may not have been carried out.
func isUnknown(err error) bool {
	if errors.Is(err, cloud.ErrGivenUp) {
		return false
	}
	return errors.Is(err, cloud.ErrUnknownOutcome) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// begin waits for the group's lane. Every write that began must end.
func (s *Server) begin(ctx context.Context, id string) (*write, error) {
	if _, ok := s.current.Load().groups[id]; !ok {
		return nil, unknownGroup(id)
	}
	s.mu.Lock()
	record := s.recordLocked(id)
	s.mu.Unlock()
	if err := record.lane.enter(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	view, ok := s.current.Load().groups[id]
	if !ok { // a reload has taken the group away while this call waited
		s.mu.Unlock()
		record.lane.leave()
		return nil, unknownGroup(id)
	}
	record.writing = true
	s.mu.Unlock()
	return &write{s: s, id: id, record: record, view: view}, nil
}

// end publishes what the write has learned and lets the next one in.
func (w *write) end() {
	s := w.s
	s.mu.Lock()
	w.record.writing = false
	if w.state != nil {
		s.publishLocked(s.current.Load().catalogue, map[string]cloud.Group{w.id: *w.state}, time.Time{})
	}
	s.mu.Unlock()
	w.record.lane.leave()
	s.tellFailures()
}

// learned takes over what the cloud said of the group, if it said anything.
func (w *write) learned(state cloud.Group) {
	if state.ID != "" {
		w.state = &state
	}
}

// now is the group as it is known to this write.
func (w *write) now() cloud.Group {
	if w.state != nil {
		return *w.state
	}
	return w.view.state
}

// describe asks the cloud about the group.
func (w *write) describe(ctx context.Context) error {
	states, err := w.s.backend.Describe(ctx, w.id)
	if err != nil {
		return fmt.Errorf("reading node group %s from the cloud: %w", w.id, err)
	}
	if len(states) != 1 {
		return fmt.Errorf("reading node group %s from the cloud: the cloud returned %d groups instead of one: %w", w.id, len(states), cloud.ErrUnavailable)
	}
	if problem := states[0].Problem; problem != nil {
		return fmt.Errorf("reading node group %s from the cloud: %w", w.id, problem)
	}
	w.read(states[0])
	return nil
}

// read takes over a reading of the group, from before this write changes anything, and
// returns it.
func (w *write) read(state cloud.Group) cloud.Group {
	state = w.s.giveUpSilent(w.view.Group, state)
	w.s.mu.Lock()
	if w.view.problem() == "" {
		w.s.noteTargetLocked(w.record, w.now(), state)
	}
	w.s.noteFailuresLocked(state)                                      // a cancellation may follow
	w.record.arrivedLocked(w.view.Discovered || w.view.Dropped, state) // before anything is ordered
	w.s.mu.Unlock()
	w.learned(state)
	return state
}

// noteTargetLocked compares the target of a reading with what was known before. A rise that a
// write of unknown outcome explains is that write; a change that none explains is not of this
// provider, and on some clouds the cloud chooses the machines that go by it.
func (s *Server) noteTargetLocked(record *groupRecord, before, state cloud.Group) {
	from, change, unsettled := before.Target, state.Target-before.Target, before.Unsettled
	switch {
	case change == 0, change < 0 && -change <= unsettled.Fewer:
	case change > 0 && change <= unsettled.More:
		record.ordered += change
		record.request.end(endedUnreadAnswer)
		s.log.Warn("increase with an unknown outcome was carried out", zap.String(logkey.NodeGroup, state.ID), zap.Int(logkey.Granted, change))
	default:
		s.metrics.outside.WithLabelValues(state.ID).Inc()
		s.log.Warn("target changed outside this provider", zap.String(logkey.NodeGroup, state.ID), zap.Int(logkey.PreviousTarget, from), zap.Int(logkey.Target, state.Target))
		if s.cluster != nil {
			s.cluster.WarnSelf("CapacityChangedOutside",
				fmt.Sprintf("the target of node group %s changed from %d to %d, and this provider did not change it", state.ID, from, state.Target))
		}
	}
}
