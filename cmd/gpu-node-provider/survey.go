package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws"
	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/nodegroup"
)

// surveyRounds is how many refresh intervals pass until AWS is asked again what
// the groups' machines are, and which groups carry the tags of discovery. A new
// launch template or a new group may take that long to be seen; each look is a few
// calls.
const surveyRounds = 4

// survey completes the node group file by what AWS knows: the file wins over an
// ASG's tags, the tags over the instance type.
type survey struct {
	aws *aws.Cloud
	log *zap.Logger
	// known is what AWS said last of their machines, by Auto Scaling group.
	known map[string]aws.Machine
	// told are problems that have been logged, by Auto Scaling group.
	told map[string]string
}

func newSurvey(cloud *aws.Cloud, log *zap.Logger) *survey {
	return &survey{aws: cloud, log: log, known: map[string]aws.Machine{}, told: map[string]string{}}
}

// complete is a copy of the configuration with every group that AWS can tell of
// completed, and those that discovery finds added. One that it cannot tell of has
// its Unknown. It fails when AWS fails, or when there would be no group at all.
func (s *survey) complete(ctx context.Context, c *config.Config) (*config.Config, error) {
	next := *c
	next.NodeGroups = slices.Clone(c.NodeGroups)
	inFile := len(next.NodeGroups)
	if c.Cloud.AWS.Discovery != nil {
		found, err := s.aws.Discover(ctx, c.Cloud.AWS.Discovery.Tags)
		if err != nil {
			return nil, fmt.Errorf("cloud.aws.discovery: %w", err)
		}
		next.NodeGroups = append(next.NodeGroups, discovered(found, c)...)
	}
	if len(next.NodeGroups) == 0 {
		return nil, fmt.Errorf("cloud.aws.discovery: no Auto Scaling group in %s carries the tags, and nodeGroups is empty: %w", c.Cloud.AWS.Region, cloud.ErrUnavailable)
	}
	var names []string
	for _, g := range next.NodeGroups {
		names = append(names, g.AutoScalingGroup)
	}
	machines, err := s.aws.Machines(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("reading what the machines of the node groups are: %w", err)
	}
	for n := range next.NodeGroups {
		g := &next.NodeGroups[n]
		if *g, err = s.one(c, *g, machines[g.AutoScalingGroup], n >= inFile); err != nil {
			return nil, err
		}
	}
	return &next, nil
}

// one completes a group. While AWS does not say what its machines are, what it
// said before counts: without it they would count for nothing in quotas. What is
// known is held to the rules of the file, since those of a GPU could not be checked before.
func (s *survey) one(c *config.Config, g config.NodeGroup, m aws.Machine, found bool) (config.NodeGroup, error) {
	problem := m.Problem
	switch before, known := s.known[g.AutoScalingGroup]; {
	case problem == nil:
		s.known[g.AutoScalingGroup] = m
	case known:
		m = before
	case passing(problem):
		return g, fmt.Errorf("node group %s: %w", g.ID, problem)
	default:
		s.tell(g.AutoScalingGroup, problem)
		g.Unknown = problem.Error()
		return g, nil
	}
	whole := completed(g, m, found)
	if wrong := alone(c, whole).Validate(); wrong != nil {
		whole.Unknown, problem = wrong.Error(), wrong
	}
	s.tell(g.AutoScalingGroup, problem)
	return whole, nil
}

// passing says whether time alone may put something right.
func passing(err error) bool {
	for _, class := range []error{cloud.ErrThrottled, cloud.ErrUnavailable, context.DeadlineExceeded} {
		if errors.Is(err, class) {
			return true
		}
	}
	return false
}

// leaving are groups that discovery does not find any more and that still have
// instances. They stay until they are empty, and take no new ones.
func leaving(before, next *config.Config, instances func(group string) int) []config.NodeGroup {
	var stay []config.NodeGroup
	for _, g := range before.NodeGroups {
		there := slices.ContainsFunc(next.NodeGroups, func(n config.NodeGroup) bool {
			return n.ID == g.ID || n.AutoScalingGroup == g.AutoScalingGroup
		})
		if !there && instances(g.ID) > 0 {
			g.Retired, g.MinSize = true, 0
			stay = append(stay, g)
		}
	}
	return stay
}

// tell logs what keeps a group from being completed, when that changes.
func (s *survey) tell(asg string, problem error) {
	text := ""
	if problem != nil {
		text = problem.Error()
	}
	if s.told[asg] == text {
		return
	}
	s.told[asg] = text
	if problem != nil {
		s.log.Error("what AWS says of a group does not make a node group", zap.String("auto_scaling_group", asg), zap.Error(problem))
	}
}

// alone is a configuration with one group, to have that group validated.
func alone(c *config.Config, g config.NodeGroup) *config.Config {
	one := *c
	one.NodeGroups, one.Quotas = []config.NodeGroup{g}, nil
	return &one
}

// discovered are node groups for ASGs that the file does not name.
func discovered(asgs []string, c *config.Config) []config.NodeGroup {
	taken, ids := map[string]bool{}, map[string]bool{}
	for _, g := range c.NodeGroups {
		taken[g.AutoScalingGroup], ids[g.ID] = true, true
	}
	var groups []config.NodeGroup
	for _, asg := range asgs {
		if taken[asg] {
			continue
		}
		id := idOf(asg)
		if id != asg || ids[id] { // whoever else is there must not change it
			id = withHash(id, asg)
		}
		ids[id] = true
		groups = append(groups, config.NodeGroup{ID: id, AutoScalingGroup: asg, OS: "linux", Arch: "amd64", Region: c.Cloud.AWS.Region})
	}
	return groups
}

var notInID = regexp.MustCompile(`[^a-z0-9]+`)

// maxID is that of a DNS label.
const maxID = 63

// idOf makes a node group's id of an ASG's name, which may be nearly any text.
func idOf(asg string) string {
	id := strings.Trim(notInID.ReplaceAllString(strings.ToLower(asg), "-"), "-")
	return id[:min(len(id), maxID)]
}

// withHash tells ids apart that would be the same.
func withHash(id, asg string) string {
	sum := sha256.Sum256([]byte(asg))
	const tail = 8
	return strings.Trim(id[:min(len(id), maxID-tail-1)]+"-"+hex.EncodeToString(sum[:])[:tail], "-")
}

// completed fills in what the file leaves open.
func completed(g config.NodeGroup, m aws.Machine, found bool) config.NodeGroup {
	if found {
		g.MinSize, g.MaxSize = m.Min, m.Max
	}
	if len(g.Zones) == 0 {
		g.Zones = m.Zones
	}
	if g.InstanceType == "" && len(m.InstanceTypes) == 1 {
		g.InstanceType = m.InstanceTypes[0]
	}
	if m.Architecture != "" {
		g.Arch = m.Architecture
	}
	labels := maps.Clone(m.Tags.Labels)
	maps.DeleteFunc(labels, func(key, _ string) bool { return key == corev1.LabelHostname || key == nodegroup.Label })
	maps.Copy(labels, g.Labels)
	g.Labels = labels
	g.Taints = mergedTaints(g.Taints, m.Tags.Taints)
	byType := g.Capacity.Cpu().IsZero()
	g.MostCapacity = capacity(m.Most, g.Capacity, m.Tags.Resources)
	g.Capacity = capacity(m.Least, g.Capacity, m.Tags.Resources)
	if byType && len(g.Reserved) == 0 {
		g.Reserved = eksReserved(g.Capacity)
	}
	if g.HourlyPrice == nil {
		g.HourlyPrice = dearest(m.InstanceTypes)
	}
	return g
}

// mergedTaints are the file's, then those of the tags that the file says nothing of.
func mergedTaints(file []corev1.Taint, tags []aws.Taint) []corev1.Taint {
	all := slices.Clone(file)
	for _, t := range tags {
		taint := corev1.Taint{Key: t.Key, Value: t.Value, Effect: corev1.TaintEffect(t.Effect)}
		if !slices.ContainsFunc(all, func(have corev1.Taint) bool { return have.MatchTaint(&taint) }) {
			all = append(all, taint)
		}
	}
	return all
}

// defaultEphemeralStorage stands for the root volume, whose size the API tells
// only by the image. Pods that ask for more fit no template.
const defaultEphemeralStorage = "100Gi"

// capacity puts a node's together: the type's, the tags' over it, the file's over all.
func capacity(r aws.Resources, file corev1.ResourceList, tags map[string]string) corev1.ResourceList {
	all := corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(int64(r.VCPUs), resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(r.MemoryMiB<<20, resource.BinarySI),
		corev1.ResourceEphemeralStorage: resource.MustParse(defaultEphemeralStorage),
	}
	if r.Pods > 0 {
		all[corev1.ResourcePods] = *resource.NewQuantity(int64(r.Pods), resource.DecimalSI)
	}
	for name, n := range r.GPUs {
		all[corev1.ResourceName(name)] = *resource.NewQuantity(int64(n), resource.DecimalSI)
	}
	for name, text := range tags {
		if q, err := resource.ParseQuantity(text); err == nil { // what does not parse says nothing
			all[corev1.ResourceName(name)] = q
		}
	}
	maps.Copy(all, file)
	return all
}

// eksReserved is what the kubelet of the EKS images keeps for itself, by
// https://github.com/awslabs/amazon-eks-ami (nodeadm, internal/kubelet/config.go):
// memory 255 MiB + 11 MiB a Pod, and 100 MiB until it evicts; of CPU 6 % of the
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

// dearest is the price of the dearest type: budgets must not be passed. Nil
// when one is not known.
func dearest(types []string) *float64 {
	var most *float64
	for _, t := range types {
		price, known := aws.Price(t)
		if !known {
			return nil
		}
		if most == nil || price > *most {
			most = &price
		}
	}
	return most
}

// sameGroups says whether a survey has changed nothing.
func sameGroups(a, b *config.Config) bool {
	return equality.Semantic.DeepEqual(a.NodeGroups, b.NodeGroups)
}
