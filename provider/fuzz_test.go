package provider

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	protobuf "google.golang.org/protobuf/proto"

	"gpu-node-provider/proto"
)

// call decodes a request of its method and makes the call.
type call func(s *Server, data []byte) error

func callOf[Req any, PReq interface {
	*Req
	protobuf.Message
}, Resp any](method func(*Server, context.Context, PReq) (Resp, error),
) call {
	return func(s *Server, data []byte) error {
		request := PReq(new(Req))
		if protobuf.Unmarshal(data, request) != nil {
			return nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, err := method(s, ctx, request)
		return err
	}
}

var calls = []call{
	callOf((*Server).NodeGroups),
	callOf((*Server).NodeGroupForNode),
	callOf((*Server).PricingNodePrice),
	callOf((*Server).PricingPodPrice),
	callOf((*Server).GPULabel),
	callOf((*Server).GetAvailableGPUTypes),
	callOf((*Server).Cleanup),
	callOf((*Server).Refresh),
	callOf((*Server).NodeGroupTargetSize),
	callOf((*Server).NodeGroupIncreaseSize),
	callOf((*Server).NodeGroupDeleteNodes),
	callOf((*Server).NodeGroupDecreaseTargetSize),
	callOf((*Server).NodeGroupNodes),
	callOf((*Server).NodeGroupTemplateNodeInfo),
	callOf((*Server).NodeGroupGetOptions),
}

// FuzzRequests sends any bytes to any call: none may panic, fail inside, or
// leave the provider contradicting itself.
func FuzzRequests(f *testing.F) {
	for method := range calls {
		for _, m := range []protobuf.Message{
			&proto.NodeGroupForNodeRequest{Node: &proto.ExternalGrpcNode{ProviderID: "simulated:///t4/t4-abcde", Name: "n"}},
			&proto.NodeGroupIncreaseSizeRequest{Id: "t4", Delta: 1},
			&proto.NodeGroupTargetSizeRequest{Id: "t4"},
			&proto.NodeGroupDeleteNodesRequest{Id: "t4", Nodes: []*proto.ExternalGrpcNode{{ProviderID: "simulated:///t4/placeholder-x"}}},
			&proto.NodeGroupAutoscalingOptionsRequest{Id: "opts", Defaults: &proto.NodeGroupAutoscalingOptions{}},
			&proto.PricingPodPriceRequest{PodBytes: []byte("\n\x00")},
		} {
			data, err := protobuf.Marshal(m)
			require.NoError(f, err)
			f.Add(method, data)
		}
	}
	s := newTestServer(f, testConfig())
	f.Fuzz(func(t *testing.T, method int, data []byte) {
		if method < 0 || method >= len(calls) {
			t.Skip("no such method")
		}
		if err := calls[method](s, data); status.Code(err) == codes.Internal || status.Code(err) == codes.Unknown {
			t.Fatalf("method %d: %v", method, err)
		}
		requireConsistent(t, s)
	})
}

// FuzzProviderID asks for any provider id in every call that takes one.
func FuzzProviderID(f *testing.F) {
	for _, id := range []string{"", "simulated:///t4/t4-abcde", "simulated:///t4/placeholder-abcde", "simulated:///t4/template", "aws:///us-east-1a/i-0123", "kind://x", "simulated:///", "\x00"} {
		f.Add(id, "name", "t4")
	}
	s := newTestServer(f, testConfig())
	f.Fuzz(func(t *testing.T, id, name, label string) {
		node := &proto.ExternalGrpcNode{ProviderID: id, Name: name, Labels: map[string]string{"gpu-node-provider.io/node-group": label}}
		response, err := s.NodeGroupForNode(context.Background(), &proto.NodeGroupForNodeRequest{Node: node})
		require.NoError(t, err)
		require.Contains(t, []string{"", "t4", "opts"}, response.GetNodeGroup().GetId())
		_, err = s.NodeGroupDeleteNodes(context.Background(), &proto.NodeGroupDeleteNodesRequest{Id: "t4", Nodes: []*proto.ExternalGrpcNode{node}})
		require.Contains(t, []codes.Code{codes.OK, codes.InvalidArgument}, status.Code(err), "%v", err)
		requireConsistent(t, s)
	})
}
