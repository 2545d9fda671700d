package provider

import (
	"context"

	"gpu-node-provider/proto"
)

// Cleanup comes when a Cluster Autoscaler is told to stop. Its nodes stay: the
// next one takes them over.
func (s *Server) Cleanup(context.Context, *proto.CleanupRequest) (*proto.CleanupResponse, error) {
	return &proto.CleanupResponse{}, nil
}
