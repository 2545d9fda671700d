package conformance

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"gpu-node-provider/proto"
)

var contractCases = []row{
	{"A-01 any answer for options sets the startup time to zero", caseA01},
	{"A-02 provision time came back zero", caseA02},
	{"A-03 template without nodeBytes panics", caseA03},
	{"A-04 one failed NodeGroups erases the scale-up", caseA04},
	{"A-05 the deadline of every call", caseA05},
	{"A-06 nil groups and nodes", caseA06},
	{"A-07 an error for a foreign node stops all scale-up", caseA07},
	{"A-08 a node whose instance was just terminated", caseA08},
	{"A-14 fake nodes", caseA14},
	{"A-15 ids byte for byte", caseA15},
	{"A-16 GPU label is cached for ever", caseA16},
	{"A-17 an error of Nodes wipes the instance list", caseA17},
}

func (s *server) getOptions(t *testing.T, id string) (answered, error) {
	t.Helper()
	r, err := s.NodeGroupGetOptions(t.Context(), &proto.NodeGroupAutoscalingOptionsRequest{Id: id, Defaults: flagDefaults()})
	return read(r.GetNodeGroupAutoscalingOptions()), err
}

// The warning in the log is TestRule06…/TheLogWarnsOfOverrides.
func caseA01(t *testing.T) {
	s := serve(t, file{groups: []string{group("plain"), group("over", "scaleDown: {ignoreDaemonSets: true}")}})
	_, err := s.getOptions(t, "plain")
	code(t, codes.Unimplemented, err)
	got, err := s.getOptions(t, "over")
	require.NoError(t, err)
	assert.Equal(t, answered{
		0.5, 0.5, true, 10 * time.Minute, 20 * time.Minute, 15 * time.Minute, 10 * time.Minute, 20 * time.Minute, 15 * time.Minute,
	}, got)
}

func caseA02(t *testing.T) {
	s := serve(t, file{groups: []string{group("t4", "scaleDown: {utilizationThreshold: 0.3}")}})
	got, err := s.getOptions(t, "t4")
	require.NoError(t, err)
	assert.Equal(t, answered{
		0.3, 0.5, false, 10 * time.Minute, 20 * time.Minute, 15 * time.Minute, 10 * time.Minute, 20 * time.Minute, 15 * time.Minute,
	}, got)
}

func caseA03(t *testing.T) {
	s := serve(t, file{groups: []string{
		group("t4"), group("unknown-type", "instanceType: x9.nonsense"), group("no-type", "instanceType:"), group("retired", "retired: true"),
	}})
	for _, g := range s.nodeGroups(t) {
		n := s.template(t, g.GetId())
		gpus, pods := n.Status.Allocatable["nvidia.com/gpu"], n.Status.Allocatable["pods"]
		assert.Equal(t, "1", gpus.String(), g.GetId())
		assert.Positive(t, pods.Value(), g.GetId())
	}
}

// caseA04: before the first snapshot rule 1 goes further than the report: the port
// is not open (TestRule01…/ThePortIsNotOpenBeforeTheFirstSnapshot).
func caseA04(t *testing.T) {
	s := serve(t, file{simulated: []string{"api: {latency: 2s, errorRate: 0.2}"}})
	for range 300 {
		r, err := s.NodeGroups(within(t, time.Second), &proto.NodeGroupsRequest{})
		require.NoError(t, err)
		require.Len(t, r.GetNodeGroups(), 1)
	}
}

func caseA05(t *testing.T) {
	s := serve(t, file{simulated: booting("api: {latency: 2s}")})
	tooLate := 1500 * time.Millisecond // the cloud has it, and its answer comes after the caller has gone
	code(t, codes.DeadlineExceeded, s.tryIncrease(within(t, tooLate), s.id, 1))
	s.learns(t, s.id, 1) // Cluster Autoscaler's next loop begins with a Refresh
	s.increase(t, s.id, 1)
	assert.Equal(t, 1, s.size(t, s.id), "the retry adds nothing")

	id := s.ids(t, s.id)[0]
	code(t, codes.DeadlineExceeded, s.tryDelete(within(t, tooLate), s.id, node(id)))
	s.delete(t, s.id, node(id))
	s.delete(t, s.id, node(id))
	assert.Equal(t, 0, s.size(t, s.id), "decremented once")
}

func caseA06(t *testing.T) {
	s := serve(t, file{})
	_, err := s.NodeGroupForNode(t.Context(), &proto.NodeGroupForNodeRequest{})
	code(t, codes.InvalidArgument, err)
	assert.Empty(t, s.groupFor(t, node("nope")).GetId())
	_, err = s.NodeGroupTargetSize(t.Context(), &proto.NodeGroupTargetSizeRequest{Id: "nope"})
	code(t, codes.NotFound, err)
	_, err = s.NodeGroupNodes(t.Context(), &proto.NodeGroupNodesRequest{Id: "nope"})
	code(t, codes.NotFound, err)
	_, err = s.NodeGroupTemplateNodeInfo(t.Context(), &proto.NodeGroupTemplateNodeInfoRequest{Id: "nope"})
	code(t, codes.NotFound, err)
	s.unharmed(t, 0)
}

func caseA07(t *testing.T) {
	s := serve(t, file{})
	for _, n := range []*proto.ExternalGrpcNode{
		{Name: "control-plane", Labels: map[string]string{"accelerator": "nvidia"}}, node("kind://x"),
	} {
		r, err := s.NodeGroupForNode(t.Context(), &proto.NodeGroupForNodeRequest{Node: n})
		require.NoError(t, err)
		require.NotNil(t, r.GetNodeGroup())
		assert.Empty(t, r.GetNodeGroup().GetId())
	}
}

func caseA08(t *testing.T) {
	s := serve(t, file{simulated: []string{"terminateDelay: 1h"}})
	s.increase(t, s.id, 2)
	id := s.ids(t, s.id)[0]
	s.delete(t, s.id, node(id))
	for range 2 {
		assert.Equal(t, s.id, s.groupFor(t, node(id)).GetId())
		assert.Equal(t, []string{id}, s.ids(t, s.id, deleting))
		assert.Equal(t, 1, s.size(t, s.id))
		s.refresh(t)
	}
}

func caseA14(t *testing.T) {
	s := serve(t, file{})
	s.increase(t, s.id, 1)
	n := fake(s.ids(t, s.id)[0], "unregistered")
	assert.Equal(t, s.id, s.groupFor(t, n).GetId())
	s.delete(t, s.id, n)
	assert.Equal(t, 0, s.size(t, s.id))
}

func caseA15(t *testing.T) {
	s := serve(t, file{})
	s.increase(t, s.id, 1)
	id := s.ids(t, s.id)[0]
	for _, other := range []string{strings.ToUpper(id), strings.Replace(id, "/t4/", "/", 1), strings.Replace(id, "/t4/", "//t4/", 1)} {
		code(t, codes.InvalidArgument, s.tryDelete(t.Context(), s.id, fake(other, "unregistered")))
	}
	assert.Equal(t, []string{id}, s.ids(t, s.id, running))
}

// caseA16: a changed label is refused until a restart, since a running Cluster
// Autoscaler would not notice it.
func caseA16(t *testing.T) {
	f := file{}
	s := serve(t, f)
	require.Equal(t, "accelerator", s.newAutoscaler(t))
	f.top = []string{"gpuLabel: example.com/gpu"}
	f.groups = []string{group("t4", "labels: {example.com/gpu: nvidia-tesla-t4}")}
	f.write(t, s.dir)
	eventually(t, "the file is refused", func() bool { return s.metric(t, "gpu_node_provider_config_reload_failed") == 1 })
	assert.Equal(t, "accelerator", s.newAutoscaler(t))
	assert.Contains(t, s.stderr.String(), "gpuLabel")
	assert.Contains(t, s.stderr.String(), "restart")
}

func caseA17(t *testing.T) {
	s := serve(t, file{simulated: booting("api: {latency: 1s, errorRate: 0.3}"), groups: []string{group("t4", "maxSize: 2")}})
	eventually(t, "a machine boots", func() bool { return s.tryIncrease(t.Context(), s.id, 1) == nil })
	ids := s.ids(t, s.id)
	require.Len(t, ids, 1)
	for range 100 {
		r, err := s.NodeGroupNodes(within(t, 900*time.Millisecond), &proto.NodeGroupNodesRequest{Id: s.id})
		require.NoError(t, err)
		require.Equal(t, ids[0], r.GetInstances()[0].GetId())
	}
	_, body := get(t, "http://"+s.http+"/metrics")
	assert.Contains(t, body, "\ngpu_node_provider_snapshot_age_seconds ", "how old the picture is")
}
