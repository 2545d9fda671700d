package provider

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/logkey"
	"gpu-node-provider/proto"
)

// maxSnapshotAge is how long an old snapshot does when the cloud does not
// answer. Cluster Autoscaler's own list of instances is up to two minutes old,
// so half of that adds nothing new; and Refresh is the one call that may fail.
const maxSnapshotAge = time.Minute

// Refresh reads the cloud, unless that has been done within ReadEvery. It is the
// only call that fails when the cloud does, and only once the last reading is too
// old to decide by.
func (s *Server) Refresh(ctx context.Context, _ *proto.RefreshRequest) (*proto.RefreshResponse, error) {
	if s.readLately() {
		return &proto.RefreshResponse{}, nil
	}
	err := s.refreshOnce(ctx)
	if err == nil {
		return &proto.RefreshResponse{}, nil
	}
	age := s.now().Sub(s.current.Load().taken)
	if age <= max(maxSnapshotAge, 2*s.readEvery) {
		s.log.Warn("refresh failed, keeping the previous snapshot", zap.Error(err), zap.Duration(logkey.SnapshotAge, age))
		return &proto.RefreshResponse{}, nil
	}
	return nil, toStatus(fmt.Errorf("the cloud was last read %s ago: %w", age.Round(time.Second), err))
}

// readLately says whether the last reading will do. Each whole reading costs
// calls that a cloud counts, and Cluster Autoscaler refreshes every 10 s.
func (s *Server) readLately() bool {
	age := s.now().Sub(s.current.Load().taken)
	if age >= s.readEvery {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if age >= watchEvery && s.now().Before(s.watched) {
		return false
	}
	return true
}

// watchEvery is how often the cloud is read for an asking Cluster Autoscaler while
// a write may still show whose outcome was not known.
const watchEvery = 5 * time.Second

// refreshOnce is refresh, unless the cloud has been read while this call waited
// for its turn: many that come at a time cost one reading.
func (s *Server) refreshOnce(ctx context.Context) error {
	if err := s.refreshing.enter(ctx); err != nil {
		return err
	}
	defer s.refreshing.leave()
	if s.readLately() {
		return nil
	}
	if f := s.failure; f.err != nil && s.now().Sub(f.at) < s.readEvery {
		return f.err // a cloud that throttles must not be asked more often than one that does not
	}
	return s.read(ctx)
}

// failure is a reading that the cloud has failed.
type failure struct {
	at  time.Time
	err error
}

// refresh puts a new snapshot in place.
func (s *Server) refresh(ctx context.Context) error {
	if err := s.refreshing.enter(ctx); err != nil {
		return err
	}
	defer s.refreshing.leave()
	return s.read(ctx)
}

// read is the reading of a refresh. A group that is written to while the cloud
// is read keeps what its write said.
func (s *Server) read(ctx context.Context) error {
	marks := s.marks()
	states, err := s.backend.Describe(ctx)
	if err != nil {
		s.metrics.refreshFailed(err)
		err = fmt.Errorf("reading the node groups from the cloud: %w", err)
		if ctx.Err() == nil { // else it was the caller who gave up
			s.failure = failure{s.now(), err}
		}
		return err
	}
	s.failure = failure{}
	defer s.tellFailures() // once the lock is free
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh := s.freshLocked(states, marks)
	s.publishLocked(s.current.Load().catalogue, fresh, s.now())
	if s.now().Before(s.watched) {
		s.cordonSoon()
	}
	return nil
}

// freshLocked picks the groups that nobody has written to since the marks
// were taken.
func (s *Server) freshLocked(states []cloud.Group, marks map[string]uint64) map[string]cloud.Group {
	fresh := make(map[string]cloud.Group, len(states))
	for _, state := range states {
		record := s.recordLocked(state.ID)
		if record.writes != marks[state.ID] || record.writing {
			continue
		}
		if state.Problem == nil { // else nothing has been learned of it
			s.noteOutsider(record, state)
			s.settleLocked(record, state)
		}
		fresh[state.ID] = state
	}
	return fresh
}

// noteOutsider tells of a target that is not what this process left: somebody else
// changes it, and on some clouds chooses the machines that go by that.
func (s *Server) noteOutsider(record *groupRecord, state cloud.Group) {
	before := s.current.Load().groups[state.ID]
	ours := record.unclear || record.doubt != nil || s.now().Before(record.watched)
	if before == nil || before.problem() != "" || ours || before.state.Target == state.Target {
		return
	}
	text := fmt.Sprintf("the target of node group %s changed from %d to %d, and this provider did not change it", state.ID, before.state.Target, state.Target)
	s.metrics.outside.WithLabelValues(state.ID).Inc()
	s.log.Warn("target changed outside this provider", zap.String(logkey.NodeGroup, state.ID), zap.Int(logkey.PreviousTarget, before.state.Target), zap.Int(logkey.Target, state.Target))
	if s.cluster != nil {
		s.cluster.WarnSelf("CapacityChangedOutside", text)
	}
}

func (s *Server) marks() map[string]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	marks := make(map[string]uint64, len(s.groups))
	for id, record := range s.groups {
		marks[id] = record.writes
	}
	return marks
}

// isUnknown says whether a write may or may not have been carried out.
func isUnknown(err error) bool {
	if errors.Is(err, cloud.ErrGivenUp) {
		return false
	}
	return errors.Is(err, cloud.ErrUnknownOutcome) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}
