package provider

import (
	"context"
	"fmt"
	"time"

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
	if err := hasTime(ctx, leastTime); err != nil { // nor would the caller read the answer
		return fmt.Errorf("no node was requested: %w", err)
	}
	bought, err := w.buy(ctx, delta)
	if err != nil {
		return err
	}
	w.ordered(bought.granted)
	w.tell(delta, bought)
	if bought.granted+bought.absorbed == 0 && !bought.forgone {
		return &limitError{group: id, limit: bought.limit}
	}
	if err := ctx.Err(); err != nil {
		w.unread()
		s.log.Warn("increase carried out after the deadline of its call", zap.String(logkey.NodeGroup, id), zap.Int(logkey.Granted, bought.granted))
		return fmt.Errorf("node group %s was increased by %d after the deadline of the call: %w", id, bought.granted, err)
	}
	if hasTime(ctx, answerTime) != nil { // the answer may come too late
		w.unread()
		return nil
	}
	w.answered()
	return nil
}

// answerTime is what an answer may need to reach its caller. An answer of OK that is
// read although it was thought late costs one loop: the next increase is absorbed.
const answerTime = 250 * time.Millisecond

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

// purchase is what an IncreaseSize comes down to.
type purchase struct {
	absorbed int // nodes in flight that answer for nodes asked for
	granted  int // nodes requested of the cloud
	limit    quota.Limit
	// forgone is true when nothing was requested because other groups have used up what
	// was announced to this one. Cluster Autoscaler may grow several groups in one loop,
	// and an error would back this one off for 5 to 30 minutes. It is told the lower
	// maximum before it asks again.
	forgone bool
}

// shared reports whether groups other than the one that asks may use the limit up. A
// group's own surge is never used up while a part of its announcement is left.
func shared(r quota.Reason) bool { return r == quota.SurgeLimited || r == quota.QuotaExhausted }

// buy requests from the cloud what is not in flight and fits the limits, all by one
// reading of the group. With nil the group's new state has been learned.
func (w *write) buy(ctx context.Context, delta int) (purchase, error) {
	var p purchase
	var before cloud.Group // not read yet
	state, err := w.s.backend.Increase(ctx, w.id, func(now cloud.Group) int {
		now = w.read(now)
		before = now
		p.absorbed = w.absorb(now, delta)
		rest := delta - p.absorbed
		switch {
		case rest == 0:
		case now.Suspended: // the Backend refuses it, and names what to do
			return rest
		default:
			w.reserve(&p, now, rest)
		}
		return p.granted
	})
	w.learned(state)
	switch {
	case err == nil:
		return p, nil
	case isUnknown(err) && before.ID != "" && p.granted == 0:
		return p, nil // nothing was requested
	case isUnknown(err) && state.Target > before.Target && p.granted > 0:
		return p, nil // it shows
	case !isUnknown(err): // else it counts as bought until the Backend knows
		w.s.ledger.Release(w.id, p.granted)
	}
	return p, fmt.Errorf("increasing node group %s by %d: %w", w.id, delta, err)
}

// reserve takes nodes off the limits by a reading of the group, and a grant off what was
// announced. A refusal takes all of that: the next request is not by that announcement.
func (w *write) reserve(p *purchase, now cloud.Group, nodes int) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.s.observeLocked(now)
	p.granted, p.limit = w.s.ledger.Reserve(w.id, nodes)
	announced := w.record.announced
	w.record.announced = max(0, announced-p.granted)
	if p.granted == 0 {
		w.record.announced = 0
		p.forgone = announced > 0 && (w.record.invited || shared(p.limit.Reason))
	}
}

// tell logs a purchase, counts it, and tells the waiting Pods what was left out of it.
func (w *write) tell(delta int, p purchase) {
	s := w.s
	s.metrics.increase(w.id, delta-p.absorbed, p.granted)
	fields := []zap.Field{
		zap.String(logkey.NodeGroup, w.id), zap.Int(logkey.Delta, delta), zap.Int(logkey.Granted, p.granted), zap.Int(logkey.Target, w.now().Target),
	}
	if p.granted > 0 {
		s.countUnavoidable(w.id)
	}
	if p.absorbed > 0 {
		s.metrics.absorbed.WithLabelValues(w.id).Inc()
		s.log.Info("increase absorbed by capacity in flight", append(fields, zap.Int(logkey.Absorbed, p.absorbed))...)
		s.warnWaiting(w.view, reasonAbsorbed, "Cluster Autoscaler requested nodes that are already being added to group "+w.id)
	}
	switch {
	case p.granted+p.absorbed == delta && p.granted > 0:
		s.log.Info("node group increased", fields...)
	case p.granted+p.absorbed == delta:
	case p.granted > 0:
		s.log.Warn("node group partially increased", append(fields, zap.String(logkey.Limit, p.limit.Text))...)
		s.warnWaiting(w.view, podReasonOf(p.limit), fmt.Sprintf("%d of %d nodes granted: %s", p.granted, delta-p.absorbed, p.limit.Text))
	case p.forgone:
		s.metrics.notBought.WithLabelValues(w.id).Inc()
		s.log.Warn("increase answered without buying, since other node groups have used the limit up",
			append(fields, zap.String(logkey.Limit, p.limit.Text))...)
		s.warnWaiting(w.view, podReasonOf(p.limit), "other node groups have used up what group "+w.id+" shares with them: "+p.limit.Text)
	default:
		s.warnWaiting(w.view, podReasonOf(p.limit), p.limit.Text)
	}
}
