package aws

import (
	"fmt"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"

	"gpu-node-provider/cloud"
)

// unserved says why an ASG cannot be a node group, nil when it can. Sizes here
// are machines: a group whose desired capacity counts something else would grow
// and shrink by the wrong number.
func unserved(g *types.AutoScalingGroup) error {
	name := awssdk.ToString(g.AutoScalingGroupName)
	if unit := awssdk.ToString(g.DesiredCapacityType); unit != "" && unit != "units" {
		return fmt.Errorf("aws: Auto Scaling group %s counts its desired capacity in %s: set DesiredCapacityType to units: %w",
			name, unit, cloud.ErrPrecondition)
	}
	if weighted(g) {
		return fmt.Errorf("aws: Auto Scaling group %s has weighted capacity, so a unit of it is not an instance: remove WeightedCapacity from its overrides: %w",
			name, cloud.ErrPrecondition)
	}
	if status := awssdk.ToString(g.Status); status != "" {
		return fmt.Errorf("aws: Auto Scaling group %s is being deleted (%s): remove it from the node group file: %w",
			name, status, cloud.ErrPrecondition)
	}
	return nil
}

func weighted(g *types.AutoScalingGroup) bool {
	for _, i := range g.Instances {
		if awssdk.ToString(i.WeightedCapacity) != "" {
			return true
		}
	}
	if g.MixedInstancesPolicy == nil || g.MixedInstancesPolicy.LaunchTemplate == nil {
		return false
	}
	for _, o := range g.MixedInstancesPolicy.LaunchTemplate.Overrides {
		if awssdk.ToString(o.WeightedCapacity) != "" {
			return true
		}
	}
	return false
}

// missing is the problem of a group that AWS does not list.
func (c *Cloud) missing(asg string) error {
	return fmt.Errorf("aws: Auto Scaling group %s is not in region %s of the account that the credentials are for: correct autoScalingGroup, cloud.aws.region or the role: %w",
		asg, c.region, cloud.ErrNotFound)
}

// suspended says whether a process of the group is.
func suspended(g *types.AutoScalingGroup, process string) bool {
	for _, s := range g.SuspendedProcesses {
		if awssdk.ToString(s.ProcessName) == process {
			return true
		}
	}
	return false
}
