package aws

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"golang.org/x/sync/errgroup"

	"gpu-node-provider/cloud"
)

// Conflicts looks for such settings in all configured groups, in their order. Groups
// that are not there have none. What can be read is returned with an error, too. It
// costs a few calls, so it is for people who ask.
func (c *Cloud) Conflicts(ctx context.Context) ([]cloud.Conflict, error) {
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
	scheduled, problem := c.scheduledActions(ctx, names)
	policies, another := c.scalingPolicies(ctx, names)
	refreshes, third := c.instanceRefreshes(ctx, seen)
	var all []cloud.Conflict
	for _, g := range groups {
		asg := seen[g.asg].asg
		if asg == nil {
			continue
		}
		found := settings(asg)
		if !suspended(asg, "ScheduledActions") {
			found = append(found, scheduled[g.asg]...)
		}
		if !suspended(asg, "AlarmNotification") {
			found = append(found, policies[g.asg]...)
		}
		found = append(found, refreshes[g.asg]...)
		for _, m := range found {
			m.Group = g.id
			all = append(all, m)
		}
	}
	return all, errors.Join(problem, another, third)
}

// settings are those of the group itself.
func settings(asg *types.AutoScalingGroup) (found []cloud.Conflict) {
	name := awssdk.ToString(asg.AutoScalingGroupName)
	update := "aws autoscaling update-auto-scaling-group --auto-scaling-group-name " + name
	if len(asg.AvailabilityZones) > 1 && !suspended(asg, "AZRebalance") {
		found = append(found, cloud.Conflict{
			What: fmt.Sprintf("AZRebalance is on, and %s spans %d zones: it terminates instances to balance the zones", name, len(asg.AvailabilityZones)),
			Do:   fmt.Sprintf("aws autoscaling suspend-processes --auto-scaling-group-name %s --scaling-processes AZRebalance", name),
		})
	}
	if seconds := awssdk.ToInt32(asg.MaxInstanceLifetime); seconds > 0 {
		found = append(found, cloud.Conflict{
			What: fmt.Sprintf("MaxInstanceLifetime of %s is %d s: each instance is terminated at that age", name, seconds),
			Do:   update + " --max-instance-lifetime 0",
		})
	}
	if kind := awssdk.ToString(asg.HealthCheckType); strings.Contains(kind, "ELB") {
		found = append(found, cloud.Conflict{
			What: fmt.Sprintf("health check type of %s is %s: an instance that the load balancer finds unhealthy is terminated, with the training on it", name, kind),
			Do:   update + " --health-check-type EC2",
		})
	}
	if awssdk.ToBool(asg.CapacityRebalance) {
		found = append(found, cloud.Conflict{
			What: fmt.Sprintf("CapacityRebalance of %s is on: a Spot instance at elevated risk is replaced before its interruption", name),
			Do:   update + " --no-capacity-rebalance",
		})
	}
	return found
}

// instanceRefreshes are those under way, by Auto Scaling group. AWS is asked group by group.
func (c *Cloud) instanceRefreshes(ctx context.Context, seen map[string]*sighting) (map[string][]cloud.Conflict, error) {
	found := map[string][]cloud.Conflict{}
	var mu sync.Mutex
	calls, calling := errgroup.WithContext(ctx)
	calls.SetLimit(parallelReads)
	for name, s := range seen {
		if s.asg == nil {
			continue
		}
		calls.Go(func() error {
			out, err := c.asg.DescribeInstanceRefreshes(calling, &autoscaling.DescribeInstanceRefreshesInput{AutoScalingGroupName: &name, MaxRecords: awssdk.Int32(1)})
			if err != nil {
				return fault(ctx, "reading the instance refreshes of Auto Scaling group "+name, err)
			}
			for _, r := range out.InstanceRefreshes {
				switch r.Status {
				case types.InstanceRefreshStatusPending, types.InstanceRefreshStatusInProgress, types.InstanceRefreshStatusBaking:
					mu.Lock()
					found[name] = append(found[name], cloud.Conflict{
						What: fmt.Sprintf("an instance refresh of %s is %s: it replaces instances, with the trainings on them", name, r.Status),
						Do:   "aws autoscaling cancel-instance-refresh --auto-scaling-group-name " + name,
					})
					mu.Unlock()
				default:
				}
			}
			return nil
		})
	}
	return found, calls.Wait()
}

// scheduledActions are those of the groups, by Auto Scaling group.
func (c *Cloud) scheduledActions(ctx context.Context, names []string) (map[string][]cloud.Conflict, error) {
	found := map[string][]cloud.Conflict{}
	pages := autoscaling.NewDescribeScheduledActionsPaginator(c.asg, &autoscaling.DescribeScheduledActionsInput{MaxRecords: awssdk.Int32(pageSize)})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return found, fault(ctx, "reading the scheduled actions in "+c.region, err)
		}
		for _, action := range page.ScheduledUpdateGroupActions {
			group, name := awssdk.ToString(action.AutoScalingGroupName), awssdk.ToString(action.ScheduledActionName)
			if slices.Contains(names, group) {
				found[group] = append(found[group], cloud.Conflict{
					What: fmt.Sprintf("scheduled action %s of %s changes its size", name, group),
					Do:   fmt.Sprintf("aws autoscaling delete-scheduled-action --auto-scaling-group-name %s --scheduled-action-name %s", group, name),
				})
			}
		}
	}
	return found, nil
}

// scalingPolicies are those of the groups that are in force, by Auto Scaling group.
func (c *Cloud) scalingPolicies(ctx context.Context, names []string) (map[string][]cloud.Conflict, error) {
	found := map[string][]cloud.Conflict{}
	pages := autoscaling.NewDescribePoliciesPaginator(c.asg, &autoscaling.DescribePoliciesInput{MaxRecords: awssdk.Int32(pageSize)})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return found, fault(ctx, "reading the scaling policies in "+c.region, err)
		}
		for _, policy := range page.ScalingPolicies {
			group, name := awssdk.ToString(policy.AutoScalingGroupName), awssdk.ToString(policy.PolicyName)
			if slices.Contains(names, group) && inForce(policy) {
				found[group] = append(found[group], cloud.Conflict{
					What: fmt.Sprintf("scaling policy %s of %s changes its size", name, group),
					Do:   fmt.Sprintf("aws autoscaling delete-policy --auto-scaling-group-name %s --policy-name %s", group, name),
				})
			}
		}
	}
	return found, nil
}

// inForce says whether a policy changes anything: a predictive one only forecasts,
// unless it is told to scale.
func inForce(policy types.ScalingPolicy) bool {
	if policy.Enabled != nil && !*policy.Enabled {
		return false
	}
	predictive := policy.PredictiveScalingConfiguration
	return predictive == nil || predictive.Mode == types.PredictiveScalingModeForecastAndScale
}
