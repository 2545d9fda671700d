package aws

import (
	"strings"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"

	"gpu-node-provider/cloud"
)

// tagPrefix begins the tags by which an ASG says what its Nodes will look like.
// They are those of Cluster Autoscaler's own AWS provider, so that a group
// tagged for that one moves over unchanged: cluster-autoscaler/cloudprovider/aws
// (README.md "Auto-discovery setup", aws_manager.go) in kubernetes/autoscaler.
const tagPrefix = "k8s.io/cluster-autoscaler/node-template/"

// nodeTags reads label/KEY = VALUE, taint/KEY = VALUE:EFFECT and resources/NAME = QUANTITY
// under tagPrefix.
func nodeTags(tags []types.TagDescription) cloud.NodeTags {
	n := cloud.NodeTags{Labels: map[string]string{}, Resources: map[string]string{}}
	for _, tag := range tags {
		value := awssdk.ToString(tag.Value)
		rest, ours := strings.CutPrefix(awssdk.ToString(tag.Key), tagPrefix)
		if !ours {
			continue
		}
		kind, name, _ := strings.Cut(rest, "/")
		taint, isTaint := taintOf(name, value)
		switch {
		case name == "":
			n.Ignored = append(n.Ignored, *tag.Key)
		case kind == "label":
			n.Labels[name] = value
		case kind == "resources":
			n.Resources[name] = value
		case kind == "taint" && isTaint:
			n.Taints = append(n.Taints, taint)
		default:
			n.Ignored = append(n.Ignored, *tag.Key)
		}
	}
	return n
}

func taintOf(key, text string) (cloud.Taint, bool) {
	value, effect, _ := strings.Cut(text, ":")
	switch effect {
	case "NoSchedule", "PreferNoSchedule", "NoExecute":
		return cloud.Taint{Key: key, Value: value, Effect: effect}, true
	default:
		return cloud.Taint{}, false
	}
}
