package main

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"gpu-node-provider/cloud/simulated"
	"gpu-node-provider/provider"
	"gpu-node-provider/provider/cluster"
	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/guard"
	"gpu-node-provider/provider/nodegroup"
)

// TestPlaceBeforeTheFirstSnapshot: while the cloud cannot be read, the label on a Node
// says whose it is, so that its trainings are recorded. Afterwards only the cloud does.
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
	p := &process{kube: &kube{seen: view}}
	_, ok := p.place("aws:///a/ours")
	require.False(t, ok, "a replica that stands by decides nothing")

	server := provider.New(provider.Options{Catalogue: nodegroup.New(c, pretend.TemplateID), Backend: pretend})
	p.office.Store(&office{server: server})
	place, ok := p.place("aws:///a/ours")
	require.True(t, ok)
	require.Equal(t, guard.Place{Group: "t4"}, place)
	for _, instance := range []string{"aws:///a/other", "aws:///a/none"} {
		_, ok = p.place(instance)
		require.False(t, ok, instance)
	}

	require.NoError(t, server.Start(t.Context()))
	_, ok = p.place("aws:///a/ours")
	require.False(t, ok, "the cloud has no such instance")
}

// TestWhatIsMissingIsNamed: who waits for the port to open reads who does not answer,
// the API server or the cloud.
func TestWhatIsMissingIsNamed(t *testing.T) {
	p := &process{synced: make(chan struct{}), recorded: make(chan struct{})}
	require.Equal(t, "the cluster has not been read yet", p.unread())
	close(p.synced)
	p.trouble.Store(new("forbidden"))
	require.Equal(t, "the record of training pods has not been read yet: forbidden", p.unread())
	close(p.recorded)
	require.Equal(t, "the cloud has not been read yet: forbidden", p.unread())
}

// TestFileThatAStandbyRefuses: it takes over with the file that it keeps, so it keeps
// none that loses sight of Nodes.
func TestFileThatAStandbyRefuses(t *testing.T) {
	view, known := cluster.NewMemory(fake.NewClientset(), &record.FakeRecorder{})
	require.NoError(t, known.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{nodegroup.Label: "t4"}}}))
	files := func(groups string) *config.Config {
		c, err := config.Parse([]byte(`apiVersion: gpu-node-provider.io/v1
kind: ProviderConfig
cloud: {aws: {region: us-east-1}}
redis: {addresses: ["127.0.0.1:1"]}
nodeGroups: [` + groups + "]\n"))
		require.NoError(t, err)
		return c
	}
	before := files("{id: t4, autoScalingGroup: train-t4, maxSize: 4}, {id: a10, autoScalingGroup: train-a10, maxSize: 4}")
	for groups, refused := range map[string]bool{
		"{id: t4, autoScalingGroup: train-t4, maxSize: 9}":                                                 false,
		"{id: a10, autoScalingGroup: train-a10, maxSize: 4}":                                               true,
		"{id: t4, autoScalingGroup: other, maxSize: 4}":                                                    true,
		"{id: t4, autoScalingGroup: train-t4, maxSize: 4}, {id: a10, autoScalingGroup: other, maxSize: 4}": false, // it has no Nodes
		"{id: t4, autoScalingGroup: train-t4, maxSize: 4}, {id: new, autoScalingGroup: new, maxSize: 4}":   false,
	} {
		p := &process{kube: &kube{seen: view}, serveOptions: serveOptions{config: before, log: zap.NewNop()}}
		kept, err := p.keepForLater(files(groups))
		require.Equal(t, refused, err != nil, "%s: %v", groups, err)
		require.Equal(t, !refused, kept)
		if refused {
			core, logs := observer.New(zap.InfoLevel)
			p.log = zap.New(core)
			text, err := files(groups).Marshal()
			require.NoError(t, err)
			for range 3 {
				require.True(t, p.take(t.Context(), change{contents: text}), "it tries again until it takes the file or leads")
			}
			require.Equal(t, 1, logs.Len(), "and says so once")
		}
		if refused {
			require.ErrorContains(t, err, "t4: write retired: true until they are gone")
			require.Same(t, before, p.config)
		}
	}
}
