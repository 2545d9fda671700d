package provider

import (
	"context"

	"gpu-node-provider/proto"
)

// NodeGroups lists all node groups with the sizes they may have now. It never
// fails and is never empty: Cluster Autoscaler takes an empty list for the
// truth and forgets its scale-ups (cluster-autoscaler/clusterstate, 1.36).
func (s *Server) NodeGroups(context.Context, *proto.NodeGroupsRequest) (*proto.NodeGroupsResponse, error) {
	return s.current.Load().nodeGroups, nil
}
