package provider

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"gpu-node-provider/proto"
	"gpu-node-provider/provider/nodegroup"
)

// NodeGroupTemplateNodeInfo is the Node to imagine when thinking about growth.
// An OK without a Node would make Cluster Autoscaler panic, so what cannot be
// built is an error.
func (s *Server) NodeGroupTemplateNodeInfo(_ context.Context, req *proto.NodeGroupTemplateNodeInfoRequest) (*proto.NodeGroupTemplateNodeInfoResponse, error) {
	g, ok := s.current.Load().groups[req.GetId()]
	if !ok {
		return nil, toStatus(unknownGroup(req.GetId()))
	}
	if g.noTemplate != nil {
		return nil, toStatus(g.noTemplate)
	}
	return g.template, nil
}

func templateResponse(g *nodegroup.Group) (*proto.NodeGroupTemplateNodeInfoResponse, error) {
	node, err := g.Template()
	if err != nil {
		return nil, fmt.Errorf("no template: %w", err)
	}
	bytes, err := node.Marshal()
	if err != nil {
		return nil, fmt.Errorf("no template: encoding the Node of group %s: %w", g.ID, err)
	}
	// Up to 1.33 only field 1 is read, from 1.35 only field 2.
	return &proto.NodeGroupTemplateNodeInfoResponse{NodeInfo: bytes, NodeBytes: bytes}, nil
}

// NewNode makes a Node of a group as the template promises it.
func (s *Server) NewNode(group, name, providerID string) (*corev1.Node, error) {
	g, ok := s.current.Load().groups[group]
	if !ok {
		return nil, unknownGroup(group)
	}
	return g.NewNode(name, providerID)
}
