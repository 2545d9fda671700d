package aws

import (
	"context"
	"fmt"
	"slices"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"go.uber.org/zap"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/logkey"
)

// Cancel implements cloud.Backend. Never is less desired than what is there, and
// never less than MinSize: when that allows only some of the placeholders to be
// given up, the others stay.
func (c *Cloud) Cancel(ctx context.Context, id string, which func(cloud.Group) []string) (cloud.Group, []string, error) {
	g, err := c.begin(ctx, "cancel", id)
	if err != nil {
		return cloud.Group{}, nil, err
	}
	now, err := c.look(ctx, g)
	if err != nil {
		return cloud.Group{}, nil, err
	}
	c.forgetLeaving(g)
	placeholders := which(c.shown(g))
	for _, p := range placeholders {
		if owner, k := parseID(p); k != kindPlaceholder || owner != id {
			return cloud.Group{}, nil, fmt.Errorf("aws: %q is not a placeholder of group %q: %w", p, id, cloud.ErrInvalid)
		}
	}
	if len(still(now, placeholders)) == 0 {
		return c.shown(g), nil, nil
	}
	if now, err = c.shield(ctx, g, now); err != nil {
		return cloud.Group{}, nil, err
	}
	waiting := still(now, placeholders)
	least := int(awssdk.ToInt32(now.asg.MinSize))
	room := max(0, now.desired-least)
	if room == 0 && len(waiting) > 0 {
		return cloud.Group{}, nil, fmt.Errorf("aws: cannot lower the desired capacity below the MinSize %d of Auto Scaling group %s: %w", least, g.asg, cloud.ErrLimit)
	}
	given := waiting[:min(len(waiting), room)]
	if len(given) == 0 {
		return c.shown(g), nil, nil
	}
	return c.giveUp(ctx, g, now, given)
}

// still are the placeholders that are there, each once.
func still(now standing, placeholders []string) []string {
	var there []string
	for _, p := range placeholders {
		if slices.Contains(now.placeholders, p) && !slices.Contains(there, p) {
			there = append(there, p)
		}
	}
	return there
}

func (c *Cloud) giveUp(ctx context.Context, g *group, now standing, given []string) (cloud.Group, []string, error) {
	if err := c.timeLeft(ctx, "lowering the desired capacity of Auto Scaling group "+g.asg); err != nil {
		return cloud.Group{}, nil, err
	}
	// A Describe that sees the lowered value before this call is over must drop
	// these and no others.
	c.mu.Lock()
	g.leaving = make(map[string]bool, len(given))
	for _, p := range given {
		g.leaving[p] = true
	}
	c.mu.Unlock()

	value := now.desired - len(given)
	if err := c.setDesired(ctx, g, now, value); err != nil {
		if !isUnknown(err) {
			c.forgetLeaving(g)
		}
		return c.known(g, err), nil, err
	}
	c.forgetLeaving(g)
	arrived := c.keepArrivals(ctx, g, value, len(given))
	return c.shown(g), given[:len(given)-arrived], nil
}

// keepArrivals looks whether instances came while their placeholders were given
// up, and if so raises the desired capacity again, by up to most: they are
// protected, so AWS has not ended them, but it would for as long as less is
// desired. It returns how many came. The lowering is done whatever happens here,
// so what fails is logged: the next write finds what is left over.
func (c *Cloud) keepArrivals(ctx context.Context, g *group, value, most int) int {
	log := c.log.With(zap.String(logkey.NodeGroup, g.id), zap.Int(logkey.DesiredCapacity, value))
	now, err := c.look(ctx, g)
	if err != nil {
		log.Warn("failed to read the instances launched during a cancel", zap.Error(err))
		return 0
	}
	arrived := min(now.live-now.desired, most)
	if arrived <= 0 || c.protection == Ignore {
		return 0
	}
	c.metrics.races.Add(float64(arrived))
	log.Warn("instances launched while their placeholders were being cancelled", zap.Int(logkey.Arrived, arrived))
	if err := c.setDesired(ctx, g, now, max(now.desired+arrived, now.shown())); err != nil {
		log.Warn("failed to raise the desired capacity to the number of instances", zap.Error(err))
	}
	return arrived
}

// forgetLeaving ends the doubt about an earlier Cancel: the group has been read.
func (c *Cloud) forgetLeaving(g *group) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g.leaving = nil
}
