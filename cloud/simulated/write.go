package simulated

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/logkey"
)

// Increase implements cloud.Backend.
func (c *Cloud) Increase(ctx context.Context, id string, more func(cloud.Group) int) (cloud.Group, error) {
	var group cloud.Group
	err := c.call(ctx, "increase", true, func() (err error) {
		group, err = c.change(id, func(m moment) (*state, error) {
			delta := more(m.describe(id))
			switch {
			case delta < 0:
				return nil, fmt.Errorf("%d more instances must not be negative: %w", delta, cloud.ErrInvalid)
			case delta == 0:
				return m.state, nil
			}
			if size := target(m.Groups[id]); delta > groupMax-size {
				return nil, fmt.Errorf("an increase by %d from %d exceeds the maximum of %d: %w", delta, size, groupMax, cloud.ErrLimit)
			}
			next := m.edit(id, m.now)
			c.launchLocked(next, id, delta, m.now)
			return next, nil
		})
		return err
	})
	if err != nil {
		return c.known(id, err), err
	}
	return group, nil
}

// launchLocked adds units to a group of a state that is being edited, and
// settles all that will become of them.
func (c *Cloud) launchLocked(next *state, group string, n int, now time.Time) {
	units := slices.Clone(next.Groups[group])
	room, bounded := c.capacity[group]
	for _, u := range units {
		if u.takesPlace(now) {
			room--
		}
	}
	used := next.used()
	for range n {
		u := unit{Salt: randomCode(c.random, saltLen), Asked: now, Launch: now.Add(c.options.LaunchDelay)}
		u.Serial, next.Sequence = next.Sequence.take(used)
		used[u.Serial] = true

		failed := c.options.LaunchErrorRate > 0 && c.random.Float64() < c.options.LaunchErrorRate
		switch {
		case failed:
			u.Failure = &failure{Code: c.launchErrorCode(), Message: "simulated launch failure (cloud.simulated.launchErrors.rate)"}
		case bounded && room <= 0:
			u.Failure = &failure{
				Code:    cloud.InsufficientInstanceCapacity,
				Message: fmt.Sprintf("the simulated cloud has %d instances for group %s, all in use", c.capacity[group], group),
			}
		default:
			u.Running = u.Launch.Add(c.options.BootDelay)
			u.Devices = u.Running.Add(c.options.DevicePluginDelay)
			room--
		}
		units = append(units, u)
	}
	next.Groups[group] = units
}

func (c *Cloud) launchErrorCode() cloud.LaunchCode {
	if c.options.LaunchErrorCode != "" {
		return c.options.LaunchErrorCode
	}
	return cloud.InsufficientInstanceCapacity
}

// Cancel implements cloud.Backend. An id that is no placeholder's of this group
// by its form is ErrInvalid.
func (c *Cloud) Cancel(ctx context.Context, id string, which func(cloud.Group) []string) (cloud.Group, []string, error) {
	var group cloud.Group
	var cancelled []string
	err := c.call(ctx, "cancel", true, func() (err error) {
		group, err = c.change(id, func(m moment) (*state, error) {
			placeholders := which(m.describe(id))
			if err := checkForm(id, placeholders, kindPlaceholder); err != nil {
				return nil, err
			}
			there := indexByID(id, m.Groups[id], m.now)
			going := map[string]bool{}
			for _, placeholder := range withoutDuplicates(placeholders) {
				if _, ok := there[placeholder]; ok {
					going[placeholder] = true
					cancelled = append(cancelled, placeholder)
				}
			}
			if len(going) == 0 {
				return m.state, nil
			}
			next := m.edit(id, m.now)
			next.Groups[id] = slices.DeleteFunc(next.Groups[id], func(u unit) bool { return going[u.id(id, m.now)] })
			return next, nil
		})
		return err
	})
	if err != nil {
		return c.known(id, err), nil, err
	}
	return group, cancelled, nil
}

// Delete implements cloud.Backend. A machine's id of this group that is not
// there counts as gone; see Lookup.
func (c *Cloud) Delete(ctx context.Context, id string, instances []string) (cloud.Group, []string, error) {
	instances = withoutDuplicates(instances)
	var group cloud.Group
	err := c.call(ctx, "delete", true, func() (err error) {
		group, err = c.change(id, func(m moment) (*state, error) {
			if err := checkForm(id, instances, kindMachine); err != nil {
				return nil, err
			}
			next := m.edit(id, m.now)
			there := indexByID(id, next.Groups[id], m.now)
			ended := 0
			for _, instance := range instances {
				if i, ok := there[instance]; ok && !next.Groups[id][i].isEnded() {
					next.Groups[id][i] = next.Groups[id][i].end(m.now, c.options.TerminateDelay)
					ended++
				}
			}
			if ended == 0 {
				return m.state, nil
			}
			return next, nil
		})
		return err
	})
	if err != nil {
		return c.known(id, err), nil, err
	}
	return group, instances, nil
}

// checkForm refuses ids that, by their form, are not of this group or of
// another kind than the call is for.
func checkForm(group string, ids []string, want kind) error {
	for _, id := range ids {
		owner, _, k := parseID(id)
		switch {
		case k != kindMachine && k != kindPlaceholder || owner != group:
			return fmt.Errorf("%q is not an instance of group %q: %w", id, group, cloud.ErrInvalid)
		case k != want && want == kindMachine:
			return fmt.Errorf("%q is a placeholder, there is no instance to delete: %w", id, cloud.ErrInvalid)
		case k != want:
			return fmt.Errorf("%q is an instance, only placeholders can be cancelled: %w", id, cloud.ErrInvalid)
		}
	}
	return nil
}

// Interrupt takes a machine away as a cloud does by itself, after a spot
// interruption or a failed health check: it goes, and another unit is launched
// in its place, so that the group's target stays. It is not a call to the API,
// so it neither waits nor fails by chance.
func (c *Cloud) Interrupt(ctx context.Context, instance string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("simulated: interrupt was not started: %w", err)
	}
	id, _, k := parseID(instance)
	if k != kindMachine {
		return fmt.Errorf("simulated: %q is not an instance of this cloud: %w", instance, cloud.ErrInvalid)
	}
	_, err := c.change(id, func(m moment) (*state, error) {
		next := m.edit(id, m.now)
		i, ok := indexByID(id, next.Groups[id], m.now)[instance]
		if !ok || next.Groups[id][i].isEnded() {
			return nil, fmt.Errorf("%q is already deleting or gone: %w", instance, cloud.ErrPrecondition)
		}
		lost := next.Groups[id][i].end(m.now, c.options.TerminateDelay)
		lost.Replaced = true
		next.Groups[id][i] = lost
		c.launchLocked(next, id, 1, m.now)
		return next, nil
	})
	if err != nil {
		return fmt.Errorf("simulated: interrupt: %w", err)
	}
	c.log.Info("instance interrupted", zap.String(logkey.NodeGroup, id), zap.String(logkey.Instance, instance))
	return nil
}
