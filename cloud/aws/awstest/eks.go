package awstest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// NodeGroup is a managed node group of Amazon EKS, as DescribeNodegroup returns it:
// https://docs.aws.amazon.com/eks/latest/APIReference/API_DescribeNodegroup.html
type NodeGroup struct {
	Cluster, Name string
	CapacityType  string // ON_DEMAND or SPOT
	Labels, Tags  map[string]string
	Taints        []NodeGroupTaint
}

// NodeGroupTaint has an effect of EKS, such as NO_SCHEDULE.
type NodeGroupTaint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
}

// SetNodeGroup adds a managed node group, or replaces one.
func (s *Stub) SetNodeGroup(g NodeGroup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodeGroups[g.Cluster+"/"+g.Name] = g
}

// readEKS reads a call of EKS, whose actions are paths.
func readEKS(r *http.Request) (req request, ok bool) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if len(parts) != 4 || parts[0] != "clusters" || parts[2] != "node-groups" {
		return request{}, false
	}
	return request{service: eks, action: "DescribeNodegroup", params: map[string]string{"ClusterName": parts[1], "NodegroupName": parts[3]}}, true
}

func (s *Stub) nodeGroup(r request) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, ok := s.nodeGroups[r.str("ClusterName")+"/"+r.str("NodegroupName")]
	if !ok {
		return refuse(r.service, &Error{http.StatusNotFound, "ResourceNotFoundException", fmt.Sprintf("No node group found for name: %s.", r.str("NodegroupName"))})
	}
	body, err := json.Marshal(map[string]any{"nodegroup": map[string]any{
		"clusterName": g.Cluster, "nodegroupName": g.Name, "capacityType": g.CapacityType, "labels": g.Labels, "taints": g.Taints, "tags": g.Tags, "status": "ACTIVE",
	}})
	if err != nil {
		panic(err) // strings always marshal
	}
	return answer{status: http.StatusOK, contentType: contentJSON, body: body}
}
