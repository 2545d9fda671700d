package provider

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"gpu-node-provider/cloud"
	"gpu-node-provider/provider/nodegroup"
)

// TookFile records that a changed node group file is in force; with an error, why
// it is not.
func (s *Server) TookFile(err error) {
	s.metrics.reloaded(err)
	s.mu.Lock()
	s.reloadError = err
	s.mu.Unlock()
	if err != nil {
		s.log.Error("node group file rejected, the previous one stays in effect", zap.Error(err))
		return
	}
	s.log.Info("node group file in effect")
}

// Reload puts another catalogue in force, wholly or not at all: an error leaves
// the old one.
func (s *Server) Reload(ctx context.Context, next *nodegroup.Catalogue) error {
	// No refresh may read the cloud by the old groups and publish by the new.
	if err := s.refreshing.enter(ctx); err != nil {
		return err
	}
	defer s.refreshing.leave()

	leave, err := s.holdDropped(ctx, next)
	if err != nil {
		return err
	}
	defer leave()
	if err := s.backend.Configure(ctx, next.Specs()); err != nil {
		return s.restore(ctx, fmt.Errorf("configuring the node groups in the cloud: %w", err))
	}
	states, err := s.backend.Describe(ctx)
	if err != nil {
		return s.restore(ctx, fmt.Errorf("reading the node groups from the cloud: %w", err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.Configure(budget(next))
	s.warnOfOverrides(next)
	s.warnOfPrices(next)
	s.metrics.groups(next)
	s.publishLocked(next, s.newerLocked(states), s.now())
	return nil
}

// holdDropped makes sure that no group which the new file drops, or looks for
// elsewhere in the cloud, still has instances, and that none gets any until leave
// is called.
func (s *Server) holdDropped(ctx context.Context, next *nodegroup.Catalogue) (leave func(), err error) {
	var held []lane
	leave = func() {
		for _, l := range held {
			l.leave()
		}
	}
	var problems []error
	for _, g := range s.current.Load().order {
		dropped := droppedBy(next, g.Group)
		if dropped == "" {
			continue
		}
		s.mu.Lock()
		l := s.recordLocked(g.ID).lane
		s.mu.Unlock()
		if err := l.enter(ctx); err != nil {
			leave()
			return nil, fmt.Errorf("node group %s is being changed: %w", g.ID, err)
		}
		held = append(held, l)
		states, err := s.backend.Describe(ctx, g.ID)
		if err != nil {
			problems = append(problems, fmt.Errorf("node group %s %s, and it is not known whether it is empty: %w", g.ID, dropped, err))
		} else if n := s.instancesOf(states[0]); n > 0 {
			problems = append(problems, fmt.Errorf("node group %s %s and has %d instances: %s", g.ID, dropped, n, toKeep(g.Group, next)))
		}
	}
	if len(problems) > 0 {
		leave()
		return nil, errors.Join(problems...)
	}
	return leave, nil
}

// droppedBy says how a new file loses sight of a group's instances; empty when it
// does not.
func droppedBy(next *nodegroup.Catalogue, g *nodegroup.Group) string {
	switch after, stays := next.Lookup(g.ID); {
	case !stays:
		return "is missing from the new file"
	case after.CloudName() != g.CloudName():
		return fmt.Sprintf("has %s %s instead of %s in the new file", g.CloudNameField(), after.CloudName(), g.CloudName())
	default:
		return ""
	}
}

// toKeep says what to write in the new file so that a group's instances stay known.
func toKeep(g *nodegroup.Group, next *nodegroup.Catalogue) string {
	for _, other := range next.All() {
		if g.CloudName() != "" && other.CloudName() == g.CloudName() {
			return fmt.Sprintf("its %s %s belongs to node group %s in that file; keep the id %s", g.CloudNameField(), g.CloudName(), other.ID, g.ID)
		}
	}
	if _, stays := next.Lookup(g.ID); stays {
		return fmt.Sprintf("keep %s: %s, with retired: true until it is empty, and add the other as a node group with a new id", g.CloudNameField(), g.CloudName())
	}
	return "set retired: true until it is empty"
}

// instancesOf counts what a group has, by the snapshot where the cloud cannot serve it.
func (s *Server) instancesOf(state cloud.Group) int {
	if state.Problem == nil {
		return len(state.Instances)
	}
	return s.Instances(state.ID)
}

// Instances is how many instances a group has, by the last reading.
func (s *Server) Instances(group string) int {
	if g, ok := s.current.Load().groups[group]; ok {
		return len(g.state.Instances)
	}
	return 0
}

// restoreTimeout bounds the way back, which must be gone even when the caller's time is over.
const restoreTimeout = 10 * time.Second

// restore tells the cloud about the old groups again.
func (s *Server) restore(ctx context.Context, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoreTimeout)
	defer cancel()
	if err := s.backend.Configure(ctx, s.current.Load().catalogue.Specs()); err != nil {
		return fmt.Errorf("%w; restoring the previous node groups: %w", cause, err)
	}
	return cause
}
