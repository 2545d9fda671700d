package simulated

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gpu-node-provider/cloud"
)

// call plays a call to a cloud's API: the way there, the work, the way back,
// with the delays and faults of Options.API. A caller whose context ends on the
// way cannot know what became of a write, just as with a real cloud: it was
// carried out if the context ended on the way back.
func (c *Cloud) call(ctx context.Context, name string, write bool, work func() error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("simulated: %s was not started: %w", name, err)
	}
	abandoned := func(err error) error {
		if write {
			return fmt.Errorf("simulated: %s: %w: %w", name, cloud.ErrUnknownOutcome, err)
		}
		return fmt.Errorf("simulated: %s: %w", name, err)
	}
	there := c.options.API.Latency / 2
	if err := pause(ctx, there); err != nil {
		return abandoned(err)
	}
	err := c.arrive(work)
	if end := pause(ctx, c.options.API.Latency-there); end != nil {
		return abandoned(end)
	}
	if write && c.happens(c.options.API.LostAnswerRate) {
		return fmt.Errorf("simulated: %s: the answer was lost: %w", name, cloud.ErrUnknownOutcome)
	}
	if err != nil {
		return fmt.Errorf("simulated: %s: %w", name, err)
	}
	return nil
}

func (c *Cloud) arrive(work func() error) error {
	if c.happens(c.options.API.ErrorRate) {
		return fmt.Errorf("simulated failure: %w", cloud.ErrUnavailable)
	}
	return work()
}

// happens draws whether something of the given chance happens. Without a chance
// there is no draw, so that switching a fault off leaves other draws as they are.
func (c *Cloud) happens(chance float64) bool {
	if chance <= 0 {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.random.Float64() < chance
}

// pause waits, unless there is nothing to wait for. It uses real time even when
// the clock is not: a clock that a test moves by hand would never wake it.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// look returns the present, for a call that changes nothing, and the
// configured groups. The groups that are asked about must be among them.
func (c *Cloud) look(groups ...string) (m moment, order []string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return moment{}, nil, errClosed
	}
	for _, group := range groups {
		if !c.named[group] {
			return moment{}, nil, notConfigured(group)
		}
	}
	return c.momentLocked(), c.order, nil
}

// change replaces the units of one configured group by what work makes of them.
// It is put on disk before anybody sees it. When work fails, or returns the
// state it was given, nothing changes.
func (c *Cloud) change(group string, work func(m moment) (*state, error)) (cloud.Group, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return cloud.Group{}, errClosed
	}
	if !c.named[group] {
		return cloud.Group{}, notConfigured(group)
	}
	m := c.momentLocked()
	after, err := work(m)
	if err != nil {
		return cloud.Group{}, err
	}
	if after != m.state {
		changed, err := c.store.save(after)
		if changed {
			c.current = after
		}
		if err != nil {
			return cloud.Group{}, err
		}
	}
	c.revision++
	return moment{after, m.now, c.revision}.describe(group), nil
}

// known returns a group after a write that failed: as it is, if the outcome was not known to
// the caller.
func (c *Cloud) known(group string, err error) cloud.Group {
	if !errors.Is(err, cloud.ErrUnknownOutcome) {
		return cloud.Group{}
	}
	m, _, err := c.look(group)
	if err != nil {
		return cloud.Group{}
	}
	return m.describe(group)
}

var errClosed = fmt.Errorf("the simulated cloud is closed: %w", cloud.ErrUnavailable)

func notConfigured(group string) error {
	return fmt.Errorf("group %q is not configured: %w", group, cloud.ErrNotFound)
}
