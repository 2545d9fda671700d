package aws

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/logkey"
)

const (
	// pageSize is the most names, and the most groups in an answer, that
	// DescribeAutoScalingGroups takes: 1,000 groups are 10 calls.
	pageSize = 100
	// parallelReads is how many reads are under way at a time. AWS refills the
	// Describe calls of an account at some tens a second, for everybody in it;
	// four at a time read 1,000 groups in about a second and leave the rest.
	parallelReads = 4
	// recentActivities is one page. The newest launch is what counts, and it is
	// on the first page unless a group has 100 later activities.
	recentActivities = 100
)

// sighting is what AWS says of one group at one time.
type sighting struct {
	asg     *types.AutoScalingGroup
	at      time.Time // by AWS's clock
	problem error
	// activities are asked for when the group is short of capacity, launched
	// for instances that are new.
	activities []types.Activity
	launched   map[string]launch
}

// Describe implements cloud.Backend. Groups come in the order of ids, or else
// in the order in which they were configured. Only a reading of all groups asks why
// launches have failed and when machines were launched: named groups are read in the
// course of a write, which must not wait for an explanation.
func (c *Cloud) Describe(ctx context.Context, ids ...string) ([]cloud.Group, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("aws: describe was not started: %w", err)
	}
	groups, err := c.groups(ids...)
	if err != nil {
		return nil, err
	}
	if err := c.read(ctx, len(ids) == 0, groups...); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	shown := make([]cloud.Group, 0, len(groups))
	for _, g := range groups {
		shown = append(shown, g.shown())
	}
	return shown, nil
}

// read asks AWS about groups, and if explained also what explains their sizes, and
// takes the answers over. A group that AWS does
// not know, or that cannot be served, has a problem afterwards; the error is for
// what keeps all from being read.
//
// The ticket is drawn before the first call: an answer that was under way while
// a write was acknowledged, or a later answer taken over, is dropped.
func (c *Cloud) read(ctx context.Context, explained bool, groups ...*group) error {
	ticket := c.tickets.Add(1)
	names := make([]string, 0, len(groups))
	asked := make(map[string]bool, len(groups))
	for _, g := range groups {
		if !asked[g.asg] {
			names = append(names, g.asg)
		}
		asked[g.asg] = true
	}
	seen, err := c.list(ctx, names)
	if err != nil {
		return err
	}
	if explained {
		if err := c.explain(ctx, groups, seen); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range groups {
		g.observed(*seen[g.asg], ticket, c)
	}
	return nil
}

// lastSeen returns what the last reading of the configured groups has shown of ASGs, and reads
// those that it has not shown. Tags, types and bounds change rarely, so they need no reading of
// their own.
func (c *Cloud) lastSeen(ctx context.Context, names []string) (map[string]*sighting, error) {
	shown := map[string]*sighting{}
	c.mu.Lock()
	for _, g := range c.named {
		if g.raw != nil && g.problem == nil {
			shown[g.asg] = &sighting{asg: g.raw, at: g.rawAt}
		}
	}
	c.mu.Unlock()
	seen, err := c.list(ctx, slices.DeleteFunc(slices.Clone(names), func(name string) bool { return shown[name] != nil }))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if s := shown[name]; s != nil {
			s.problem = c.unusable(s.asg)
			seen[name] = s
		}
	}
	return seen, nil
}

// unusable returns why an ASG cannot be a node group of the cluster; nil when it can.
func (c *Cloud) unusable(g *types.AutoScalingGroup) error { return cmp.Or(c.refused(g), unserved(g)) }

// list reads ASGs by name, a page at a time.
func (c *Cloud) list(ctx context.Context, names []string) (map[string]*sighting, error) {
	pages := slices.Collect(slices.Chunk(names, pageSize))
	found := make([][]sighting, len(pages))
	calls, calling := errgroup.WithContext(ctx)
	calls.SetLimit(parallelReads)
	for n, page := range pages {
		calls.Go(func() (err error) {
			found[n], err = c.page(calling, page)
			return err
		})
	}
	if err := calls.Wait(); err != nil {
		return nil, fault(ctx, fmt.Sprintf("reading %d Auto Scaling groups in %s", len(names), c.region), err)
	}
	seen := make(map[string]*sighting, len(names))
	for _, page := range found {
		for _, s := range page {
			seen[awssdk.ToString(s.asg.AutoScalingGroupName)] = &s
		}
	}
	for _, name := range names {
		if s := seen[name]; s != nil {
			s.problem = c.unusable(s.asg)
		} else {
			seen[name] = &sighting{problem: c.missing(name)}
		}
	}
	return seen, nil
}

func (c *Cloud) page(ctx context.Context, names []string) ([]sighting, error) {
	var seen []sighting
	in := &autoscaling.DescribeAutoScalingGroupsInput{AutoScalingGroupNames: names, MaxRecords: awssdk.Int32(pageSize)}
	for {
		out, err := c.asg.DescribeAutoScalingGroups(ctx, in)
		if err != nil {
			return nil, err
		}
		// AWS's clock, since launches are dated by it: ours may be off.
		at, ok := awsmiddleware.GetServerTime(out.ResultMetadata)
		if !ok {
			at = c.now()
		}
		for n := range out.AutoScalingGroups {
			seen = append(seen, sighting{asg: &out.AutoScalingGroups[n], at: at})
		}
		if awssdk.ToString(out.NextToken) == "" {
			return seen, nil
		}
		in.NextToken = out.NextToken
	}
}

// explain adds to the sightings why capacity has not come, and when new
// instances were launched. Both are worth less than the sizes, so what cannot be
// read of them is left out and logged: only the end of ctx is an error.
func (c *Cloud) explain(ctx context.Context, groups []*group, seen map[string]*sighting) error {
	short, fresh := c.questions(groups, seen)
	var calls errgroup.Group
	calls.SetLimit(parallelReads)
	for _, asg := range short {
		calls.Go(func() error {
			out, err := c.asg.DescribeScalingActivities(ctx, &autoscaling.DescribeScalingActivitiesInput{
				AutoScalingGroupName: &asg, MaxRecords: awssdk.Int32(recentActivities),
			})
			if err != nil {
				err = fault(ctx, "reading the scaling activities of Auto Scaling group "+asg, err)
				c.log.Warn("failed to read why instances are missing", zap.String(logkey.AutoScalingGroup, asg), zap.Error(err))
				return nil
			}
			seen[asg].activities = out.Activities // each call has its own sighting
			return nil
		})
	}
	var launched map[string]launch
	calls.Go(func() error {
		launched = c.launches(ctx, fresh)
		return nil
	})
	err := errors.Join(calls.Wait(), ctx.Err())
	for _, s := range seen {
		s.launched = launched
	}
	if err != nil {
		return fmt.Errorf("aws: reading Auto Scaling groups: %w: %w", cloud.ErrGivenUp, err)
	}
	return nil
}

// questions are the ASGs that are short of capacity nobody has explained yet,
// and the instances that are new.
func (c *Cloud) questions(groups []*group, seen map[string]*sighting) (short, fresh []string) {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range groups {
		s := seen[g.asg]
		if s.problem != nil {
			continue
		}
		for _, i := range s.asg.Instances {
			if _, known := g.machines[providerID(i)]; !known && stageOf(i.LifecycleState).listed {
				fresh = append(fresh, awssdk.ToString(i.InstanceId))
			}
		}
		as := group{raw: s.asg, lag: g.lag}
		stand := as.standing(now)
		missing := stand.desired - stand.live
		for _, p := range g.placeholders {
			if p.err != nil {
				missing--
			}
		}
		if missing > 0 {
			short = append(short, g.asg)
		}
	}
	return short, fresh
}
