package conformance

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"gpu-node-provider/proto"
)

// groupLabel is on every node of a group and says which.
const groupLabel = "gpu-node-provider.io/node-group"

const (
	creating = proto.InstanceStatus_instanceCreating
	running  = proto.InstanceStatus_instanceRunning
	deleting = proto.InstanceStatus_instanceDeleting
)

// groupToChange is the node group that tests may change on a server elsewhere.
func groupToChange() string {
	if remoteAddress() == "" {
		return ""
	}
	return os.Getenv("CONFORMANCE_GROUP")
}

// within is a context that ends after d.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// code fails unless the call ended with the code, and returns its text.
func code(t *testing.T, want codes.Code, err error) string {
	t.Helper()
	require.Equal(t, want.String(), status.Code(err).String(), "%v", err)
	return status.Convert(err).Message()
}

func (s *server) refresh(t *testing.T) {
	t.Helper()
	_, err := s.Refresh(t.Context(), &proto.RefreshRequest{})
	require.NoError(t, err)
}

func (s *server) nodeGroups(t *testing.T) []*proto.NodeGroup {
	t.Helper()
	r, err := s.NodeGroups(t.Context(), &proto.NodeGroupsRequest{})
	require.NoError(t, err)
	return r.GetNodeGroups()
}

func (s *server) nodeGroup(t *testing.T, id string) *proto.NodeGroup {
	t.Helper()
	for _, g := range s.nodeGroups(t) {
		if g.GetId() == id {
			return g
		}
	}
	require.FailNow(t, "no node group "+id)
	return nil
}

func (s *server) max(t *testing.T, id string) int {
	t.Helper()
	return int(s.nodeGroup(t, id).GetMaxSize())
}

func (s *server) target(t *testing.T, id string) int {
	t.Helper()
	r, err := s.NodeGroupTargetSize(t.Context(), &proto.NodeGroupTargetSizeRequest{Id: id})
	require.NoError(t, err)
	return int(r.GetTargetSize())
}

func (s *server) instances(t *testing.T, id string) []*proto.Instance {
	t.Helper()
	r, err := s.NodeGroupNodes(t.Context(), &proto.NodeGroupNodesRequest{Id: id})
	require.NoError(t, err)
	return r.GetInstances()
}

// ids are the ids of a group's instances in one of the states, or in any.
func (s *server) ids(t *testing.T, id string, states ...proto.InstanceStatus_InstanceState) []string {
	t.Helper()
	ids := []string{}
	for _, i := range s.instances(t, id) {
		if len(states) == 0 || slices.Contains(states, i.GetStatus().GetInstanceState()) {
			ids = append(ids, i.GetId())
		}
	}
	return ids
}

// size is the target, after a look at whether the list of instances says the
// same. Two calls can see two snapshots, so the target is read on both sides.
func (s *server) size(t *testing.T, id string) int {
	t.Helper()
	for {
		target := s.target(t, id)
		counted := len(s.ids(t, id, creating, running))
		if s.target(t, id) == target {
			require.Equal(t, target, counted, "TargetSize of %s against the instances that are not deleting", id)
			return target
		}
	}
}

func (s *server) tryIncrease(ctx context.Context, id string, delta int) error {
	_, err := s.NodeGroupIncreaseSize(ctx, &proto.NodeGroupIncreaseSizeRequest{Id: id, Delta: int32(delta)})
	return err
}

func (s *server) increase(t *testing.T, id string, delta int) {
	t.Helper()
	require.NoError(t, s.tryIncrease(t.Context(), id, delta))
}

func (s *server) tryDecrease(ctx context.Context, id string, delta int) error {
	_, err := s.NodeGroupDecreaseTargetSize(ctx, &proto.NodeGroupDecreaseTargetSizeRequest{Id: id, Delta: int32(delta)})
	return err
}

func (s *server) tryDelete(ctx context.Context, id string, nodes ...*proto.ExternalGrpcNode) error {
	_, err := s.NodeGroupDeleteNodes(ctx, &proto.NodeGroupDeleteNodesRequest{Id: id, Nodes: nodes})
	return err
}

func (s *server) delete(t *testing.T, id string, nodes ...*proto.ExternalGrpcNode) {
	t.Helper()
	require.NoError(t, s.tryDelete(t.Context(), id, nodes...))
}

// groupFor asks which group a node belongs to, which is never an error.
func (s *server) groupFor(t *testing.T, node *proto.ExternalGrpcNode) *proto.NodeGroup {
	t.Helper()
	r, err := s.NodeGroupForNode(t.Context(), &proto.NodeGroupForNodeRequest{Node: node})
	require.NoError(t, err, "%v", node)
	return r.GetNodeGroup()
}

// newAutoscaler is what a new Cluster Autoscaler process does first.
func (s *server) newAutoscaler(t *testing.T) string {
	t.Helper()
	r, err := s.GPULabel(t.Context(), &proto.GPULabelRequest{})
	require.NoError(t, err)
	return r.GetLabel()
}

// template is a group's template Node.
func (s *server) template(t *testing.T, id string) *corev1.Node {
	t.Helper()
	r, err := s.NodeGroupTemplateNodeInfo(t.Context(), &proto.NodeGroupTemplateNodeInfoRequest{Id: id})
	require.NoError(t, err)
	node := &corev1.Node{}
	require.NoError(t, node.Unmarshal(r.GetNodeBytes()))
	return node
}

// grown grows the group by n and returns the ids that came. They go again after
// the test, so that a server elsewhere is left as it was.
func (s *server) grown(t *testing.T, n int) []string {
	t.Helper()
	if s.process == nil {
		s.waitForRoom(t, n)
	}
	before := s.ids(t, s.id)
	target := s.target(t, s.id)
	t.Cleanup(func() { s.shrink(t, before) })
	s.increase(t, s.id, n)
	require.Equal(t, target+n, s.target(t, s.id))
	return slices.DeleteFunc(s.ids(t, s.id), func(id string) bool { return slices.Contains(before, id) })
}

// shrink removes what was not there before.
func (s *server) shrink(t *testing.T, before []string) {
	if s.process != nil {
		return // it ends with the test
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := s.NodeGroupNodes(ctx, &proto.NodeGroupNodesRequest{Id: s.id})
	require.NoError(t, err)
	var extra []*proto.ExternalGrpcNode
	for _, i := range r.GetInstances() {
		if !slices.Contains(before, i.GetId()) {
			extra = append(extra, fake(i.GetId(), ""))
		}
	}
	require.NoError(t, s.tryDelete(ctx, s.id, extra...))
}

// waitForRoom waits until the group may grow: what was deleted last may still
// count, and what was asked for last may still be in a surge window.
func (s *server) waitForRoom(t *testing.T, n int) {
	t.Helper()
	room := poll(patience, func() bool {
		s.refresh(t)
		return s.max(t, s.id) >= s.target(t, s.id)+n
	})
	if !room {
		t.Skipf("the group has no room for %d nodes: %v", n, s.nodeGroup(t, s.id))
	}
}

// node is a registered Node as Cluster Autoscaler sends it.
func node(id string) *proto.ExternalGrpcNode {
	return &proto.ExternalGrpcNode{
		ProviderID: id, Name: id[strings.LastIndex(id, "/")+1:],
		Labels:      map[string]string{"kubernetes.io/os": "linux", "accelerator": "nvidia-tesla-t4"},
		Annotations: map[string]string{"node.alpha.kubernetes.io/ttl": "0"},
	}
}

// fake is Cluster Autoscaler's stand-in for an instance without a Node.
func fake(id, reason string) *proto.ExternalGrpcNode {
	return &proto.ExternalGrpcNode{
		ProviderID: id, Name: id,
		Annotations: map[string]string{"k8s.io/cluster-autoscaler/fake-node-reason": reason},
	}
}

func fakes(reason string, ids ...string) []*proto.ExternalGrpcNode {
	all := make([]*proto.ExternalGrpcNode, 0, len(ids))
	for _, id := range ids {
		all = append(all, fake(id, reason))
	}
	return all
}

func nodes(ids ...string) []*proto.ExternalGrpcNode {
	all := make([]*proto.ExternalGrpcNode, 0, len(ids))
	for _, id := range ids {
		all = append(all, node(id))
	}
	return all
}
