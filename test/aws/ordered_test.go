package aws

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
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
