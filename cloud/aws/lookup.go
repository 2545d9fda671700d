package aws

import (
	"context"
	"fmt"
	"maps"
	"slices"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"gpu-node-provider/cloud"
)

// groupTag is what Auto Scaling puts on its instances, and takes off those that
// are detached. No other tag may begin with aws:, so it cannot be made up.
const groupTag = "aws:autoscaling:groupName"

// Lookup implements cloud.Backend. An instance that is not in any ASG is Gone if
// this process has seen it in the group, or if EC2 still has it with the group's
// name; EC2 forgets what has terminated after about an hour. A placeholder that
// is not there is Gone by its form: no number of one comes back.
func (c *Cloud) Lookup(ctx context.Context, id string, instances []string) ([]cloud.Existence, error) {
	g, err := c.begin(ctx, "lookup", id)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(instances, func(i string) bool { return c.isWaiting(g, i) }) {
		if err := c.read(ctx, false, g); err != nil { // its machine may have come meanwhile
			return nil, err
		}
	}
	return c.existence(ctx, g, instances)
}

func (c *Cloud) existence(ctx context.Context, g *group, ids []string) ([]cloud.Existence, error) {
	machines, err := c.whereabouts(ctx, g, ids)
	if err != nil {
		return nil, err
	}
	found := make([]cloud.Existence, 0, len(ids))
	for _, id := range ids {
		owner, k := parseID(id)
		switch {
		case k == kindMachine:
			found = append(found, machines[id].existence)
		case k != kindPlaceholder || owner != g.id:
			found = append(found, cloud.Foreign)
		case c.isWaiting(g, id):
			found = append(found, cloud.Present)
		default:
			found = append(found, cloud.Gone)
		}
	}
	return found, nil
}

// isWaiting says whether an id is a placeholder that is there.
func (c *Cloud) isWaiting(g *group, id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(g.placeholders, func(p placeholder) bool { return p.id == id })
}

// whereabout is what has become of an instance.
type whereabout struct {
	existence cloud.Existence
	stage     stage // when it is Present
}

// whereabouts finds machines, each under its provider id; an id of another form
// is Foreign.
func (c *Cloud) whereabouts(ctx context.Context, g *group, ids []string) (map[string]whereabout, error) {
	byName := map[string][]string{} // one EC2 instance may be asked about with several zones
	for _, id := range ids {
		if name, k := parseID(id); k == kindMachine {
			byName[name] = append(byName[name], id)
		}
	}
	names := slices.Collect(maps.Keys(byName))
	live, err := c.liveInstances(ctx, names)
	if err != nil {
		return nil, fault(ctx, fmt.Sprintf("looking for %d instances of group %q", len(names), g.id), err)
	}
	found := make(map[string]whereabout, len(ids))
	for _, id := range ids {
		found[id] = whereabout{existence: cloud.Foreign}
	}
	var rest []string
	for name, asked := range byName {
		there, isLive := live[name]
		if isLive && there.asg == g.asg && there.stage.listed {
			found[there.id] = whereabout{cloud.Present, there.stage}
		}
		if !isLive && !c.markSeen(g, asked, found) {
			rest = append(rest, name)
		}
	}
	return found, c.markGone(ctx, g, rest, found)
}

// markSeen marks the ids that this process has seen in the group.
func (c *Cloud) markSeen(g *group, ids []string, found map[string]whereabout) (some bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		if _, seen := g.machines[id]; seen {
			found[id] = whereabout{existence: cloud.Gone}
			some = true
		}
	}
	return some
}

// markGone marks what EC2 still knows as the group's.
func (c *Cloud) markGone(ctx context.Context, g *group, names []string, found map[string]whereabout) error {
	records, err := c.instances(ctx, names)
	if err != nil {
		return err
	}
	for _, i := range records {
		if i.Placement == nil || !ofGroup(i, g.asg) {
			continue
		}
		id := machineID(awssdk.ToString(i.Placement.AvailabilityZone), awssdk.ToString(i.InstanceId))
		if _, asked := found[id]; asked {
			found[id] = whereabout{existence: cloud.Gone}
		}
	}
	return nil
}

func ofGroup(i ec2types.Instance, asg string) bool {
	return slices.ContainsFunc(i.Tags, func(t ec2types.Tag) bool {
		return awssdk.ToString(t.Key) == groupTag && awssdk.ToString(t.Value) == asg
	})
}

// liveInstance is an instance that is in an ASG, any one.
type liveInstance struct {
	id, asg string
	stage   stage
}

// Owners returns the ASG of each machine that is in one, by provider id.
func (c *Cloud) Owners(ctx context.Context, machines []string) (map[string]string, error) {
	var names []string
	for _, id := range machines {
		if name, k := parseID(id); k == kindMachine {
			names = append(names, name)
		}
	}
	live, err := c.liveInstances(ctx, names)
	if err != nil {
		return nil, fault(ctx, fmt.Sprintf("looking for the groups of %d instances", len(names)), err)
	}
	owners := map[string]string{}
	for _, i := range live {
		if i.stage.listed && slices.Contains(machines, i.id) {
			owners[i.id] = i.asg
		}
	}
	return owners, nil
}

// lookupBatch is the most instances DescribeAutoScalingInstances takes.
const lookupBatch = 50

// liveInstances finds instances by their EC2 id; those in no ASG are left out.
func (c *Cloud) liveInstances(ctx context.Context, names []string) (map[string]liveInstance, error) {
	live := make(map[string]liveInstance, len(names))
	for batch := range slices.Chunk(names, lookupBatch) {
		pages := autoscaling.NewDescribeAutoScalingInstancesPaginator(c.asg, &autoscaling.DescribeAutoScalingInstancesInput{InstanceIds: batch})
		for pages.HasMorePages() {
			page, err := pages.NextPage(ctx)
			if err != nil {
				return nil, err
			}
			for _, i := range page.AutoScalingInstances {
				name := awssdk.ToString(i.InstanceId)
				live[name] = liveInstance{
					id:    machineID(awssdk.ToString(i.AvailabilityZone), name),
					asg:   awssdk.ToString(i.AutoScalingGroupName),
					stage: stageOf(types.LifecycleState(awssdk.ToString(i.LifecycleState))),
				}
			}
		}
	}
	return live, nil
}
