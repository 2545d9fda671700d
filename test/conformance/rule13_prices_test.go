package conformance

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"gpu-node-provider/proto"
)

func TestRule13Prices(t *testing.T) {
	parallel(t)
	t.Run("ANodesPriceIsPerHourTimesDuration", rule13Node)
	t.Run("ByProviderIdOrByTheTemplatesLabel", rule13Which)
	t.Run("APodsPriceIsItsShareOfTheCheapestGroupItFits", rule13Pod)
	t.Run("AGroupWithoutAPriceGetsARoughOne", rule13Rough)
	t.Run("BothCallsAreImplementedInBothForms", rule13Forms)
	t.Run("TimesThatMakeNoSenseAreInvalidArgument", rule13Times)
}

func (s *server) nodePrice(t *testing.T, n *proto.ExternalGrpcNode, seconds int64) float64 {
	t.Helper()
	r, err := s.PricingNodePrice(t.Context(), &proto.PricingNodePriceRequest{Node: n, StartTimestamp: stamp(1000), EndTimestamp: stamp(1000 + seconds)})
	require.NoError(t, err)
	return r.GetPrice()
}

func (s *server) podPrice(t *testing.T, pod []byte, seconds int64) float64 {
	t.Helper()
	r, err := s.PricingPodPrice(t.Context(), &proto.PricingPodPriceRequest{PodBytes: pod, StartTimestamp: stamp(1000), EndTimestamp: stamp(1000 + seconds)})
	require.NoError(t, err)
	return r.GetPrice()
}

func rule13Node(t *testing.T) {
	parallel(t)
	s := serve(t, file{groups: []string{group("t4", "hourlyPrice: 0.526"), group("a100", "hourlyPrice: 32.77"), group("free", "hourlyPrice: 0")}})
	for id, hourly := range map[string]float64{"t4": 0.526, "a100": 32.77, "free": 0} {
		s.increase(t, id, 1)
		n := node(s.ids(t, id)[0])
		assert.InDelta(t, hourly, s.nodePrice(t, n, 3600), 1e-9)
		assert.InDelta(t, hourly/4, s.nodePrice(t, n, 900), 1e-9)
		assert.InDelta(t, hourly*24, s.nodePrice(t, n, 24*3600), 1e-9)
		assert.Zero(t, s.nodePrice(t, n, 0))
	}
}

func rule13Which(t *testing.T) {
	s := wire(t, file{groups: []string{group("t4"), group("a100", "hourlyPrice: 7")}})
	came := s.grown(t, 1)
	for _, g := range s.nodeGroups(t) {
		r, err := s.NodeGroupTemplateNodeInfo(t.Context(), &proto.NodeGroupTemplateNodeInfoRequest{Id: g.GetId()})
		require.NoError(t, err)
		asked := templateOf(r)
		want := s.nodePrice(t, asked, 3600)
		if s.process != nil {
			assert.InDelta(t, map[string]float64{"t4": 0.526, "a100": 7}[g.GetId()], want, 1e-9)
		}
		if g.GetId() == s.id {
			assert.Equal(t, want, s.nodePrice(t, &proto.ExternalGrpcNode{ProviderID: came[0]}, 3600), "by provider id alone")
			// A template is copied from a node, whose id it keeps.
			asked.ProviderID = came[0]
			assert.Equal(t, want, s.nodePrice(t, asked, 3600))
		}
	}
	hour := &proto.PricingNodePriceRequest{Node: node("kind://x"), StartTimestamp: stamp(0), EndTimestamp: stamp(3600)}
	_, err := s.PricingNodePrice(t.Context(), hour)
	code(t, codes.NotFound, err) // then Cluster Autoscaler drops the option, as it should
}

func rule13Pod(t *testing.T) {
	parallel(t)
	s := serve(t, file{groups: []string{
		group("one", "hourlyPrice: 1"),
		group("four", "hourlyPrice: 10", "capacity: {cpu: 64, memory: 256Gi, nvidia.com/gpu: 4}"),
		group("cheap-and-wrong", "hourlyPrice: 0.1", "labels: {accelerator: nvidia-tesla-p4}"), // the pod's selector does not match
	}})
	assert.InDelta(t, 1, s.podPrice(t, podBytes("1"), 3600), 1e-9, "all of the cheapest that it fits")
	assert.InDelta(t, 5, s.podPrice(t, podBytes("2"), 3600), 1e-9, "half of the only one that it fits")
	assert.InDelta(t, 2.5, s.podPrice(t, podBytes("2"), 1800), 1e-9)
	assert.Positive(t, s.podPrice(t, podBytes("64"), 3600), "a pod that fits nothing has a rough price, since an error would end all scale-up")
}

func rule13Rough(t *testing.T) {
	parallel(t)
	s := serve(t, file{groups: []string{
		group("small", "hourlyPrice:"),
		group("large", "hourlyPrice:", "capacity: {cpu: 96, memory: 1152Gi, nvidia.com/gpu: 8}"),
	}})
	small, large := s.nodePrice(t, s.templateNode(t, "small"), 3600), s.nodePrice(t, s.templateNode(t, "large"), 3600)
	assert.Positive(t, small)
	assert.Greater(t, large, small, "by its resources")
}

func (s *server) templateNode(t *testing.T, id string) *proto.ExternalGrpcNode {
	t.Helper()
	r, err := s.NodeGroupTemplateNodeInfo(t.Context(), &proto.NodeGroupTemplateNodeInfoRequest{Id: id})
	require.NoError(t, err)
	return templateOf(r)
}

func rule13Forms(t *testing.T) {
	s := wire(t, file{})
	n := s.templateNode(t, s.id)
	wantNode, wantPod := s.nodePrice(t, n, 3600), s.podPrice(t, podBytes("1"), 3600)
	assert.Positive(t, wantPod)
	for name, r := range map[string]*proto.PricingNodePriceRequest{
		"1.24 to 1.33": {Node: n, StartTime: stamp(1000), EndTime: stamp(4600)},
		"1.34":         {Node: n, StartTime: stamp(1000), EndTime: stamp(4600), StartTimestamp: stamp(1000), EndTimestamp: stamp(4600)},
		"new wins":     {Node: n, StartTime: stamp(0), EndTime: stamp(99999), StartTimestamp: stamp(1000), EndTimestamp: stamp(4600)},
	} {
		got, err := s.PricingNodePrice(t.Context(), r)
		require.NoError(t, err, name)
		assert.InDelta(t, wantNode, got.GetPrice(), 1e-9, name)
	}
	p := podBytes("1")
	for name, r := range map[string]*proto.PricingPodPriceRequest{
		"1.24 to 1.33": {Pod: p, StartTime: stamp(1000), EndTime: stamp(4600)},
		"1.34":         {Pod: p, PodBytes: p, StartTime: stamp(1000), EndTime: stamp(4600), StartTimestamp: stamp(1000), EndTimestamp: stamp(4600)},
		"new wins":     {Pod: podBytes("0"), PodBytes: p, StartTimestamp: stamp(1000), EndTimestamp: stamp(4600)},
	} {
		got, err := s.PricingPodPrice(t.Context(), r)
		require.NoError(t, err, name)
		assert.InDelta(t, wantPod, got.GetPrice(), 1e-9, name)
	}
}

func rule13Times(t *testing.T) {
	s := wire(t, file{})
	n := s.templateNode(t, s.id)
	for name, times := range map[string][2]*timestamppb.Timestamp{
		"none":             {nil, nil},
		"no end":           {stamp(0), nil},
		"no start":         {nil, stamp(0)},
		"end before start": {stamp(3600), stamp(0)},
		"out of range":     {stamp(0), stamp(1 << 62)},
		"negative nanos":   {{Nanos: -1}, stamp(1)},
	} {
		_, err := s.PricingNodePrice(t.Context(), &proto.PricingNodePriceRequest{Node: n, StartTimestamp: times[0], EndTimestamp: times[1]})
		assert.NotEmpty(t, code(t, codes.InvalidArgument, err), name)
		_, err = s.PricingPodPrice(t.Context(), &proto.PricingPodPriceRequest{PodBytes: podBytes("1"), StartTimestamp: times[0], EndTimestamp: times[1]})
		assert.NotEmpty(t, code(t, codes.InvalidArgument, err), name)
	}
}
