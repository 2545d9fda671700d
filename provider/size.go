package provider

import (
	"context"

	"gpu-node-provider/proto"
)

// NodeGroupTargetSize is the capacity asked for: every instance that
// NodeGroupNodes lists and that is not deleting.
func (s *Server) NodeGroupTargetSize(_ context.Context, req *proto.NodeGroupTargetSizeRequest) (*proto.NodeGroupTargetSizeResponse, error) {
	g, ok := s.current.Load().groups[req.GetId()]
	if !ok {
		return nil, toStatus(unknownGroup(req.GetId()))
	}
	return g.targetSize, nil
}
