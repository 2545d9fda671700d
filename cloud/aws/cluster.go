package aws

import (
	"context"
	"fmt"
	"slices"
	"strings"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"go.uber.org/zap"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/logkey"
)

// The tags that name a cluster are the two below with the name as the rest of the key; the
// value does not matter. The first is that of Cluster Autoscaler's auto-discovery
// (kubernetes/autoscaler, cluster-autoscaler/cloudprovider/aws), the second that of cluster tools.
const (
	autoscalerTag = "k8s.io/cluster-autoscaler/"
	clusterTag    = "kubernetes.io/cluster/"
)

// enabledTag marks the ASGs of every cluster, so it names none.
const enabledTag = autoscalerTag + "enabled"

// clustersOf returns the clusters that the tags of an ASG name, sorted, each once. A name has
// no slash, unlike the keys of node-template tags.
func clustersOf(g *types.AutoScalingGroup) (names []string) {
	for _, tag := range g.Tags {
		key := awssdk.ToString(tag.Key)
		name, found := strings.CutPrefix(key, autoscalerTag)
		if !found {
			name, found = strings.CutPrefix(key, clusterTag)
		}
		if found && key != enabledTag && name != "" && !strings.Contains(name, "/") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// refused returns why an ASG is not the cluster's; nil when it is, and while the name of the
// cluster is not known. One that names no cluster is the cluster's only if the file lists it.
func (c *Cloud) refused(g *types.AutoScalingGroup) error {
	name := awssdk.ToString(g.AutoScalingGroupName)
	c.mu.Lock()
	cluster, found := c.cluster, c.found[name]
	c.mu.Unlock()
	if cluster == "" {
		return nil
	}
	named := clustersOf(g)
	switch {
	case slices.Contains(named, cluster):
		return nil
	case len(named) > 0:
		return fmt.Errorf("aws: Auto Scaling group %s is of cluster %s by its tags, and this provider serves cluster %s: remove the group from the node group file or from the discovery, or tag it with %s%s: %w",
			name, strings.Join(named, ", "), cluster, autoscalerTag, cluster, cloud.ErrPrecondition)
	case found:
		return fmt.Errorf("aws: Auto Scaling group %s was discovered, and no tag of it names a cluster: tag it with %s%s, or list it in the node group file: %w",
			name, autoscalerTag, cluster, cloud.ErrPrecondition)
	default:
		return nil
	}
}

// settleCluster returns the name of the cluster: that of the options, or the one that all
// discovered ASGs name in common, if it is the only one and no listed ASG names only others.
// Without it off says what to write. The name is kept until the process ends, so that a group
// of another cluster that appears later does not take the others out of service.
func (c *Cloud) settleCluster(ctx context.Context, discovered []types.AutoScalingGroup, listed []string) (cluster, off string, err error) {
	c.mu.Lock()
	cluster = c.cluster
	c.mu.Unlock()
	if cluster != "" || len(discovered) == 0 {
		return cluster, "", nil
	}
	var all []string
	common := clustersOf(&discovered[0])
	for n := range discovered {
		names := clustersOf(&discovered[n])
		all, common = append(all, names...), inBoth(common, names)
	}
	seen, err := c.lastSeen(ctx, listed)
	if err != nil {
		return "", "", err
	}
	for _, s := range seen {
		if s.asg == nil {
			continue
		}
		if names := clustersOf(s.asg); len(names) > 0 { // one that names none is the cluster's, since the file lists it
			all, common = append(all, names...), inBoth(common, names)
		}
	}
	if len(common) != 1 {
		return "", withoutName(all), nil
	}
	c.mu.Lock()
	c.cluster = common[0]
	c.mu.Unlock()
	c.log.Info("cluster taken from the tags of the discovered groups", zap.String(logkey.Cluster, common[0]))
	return common[0], "", nil
}

func inBoth(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(name string) bool { return !slices.Contains(b, name) })
}

// withoutName returns why the tags name no single cluster, and what to write.
func withoutName(all []string) string {
	slices.Sort(all)
	if all = slices.Compact(all); len(all) == 0 {
		return "no tag of the Auto Scaling groups names a cluster: write cluster: NAME below cloud.aws, and tag the groups with " + autoscalerTag + "NAME"
	}
	return "the tags of the Auto Scaling groups do not name exactly one cluster in common (" + strings.Join(all, ", ") + "): write cluster: NAME below cloud.aws, with the name of this cluster"
}
