package nodegroup

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/logkey"
	"gpu-node-provider/provider/config"
)

// Completion fills in what a node group file leaves open from the cloud's own
// description of the groups: the file wins over a group's tags, the tags over the
// instance type. One goroutine at a time may use it.
type Completion struct {
	// Machines describes the machines of Auto Scaling groups, by the group's name.
	Machines func(ctx context.Context, groups []string) (map[string]cloud.Machine, error)
	// Discover lists the Auto Scaling groups that carry all the tags; an empty value
	// stands for any. listed are the groups that the file names.
	Discover func(ctx context.Context, tags map[string]string, listed []string) (cloud.Discovery, error)
	Log      *zap.Logger

	known  map[string]cloud.Machine // the last good description, by Auto Scaling group
	logged map[string]string        // the problem logged last, by Auto Scaling group
	off    string                   // why discovery was off the last time
}

// Complete returns a copy of the configuration in which the cloud's description
// completes every group, and discovered groups are added. A group that the cloud
// cannot describe has its Unknown set. It fails when the cloud fails, and with
// cloud.ErrUnavailable when there would be no group at all.
func (c *Completion) Complete(ctx context.Context, file *config.Config) (*config.Config, error) {
	next := *file
	next.NodeGroups = slices.Clone(file.NodeGroups)
	inFile := len(next.NodeGroups)
	if file.Cloud.AWS.Discovery != nil {
		found, err := c.Discover(ctx, file.Cloud.AWS.Discovery.Tags, scalingGroups(next.NodeGroups))
		if err != nil {
			return nil, fmt.Errorf("cloud.aws.discovery: %w", err)
		}
		if c.logOff(found.Problem); found.Problem != "" && inFile == 0 {
			return nil, fmt.Errorf("cloud.aws.discovery: %s: %w", found.Problem, cloud.ErrPrecondition)
		}
		next.NodeGroups = append(next.NodeGroups, discovered(found.Groups, file)...)
	}
	if len(next.NodeGroups) == 0 {
		return nil, fmt.Errorf("cloud.aws.discovery: no Auto Scaling group in %s carries the tags, and nodeGroups is empty: %w", file.Cloud.AWS.Region, cloud.ErrUnavailable)
	}
	machines, err := c.Machines(ctx, scalingGroups(next.NodeGroups))
	if err != nil {
		return nil, fmt.Errorf("reading the instance types of node groups: %w", err)
	}
	for n := range next.NodeGroups {
		g := &next.NodeGroups[n]
		if *g, err = c.group(file, *g, machines[g.AutoScalingGroup], n >= inFile); err != nil {
			return nil, err
		}
	}
	return &next, nil
}

// group completes one group. While the cloud does not describe its machines, the last
// description stays in use, since without one they would use nothing of a quota. The
// result is validated by the rules of the file, as those about GPUs need the description.
func (c *Completion) group(file *config.Config, g config.NodeGroup, m cloud.Machine, found bool) (config.NodeGroup, error) {
	problem := m.Problem
	switch last, known := c.known[g.AutoScalingGroup]; {
	case problem == nil:
		if c.known == nil {
			c.known = map[string]cloud.Machine{}
		}
		c.known[g.AutoScalingGroup] = m
	case errors.Is(problem, cloud.ErrPrecondition) && !g.Capacity.Cpu().IsZero() && !g.Capacity.Memory().IsZero():
		problem = nil // the file writes what the cloud does not know beforehand
	case known:
		m = last
	case cloud.Passing(problem):
		return g, fmt.Errorf("node group %s: %w", g.ID, problem)
	default:
		c.log(g.AutoScalingGroup, problem)
		g.Unknown = problem.Error()
		return g, nil
	}
	whole := completed(file, g, m, found)
	if wrong := alone(file, whole).Validate(); wrong != nil && !g.Dropped { // nothing new is placed on its nodes by a template
		whole.Unknown, problem = wrong.Error(), wrong
	}
	c.log(g.AutoScalingGroup, problem)
	return whole, nil
}

func scalingGroups(groups []config.NodeGroup) []string {
	names := make([]string, 0, len(groups))
	for _, g := range groups {
		names = append(names, g.AutoScalingGroup)
	}
	return names
}

// logOff logs why discovery is off when that changes.
func (c *Completion) logOff(problem string) {
	if problem != "" && problem != c.off {
		c.Log.Error("discovery is off, only the groups of the node group file are served", zap.String(logkey.Reason, problem))
	}
	c.off = problem
}

// log logs a problem of a group when it changes.
func (c *Completion) log(asg string, problem error) {
	text := ""
	if problem != nil {
		text = problem.Error()
	}
	if c.logged[asg] == text {
		return
	}
	if c.logged == nil {
		c.logged = map[string]string{}
	}
	c.logged[asg] = text
	if problem != nil {
		c.Log.Error("failed to complete the node group of an Auto Scaling group", zap.String(logkey.AutoScalingGroup, asg), zap.Error(problem))
	}
}

// alone is a configuration with one group, to validate that group.
func alone(c *config.Config, g config.NodeGroup) *config.Config {
	one := *c
	one.NodeGroups, one.Quotas = []config.NodeGroup{g}, nil
	return &one
}

// SameGroups reports whether two completed files have equal node groups.
func SameGroups(a, b *config.Config) bool {
	return equality.Semantic.DeepEqual(a.NodeGroups, b.NodeGroups)
}

// completed fills in what the file leaves open.
func completed(file *config.Config, g config.NodeGroup, m cloud.Machine, found bool) config.NodeGroup {
	if found {
		g.MinSize, g.MaxSize = m.Min, m.Max
	}
	if len(g.Zones) == 0 {
		g.Zones = m.Zones
	}
	g.ZoneLabels = m.ZoneLabels
	if g.InstanceType == "" && len(m.InstanceTypes) == 1 {
		g.InstanceType = m.InstanceTypes[0]
	}
	if m.Architecture != "" {
		g.Arch = m.Architecture
	}
	if g.HourlyPrice == nil {
		g.HourlyPrice, g.PriceSource = m.HourlyPrice, m.PriceSource
	}
	byType := g.Capacity.Cpu().IsZero()
	g = declare(file, g, m)
	if byType && len(g.Reserved) == 0 {
		g.Reserved = eksReserved(g.Capacity)
	}
	return g
}

// eksReserved is what the kubelet of the EKS images reserves, by
// https://github.com/awslabs/amazon-eks-ami (nodeadm, internal/kubelet/config.go):
// memory 255 MiB + 11 MiB a Pod, and 100 MiB of eviction threshold; of CPU 6 % of the
// first core, 1 % of the second, 0.5 % of two more and 0.25 % of the rest; 1 GiB of disk.
func eksReserved(c corev1.ResourceList) corev1.ResourceList {
	var milli int64
	for core := range c.Cpu().Value() {
		switch {
		case core < 1:
			milli += 600
		case core < 2:
			milli += 100
		case core < 4:
			milli += 50
		default:
			milli += 25
		}
	}
	return corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewMilliQuantity(milli/10, resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity((255+11*c.Pods().Value()+100)<<20, resource.BinarySI),
		corev1.ResourceEphemeralStorage: resource.MustParse("1Gi"),
	}
}
