package guard

import (
	"context"

	"go.uber.org/zap"

	"gpu-node-provider/cloud/logkey"
	"gpu-node-provider/provider/checkpoint"
)

// Gate is the third lock: of the instances whose deletion was asked for it returns
// those that have to stay, by live reads. An error means that this is not known. In
// observe mode it logs both and lets all go.
func (g *Guard) Gate(ctx context.Context, instances []checkpoint.Instance) ([]checkpoint.Held, error) {
	held, err := g.Assessor.Hold(ctx, instances)
	if g.Policy().Observe {
		g.logAllowed(held, err)
		return nil, nil
	}
	for _, h := range held {
		if node, ok := g.View.Node(h.Instance); ok {
			g.Kick(node.Name) // its hold comes back, so that Cluster Autoscaler stops choosing it
		}
	}
	return held, err
}

func (g *Guard) logAllowed(held []checkpoint.Held, err error) {
	if err != nil {
		g.Log.Warn("observe mode: allowed a deletion that enforce would deny, since it cannot be judged", zap.Error(err))
	}
	for _, h := range held {
		g.Log.Warn("observe mode: allowed a deletion that enforce would deny", zap.String(logkey.Instance, h.Instance), zap.String(logkey.Reason, h.Reason))
	}
}
