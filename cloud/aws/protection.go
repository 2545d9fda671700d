package aws

import (
	"context"
	"fmt"
	"slices"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"gpu-node-provider/cloud"
)

// Whom AWS can take when the desired capacity is lowered.
//
// Lowering is absolute and has no compare-and-set: between the reading that
// counted n missing units and the write that gives them up, an instance can
// arrive. Then more is there than desired, and AWS ends an instance of its own
// choice. It can choose
//   - any InService instance that is not protected from scale-in: a machine with
//     work on it. So all are protected before anything is lowered.
//   - no InService instance that is protected. If all are, AWS ends none, and the
//     desired capacity is raised again (cancel.go).
//   - perhaps one that is Pending: the documents say that protection begins when
//     an instance is InService, and SetInstanceProtection is refused before. It
//     would be one that has just been launched and is no Node yet.
//   - never one in Standby, which is not counted.
//
// A Pending instance that was launched before the group protected new ones could
// be InService and unprotected by the time of the write, so nothing is lowered
// while there is one.
//
// Termination by id works on protected instances, so deleting nodes is not
// affected. See
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-instance-protection.html

// protectBatch is the most instances SetInstanceProtection takes.
const protectBatch = 50

// shield makes sure, by the mode that is set, that nothing can be a victim. It
// returns the group as it is afterwards.
func (c *Cloud) shield(ctx context.Context, g *group, now standing) (standing, error) {
	if c.protection == Ignore || isShielded(now) {
		return now, nil
	}
	if c.protection == Require {
		return now, c.notShielded(g, now)
	}
	if !protectsNew(now.asg) {
		if err := c.protectNew(ctx, g); err != nil {
			return now, err
		}
		// Instances that came before the group protected new ones must be known.
		var err error
		if now, err = c.look(ctx, g); err != nil {
			return now, err
		}
	}
	running, booting := unprotected(now)
	if err := c.protect(ctx, g, running); err != nil {
		return now, err
	}
	if len(booting) > 0 {
		return now, fmt.Errorf("aws: nothing was cancelled in Auto Scaling group %s: %s boots and cannot be protected from scale-in until it is in service; try again: %w",
			g.asg, shorten(fmt.Sprint(booting), 60), cloud.ErrUnavailable)
	}
	if len(running) > 0 {
		return c.look(ctx, g)
	}
	return now, nil
}

func isShielded(now standing) bool {
	running, booting := unprotected(now)
	return protectsNew(now.asg) && len(running)+len(booting) == 0
}

func (c *Cloud) notShielded(g *group, now standing) error {
	running, booting := unprotected(now)
	return fmt.Errorf("aws: nothing was cancelled in Auto Scaling group %s: scaleInProtection is require, new instances protected: %t, instances without protection: %d; "+
		"protect them, or set scaleInProtection: manage: %w", g.asg, protectsNew(now.asg), len(running)+len(booting), cloud.ErrPrecondition)
}

func protectsNew(g *types.AutoScalingGroup) bool {
	return awssdk.ToBool(g.NewInstancesProtectedFromScaleIn)
}

// unprotected are the instances AWS could end, by whether they can be protected.
func unprotected(now standing) (running, booting []string) {
	for _, i := range now.asg.Instances {
		id := awssdk.ToString(i.InstanceId)
		stage := now.states[providerID(i)]
		switch {
		case !stage.counted || awssdk.ToBool(i.ProtectedFromScaleIn):
		case stage.state == cloud.Running:
			running = append(running, id)
		default:
			booting = append(booting, id)
		}
	}
	return running, booting
}

// protectNew and protect repeat themselves safely, and any outcome of theirs is
// seen in the next reading; so a failure is simply told.
func (c *Cloud) protectNew(ctx context.Context, g *group) error {
	_, err := c.asg.UpdateAutoScalingGroup(ctx, &autoscaling.UpdateAutoScalingGroupInput{
		AutoScalingGroupName: &g.asg, NewInstancesProtectedFromScaleIn: awssdk.Bool(true),
	})
	if err != nil {
		return fault(ctx, "protecting new instances of Auto Scaling group "+g.asg+" from scale-in", err)
	}
	return nil
}

func (c *Cloud) protect(ctx context.Context, g *group, instances []string) error {
	for batch := range slices.Chunk(instances, protectBatch) {
		_, err := c.asg.SetInstanceProtection(ctx, &autoscaling.SetInstanceProtectionInput{
			AutoScalingGroupName: &g.asg, InstanceIds: batch, ProtectedFromScaleIn: awssdk.Bool(true),
		})
		if err != nil {
			return fault(ctx, fmt.Sprintf("protecting %d instances of Auto Scaling group %s from scale-in", len(batch), g.asg), err)
		}
	}
	return nil
}

// Run protects the groups each time they have been configured, until ctx is done, so that the
// first write to a group need not. What fails here is left to the write that needs it.
func (c *Cloud) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.configured:
		}
		if err := c.protectAll(ctx); err != nil && ctx.Err() == nil {
			c.log.Warn("failed to protect instances from scale-in", zap.Error(err))
		}
	}
}

func (c *Cloud) protectAll(ctx context.Context) error {
	if c.protection != Manage {
		return nil
	}
	groups, err := c.groups()
	if err != nil {
		return err
	}
	if err := c.read(ctx, false, groups...); err != nil {
		return err
	}
	var calls errgroup.Group // after an error the others go on
	calls.SetLimit(parallelReads)
	for _, g := range groups {
		calls.Go(func() error { return c.protectGroup(ctx, g) })
	}
	return calls.Wait()
}

func (c *Cloud) protectGroup(ctx context.Context, g *group) error {
	c.mu.Lock()
	served := g.problem == nil
	var now standing
	if served {
		now = g.standing(c.now())
	}
	c.mu.Unlock()
	if !served {
		return nil
	}
	if !protectsNew(now.asg) {
		if err := c.protectNew(ctx, g); err != nil {
			return err
		}
	}
	running, _ := unprotected(now)
	return c.protect(ctx, g, running)
}
