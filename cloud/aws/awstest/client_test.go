package awstest_test

import (
	"context"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/servicequotas"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"gpu-node-provider/cloud/aws/awstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clients are the SDK's own, without retries: a test wants to see each answer.
type clients struct {
	scaling *autoscaling.Client
	ec2     *ec2.Client
	quotas  *servicequotas.Client
}

func newClients(t testing.TB, url string) clients {
	t.Helper()
	cfg := awstest.Config(t, url)
	cfg.Retryer = func() aws.Retryer { return aws.NopRetryer{} }
	return clients{autoscaling.NewFromConfig(cfg), ec2.NewFromConfig(cfg), servicequotas.NewFromConfig(cfg)}
}

// group is what the group gpu is said to be, and the states of its instances.
func (c clients) group(t testing.TB) (desired int32, instances map[string]string) {
	t.Helper()
	out, err := c.scaling.DescribeAutoScalingGroups(context.Background(), &autoscaling.DescribeAutoScalingGroupsInput{AutoScalingGroupNames: []string{"gpu"}})
	require.NoError(t, err)
	require.Len(t, out.AutoScalingGroups, 1)
	instances = map[string]string{}
	for _, i := range out.AutoScalingGroups[0].Instances {
		instances[*i.InstanceId] = string(i.LifecycleState)
	}
	return *out.AutoScalingGroups[0].DesiredCapacity, instances
}

func (c clients) setDesired(name string, n int32) error {
	_, err := c.scaling.SetDesiredCapacity(context.Background(), &autoscaling.SetDesiredCapacityInput{
		AutoScalingGroupName: &name, DesiredCapacity: &n, HonorCooldown: aws.Bool(false),
	})
	return err
}

func (c clients) terminate(id string) error {
	_, err := c.scaling.TerminateInstanceInAutoScalingGroup(context.Background(), &autoscaling.TerminateInstanceInAutoScalingGroupInput{
		InstanceId: &id, ShouldDecrementDesiredCapacity: aws.Bool(true),
	})
	return err
}
