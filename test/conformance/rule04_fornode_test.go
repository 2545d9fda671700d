package conformance

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gpu-node-provider/proto"
)

func TestRule04NodeGroupForNodePlacesEveryNode(t *testing.T) {
	parallel(t)
	t.Run("ByProviderIdAlwaysWithMinAndMax", rule04ByID)
	t.Run("UnknownForeignAndControlPlaneNodesAreOKAndNobodys", rule04Foreign)
	t.Run("FakesAreAnsweredByTheId", rule04Fakes)
	t.Run("UpcomingNodesAreAnsweredByTheId", rule04Upcoming)
	t.Run("ANodeWhoseInstanceIsGoneKeepsItsGroup", rule04Gone)
	t.Run("AfterARestartByItsLabel", rule04GoneAfterRestart)
}

// labelled is a Node that says which group it is of.
func labelled(id, group string) *proto.ExternalGrpcNode {
	return &proto.ExternalGrpcNode{ProviderID: id, Name: "a-node", Labels: map[string]string{groupLabel: group}}
}

func rule04ByID(t *testing.T) {
	s := wire(t, file{groups: []string{group("t4", "minSize: 1", "maxSize: 3"), group("a100", "maxSize: 7")}})
	s.grown(t, 2)
	for _, g := range s.nodeGroups(t) {
		for _, id := range s.ids(t, g.GetId()) {
			got := s.groupFor(t, &proto.ExternalGrpcNode{ProviderID: id}) // nothing but the id
			assert.Equal(t, g.GetId(), got.GetId())
			assert.Equal(t, g.GetMinSize(), got.GetMinSize())
			assert.Equal(t, g.GetMaxSize(), got.GetMaxSize())
		}
	}
	if s.process != nil {
		got := s.groupFor(t, node(s.ids(t, "t4")[0]))
		assert.EqualValues(t, 1, got.GetMinSize())
		assert.EqualValues(t, 3, got.GetMaxSize())
	}
}

func rule04Foreign(t *testing.T) {
	s := wire(t, file{})
	s.grown(t, 1)
	for name, n := range map[string]*proto.ExternalGrpcNode{
		"a control plane without provider id": {Name: "control-plane", Labels: map[string]string{"node-role.kubernetes.io/control-plane": ""}},
		"an empty node":                       {},
		"of another cloud":                    node("kind://docker/kind/kind-control-plane"),
		"of AWS":                              node("aws:///eu-west-1a/i-0123456789abcdef0"),
		"of another cloud, with our label":    labelled("kind://x", s.id),
		"without provider id, with our label": labelled("", "no-such-group"),
		"of our form and of no group":         node("simulated:///no-such-group/no-such-group-bcdfg"),
		"of our form, never seen":             node("simulated:///" + s.id + "/" + s.id + "-22222"),
		"a fake of another cloud":             fake("kind://x", "unregistered"),
	} {
		assert.Empty(t, s.groupFor(t, n).GetId(), name)
	}
}

func rule04Fakes(t *testing.T) {
	s := wire(t, file{simulated: []string{"capacity: {t4: 1}"}}) // one runs and one is a placeholder that failed
	came := s.grown(t, 2)
	for _, id := range came {
		for _, reason := range []string{"unregistered", "create-error", ""} {
			assert.Equal(t, s.id, s.groupFor(t, fake(id, reason)).GetId(), "fake %q of %s", reason, id)
		}
	}
}

// upcoming is Cluster Autoscaler's picture of a node that is on its way: the
// labels of the template, and the provider id of what it was copied from.
func upcoming(group, id string, labels map[string]string) *proto.ExternalGrpcNode {
	return &proto.ExternalGrpcNode{
		ProviderID:  id,
		Name:        fmt.Sprintf("template-node-for-%s-6340778718176458582-upcoming-0", group),
		Labels:      labels,
		Annotations: map[string]string{"cluster-autoscaler.k8s.io/upcoming-node": "true"},
	}
}

func rule04Upcoming(t *testing.T) {
	s := wire(t, file{})
	id := s.grown(t, 1)[0]
	template := s.template(t, s.id)
	assert.Equal(t, s.id, s.groupFor(t, upcoming(s.id, id, template.Labels)).GetId(), "copied from a real node")
	assert.Equal(t, s.id, s.groupFor(t, upcoming(s.id, id, nil)).GetId(), "the id is enough")
	assert.Equal(t, s.id, s.groupFor(t, upcoming(s.id, template.Spec.ProviderID, template.Labels)).GetId(), "copied from the template")
	assert.Empty(t, s.groupFor(t, upcoming(s.id, "", nil)).GetId(), "no id and no label: OK, and nobody's")
}

func rule04Gone(t *testing.T) {
	s := wire(t, file{})
	id := s.grown(t, 1)[0]
	s.delete(t, s.id, node(id))
	eventually(t, "the instance is gone", func() bool {
		s.refresh(t)
		assert.Equal(t, s.id, s.groupFor(t, node(id)).GetId(), "its Node is still there")
		return !unique(s.ids(t, s.id))[id]
	})
	for range 3 {
		got := s.groupFor(t, node(id))
		assert.Equal(t, s.id, got.GetId())
		assert.Equal(t, s.nodeGroup(t, s.id).GetMaxSize(), got.GetMaxSize())
		s.refresh(t)
	}
}

func rule04GoneAfterRestart(t *testing.T) {
	parallel(t)
	s := serve(t, file{groups: []string{group("t4"), group("a100")}})
	s.increase(t, "t4", 1)
	id := s.ids(t, "t4")[0]
	s.delete(t, "t4", node(id))
	s.restart(t)
	require.Empty(t, s.ids(t, "t4"))
	got := s.groupFor(t, labelled(id, "t4"))
	assert.Equal(t, "t4", got.GetId())
	assert.EqualValues(t, 4, got.GetMaxSize())
	assert.Empty(t, s.groupFor(t, labelled(id, "no-such-group")).GetId(), "a label of no group")
	assert.Empty(t, s.groupFor(t, labelled("kind://x", "t4")).GetId(), "the label of ours on a node of another cloud")
}
