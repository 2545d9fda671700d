package nodegroup

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"slices"
	"strings"

	"gpu-node-provider/provider/config"
)

// discovered are node groups for Auto Scaling groups that the file does not name.
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
		groups = append(groups, config.NodeGroup{ID: id, AutoScalingGroup: asg, OS: "linux", Arch: "amd64", Region: c.Cloud.AWS.Region})
	}
	return groups
}

var notInID = regexp.MustCompile(`[^a-z0-9]+`)

// maxID is the longest DNS label.
const maxID = 63

// idOf makes a node group's id from an Auto Scaling group's name, which may be nearly any text.
func idOf(asg string) string {
	id := strings.Trim(notInID.ReplaceAllString(strings.ToLower(asg), "-"), "-")
	return id[:min(len(id), maxID)]
}

// withHash makes ids different that would be equal.
func withHash(id, asg string) string {
	sum := sha256.Sum256([]byte(asg))
	const tail = 8
	return strings.Trim(id[:min(len(id), maxID-tail-1)]+"-"+hex.EncodeToString(sum[:])[:tail], "-")
}

// Leaving are groups of the last completed file that discovery no longer finds and that
// still have instances. They stay, retired, until they are empty.
func Leaving(before, next *config.Config, instances func(group string) int) []config.NodeGroup {
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
