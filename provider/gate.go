package provider

import (
	"context"
	"strings"
)

// Gate decides whether live instances of a group may go. It is asked at the
// moment of deletion, after every other check and before anything is changed.
// It answers with a refusal for each instance that has to stay; an error
// (wrapping ErrGateUnavailable) means that it cannot tell, and keeps all.
type Gate func(ctx context.Context, group string, nodes []GateNode) ([]Refusal, error)

// GateNode is an instance that somebody wants to be gone.
type GateNode struct {
	Instance string // provider id
	// Node is the Node's name. It is the provider id for Cluster Autoscaler's
	// fakes, which stand for instances without a Node; a machine may be training all the same.
	Node string
}

// Fake says whether this is one of Cluster Autoscaler's stand-ins for an
// instance without a Node (clusterstate.FakeNode: name == providerID).
func (n GateNode) Fake() bool { return n.Node == n.Instance }

// Refusal keeps an instance.
type Refusal struct {
	Instance string
	Reason   string // short: it ends in an Event, with other refusals
}

// ask puts the question to the gate.
func (s *Server) ask(ctx context.Context, group string, nodes []GateNode) (map[string]Refusal, error) {
	refused := map[string]Refusal{}
	if s.gate == nil || len(nodes) == 0 {
		return refused, nil
	}
	refusals, err := s.gate(ctx, group, nodes)
	if err != nil {
		return nil, err
	}
	for _, r := range refusals {
		refused[r.Instance] = r
	}
	return refused, nil
}

// reasons puts the refusals of nodes into one line.
func reasons(nodes []GateNode, refused map[string]Refusal) string {
	var all []string
	for _, n := range nodes {
		if r, ok := refused[n.Instance]; ok {
			all = append(all, n.Node+": "+r.Reason)
		}
	}
	return strings.Join(all, "; ")
}
