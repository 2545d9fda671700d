package conformance

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"gpu-node-provider/proto"
)

// recordedTimeout is the client's timeout in every recording.
const recordedTimeout = 5 * time.Second

// wireForm is the form of durations, times and Pods that a release sends. The label is
// that of template nodes, which 1.33 and later put on.
type wireForm struct{ legacy, current, label bool }

var (
	wire132 = wireForm{legacy: true}
	wire133 = wireForm{legacy: true, label: true}
	wire134 = wireForm{legacy: true, current: true, label: true}
	wire135 = wireForm{current: true, label: true} // and 1.36
)

// TestRecordings holds the content of each file, so that one that was replaced,
// cut short or edited fails.
func TestRecordings(t *testing.T) {
	parallel(t)
	tests := map[string]struct {
		calls     int
		length    int // in milliseconds, from the server's start to the last call
		wire      wireForm
		provision string   // --max-node-provision-time, where the current form tells it
		changes   []string // first calls of a process, and all calls that change anything, in order
	}{
		"ca-1.32-round": {402, 77228, wire132, "", []string{
			"GPULabel", "IncreaseSize t4 3", "DeleteNodes t4 gpu-2", "DeleteNodes t4 gpu-3", "DeleteNodes t4 gpu-1", "Cleanup",
		}},
		"ca-1.33-round": {382, 76390, wire133, "", []string{
			"GPULabel", "IncreaseSize t4 3", "DeleteNodes t4 gpu-1", "DeleteNodes t4 gpu-2", "DeleteNodes t4 gpu-3", "Cleanup",
		}},
		"ca-1.34-round": {367, 76090, wire134, "15m0s", []string{
			"GPULabel", "IncreaseSize t4 3", "DeleteNodes t4 gpu-2", "DeleteNodes t4 gpu-3", "DeleteNodes t4 gpu-1", "Cleanup",
		}},
		"ca-1.35-round": {571, 74226, wire135, "15m0s", []string{
			"GPULabel", "IncreaseSize t4 3", "DeleteNodes t4 gpu-2", "DeleteNodes t4 gpu-3", "DeleteNodes t4 gpu-1", "Cleanup",
		}},
		"ca-1.36-round": {572, 74898, wire135, "15m0s", []string{
			"GPULabel", "IncreaseSize t4 3", "DeleteNodes t4 gpu-3", "DeleteNodes t4 gpu-2", "DeleteNodes t4 gpu-1", "Cleanup",
		}},
		"ca-1.36-refuse": {982, 100419, wire135, "15m0s", []string{
			"GPULabel", "IncreaseSize t4 3",
			"DeleteNodes t4 gpu-3: FailedPrecondition", "DeleteNodes t4 gpu-1: FailedPrecondition", "DeleteNodes t4 gpu-2: FailedPrecondition",
			"DeleteNodes t4 gpu-2: FailedPrecondition", "DeleteNodes t4 gpu-3: FailedPrecondition", "DeleteNodes t4 gpu-1: FailedPrecondition",
			"DeleteNodes t4 gpu-2", "DeleteNodes t4 gpu-3", "DeleteNodes t4 gpu-1", "Cleanup",
		}},
		"ca-1.36-nocapacity": {250, 51664, wire135, "15m0s", []string{
			"GPULabel", "IncreaseSize t4 3",
			"DeleteNodes t4 create-error:i-placeholder-t4-0 create-error:i-placeholder-t4-1 create-error:i-placeholder-t4-2", "Cleanup",
		}},
		"ca-1.36-restart": {752, 104379, wire135, "15m0s", []string{
			"GPULabel", "IncreaseSize t4 3", "GPULabel", "IncreaseSize t4 1", "Cleanup",
		}},
		"ca-1.36-restart-absorbed": {810, 119728, wire135, "15m0s", []string{
			"GPULabel", "IncreaseSize t4 3", "GPULabel", "IncreaseSize t4 1", "Cleanup",
		}},
		"ca-1.36-partial": {1142, 158814, wire135, "40s", []string{
			"GPULabel", "IncreaseSize t4 3", "IncreaseSize t4 2", "IncreaseSize t4 1", "Cleanup",
		}},
	}
	names, err := Recordings()
	require.NoError(t, err)
	require.ElementsMatch(t, slices.Collect(maps.Keys(tests)), names)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			calls, err := Recording(name)
			require.NoError(t, err)
			require.Equal(t, tt.calls, len(calls), "calls")
			assert.Equal(t, time.Duration(tt.length)*time.Millisecond, calls[len(calls)-1].At)
			var changes []string
			for i, call := range calls {
				require.Equal(t, i+1, call.Seq)
				require.Contains(t, methods, call.Method)
				require.LessOrEqual(t, call.Deadline, recordedTimeout, "%s %d", call.Method, call.Seq)
				require.Greater(t, call.Deadline, recordedTimeout-10*time.Millisecond, "%s %d", call.Method, call.Seq)
				require.Equal(t, recordedCode(call), call.Code, "%s %d", call.Method, call.Seq)
				if change := changeOf(t, call); change != "" {
					changes = append(changes, change)
				}
			}
			assert.Equal(t, tt.changes, changes)
			assert.Equal(t, tt.wire, wireOf(t, calls))
			assert.Equal(t, tt.provision, provisionTime(t, calls))
		})
	}
}

// recordedCode is what the recorded server answered to each call but deletions.
func recordedCode(call Call) string {
	switch call.Method {
	case "NodeGroupGetOptions":
		return "Unimplemented"
	case "NodeGroupDeleteNodes":
		return call.Code // some were refused, and the changes name them
	default:
		return "OK"
	}
}

// changeOf describes a call that changes something, or that shows a new process;
// empty for the others.
func changeOf(t *testing.T, call Call) string {
	t.Helper()
	change := strings.TrimPrefix(call.Method, "NodeGroup")
	switch call.Method {
	case "GPULabel", "Cleanup":
	case "NodeGroupIncreaseSize":
		var r proto.NodeGroupIncreaseSizeRequest
		require.NoError(t, pb.Unmarshal(call.Request, &r))
		change += fmt.Sprintf(" %s %d", r.GetId(), r.GetDelta())
	case "NodeGroupDecreaseTargetSize":
		var r proto.NodeGroupDecreaseTargetSizeRequest
		require.NoError(t, pb.Unmarshal(call.Request, &r))
		change += fmt.Sprintf(" %s %d", r.GetId(), r.GetDelta())
	case "NodeGroupDeleteNodes":
		var r proto.NodeGroupDeleteNodesRequest
		require.NoError(t, pb.Unmarshal(call.Request, &r))
		change += " " + r.GetId()
		for _, n := range r.GetNodes() {
			name := n.GetName()
			if name == n.GetProviderID() {
				name = n.GetAnnotations()["k8s.io/cluster-autoscaler/fake-node-reason"] + ":" + strings.TrimPrefix(name, recordedPrefix)
			} else {
				require.Equal(t, recordedPrefix+name, n.GetProviderID())
			}
			change += " " + name
		}
	default:
		return ""
	}
	if call.Code != "OK" {
		change += ": " + call.Code
	}
	return change
}

// wireOf reads the release's form off its calls.
func wireOf(t *testing.T, calls []Call) (w wireForm) {
	t.Helper()
	for _, call := range calls {
		switch call.Method {
		case "NodeGroupGetOptions":
			var r proto.NodeGroupAutoscalingOptionsRequest
			require.NoError(t, pb.Unmarshal(call.Request, &r))
			w.legacy = w.legacy || r.GetDefaults().GetMaxNodeProvisionTime() != nil
			w.current = w.current || r.GetDefaults().GetMaxNodeProvisionDuration() != nil
		case "PricingNodePrice":
			var r proto.PricingNodePriceRequest
			require.NoError(t, pb.Unmarshal(call.Request, &r))
			_, label := r.GetNode().GetLabels()["cluster-autoscaler.kubernetes.io/template-node"]
			w.label = w.label || label
		}
	}
	return w
}

func provisionTime(t *testing.T, calls []Call) string {
	t.Helper()
	times := map[string]bool{}
	for _, call := range calls {
		if call.Method != "NodeGroupGetOptions" {
			continue
		}
		var r proto.NodeGroupAutoscalingOptionsRequest
		require.NoError(t, pb.Unmarshal(call.Request, &r))
		if d := r.GetDefaults().GetMaxNodeProvisionDuration(); d != nil {
			times[d.AsDuration().String()] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(times)), ", ")
}

// TestRecordingsAreDescribed: README.md names each recording with its number of calls.
func TestRecordingsAreDescribed(t *testing.T) {
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	names, err := Recordings()
	require.NoError(t, err)
	for _, name := range names {
		calls, err := Recording(name)
		require.NoError(t, err)
		assert.Contains(t, string(page), fmt.Sprintf("| `%s` | %d |", name, len(calls)))
	}
}

// TestRecordedCallsAreUnderstood: externalgrpc.proto has every field that was sent.
func TestRecordedCallsAreUnderstood(t *testing.T) {
	parallel(t)
	names, err := Recordings()
	require.NoError(t, err)
	service := proto.File_externalgrpc_proto.Services().ByName("CloudProvider")
	seen := map[string]int{}
	for _, name := range names {
		calls, err := Recording(name)
		require.NoError(t, err)
		for _, call := range calls {
			method := service.Methods().ByName(protoreflect.Name(call.Method))
			require.NotNil(t, method, call.Method)
			request := dynamicpb.NewMessage(method.Input())
			require.NoError(t, pb.Unmarshal(call.Request, request))
			requireKnown(t, request, fmt.Sprintf("%s: %s %d", name, call.Method, call.Seq))
			seen[call.Method]++
		}
	}
	t.Logf("calls by method: %v", seen)
}

// requireKnown fails for a field, of the message or of one within it, that the
// wire file does not have.
func requireKnown(t *testing.T, m protoreflect.Message, call string) {
	t.Helper()
	require.Empty(t, m.GetUnknown(), "%s: %s", call, m.Descriptor().FullName())
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsMap() || field.Message() == nil:
		case field.IsList():
			for i := range v.List().Len() {
				requireKnown(t, v.List().Get(i).Message(), call)
			}
		default:
			requireKnown(t, v.Message(), call)
		}
		return true
	})
}
