package aws

import (
	"context"
	"fmt"
	"slices"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
)

// Meddling is a setting of a group by which AWS ends machines under their trainers,
// or changes how many there are, without asking anybody.
type Meddling struct {
	Group string // node group
	// What it is, and Do what switches it off.
	What, Do string
}

// Meddling looks for such settings in all configured groups, in their order. Groups
// that are not there have none. It costs a few calls, so it is for people who ask.
func (c *Cloud) Meddling(ctx context.Context) ([]Meddling, error) {
	groups, err := c.groups()
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(groups))
	for _, g := range groups {
		names = append(names, g.asg)
	}
	seen, err := c.list(ctx, names)
	if err != nil {
		return nil, err
	}
	scheduled, err := c.scheduledActions(ctx, names)
	if err != nil {
		return nil, err
	}
	policies, err := c.scalingPolicies(ctx, names)
	if err != nil {
		return nil, err
	}
	var all []Meddling
	for _, g := range groups {
		found := slices.Concat(settings(seen[g.asg]), scheduled[g.asg], policies[g.asg])
		for _, m := range found {
			m.Group = g.id
			all = append(all, m)
		}
	}
	return all, nil
}

// settings are those of the group itself.
func settings(s *sighting) (found []Meddling) {
	if s == nil || s.asg == nil {
		return nil
	}
	name := awssdk.ToString(s.asg.AutoScalingGroupName)
	update := "aws autoscaling update-auto-scaling-group --auto-scaling-group-name " + name
	if len(s.asg.AvailabilityZones) > 1 && !suspended(s.asg, "AZRebalance") {
		found = append(found, Meddling{
			What: fmt.Sprintf("AZRebalance is on, and %s spans %d zones: it ends machines to even them out", name, len(s.asg.AvailabilityZones)),
			Do:   fmt.Sprintf("aws autoscaling suspend-processes --auto-scaling-group-name %s --scaling-processes AZRebalance", name),
		})
	}
	if seconds := awssdk.ToInt32(s.asg.MaxInstanceLifetime); seconds > 0 {
		found = append(found, Meddling{
			What: fmt.Sprintf("MaxInstanceLifetime of %s is %d s: each machine is ended at that age", name, seconds),
			Do:   update + " --max-instance-lifetime 0",
		})
	}
	if awssdk.ToBool(s.asg.CapacityRebalance) {
		found = append(found, Meddling{
			What: fmt.Sprintf("CapacityRebalance of %s is on: a Spot machine at risk is ended before it is interrupted", name),
			Do:   update + " --no-capacity-rebalance",
		})
	}
	return found
}

// scheduledActions are those of the groups, by Auto Scaling group.
func (c *Cloud) scheduledActions(ctx context.Context, names []string) (map[string][]Meddling, error) {
	found := map[string][]Meddling{}
	pages := autoscaling.NewDescribeScheduledActionsPaginator(c.asg, &autoscaling.DescribeScheduledActionsInput{MaxRecords: awssdk.Int32(pageSize)})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, fault(ctx, "reading the scheduled actions in "+c.region, err)
		}
		for _, action := range page.ScheduledUpdateGroupActions {
			group, name := awssdk.ToString(action.AutoScalingGroupName), awssdk.ToString(action.ScheduledActionName)
			if slices.Contains(names, group) {
				found[group] = append(found[group], Meddling{
					What: fmt.Sprintf("scheduled action %s of %s changes its size", name, group),
					Do:   fmt.Sprintf("aws autoscaling delete-scheduled-action --auto-scaling-group-name %s --scheduled-action-name %s", group, name),
				})
			}
		}
	}
	return found, nil
}

// scalingPolicies are those of the groups that are in force, by Auto Scaling group.
func (c *Cloud) scalingPolicies(ctx context.Context, names []string) (map[string][]Meddling, error) {
	found := map[string][]Meddling{}
	pages := autoscaling.NewDescribePoliciesPaginator(c.asg, &autoscaling.DescribePoliciesInput{MaxRecords: awssdk.Int32(pageSize)})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, fault(ctx, "reading the scaling policies in "+c.region, err)
		}
		for _, policy := range page.ScalingPolicies {
			group, name := awssdk.ToString(policy.AutoScalingGroupName), awssdk.ToString(policy.PolicyName)
			if slices.Contains(names, group) && (policy.Enabled == nil || *policy.Enabled) {
				found[group] = append(found[group], Meddling{
					What: fmt.Sprintf("scaling policy %s of %s changes its size", name, group),
					Do:   fmt.Sprintf("aws autoscaling delete-policy --auto-scaling-group-name %s --policy-name %s", group, name),
				})
			}
		}
	}
	return found, nil
}
