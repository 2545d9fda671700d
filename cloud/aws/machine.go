package aws

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"golang.org/x/sync/errgroup"

	"gpu-node-provider/cloud"
)

// zoneOfVolumes is the label by which volumes of the EBS CSI driver choose Nodes
// (https://github.com/kubernetes-sigs/aws-ebs-csi-driver, pkg/driver/driver.go).
const zoneOfVolumes = "topology.ebs.csi.aws.com/zone"

// Machines describes the machines of ASGs, by ASG. An ASG that does not exist, or whose
// instance types are not known, has a Problem; the error is for what fails for all.
func (c *Cloud) Machines(ctx context.Context, asgs []string) (map[string]cloud.Machine, error) {
	seen, err := c.lastSeen(ctx, asgs)
	if err != nil {
		return nil, err
	}
	types, problems, err := c.launchedTypes(ctx, seen)
	if err != nil {
		return nil, err
	}
	var all []string
	for asg, names := range types {
		all = append(append(all, names...), liveTypes(seen[asg].asg)...)
	}
	known, err := c.instanceTypes(ctx, all)
	if err != nil {
		return nil, err
	}
	managed, unread := c.managedDeclarations(ctx, seen)
	machines := make(map[string]cloud.Machine, len(seen))
	for asg, s := range seen {
		var m cloud.Machine
		switch problem := cmp.Or(s.problem, unread[asg]); {
		case problem != nil:
			m.Problem = problem
		case problems[asg] != nil:
			m = groupOnly(s.asg)
			m.Problem = problems[asg]
		default:
			m = machineOf(s.asg, types[asg], known, c.region)
		}
		m.Declared = withManaged(m.Declared, managed[asg])
		machines[asg] = m
	}
	return machines, nil
}

// groupOnly describes an Auto Scaling group without its types.
func groupOnly(g *types.AutoScalingGroup) cloud.Machine {
	return cloud.Machine{
		Zones:      g.AvailabilityZones,
		Min:        int(awssdk.ToInt32(g.MinSize)),
		Max:        int(awssdk.ToInt32(g.MaxSize)),
		ZoneLabels: []string{zoneOfVolumes},
		Declared:   declared(g.Tags),
	}
}

// machineOf combines the types of an Auto Scaling group into one Machine.
func machineOf(g *types.AutoScalingGroup, names []string, known map[string]instanceType, region string) cloud.Machine {
	m := groupOnly(g)
	m.InstanceTypes = names
	m.HourlyPrice, m.PriceSource = dearest(names, region)
	m.Each = eachType(append(liveTypes(g), names...), known, region)
	for n, name := range names {
		t, ok := known[name]
		if !ok {
			return cloud.Machine{Problem: fmt.Errorf(
				"aws: instance type %s of Auto Scaling group %s does not exist in %s: correct its launch template: %w",
				name, awssdk.ToString(g.AutoScalingGroupName), region, cloud.ErrNotFound)}
		}
		if n == 0 {
			m.Least, m.Most, m.Architecture = t.resources, t.resources, t.architecture
			continue
		}
		m.Least, m.Most = least(m.Least, t.resources), most(m.Most, t.resources)
		if m.Architecture != t.architecture {
			m = groupOnly(g)
			m.Problem = fmt.Errorf("aws: Auto Scaling group %s launches types of different architectures, so no Pod knows what it gets: give it types of one: %w",
				awssdk.ToString(g.AutoScalingGroupName), cloud.ErrPrecondition)
			return m
		}
	}
	return m
}

// liveTypes are the types of the machines in an Auto Scaling group.
func liveTypes(g *types.AutoScalingGroup) (names []string) {
	for _, i := range g.Instances {
		if name := awssdk.ToString(i.InstanceType); name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

func eachType(names []string, known map[string]instanceType, region string) map[string]cloud.MachineType {
	each := make(map[string]cloud.MachineType, len(names))
	for _, name := range names {
		if t, ok := known[name]; ok {
			price, _ := dearest([]string{name}, region)
			each[name] = cloud.MachineType{Resources: t.resources, HourlyPrice: price}
		}
	}
	return each
}

func least(a, b cloud.Resources) cloud.Resources {
	r := cloud.Resources{VCPUs: min(a.VCPUs, b.VCPUs), Memory: min(a.Memory, b.Memory), Pods: min(a.Pods, b.Pods), Devices: map[string]int{}}
	for name, n := range a.Devices {
		if other := min(n, b.Devices[name]); other > 0 {
			r.Devices[name] = other
		}
	}
	return r
}

func most(a, b cloud.Resources) cloud.Resources {
	r := cloud.Resources{VCPUs: max(a.VCPUs, b.VCPUs), Memory: max(a.Memory, b.Memory), Pods: max(a.Pods, b.Pods), Devices: map[string]int{}}
	for _, side := range []map[string]int{a.Devices, b.Devices} {
		for name, n := range side {
			r.Devices[name] = max(n, r.Devices[name])
		}
	}
	return r
}

// launchedTypes finds the instance types that each ASG may launch.
func (c *Cloud) launchedTypes(ctx context.Context, seen map[string]*sighting) (names map[string][]string, problems map[string]error, err error) {
	type answer struct {
		asg   string
		names []string
		err   error
	}
	var asked []*answer
	var calls errgroup.Group
	calls.SetLimit(parallelReads)
	unread := c.readTemplates(ctx, seen)
	for asg, s := range seen {
		if s.problem != nil {
			continue
		}
		a := &answer{asg: asg}
		asked = append(asked, a)
		if a.err = unread; unread != nil && !c.templateKnown(s.asg) {
			continue
		}
		calls.Go(func() error {
			a.names, a.err = c.typesOf(ctx, s.asg)
			return nil // each ASG has its own outcome
		})
	}
	_ = calls.Wait() // see above
	if err := ctx.Err(); err != nil {
		return nil, nil, fmt.Errorf("aws: reading launch templates: %w", err)
	}
	names, problems = map[string][]string{}, map[string]error{}
	for _, a := range asked {
		names[a.asg], problems[a.asg] = a.names, a.err
	}
	return names, problems, nil
}

// typesOf finds the instance types of one ASG: the overrides of a mixed
// instances policy if there are any, else its launch template's or
// configuration's.
func (c *Cloud) typesOf(ctx context.Context, g *types.AutoScalingGroup) ([]string, error) {
	asg := awssdk.ToString(g.AutoScalingGroupName)
	template := g.LaunchTemplate
	if m := g.MixedInstancesPolicy; m != nil && m.LaunchTemplate != nil {
		var names []string
		for _, o := range m.LaunchTemplate.Overrides {
			if o.InstanceRequirements != nil {
				return nil, fmt.Errorf("aws: Auto Scaling group %s chooses instance types by attributes, so they are not known beforehand: name instance types in its overrides, or write capacity in the node group file: %w",
					asg, cloud.ErrPrecondition)
			}
			if name := awssdk.ToString(o.InstanceType); name != "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		if len(names) > 0 {
			return names, nil
		}
		template = m.LaunchTemplate.LaunchTemplateSpecification
	}
	var name string
	var err error
	switch {
	case template != nil:
		name, err = c.typeOfTemplate(ctx, asg, template)
	case awssdk.ToString(g.LaunchConfigurationName) != "":
		name, err = c.typeOfConfiguration(ctx, asg, *g.LaunchConfigurationName)
	default:
		return nil, fmt.Errorf("aws: Auto Scaling group %s has no launch template: give it one: %w", asg, cloud.ErrPrecondition)
	}
	if err != nil {
		return nil, err
	}
	if name == "" {
		return nil, fmt.Errorf("aws: the launch template of Auto Scaling group %s has no instance type: write one there, or instanceType and capacity in the node group file: %w",
			asg, cloud.ErrPrecondition)
	}
	return []string{name}, nil
}
