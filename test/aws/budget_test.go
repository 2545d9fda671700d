package aws

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/proto"
)

// TestCallsOfARefreshInterval: 1,000 groups and 10,000 instances cost 10 calls an
// interval, however often Cluster Autoscaler goes round, and reads cost none.
func TestCallsOfARefreshInterval(t *testing.T) {
	t.Parallel()
	const groups, each, interval = 1000, 10, 30 * time.Second
	stub := awstest.NewStub(t)
	var file []string
	for n := range groups {
		id := fmt.Sprintf("g%04d", n)
		stub.CreateGroup(awstest.Group{Name: id, Max: 20, Desired: each})
		file = append(file, group(id))
	}
	stub.Settle()
	w := serve(t, stub, setup{groups: file, readEvery: interval})
	for range 2 {
		stub.Advance(interval)
		before := stub.Counts()
		w.refresh()
		w.round(t, groups, each)
		for range 2 { // loops of Cluster Autoscaler, 10 s each
			stub.Advance(interval/3 - time.Second)
			w.refresh()
		}
		after := stub.Counts()
		for action, n := range before {
			if after[action] -= n; after[action] == 0 {
				delete(after, action)
			}
		}
		require.Equal(t, map[string]int{describe: groups / 100}, after)
	}
}

// round is what Cluster Autoscaler asks in one loop.
func (w *world) round(t *testing.T, groups, each int) {
	list, err := w.NodeGroups(t.Context(), &proto.NodeGroupsRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetNodeGroups(), groups)
	var calls errgroup.Group
	calls.SetLimit(8)
	for _, g := range list.GetNodeGroups() {
		calls.Go(func() error { return w.ofGroup(g.GetId(), each) })
	}
	require.NoError(t, calls.Wait())
}

// ofGroup asks about one group and all of its nodes.
func (w *world) ofGroup(id string, each int) error {
	ctx := w.t.Context()
	target, err := w.NodeGroupTargetSize(ctx, &proto.NodeGroupTargetSizeRequest{Id: id})
	if err != nil || int(target.GetTargetSize()) != each {
		return fmt.Errorf("target of %s: %v, %w", id, target, err)
	}
	if _, err := w.NodeGroupTemplateNodeInfo(ctx, &proto.NodeGroupTemplateNodeInfoRequest{Id: id}); err != nil {
		return err
	}
	list, err := w.NodeGroupNodes(ctx, &proto.NodeGroupNodesRequest{Id: id})
	if err != nil || len(list.GetInstances()) != each {
		return fmt.Errorf("instances of %s: %v, %w", id, list, err)
	}
	for _, i := range list.GetInstances() {
		owner, err := w.NodeGroupForNode(ctx, &proto.NodeGroupForNodeRequest{Node: nodes(i.GetId())[0]})
		if err != nil || owner.GetNodeGroup().GetId() != id {
			return fmt.Errorf("group of %s: %v, %w", i.GetId(), owner, err)
		}
	}
	return nil
}
