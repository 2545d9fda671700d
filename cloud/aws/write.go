package aws

import (
	"context"
	"fmt"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"go.uber.org/zap"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/logkey"
)

const (
	// settleFor bounds how long one write is repeated, or its outcome pursued,
	// when the caller sets no deadline of its own. Cluster Autoscaler waits 5 s
	// by default (--cloud-config grpc_timeout); clouds settle within seconds.
	settleFor = 20 * time.Second
	// firstPause and longestPause are between repetitions.
	firstPause   = 200 * time.Millisecond
	longestPause = 2 * time.Second
	// answerTime is left of a caller's deadline when repeating ends.
	answerTime = 500 * time.Millisecond
)

// careful has the SDK repeat a write only when it certainly had no effect. The
// SDK's own rules repeat after lost answers as well, and tell nobody: the last
// answer would then be taken for the outcome of all.
func careful(o *autoscaling.Options) {
	o.Retryer = retry.NewStandard(func(s *retry.StandardOptions) {
		s.Retryables = []retry.IsErrorRetryable{
			retry.NoRetryCanceledError{},
			retry.IsErrorRetryableFunc(func(err error) awssdk.Ternary {
				return awssdk.BoolTernary(wasNotSent(err) && (isThrottled(err) || status(err) == 0) && !isCredentials(err))
			}),
		}
	})
}

// look reads a group afresh for a write to decide by. A problem of the group is
// an error here.
func (c *Cloud) look(ctx context.Context, g *group) (standing, error) {
	if err := c.read(ctx, false, g); err != nil {
		return standing{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if g.problem != nil {
		return standing{}, g.problem
	}
	return g.standing(c.now()), nil
}

// shown is the group as it is known now.
func (c *Cloud) shown(g *group) cloud.Group {
	c.mu.Lock()
	defer c.mu.Unlock()
	return g.shown()
}

// known is the group after a write that failed: what is known of it, if the outcome is not.
func (c *Cloud) known(g *group, err error) cloud.Group {
	if !isUnknown(err) {
		return cloud.Group{}
	}
	return c.shown(g)
}

// setDesired sets an ASG's desired capacity and takes note of it. An unknown
// outcome is settled by a reading that shows the value, or else, since the value
// is absolute, by sending the same again, as long as ctx lives.
func (c *Cloud) setDesired(ctx context.Context, g *group, from standing, value int) error {
	doing := fmt.Sprintf("setting the desired capacity of Auto Scaling group %s to %d", g.asg, value)
	var doubt error
	turns := c.turns(ctx)
	defer turns.stop()
	for {
		_, err := c.asg.SetDesiredCapacity(ctx, &autoscaling.SetDesiredCapacityInput{
			AutoScalingGroupName: &g.asg,
			DesiredCapacity:      awssdk.Int32(int32(value)), //nolint:gosec // between the group's bounds, which are of that type
			HonorCooldown:        awssdk.Bool(false),
		}, careful)
		if err == nil {
			c.noteSet(ctx, g, from, value)
			return nil
		}
		refused := wasNotSent(err)
		if !refused {
			doubt = err
			if c.shows(ctx, g, value) {
				c.noteSet(ctx, g, from, value)
				return nil
			}
		}
		final := refused && status(err) != 0 && !isBusy(err) && !isThrottled(err)
		if !final && turns.next() {
			continue
		}
		if doubt == nil {
			return fault(ctx, doing, err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		g.wrote(c, func(l *lag, now time.Time) {
			l.lost(value, value)
			l.mayShow(l.desired(int(awssdk.ToInt32(g.raw.DesiredCapacity)), now), value, value, now)
		})
		return unknown(ctx, doing, doubt)
	}
}

// shows reads whether AWS shows a desired capacity. A reading that fails shows nothing.
func (c *Cloud) shows(ctx context.Context, g *group, value int) bool {
	if err := c.read(ctx, false, g); err != nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return int(awssdk.ToInt32(g.raw.DesiredCapacity)) == value
}

// noteSet takes over a desired capacity that AWS has acknowledged.
func (c *Cloud) noteSet(ctx context.Context, g *group, from standing, value int) {
	c.mu.Lock()
	before, shown := int(awssdk.ToInt32(from.asg.DesiredCapacity)), int(awssdk.ToInt32(g.raw.DesiredCapacity))
	var counts int
	g.wrote(c, func(l *lag, now time.Time) {
		l.set(value, now, from.desired, before)
		counts = l.desired(shown, now)
	})
	c.mu.Unlock()
	if counts == value {
		return
	}
	// A reading has shown somebody else's value meanwhile, from before or after this one.
	if err := c.read(ctx, false, g); err != nil {
		c.log.Warn("failed to read the desired capacity, which another client sets too", zap.String(logkey.NodeGroup, g.id),
			zap.Int(logkey.DesiredCapacity, value), zap.Int(logkey.ShownDesiredCapacity, shown), zap.Error(err))
	}
}

// turns paces the repetitions of a write. It ends by the clock of Options, and by
// real time as well, should that clock stand still.
type turns struct {
	ctx   context.Context
	stop  func()
	now   func() time.Time
	until time.Time
	pause time.Duration
}

// turns end after settleFor, or a while before ctx does: then there is still time
// to say so.
func (c *Cloud) turns(ctx context.Context) *turns {
	pace, stop := context.WithTimeout(ctx, settleFor)
	if deadline, ok := ctx.Deadline(); ok {
		early, stopEarly := context.WithDeadline(pace, deadline.Add(-answerTime))
		whole := stop
		pace, stop = early, func() { stopEarly(); whole() }
	}
	return &turns{ctx: pace, stop: stop, now: c.now, until: c.now().Add(settleFor), pause: firstPause}
}

// timeLeft is an error when there is no time even for the first turn: AWS would
// carry out what the caller takes for failed.
func (c *Cloud) timeLeft(ctx context.Context, doing string) error {
	turns := c.turns(ctx)
	defer turns.stop()
	if err := turns.ctx.Err(); err != nil {
		return fmt.Errorf("aws: %s was not started, less than %s left before the caller's deadline: %w: %w", doing, answerTime, cloud.ErrGivenUp, err)
	}
	return nil
}

// next waits for another turn, and is false when there is none.
func (t *turns) next() bool {
	if t.now().After(t.until) {
		return false
	}
	timer := time.NewTimer(t.pause)
	defer timer.Stop()
	t.pause = min(2*t.pause, longestPause)
	select {
	case <-t.ctx.Done():
		return false
	case <-timer.C:
		return t.ctx.Err() == nil
	}
}
