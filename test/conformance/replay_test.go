package conformance

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pb "google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"

	"gpu-node-provider/proto"
)

// The provider ids of the server that was recorded.
const (
	recordedPrefix      = "sim://"
	recordedPlaceholder = "sim://i-placeholder-"
	recordedTemplate    = "sim://template"
)

// restartBoot keeps machines in flight while the part of a recording is replayed in
// which Cluster Autoscaler is killed and comes back: some 250 calls.
const restartBoot = 8 * time.Second

// story is what the recorded server did that ours has to be told to do.
type story struct {
	simulated []string
	group     []string
	machines  int // bought over the whole recording
	absorbed  int // calls that asked again for what was in flight
}

// stories are the recordings by the end of their names.
var stories = map[string]story{
	"round":      {machines: 3},
	"refuse":     {machines: 3},
	"nocapacity": {simulated: []string{"capacity: {t4: 0}"}},
	// The recorded server granted one node a call, and one more each time its
	// maximum rose.
	"partial":          {group: []string{"surge: {max: 1, window: 1s}"}, machines: 3},
	"restart":          {simulated: []string{"bootDelay: " + restartBoot.String()}, group: []string{"maxSize: 3"}, machines: 3, absorbed: 1},
	"restart-absorbed": {simulated: []string{"bootDelay: " + restartBoot.String()}, group: []string{"maxSize: 3"}, machines: 3, absorbed: 1},
}

func TestRecordedCalls(t *testing.T) {
	needsOwnServer(t)
	parallel(t)
	names, err := Recordings()
	require.NoError(t, err)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			parallel(t)
			_, kind, _ := strings.Cut(strings.TrimPrefix(name, "ca-"), "-")
			told, ok := stories[kind]
			require.True(t, ok, "no story for recording %s", name)
			simulated := settings([]string{"bootDelay: 50ms"}, told.simulated...)
			r := &replay{
				server: serve(t, file{simulated: simulated, groups: []string{group("t4", told.group...)}}),
				ours:   map[string]string{}, machines: map[string]bool{}, deleted: map[string]bool{},
			}
			r.raw = r.rawClient(t)
			r.node = r.template(t, "t4")
			calls, err := Recording(name)
			require.NoError(t, err)
			for _, call := range calls {
				r.replay(t, call)
				require.False(t, t.Failed(), "at call %d of %s", call.Seq, name)
			}
			assert.Len(t, r.machines, told.machines, "machines bought over the whole recording")
			assert.EqualValues(t, told.absorbed, r.metric(t, `gpu_node_provider_increases_absorbed_total{node_group="t4"}`))
			t.Logf("%s: %d calls replayed, %d of them with other provider ids", name, len(calls), r.mapped)
		})
	}
}

// replay plays one recording against one server.
type replay struct {
	*server
	raw      rawClient
	node     *corev1.Node      // our template
	ours     map[string]string // recorded provider id → ours
	machines map[string]bool   // every machine that was ever listed
	deleted  map[string]bool   // what was answered to be deleted
	last     int               // target after the call before
	mapped   int
}

func (r *replay) replay(t *testing.T, call Call) {
	t.Helper()
	r.prepare(t, call)
	request := call.Request
	message, nodes := naming(t, call)
	if message != nil && r.rename(t, nodes) {
		r.mapped++
		var err error
		request, err = pb.Marshal(message)
		require.NoError(t, err)
	}
	response, err := r.raw.call(within(t, patience), call.Method, request)
	r.check(t, call, nodes, response, err)
	r.look(t, call, r.newlyDeleted(call, nodes))
}

// newlyDeleted is how many nodes a call is the first to delete.
func (r *replay) newlyDeleted(call Call, nodes []*proto.ExternalGrpcNode) int {
	if call.Method != "NodeGroupDeleteNodes" {
		return 0
	}
	n := 0
	for _, node := range nodes {
		if !r.deleted[node.GetProviderID()] {
			r.deleted[node.GetProviderID()] = true
			n++
		}
	}
	return n
}

// prepare waits for what the recorded server had done by then.
func (r *replay) prepare(t *testing.T, call Call) {
	t.Helper()
	switch call.Method {
	case "NodeGroupIncreaseSize":
		// Cluster Autoscaler asks only where NodeGroups has said that there is room.
		eventually(t, "there is room", func() bool {
			r.refresh(t)
			return r.max(t, "t4") > r.last
		})
	case "GPULabel":
		if r.last > 0 {
			require.NotEmpty(t, r.ids(t, "t4", creating), "the machine is too slow: nothing is in flight any more when the autoscaler comes back")
		}
	default:
	}
	_, nodes := naming(t, call)
	if slices.ContainsFunc(nodes, registered) {
		eventually(t, "the machines run", func() bool {
			r.refresh(t)
			return len(r.ids(t, "t4", creating)) == 0
		})
	}
}

// rename puts our ids in the place of the recorded ones, and says whether there
// were any. A fourth machine of the recorded server, which bought twice, has
// none of ours: it stays what it is, an id of another cloud.
func (r *replay) rename(t *testing.T, nodes []*proto.ExternalGrpcNode) bool {
	t.Helper()
	renamed := false
	for _, n := range nodes {
		id := n.GetProviderID()
		if !strings.HasPrefix(id, recordedPrefix) {
			continue
		}
		if id == recordedTemplate {
			r.renameTemplate(n)
			renamed = true
			continue
		}
		ours := r.counterpart(t, id)
		if ours == "" {
			continue
		}
		if n.GetName() == id {
			n.Name = ours
		}
		n.ProviderID = ours
		renamed = true
	}
	return renamed
}

// renameTemplate makes a picture of the recorded template one of ours: it is
// copied from what the server answers, labels included.
func (r *replay) renameTemplate(n *proto.ExternalGrpcNode) {
	n.ProviderID = r.node.Spec.ProviderID
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	for key, value := range r.node.Labels {
		n.Labels[key] = value
	}
}

// counterpart binds a recorded id to one of our instances, for the whole recording.
func (r *replay) counterpart(t *testing.T, id string) string {
	t.Helper()
	if ours, ok := r.ours[id]; ok {
		return ours
	}
	taken := map[string]bool{}
	for _, ours := range r.ours {
		taken[ours] = true
	}
	wantPlaceholder := strings.HasPrefix(id, recordedPlaceholder)
	for _, i := range r.instances(t, "t4") {
		if !taken[i.GetId()] && wantPlaceholder == (i.GetStatus().GetErrorInfo() != nil) {
			r.ours[id] = i.GetId()
			return i.GetId()
		}
	}
	return ""
}

// look checks what has to hold after every call.
func (r *replay) look(t *testing.T, call Call, deleted int) {
	t.Helper()
	target, counted := r.target(t, "t4"), 0
	for _, i := range r.instances(t, "t4") {
		if i.GetStatus().GetInstanceState() != deleting {
			counted++
		}
		if i.GetStatus().GetErrorInfo() == nil {
			r.machines[i.GetId()] = true
		}
	}
	require.Equal(t, target, counted, "%s %d: TargetSize against Nodes", call.Method, call.Seq)
	require.LessOrEqual(t, target, 3, "%s %d: bought twice", call.Method, call.Seq)
	if call.Method == "NodeGroupIncreaseSize" {
		require.GreaterOrEqual(t, target, r.last)
	} else {
		require.Equal(t, r.last-deleted, target, "%s %d: the target", call.Method, call.Seq)
	}
	r.last = target
}

// expected is the code that the rules ask for: the recorded one, but for the
// deletions that the recorded server refused. Ours has nothing to refuse them
// for, and answers their repetition OK.
func expected(call Call) string {
	if call.Method == "NodeGroupDeleteNodes" {
		return codes.OK.String()
	}
	return call.Code
}

func (r *replay) check(t *testing.T, call Call, nodes []*proto.ExternalGrpcNode, response []byte, err error) {
	t.Helper()
	require.Equal(t, expected(call), status.Code(err).String(), "%s %d: %v", call.Method, call.Seq, err)
	if err != nil {
		return
	}
	decode := func(m pb.Message) { require.NoError(t, pb.Unmarshal(response, m)) }
	switch call.Method {
	case "NodeGroups":
		var m proto.NodeGroupsResponse
		decode(&m)
		require.Len(t, m.GetNodeGroups(), 1)
		r.checkGroup(t, m.GetNodeGroups()[0])
	case "NodeGroupForNode":
		var m proto.NodeGroupForNodeResponse
		decode(&m)
		r.checkForNode(t, nodes[0], m.GetNodeGroup())
	case "NodeGroupTemplateNodeInfo":
		var m proto.NodeGroupTemplateNodeInfoResponse
		decode(&m)
		require.Equal(t, m.GetNodeBytes(), m.GetNodeInfo())
		require.NoError(t, (&corev1.Node{}).Unmarshal(m.GetNodeBytes()))
	case "PricingNodePrice":
		var m proto.PricingNodePriceResponse
		decode(&m)
		require.InDelta(t, 0.526, m.GetPrice(), 1e-6) // an hour of t4
	case "PricingPodPrice":
		var m proto.PricingPodPriceResponse
		decode(&m)
		require.Positive(t, m.GetPrice())
	case "GPULabel":
		var m proto.GPULabelResponse
		decode(&m)
		require.Equal(t, "accelerator", m.GetLabel())
	case "GetAvailableGPUTypes":
		var m proto.GetAvailableGPUTypesResponse
		decode(&m)
		require.Contains(t, m.GetGpuTypes(), "nvidia-tesla-t4")
	case "NodeGroupTargetSize":
		var m proto.NodeGroupTargetSizeResponse
		decode(&m)
		require.EqualValues(t, r.last, m.GetTargetSize())
	default: // empty answers, and Nodes, which look counts
	}
}

func (r *replay) checkGroup(t *testing.T, g *proto.NodeGroup) {
	t.Helper()
	require.Equal(t, "t4", g.GetId())
	require.Zero(t, g.GetMinSize())
	require.GreaterOrEqual(t, int(g.GetMaxSize()), r.last)
	require.LessOrEqual(t, g.GetMaxSize(), int32(4))
}

// checkForNode: every node of ours has its group, gone ones included, and the
// control plane has none.
func (r *replay) checkForNode(t *testing.T, n *proto.ExternalGrpcNode, g *proto.NodeGroup) {
	t.Helper()
	if n.GetProviderID() == "" || strings.HasPrefix(n.GetProviderID(), recordedPrefix) {
		require.Empty(t, g.GetId(), "%v", n)
		return
	}
	require.NotNil(t, g, "%v", n)
	r.checkGroup(t, g)
}

// naming is a request that names nodes. Only those are taken apart and put
// together again; all others go out byte for byte as they were recorded.
func naming(t *testing.T, call Call) (pb.Message, []*proto.ExternalGrpcNode) {
	t.Helper()
	var request pb.Message
	switch call.Method {
	case "NodeGroupForNode":
		request = &proto.NodeGroupForNodeRequest{}
	case "PricingNodePrice":
		request = &proto.PricingNodePriceRequest{}
	case "NodeGroupDeleteNodes":
		request = &proto.NodeGroupDeleteNodesRequest{}
	default:
		return nil, nil
	}
	require.NoError(t, pb.Unmarshal(call.Request, request))
	switch r := request.(type) {
	case *proto.NodeGroupForNodeRequest:
		return request, []*proto.ExternalGrpcNode{r.GetNode()}
	case *proto.PricingNodePriceRequest:
		return request, []*proto.ExternalGrpcNode{r.GetNode()}
	case *proto.NodeGroupDeleteNodesRequest:
		return request, r.GetNodes()
	}
	return nil, nil
}

// registered is true for a node that joined the cluster, as opposed to the
// stand-ins that Cluster Autoscaler makes for nodes that are not there.
func registered(n *proto.ExternalGrpcNode) bool {
	return strings.HasPrefix(n.GetProviderID(), recordedPrefix) && n.GetProviderID() == recordedPrefix+n.GetName()
}
