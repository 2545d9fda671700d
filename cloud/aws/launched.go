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

	"gpu-node-provider/cloud"
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

// launch is what EC2 tells of the launch of an instance.
type launch struct {
	at     time.Time
	market cloud.Market
}

// launches returns when and in which market instances were launched. Those that EC2 does not
// show, or not yet, are left out: they count as launched when they were first seen.
func (c *Cloud) launches(ctx context.Context, ids []string) map[string]launch {
	found, err := c.instances(ctx, ids)
	if err != nil {
		c.log.Warn("failed to read the launch times of instances", zap.Int(logkey.Instances, len(ids)), zap.Error(err))
		return nil
	}
	launches := make(map[string]launch, len(found))
	for _, i := range found {
		if i.LaunchTime == nil {
			continue
		}
		l := launch{at: *i.LaunchTime}
		switch i.InstanceLifecycle {
		case "": // EC2 has no word for it
			l.market = cloud.OnDemand
		case types.InstanceLifecycleTypeSpot:
			l.market = cloud.Spot
		}
		launches[awssdk.ToString(i.InstanceId)] = l
	}
	return launches
}
