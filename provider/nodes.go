package provider

import (
	"context"

	"gpu-node-provider/cloud"
	"gpu-node-provider/proto"
)

// NodeGroupNodes lists instances and placeholders of a group.
func (s *Server) NodeGroupNodes(_ context.Context, req *proto.NodeGroupNodesRequest) (*proto.NodeGroupNodesResponse, error) {
	g, ok := s.current.Load().groups[req.GetId()]
	if !ok {
		return nil, toStatus(unknownGroup(req.GetId()))
	}
	return g.nodes, nil
}

// Cluster Autoscaler knows these two classes and no other
// (cluster-autoscaler/cloudprovider/cloud_provider.go, InstanceErrorClass).
const (
	classOutOfResources = 1
	classOther          = 99
)

// maxErrorMessage keeps a group of thousands of failed placeholders within the
// client's limit of 4 MiB a message.
const maxErrorMessage = 300

func nodesResponse(instances []cloud.Instance) *proto.NodeGroupNodesResponse {
	response := &proto.NodeGroupNodesResponse{Instances: make([]*proto.Instance, 0, len(instances))}
	for _, i := range instances {
		response.Instances = append(response.Instances, &proto.Instance{Id: i.ID, Status: instanceStatus(i)})
	}
	return response
}

func instanceStatus(i cloud.Instance) *proto.InstanceStatus {
	switch i.State {
	case cloud.Running:
		return &proto.InstanceStatus{InstanceState: proto.InstanceStatus_instanceRunning}
	case cloud.Deleting:
		return &proto.InstanceStatus{InstanceState: proto.InstanceStatus_instanceDeleting}
	case cloud.Creating:
		return &proto.InstanceStatus{InstanceState: proto.InstanceStatus_instanceCreating, ErrorInfo: errorInfo(i.Error)}
	default:
		// What is not known may not be taken for running, nor for gone.
		return &proto.InstanceStatus{InstanceState: proto.InstanceStatus_instanceCreating}
	}
}

func errorInfo(e *cloud.LaunchError) *proto.InstanceErrorInfo {
	if e == nil {
		return nil
	}
	code := e.Code
	if code == "" { // an error without a code is no error to Cluster Autoscaler
		code = cloud.Other
	}
	class := int32(classOther)
	if code.OutOfResources() {
		class = classOutOfResources
	}
	return &proto.InstanceErrorInfo{ErrorCode: string(code), ErrorMessage: shorten(e.Message, maxErrorMessage), InstanceErrorClass: class}
}

// sameAnswer says whether two instances look the same in a response.
func sameAnswer(a, b cloud.Instance) bool {
	if a.ID != b.ID || a.State != b.State || (a.Error == nil) != (b.Error == nil) {
		return false
	}
	return a.Error == nil || *a.Error == *b.Error
}
