package conformance

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"gpu-node-provider/proto"
)

// Releases from 1.24 to 1.37 are tested by TestClientsOfEveryReleaseReadOurAnswers and
// the recordings. That the port waits for the guard's first pass over all nodes needs
// Kubernetes: test/e2e.
func TestRule14EveryClientAndEveryMessageIsAnswered(t *testing.T) {
	parallel(t)
	t.Run("EmptyMessages", rule14Empty)
	t.Run("BytesThatAreNoMessage", rule14Garbage)
	t.Run("NilParts", rule14Nil)
	t.Run("HugeMessages", rule14Huge)
	t.Run("HostileText", rule14Text)
	t.Run("HostileNumbers", rule14Numbers)
	t.Run("UnknownFieldsAreNoHarm", rule14UnknownFields)
	t.Run("EveryMethodThereIs", rule14Methods)
}

// unharmed checks that nothing has changed and nothing has panicked.
func (s *server) unharmed(t *testing.T, size int) {
	t.Helper()
	assert.Equal(t, size, s.size(t, s.id))
	if s.process != nil {
		assert.True(t, s.running(), "the process lives")
		assert.Empty(t, s.logged(t, "handler panicked"))
		assert.NotContains(t, s.stderr.String(), "panic:")
	}
}

func rule14Empty(t *testing.T) {
	s := wire(t, file{})
	s.grown(t, 1)
	size := s.size(t, s.id)
	client := s.rawClient(t)
	want := map[string][]codes.Code{
		"NodeGroupForNode":            {codes.InvalidArgument},
		"PricingNodePrice":            {codes.InvalidArgument},
		"PricingPodPrice":             {codes.InvalidArgument},
		"NodeGroupTargetSize":         {codes.NotFound, codes.InvalidArgument},
		"NodeGroupIncreaseSize":       {codes.InvalidArgument},
		"NodeGroupDeleteNodes":        {codes.NotFound, codes.InvalidArgument},
		"NodeGroupDecreaseTargetSize": {codes.InvalidArgument},
		"NodeGroupNodes":              {codes.NotFound, codes.InvalidArgument},
		"NodeGroupTemplateNodeInfo":   {codes.NotFound, codes.InvalidArgument},
		"NodeGroupGetOptions":         {codes.NotFound, codes.InvalidArgument},
	}
	for _, method := range methods {
		_, err := client.call(t.Context(), method, nil)
		expected, known := want[method]
		if !known {
			expected = []codes.Code{codes.OK}
		}
		assert.Contains(t, expected, status.Code(err), "%s: %v", method, err)
	}
	s.unharmed(t, size)
}

// rule14Garbage: what does not even decode never reaches the provider; gRPC
// answers Internal for it.
func rule14Garbage(t *testing.T) {
	s := wire(t, file{})
	s.grown(t, 1)
	size := s.size(t, s.id)
	client := s.rawClient(t)
	for name, request := range map[string][]byte{
		"a tag without a value":      {0x0a},
		"a length beyond the end":    {0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f},
		"group field, never closed":  {0x0b},
		"field number zero":          {0x02, 0x00},
		"a varint without an end":    slices.Repeat([]byte{0xff}, 40),
		"text that is not UTF-8":     message{}.text(1, "t4\xff\xfe").text(2, "t4\xff\xfe"),
		"wrong types":                message{}.double(1, 1).double(2, 1),
		"a message nested in itself": nested(2000),
		"zeroes":                     make([]byte, 1000),
		"random":                     []byte(strings.Repeat("\x8a\x01\x02\x7f\xee", 300)),
	} {
		for _, method := range methods {
			_, err := client.call(t.Context(), method, request)
			assert.Contains(t, []codes.Code{codes.OK, codes.InvalidArgument, codes.NotFound, codes.Unimplemented, codes.Internal},
				status.Code(err), "%s, %s: %v", method, name, err)
			if status.Code(err) == codes.Internal {
				assert.Contains(t, status.Convert(err).Message(), "unmarshal", "%s, %s", method, name)
			}
		}
	}
	s.unharmed(t, size)
}

func nested(depth int) []byte {
	m := message{}
	for range depth {
		m = message{}.bytes(1, m)
	}
	return m
}

func rule14Nil(t *testing.T) {
	s := wire(t, file{})
	s.grown(t, 1)
	size := s.size(t, s.id)
	client := s.rawClient(t)
	emptyNode := message{}.bytes(1, nil)
	for _, c := range []struct {
		method  string
		request message
		want    codes.Code
	}{
		{"NodeGroupForNode", emptyNode, codes.OK}, // a node without anything is nobody's
		{"PricingNodePrice", emptyNode, codes.InvalidArgument},
		{"PricingNodePrice", emptyNode.bytes(4, nil).bytes(5, nil), codes.NotFound},
		{"PricingPodPrice", message{}.bytes(4, nil).bytes(5, nil).bytes(6, nil), codes.InvalidArgument},
		{"PricingPodPrice", message{}.bytes(4, []byte{0x0a}).bytes(5, nil).bytes(6, nil), codes.InvalidArgument},
		{"PricingPodPrice", message{}.bytes(1, []byte("no pod")).bytes(2, nil).bytes(3, nil), codes.InvalidArgument},
		{"NodeGroupDeleteNodes", emptyNode.text(2, s.id), codes.InvalidArgument},
		{"NodeGroupDeleteNodes", message{}.text(2, s.id), codes.OK},
		{"NodeGroupIncreaseSize", message{}.text(2, s.id), codes.InvalidArgument},
		{"NodeGroupDecreaseTargetSize", message{}.text(2, s.id), codes.InvalidArgument},
	} {
		_, err := client.call(t.Context(), c.method, c.request)
		assert.Equal(t, c.want.String(), status.Code(err).String(), "%s %x: %v", c.method, []byte(c.request), err)
	}
	s.unharmed(t, size)
}

// rule14Huge: what is within gRPC's limit of 4 MiB has to be dealt with; what is
// beyond it gRPC refuses by itself.
func rule14Huge(t *testing.T) {
	s := wire(t, file{})
	s.grown(t, 1)
	size := s.size(t, s.id)
	text := strings.Repeat("x", 3<<20)
	code(t, codes.NotFound, s.tryIncrease(t.Context(), text, 1))
	code(t, codes.InvalidArgument, s.tryDelete(t.Context(), s.id, &proto.ExternalGrpcNode{ProviderID: text, Name: text[:1000]}))
	code(t, codes.InvalidArgument, s.tryDelete(t.Context(), s.id, &proto.ExternalGrpcNode{Name: text}))
	assert.Empty(t, s.groupFor(t, &proto.ExternalGrpcNode{ProviderID: text}).GetId())
	labels := map[string]string{}
	for i := range 30_000 {
		labels[strings.Repeat("l", 60)+string(rune('a'+i%26))+time.Duration(i).String()] = "v"
	}
	assert.Empty(t, s.groupFor(t, &proto.ExternalGrpcNode{ProviderID: "x", Labels: labels}).GetId())
	many := make([]*proto.ExternalGrpcNode, 100_000)
	for i := range many {
		many[i] = &proto.ExternalGrpcNode{ProviderID: "simulated:///" + time.Duration(i).String()}
	}
	code(t, codes.InvalidArgument, s.tryDelete(t.Context(), s.id, many...))
	code(t, codes.ResourceExhausted, s.tryIncrease(t.Context(), text+text, 1))
	s.unharmed(t, size)
}

func rule14Text(t *testing.T) {
	s := wire(t, file{})
	s.grown(t, 1)
	size := s.size(t, s.id)
	for _, text := range []string{
		"\x00", "\n", "a\nb", "%s%n%d", "../../etc/passwd", "simulated:///../" + s.id + "/template", "'; DROP TABLE nodes; --",
		"\u202e\u2066", strings.Repeat("🚀", 50), "{{.}}", `"`, "\x1b[31m", s.id + "\x00",
	} {
		n := &proto.ExternalGrpcNode{ProviderID: text, Name: text, Labels: map[string]string{groupLabel: text, text: text}, Annotations: map[string]string{text: text}}
		assert.Empty(t, s.groupFor(t, n).GetId(), "%q", text)
		code(t, codes.InvalidArgument, s.tryDelete(t.Context(), s.id, n))
		code(t, codes.NotFound, s.tryDelete(t.Context(), text, n))
		code(t, codes.NotFound, s.tryIncrease(t.Context(), text, 1))
		code(t, codes.NotFound, s.tryDecrease(t.Context(), text, -1))
		_, err := s.PricingNodePrice(t.Context(), &proto.PricingNodePriceRequest{Node: n, StartTimestamp: stamp(0), EndTimestamp: stamp(1)})
		code(t, codes.NotFound, err)
		_, err = s.NodeGroupGetOptions(t.Context(), &proto.NodeGroupAutoscalingOptionsRequest{Id: text})
		code(t, codes.NotFound, err)
	}
	s.unharmed(t, size)
}

func rule14Numbers(t *testing.T) {
	needsOwnServer(t)
	parallel(t)
	s := serve(t, file{groups: []string{group("t4"), group("over", "scaleDown: {utilizationThreshold: 0.3}")}})
	for _, delta := range []int{math.MinInt32, math.MinInt32 + 1, -1, 0} {
		code(t, codes.InvalidArgument, s.tryIncrease(t.Context(), s.id, delta))
	}
	s.increase(t, s.id, math.MaxInt32) // what fits of it
	code(t, codes.FailedPrecondition, s.tryDecrease(t.Context(), s.id, math.MinInt32))
	for _, seconds := range []int64{math.MaxInt64, math.MinInt64, -1, 315_576_000_001} {
		d := &durationpb.Duration{Seconds: seconds, Nanos: math.MaxInt32}
		r, err := s.NodeGroupGetOptions(t.Context(), &proto.NodeGroupAutoscalingOptionsRequest{Id: "over", Defaults: &proto.NodeGroupAutoscalingOptions{
			ScaleDownUnneededDuration: d, ScaleDownUnreadyDuration: d, MaxNodeProvisionDuration: d,
			ScaleDownUtilizationThreshold: math.NaN(), ScaleDownGpuUtilizationThreshold: math.Inf(1),
		}})
		if err == nil {
			assert.Positive(t, r.GetNodeGroupAutoscalingOptions().GetScaleDownUnneededDuration().AsDuration())
		}
		for _, at := range []int64{math.MaxInt64, math.MinInt64} {
			_, err := s.PricingNodePrice(t.Context(), &proto.PricingNodePriceRequest{
				Node: s.templateNode(t, s.id), StartTimestamp: stamp(seconds), EndTimestamp: stamp(at),
			})
			code(t, codes.InvalidArgument, err)
		}
	}
	s.unharmed(t, 4)
}

// rule14UnknownFields: a later release may say more than we know.
func rule14UnknownFields(t *testing.T) {
	s := wire(t, file{})
	client := s.rawClient(t)
	more := message{}.text(1, s.id).text(100, "something new").number(101, 7)
	response, err := client.call(t.Context(), "NodeGroupTargetSize", more)
	require.NoError(t, err)
	assert.EqualValues(t, s.target(t, s.id), varint(t, fields(t, response)[1]))
	for _, method := range []string{"NodeGroups", "Refresh", "GPULabel", "GetAvailableGPUTypes", "Cleanup"} {
		_, err := client.call(t.Context(), method, more)
		require.NoError(t, err, method)
	}
}

// rule14Methods: all calls that any release makes are there.
func rule14Methods(t *testing.T) {
	s := wire(t, file{})
	client := s.rawClient(t)
	for _, method := range methods {
		_, err := client.call(t.Context(), method, message{}.text(1, s.id))
		if method != "NodeGroupGetOptions" { // whose normal answer it is
			assert.NotEqual(t, codes.Unimplemented, status.Code(err), method)
		}
	}
	_, err := client.call(t.Context(), "NoSuchMethod", nil)
	code(t, codes.Unimplemented, err)
}
