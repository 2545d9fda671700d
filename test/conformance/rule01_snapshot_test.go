package conformance

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pb "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"gpu-node-provider/cloud/logkey"
	"gpu-node-provider/proto"
	testprocess "gpu-node-provider/test/testbed/process"
)

func TestRule01ReadsComeFromOneSnapshot(t *testing.T) {
	parallel(t)
	t.Run("ReadsNeverFailAndAreNeverEmpty", rule01NeverEmpty)
	t.Run("ReadsDoNotWaitForTheCloud", rule01NoCloudCall)
	t.Run("ReadsNeverFailWhileTheCloudDoes", rule01CloudFails)
	if os.Getenv("CONFORMANCE_SLOW") != "" {
		t.Run("OnlyRefreshFailsAndOnlyOnceTheSnapshotIsAMinuteOld", rule01OldSnapshot)
	}
	t.Run("OnlyRefreshOrAWriteChangesWhatReadsSay", rule01Immutable)
	t.Run("AllReadsSeeTheSameSnapshot", rule01SameForAll)
	t.Run("ThePortIsNotOpenBeforeTheFirstSnapshot", rule01Port)
	t.Run("ASnapshotNeverFallsBehindAnAcknowledgedWrite", rule01NotBehind)
}

// reads makes every kind of read and returns its errors. Prices and options are
// asked for the group that tests change.
func (s *server) reads(ctx context.Context, id string) map[string]error {
	hour := [2]*timestamppb.Timestamp{{Seconds: 0}, {Seconds: 3600}}
	errs := map[string]error{}
	_, errs["NodeGroups"] = s.NodeGroups(ctx, &proto.NodeGroupsRequest{})
	_, errs["NodeGroupForNode"] = s.NodeGroupForNode(ctx, &proto.NodeGroupForNodeRequest{Node: node("x/y")})
	_, errs["NodeGroupTargetSize"] = s.NodeGroupTargetSize(ctx, &proto.NodeGroupTargetSizeRequest{Id: id})
	_, errs["NodeGroupNodes"] = s.NodeGroupNodes(ctx, &proto.NodeGroupNodesRequest{Id: id})
	template, err := s.NodeGroupTemplateNodeInfo(ctx, &proto.NodeGroupTemplateNodeInfoRequest{Id: id})
	errs["NodeGroupTemplateNodeInfo"] = err
	_, errs["GPULabel"] = s.GPULabel(ctx, &proto.GPULabelRequest{})
	_, errs["GetAvailableGPUTypes"] = s.GetAvailableGPUTypes(ctx, &proto.GetAvailableGPUTypesRequest{})
	_, errs["PricingNodePrice"] = s.PricingNodePrice(ctx, &proto.PricingNodePriceRequest{
		Node: templateOf(template), StartTimestamp: hour[0], EndTimestamp: hour[1],
	})
	_, errs["PricingPodPrice"] = s.PricingPodPrice(ctx, &proto.PricingPodPriceRequest{
		PodBytes: podBytes("1"), StartTimestamp: hour[0], EndTimestamp: hour[1],
	})
	_, err = s.NodeGroupGetOptions(ctx, &proto.NodeGroupAutoscalingOptionsRequest{Id: id, Defaults: flagDefaults()})
	if status.Code(err) != codes.Unimplemented { // which is its answer for a group without overrides
		errs["NodeGroupGetOptions"] = err
	}
	return errs
}

func (s *server) assertReads(ctx context.Context, t *testing.T) {
	t.Helper()
	for method, err := range s.reads(ctx, s.id) {
		assert.NoError(t, err, method)
	}
}

func rule01NeverEmpty(t *testing.T) {
	s := wire(t, file{groups: []string{group("t4"), group("a100")}})
	for _, g := range s.nodeGroups(t) {
		s.id = g.GetId()
		s.assertReads(t.Context(), t)
	}
	assert.NotEmpty(t, s.newAutoscaler(t))
	types, err := s.GetAvailableGPUTypes(t.Context(), &proto.GetAvailableGPUTypesRequest{})
	require.NoError(t, err)
	assert.NotEmpty(t, types.GetGpuTypes())
}

func rule01NoCloudCall(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: []string{"api: {latency: 2s}"}})
	s.assertReads(within(t, 1500*time.Millisecond), t)
}

func rule01CloudFails(t *testing.T) {
	parallel(t)
	// Not all calls fail, else there would never be a first snapshot.
	s := serve(t, file{simulated: []string{"api: {errorRate: 0.4}"}})
	eventually(t, "the cloud has failed ten times", func() bool {
		s.refresh(t) // still OK: the snapshot is fresh enough to decide by
		s.assertReads(t.Context(), t)
		return s.metric(t, `gpu_node_provider_refresh_errors_total{class="unavailable"}`) >= 10
	})
}

// rule01OldSnapshot lets the process sleep for a minute, since its clock cannot
// be moved.
func rule01OldSnapshot(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: []string{"api: {latency: 6s}"}})
	// The cloud is too slow for this caller, and the snapshot is fresh.
	_, _ = s.Refresh(within(t, time.Second), &proto.RefreshRequest{})
	eventually(t, "the server answers for the slow cloud", func() bool { return len(s.refreshes(t)) == 1 })
	assert.Equal(t, "OK", s.refreshes(t)[0]["code"])

	s.signal(t, syscall.SIGSTOP)
	minute := time.NewTimer(61 * time.Second)
	<-minute.C
	s.signal(t, syscall.SIGCONT)
	s.assertReads(t.Context(), t)
	_, err := s.Refresh(within(t, time.Second), &proto.RefreshRequest{})
	code(t, codes.DeadlineExceeded, err)
	eventually(t, "the server answers for the slow cloud", func() bool { return len(s.refreshes(t)) == 2 })
	// Either, by whether the deadline or the client's hanging up is noticed first.
	assert.Contains(t, []any{"DeadlineExceeded", "Canceled"}, s.refreshes(t)[1]["code"], "the server itself has to refuse")
	assert.Contains(t, s.refreshes(t)[1]["error"], "the cloud was last read 1m")
	s.assertReads(t.Context(), t)
}

// refreshes are the log entries of Refresh calls; those that succeed are logged
// only with --verbose.
func (s *server) refreshes(t *testing.T) []map[string]any {
	t.Helper()
	var found []map[string]any
	for _, entry := range s.logged(t, "refresh failed, keeping the previous snapshot") {
		if entry[logkey.SnapshotAge] != nil { // with an age it is from the call, without from the background
			entry["code"] = "OK"
			found = append(found, entry)
		}
	}
	for _, entry := range s.logged(t, "call") {
		if entry["method"] == "Refresh" {
			found = append(found, entry)
		}
	}
	return found
}

// rule01Immutable: a machine comes up, and nobody is told before the next Refresh.
func rule01Immutable(t *testing.T) {
	parallel(t)
	const boot = 500 * time.Millisecond
	s := serve(t, file{simulated: []string{"bootDelay: " + boot.String()}})
	for attempt := 1; ; attempt++ {
		s.refresh(t)
		before := len(s.ids(t, s.id, running))
		s.increase(t, s.id, 1)
		taken, changed := s.snapshotTime(t), false
		throughout(t, 2*boot, "still the same", func() bool {
			changed = changed || len(s.ids(t, s.id, running)) > before
			return true
		})
		if taken != s.snapshotTime(t) { // a background refresh has come in between
			require.Less(t, attempt, 3, "the background refreshes too often")
			continue
		}
		assert.False(t, changed, "a read saw what no Refresh had brought")
		s.refresh(t)
		assert.Len(t, s.ids(t, s.id, running), before+1)
		return
	}
}

func rule01SameForAll(t *testing.T) {
	s := wire(t, file{
		groups: []string{group("t4"), group("a100")},
		quotas: []string{"{name: shared, resource: nodes, limit: 5}"},
	})
	s.grown(t, 1)
	first := s.nodeGroups(t)
	for range 10 {
		for i, g := range s.nodeGroups(t) {
			assert.True(t, pb.Equal(first[i], g), "without Refresh or write: %v, then %v", first[i], g)
		}
	}
	for _, g := range first {
		s.size(t, g.GetId())
		for _, id := range s.ids(t, g.GetId()) {
			assert.True(t, pb.Equal(g, s.groupFor(t, node(id))), "NodeGroupForNode and NodeGroups disagree about %s", g.GetId())
		}
	}
}

func rule01Port(t *testing.T) {
	needsOwnServer(t)
	parallel(t)
	grpcPort, httpPort := freePort(t), freePort(t)
	dir := t.TempDir()
	file{
		server:    []string{`address: "` + grpcPort + `"`, `httpAddress: "` + httpPort + `"`},
		simulated: []string{"api: {latency: 3s}"},
	}.write(t, dir)
	p := start(t, "serve", "--config", configPath(dir))
	eventually(t, "the HTTP port answers", func() bool { return accepts(httpPort) })
	closed := 0
	eventually(t, "the gRPC port opens", func() bool {
		if accepts(grpcPort) {
			return true
		}
		ready, _ := get(t, "http://"+httpPort+"/readyz")
		if !accepts(grpcPort) { // else it has opened meanwhile
			assert.Equal(t, http.StatusServiceUnavailable, ready)
			closed++
		}
		return false
	})
	assert.Positive(t, closed, "the port has to be closed while the cloud is read for the first time")
	s := &server{process: p, grpc: grpcPort, http: httpPort}
	s.connect(t)
	s.id = "t4"
	s.assertReads(within(t, 2*time.Second), t) // the very first calls get all of it
	ready, _ := get(t, "http://"+httpPort+"/readyz")
	assert.Equal(t, http.StatusOK, ready)
}

// freePort is an address that nothing listens on.
func freePort(t *testing.T) string {
	t.Helper()
	ports, err := testprocess.FreePorts(1)
	require.NoError(t, err)
	return fmt.Sprintf("127.0.0.1:%d", ports[0])
}

func accepts(address string) bool {
	conn, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// rule01NotBehind: readings of the cloud that began before a write end after it.
// They take their time, since there is much to read, and writes are quick.
func rule01NotBehind(t *testing.T) {
	parallel(t)
	s := serve(t, file{
		simulated: booting("stateFile:"),
		groups:    []string{group("t4", "maxSize: 1000"), group("many", "maxSize: 7000")},
	})
	s.increase(t, "many", 7000)
	var stop atomic.Bool
	refreshing := func() {
		for !stop.Load() {
			_, err := s.Refresh(t.Context(), &proto.RefreshRequest{})
			assert.NoError(t, err)
		}
	}
	writing := func() {
		defer stop.Store(true)
		for n := 1; n <= 100 && !t.Failed(); n++ {
			assert.NoError(t, s.tryIncrease(t.Context(), "t4", 1))
			for range 5 {
				r, err := s.NodeGroupTargetSize(t.Context(), &proto.NodeGroupTargetSizeRequest{Id: "t4"})
				assert.NoError(t, err)
				if !assert.EqualValues(t, n, r.GetTargetSize(), "after %d increases that were answered OK", n) {
					return
				}
			}
		}
	}
	together(refreshing, refreshing, writing)
	assert.Equal(t, 100, s.size(t, "t4"))
}
