package aws

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/proto"
)

// TestG01CapacityErrorsShowWithinOneRefresh: the last two of five fail. The error
// names AWS's reason, and nothing is rolled back before Cluster Autoscaler has
// seen it (G-02); another group grows meanwhile (D-06).
func TestG01CapacityErrorsShowWithinOneRefresh(t *testing.T) {
	t.Parallel()
	stub := trained(t, 0)
	stub.CreateGroup(awstest.Group{Name: "second", Max: 10})
	w := serve(t, stub, setup{groups: []string{group(train), group("second")}})
	stub.Capacity(train, 3, noCapacity)
	w.increase(train, 5)
	stub.Launch(train, 5)
	w.refresh()
	failed := w.failures(train)
	require.Len(t, failed, 2)
	for _, e := range failed {
		require.Equal(t, "InsufficientInstanceCapacity", e.GetErrorCode())
		require.EqualValues(t, outOfResources, e.GetInstanceErrorClass())
		require.Equal(t, noCapacity, e.GetErrorMessage())
	}
	waiting := w.placeholders(train)
	for range 10 { // G-02: whoever rolls back by himself gets no backoff
		stub.Advance(30 * time.Second)
		stub.Step(train)
		w.refresh()
		require.Equal(t, 5, w.size(train))
		require.Equal(t, 5, w.desired())
		require.Equal(t, waiting, w.placeholders(train))
		require.Len(t, w.failures(train), 2, "it stays told")
	}
	w.increase("second", 2)
	require.Equal(t, 2, stub.Group("second").Desired)

	w.delete(fakes(waiting...)...)
	require.Equal(t, 3, w.desired())
	require.Equal(t, 3, w.size(train))
	stub.Settle(train)
	w.refresh()
	require.Len(t, w.states(train)[running], 3)
	require.Empty(t, stub.Kills())

	stub.Capacity(train, -1, "")
	stub.Advance(time.Minute)
	w.increase(train, 1)
	w.refresh()
	require.Empty(t, w.failures(train), "the old failure is not blamed on the new request")
}

// TestCP05SalvoUnderOneSurge: five groups under a surge of 4, and Cluster Autoscaler asks
// for 4 in each of them within one refresh interval.
func TestCP05SalvoUnderOneSurge(t *testing.T) {
	t.Parallel()
	stub := trained(t, 0)
	ids := []string{train, "b", "c", "d", "e"}
	var groups []string
	for _, id := range ids {
		if id != train {
			stub.CreateGroup(awstest.Group{Name: id, Max: 100})
		}
		groups = append(groups, group(id))
	}
	w := serve(t, stub, setup{groups: groups, readEvery: 30 * time.Second, quotas: []string{"{name: gpus, resource: nvidia.com/gpu, limit: 100, surge: {max: 4, window: 5m}}"}})
	bought := 0
	for _, id := range ids {
		w.increase(id, 4)
		bought += stub.Group(id).Desired
	}
	require.Equal(t, 4, bought)
	w.refresh() // the next loop comes by the same reading
	list, err := w.NodeGroups(t.Context(), &proto.NodeGroupsRequest{})
	require.NoError(t, err)
	for _, g := range list.GetNodeGroups() {
		require.EqualValues(t, w.size(g.GetId()), g.GetMaxSize(), "%s is not asked again", g.GetId())
	}
	require.InDelta(t, 4, w.metric("gpu_node_provider_increases_not_bought_total"), 0)
}

// TestOP02FailuresOutliveTheirPlaceholders: of three launches two fail, and their
// placeholders are deleted before the next reading.
func TestOP02FailuresOutliveTheirPlaceholders(t *testing.T) {
	t.Parallel()
	stub := trained(t, 0)
	w := serve(t, stub, setup{})
	stub.Capacity(train, 1, noCapacity)
	w.increase(train, 3)
	stub.Launch(train, 3)
	w.refresh()
	w.delete(fakes(w.placeholders(train)...)...)
	stub.Advance(time.Hour)
	w.refresh()
	require.Empty(t, w.failures(train))
	kept := w.server.Report().NodeGroups[0].LaunchFailures
	require.Len(t, kept, 1)
	require.Equal(t, "InsufficientInstanceCapacity", kept[0].Code)
	require.Equal(t, noCapacity, kept[0].Message)
	require.Equal(t, 2, kept[0].Count)
	require.InDelta(t, time.Hour, stub.Now().Sub(kept[0].Last), float64(time.Minute))
	require.InDelta(t, 2, w.metric("gpu_node_provider_launch_failures_total"), 0)
	require.Equal(t, 1, w.logs.FilterMessage("launch failed").Len())
}

func (w *world) failures(id string) (failed []*proto.InstanceErrorInfo) {
	w.t.Helper()
	for _, i := range w.instances(id) {
		if e := i.GetStatus().GetErrorInfo(); e != nil {
			failed = append(failed, e)
		}
	}
	return failed
}

// TestG05CodesAndClasses: what AWS says of a launch, as Cluster Autoscaler gets it.
func TestG05CodesAndClasses(t *testing.T) {
	t.Parallel()
	rows := []struct {
		message, code string
		class         int32
	}{
		{noCapacity, "InsufficientInstanceCapacity", outOfResources},
		{"Max spot instance count exceeded. Launching EC2 instance failed.", "MaxSpotInstanceCountExceeded", outOfResources},
		{"You have requested more vCPU capacity than your current vCPU limit of 32 allows for the instance bucket that the specified instance type belongs to.", "VcpuLimitExceeded", outOfResources},
		{"Could not launch Spot Instances. UnfulfillableCapacity - Unable to fulfill capacity due to your request configuration.", "UnfulfillableCapacity", outOfResources},
		{"Your requested instance type (g4dn.xlarge) is not supported in your requested Availability Zone (us-east-1e).", "Unsupported", outOfResources},
		{"There are not enough free addresses in subnet 'subnet-1' to satisfy the requested number of instances.", "InsufficientFreeAddressesInSubnet", outOfResources},
		{"The image id '[ami-0123]' does not exist. Launching EC2 instance failed.", "LaunchTemplateError", other},
		{"Something that nobody has heard of.", "Other", other},
	}
	stub := awstest.NewStub(t)
	var groups []string
	for n, row := range rows {
		id := fmt.Sprintf("g%d", n)
		stub.CreateGroup(awstest.Group{Name: id, Max: 5})
		stub.Capacity(id, 0, row.message)
		groups = append(groups, group(id))
	}
	w := serve(t, stub, setup{groups: groups})
	for n := range rows {
		w.increase(fmt.Sprintf("g%d", n), 1)
	}
	stub.Step()
	w.refresh()
	for n, row := range rows {
		failed := w.failures(fmt.Sprintf("g%d", n))
		require.Len(t, failed, 1, row.code)
		require.Equal(t, row.code, failed[0].GetErrorCode())
		require.Equal(t, row.class, failed[0].GetInstanceErrorClass(), row.code)
		require.Equal(t, row.message, failed[0].GetErrorMessage())
	}
}

// onGs bounds all groups by the quota of the account on vCPUs of G and VT types.
const onGs = "{name: g-types, resource: vcpu, awsServiceQuota: L-DB2E81BA}"

// TestG06G07G10ServiceQuota: the limit is AWS's, the use is everybody's, and what
// terminates counts until it is gone. A node takes 4 vCPUs of 16.
func TestG06G07G10ServiceQuota(t *testing.T) {
	t.Parallel()
	stub := trained(t, 2)
	stub.CreateGroup(awstest.Group{Name: "others", Max: 5, Desired: 1}) // in no file
	stub.CreateGroup(awstest.Group{Name: "web", Max: 5, Desired: 3, InstanceType: "m5.large"})
	stub.Settle()
	stub.SetQuota("ec2", "L-DB2E81BA", 16)
	w := serve(t, stub, setup{quotas: []string{onGs}, readEvery: 20 * time.Millisecond})
	go func() { _ = w.server.Run(t.Context()) }() // it reads the quota again and again
	used := func(want float64) func() bool {
		return func() bool {
			stub.Advance(30 * time.Second)
			w.refresh()
			return w.metric("gpu_node_provider_quota_used") == want
		}
	}
	eventually(t, "the quota is read", used(12))
	require.InDelta(t, 16, w.metric("gpu_node_provider_quota_limit"), 0)
	require.EqualValues(t, 3, w.trainGroup().GetMaxSize(), "so that no more is asked for")
	require.Contains(t, w.trainGroup().GetDebug(), "L-DB2E81BA")

	w.increase(train, 3) // G-06: what fits is granted, and that is said
	require.Equal(t, 3, w.desired())
	require.Equal(t, 1, w.logs.FilterMessage("node group partially increased").Len())
	require.InDelta(t, 2, w.metric("gpu_node_provider_increase_nodes_refused_total"), 0)
	text := w.code(codes.ResourceExhausted, w.tryIncrease(t.Context(), train, 3))
	require.Contains(t, text, "quota g-types: 16 of 16 vcpu")
	require.Contains(t, text, "Service Quotas L-DB2E81BA in us-east-1")
	require.Equal(t, 3, w.desired())

	stub.Settle() // G-10
	eventually(t, "the node has come", used(16))
	w.delete(nodes(w.states(train)[running][0])...)
	for range 3 {
		eventually(t, "what terminates counts", used(16))
		w.code(codes.ResourceExhausted, w.tryIncrease(t.Context(), train, 1))
	}
	stub.Settle()
	eventually(t, "it is gone", used(12))
	w.increase(train, 1)
	require.Equal(t, 3, w.desired())

	stub.Settle()
	stub.SetDesired("others", 0)
	stub.Settle()
	eventually(t, "there is room again, since somebody else has let go", func() bool {
		return used(12)() && w.trainGroup().GetMaxSize() == 4
	})
}

// TestG07DefaultOfAWS: an account without a quota of its own has AWS's default,
// which is none for machines with GPUs; the text says whose it is.
func TestG07DefaultOfAWS(t *testing.T) {
	t.Parallel()
	stub := trained(t, 0)
	w := serve(t, stub, setup{quotas: []string{onGs}})
	require.Zero(t, w.trainGroup().GetMaxSize())
	text := w.code(codes.ResourceExhausted, w.tryIncrease(t.Context(), train, 1))
	require.Contains(t, text, "0 of 0 vcpu")
	require.Contains(t, text, "Service Quotas L-DB2E81BA in us-east-1, AWS default")
	require.Zero(t, stub.Count(setDesired))
}

// throttledAway is the SDK's pauses and our own together: they may use up the
// caller's time, or end a little before.
const throttledAway = codes.Code(1000)

// TestG08ErrorsMeanThatNothingWasChanged: Cluster Autoscaler backs off at once
// after an error, so there is none where the purchase was made.
func TestG08ErrorsMeanThatNothingWasChanged(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		fault awstest.Fault
		times int
		want  codes.Code
	}{
		"the answer is lost":     {awstest.CutAfter(), 1, codes.OK},
		"500 though it was done": {awstest.InternalAfter(), 1, codes.OK},
		"500 and nothing done":   {awstest.Internal(), 1, codes.OK},
		"throttled once":         {awstest.Throttle(), 1, codes.OK},
		"always lost":            {awstest.CutAfter(), 0, codes.OK},
		"always 500, but done":   {awstest.InternalAfter(), 0, codes.OK},
		"always 500":             {awstest.Internal(), 0, codes.Unavailable},
		"always throttled":       {awstest.Throttle(), 0, throttledAway},
		"denied":                 {awstest.Deny(), 0, codes.PermissionDenied},
		"refused":                {awstest.Refuse(400, "ValidationError", "New SetDesiredCapacity value 3 is above max value 2."), 0, codes.ResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stub := trained(t, 1)
			w := serve(t, stub, setup{})
			undo := stub.Faults(awstest.Rule{Action: setDesired, Times: row.times, Fault: row.fault})
			err := w.tryIncrease(w.within(4*time.Second), train, 2)
			if row.want != throttledAway && row.want != codes.Unavailable {
				w.code(row.want, err)
			} else { // on a busy machine the answer may come after the deadline
				require.Contains(t, []codes.Code{codes.Unavailable, codes.DeadlineExceeded}, status.Code(err), "%v", err)
			}
			undo()
			want := 1
			if row.want == codes.OK {
				want = 3
			}
			require.Equal(t, want, w.desired())
			require.Equal(t, want, w.size(train))
			w.refresh()
			require.Equal(t, want, w.size(train))
			w.increase(train, 1)
			require.Equal(t, want+1, w.desired())
		})
	}
}
