package main

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"gpu-node-provider/cloud/simulated"
	"gpu-node-provider/provider"
	"gpu-node-provider/provider/cluster"
	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/nodegroup"
)

// TestPlaceBeforeTheFirstSnapshot: while the cloud cannot be read, the label of a Node
// determines its group, so that its training pods are recorded. Afterwards only the cloud
// does.
func TestPlaceBeforeTheFirstSnapshot(t *testing.T) {
	view, known := cluster.NewMemory(fake.NewClientset(), &record.FakeRecorder{})
	for name, labels := range map[string]map[string]string{"ours": {nodegroup.Label: "t4"}, "other": {}} {
		require.NoError(t, known.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: corev1.NodeSpec{ProviderID: "aws:///a/" + name}}))
	}
	c, err := config.Parse([]byte(`apiVersion: gpu-node-provider.io/v1
kind: ProviderConfig
cloud: {simulated: {}}
redis: {addresses: ["127.0.0.1:1"]}
nodeGroups: [{id: t4, maxSize: 4, capacity: {cpu: 4, memory: 16Gi}}]
`))
	require.NoError(t, err)
	pretend, err := simulated.New(simulated.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pretend.Close()) })
	r := &replica{kube: &kube{view: view}}
	place, ok := r.place("aws:///a/ours")
	require.True(t, ok)
	require.Equal(t, nodegroup.Place{Group: "t4"}, place)
	for _, instance := range []string{"aws:///a/other", "aws:///a/none"} {
		_, ok = r.place(instance)
		require.False(t, ok, instance)
	}

	server, err := provider.New(t.Context(), provider.Options{Catalogue: nodegroup.New(c, pretend.TemplateID), Backend: pretend})
	require.NoError(t, err)
	r.leading.Store(&leader{server: server})
	_, ok = r.place("aws:///a/ours")
	require.False(t, ok, "the cloud has no such instance")
}
