package provider

import (
	"context"
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
	return age < watchEvery || !s.current.Load().unsettled
}

// watchEvery is how often the cloud is read for an asking Cluster Autoscaler while
// something may still come of a write whose outcome was not known.
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

// read is the reading of a refresh.
func (s *Server) read(ctx context.Context) error {
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
	if s.current.Load().unsettled {
		s.cordonSoon()
	}
	s.publishLocked(s.current.Load().catalogue, s.newerLocked(states), s.now())
	return nil
}

// newerLocked returns the groups that are newer than the snapshot. A group that is being
// written to is left to its write, which holds a reservation in the ledger.
func (s *Server) newerLocked(states []cloud.Group) map[string]cloud.Group {
	newer := make(map[string]cloud.Group, len(states))
	for _, state := range states {
		record := s.recordLocked(state.ID)
		before := s.current.Load().groups[state.ID]
		if record.writing || before != nil && state.Revision <= before.state.Revision {
			continue
		}
		if state.Problem == nil && before != nil && before.problem() == "" { // else there is nothing to compare
			s.noteTargetLocked(record, before.state, state)
		}
		newer[state.ID] = state
	}
	return newer
}
