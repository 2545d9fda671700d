package aws

import (
	"context"
	"fmt"
	"slices"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"gpu-node-provider/cloud/logkey"
)

// filterValues is the most values that a filter of EC2 takes.
const filterValues = 200

// instances reads EC2 instances by id. A filter is used rather than InstanceIds,
// which fails as a whole when one of them is unknown.
func (c *Cloud) instances(ctx context.Context, ids []string) ([]types.Instance, error) {
	batches := slices.Collect(slices.Chunk(ids, filterValues))
	found := make([][]types.Instance, len(batches))
	calls, calling := errgroup.WithContext(ctx)
	calls.SetLimit(parallelReads)
	for n, batch := range batches {
		calls.Go(func() (err error) {
			found[n], err = c.batch(calling, batch)
			return err
		})
	}
	if err := calls.Wait(); err != nil {
		return nil, fault(ctx, fmt.Sprintf("reading %d EC2 instances", len(ids)), err)
	}
	return slices.Concat(found...), nil
}

func (c *Cloud) batch(ctx context.Context, ids []string) ([]types.Instance, error) {
	var found []types.Instance
	pages := ec2.NewDescribeInstancesPaginator(c.ec2, &ec2.DescribeInstancesInput{
		Filters: []types.Filter{{Name: awssdk.String("instance-id"), Values: ids}},
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, r := range page.Reservations {
			found = append(found, r.Instances...)
		}
	}
	return found, nil
}

// launchTimes says when instances were launched. Those that EC2 does not show,
// or not yet, are left out: they count as launched when they were first seen.
func (c *Cloud) launchTimes(ctx context.Context, ids []string) map[string]time.Time {
	found, err := c.instances(ctx, ids)
	if err != nil {
		c.log.Warn("failed to read the launch times of instances", zap.Int(logkey.Instances, len(ids)), zap.Error(err))
		return nil
	}
	times := make(map[string]time.Time, len(found))
	for _, i := range found {
		if i.LaunchTime != nil {
			times[awssdk.ToString(i.InstanceId)] = *i.LaunchTime
		}
	}
	return times
}
