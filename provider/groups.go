package provider

import (
	"context"

	"gpu-node-provider/proto"
)

// NodeGroups lists all node groups with the sizes they may have now. It never
// fails and is never empty: Cluster Autoscaler takes an empty list for the
// truth and forgets its scale-ups (cluster-autoscaler/clusterstate, 1.36).
func (s *Server) NodeGroups(context.Context, *proto.NodeGroupsRequest) (*proto.NodeGroupsResponse, error) {
	now := s.current.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.announceLocked(now)
	return now.nodeGroups, nil
}

// announceLocked notes the growth that Cluster Autoscaler is about to plan with.
func (s *Server) announceLocked(now *snapshot) {
	if s.told == now {
		return
	}
	s.told = now
	for _, g := range now.order {
		record := s.recordLocked(g.ID)
		record.announced, record.invited = g.max-g.state.Target, g.max > g.state.Target+g.limit.Room
	}
}
