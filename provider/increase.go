package provider

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/logkey"
	"gpu-node-provider/proto"
	"gpu-node-provider/provider/quota"
)

// NodeGroupIncreaseSize asks the cloud for delta more nodes, or for as many of
// them as the limits allow. Only when nothing fits is it refused: an error backs
// the group off for 5 to 30 minutes and makes Cluster Autoscaler forget what
// already boots there.
func (s *Server) NodeGroupIncreaseSize(ctx context.Context, req *proto.NodeGroupIncreaseSizeRequest) (*proto.NodeGroupIncreaseSizeResponse, error) {
	if req.GetDelta() < 1 {
		return nil, toStatus(invalid("delta is %d; it must be at least 1", req.GetDelta()))
	}
	if err := s.increase(ctx, req.GetId(), int(req.GetDelta())); err != nil {
		return nil, toStatus(err)
	}
	return &proto.NodeGroupIncreaseSizeResponse{}, nil
}

func (s *Server) increase(ctx context.Context, id string, delta int) error {
	w, err := s.begin(ctx, id)
	if err != nil {
		return err
	}
	defer w.end()
	if err := w.view.unserved(); err != nil {
		return err
	}
	if err := hasTime(ctx); err != nil { // nor would the caller read that it was absorbed
		return fmt.Errorf("no node was requested: %w", err)
	}
	if w.absorb(delta) {
		return nil
	}
	granted, limit := s.ledger.Reserve(id, delta, w.view.announced)
	w.spend(granted)
	if granted == 0 {
		s.metrics.increase(id, delta, 0)
		s.warnWaiting(w.view, podReasonOf(limit), limit.Text)
		return &limitError{group: id, limit: limit}
	}
	if err := w.buy(ctx, granted); err != nil {
		return err
	}
	s.metrics.increase(id, delta, granted)
	s.countUnavoidable(id)
	w.report(delta, granted, limit)
	if err := ctx.Err(); err != nil {
		w.unreadAnswer(granted)
		return fmt.Errorf("node group %s was increased by %d after the deadline of the call: %w", id, granted, err)
	}
	return nil
}

// unserved is why a group can take no new nodes at all.
func (g *groupView) unserved() error {
	switch {
	case g.state.Problem != nil:
		return fmt.Errorf("node group %s cannot be increased: %w", g.ID, g.state.Problem)
	case g.Unknown != "":
		return precondition("node group %s cannot be increased: %s", g.ID, g.Unknown)
	default:
		return nil
	}
}

// spend takes a grant off what was announced.
func (w *write) spend(granted int) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.record.announced = max(0, w.record.announced-granted)
}

// buy carries a reservation out, or gives it back. When nil is returned the
// group's new state has been learned.
func (w *write) buy(ctx context.Context, granted int) error {
	before := w.now().Target
	state, err := w.s.backend.Increase(ctx, w.id, granted)
	switch {
	case err == nil:
		w.learned(state)
		return nil
	case isUnknown(err):
		w.lost()
		return w.verify(ctx, before, granted, err)
	default:
		w.s.ledger.Release(w.id, granted)
		return fmt.Errorf("increasing node group %s by %d: %w", w.id, granted, err)
	}
}

// verify finds out whether an increase was carried out. While that is not
// known what was granted counts as bought; a later reading of the cloud settles it.
func (w *write) verify(ctx context.Context, before, granted int, unknown error) error {
	w.s.mu.Lock()
	earlier := w.record.doubt
	w.record.doubt = nil
	w.s.mu.Unlock()
	ctx, cancel := aside(ctx)
	defer cancel()
	if err := w.describe(ctx); err == nil && w.state.Target > before {
		return nil
	}
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.record.doubt = &doubt{target: w.now().Target, granted: granted, until: w.s.now().Add(doubtFor)}
	if earlier != nil {
		w.record.doubt.granted += earlier.granted
	}
	if w.state != nil {
		return fmt.Errorf("increasing node group %s by %d: not carried out yet: %w: %w", w.id, granted, cloud.ErrUnavailable, unknown)
	}
	return fmt.Errorf("increasing node group %s by %d: %w", w.id, granted, unknown)
}

// report tells of a grant, and of what was left out of it.
func (w *write) report(delta, granted int, limit quota.Limit) {
	fields := []zap.Field{
		zap.String(logkey.NodeGroup, w.id), zap.Int(logkey.Delta, delta), zap.Int(logkey.Granted, granted), zap.Int(logkey.Target, w.now().Target),
	}
	if granted == delta {
		w.s.log.Info("node group increased", fields...)
		return
	}
	w.s.log.Warn("node group partially increased", append(fields, zap.String(logkey.Limit, limit.Text))...)
	w.s.warnWaiting(w.view, podReasonOf(limit), fmt.Sprintf("%d of %d nodes granted: %s", granted, delta, limit.Text))
}
