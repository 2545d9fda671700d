package aws

import (
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/cloud/cloudtest"
)

// TestLaunchCode is case G-05.
func TestLaunchCode(t *testing.T) {
	for message, want := range map[string]cloud.LaunchCode{
		noCapacity: cloud.InsufficientInstanceCapacity,
		"Could not launch On-Demand Instances. InsufficientInstanceCapacity - We currently do not have sufficient p5.48xlarge capacity in the Availability Zone you requested (us-east-1a). Launching EC2 instance failed.": cloud.InsufficientInstanceCapacity,
		"There is no Spot capacity available that matches your request. Launching EC2 instance failed.":                                                                                                                     cloud.InsufficientInstanceCapacity,
		"Could not launch Spot Instances. MaxSpotInstanceCountExceeded - Max spot instance count exceeded. Launching EC2 instance failed.":                                                                                  cloud.MaxSpotInstanceCountExceeded,
		"Max spot instance count exceeded": cloud.MaxSpotInstanceCountExceeded,
		"You have requested more vCPU capacity than your current vCPU limit of 32 allows for the instance bucket that the specified instance type belongs to. Please visit http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit. Launching EC2 instance failed.": cloud.VcpuLimitExceeded,
		"Could not launch On-Demand Instances. VcpuLimitExceeded - You have requested more vCPU capacity than your current vCPU limit of 0 allows":                                                                                                                                              cloud.VcpuLimitExceeded,
		"You have requested more instances (2) than your current instance limit of 1 allows for the specified instance type. Launching EC2 instance failed.":                                                                                                                                    cloud.VcpuLimitExceeded,
		"Could not launch Spot Instances. UnfulfillableCapacity - Unable to fulfill capacity due to your request configuration. Please adjust your request and try again.":                                                                                                                      cloud.UnfulfillableCapacity,
		"Your Spot request price of 0.1 is lower than the minimum required Spot request fulfillment price of 0.2. Launching EC2 instance failed.":                                                                                                                                               cloud.UnfulfillableCapacity,
		"Your requested instance type (g5.xlarge) is not supported in your requested Availability Zone (us-east-1e). Please retry your request by not specifying an Availability Zone. Launching EC2 instance failed.":                                                                          cloud.Unsupported,
		"The requested configuration is currently not supported. Please check the documentation for supported configurations. Launching EC2 instance failed.":                                                                                                                                   cloud.Unsupported,
		"There are not enough free addresses in subnet 'subnet-0abc' to satisfy the requested number of instances. Launching EC2 instance failed.":                                                                                                                                              cloud.InsufficientFreeAddressesInSubnet,
		"InsufficientFreeAddressesInSubnet - The specified subnet does not have enough free addresses to satisfy the request.":                                                                                                                                                                  cloud.InsufficientFreeAddressesInSubnet,
		"The image id '[ami-0abc]' does not exist. Launching EC2 instance failed.":                                                                                                                                                                                                              cloud.LaunchTemplateError,
		"InvalidAMIID.NotFound - The image id '[ami-0abc]' does not exist":                                                                                                                                                                                                                      cloud.LaunchTemplateError,
		"AMI is pending, and cannot be run. Launching EC2 instance failed.":                                                                                                                                                                                                                     cloud.LaunchTemplateError,
		"The specified launch template, with template ID lt-0abc, does not exist.":                                                                                                                                                                                                              cloud.LaunchTemplateError,
		"The security group 'sg-0abc' does not exist. Launching EC2 instance failed.":                                                                                                                                                                                                           cloud.LaunchTemplateError,
		"The key pair 'ops' does not exist. Launching EC2 instance failed.":                                                                                                                                                                                                                     cloud.LaunchTemplateError,
		"Invalid IAM Instance Profile name. Launching EC2 instance failed.":                                                                                                                                                                                                                     cloud.LaunchTemplateError,
		"Invalid device name upload. Launching EC2 instance failed.":                                                                                                                                                                                                                            cloud.LaunchTemplateError,
		"Client.InternalError: Client error on launch.":                                                                                                                                                                                                                                         cloud.Other,
		"You are not authorized to perform this operation. Launching EC2 instance failed.":                                                                                                                                                                                                      cloud.Other,
		"": cloud.Other,
	} {
		require.Equal(t, want, launchCode(message), message)
	}
}

func TestLaunchFailure(t *testing.T) {
	noon := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	at := func(minutes int, status types.ScalingActivityStatusCode, description, message string) types.Activity {
		start := noon.Add(time.Duration(minutes) * time.Minute)
		a := types.Activity{StartTime: &start, StatusCode: status, Description: &description, Cause: new(string)}
		if message != "" {
			a.StatusMessage = &message
		}
		return a
	}
	const launch = "Launching a new EC2 instance"
	failed := at(1, "Failed", launch+".  Status Reason: "+noCapacity, noCapacity)
	for name, row := range map[string]struct {
		activities []types.Activity
		want       cloud.LaunchCode // empty for none
	}{
		"nothing":                     {nil, ""},
		"failed":                      {[]types.Activity{failed}, cloud.InsufficientInstanceCapacity},
		"failed before it was asked":  {[]types.Activity{at(-1, "Failed", launch, noCapacity)}, ""},
		"being tried again":           {[]types.Activity{at(2, "PreInService", launch, ""), failed}, ""},
		"failed again, differently":   {[]types.Activity{at(2, "Failed", launch, "Max spot instance count exceeded"), failed}, cloud.MaxSpotInstanceCountExceeded},
		"in any order":                {[]types.Activity{failed, at(2, "Failed", launch, "Max spot instance count exceeded")}, cloud.MaxSpotInstanceCountExceeded},
		"others came":                 {[]types.Activity{at(2, "Successful", launch+": i-0a", ""), failed}, cloud.InsufficientInstanceCapacity},
		"others boot":                 {[]types.Activity{at(2, "PreInService", launch+": i-0a", ""), failed}, cloud.InsufficientInstanceCapacity},
		"another ended":               {[]types.Activity{at(2, "Failed", "Terminating EC2 instance: i-0a", "no"), failed}, cloud.InsufficientInstanceCapacity},
		"only a termination failed":   {[]types.Activity{at(2, "Failed", "Terminating EC2 instance: i-0a", "no")}, ""},
		"cancelled":                   {[]types.Activity{at(2, "Cancelled", launch, "")}, cloud.Other},
		"cancelled by a hook":         {[]types.Activity{at(2, "Cancelled", launch+": i-0a", "Instance failed to complete user's Lifecycle Action")}, cloud.Other},
		"ended while it booted":       {[]types.Activity{at(2, "Cancelled", launch+": i-0a", "")}, ""},
		"unhealthy before it was up":  {[]types.Activity{at(2, "Failed", launch+": i-0a", "Instance became unhealthy")}, cloud.Other},
		"only the warm pool is short": {[]types.Activity{at(2, "Failed", launch+" into warm pool", noCapacity)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := launchFailure(row.activities, noon)
			if row.want == "" {
				require.Nil(t, got)
				return
			}
			require.NotNil(t, got)
			require.Equal(t, row.want, got.Code)
			require.NotEmpty(t, got.Message)
		})
	}
	long := launchFailure([]types.Activity{at(1, "Failed", launch, strings.Repeat("é ", 1000))}, noon)
	require.LessOrEqual(t, len(long.Message), maxLaunchMessage+len("…"))
}

// An increase must not inherit the failure of the one before it: Cluster
// Autoscaler would take it back at once.
func TestEarlierFailureIsNotBlamedOnALaterIncrease(t *testing.T) {
	c, stub := one(t, awstest.Group{}, Options{})
	stub.Capacity("train-t4", 0, noCapacity)
	_, err := c.Increase(t.Context(), "t4", cloudtest.Exactly(1))
	require.NoError(t, err)
	stub.Advance(5 * time.Second)
	stub.Step()
	g := get(t, c)
	require.Equal(t, cloud.InsufficientInstanceCapacity, g.Instances[0].Error.Code)
	require.Equal(t, noCapacity, g.Instances[0].Error.Message)
	_, _, err = c.Cancel(t.Context(), "t4", cloudtest.These(idsOf(g, isPlaceholder)))
	require.NoError(t, err)

	stub.Advance(5 * time.Second)
	_, err = c.Increase(t.Context(), "t4", cloudtest.Exactly(1))
	require.NoError(t, err)
	require.Nil(t, get(t, c).Instances[0].Error)
	stub.Advance(5 * time.Second)
	stub.Step()
	require.NotNil(t, get(t, c).Instances[0].Error)
}

// After a restart it is not known when capacity was requested, so a launch of the last
// minutes counts.
func TestFailureFromBeforeARestart(t *testing.T) {
	_, stub := one(t, awstest.Group{}, Options{})
	stub.Capacity("train-t4", 0, noCapacity)
	stub.SetDesired("train-t4", 2)
	stub.Step()
	stub.Advance(recentFailure / 2)
	c := opened(t, stub, Options{})
	require.NoError(t, c.Configure(t.Context(), []cloud.Spec{{ID: "t4", Name: "train-t4"}}))
	for _, i := range get(t, c).Instances {
		require.NotNil(t, i.Error)
	}
}
