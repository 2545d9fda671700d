package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"golang.org/x/sync/errgroup"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws"
	"gpu-node-provider/cloud/aws/awstest"
)

const (
	awsInstances = 10 // in each of the groups
	awsPage      = 100
	awsParallel  = 4 // reads at a time, as cloud/aws makes them
	awsRounds    = 20
	mostRefresh  = 1.15 // times the calls alone
	awsRegion    = "us-east-1"
)

// awsRefresh measures the reading of all groups on AWS beside the same calls of
// the SDK. The stand-in for AWS is a process of its own, so that CPU and memory
// are those of the reading alone.
func awsRefresh(ctx context.Context, _ settings) (missed int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stub, err := start(ctx, serveAWS)
	if err != nil {
		return 0, err
	}
	for key, value := range map[string]string{"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_EC2_METADATA_DISABLED": "true"} {
		if err := os.Setenv(key, value); err != nil {
			return 0, err
		}
	}
	backend, err := aws.New(ctx, aws.Options{Region: awsRegion, Endpoint: stub.address})
	if err != nil {
		return 0, err
	}
	var specs []cloud.Spec
	for n := range groups {
		specs = append(specs, cloud.Spec{ID: groupID(n), Name: groupID(n)})
	}
	if err := backend.Configure(ctx, specs); err != nil {
		return 0, err
	}
	raw, err := newRawAWS(ctx, stub.address)
	if err != nil {
		return 0, err
	}
	ours := &costed{call: func() error {
		described, err := backend.Describe(ctx)
		n := 0
		for _, g := range described {
			n += len(g.Instances)
		}
		if err == nil && n != groups*awsInstances {
			err = fmt.Errorf("%d instances instead of %d", n, groups*awsInstances)
		}
		return err
	}}
	bare := &costed{call: func() error { return raw.refresh(ctx) }}
	times, err := inTurn(awsRounds, ours.run, bare.run)
	if err != nil {
		return 0, err
	}
	took, beside := median(times[0]), median(times[1])
	return row{
		name: "refresh from AWS", ours: short(took), beside: short(beside), ratio: took / beside, most: mostRefresh,
		note: fmt.Sprintf("the same calls of the SDK; %d groups, %d instances, median of %d in turn; CPU %s beside %s, allocated %.1f MiB beside %.1f",
			groups, groups*awsInstances, awsRounds, short(median(ours.cpu)), short(median(bare.cpu)), median(ours.allocated), median(bare.allocated)),
	}.print(), nil
}

// costed notes what each run of a call costs this process.
type costed struct {
	call           func() error
	cpu, allocated []float64 // nanoseconds, MiB
}

func (c *costed) run() error {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	begin := cpu()
	err := c.call()
	c.cpu = append(c.cpu, float64(cpu()-begin))
	runtime.ReadMemStats(&after)
	c.allocated = append(c.allocated, float64(after.TotalAlloc-before.TotalAlloc)/(1<<20))
	return err
}

// rawAWS makes the calls of a refresh, with the client that cloud/aws has, and
// does nothing with what comes back.
type rawAWS struct{ client *autoscaling.Client }

func newRawAWS(ctx context.Context, endpoint string) (rawAWS, error) {
	sdk, err := config.LoadDefaultConfig(ctx, config.WithRegion(awsRegion), config.WithBaseEndpoint(endpoint),
		config.WithHTTPClient(awshttp.NewBuildableClient().WithTimeout(15*time.Second)))
	return rawAWS{autoscaling.NewFromConfig(sdk)}, err
}

func (r rawAWS) refresh(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(awsParallel)
	for first := 0; first < groups; first += awsPage {
		g.Go(func() error {
			var names []string
			for n := range awsPage {
				names = append(names, groupID(first+n))
			}
			out, err := r.client.DescribeAutoScalingGroups(ctx, &autoscaling.DescribeAutoScalingGroupsInput{AutoScalingGroupNames: names, MaxRecords: awssdk.Int32(awsPage)})
			if err == nil && len(out.AutoScalingGroups) != awsPage {
				err = fmt.Errorf("%d groups on a page instead of %d", len(out.AutoScalingGroups), awsPage)
			}
			return err
		})
	}
	return g.Wait()
}

// forGood is a test that ends with the process.
type forGood struct{}

func (forGood) Helper()        {}
func (forGood) Cleanup(func()) {}

// serveStub is the child process that stands in for AWS.
func serveStub() error {
	stub := awstest.NewStub(forGood{}, awstest.WithClock(time.Now))
	for n := range groups {
		stub.CreateGroup(awstest.Group{
			Name: groupID(n), Max: 2 * awsInstances, Desired: awsInstances, Zones: []string{"us-east-1a", "us-east-1b"}, InstanceType: "g4dn.xlarge",
			Tags: map[string]string{"k8s.io/cluster-autoscaler/node-template/label/accelerator": "nvidia-tesla-t4", "team": "training"},
		})
	}
	stub.Settle()
	// AWS is not as near as that: the SDK breaks off answers that begin before it
	// has looked for the end of its request, and does so again for each that does.
	stub.Faults(awstest.Rule{Fault: awstest.Do(func() { <-time.After(time.Millisecond) })})
	_, _ = fmt.Println(stub.URL())
	select {} // until it is killed
}
