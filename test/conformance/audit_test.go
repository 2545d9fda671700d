package conformance

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gpu-node-provider/proto"
)

// auditor holds every answer of every test to what no answer may be, whatever
// the test itself is about.
type auditor struct {
	mu    sync.Mutex
	found []string
}

// maxMessage is what survives of an error's text in Cluster Autoscaler's status.
const maxMessage = 500

// mayBeUnimplemented are the calls for which Cluster Autoscaler tells
// Unimplemented from other errors.
var mayBeUnimplemented = []string{"NodeGroupGetOptions", "NodeGroupTemplateNodeInfo", "PricingNodePrice", "PricingPodPrice"}

func (a *auditor) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, cc, options...)
	if err != nil {
		a.failure(path.Base(method), status.Convert(err))
		return err
	}
	a.answer(path.Base(method), reply)
	return nil
}

func (a *auditor) failure(method string, s *status.Status) {
	switch s.Code() {
	case codes.Unknown, codes.Internal, codes.DataLoss:
		a.complain("%s answered %s: %s; every error has a class, and none is a panic", method, s.Code(), s.Message())
	case codes.Unimplemented:
		if !slices.Contains(mayBeUnimplemented, method) {
			a.complain("%s is Unimplemented", method)
		}
	default:
	}
	if len(s.Message()) > maxMessage || !utf8.ValidString(s.Message()) || strings.Contains(s.Message(), "\n") {
		a.complain("%s answered with a text that is long or no single line of UTF-8: %q", method, s.Message())
	}
}

func (a *auditor) answer(method string, reply any) {
	switch r := reply.(type) {
	case *proto.NodeGroupsResponse:
		if len(r.GetNodeGroups()) == 0 {
			a.complain("NodeGroups answered OK with an empty list: Cluster Autoscaler forgets its scale-ups")
		}
		for _, g := range r.GetNodeGroups() {
			a.group(method, g)
		}
	case *proto.NodeGroupForNodeResponse:
		if r.GetNodeGroup() == nil {
			a.complain("NodeGroupForNode answered OK without a group")
		} else if r.GetNodeGroup().GetId() != "" {
			a.group(method, r.GetNodeGroup())
		}
	case *proto.NodeGroupTemplateNodeInfoResponse:
		if len(r.GetNodeBytes()) == 0 {
			a.complain("NodeGroupTemplateNodeInfo answered OK without a Node: Cluster Autoscaler panics")
		}
	case *proto.NodeGroupNodesResponse:
		for _, i := range r.GetInstances() {
			a.instance(i)
		}
	case *proto.NodeGroupAutoscalingOptionsResponse:
		if r.GetNodeGroupAutoscalingOptions().GetZeroOrMaxNodeScaling() {
			a.complain("NodeGroupGetOptions set zeroOrMaxNodeScaling: one bad instance would take the whole group")
		}
	default:
	}
}

func (a *auditor) group(method string, g *proto.NodeGroup) {
	if g.GetId() == "" || g.GetMinSize() < 0 || g.GetMinSize() > g.GetMaxSize() {
		a.complain("%s answered with a group that cannot be: %v", method, g)
	}
}

// instance: an error counts only with state creating and with a code.
func (a *auditor) instance(i *proto.Instance) {
	state, e := i.GetStatus().GetInstanceState(), i.GetStatus().GetErrorInfo()
	if i.GetId() == "" || state == proto.InstanceStatus_unspecified {
		a.complain("an instance without an id or a state: %v", i)
	}
	if e == nil {
		return
	}
	if state != proto.InstanceStatus_instanceCreating || e.GetErrorCode() == "" || !slices.Contains([]int32{1, 99}, e.GetInstanceErrorClass()) {
		a.complain("an error that Cluster Autoscaler ignores: %v", i)
	}
}

func (a *auditor) complain(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.found) < 20 { // more say the same
		a.found = append(a.found, fmt.Sprintf(format, args...))
	}
}

func (a *auditor) complaints() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.found)
}
