package aws

import (
	"context"
	"fmt"
	"slices"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"golang.org/x/sync/errgroup"

	"gpu-node-provider/cloud"
)

// Machine is what an ASG's machines are, before any has been launched.
type Machine struct {
	// AutoScalingGroup is the ASG's name.
	AutoScalingGroup string
	// Problem is why nothing else is known, in a class of package cloud.
	Problem error

	// InstanceTypes are what AWS may launch; several with mixed instances.
	InstanceTypes []string
	// Least is what every machine has: of each resource the smallest amount of
	// all types. It is for the template Node.
	Least Resources
	// Most is what a machine can take up: of each resource the largest amount.
	// It is for quotas.
	Most Resources
	// Architecture is amd64 or arm64; empty when the types differ.
	Architecture string
	// Zones are the ASG's Availability Zones, Min and Max its bounds.
	Zones    []string
	Min, Max int
	// Tags are what the ASG says of its Nodes.
	Tags NodeTags
}

// Resources are amounts of one machine, before anything is reserved.
type Resources struct {
	VCPUs     int
	MemoryMiB int64
	// Pods is how many Pods get an address from the VPC CNI without prefix
	// delegation: the formula of
	// https://github.com/aws/amazon-vpc-cni-k8s#eni-allocation
	Pods int
	// GPUs are counts by the resource name of the maker's device plugin, such as
	// nvidia.com/gpu; empty without GPUs.
	GPUs map[string]int
}

// Machines says what the machines of ASGs are, by ASG. An ASG that is not there,
// or whose instance type cannot be told, has a Problem; the error is for what
// keeps all from being read.
func (c *Cloud) Machines(ctx context.Context, asgs []string) (map[string]Machine, error) {
	seen, err := c.list(ctx, asgs)
	if err != nil {
		return nil, err
	}
	types, problems, err := c.launchedTypes(ctx, seen)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, names := range types {
		all = append(all, names...)
	}
	known, err := c.instanceTypes(ctx, all)
	if err != nil {
		return nil, err
	}
	machines := make(map[string]Machine, len(seen))
	for asg, s := range seen {
		m := Machine{AutoScalingGroup: asg, Problem: s.problem}
		if m.Problem == nil {
			m.Problem = problems[asg]
		}
		if m.Problem == nil {
			m = machineOf(s.asg, types[asg], known, c.region)
		}
		machines[asg] = m
	}
	return machines, nil
}

// machineOf puts a Machine together.
func machineOf(g *types.AutoScalingGroup, names []string, known map[string]instanceType, region string) Machine {
	m := Machine{
		AutoScalingGroup: awssdk.ToString(g.AutoScalingGroupName),
		InstanceTypes:    names,
		Zones:            g.AvailabilityZones,
		Min:              int(awssdk.ToInt32(g.MinSize)),
		Max:              int(awssdk.ToInt32(g.MaxSize)),
		Tags:             nodeTags(g.Tags),
	}
	for n, name := range names {
		t, ok := known[name]
		if !ok {
			return Machine{AutoScalingGroup: m.AutoScalingGroup, Problem: fmt.Errorf(
				"aws: instance type %s of Auto Scaling group %s does not exist in %s: correct its launch template: %w",
				name, m.AutoScalingGroup, region, cloud.ErrPrecondition)}
		}
		if n == 0 {
			m.Least, m.Most, m.Architecture = t.resources, t.resources, t.architecture
			continue
		}
		m.Least, m.Most = least(m.Least, t.resources), most(m.Most, t.resources)
		if m.Architecture != t.architecture {
			m.Architecture = ""
		}
	}
	return m
}

func least(a, b Resources) Resources {
	r := Resources{VCPUs: min(a.VCPUs, b.VCPUs), MemoryMiB: min(a.MemoryMiB, b.MemoryMiB), Pods: min(a.Pods, b.Pods), GPUs: map[string]int{}}
	for name, n := range a.GPUs {
		if other := min(n, b.GPUs[name]); other > 0 {
			r.GPUs[name] = other
		}
	}
	return r
}

func most(a, b Resources) Resources {
	r := Resources{VCPUs: max(a.VCPUs, b.VCPUs), MemoryMiB: max(a.MemoryMiB, b.MemoryMiB), Pods: max(a.Pods, b.Pods), GPUs: map[string]int{}}
	for _, side := range []map[string]int{a.GPUs, b.GPUs} {
		for name, n := range side {
			r.GPUs[name] = max(n, r.GPUs[name])
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
	for asg, s := range seen {
		if s.problem != nil {
			continue
		}
		a := &answer{asg: asg}
		asked = append(asked, a)
		calls.Go(func() error {
			a.names, a.err = c.typesOf(ctx, s.asg)
			return nil // each ASG has its own outcome
		})
	}
	_ = calls.Wait() // see above
	if err := ctx.Err(); err != nil {
		return nil, nil, fmt.Errorf("aws: reading launch templates was given up: %w", err)
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
