package aws

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"

	"gpu-node-provider/provider"
	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/nodegroup"
)

// live returns the running machines of train.
func (w *world) live() []string {
	w.t.Helper()
	w.refresh()
	return w.states(train)[running]
}

// TestCP02MachinesWithoutANode: in a discovered group, an instance without a Node is ended only
// if an IncreaseSize of this process asked for it. One with a Node is not concerned.
func TestCP02MachinesWithoutANode(t *testing.T) {
	w := serve(t, trained(t, 2, protected), setup{discovered: true})
	before := w.live()
	require.Contains(t, w.code(codes.FailedPrecondition, w.tryDelete(t.Context(), train, fakes(before...)...)), "this provider has not asked for it")
	require.Equal(t, 2, w.desired())

	// Three are asked for, one of them is cancelled, and a person asks for another.
	w.stub.Capacity(train, 2, noCapacity)
	w.increase(train, 3)
	w.stub.Settle()
	w.refresh()
	require.NoError(t, w.tryDecrease(-1))
	w.stub.Capacity(train, -1, "")
	w.live()
	w.stub.SetDesired(train, 5)
	w.stub.Settle()
	all := w.live()
	require.Len(t, all, 5)
	require.Contains(t, w.code(codes.FailedPrecondition, w.tryDelete(t.Context(), train, fakes(all...)...)), "the other nodes were deleted; kept ")
	require.Equal(t, 3, w.desired())
	w.stub.Settle()
	require.Subset(t, w.live(), before)
	w.delete(nodes(before[0])...)
	require.Equal(t, 2, w.desired())
}

// TestCP02MachinesWithoutANodeOfAListedGroup: what the file lists is this cluster's, so broken
// user data is not billed for ever.
func TestCP02MachinesWithoutANodeOfAListedGroup(t *testing.T) {
	w := serve(t, trained(t, 2, protected), setup{})
	w.delete(fakes(w.live()...)...)
	require.Zero(t, w.desired())
}

// A machine that a person (or another cluster) added is in the reading by which an
// IncreaseSize decides, so it was there before anything was asked for. It must not be taken
// for the machine that was asked for.
func TestCP02MachineThatWasThereBeforeTheIncreaseIsNotOurs(t *testing.T) {
	w := serve(t, trained(t, 0, protected), setup{discovered: true})
	w.refresh()
	w.stub.SetDesired(train, 1)
	w.stub.Settle()
	stranger := machine(w.stub.Group(train).IDs("InService")[0])
	w.increase(train, 2) // the snapshot is older than the stranger, the reading of the write is not
	w.stub.Settle()
	require.Contains(t, w.live(), stranger)
	require.Error(t, w.tryDelete(t.Context(), train, fakes(stranger)...), "nobody here asked for it")
	require.Contains(t, w.live(), stranger, "a machine of another cluster was ended")
}

// A unit that was asked for and was then taken back by a person is not expected any more: a
// machine that comes later is somebody else's.
func TestCP02UnitTakenBackOutsideIsNotExpectedForEver(t *testing.T) {
	w := serve(t, trained(t, 0, protected), setup{discovered: true})
	w.stub.Capacity(train, 0, noCapacity)
	w.increase(train, 1)
	w.refresh()
	w.stub.SetDesired(train, 0) // the person gives it up at AWS
	w.refresh()
	w.stub.Advance(24 * time.Hour)
	w.refresh()
	require.Zero(t, w.size(train))
	w.stub.Capacity(train, -1, "")
	w.stub.SetDesired(train, 1) // the other cluster's autoscaler
	w.stub.Settle()
	stranger := w.live()[0]
	require.Error(t, w.tryDelete(t.Context(), train, fakes(stranger)...), "nobody here asked for it")
	require.Equal(t, []string{stranger}, w.live(), "a machine of another cluster was ended")
}

// A machine that AWS launched in the place of one that was asked for (health check of broken
// user data) is billed for ever.
func TestCP02ReplacementOfAMachineThatWasAskedForMayGo(t *testing.T) {
	w := serve(t, trained(t, 0, protected), setup{discovered: true})
	w.increase(train, 1)
	w.stub.Settle()
	broken := w.live()
	require.Len(t, broken, 1)
	w.stub.End(w.stub.Group(train).IDs("InService")[0], "found unhealthy")
	w.stub.Settle()
	again := w.live()
	require.Len(t, again, 1)
	require.NotEqual(t, broken, again)
	require.NoError(t, w.tryDelete(t.Context(), train, fakes(again...)...))
}

// A group that is in no file and not discovered any more is kept as retired. Its machines
// without a Node were not asked for by this process either.
func TestCP02MachinesWithoutANodeOfADroppedGroup(t *testing.T) {
	w := serve(t, trained(t, 2, protected), setup{discovered: true})
	c, err := config.Parse([]byte("apiVersion: gpu-node-provider.io/v1\nkind: ProviderConfig\ncloud: {aws: {region: us-east-1}}\n" +
		"kubernetes: {kubeconfig: not-used}\nredis: {addresses: [\"127.0.0.1:1\"]}\nnodeGroups: [" + group("other") + "]\n"))
	require.NoError(t, err)
	c.NodeGroups = []config.NodeGroup{nodegroup.Dropped(c, "old", train, nil)} // what keepDropped makes at a start
	w.server, err = provider.New(t.Context(), provider.Options{
		Catalogue: nodegroup.New(c, w.cloud.TemplateID), Backend: w.cloud, Log: zap.NewNop(), Now: w.stub.Now,
	})
	require.NoError(t, err)
	w.listen()
	require.Error(t, w.tryDelete(t.Context(), "old", fakes(w.states("old")[running]...)...), "nobody here asked for them")
	require.Equal(t, 2, w.desired(), "machines that may be another cluster's were ended")
}

// A change from outside that two readings of one write see is one change.
func TestOutsideChangeIsToldOnceAWrite(t *testing.T) {
	w := serve(t, trained(t, 2, protected), setup{})
	gone := w.live()[0]
	w.delete(nodes(gone)...)
	w.stub.Capacity(train, 0, noCapacity)
	w.increase(train, 1)
	w.stub.Settle()
	w.stub.Advance(2 * time.Minute)
	w.refresh()
	w.refresh()
	before := w.metric("gpu_node_provider_capacity_changed_outside_total")
	w.stub.SetDesired(train, 3) // a person
	_ = w.tryDelete(t.Context(), train, nodes(w.placeholders(train)[0], gone)...)
	require.InDelta(t, before+1, w.metric("gpu_node_provider_capacity_changed_outside_total"), 0)
}
