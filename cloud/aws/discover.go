package aws

import (
	"context"
	"maps"
	"slices"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"

	"gpu-node-provider/cloud"
)

// discoveryPage is how long an answer counts for each page of it but the first, so that
// discovering 1,000 groups costs a call a minute, beside the 20 that read them. One page is read
// each time.
const discoveryPage = time.Minute

// discovery is the last answer of Discover.
type discovery struct {
	tags  map[string]string
	found cloud.Discovery
	until time.Time
}

// Discover finds the ASGs that carry all of the tags, by name and sorted. An
// empty value stands for any, as in --node-group-auto-discovery=asg:tag=KEY of
// Cluster Autoscaler. Without tags it finds nothing, rather than every ASG of the
// account.
//
// While the name of the cluster is not known, it is taken from the tags of what is
// found; listed are the ASGs that the node group file names, whose tags must not
// contradict. Without one name nothing is discovered, and Problem says why.
func (c *Cloud) Discover(ctx context.Context, tags map[string]string, listed []string) (cloud.Discovery, error) {
	c.mu.Lock()
	last := c.discovered
	c.mu.Unlock()
	if maps.Equal(last.tags, tags) && c.now().Before(last.until) {
		return last.found, nil
	}
	found, pages, err := c.tagged(ctx, tags)
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
	last = discovery{tags: maps.Clone(tags), found: cloud.Discovery{Groups: names, Cluster: cluster}, until: c.now().Add(time.Duration(pages-1) * discoveryPage)}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.discovered = last
	return last.found, nil
}

// tagged lists the ASGs that carry all of the tags, and counts the pages.
func (c *Cloud) tagged(ctx context.Context, tags map[string]string) (found []types.AutoScalingGroup, read int, err error) {
	if len(tags) == 0 {
		return nil, 0, nil
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
			return nil, 0, fault(ctx, "finding Auto Scaling groups by tags in "+c.region, err)
		}
		found = append(found, page.AutoScalingGroups...)
		read++
	}
	return found, read, nil
}
