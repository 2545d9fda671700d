package aws

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/servicequotas"
	quotatypes "github.com/aws/aws-sdk-go-v2/service/servicequotas/types"

	"gpu-node-provider/cloud"
)

const (
	// limitFor is how long a limit counts as known. People wait days for a raise,
	// and Service Quotas allows few calls a second.
	limitFor = time.Hour
	// useFor is how long the use counts as known. It takes a reading of all
	// instances of the region, and others' instances come and go meanwhile.
	useFor = time.Minute
)

// quotaCache holds what was read last.
type quotaCache struct {
	mu     sync.Mutex
	limits map[string]limit // by code
	use    map[string]int   // by code
	usedAt time.Time
}

type limit struct {
	vcpus  int
	source string
	readAt time.Time
}

// Quota reads a quota's limit and use. While AWS cannot be read it returns what
// was read last, with the reason as its Problem; it fails only when nothing was.
func (c *Cloud) Quota(ctx context.Context, code string) (cloud.ServiceQuota, error) {
	if _, ok := vcpuQuotas[code]; !ok {
		return cloud.ServiceQuota{}, fmt.Errorf("aws: %q is not the code of an EC2 vCPU quota; use one of %s: %w", code, strings.Join(QuotaCodes(), ", "), cloud.ErrInvalid)
	}
	limit, noLimit := c.limit(ctx, code)
	use, usedAt, noUse := c.use(ctx, code)
	q := cloud.ServiceQuota{Code: code, Limit: limit.vcpus, Use: use, Source: limit.source, ReadAt: limit.readAt, UsedAt: usedAt}
	if usedAt.Before(q.ReadAt) {
		q.ReadAt = usedAt
	}
	if q.Problem = noLimit; q.Problem == nil {
		q.Problem = noUse
	}
	if q.ReadAt.IsZero() {
		return cloud.ServiceQuota{}, q.Problem
	}
	return q, nil
}

func (c *Cloud) limit(ctx context.Context, code string) (limit, error) {
	c.quotaCache.mu.Lock()
	last := c.quotaCache.limits[code]
	c.quotaCache.mu.Unlock()
	if !last.readAt.IsZero() && c.now().Sub(last.readAt) < limitFor {
		return last, nil
	}
	fresh, err := c.readLimit(ctx, code)
	if err != nil {
		return last, err
	}
	c.quotaCache.mu.Lock()
	defer c.quotaCache.mu.Unlock()
	if c.quotaCache.limits == nil {
		c.quotaCache.limits = map[string]limit{}
	}
	c.quotaCache.limits[code] = fresh
	return fresh, nil
}

// readLimit asks for the account's own value, and for AWS's default where the
// account has none.
func (c *Cloud) readLimit(ctx context.Context, code string) (limit, error) {
	service := awssdk.String("ec2")
	source := fmt.Sprintf("Service Quotas %s in %s", code, c.region)
	own, err := c.quotas.GetServiceQuota(ctx, &servicequotas.GetServiceQuotaInput{ServiceCode: service, QuotaCode: &code})
	var none *quotatypes.NoSuchResourceException
	switch {
	case err == nil && own.Quota != nil && own.Quota.Value != nil:
		return limit{int(*own.Quota.Value), source, c.now()}, nil
	case err != nil && !errors.As(err, &none):
		return limit{}, fault(ctx, "reading quota "+code, err)
	}
	usual, err := c.quotas.GetAWSDefaultServiceQuota(ctx, &servicequotas.GetAWSDefaultServiceQuotaInput{ServiceCode: service, QuotaCode: &code})
	if err != nil {
		return limit{}, fault(ctx, "reading the AWS default of quota "+code, err)
	}
	if usual.Quota == nil || usual.Quota.Value == nil {
		return limit{}, fmt.Errorf("aws: quota %s has no value: %w", code, cloud.ErrUnavailable)
	}
	return limit{int(*usual.Quota.Value), source + ", AWS default", c.now()}, nil
}

func (c *Cloud) use(ctx context.Context, code string) (int, time.Time, error) {
	c.quotaCache.mu.Lock()
	use, at := c.quotaCache.use[code], c.quotaCache.usedAt
	c.quotaCache.mu.Unlock()
	if !at.IsZero() && c.now().Sub(at) < useFor {
		return use, at, nil
	}
	fresh, err := c.readUse(ctx)
	if err != nil {
		return use, at, err
	}
	c.quotaCache.mu.Lock()
	defer c.quotaCache.mu.Unlock()
	c.quotaCache.use, c.quotaCache.usedAt = fresh, c.now()
	return fresh[code], c.quotaCache.usedAt, nil
}

// counted are the states in which an instance takes up vCPUs of a quota; what
// shuts down does so until it is gone.
var countedStates = []string{"pending", "running", "stopping", "shutting-down"}

// readUse counts the vCPUs in use, for all quotas from one reading.
func (c *Cloud) readUse(ctx context.Context) (map[string]int, error) {
	var found []types.Instance
	pages := ec2.NewDescribeInstancesPaginator(c.ec2, &ec2.DescribeInstancesInput{
		Filters:    []types.Filter{{Name: awssdk.String("instance-state-name"), Values: countedStates}},
		MaxResults: awssdk.Int32(1000), // the most there is
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, fault(ctx, "reading the instances that run in "+c.region, err)
		}
		for _, r := range page.Reservations {
			found = append(found, r.Instances...)
		}
	}
	count := map[string]map[string]int{} // quota code → instance type → instances
	var names []string
	for _, i := range found {
		for code, q := range vcpuQuotas {
			if takesUp(q, i) {
				if count[code] == nil {
					count[code] = map[string]int{}
				}
				count[code][string(i.InstanceType)]++
				names = append(names, string(i.InstanceType))
			}
		}
	}
	known, err := c.instanceTypes(ctx, names)
	if err != nil {
		return nil, err
	}
	use := map[string]int{}
	for code, instances := range count {
		for name, n := range instances {
			t, ok := known[name]
			if !ok {
				return nil, fmt.Errorf("aws: instances of type %s run in %s, which has no such type: %w", name, c.region, cloud.ErrUnavailable)
			}
			use[code] += n * t.resources.VCPUs
		}
	}
	return use, nil
}

// takesUp leaves out what has quotas of its own: dedicated hosts, capacity blocks.
func takesUp(q vcpuQuota, i types.Instance) bool {
	if i.Placement != nil && i.Placement.Tenancy == types.TenancyHost {
		return false
	}
	lifecycle := types.InstanceLifecycleType("")
	if q.spot {
		lifecycle = types.InstanceLifecycleTypeSpot
	}
	return i.InstanceLifecycle == lifecycle && q.covers(string(i.InstanceType))
}
