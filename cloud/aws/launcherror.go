package aws

import (
	"slices"
	"strings"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"

	"gpu-node-provider/cloud"
)

// launchTexts tell from an activity's StatusMessage why a launch failed. AWS has
// no code for it, only sentences, some of which carry EC2's own code; so both are
// here. The first that is found counts. The sentences are from
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/ts-as-instancelaunchfailure.html,
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/ts-as-launch-template.html and
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/ts-as-ami.html, and from public bug reports.
var launchTexts = []struct {
	code cloud.LaunchCode
	text []string // in lower case
}{
	{cloud.MaxSpotInstanceCountExceeded, []string{"maxspotinstancecountexceeded", "max spot instance count exceeded"}},
	{cloud.VcpuLimitExceeded, []string{
		"vcpulimitexceeded", "more vcpu capacity than your current vcpu limit",
		"instancelimitexceeded", "than your current instance limit", "your quota allows for",
	}},
	{cloud.InsufficientFreeAddressesInSubnet, []string{"insufficientfreeaddressesinsubnet", "not enough free addresses in subnet", "insufficient free addresses"}},
	{cloud.InsufficientInstanceCapacity, []string{
		"insufficientinstancecapacity", "insufficienthostcapacity", "insufficientreservedinstancecapacity", "insufficientcapacity",
		"we currently do not have sufficient", "there is no spot capacity available", "insufficient capacity", "reservationcapacityexceeded",
		"does not have sufficient compatible and available capacity", "in the capacity block", "capacity reservation has expired",
		"capacity block has expired", "capacity block is not active",
	}},
	{cloud.UnfulfillableCapacity, []string{
		"request limit exceeded", "requestlimitexceeded", "maximum fleet requests",
		"unfulfillablecapacity", "unable to fulfill capacity", "spotmaxpricetoolow", "your spot request price",
	}},
	{cloud.Unsupported, []string{
		"is not supported in your requested availability zone", "not supported in the requested availability zone",
		"configuration is currently not supported", "unsupported - ", "unsupportedoperation",
	}},
	{cloud.LaunchTemplateError, []string{
		"invalidamiid", "image id", "ami cannot be described", "ami is pending", "launch template", "launchtemplate",
		"launch configuration", "security group", "invalidgroup", "key pair", "invalidkeypair", "iaminstanceprofile", "iam instance profile",
		"instance profile", "invalidparameter", "invalid parameter", "invalidblockdevicemapping", "invalid device name", "block device",
		"invalidsubnet", "subnet id", "placement group", "user data",
	}},
}

// launchCode parses a StatusMessage.
func launchCode(message string) cloud.LaunchCode {
	lower := strings.ToLower(message)
	for _, row := range launchTexts {
		if slices.ContainsFunc(row.text, func(text string) bool { return strings.Contains(lower, text) }) {
			return row.code
		}
	}
	return cloud.Other
}

// maxLaunchMessage is what is kept of AWS's text: Cluster Autoscaler shows about
// 500 bytes, and the sentences above are shorter.
const maxLaunchMessage = 400

// launchFailure says why a unit that was asked for at a time (AWS's clock) has not come: the newest launch since then that is the
// missing unit's has failed. It is nil while that is under way, or when AWS has
// said nothing.
//
// A launch that has an instance to show is not the missing unit's: the instance
// is in the group, and counted there.
func launchFailure(activities []types.Activity, asked time.Time) *cloud.LaunchError {
	var newest *types.Activity
	for i := range activities {
		a := &activities[i]
		start := awssdk.ToTime(a.StartTime)
		if start.Before(asked) || !isMissingLaunch(a) {
			continue
		}
		if newest == nil || start.After(awssdk.ToTime(newest.StartTime)) {
			newest = a
		}
	}
	if newest == nil || !hasFailed(newest) {
		return nil
	}
	message := awssdk.ToString(newest.StatusMessage)
	if message == "" { // a cancelled one has none
		message = strings.TrimSpace(awssdk.ToString(newest.Description) + " " + string(newest.StatusCode) + ". " + awssdk.ToString(newest.Cause))
	}
	return &cloud.LaunchError{Code: launchCode(message), Message: shorten(message, maxLaunchMessage)}
}

func isMissingLaunch(a *types.Activity) bool {
	description := awssdk.ToString(a.Description)
	switch {
	case !strings.HasPrefix(description, "Launching"), strings.Contains(description, "warm pool"):
		return false
	case hasFailed(a):
		// An instance that was ended while it booted leaves a cancelled launch
		// without a word: somebody wanted that, and nothing is missing.
		return awssdk.ToString(a.StatusMessage) != "" || !strings.Contains(description, ": i-")
	case a.StatusCode == types.ScalingActivityStatusCodeSuccessful:
		return false
	default:
		return !strings.Contains(description, ": i-")
	}
}

func hasFailed(a *types.Activity) bool {
	return a.StatusCode == types.ScalingActivityStatusCodeFailed || a.StatusCode == types.ScalingActivityStatusCodeCancelled
}
