package aws

import (
	"context"
	"maps"
	"slices"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
)

// Discover finds the ASGs that carry all of the tags, by name and sorted. An
// empty value stands for any, as in --node-group-auto-discovery=asg:tag=KEY of
// Cluster Autoscaler. Without tags it finds nothing, rather than every ASG of the
// account.
func (c *Cloud) Discover(ctx context.Context, tags map[string]string) ([]string, error) {
	if len(tags) == 0 {
		return nil, nil
	}
	var filters []types.Filter // AWS wants all of them to match
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		if tags[key] == "" {
			filters = append(filters, types.Filter{Name: awssdk.String("tag-key"), Values: []string{key}})
		} else {
			filters = append(filters, types.Filter{Name: awssdk.String("tag:" + key), Values: []string{tags[key]}})
		}
	}
	var names []string
	pages := autoscaling.NewDescribeAutoScalingGroupsPaginator(c.asg, &autoscaling.DescribeAutoScalingGroupsInput{
		Filters: filters, MaxRecords: awssdk.Int32(pageSize), IncludeInstances: awssdk.Bool(false),
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, fault(ctx, "finding Auto Scaling groups by tags in "+c.region, err)
		}
		for _, g := range page.AutoScalingGroups {
			names = append(names, awssdk.ToString(g.AutoScalingGroupName))
		}
	}
	slices.Sort(names)
	return names, nil
}
