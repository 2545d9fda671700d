package provider

import (
	"context"

	"gpu-node-provider/proto"
	"gpu-node-provider/provider/nodegroup"
)

// notOurs is the answer for nodes of no group. It is not an error: one error
// here stops all scale-up (cluster-autoscaler/resourcequotas/usage.go, 1.36).
var notOurs = &proto.NodeGroupForNodeResponse{NodeGroup: &proto.NodeGroup{}}

// NodeGroupForNode places a node by its provider id, real or one of Cluster
// Autoscaler's fakes. A node whose instance is gone keeps its group as long as
// anybody asks for it; after a restart, by its label.
func (s *Server) NodeGroupForNode(_ context.Context, req *proto.NodeGroupForNodeRequest) (*proto.NodeGroupForNodeResponse, error) {
	if req.GetNode() == nil {
		return nil, toStatus(invalid("the request has no node"))
	}
	if g := s.groupOf(s.current.Load(), req.GetNode()); g != nil {
		return g.forNode, nil
	}
	return notOurs, nil
}

// groupOf is nil for a node of no group.
func (s *Server) groupOf(now *snapshot, node *proto.ExternalGrpcNode) *groupView {
	id := node.GetProviderID()
	if group, ok := now.owner[id]; ok {
		return now.groups[group]
	}
	if d, ok := now.departed[id]; ok {
		return now.groups[d.group]
	}
	group, ok := now.groups[node.GetLabels()[nodegroup.Label]]
	if ok && s.backend.Recognizes(id) {
		return group
	}
	return nil
}
