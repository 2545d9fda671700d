package aws

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/logkey"
)

// parallelTerminations is how many are under way for one group. AWS has a call
// for many, but answers for them as a whole; one call an instance says of each
// what became of it.
const parallelTerminations = 4

// Delete implements cloud.Backend.
func (c *Cloud) Delete(ctx context.Context, id string, instances []string) (cloud.Group, []string, error) {
	g, err := c.begin(ctx, "delete", id)
	if err != nil {
		return cloud.Group{}, nil, err
	}
	for _, i := range instances {
		switch _, k := parseID(i); k {
		case kindMachine:
		case kindPlaceholder:
			return cloud.Group{}, nil, fmt.Errorf("aws: %q is a placeholder, there is no instance to delete: %w", i, cloud.ErrInvalid)
		default:
			return cloud.Group{}, nil, fmt.Errorf("aws: %q is not an instance of group %q: %w", i, id, cloud.ErrInvalid)
		}
	}
	now, err := c.look(ctx, g)
	if err != nil {
		return cloud.Group{}, nil, err
	}
	c.forgetLeaving(g)
	departures, err := c.plan(ctx, g, now, instances)
	if err != nil {
		return cloud.Group{}, nil, err
	}
	desired, err := c.level(ctx, g, now, departures)
	if err != nil {
		return c.known(g, err), nil, err
	}
	return c.end(ctx, g, desired, departures)
}

// departure is one instance that is to go, and what has become of it.
type departure struct {
	id, instance string
	// call is false when it is going or gone already.
	call bool
	// counted is true when the desired capacity has to go down with it. An
	// instance in standby is not part of it.
	counted bool
	outcome outcome
	err     error
}

type outcome int

const (
	notConfirmed outcome = iota
	// endedByUs and the desired capacity went down with it, if counted.
	endedByUs
	// foundEnded is going or gone, by whom cannot be told.
	foundEnded
)

// plan checks all instances and changes nothing.
func (c *Cloud) plan(ctx context.Context, g *group, now standing, instances []string) ([]*departure, error) {
	var departures []*departure
	var strangers []string
	seen := map[string]bool{}
	for _, id := range instances {
		if seen[id] {
			continue
		}
		seen[id] = true
		name, _ := parseID(id)
		d := &departure{id: id, instance: name, outcome: foundEnded}
		stage, listed := now.states[id]
		switch {
		case !listed:
			strangers = append(strangers, id)
		case stage.state != cloud.Deleting:
			d.call, d.counted, d.outcome = true, stage.counted, notConfirmed
		}
		departures = append(departures, d)
	}
	if len(strangers) == 0 {
		return departures, nil
	}
	// What is read lags, so an instance that is not listed may be there.
	found, err := c.whereabouts(ctx, g, strangers)
	if err != nil {
		return nil, err
	}
	for _, d := range departures {
		there, isStranger := found[d.id]
		switch {
		case !isStranger || there.existence == cloud.Gone:
		case there.existence == cloud.Foreign:
			return nil, fmt.Errorf("aws: nothing was deleted: %s is not an instance of group %q: %w", d.id, g.id, cloud.ErrInvalid)
		case there.stage.state != cloud.Deleting:
			d.call, d.counted, d.outcome = true, there.stage.counted, notConfirmed
		}
	}
	return departures, nil
}

// level raises the desired capacity to what is there, should a Cancel have left
// it below: otherwise a termination that decrements it could go below MinSize
// although enough instances stay. It returns what is desired then. What MaxSize leaves
// beyond that is ended without a decrement.
func (c *Cloud) level(ctx context.Context, g *group, now standing, departures []*departure) (desired int, err error) {
	counted := slices.ContainsFunc(departures, func(d *departure) bool { return d.call && d.counted })
	if !counted || now.live <= now.desired || c.protection == Ignore {
		return now.desired, nil
	}
	desired = max(now.desired, now.shown(), min(now.live, int(awssdk.ToInt32(now.asg.MaxSize))))
	surplus := now.live - desired
	for _, d := range departures {
		if surplus > 0 && d.call && d.counted {
			d.counted = false
			surplus--
		}
	}
	if desired == now.desired {
		return desired, nil
	}
	if err := c.timeLeft(ctx, "deleting from Auto Scaling group "+g.asg); err != nil {
		return 0, err
	}
	return desired, c.setDesired(ctx, g, now, desired)
}

// end terminates, and reports what is confirmed.
func (c *Cloud) end(ctx context.Context, g *group, desired int, departures []*departure) (cloud.Group, []string, error) {
	var calls errgroup.Group
	calls.SetLimit(parallelTerminations)
	for _, d := range departures {
		if d.call {
			calls.Go(func() error {
				d.outcome, d.err = c.terminate(ctx, g, d)
				return nil // the others go on
			})
		}
	}
	if err := calls.Wait(); err != nil {
		return cloud.Group{}, nil, err
	}
	c.noteEnded(ctx, g, desired, departures)
	var confirmed []string
	for _, d := range departures {
		if d.outcome != notConfirmed {
			confirmed = append(confirmed, d.id)
		}
	}
	return c.shown(g), confirmed, failures(departures)
}

// noteEnded takes over what was confirmed, and what may have been done.
func (c *Cloud) noteEnded(ctx context.Context, g *group, desired int, departures []*departure) {
	done, ours, found := account(desired, departures)
	var most int
	var known bool
	c.noteTermination(g, func(l *lag, shown int, now time.Time) { most, known = l.lowered(shown, done, ours, now) })
	if known && done.doubt == 0 && len(found) == 0 {
		return
	}
	err := c.read(ctx, false, g)
	if err != nil {
		c.log.Warn("failed to read the desired capacity after terminations", zap.String(logkey.NodeGroup, g.id), zap.Error(err))
	}
	c.noteTermination(g, func(l *lag, shown int, now time.Time) {
		l.ended(found, now)
		switch {
		case !known: // what AWS shows counts
		case err != nil:
			l.lost(most-done.doubt, most)
		default:
			l.doubted(shown, most-done.doubt, most, now)
		}
		desired := l.desired(shown, now)
		l.mayShow(desired, min(desired, most-done.doubt), desired, now)
	})
}

// account says what departures did to the desired capacity, and which instances
// were ended by them or found to have ended.
func account(desired int, departures []*departure) (done terminated, ours, found []string) {
	done.from = desired
	for _, d := range departures {
		counts := 0
		if d.counted {
			counts = 1
		}
		switch {
		case !d.call:
		case d.outcome == endedByUs:
			ours, done.sure = append(ours, d.instance), done.sure+counts
		case d.outcome == foundEnded:
			found, done.doubt = append(found, d.instance), done.doubt+counts
		case isUnknown(d.err):
			done.doubt += counts
		}
	}
	return done, ours, found
}

func (c *Cloud) noteTermination(g *group, note func(l *lag, shown int, now time.Time)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g.wrote(c, func(l *lag, now time.Time) { note(l, int(awssdk.ToInt32(g.raw.DesiredCapacity)), now) })
}

// terminate ends one instance. After a lost answer the call is not repeated: on
// an instance that is terminating already it could lower the desired capacity a
// second time. AWS is asked what became of the instance instead.
func (c *Cloud) terminate(ctx context.Context, g *group, d *departure) (outcome, error) {
	doing := fmt.Sprintf("terminating %s of Auto Scaling group %s", d.instance, g.asg)
	turns := c.turns(ctx)
	defer turns.stop()
	if err := c.timeLeft(ctx, doing); err != nil {
		return notConfirmed, err
	}
	for {
		_, err := c.asg.TerminateInstanceInAutoScalingGroup(ctx, &autoscaling.TerminateInstanceInAutoScalingGroupInput{
			InstanceId: &d.instance, ShouldDecrementDesiredCapacity: awssdk.Bool(d.counted),
		}, careful)
		switch {
		case err == nil:
			return endedByUs, nil
		case !wasNotSent(err):
			if c.hasEnded(ctx, g, d.instance) {
				return foundEnded, nil
			}
			return notConfirmed, unknown(ctx, doing, err)
		case strings.Contains(strings.ToLower(ownWords(err)), "instance id not found"):
			return foundEnded, nil
		case !isBusy(err) || !turns.next():
			return notConfirmed, fault(ctx, doing, err)
		}
	}
}

// settleLooks is how often AWS is asked whether a termination got through. It
// shows within a second or two; an instance that is in service after that was
// most likely never told, but only a later Delete may tell it again.
const settleLooks = 4

func (c *Cloud) hasEnded(ctx context.Context, g *group, instance string) bool {
	turns := c.turns(ctx)
	defer turns.stop()
	for range settleLooks {
		if ctx.Err() != nil {
			return false
		}
		live, err := c.liveInstances(ctx, []string{instance})
		if err == nil {
			there, ok := live[instance]
			if !ok || there.asg != g.asg || there.stage.state == cloud.Deleting {
				return true
			}
		}
		if !turns.next() {
			return false
		}
	}
	return false
}

// failures is one error of one class for all terminations that are not
// confirmed. That an outcome is unknown counts most, since then the caller has
// to look.
func failures(departures []*departure) error {
	var first error
	failed := 0
	for _, d := range departures {
		if d.err == nil {
			continue
		}
		failed++
		if first == nil || !isUnknown(first) && isUnknown(d.err) {
			first = d.err
		}
	}
	if failed > 1 {
		return fmt.Errorf("%w (and %d more of %d)", first, failed-1, len(departures))
	}
	return first
}

func isUnknown(err error) bool { return errors.Is(err, cloud.ErrUnknownOutcome) }
