package aws

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	scalingtypes "github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"github.com/aws/aws-sdk-go-v2/service/eks"
	"github.com/aws/aws-sdk-go-v2/service/eks/types"
	"golang.org/x/sync/errgroup"

	"gpu-node-provider/cloud"
)

// managedFor is how long the description of a managed node group counts. Labels and taints
// change rarely, one call describes one group, and a change of them does not reach Nodes that
// are there.
const managedFor = 6 * time.Minute

// The tags by which EKS marks the ASG of a managed node group
// (https://docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html).
const (
	eksCluster   = "eks:cluster-name"
	eksNodeGroup = "eks:nodegroup-name"
)

// managedGroup names a managed node group of EKS.
type managedGroup struct{ cluster, name string }

// managedCache holds what managed node groups declare.
type managedCache struct {
	mu    sync.Mutex
	known map[managedGroup]managedAnswer
}

type managedAnswer struct {
	declared []cloud.Declaration
	at       time.Time
}

// managedOf returns the managed node group of an ASG, and false for other ASGs.
func managedOf(tags []scalingtypes.TagDescription) (g managedGroup, ok bool) {
	for _, tag := range tags {
		switch awssdk.ToString(tag.Key) {
		case eksCluster:
			g.cluster = awssdk.ToString(tag.Value)
		case eksNodeGroup:
			g.name = awssdk.ToString(tag.Value)
		}
	}
	return g, g.cluster != "" && g.name != ""
}

// managedDeclarations reads what the managed node groups of ASGs declare, by ASG. While EKS
// does not answer, the last answer counts. Without one, an error that time may heal is the
// ASG's problem, since a template without the taints of its Nodes attracts Pods that belong
// elsewhere; any other is named in place of the declarations.
func (c *Cloud) managedDeclarations(ctx context.Context, seen map[string]*sighting) (all map[string][]cloud.Declaration, problems map[string]error) {
	all, problems = map[string][]cloud.Declaration{}, map[string]error{}
	var mu sync.Mutex
	var calls errgroup.Group
	calls.SetLimit(parallelReads)
	for asg, s := range seen {
		if s.problem != nil {
			continue
		}
		g, ok := managedOf(s.asg.Tags)
		if !ok {
			continue
		}
		calls.Go(func() error {
			declared, err := c.managedGroup(ctx, g)
			mu.Lock()
			defer mu.Unlock()
			all[asg] = declared
			if err != nil {
				problems[asg] = err
			}
			return nil // each ASG has its own outcome
		})
	}
	_ = calls.Wait() // see above
	return all, problems
}

func (c *Cloud) managedGroup(ctx context.Context, g managedGroup) ([]cloud.Declaration, error) {
	c.managed.mu.Lock()
	last, known := c.managed.known[g]
	c.managed.mu.Unlock()
	if known && c.now().Sub(last.at) < managedFor {
		return last.declared, nil
	}
	source := fmt.Sprintf("EKS node group %s of cluster %s", g.name, g.cluster)
	out, err := c.eks.DescribeNodegroup(ctx, &eks.DescribeNodegroupInput{ClusterName: &g.cluster, NodegroupName: &g.name})
	switch {
	case err == nil && out.Nodegroup != nil:
		last = managedAnswer{managedDeclared(source, out.Nodegroup), c.now()}
		c.managed.mu.Lock()
		defer c.managed.mu.Unlock()
		if c.managed.known == nil {
			c.managed.known = map[managedGroup]managedAnswer{}
		}
		c.managed.known[g] = last
		return last.declared, nil
	case known:
		return last.declared, nil
	case err == nil:
		err = fmt.Errorf("aws: EKS returned no description of %s: %w", source, cloud.ErrUnavailable)
	default:
		err = fault(ctx, "reading "+source, err)
	}
	if cloud.Passing(err) {
		return nil, err
	}
	return []cloud.Declaration{{Source: source, Problem: err.Error()}}, nil
}

// managedDeclared is what Nodes of a managed node group carry, as the in-tree provider has it
// (cluster-autoscaler/cloudprovider/aws/aws_wrapper.go, getManagedNodegroupInfo). Left out are
// its labels amiType, diskSize and k8sVersion, which no Node carries.
func managedDeclared(source string, g *types.Nodegroup) (all []cloud.Declaration) {
	label := func(key, value string) {
		all = append(all, cloud.Declaration{Source: source + ", label " + key, Kind: cloud.DeclaredLabel, Key: key, Value: value})
	}
	for _, key := range slices.Sorted(maps.Keys(g.Tags)) {
		if name, ok := strings.CutPrefix(key, tagPrefix+string(cloud.DeclaredResource)+"/"); ok {
			all = append(all, cloud.Declaration{Source: source + ", tag " + key, Kind: cloud.DeclaredResource, Key: name, Value: g.Tags[key]})
		}
	}
	label("eks.amazonaws.com/nodegroup", awssdk.ToString(g.NodegroupName))
	if g.CapacityType != "" {
		label("eks.amazonaws.com/capacityType", string(g.CapacityType))
	}
	for _, key := range slices.Sorted(maps.Keys(g.Labels)) {
		label(key, g.Labels[key])
	}
	effects := map[types.TaintEffect]string{
		types.TaintEffectNoSchedule: "NoSchedule", types.TaintEffectNoExecute: "NoExecute", types.TaintEffectPreferNoSchedule: "PreferNoSchedule",
	}
	for _, t := range g.Taints {
		all = append(all, cloud.Declaration{
			Source: source + ", taint " + awssdk.ToString(t.Key), Kind: cloud.DeclaredTaint,
			Key: awssdk.ToString(t.Key), Value: awssdk.ToString(t.Value), Effect: effects[t.Effect],
		})
	}
	return all
}

// withManaged joins the tags of an ASG with what its managed node group declares. Resources
// of the node group win over those of the ASG, whose labels and taints win over the others:
// the order of the in-tree provider.
func withManaged(tags, managed []cloud.Declaration) []cloud.Declaration {
	isResource := func(d cloud.Declaration) bool { return d.Kind == cloud.DeclaredResource }
	var first, last []cloud.Declaration
	for _, d := range managed {
		if isResource(d) {
			first = append(first, d)
		} else {
			last = append(last, d)
		}
	}
	return slices.Concat(first, tags, last)
}
