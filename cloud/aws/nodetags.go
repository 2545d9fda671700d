package aws

import (
	"cmp"
	"slices"
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

// declared reads label/KEY = VALUE, taint/KEY = VALUE:EFFECT, resources/NAME = QUANTITY and
// autoscaling-options/NAME = VALUE under tagPrefix, in the order of their keys.
func declared(tags []types.TagDescription) (all []cloud.Declaration) {
	for _, tag := range tags {
		key := awssdk.ToString(tag.Key)
		rest, ours := strings.CutPrefix(key, tagPrefix)
		if !ours {
			continue
		}
		kind, name, _ := strings.Cut(rest, "/")
		d := cloud.Declaration{Source: key, Kind: cloud.DeclarationKind(kind), Key: name, Value: awssdk.ToString(tag.Value)}
		switch d.Kind {
		case cloud.DeclaredLabel, cloud.DeclaredResource, cloud.DeclaredOption:
		case cloud.DeclaredTaint:
			d.Value, d.Effect, _ = strings.Cut(d.Value, ":")
		default:
			d.Problem = "is none of label/, taint/, resources/ and autoscaling-options/"
		}
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b cloud.Declaration) int { return cmp.Compare(a.Source, b.Source) })
	return all
}
