package conformance

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
)

// release is what the client of a Cluster Autoscaler release can say and read.
// Its messages are put together by hand: our own generated code knows all
// releases at once, and would find what it put there itself.
type release struct {
	name     string
	legacy   bool // fields 3 to 5 of options, field 1 of templates, the old fields of prices
	current  bool // fields 8 to 10 of options, field 2 of templates, the new fields of prices
	booleans bool // fields 6 and 7 of options
}

var releases = []release{
	{name: "1.24 to 1.32", legacy: true},
	{name: "1.33", legacy: true, booleans: true},
	{name: "1.34", legacy: true, current: true, booleans: true},
	{name: "1.35 to 1.37", current: true, booleans: true},
}

// message is bytes on the wire that grow field by field. What it grows from
// stays as it is.
type message []byte

func (m message) bytes(field protowire.Number, v []byte) message {
	return protowire.AppendBytes(protowire.AppendTag(slices.Clip(m), field, protowire.BytesType), v)
}

func (m message) text(field protowire.Number, v string) message { return m.bytes(field, []byte(v)) }

func (m message) number(field protowire.Number, v int64) message {
	return protowire.AppendVarint(protowire.AppendTag(slices.Clip(m), field, protowire.VarintType), uint64(v))
}

func (m message) double(field protowire.Number, v float64) message {
	return protowire.AppendFixed64(protowire.AppendTag(slices.Clip(m), field, protowire.Fixed64Type), math.Float64bits(v))
}

// legacyDuration is meta/v1 Duration: {int64 duration = 1} in nanoseconds.
func legacyDuration(d time.Duration) []byte { return message{}.number(1, d.Nanoseconds()) }

// duration is google.protobuf.Duration: {int64 seconds = 1; int32 nanos = 2}.
func duration(d time.Duration) []byte {
	return message{}.number(1, int64(d/time.Second)).number(2, int64(d%time.Second))
}

// fields takes a message apart; of a field that is there twice the last counts.
func fields(t *testing.T, m []byte) map[protowire.Number][]byte {
	t.Helper()
	found := map[protowire.Number][]byte{}
	for len(m) > 0 {
		number, kind, n := protowire.ConsumeTag(m)
		require.Positive(t, n)
		m = m[n:]
		size := protowire.ConsumeFieldValue(number, kind, m)
		require.Positive(t, size)
		found[number] = m[:size]
		if kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(m)
			found[number] = value
		}
		m = m[size:]
	}
	return found
}

func varint(t *testing.T, v []byte) int64 {
	t.Helper()
	if v == nil {
		return 0
	}
	n, size := protowire.ConsumeVarint(v)
	require.Positive(t, size)
	return int64(n)
}

func double(t *testing.T, v []byte) float64 {
	t.Helper()
	if v == nil {
		return 0
	}
	bits, size := protowire.ConsumeFixed64(v)
	require.Positive(t, size)
	return math.Float64frombits(bits)
}

func TestClientsOfEveryReleaseReadOurAnswers(t *testing.T) {
	needsOwnServer(t)
	parallel(t)
	s := serve(t, file{groups: []string{
		group("t4"), group("over", "scaleDown: {utilizationThreshold: 0.25, ignoreDaemonSets: true, unneededTime: 7m}"),
	}})
	client := s.rawClient(t)
	for _, r := range releases {
		t.Run(r.name, func(t *testing.T) {
			r.readsTemplate(t, client)
			r.readsOptions(t, client)
			r.readsPrices(t, client)
		})
	}
}

func (r release) readsTemplate(t *testing.T, client rawClient) {
	t.Helper()
	response, err := client.call(t.Context(), "NodeGroupTemplateNodeInfo", message{}.text(1, "t4"))
	require.NoError(t, err)
	answer := fields(t, response)
	encoded := answer[2]
	if !r.current {
		encoded = answer[1]
	}
	require.NotEmpty(t, encoded, "without a Node this release panics")
	node := &corev1.Node{}
	require.NoError(t, node.Unmarshal(encoded))
	gpus := node.Status.Allocatable["nvidia.com/gpu"]
	assert.Equal(t, "1", gpus.String())
	assert.Equal(t, "nvidia-tesla-t4", node.Labels["accelerator"])
	assert.Len(t, node.Spec.Taints, 1)
}

// defaults are the flags' values as this release sends them.
func (r release) defaults() []byte {
	m := message{}.double(1, 0.5).double(2, 0.6)
	if r.legacy {
		m = m.bytes(3, legacyDuration(10*time.Minute)).bytes(4, legacyDuration(20*time.Minute)).bytes(5, legacyDuration(15*time.Minute))
	}
	if r.booleans {
		m = m.number(6, 1)
	}
	if r.current {
		m = m.bytes(8, duration(10*time.Minute)).bytes(9, duration(20*time.Minute)).bytes(10, duration(15*time.Minute))
	}
	return m
}

func (r release) readsOptions(t *testing.T, client rawClient) {
	t.Helper()
	_, err := client.call(t.Context(), "NodeGroupGetOptions", message{}.text(1, "t4").bytes(2, r.defaults()))
	code(t, codes.Unimplemented, err)
	response, err := client.call(t.Context(), "NodeGroupGetOptions", message{}.text(1, "over").bytes(2, r.defaults()))
	require.NoError(t, err)
	options := fields(t, fields(t, response)[1])
	assert.InDelta(t, 0.25, double(t, options[1]), 0)
	assert.InDelta(t, 0.6, double(t, options[2]), 0)
	want := map[protowire.Number]time.Duration{3: 7 * time.Minute, 4: 20 * time.Minute, 5: 15 * time.Minute}
	for field, d := range want {
		if r.legacy {
			require.Contains(t, options, field, "missing, it crashes this release")
			assert.Equal(t, d, time.Duration(varint(t, fields(t, options[field])[1])), "field %d", field)
		}
		if r.current {
			assert.Equal(t, duration(d), completed(t, options[field+5]), "field %d", field+5)
		}
	}
	assert.Zero(t, varint(t, options[6]), "zeroOrMaxNodeScaling is never set")
	if r.booleans {
		assert.EqualValues(t, 1, varint(t, options[7]))
	}
}

// completed writes a Duration out with its zeroes, which the wire leaves out.
func completed(t *testing.T, d []byte) []byte {
	t.Helper()
	parts := fields(t, d)
	return duration(time.Duration(varint(t, parts[1]))*time.Second + time.Duration(varint(t, parts[2])))
}

func (r release) readsPrices(t *testing.T, client rawClient) {
	t.Helper()
	start, end := message{}.number(1, 1000), message{}.number(1, 4600)
	template, err := client.call(t.Context(), "NodeGroupTemplateNodeInfo", message{}.text(1, "t4"))
	require.NoError(t, err)
	n := &corev1.Node{}
	require.NoError(t, n.Unmarshal(fields(t, template)[2]))
	node := message{}.text(1, n.Spec.ProviderID).text(2, "template-node-for-t4-1").
		bytes(3, message{}.text(1, groupLabel).text(2, "t4"))

	nodeRequest, podRequest := message{}.bytes(1, node), message{}
	if r.legacy {
		nodeRequest = nodeRequest.bytes(2, start).bytes(3, end)
		podRequest = podRequest.bytes(1, podBytes("1")).bytes(2, start).bytes(3, end)
	}
	if r.current {
		nodeRequest = nodeRequest.bytes(4, start).bytes(5, end)
		podRequest = podRequest.bytes(4, podBytes("1")).bytes(5, start).bytes(6, end)
	}
	for method, request := range map[string][]byte{"PricingNodePrice": nodeRequest, "PricingPodPrice": podRequest} {
		response, err := client.call(context.WithoutCancel(t.Context()), method, request)
		require.NoError(t, err, method)
		assert.InDelta(t, 0.526, double(t, fields(t, response)[1]), 1e-9, method)
	}
}
