package aws

import (
	"context"
	"fmt"

	"gpu-node-provider/cloud"
)

// Configure implements cloud.Backend. What is remembered of a group outlives
// that it is not named, so that its placeholders have the same ids when it is
// named again with the same ASG.
func (c *Cloud) Configure(ctx context.Context, specs []cloud.Spec) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("aws: configure was not started: %w", err)
	}
	users := map[string]string{} // of an ASG
	found := map[string]bool{}
	order := make([]string, 0, len(specs))
	named := make(map[string]*group, len(specs))
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, spec := range specs {
		switch other := users[spec.Name]; {
		case spec.ID == "":
			return fmt.Errorf("aws: a group has no id: %w", cloud.ErrInvalid)
		case named[spec.ID] != nil:
			return fmt.Errorf("aws: group id %q is listed twice: %w", spec.ID, cloud.ErrInvalid)
		case spec.Name == "":
			return fmt.Errorf("aws: group %q has no autoScalingGroup: %w", spec.ID, cloud.ErrInvalid)
		case other != "":
			return fmt.Errorf("aws: groups %q and %q have the same autoScalingGroup %s, each needs its own: %w",
				other, spec.ID, spec.Name, cloud.ErrInvalid)
		}
		users[spec.Name], found[spec.Name] = spec.ID, spec.Discovered
		order = append(order, spec.ID)
		named[spec.ID] = c.rememberedLocked(spec)
	}
	c.order, c.named, c.found = order, named, found
	select {
	case c.configured <- struct{}{}:
	default: // Run has not seen the last one yet
	}
	return nil
}

func (c *Cloud) rememberedLocked(spec cloud.Spec) *group {
	key := spec.ID + "\x00" + spec.Name
	g := c.before[key]
	if g == nil {
		g = &group{id: spec.ID, asg: spec.Name, machines: map[string]machine{}}
		c.before[key] = g
	}
	return g
}

// groups are the named ones, or all that are configured.
func (c *Cloud) groups(ids ...string) ([]*group, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(ids) == 0 {
		ids = c.order
	}
	groups := make([]*group, 0, len(ids))
	for _, id := range ids {
		g, ok := c.named[id]
		if !ok {
			return nil, fmt.Errorf("aws: group %q is not configured: %w", id, cloud.ErrNotFound)
		}
		groups = append(groups, g)
	}
	return groups, nil
}

// begin is the first step of every call about one group.
func (c *Cloud) begin(ctx context.Context, call, id string) (*group, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("aws: %s was not started: %w: %w", call, cloud.ErrGivenUp, err)
	}
	groups, err := c.groups(id)
	if err != nil {
		return nil, err
	}
	return groups[0], nil
}
