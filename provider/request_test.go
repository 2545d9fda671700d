package provider

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/cloudtest"
	"gpu-node-provider/cloud/simulated"
	"gpu-node-provider/proto"
	"gpu-node-provider/provider/cluster"
	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/nodegroup"
)

// fleet is a provider, its cloud, and a cluster whose Nodes are put there by hand.
type fleet struct {
	*testing.T
	s     *Server
	clock *clocktesting.FakeClock
	cloud *simulated.Cloud
	known cluster.Memory
}

func newFleet(t *testing.T) *fleet {
	clock := newClock()
	view, known := cluster.NewMemory(fake.NewClientset(), &record.FakeRecorder{})
	c := testConfig()
	c.NodeGroups[0].MaxSize = 20
	pretend := newTestCloud(t, clock.Now)
	return &fleet{
		T: t, clock: clock, cloud: pretend, known: known,
		s: start(t, Options{Catalogue: catalogue(c), Backend: pretend, Cluster: view, Now: clock.Now}),
	}
}

// running has n machines in t4, each with a Node that takes Pods.
func (f *fleet) running(n int) (ids []string) {
	f.buy(n, n)
	f.clock.Step(2 * bootDelay)
	f.read()
	for _, i := range f.group().state.Instances {
		f.node(i.ID)
		ids = append(ids, i.ID)
	}
	f.clock.Step(time.Second) // the next reading is later than the Nodes
	f.read()
	require.Zero(f, f.group().inFlight)
	return ids
}

func (f *fleet) node(id string, taints ...corev1.Taint) {
	require.NoError(f, f.known.Put(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-of-" + id, CreationTimestamp: metav1.NewTime(f.clock.Now())},
		Spec:       corev1.NodeSpec{ProviderID: id, Taints: taints},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}))
}

func (f *fleet) group() *groupView { return f.s.current.Load().groups["t4"] }

func (f *fleet) read() { require.NoError(f, f.s.refresh(f.Context())) }

// buy increases t4 and requires by how much its target rises.
func (f *fleet) buy(delta, want int) {
	f.Helper()
	before := targetOfT4(f, f.s)
	require.NoError(f, increase(f.s, "t4", delta))
	require.Equal(f, before+want, targetOfT4(f, f.s), "target after an increase by %d", delta)
}

// groupFor is the group that Cluster Autoscaler is told for a node.
func (f *fleet) groupFor(name, id string) string {
	r, err := f.s.NodeGroupForNode(f.Context(), &proto.NodeGroupForNodeRequest{Node: &proto.ExternalGrpcNode{
		Name: name, ProviderID: id, Labels: map[string]string{nodegroup.Label: "t4"},
	}})
	require.NoError(f, err)
	return r.GetNodeGroup().GetId()
}

// Machines that the cloud replaces by itself are not bought again, and what is really
// needed is, by the next call at the latest.
func TestCP01ReplacedMachinesAreNotBoughtAgain(t *testing.T) {
	f := newFleet(t)
	ids := f.running(6)
	for _, id := range ids[:2] { // a spot wave of a third of the group
		require.NoError(t, f.cloud.Interrupt(t.Context(), id))
	}
	f.read()
	require.Equal(t, 2, f.group().unrequested)
	f.buy(1, 0)
	require.Zero(t, f.group().unrequested, "an answer of OK opens a request")
	f.buy(1, 1)
}

func TestCP01OnlyWhatExceedsCapacityInFlightIsBought(t *testing.T) {
	f := newFleet(t)
	require.NoError(t, f.cloud.Interrupt(t.Context(), f.running(3)[0]))
	f.buy(3, 2)
	f.buy(1, 1)
}

// The reading of the increase counts, not the last snapshot.
func TestCP01TargetRaisedByAnOperatorIsNotBoughtAgain(t *testing.T) {
	f := newFleet(t)
	_, err := f.cloud.Increase(t.Context(), "t4", cloudtest.Exactly(2))
	require.NoError(t, err)
	require.NoError(t, increase(f.s, "t4", 2))
	require.Equal(t, 2, targetOfT4(t, f.s))
	f.buy(2, 2)
}

// While capacity in flight has no open request, Cluster Autoscaler must be able to ask.
func TestCP01MaximumLetsClusterAutoscalerAsk(t *testing.T) {
	f := newFleet(t)
	id := f.running(20)[0]
	require.Equal(t, 20, f.group().max)
	require.NoError(t, f.cloud.Interrupt(t.Context(), id))
	f.read()
	require.Equal(t, 21, f.group().max)
	f.buy(1, 0)
	require.Equal(t, 20, f.group().max)
}

func TestCP01MaximumOfARetiredGroupStays(t *testing.T) {
	f := newFleet(t)
	id := f.running(2)[0]
	c := testConfig()
	c.NodeGroups[0].Retired = true
	require.NoError(t, f.s.Reload(t.Context(), catalogue(c)))
	require.NoError(t, f.cloud.Interrupt(t.Context(), id))
	f.read()
	require.Equal(t, 1, f.group().unrequested)
	require.Equal(t, 2, f.group().max)
}

func TestCP01RequestEnds(t *testing.T) {
	for name, row := range map[string]struct {
		happens func(f *fleet)
		ended   ending
	}{
		"when a new autoscaler process appears": {func(f *fleet) { f.s.autoscalerIsNew() }, endedNewAutoscaler},
		"when a launch fails": {func(f *fleet) {
			f.cloud.SetCapacity("t4", 0)
			f.buy(1, 1)
			f.clock.Step(2 * time.Second) // the launch has failed, the machine of before boots
			f.read()
		}, endedLaunchFailed},
		"when Cluster Autoscaler gives it up": {func(f *fleet) {
			_, err := f.s.NodeGroupGetOptions(f.Context(), &proto.NodeGroupAutoscalingOptionsRequest{
				Id: "t4", Defaults: &proto.NodeGroupAutoscalingOptions{MaxNodeProvisionDuration: durationpb.New(time.Minute)},
			})
			require.Error(f, err, "there are no overrides")
			f.buy(1, 1)
			f.clock.Step(time.Minute) // the machines still boot, and their Nodes are not there
			f.read()
		}, endedExpired},
		"when the answer is not read": {func(f *fleet) {
			ctx, cancel := context.WithCancel(f.Context())
			f.s.backend = &scripted{Backend: f.cloud, increase: func(_ context.Context, g cloud.Group, err error) (cloud.Group, error) {
				cancel()
				return g, err
			}}
			_, err := f.s.NodeGroupIncreaseSize(ctx, &proto.NodeGroupIncreaseSizeRequest{Id: "t4", Delta: 1})
			require.Error(f, err)
			f.s.backend = f.cloud
		}, endedUnreadAnswer},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			f.buy(1, 1)
			require.Zero(t, f.group().unrequested)
			row.happens(f)
			require.Equal(t, row.ended, f.s.groups["t4"].request.ended)
			require.NotZero(t, f.group().unrequested)
			f.buy(1, 0)
			f.buy(1, 1)
		})
	}
}

// A Node that stays while its machine is replaced must not fill the place of the
// replacement.
func TestCP01NodeOfAReplacedMachineHasNoGroup(t *testing.T) {
	f := newFleet(t)
	id := f.running(1)[0]
	name := "node-of-" + id
	require.Equal(t, "t4", f.groupFor(name, id))
	require.NoError(t, f.cloud.Interrupt(t.Context(), id))
	f.read()
	require.Empty(t, f.groupFor(name, id))
	require.Equal(t, "t4", f.groupFor(id, id), "a fake is answered by its id")
	require.Equal(t, "t4", f.groupFor("template-node-for-t4-1-upcoming-0", id), "a fake is answered by its id")

	f.node(id, corev1.Taint{Key: cluster.ToBeDeleted, Effect: corev1.TaintEffectNoSchedule})
	require.Equal(t, "t4", f.groupFor(name, id), "Cluster Autoscaler itself is deleting it")

	younger := "simulated:///t4/t4-bcdf2"
	f.clock.Step(time.Second)
	f.node(younger)
	require.Equal(t, "t4", f.groupFor("node-of-"+younger, younger), "its machine may be newer than the snapshot")
	f.clock.Step(time.Second)
	f.read()
	require.Empty(t, f.groupFor("node-of-"+younger, younger), "a reading later than the Node does not list its machine")
}

// A placeholder of which the cloud says nothing fails before Cluster Autoscaler's own
// time is over, so that the group is backed off.
func TestCP12SilentPlaceholderFails(t *testing.T) {
	f := newFleet(t)
	silent, err := simulated.New(simulated.Options{Now: f.clock.Now, LaunchDelay: time.Hour})
	require.NoError(t, err)
	f.s = start(t, Options{Catalogue: catalogue(testConfig()), Backend: silent, Now: f.clock.Now})
	f.buy(1, 1)
	f.clock.Step(defaultProvisionTime*4/5 - time.Second)
	f.read()
	require.Nil(t, f.group().state.Instances[0].Error)
	f.clock.Step(time.Second)
	f.read()
	failed := f.group().nodes.GetInstances()[0].GetStatus().GetErrorInfo()
	require.Equal(t, "UnfulfillableCapacity", failed.GetErrorCode())
	require.Equal(t, "the cloud has not delivered it within 12m0s and gives no reason", failed.GetErrorMessage())
}

// What NodeGroupForNode places by its label alone does not keep other nodes from
// being deleted.
func TestCP13LabelledNodeOfAForgottenMachineIsGone(t *testing.T) {
	f := newFleet(t)
	live := f.running(2)[0]
	forgotten := "simulated:///t4/t4-bcdf2"
	f.s.backend = amnesiac{f.cloud}
	remove := func(labels map[string]string) error {
		_, err := f.s.NodeGroupDeleteNodes(t.Context(), &proto.NodeGroupDeleteNodesRequest{Id: "t4", Nodes: []*proto.ExternalGrpcNode{
			{ProviderID: live, Name: "node-of-" + live}, {ProviderID: forgotten, Name: "old", Labels: labels},
		}})
		return err
	}
	require.ErrorContains(t, remove(nil), "does not belong to node group t4 and never did")
	require.NoError(t, remove(map[string]string{nodegroup.Label: "t4"}))
	require.Equal(t, 1, targetOfT4(t, f.s))
}

// amnesiac is a cloud that has forgotten what is gone.
type amnesiac struct{ cloud.Backend }

func (a amnesiac) Lookup(ctx context.Context, id string, instances []string) ([]cloud.Existence, error) {
	found, err := a.Backend.Lookup(ctx, id, instances)
	for n, e := range found {
		if e == cloud.Gone {
			found[n] = cloud.Foreign
		}
	}
	return found, err
}

// A placeholder that is shown as failed because the cloud is silent is no capacity in
// flight: the snapshot does not count it, so the increase must not be absorbed by it.
func TestCP12SilentPlaceholderAnswersForNothing(t *testing.T) {
	f := newFleet(t)
	silent, err := simulated.New(simulated.Options{Now: f.clock.Now, LaunchDelay: time.Hour})
	require.NoError(t, err)
	f.s = start(t, Options{Catalogue: catalogue(testConfig()), Backend: silent, Now: f.clock.Now})
	f.buy(1, 1)
	f.clock.Step(defaultProvisionTime * 4 / 5)
	f.read()
	require.NotNil(t, f.group().state.Instances[0].Error)
	require.Zero(t, f.group().inFlight)
	before := targetOfT4(t, f.s)
	for range 3 { // as long as the placeholder stays, e.g. at the minimum of its group
		require.NoError(t, increase(f.s, "t4", 1))
	}
	require.Greater(t, targetOfT4(t, f.s), before, "three answers of OK in a row bought nothing")
}

// The maximum is one more than the target so that Cluster Autoscaler can ask. If the machine
// is a usable node by then, the call that was invited is refused, and the group backs off.
func TestCP01CallThatTheMaximumInvitesIsNotRefused(t *testing.T) {
	f := newFleet(t)
	id := f.running(20)[0]
	require.NoError(t, f.cloud.Interrupt(t.Context(), id))
	f.read()
	require.Equal(t, 21, f.group().max)
	f.clock.Step(2 * bootDelay)
	states, err := f.cloud.Describe(t.Context(), "t4")
	require.NoError(t, err)
	_, err = f.s.NodeGroups(t.Context(), &proto.NodeGroupsRequest{})
	require.NoError(t, err)
	for _, i := range states[0].Instances {
		f.node(i.ID)
	}
	require.Equal(t, 21, f.group().max, "this is what Cluster Autoscaler was told last")
	require.NoError(t, increase(f.s, "t4", 1))
}

// A zero is accepted in the file.
func TestCP12ZeroProvisionTimeFailsNoPlaceholderAtOnce(t *testing.T) {
	f := newFleet(t)
	c := testConfig()
	c.NodeGroups[0].ScaleDown.MaxNodeProvisionTime = &config.Duration{}
	f.s = start(t, Options{Catalogue: catalogue(c), Backend: f.cloud, Now: f.clock.Now})
	f.buy(1, 1)
	require.Nil(t, f.group().state.Instances[0].Error)
}
