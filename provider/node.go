package provider

import (
	"context"

	"gpu-node-provider/proto"
	"gpu-node-provider/provider/cluster"
	"gpu-node-provider/provider/nodegroup"
)

// notOurs is the answer for nodes of no group. It is not an error: one error
// here stops all scale-up (cluster-autoscaler/resourcequotas/usage.go, 1.36).
var notOurs = &proto.NodeGroupForNodeResponse{NodeGroup: &proto.NodeGroup{}}

// NodeGroupForNode places a node by its provider id, real or one of Cluster
// Autoscaler's fakes. A node whose instance is gone keeps its group as long as
// Cluster Autoscaler is deleting it; after a restart, by its label.
func (s *Server) NodeGroupForNode(_ context.Context, req *proto.NodeGroupForNodeRequest) (*proto.NodeGroupForNodeResponse, error) {
	if req.GetNode() == nil {
		return nil, toStatus(invalid("the request has no node"))
	}
	now := s.current.Load()
	if g := s.groupOf(now, req.GetNode()); g != nil && !s.outlivesMachine(now, req.GetNode()) {
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

// outlivesMachine is true for a Node whose machine is being deleted or is gone, and
// not by Cluster Autoscaler. Were it still in its group, it would fill the place of its
// replacement: nodes that are upcoming are counted as target less Ready and Unready
// ones (cluster-autoscaler/clusterstate/clusterstate.go, GetUpcomingNodes), and the
// Pods that wait for the replacement would get another machine. Cluster Autoscaler
// itself knows a Node that it deletes by its taint.
//
// A Node that is younger than the reading of the cloud may be of a machine that is
// not in it yet. A fake has no Node of its name.
func (s *Server) outlivesMachine(now *snapshot, node *proto.ExternalGrpcNode) bool {
	id := node.GetProviderID()
	if _, listed := now.owner[id]; s.cluster == nil || listed && !now.deleting[id] {
		return false
	}
	known, ok := s.cluster.NodeNamed(node.GetName())
	return ok && known.Spec.ProviderID == id && known.CreationTimestamp.Time.Before(now.taken) && !cluster.Drained(known)
}
