package aws

import (
	"context"
	"maps"
	"slices"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"

	"gpu-node-provider/cloud"
)

// Discover finds the ASGs that carry all of the tags, by name and sorted. An
// empty value stands for any, as in --node-group-auto-discovery=asg:tag=KEY of
// Cluster Autoscaler. Without tags it finds nothing, rather than every ASG of the
// account.
//
// While the name of the cluster is not known, it is taken from the tags of what is
// found; listed are the ASGs that the node group file names, whose tags must not
// contradict. Without one name nothing is discovered, and Problem says why.
func (c *Cloud) Discover(ctx context.Context, tags map[string]string, listed []string) (cloud.Discovery, error) {
	found, err := c.tagged(ctx, tags)
	if err != nil {
		return cloud.Discovery{}, err
	}
	cluster, off, err := c.settleCluster(ctx, found, listed)
	if err != nil || off != "" {
		return cloud.Discovery{Problem: off}, err
	}
	var names []string
	for n := range found {
		names = append(names, awssdk.ToString(found[n].AutoScalingGroupName))
	}
	slices.Sort(names)
	return cloud.Discovery{Groups: names, Cluster: cluster}, nil
}

// tagged lists the ASGs that carry all of the tags.
func (c *Cloud) tagged(ctx context.Context, tags map[string]string) (found []types.AutoScalingGroup, err error) {
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
	pages := autoscaling.NewDescribeAutoScalingGroupsPaginator(c.asg, &autoscaling.DescribeAutoScalingGroupsInput{
		Filters: filters, MaxRecords: awssdk.Int32(pageSize), IncludeInstances: awssdk.Bool(false),
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, fault(ctx, "finding Auto Scaling groups by tags in "+c.region, err)
		}
		found = append(found, page.AutoScalingGroups...)
	}
	return found, nil
}
