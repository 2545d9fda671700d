package conformance

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
)

// That a Node is registered under the same id shows only with a Kubernetes API;
// here the id that is listed has to be the only spelling that counts.
func TestRule03InstanceIdIsTheProviderIdByteForByte(t *testing.T) {
	parallel(t)
	t.Run("EveryListedIdFindsItsGroup", rule03Found)
	t.Run("AnotherSpellingIsAnotherInstance", rule03Spellings)
	t.Run("TheIdStaysFromBootToKill", rule03Stays)
	t.Run("TheTemplatesIdIsNoInstances", rule03Template)
}

func rule03Found(t *testing.T) {
	s := wire(t, file{groups: []string{group("t4"), group("a100")}})
	s.grown(t, 2)
	all := map[string]string{}
	for _, g := range s.nodeGroups(t) {
		for _, id := range s.ids(t, g.GetId()) {
			assert.Empty(t, all[id], "%s is listed twice", id)
			all[id] = g.GetId()
			assert.Equal(t, g.GetId(), s.groupFor(t, node(id)).GetId())
		}
	}
}

func rule03Spellings(t *testing.T) {
	s := wire(t, file{})
	id := s.grown(t, 1)[0]
	target := s.target(t, s.id)
	for _, other := range []string{
		strings.ToUpper(id), id + "/", id + " ", " " + id, id + "\x00", strings.Replace(id, "/", "//", 1),
		strings.TrimPrefix(id, "simulated://"), id[:len(id)-1], id + id, strings.ReplaceAll(id, "/", "%2F"),
	} {
		assert.Empty(t, s.groupFor(t, node(other)).GetId(), "%q", other)
		code(t, codes.InvalidArgument, s.tryDelete(t.Context(), s.id, fake(other, "unregistered")))
	}
	assert.Equal(t, target, s.size(t, s.id))
}

func rule03Stays(t *testing.T) {
	parallel(t)
	s := serve(t, file{simulated: []string{"bootDelay: 300ms", "terminateDelay: 1h"}})
	s.increase(t, s.id, 2)
	booting := s.ids(t, s.id, creating)
	require.Len(t, booting, 2)
	eventually(t, "the machines run", func() bool {
		s.refresh(t)
		return len(s.ids(t, s.id, running)) == 2
	})
	assert.ElementsMatch(t, booting, s.ids(t, s.id, running))
	s.restart(t)
	assert.ElementsMatch(t, booting, s.ids(t, s.id, running))
	s.delete(t, s.id, nodes(booting...)...)
	assert.ElementsMatch(t, booting, s.ids(t, s.id, deleting))
}

func rule03Template(t *testing.T) {
	s := wire(t, file{})
	came := s.grown(t, 1)
	template := s.template(t, s.id).Spec.ProviderID
	assert.NotEmpty(t, template)
	assert.NotContains(t, append(came, s.ids(t, s.id)...), template)
}
