package conformance

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	pb "google.golang.org/protobuf/proto"

	"gpu-node-provider/proto"
)

// recorded is one call of a real Cluster Autoscaler.
type recorded struct {
	Seq        int    `json:"seq"`
	Method     string `json:"method"`
	RequestHex string `json:"request_hex"`
	Code       string `json:"code"`

	request []byte
}

func readTrace(t *testing.T, path string) []recorded {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	var calls []recorded
	for lines.Scan() {
		var call recorded
		require.NoError(t, json.Unmarshal(lines.Bytes(), &call))
		call.request, err = hex.DecodeString(call.RequestHex)
		require.NoError(t, err)
		calls = append(calls, call)
	}
	require.NoError(t, lines.Err())
	require.NotEmpty(t, calls)
	return calls
}

// The provider ids of the server that was recorded.
const (
	recordedPrefix      = "sim://"
	recordedPlaceholder = "sim://i-placeholder-"
	recordedTemplate    = "sim://template"
)

// naming is a request that names nodes. Only those are taken apart and put
// together again; all others go out byte for byte as they were recorded.
func naming(t *testing.T, call recorded) (pb.Message, []*proto.ExternalGrpcNode) {
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
	require.NoError(t, pb.Unmarshal(call.request, request))
	require.Empty(t, request.ProtoReflect().GetUnknown(), "%s %d: the wire file knows every field of every release", call.Method, call.Seq)
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

// registered says whether the node is a real one, as opposed to Cluster
// Autoscaler's pictures of nodes that are not there.
func registered(n *proto.ExternalGrpcNode) bool {
	return strings.HasPrefix(n.GetProviderID(), recordedPrefix) && n.GetProviderID() == recordedPrefix+n.GetName()
}
