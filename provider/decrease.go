package provider

import (
	"context"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/logkey"
	"gpu-node-provider/proto"
)

// NodeGroupDecreaseTargetSize cancels capacity that was asked for and is not
// there. It never touches a machine, booting ones included: Cluster Autoscaler
// sends the whole of a request that timed out although part of it has arrived.
func (s *Server) NodeGroupDecreaseTargetSize(ctx context.Context, req *proto.NodeGroupDecreaseTargetSizeRequest) (*proto.NodeGroupDecreaseTargetSizeResponse, error) {
	if req.GetDelta() >= 0 {
		return nil, toStatus(invalid("delta is %d; it must be negative", req.GetDelta()))
	}
	if err := s.decrease(ctx, req.GetId(), -int(req.GetDelta())); err != nil {
		return nil, toStatus(err)
	}
	return &proto.NodeGroupDecreaseTargetSizeResponse{}, nil
}

func (s *Server) decrease(ctx context.Context, id string, delta int) error {
	w, err := s.begin(ctx, id)
	if err != nil {
		return err
	}
	defer w.end()
	if err := w.describe(ctx); err != nil {
		return err
	}
	cancelled, err := w.cancel(ctx, latestFirst(w.state.Instances, delta))
	if err != nil {
		return err
	}
	if cancelled == 0 {
		return precondition("nothing to cancel in node group %s: all %d nodes of its target are instances", id, w.now().Target)
	}
	s.log.Info("node group decreased", zap.String(logkey.NodeGroup, id),
		zap.Int(logkey.Delta, -delta), zap.Int(logkey.Cancelled, cancelled), zap.Int(logkey.Target, w.now().Target))
	return nil
}

// latestFirst picks up to n placeholders: failed ones first, since nothing
// comes of them, then those asked for last.
func latestFirst(instances []cloud.Instance, n int) []string {
	var placeholders []cloud.Instance
	for _, i := range instances {
		if i.Placeholder {
			placeholders = append(placeholders, i)
		}
	}
	slices.SortStableFunc(placeholders, func(a, b cloud.Instance) int {
		if (a.Error != nil) != (b.Error != nil) {
			if a.Error != nil {
				return -1
			}
			return 1
		}
		return b.Since.Compare(a.Since)
	})
	ids := make([]string, 0, min(n, len(placeholders)))
	for _, i := range placeholders[:min(n, len(placeholders))] {
		ids = append(ids, i.ID)
	}
	return ids
}

// cancel gives placeholders up and says how many there still were.
func (w *write) cancel(ctx context.Context, placeholders []string) (int, error) {
	if len(placeholders) == 0 {
		return 0, nil
	}
	if err := hasTime(ctx, leastTime); err != nil {
		return 0, fmt.Errorf("nothing was cancelled: %w", err)
	}
	state, cancelled, err := w.s.backend.Cancel(ctx, w.id, placeholders)
	if isUnknown(err) {
		w.lost()
		return w.confirmCancelled(ctx, placeholders, err)
	}
	if err != nil {
		return 0, fmt.Errorf("cancelling %d placeholders of node group %s: %w", len(placeholders), w.id, err)
	}
	w.cancelled(state, len(cancelled))
	return len(cancelled), nil
}

func (w *write) cancelled(state cloud.Group, n int) {
	w.s.ledger.Refund(w.id, n)
	w.s.metrics.cancelled.WithLabelValues(w.id).Add(float64(n))
	w.ordered(-n)
	w.learned(state)
}

// confirmCancelled asks the cloud what became of a cancellation.
func (w *write) confirmCancelled(ctx context.Context, placeholders []string, unknown error) (int, error) {
	before := w.now()
	ctx, stop := aside(ctx)
	defer stop()
	if err := w.describe(ctx); err != nil {
		return 0, fmt.Errorf("cancelling %d placeholders of node group %s: %w", len(placeholders), w.id, unknown)
	}
	// Some may have become machines meanwhile; only the target tells them apart.
	// Of a fall by more, the rest is somebody else's.
	n := min(max(0, before.Target-w.state.Target), len(placeholders))
	if n == 0 {
		return 0, fmt.Errorf("cancelling %d placeholders of node group %s: %w", len(placeholders), w.id, unknown)
	}
	w.cancelled(*w.state, n)
	return n, nil
}
