package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	pb "google.golang.org/protobuf/proto"

	"gpu-node-provider/proto"
	"gpu-node-provider/test/conformance"
)

// call is one that a server answered.
type call struct {
	method  string
	request pb.Message
	code    string
}

// readRecording reads the calls of a real 1.36.
func readRecording(t *testing.T, name string) []call {
	t.Helper()
	recorded, err := conformance.Recording(name)
	require.NoError(t, err)
	var calls []call
	for _, c := range recorded {
		if strings.HasPrefix(c.Method, "Pricing") { // the expander's, which is left out
			continue
		}
		request := requestOf(c.Method)
		require.NotNil(t, request, c.Method)
		require.NoError(t, pb.Unmarshal(c.Request, request))
		calls = append(calls, call{c.Method, request, c.Code})
	}
	require.NotEmpty(t, calls)
	return calls
}

func requestOf(method string) pb.Message {
	switch method {
	case "NodeGroups":
		return &proto.NodeGroupsRequest{}
	case "NodeGroupForNode":
		return &proto.NodeGroupForNodeRequest{}
	case "GPULabel":
		return &proto.GPULabelRequest{}
	case "GetAvailableGPUTypes":
		return &proto.GetAvailableGPUTypesRequest{}
	case "Cleanup":
		return &proto.CleanupRequest{}
	case "Refresh":
		return &proto.RefreshRequest{}
	case "NodeGroupTargetSize":
		return &proto.NodeGroupTargetSizeRequest{}
	case "NodeGroupIncreaseSize":
		return &proto.NodeGroupIncreaseSizeRequest{}
	case "NodeGroupDecreaseTargetSize":
		return &proto.NodeGroupDecreaseTargetSizeRequest{}
	case "NodeGroupDeleteNodes":
		return &proto.NodeGroupDeleteNodesRequest{}
	case "NodeGroupNodes":
		return &proto.NodeGroupNodesRequest{}
	case "NodeGroupTemplateNodeInfo":
		return &proto.NodeGroupTemplateNodeInfoRequest{}
	case "NodeGroupGetOptions":
		return &proto.NodeGroupAutoscalingOptionsRequest{}
	case "PricingNodePrice":
		return &proto.PricingNodePriceRequest{}
	case "PricingPodPrice":
		return &proto.PricingPodPriceRequest{}
	}
	return nil
}

// token is a call with what tells it from others, and without what differs from
// run to run: which of several nodes it is about.
func (c call) token() string {
	r, ok := c.request.(*proto.NodeGroupForNodeRequest)
	if !ok {
		return c.method
	}
	n := r.GetNode()
	switch reason := n.GetAnnotations()[fakeReason]; {
	case reason != "":
		return c.method + "(" + reason + ")"
	case n.GetAnnotations()[upcomingAnnotation] != "":
		return c.method + "(upcoming)"
	case n.GetProviderID() == "":
		return c.method + "(unmanaged)"
	}
	return c.method + "(managed)"
}

// mutation tells a call that changes something, with its arguments; empty for the others.
func (c call) mutation() string {
	switch r := c.request.(type) {
	case *proto.NodeGroupIncreaseSizeRequest:
		return fmt.Sprintf("IncreaseSize %s %d", r.GetId(), r.GetDelta())
	case *proto.NodeGroupDecreaseTargetSizeRequest:
		return fmt.Sprintf("DecreaseTargetSize %s %d", r.GetId(), r.GetDelta())
	case *proto.NodeGroupDeleteNodesRequest:
		var nodes []string
		for _, n := range r.GetNodes() {
			nodes = append(nodes, describe(n))
		}
		slices.Sort(nodes)
		return fmt.Sprintf("DeleteNodes %s [%s] %s", r.GetId(), strings.Join(nodes, "; "), c.code)
	case *proto.CleanupRequest:
		return "Cleanup"
	}
	return ""
}

func describe(n *proto.ExternalGrpcNode) string {
	return fmt.Sprintf("%s %s labels=%v annotations=%v", n.GetName(), n.GetProviderID(), n.GetLabels(), n.GetAnnotations())
}

// mutations keeps the order, but for the DeleteNodes of one loop, which run at once.
func mutations(calls []call) []string {
	var list, atOnce []string
	flush := func() {
		slices.Sort(atOnce)
		list = append(list, atOnce...)
		atOnce = nil
	}
	for _, c := range calls {
		switch m := c.mutation(); {
		case c.method == "NodeGroupDeleteNodes":
			atOnce = append(atOnce, m)
		case m != "":
			flush()
			list = append(list, m)
		case c.method == "Refresh":
			flush()
		}
	}
	flush()
	return list
}

// start is what a process calls up to the Refresh of its second loop.
func start(calls []call) []string {
	var list []string
	for _, c := range calls {
		if c.method == "Refresh" && slices.Contains(list, "Refresh") {
			break
		}
		list = append(list, c.token())
	}
	return list
}

// window is what is called from one Refresh to the next, as a multiset and by
// the order in which methods come first.
type window struct{ calls, order string }

func windows(calls []call) []window {
	var list []window
	var tokens, order []string
	flush := func() {
		if len(tokens) > 0 {
			list = append(list, window{counted(tokens), strings.Join(order, " ")})
		}
		tokens, order = nil, nil
	}
	in := false
	for _, c := range calls {
		if c.method == "Refresh" {
			flush()
			in = true
		}
		if !in {
			continue
		}
		tokens = append(tokens, c.token())
		if !slices.Contains(order, c.method) {
			order = append(order, c.method)
		}
	}
	return list // the last one is not complete
}

func counted(tokens []string) string {
	counts := map[string]int{}
	for _, token := range tokens {
		counts[token]++
	}
	var list []string
	for token, n := range counts {
		list = append(list, fmt.Sprintf("%s*%d", token, n))
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}
