package aws

import (
	"context"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gpu-node-provider/proto"
)

const (
	creating = proto.InstanceStatus_instanceCreating
	running  = proto.InstanceStatus_instanceRunning
	deleting = proto.InstanceStatus_instanceDeleting
)

// outOfResources is the class of missing capacity, other that of a fault that repeats.
const (
	outOfResources = 1
	other          = 99
)

func (w *world) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(w.t.Context(), d)
	w.t.Cleanup(cancel)
	return ctx
}

func (w *world) refresh() {
	w.t.Helper()
	require.NoError(w.t, w.tryRefresh())
}

func (w *world) tryRefresh() error {
	_, err := w.Refresh(w.t.Context(), &proto.RefreshRequest{})
	return err
}

// trainGroup is what NodeGroups says of train.
func (w *world) trainGroup() *proto.NodeGroup {
	w.t.Helper()
	r, err := w.NodeGroups(w.t.Context(), &proto.NodeGroupsRequest{})
	require.NoError(w.t, err)
	for _, g := range r.GetNodeGroups() {
		if g.GetId() == train {
			return g
		}
	}
	require.FailNow(w.t, "train is not listed")
	return nil
}

func (w *world) instances(id string) []*proto.Instance {
	w.t.Helper()
	r, err := w.NodeGroupNodes(w.t.Context(), &proto.NodeGroupNodesRequest{Id: id})
	require.NoError(w.t, err)
	return r.GetInstances()
}

// states are a group's instances by state, in the order of the answer.
func (w *world) states(id string) map[proto.InstanceStatus_InstanceState][]string {
	w.t.Helper()
	states := map[proto.InstanceStatus_InstanceState][]string{}
	for _, i := range w.instances(id) {
		state := i.GetStatus().GetInstanceState()
		states[state] = append(states[state], i.GetId())
	}
	return states
}

// size is the target, which has to be what is listed and does not go (B-07).
func (w *world) size(id string) int {
	w.t.Helper()
	r, err := w.NodeGroupTargetSize(w.t.Context(), &proto.NodeGroupTargetSizeRequest{Id: id})
	require.NoError(w.t, err)
	states := w.states(id)
	require.EqualValues(w.t, len(states[creating])+len(states[running]), r.GetTargetSize(), "target of %s", id)
	return int(r.GetTargetSize())
}

// placeholders are the ids of a group's.
func (w *world) placeholders(id string) (ids []string) {
	w.t.Helper()
	for _, i := range w.instances(id) {
		if strings.Contains(i.GetId(), "/i-placeholder-") {
			ids = append(ids, i.GetId())
		}
	}
	return ids
}

func (w *world) tryIncrease(ctx context.Context, id string, delta int) error {
	_, err := w.NodeGroupIncreaseSize(ctx, &proto.NodeGroupIncreaseSizeRequest{Id: id, Delta: int32(delta)})
	return err
}

func (w *world) increase(id string, delta int) {
	w.t.Helper()
	require.NoError(w.t, w.tryIncrease(w.t.Context(), id, delta))
}

func (w *world) tryDecrease(delta int) error {
	_, err := w.NodeGroupDecreaseTargetSize(w.t.Context(), &proto.NodeGroupDecreaseTargetSizeRequest{Id: train, Delta: int32(delta)})
	return err
}

func (w *world) tryDelete(ctx context.Context, id string, nodes ...*proto.ExternalGrpcNode) error {
	_, err := w.NodeGroupDeleteNodes(ctx, &proto.NodeGroupDeleteNodesRequest{Id: id, Nodes: nodes})
	return err
}

func (w *world) delete(nodes ...*proto.ExternalGrpcNode) {
	w.t.Helper()
	require.NoError(w.t, w.tryDelete(w.t.Context(), train, nodes...))
}

func (w *world) groupOf(node *proto.ExternalGrpcNode) string {
	w.t.Helper()
	r, err := w.NodeGroupForNode(w.t.Context(), &proto.NodeGroupForNodeRequest{Node: node})
	require.NoError(w.t, err, "%v", node)
	return r.GetNodeGroup().GetId()
}

// code fails unless the call ended with it, and returns the text.
func (w *world) code(want codes.Code, err error) string {
	w.t.Helper()
	require.Equal(w.t, want.String(), status.Code(err).String(), "%v", err)
	return status.Convert(err).Message()
}

// desired is what AWS is asked for.
func (w *world) desired() int { return w.stub.Group(train).Desired }

// machine is the provider id of an instance of the Stub's.
func machine(instance string) string { return "aws:///us-east-1a/" + instance }

// nodes are registered Nodes as Cluster Autoscaler sends them.
func nodes(ids ...string) (all []*proto.ExternalGrpcNode) {
	for _, id := range ids {
		all = append(all, &proto.ExternalGrpcNode{ProviderID: id, Name: id[strings.LastIndex(id, "/")+1:]})
	}
	return all
}

// fakes are its stand-ins for instances without a Node.
func fakes(ids ...string) (all []*proto.ExternalGrpcNode) {
	for _, id := range ids {
		all = append(all, &proto.ExternalGrpcNode{
			ProviderID: id, Name: id, Annotations: map[string]string{"k8s.io/cluster-autoscaler/fake-node-reason": "create-error"},
		})
	}
	return all
}
