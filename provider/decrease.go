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
	cancelled, err := w.cancel(ctx, func(now cloud.Group) []string { return latestFirst(now.Instances, delta) })
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

// cancel gives up the placeholders that which picks, and returns how many there still were.
func (w *write) cancel(ctx context.Context, which func(cloud.Group) []string) (int, error) {
	if err := hasTime(ctx, leastTime); err != nil {
		return 0, fmt.Errorf("nothing was cancelled: %w", err)
	}
	var before cloud.Group // not read yet
	asked := 0
	state, cancelled, err := w.s.backend.Cancel(ctx, w.id, func(now cloud.Group) []string {
		now = w.read(now)
		placeholders := which(now)
		before, asked = now, len(placeholders)
		return placeholders
	})
	w.learned(state)
	n := len(cancelled)
	switch {
	case isUnknown(err) && before.ID != "" && asked == 0:
		return 0, nil // nothing was requested
	case isUnknown(err) && state.ID != "":
		// Some may have become machines meanwhile; only the target tells them apart.
		// Of a fall by more, the rest is somebody else's.
		n = min(max(0, before.Target-state.Target), asked)
	}
	if err != nil && n == 0 {
		return 0, fmt.Errorf("cancelling %d placeholders of node group %s: %w", asked, w.id, err)
	}
	w.s.ledger.Refund(w.id, n)
	w.s.metrics.cancelled.WithLabelValues(w.id).Add(float64(n))
	w.ordered(-n)
	return n, nil
}
