package provider

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"gpu-node-provider/proto"
	"gpu-node-provider/provider/nodegroup"
)

// noOptions keeps Cluster Autoscaler on its flags. It is not an empty answer,
// which up to 1.34 would be read as all zeroes; and any answer makes 1.35 and
// later take a booting GPU node for unready, since the node's startup time has
// no field (cluster-autoscaler/processors/nodegroupconfig).
var noOptions = toStatus(&classified{errUnimplemented, "the node group has no scaleDown overrides"})

// NodeGroupGetOptions answers only for groups with overrides. Then every field
// is the override or the caller's default, in both wire forms.
func (s *Server) NodeGroupGetOptions(_ context.Context, req *proto.NodeGroupAutoscalingOptionsRequest) (*proto.NodeGroupAutoscalingOptionsResponse, error) {
	g, ok := s.current.Load().groups[req.GetId()]
	if !ok {
		return nil, toStatus(unknownGroup(req.GetId()))
	}
	s.noteDefaults(req.GetDefaults())
	overrides, some := g.Overrides()
	if !some {
		return nil, noOptions
	}
	if req.GetDefaults() == nil {
		return nil, toStatus(invalid("the request has no defaults; options without a default would become zero"))
	}
	options, ok := merge(req.GetDefaults(), overrides)
	if !ok {
		return nil, noOptions
	}
	return &proto.NodeGroupAutoscalingOptionsResponse{NodeGroupAutoscalingOptions: options}, nil
}

// merge is not ok when a duration would be zero without having been written as
// zero in the file. Cluster Autoscaler would carry a zero out, and delete nodes
// at once; without an answer it goes by its own flags.
func merge(defaults *proto.NodeGroupAutoscalingOptions, over nodegroup.Overrides) (*proto.NodeGroupAutoscalingOptions, bool) {
	unneeded, ok1 := choose(over.UnneededTime, defaults.GetScaleDownUnneededDuration(), defaults.GetScaleDownUnneededTime())
	unready, ok2 := choose(over.UnreadyTime, defaults.GetScaleDownUnreadyDuration(), defaults.GetScaleDownUnreadyTime())
	provision, ok3 := choose(over.MaxNodeProvisionTime, defaults.GetMaxNodeProvisionDuration(), defaults.GetMaxNodeProvisionTime())
	return &proto.NodeGroupAutoscalingOptions{
		ScaleDownUtilizationThreshold:    value(over.UtilizationThreshold, defaults.GetScaleDownUtilizationThreshold()),
		ScaleDownGpuUtilizationThreshold: value(over.GPUUtilizationThreshold, defaults.GetScaleDownGpuUtilizationThreshold()),
		IgnoreDaemonSetsUtilization:      value(over.IgnoreDaemonSets, defaults.GetIgnoreDaemonSetsUtilization()),

		ScaleDownUnneededDuration: durationpb.New(unneeded),
		ScaleDownUnreadyDuration:  durationpb.New(unready),
		MaxNodeProvisionDuration:  durationpb.New(provision),
		ScaleDownUnneededTime:     legacy(unneeded),
		ScaleDownUnreadyTime:      legacy(unready),
		MaxNodeProvisionTime:      legacy(provision),
	}, ok1 && ok2 && ok3
}

func value[T any](override *T, otherwise T) T {
	if override != nil {
		return *override
	}
	return otherwise
}

// choose takes the override, else the default in its new form, else in its
// legacy form.
func choose(override *time.Duration, current *durationpb.Duration, old *proto.LegacyDuration) (d time.Duration, ok bool) {
	switch {
	case override != nil:
		return *override, true
	case current != nil:
		d = current.AsDuration()
	default:
		d = time.Duration(old.GetDuration())
	}
	return d, d > 0
}

func legacy(d time.Duration) *proto.LegacyDuration {
	return &proto.LegacyDuration{Duration: d.Nanoseconds()}
}
