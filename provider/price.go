package provider

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"

	"gpu-node-provider/proto"
)

// PricingNodePrice is what a node costs from start to end, in US dollars.
// Cluster Autoscaler asks it of template Nodes, which it names itself, so the
// group comes from the provider id or from the label.
func (s *Server) PricingNodePrice(_ context.Context, req *proto.PricingNodePriceRequest) (*proto.PricingNodePriceResponse, error) {
	if req.GetNode() == nil {
		return nil, toStatus(invalid("the request has no node"))
	}
	hours, err := hoursBetween(req.GetStartTimestamp(), req.GetEndTimestamp(), req.GetStartTime(), req.GetEndTime())
	if err != nil {
		return nil, toStatus(err)
	}
	g := s.groupOf(s.current.Load(), req.GetNode())
	if g == nil {
		return nil, toStatus(&classified{errNotFound, "the node does not belong to a node group"})
	}
	dollars, _ := g.HourlyPrice()
	return &proto.PricingNodePriceResponse{Price: dollars * hours}, nil
}

// PricingPodPrice is what a Pod costs from start to end, in US dollars.
func (s *Server) PricingPodPrice(_ context.Context, req *proto.PricingPodPriceRequest) (*proto.PricingPodPriceResponse, error) {
	hours, err := hoursBetween(req.GetStartTimestamp(), req.GetEndTimestamp(), req.GetStartTime(), req.GetEndTime())
	if err != nil {
		return nil, toStatus(err)
	}
	bytes := req.GetPodBytes()
	if len(bytes) == 0 {
		bytes = req.GetPod()
	}
	if len(bytes) == 0 {
		return nil, toStatus(invalid("the request has no pod"))
	}
	pod := &corev1.Pod{}
	if err := pod.Unmarshal(bytes); err != nil {
		return nil, toStatus(invalid("decoding the pod: %v", err))
	}
	return &proto.PricingPodPriceResponse{Price: s.current.Load().catalogue.PodPrice(pod) * hours}, nil
}

// hoursBetween takes the current fields if they are set, the legacy ones
// otherwise. A time that is not set is the zero of Kubernetes' metav1.Time.
func hoursBetween(start, end, oldStart, oldEnd *timestamppb.Timestamp) (float64, error) {
	if start == nil && end == nil {
		start, end = oldStart, oldEnd
	}
	if start == nil || end == nil {
		return 0, invalid("start and end are both required")
	}
	if err := start.CheckValid(); err != nil {
		return 0, invalid("start: %v", err)
	}
	if err := end.CheckValid(); err != nil {
		return 0, invalid("end: %v", err)
	}
	between := end.AsTime().Sub(start.AsTime())
	if between < 0 {
		return 0, invalid("end is %s before start", -between)
	}
	return between.Hours(), nil
}
