package conformance

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const service = "/clusterautoscaler.cloudprovider.v1.externalgrpc.CloudProvider/"

// methods are all calls that there are.
var methods = []string{
	"NodeGroups", "NodeGroupForNode", "PricingNodePrice", "PricingPodPrice", "GPULabel", "GetAvailableGPUTypes", "Cleanup", "Refresh",
	"NodeGroupTargetSize", "NodeGroupIncreaseSize", "NodeGroupDeleteNodes", "NodeGroupDecreaseTargetSize", "NodeGroupNodes",
	"NodeGroupTemplateNodeInfo", "NodeGroupGetOptions",
}

// rawCodec passes bytes through, so that a test is not bound to what our own
// generated code can say.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) ([]byte, error) {
	message, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("%T is not raw", v)
	}
	return *message, nil
}

func (rawCodec) Unmarshal(data []byte, v any) error {
	message, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("%T is not raw", v)
	}
	*message = bytes.Clone(data)
	return nil
}

// rawClient sends and receives bytes. Its answers are not audited.
type rawClient struct{ conn *grpc.ClientConn }

func (s *server) rawClient(t *testing.T) rawClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+s.grpc,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})),
		grpc.WithChainUnaryInterceptor(bounded))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return rawClient{conn}
}

func (c rawClient) call(ctx context.Context, method string, request []byte) ([]byte, error) {
	var response []byte
	err := c.conn.Invoke(ctx, service+method, &request, &response)
	return response, err
}
