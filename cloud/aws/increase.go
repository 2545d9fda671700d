package aws

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/logkey"
)

// Increase implements cloud.Backend.
func (c *Cloud) Increase(ctx context.Context, id string, more func(cloud.Group) int) (cloud.Group, error) {
	g, err := c.begin(ctx, "increase", id)
	if err != nil {
		return cloud.Group{}, err
	}
	now, err := c.look(ctx, g)
	if err != nil {
		return cloud.Group{}, err
	}
	c.forgetLeaving(g)
	shown := c.shown(g)
	delta := more(shown)
	switch {
	case delta < 0:
		return cloud.Group{}, fmt.Errorf("aws: %d more instances of group %q must not be negative: %w", delta, id, cloud.ErrInvalid)
	case delta == 0:
		return shown, nil
	case shown.Suspended:
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
	if now, err = c.settledFor(ctx, g, now, base+delta); err != nil {
		return cloud.Group{}, err
	}
	if err := c.setDesired(ctx, g, now, base+delta); err != nil {
		return c.known(g, err), err
	}
	return c.shown(g), nil
}

// settledFor returns a reading that does not show more than value. One that does either lags
// behind a write of ours, and the next does not, or another client has set that much since:
// then value would take instances away, and the other buy more than was asked for.
func (c *Cloud) settledFor(ctx context.Context, g *group, now standing, value int) (standing, error) {
	if now.shown() <= value {
		return now, nil
	}
	again, err := c.look(ctx, g)
	if err != nil {
		return standing{}, err
	}
	if again.shown() > value {
		return standing{}, fmt.Errorf("aws: Auto Scaling group %s shows a desired capacity of %d a moment after %d was set; try again: %w",
			g.asg, again.shown(), now.desired, cloud.ErrUnavailable)
	}
	return again, nil
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
