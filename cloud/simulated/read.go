package simulated

import (
	"context"
	"fmt"

	"gpu-node-provider/cloud"
)

// Configure implements cloud.Backend. Nothing of it is kept over a restart: the
// instances are the cloud's, the list of groups is the caller's.
func (c *Cloud) Configure(ctx context.Context, specs []cloud.Spec) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("simulated: configure was not started: %w", err)
	}
	order := make([]string, 0, len(specs))
	named := make(map[string]bool, len(specs))
	for _, spec := range specs {
		if !validGroup(spec.ID) {
			return fmt.Errorf("simulated: group id %q must be a DNS label of at most %d characters, since Nodes are named after it: %w",
				spec.ID, maxGroupLen, cloud.ErrInvalid)
		}
		if named[spec.ID] {
			return fmt.Errorf("simulated: group id %q is listed twice: %w", spec.ID, cloud.ErrInvalid)
		}
		named[spec.ID] = true
		order = append(order, spec.ID)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errClosed
	}
	c.order, c.named = order, named // new ones each time: readers hold the old
	return nil
}

// Describe implements cloud.Backend. Groups come in the order of ids, or else
// in the order in which they were configured.
func (c *Cloud) Describe(ctx context.Context, ids ...string) ([]cloud.Group, error) {
	var groups []cloud.Group
	err := c.call(ctx, "describe", false, func() error {
		m, order, err := c.look(ids...)
		if err != nil {
			return err
		}
		if len(ids) > 0 {
			order = ids
		}
		groups = make([]cloud.Group, 0, len(order))
		for _, id := range order {
			groups = append(groups, m.describe(id))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return groups, nil
}

// Lookup implements cloud.Backend. An id that is not there but has the form of
// this group's ids is Gone: such ids are drawn here and nowhere else, so the
// form is proof enough, even when the state that knew the id has been lost.
func (c *Cloud) Lookup(ctx context.Context, id string, instances []string) ([]cloud.Existence, error) {
	var found []cloud.Existence
	err := c.call(ctx, "lookup", false, func() error {
		m, _, err := c.look(id)
		if err != nil {
			return err
		}
		present := indexByID(id, m.Groups[id], m.now)
		found = make([]cloud.Existence, len(instances))
		for i, instance := range instances {
			found[i] = existence(id, instance, present)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

func existence(group, instance string, present map[string]int) cloud.Existence {
	if _, ok := present[instance]; ok {
		return cloud.Present
	}
	owner, _, k := parseID(instance)
	if owner == group && (k == kindMachine || k == kindPlaceholder) {
		return cloud.Gone
	}
	return cloud.Foreign
}
