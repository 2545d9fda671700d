package aws

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/logkey"
)

// Increase implements cloud.Backend.
func (c *Cloud) Increase(ctx context.Context, id string, delta int) (cloud.Group, error) {
	g, err := c.begin(ctx, "increase", id)
	if err != nil {
		return cloud.Group{}, err
	}
	if delta < 1 {
		return cloud.Group{}, fmt.Errorf("aws: delta %d for group %q must be at least 1: %w", delta, id, cloud.ErrInvalid)
	}
	now, err := c.look(ctx, g)
	if err != nil {
		return cloud.Group{}, err
	}
	c.forgetLeaving(g)
	if suspended(now.asg, "Launch") {
		return cloud.Group{}, fmt.Errorf("aws: Launch is suspended on Auto Scaling group %s: resume it with `aws autoscaling resume-processes --auto-scaling-group-name %s --scaling-processes Launch`: %w",
			g.asg, g.asg, cloud.ErrPrecondition)
	}
	// More machines than are desired count as asked for, since Target has them.
	base, most := max(now.desired, now.live), int(*now.asg.MaxSize)
	if delta > most-base {
		return cloud.Group{}, fmt.Errorf("aws: an increase by %d from %d exceeds the MaxSize %d of Auto Scaling group %s: %w", delta, base, most, g.asg, cloud.ErrLimit)
	}
	c.protectEarly(ctx, g, now)
	if err := c.timeLeft(ctx, "growing Auto Scaling group "+g.asg); err != nil {
		return cloud.Group{}, err
	}
	if err := c.setDesired(ctx, g, now, base+delta); err != nil {
		return cloud.Group{}, err
	}
	return c.shown(g), nil
}

// protectEarly has what is about to launch protected from its birth: an instance
// that boots cannot be protected later, and until it runs it would keep
// placeholders from being given up. Growing does not depend on it.
func (c *Cloud) protectEarly(ctx context.Context, g *group, now standing) {
	if c.protection != Manage || protectsNew(now.asg) {
		return
	}
	if err := c.protectNew(ctx, g); err != nil {
		c.log.Warn("failed to protect new instances from scale-in", zap.String(logkey.NodeGroup, g.id), zap.Error(err))
	}
}
