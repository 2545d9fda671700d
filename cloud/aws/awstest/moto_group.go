package awstest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdkscaling "github.com/aws/aws-sdk-go-v2/service/autoscaling"
	scalingtypes "github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	sdkec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// CreateGroup makes a VPC with a subnet a zone, an image, a launch template and
// the Auto Scaling group, by calls of the SDK as anybody would make them. Moto
// gives a group its instances at once, in service; hooks, status and the pool's
// instances of the Group are not for it.
func (m *Moto) CreateGroup(t testing.TB, g Group) {
	t.Helper()
	g = g.withDefaults()
	cfg := Config(t, m.url)
	b := builder{ctx: t.Context(), ec2: sdkec2.NewFromConfig(cfg), scaling: sdkscaling.NewFromConfig(cfg)}
	if err := b.build(g); err != nil {
		t.Fatalf("making group %s on moto: %v", g.Name, err)
	}
}

// builder makes what a group needs, one thing after the other.
type builder struct {
	ctx     context.Context
	ec2     *sdkec2.Client
	scaling *sdkscaling.Client
}

func (b builder) build(g Group) error {
	subnets, err := b.network(g.Zones)
	if err != nil {
		return err
	}
	template, err := b.template(g)
	if err != nil {
		return err
	}
	if err := b.group(g, subnets, template); err != nil {
		return fmt.Errorf("group: %w", err)
	}
	return b.around(g)
}

func (b builder) network(zones []string) (subnets []string, err error) {
	vpc, err := b.ec2.CreateVpc(b.ctx, &sdkec2.CreateVpcInput{CidrBlock: aws.String("10.0.0.0/16")})
	if err != nil {
		return nil, fmt.Errorf("VPC: %w", err)
	}
	for n, zone := range zones {
		subnet, err := b.ec2.CreateSubnet(b.ctx, &sdkec2.CreateSubnetInput{
			VpcId: vpc.Vpc.VpcId, AvailabilityZone: &zone, CidrBlock: aws.String(fmt.Sprintf("10.0.%d.0/24", n)),
		})
		if err != nil {
			return nil, fmt.Errorf("subnet in %s: %w", zone, err)
		}
		subnets = append(subnets, *subnet.Subnet.SubnetId)
	}
	return subnets, nil
}

// template makes the group's launch template, with an image of its own.
func (b builder) template(g Group) (string, error) {
	image, err := b.ec2.RegisterImage(b.ctx, &sdkec2.RegisterImageInput{
		Name: &g.Name, Architecture: ec2types.ArchitectureValuesX8664, RootDeviceName: aws.String("/dev/xvda"),
	})
	if err != nil {
		return "", fmt.Errorf("image: %w", err)
	}
	made, err := b.ec2.CreateLaunchTemplate(b.ctx, &sdkec2.CreateLaunchTemplateInput{
		LaunchTemplateName: &g.Name,
		LaunchTemplateData: &ec2types.RequestLaunchTemplateData{ImageId: image.ImageId, InstanceType: ec2types.InstanceType(g.first())},
	})
	if err != nil {
		return "", fmt.Errorf("launch template: %w", err)
	}
	return *made.LaunchTemplate.LaunchTemplateId, nil
}

func (b builder) group(g Group, subnets []string, template string) error {
	spec := &scalingtypes.LaunchTemplateSpecification{LaunchTemplateId: &template, Version: aws.String("1")}
	input := &sdkscaling.CreateAutoScalingGroupInput{
		AutoScalingGroupName: &g.Name, LaunchTemplate: spec, VPCZoneIdentifier: aws.String(strings.Join(subnets, ",")),
		MinSize: aws.Int32(int32(g.Min)), MaxSize: aws.Int32(int32(g.Max)), DesiredCapacity: aws.Int32(int32(g.Desired)),
		NewInstancesProtectedFromScaleIn: &g.Protected, CapacityRebalance: &g.CapacityRebalance,
	}
	if g.DesiredCapacityType != "" {
		input.DesiredCapacityType = &g.DesiredCapacityType
	}
	if g.MaxInstanceLifetime > 0 {
		input.MaxInstanceLifetime = aws.Int32(int32(g.MaxInstanceLifetime))
	}
	if len(g.Overrides) > 0 {
		input.LaunchTemplate = nil
		input.MixedInstancesPolicy = mixedPolicy(g, spec)
	}
	for key, value := range g.Tags {
		input.Tags = append(input.Tags, scalingtypes.Tag{
			ResourceId: &g.Name, ResourceType: aws.String("auto-scaling-group"), Key: &key, Value: &value, PropagateAtLaunch: aws.Bool(true),
		})
	}
	_, err := b.scaling.CreateAutoScalingGroup(b.ctx, input)
	return err
}

func mixedPolicy(g Group, spec *scalingtypes.LaunchTemplateSpecification) *scalingtypes.MixedInstancesPolicy {
	policy := &scalingtypes.MixedInstancesPolicy{
		LaunchTemplate: &scalingtypes.LaunchTemplate{LaunchTemplateSpecification: spec},
		InstancesDistribution: &scalingtypes.InstancesDistribution{
			OnDemandBaseCapacity:                aws.Int32(int32(g.OnDemandBase)),
			OnDemandPercentageAboveBaseCapacity: aws.Int32(int32(g.OnDemandPercent)),
		},
	}
	for _, o := range g.Overrides {
		line := scalingtypes.LaunchTemplateOverrides{InstanceType: &o.InstanceType}
		if o.Weight > 0 {
			line.WeightedCapacity = aws.String(fmt.Sprint(o.Weight))
		}
		policy.LaunchTemplate.Overrides = append(policy.LaunchTemplate.Overrides, line)
	}
	return policy
}

// around makes what the group has besides its instances.
func (b builder) around(g Group) error {
	if len(g.Suspended) > 0 {
		if _, err := b.scaling.SuspendProcesses(b.ctx, &sdkscaling.SuspendProcessesInput{AutoScalingGroupName: &g.Name, ScalingProcesses: g.Suspended}); err != nil {
			return fmt.Errorf("suspending: %w", err)
		}
	}
	for _, a := range g.ScheduledActions {
		if _, err := b.scaling.PutScheduledUpdateGroupAction(b.ctx, &sdkscaling.PutScheduledUpdateGroupActionInput{
			AutoScalingGroupName: &g.Name, ScheduledActionName: &a.Name, Recurrence: &a.Recurrence,
			MinSize: given(a.Min), MaxSize: given(a.Max), DesiredCapacity: given(a.Desired),
		}); err != nil {
			return fmt.Errorf("scheduled action: %w", err)
		}
	}
	for _, p := range g.Policies {
		if _, err := b.scaling.PutScalingPolicy(b.ctx, &sdkscaling.PutScalingPolicyInput{
			AutoScalingGroupName: &g.Name, PolicyName: &p.Name, PolicyType: &p.Type,
			AdjustmentType: aws.String("ChangeInCapacity"), ScalingAdjustment: aws.Int32(1),
		}); err != nil {
			return fmt.Errorf("policy: %w", err)
		}
	}
	if g.WarmPool != nil {
		if _, err := b.scaling.PutWarmPool(b.ctx, &sdkscaling.PutWarmPoolInput{AutoScalingGroupName: &g.Name, MinSize: aws.Int32(int32(g.WarmPool.MinSize))}); err != nil {
			return fmt.Errorf("warm pool: %w", err)
		}
	}
	return nil
}

func given(size int) *int32 {
	if size < 0 {
		return nil
	}
	return aws.Int32(int32(size))
}
