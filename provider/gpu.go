package provider

import (
	"context"

	"google.golang.org/protobuf/types/known/anypb"

	"gpu-node-provider/proto"
	"gpu-node-provider/provider/nodegroup"
)

// GPULabel is the label key by which nodes count as GPU nodes. Cluster
// Autoscaler asks for it once a process, before its first Refresh, so being
// asked means that a new process is there, which has forgotten what the old one
// asked for (recorded with 1.36, killed and started again while nodes boot).
func (s *Server) GPULabel(context.Context, *proto.GPULabelRequest) (*proto.GPULabelResponse, error) {
	s.autoscalerIsNew()
	return s.current.Load().gpuLabel, nil
}

// GetAvailableGPUTypes are the values that the GPU label can have. Only the
// keys are read.
func (s *Server) GetAvailableGPUTypes(context.Context, *proto.GetAvailableGPUTypesRequest) (*proto.GetAvailableGPUTypesResponse, error) {
	return s.current.Load().gpuTypes, nil
}

func gpuTypes(c *nodegroup.Catalogue) *proto.GetAvailableGPUTypesResponse {
	types := map[string]*anypb.Any{}
	for t := range c.GPUTypes() {
		types[t] = &anypb.Any{}
	}
	return &proto.GetAvailableGPUTypesResponse{GpuTypes: types}
}
