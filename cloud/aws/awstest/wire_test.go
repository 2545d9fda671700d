package awstest_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	scalingtypes "github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/servicequotas"
	quotatypes "github.com/aws/aws-sdk-go-v2/service/servicequotas/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud/aws/awstest"
)

func TestEveryPartOfAGroupIsDecoded(t *testing.T) {
	stub := awstest.NewStub(t)
	client := newClients(t, stub.URL())
	stub.CreateGroup(awstest.Group{
		Name: "gpu", Min: 1, Max: 9, Desired: 3, Zones: []string{"us-east-1a", "us-east-1b"}, Tags: map[string]string{"a": `<&">`, "b": ""},
		Overrides: []awstest.Override{{InstanceType: "g4dn.xlarge", Weight: 1}, {InstanceType: "g4dn.2xlarge"}}, OnDemandBase: 1, OnDemandPercent: 50,
		LaunchTemplate: &awstest.LaunchTemplate{ID: "lt-1", Name: "tmpl", Version: "$Latest"}, DesiredCapacityType: "units", Protected: true,
		Suspended: []string{"AZRebalance"}, MaxInstanceLifetime: 86400, CapacityRebalance: true, Status: "Delete in progress",
		WarmPool: &awstest.WarmPool{MinSize: 1, MaxPrepared: 4},
	})
	stub.Settle()
	warm := stub.Add("gpu", awstest.Warmed, 1)[0]

	out, err := client.scaling.DescribeAutoScalingGroups(t.Context(), &autoscaling.DescribeAutoScalingGroupsInput{})
	require.NoError(t, err)
	require.Len(t, out.AutoScalingGroups, 1)
	g := out.AutoScalingGroups[0]
	assert.Equal(t, "gpu", *g.AutoScalingGroupName)
	assert.Contains(t, *g.AutoScalingGroupARN, "autoScalingGroupName/gpu")
	assert.Equal(t, []int32{1, 9, 3}, []int32{*g.MinSize, *g.MaxSize, *g.DesiredCapacity})
	assert.Equal(t, []string{"us-east-1a", "us-east-1b"}, g.AvailabilityZones)
	assert.Equal(t, "units", *g.DesiredCapacityType)
	assert.True(t, *g.NewInstancesProtectedFromScaleIn && *g.CapacityRebalance)
	assert.EqualValues(t, 86400, *g.MaxInstanceLifetime)
	assert.Equal(t, "Delete in progress", *g.Status)
	assert.Equal(t, "AZRebalance", *g.SuspendedProcesses[0].ProcessName)
	assert.Nil(t, g.LaunchTemplate, "it is in the policy")
	policy := g.MixedInstancesPolicy
	assert.Equal(t, "$Latest", *policy.LaunchTemplate.LaunchTemplateSpecification.Version)
	assert.Equal(t, "1", *policy.LaunchTemplate.Overrides[0].WeightedCapacity)
	assert.Nil(t, policy.LaunchTemplate.Overrides[1].WeightedCapacity)
	assert.EqualValues(t, 1, *policy.InstancesDistribution.OnDemandBaseCapacity)
	assert.EqualValues(t, 50, *policy.InstancesDistribution.OnDemandPercentageAboveBaseCapacity)
	tags := map[string]string{}
	for _, tag := range g.Tags {
		tags[*tag.Key] = *tag.Value
	}
	assert.Equal(t, map[string]string{"a": `<&">`, "b": ""}, tags)
	require.Len(t, g.Instances, 3, "those of the warm pool are not in the group")
	zones := map[string]int{}
	for _, i := range g.Instances {
		zones[*i.AvailabilityZone]++
		assert.Equal(t, scalingtypes.LifecycleStateInService, i.LifecycleState)
		assert.Equal(t, []string{"Healthy", "g4dn.xlarge", "1"}, []string{*i.HealthStatus, *i.InstanceType, *i.WeightedCapacity})
		assert.True(t, *i.ProtectedFromScaleIn)
	}
	assert.Len(t, zones, 2, "they are spread over the zones")
	assert.EqualValues(t, 1, *g.WarmPoolSize)

	pool, err := client.scaling.DescribeWarmPool(t.Context(), &autoscaling.DescribeWarmPoolInput{AutoScalingGroupName: aws.String("gpu")})
	require.NoError(t, err)
	assert.EqualValues(t, 4, *pool.WarmPoolConfiguration.MaxGroupPreparedCapacity)
	assert.Equal(t, scalingtypes.WarmPoolStateStopped, pool.WarmPoolConfiguration.PoolState)
	assert.Equal(t, warm, *pool.Instances[0].InstanceId)

	out, err = client.scaling.DescribeAutoScalingGroups(t.Context(), &autoscaling.DescribeAutoScalingGroupsInput{IncludeInstances: aws.Bool(false)})
	require.NoError(t, err)
	assert.Empty(t, out.AutoScalingGroups[0].Instances)
}

func TestLongListsComeInPages(t *testing.T) {
	stub := awstest.NewStub(t)
	client := newClients(t, stub.URL())
	var names []string
	for n := range 120 {
		names = append(names, fmt.Sprintf("g%03d", n))
		stub.CreateGroup(awstest.Group{Name: names[n], Desired: 1})
	}
	stub.Settle()

	t.Run("groups", func(t *testing.T) {
		var sizes []int
		for pages := autoscaling.NewDescribeAutoScalingGroupsPaginator(client.scaling, nil); pages.HasMorePages(); {
			out, err := pages.NextPage(t.Context())
			require.NoError(t, err)
			sizes = append(sizes, len(out.AutoScalingGroups))
		}
		assert.Equal(t, []int{50, 50, 20}, sizes, "50 are usual")
		out, err := client.scaling.DescribeAutoScalingGroups(t.Context(), &autoscaling.DescribeAutoScalingGroupsInput{
			AutoScalingGroupNames: names[:100], MaxRecords: aws.Int32(100),
		})
		require.NoError(t, err)
		assert.Len(t, out.AutoScalingGroups, 100)
		assert.Nil(t, out.NextToken)
	})
	t.Run("too much asked for", func(t *testing.T) {
		for _, input := range []*autoscaling.DescribeAutoScalingGroupsInput{
			{MaxRecords: aws.Int32(101)},
			{AutoScalingGroupNames: names[:51]},
			{AutoScalingGroupNames: names[:101], MaxRecords: aws.Int32(100)},
		} {
			_, err := client.scaling.DescribeAutoScalingGroups(t.Context(), input)
			assert.Equal(t, "ValidationError", codeOf(err))
		}
	})
	t.Run("a token of nobody's", func(t *testing.T) {
		_, err := client.scaling.DescribeAutoScalingGroups(t.Context(), &autoscaling.DescribeAutoScalingGroupsInput{NextToken: aws.String("?")})
		var token *scalingtypes.InvalidNextToken
		require.ErrorAs(t, err, &token)
	})
	t.Run("activities", func(t *testing.T) {
		seen := map[string]bool{}
		for pages := autoscaling.NewDescribeScalingActivitiesPaginator(client.scaling, &autoscaling.DescribeScalingActivitiesInput{MaxRecords: aws.Int32(70)}); pages.HasMorePages(); {
			out, err := pages.NextPage(t.Context())
			require.NoError(t, err)
			for _, a := range out.Activities {
				seen[*a.ActivityId] = true
			}
		}
		assert.Len(t, seen, 120)
	})
	t.Run("instances", func(t *testing.T) {
		found := 0
		for pages := autoscaling.NewDescribeAutoScalingInstancesPaginator(client.scaling, nil); pages.HasMorePages(); {
			out, err := pages.NextPage(t.Context())
			require.NoError(t, err)
			found += len(out.AutoScalingInstances)
		}
		assert.Equal(t, 120, found)
		machines := 0
		for pages := ec2.NewDescribeInstancesPaginator(client.ec2, &ec2.DescribeInstancesInput{MaxResults: aws.Int32(50)}); pages.HasMorePages(); {
			out, err := pages.NextPage(t.Context())
			require.NoError(t, err)
			machines += len(out.Reservations)
		}
		assert.Equal(t, 120, machines)
	})
	t.Run("types", func(t *testing.T) {
		found := 0
		for pages := ec2.NewDescribeInstanceTypesPaginator(client.ec2, &ec2.DescribeInstanceTypesInput{MaxResults: aws.Int32(5)}); pages.HasMorePages(); {
			out, err := pages.NextPage(t.Context())
			require.NoError(t, err)
			found += len(out.InstanceTypes)
		}
		assert.Equal(t, len(awstest.Catalogue()), found)
	})
}

// The SDK has been seen to break off large answers of a server this near.
func TestLargeAnswersArriveWhole(t *testing.T) {
	stub := awstest.NewStub(t)
	for n := range 100 {
		stub.CreateGroup(awstest.Group{Name: fmt.Sprintf("g%03d", n), Desired: 10})
	}
	stub.Settle()
	client := newClients(t, stub.URL())
	for range 15 {
		out, err := client.scaling.DescribeAutoScalingGroups(t.Context(), &autoscaling.DescribeAutoScalingGroupsInput{MaxRecords: aws.Int32(100)})
		require.NoError(t, err)
		require.Len(t, out.AutoScalingGroups, 100)
	}
}

func TestQuotas(t *testing.T) {
	stub := awstest.NewStub(t)
	client := newClients(t, stub.URL())
	applied := func() (*servicequotas.GetServiceQuotaOutput, error) {
		return client.quotas.GetServiceQuota(t.Context(), &servicequotas.GetServiceQuotaInput{ServiceCode: aws.String("ec2"), QuotaCode: aws.String("L-DB2E81BA")})
	}
	_, err := applied()
	var missing *quotatypes.NoSuchResourceException
	require.ErrorAs(t, err, &missing)
	stub.SetQuota("ec2", "L-DB2E81BA", 64)
	out, err := applied()
	require.NoError(t, err)
	assert.InDelta(t, 64.0, *out.Quota.Value, 0)

	own, err := client.quotas.GetAWSDefaultServiceQuota(t.Context(), &servicequotas.GetAWSDefaultServiceQuotaInput{ServiceCode: aws.String("ec2"), QuotaCode: aws.String("L-1216C47A")})
	require.NoError(t, err)
	assert.InDelta(t, 5.0, *own.Quota.Value, 0)
	_, err = client.quotas.GetAWSDefaultServiceQuota(t.Context(), &servicequotas.GetAWSDefaultServiceQuotaInput{ServiceCode: aws.String("ec2"), QuotaCode: aws.String("L-00000000")})
	require.ErrorAs(t, err, &missing)
}

// calls are one of each service.
func calls(t *testing.T, client clients) map[string]error {
	t.Helper()
	_, scaling := client.scaling.DescribeAutoScalingGroups(t.Context(), &autoscaling.DescribeAutoScalingGroupsInput{})
	_, machines := client.ec2.DescribeInstances(t.Context(), &ec2.DescribeInstancesInput{})
	_, quotas := client.quotas.GetServiceQuota(t.Context(), &servicequotas.GetServiceQuotaInput{ServiceCode: aws.String("ec2"), QuotaCode: aws.String("L-DB2E81BA")})
	return map[string]error{"autoscaling": scaling, "ec2": machines, "servicequotas": quotas}
}

// The SDK has to see in our errors what it sees in AWS's: the code, the status,
// whose fault it is, and whether a repetition makes sense.
func TestGeneralErrorsAreTakenForWhatTheyAre(t *testing.T) {
	throttling := retry.ThrottleErrorCode{Codes: retry.DefaultThrottleErrorCodes}
	server := retry.RetryableHTTPStatusCode{Codes: retry.DefaultRetryableHTTPStatusCodes}
	for name, row := range map[string]struct {
		fault                awstest.Fault
		codes                map[string]string
		throttled, retryable bool
	}{
		"throttled": {awstest.Throttle(), map[string]string{"autoscaling": "Throttling", "ec2": "RequestLimitExceeded", "servicequotas": "TooManyRequestsException"}, true, false},
		"internal":  {awstest.Internal(), map[string]string{"autoscaling": "InternalFailure", "ec2": "InternalError", "servicequotas": "ServiceException"}, false, true},
		"denied":    {awstest.Deny(), map[string]string{"autoscaling": "AccessDenied", "ec2": "UnauthorizedOperation", "servicequotas": "AccessDeniedException"}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			stub := awstest.NewStub(t)
			stub.Faults(awstest.Rule{Fault: row.fault})
			for service, err := range calls(t, newClients(t, stub.URL())) {
				var api smithy.APIError
				require.ErrorAs(t, err, &api, service)
				assert.Equal(t, row.codes[service], api.ErrorCode())
				assert.NotEmpty(t, api.ErrorMessage())
				assert.NotContains(t, api.ErrorMessage(), "%!")
				assert.Equal(t, row.throttled, throttling.IsErrorThrottle(err).Bool(), service)
				var response *smithyhttp.ResponseError
				require.ErrorAs(t, err, &response)
				assert.Equal(t, row.retryable, server.IsErrorRetryable(err).Bool() && response.HTTPStatusCode() == http.StatusInternalServerError, service)
			}
		})
	}
	t.Run("with types of their own", func(t *testing.T) {
		stub := awstest.NewStub(t)
		stub.Faults(awstest.Rule{Fault: awstest.Throttle()})
		var many *quotatypes.TooManyRequestsException
		require.ErrorAs(t, calls(t, newClients(t, stub.URL()))["servicequotas"], &many)
		denying := awstest.NewStub(t)
		denying.Faults(awstest.Rule{Fault: awstest.Deny()})
		var no *quotatypes.AccessDeniedException
		require.ErrorAs(t, calls(t, newClients(t, denying.URL()))["servicequotas"], &no)
		assert.Contains(t, no.ErrorMessage(), "servicequotas:GetServiceQuota")
	})
}

func TestErrorsOfSingleActions(t *testing.T) {
	stub := awstest.NewStub(t)
	client := newClients(t, stub.URL())
	stub.CreateGroup(awstest.Group{Name: "gpu", Min: 1, Max: 3, Desired: 1})
	stub.Settle()
	boots := stub.Add("gpu", awstest.Pending, 1)[0]
	inService := stub.Group("gpu").IDs(awstest.InService)[0]
	protect := func(ids ...string) error {
		_, err := client.scaling.SetInstanceProtection(t.Context(), &autoscaling.SetInstanceProtectionInput{AutoScalingGroupName: aws.String("gpu"), InstanceIds: ids, ProtectedFromScaleIn: aws.Bool(true)})
		return err
	}
	describe := func(id string) error {
		_, err := client.ec2.DescribeInstances(t.Context(), &ec2.DescribeInstancesInput{InstanceIds: []string{id}})
		return err
	}
	types := func(name string) error {
		_, err := client.ec2.DescribeInstanceTypes(t.Context(), &ec2.DescribeInstanceTypesInput{InstanceTypes: []ec2types.InstanceType{ec2types.InstanceType(name)}})
		return err
	}
	template := func(version string) error {
		_, err := client.ec2.DescribeLaunchTemplateVersions(t.Context(), &ec2.DescribeLaunchTemplateVersionsInput{LaunchTemplateName: aws.String("gpu"), Versions: []string{version}})
		return err
	}
	activities := func(name string) error {
		_, err := client.scaling.DescribeScalingActivities(t.Context(), &autoscaling.DescribeScalingActivitiesInput{AutoScalingGroupName: &name})
		return err
	}
	for name, row := range map[string]struct {
		err           error
		code, message string
	}{
		"no such group":            {client.setDesired("none", 1), "ValidationError", "not found"},
		"no such group's history":  {activities("none"), "ValidationError", "not found"},
		"above the maximum":        {client.setDesired("gpu", 4), "ValidationError", "above max value 3"},
		"below the minimum":        {client.setDesired("gpu", 0), "ValidationError", "below min value 1"},
		"no such instance":         {client.terminate("i-00000000000000bad"), "ValidationError", "Instance Id not found"},
		"minimum reached":          {client.terminate(inService), "ValidationError", "desiredSize equals minSize"},
		"protecting what boots":    {protect(inService, boots), "ValidationError", "is not in InService"},
		"protecting a stranger":    {protect("i-00000000000000bad"), "ValidationError", "not part of"},
		"protecting too many":      {protect(make([]string, 51)...), "ValidationError", "50"},
		"no such machine":          {describe("i-00000000000000bad"), "InvalidInstanceID.NotFound", "does not exist"},
		"no such type":             {types("x9.nano"), "InvalidInstanceType", "x9.nano"},
		"no such template version": {template("7"), "InvalidLaunchTemplateId.VersionNotFound", "7"},
	} {
		t.Run(name, func(t *testing.T) {
			var api smithy.APIError
			require.ErrorAs(t, row.err, &api)
			assert.Equal(t, row.code, api.ErrorCode())
			assert.Contains(t, api.ErrorMessage(), row.message)
		})
	}
	assert.False(t, stub.Group("gpu").Instances[0].Protected, "none of several is protected when one cannot be")
	assert.Equal(t, 1, stub.Group("gpu").Desired)
	assert.Empty(t, stub.Kills())

	t.Run("busy", func(t *testing.T) {
		var busy *scalingtypes.ScalingActivityInProgressFault
		stub.Busy("gpu", true)
		require.ErrorAs(t, client.setDesired("gpu", 2), &busy)
		require.ErrorAs(t, client.terminate(inService), &busy)
		stub.Busy("gpu", false)
		require.NoError(t, client.setDesired("gpu", 2))
	})
	t.Run("cooling down", func(t *testing.T) {
		stub.Cooldown("gpu", true)
		_, err := client.scaling.SetDesiredCapacity(t.Context(), &autoscaling.SetDesiredCapacityInput{AutoScalingGroupName: aws.String("gpu"), DesiredCapacity: aws.Int32(3), HonorCooldown: aws.Bool(true)})
		var busy *scalingtypes.ScalingActivityInProgressFault
		require.ErrorAs(t, err, &busy)
		require.NoError(t, client.setDesired("gpu", 3), "the cooldown is not honoured")
	})
	t.Run("of a type of its own", func(t *testing.T) {
		remove := stub.Faults(awstest.Rule{Fault: awstest.Refuse(http.StatusInternalServerError, "ResourceContention", "You already have a pending update")})
		defer remove()
		var contention *scalingtypes.ResourceContentionFault
		require.ErrorAs(t, client.setDesired("gpu", 3), &contention)
	})
	t.Run("unknown action", func(t *testing.T) {
		_, err := client.scaling.DescribeAccountLimits(t.Context(), &autoscaling.DescribeAccountLimitsInput{})
		var api smithy.APIError
		require.True(t, errors.As(err, &api))
		assert.Equal(t, "InvalidAction", api.ErrorCode())
	})
}
