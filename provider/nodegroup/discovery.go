package nodegroup

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"gpu-node-provider/provider/config"
)

// discovered returns node groups for the Auto Scaling groups that the file does not name.
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
		if id != asg || ids[id] { // the id must not depend on which other groups exist
			id = withHash(id, asg)
		}
		ids[id] = true
		groups = append(groups, config.NodeGroup{ID: id, AutoScalingGroup: asg, Discovered: true, OS: "linux", Arch: "amd64", Region: c.Cloud.AWS.Region})
	}
	return groups
}

var notInID = regexp.MustCompile(`[^a-z0-9]+`)

// maxID is the longest DNS label.
const maxID = 63

// idOf returns a node group id, a DNS label, for the name of an Auto Scaling group, which
// may contain almost any character.
func idOf(asg string) string {
	id := strings.Trim(notInID.ReplaceAllString(strings.ToLower(asg), "-"), "-")
	return id[:min(len(id), maxID)]
}

// withHash appends a hash of the name to an id, so that names with equal ids differ.
func withHash(id, asg string) string {
	sum := sha256.Sum256([]byte(asg))
	const tail = 8
	return strings.Trim(id[:min(len(id), maxID-tail-1)]+"-"+hex.EncodeToString(sum[:])[:tail], "-")
}

// Dropped returns a retired group for instances that no group of a completed file has. id is
// that of their Nodes' label or of their record, asg the Auto Scaling group on AWS, and node
// one of the Nodes, nil without one.
func Dropped(c *config.Config, id, asg string, node *corev1.Node) config.NodeGroup {
	for _, g := range c.NodeGroups {
		if g.ID == id { // it has another Auto Scaling group in the file
			id = withHash(id, asg)
			break
		}
	}
	g := config.NodeGroup{ID: id, AutoScalingGroup: asg, Retired: true, Dropped: true, OS: "linux", Arch: "amd64"}
	if c.Cloud.AWS != nil {
		g.Region = c.Cloud.AWS.Region
	}
	if node == nil {
		return g
	}
	if model, ok := node.Labels[c.GPULabel]; ok {
		g.Labels = map[string]string{c.GPULabel: model}
	}
	if c.Cloud.AWS == nil { // else the cloud describes its machines
		g.Capacity = node.Status.Capacity
	}
	return g
}

// Leaving returns the groups of before that are missing from next and still have
// instances, as retired groups, which stay until they are empty.
func Leaving(before, next *config.Config, instances func(group string) int) []config.NodeGroup {
	var stay []config.NodeGroup
	for _, g := range before.NodeGroups {
		there := slices.ContainsFunc(next.NodeGroups, func(n config.NodeGroup) bool {
			return n.ID == g.ID || n.AutoScalingGroup == g.AutoScalingGroup
		})
		if !there && instances(g.ID) > 0 {
			g.Retired, g.Dropped, g.MinSize = true, true, 0
			stay = append(stay, g)
		}
	}
	return stay
}
