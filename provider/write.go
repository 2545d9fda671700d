package provider

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/logkey"
)

// write is one write to one group, from its turn in the lane to its end.
type write struct {
	s      *Server
	id     string
	record *groupRecord
	// view is the group when the write began.
	view *groupView
	// state is what the cloud said last; nil when it has not been asked.
	state *cloud.Group
}

// doubt is an IncreaseSize that may still have raised the target.
type doubt struct {
	target  int // before it
	granted int // by how much
	until   time.Time
}

// stands says whether something may still come of it.
func (d *doubt) stands(now time.Time) bool { return d != nil && !now.After(d.until) }

// doubtFor is how long a raised target that nobody else explains is put down
// to an IncreaseSize whose outcome was not known: clouds finish what they were
// sent within seconds, and a minute leaves no doubt.
const doubtFor = time.Minute

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

// confirmTimeout bounds what is asked about a write after its caller's time is over.
const confirmTimeout = 5 * time.Second

// aside is a context for finding out what became of a write. That has to be known
// also when nobody waits for the answer any more.
func aside(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), confirmTimeout)
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
	record.writes++
	record.writing = true
	s.mu.Unlock()
	return &write{s: s, id: id, record: record, view: view}, nil
}

// settle asks the cloud about an earlier write whose outcome is not known:
// until it is, the minimum cannot be held.
func (w *write) settle(ctx context.Context) error {
	w.s.mu.Lock()
	pending := w.record.unclear || w.record.doubt != nil
	w.s.mu.Unlock()
	if !pending {
		return nil
	}
	return w.describe(ctx)
}

// end publishes what the write has learned and lets the next one in.
func (w *write) end() {
	s := w.s
	s.mu.Lock()
	w.record.writes++
	w.record.writing = false
	if w.state != nil {
		if w.record.doubt != nil { // what this write did is no sign of the earlier one
			w.record.doubt.target = w.state.Target
		}
		s.publishLocked(s.current.Load().catalogue, map[string]cloud.Group{w.id: *w.state}, time.Time{})
	}
	s.mu.Unlock()
	w.record.lane.leave()
	s.tellFailures()
}

// learned takes over what the cloud said of the group.
func (w *write) learned(state cloud.Group) { w.state = &state }

// lost notes that the cloud may or may not have done what it was asked. It may
// also do so later, so it is looked at more often for a while.
func (w *write) lost() {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.record.unclear = true
	w.record.watched = w.s.now().Add(doubtFor)
	w.s.watched = w.record.watched
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
	w.settled(states[0])
	return nil
}

// settled takes over a reading of the group.
func (w *write) settled(state cloud.Group) {
	state = w.s.giveUpSilent(w.view.Group, state)
	w.s.mu.Lock()
	w.s.noteOutsider(w.record, state)
	w.s.settleLocked(w.record, state)
	w.s.noteFailuresLocked(state) // a cancellation may follow
	w.s.mu.Unlock()
	w.learned(state)
}

// settleLocked takes note that the cloud was read, and clears a doubt: a target
// above what it was before means that the IncreaseSize was carried out after all, and
// that its caller took it for failed.
func (s *Server) settleLocked(record *groupRecord, state cloud.Group) {
	record.unclear = false
	d := record.doubt
	if d == nil {
		return
	}
	if raised := state.Target - d.target; raised > 0 {
		record.doubt = nil
		record.request.end(endedUnreadAnswer)
		record.ordered += raised
		s.log.Warn("increase with an unknown outcome was carried out",
			zap.String(logkey.NodeGroup, state.ID), zap.Int(logkey.Granted, raised))
		return
	}
	if s.now().After(d.until) {
		record.doubt = nil
	}
}
