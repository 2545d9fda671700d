package nodegroup

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

const plain = "capacity: {cpu: 4, memory: 16Gi}"

func template(t *testing.T, g *Group) *corev1.Node {
	t.Helper()
	node, err := g.Template()
	require.NoError(t, err)
	return node
}

// TestTemplateLabels compares all of them: one too many promises Pods a place
// that no node will have.
func TestTemplateLabels(t *testing.T) {
	for name, c := range map[string]struct {
		lines string
		want  map[string]string // beside those that each node has
	}{
		"nothing said":  {plain, nil},
		"instance type": {plain + ", instanceType: g4dn.xlarge", map[string]string{"node.kubernetes.io/instance-type": "g4dn.xlarge"}},
		"machine": {
			plain + ", os: windows, arch: arm64",
			map[string]string{"kubernetes.io/os": "windows", "kubernetes.io/arch": "arm64"},
		},
		"one zone": {
			plain + ", region: eu-west-1, zones: [eu-west-1a]",
			map[string]string{"topology.kubernetes.io/region": "eu-west-1", "topology.kubernetes.io/zone": "eu-west-1a"},
		},
		"two zones": {
			plain + ", region: eu-west-1, zones: [eu-west-1a, eu-west-1b]",
			map[string]string{"topology.kubernetes.io/region": "eu-west-1"},
		},
		"of its own": {
			"capacity: {cpu: 4, memory: 16Gi, nvidia.com/gpu: 1}, labels: {accelerator: nvidia-tesla-t4, team: a}",
			map[string]string{"accelerator": "nvidia-tesla-t4", "team": "a"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := map[string]string{
				"kubernetes.io/hostname": "template-t4", "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", Label: "t4",
			}
			for k, v := range c.want {
				want[k] = v
			}
			require.Equal(t, want, template(t, group(t, c.lines)).Labels)
		})
	}
}

func TestTemplateResources(t *testing.T) {
	amounts := func(l corev1.ResourceList) map[string]string {
		m := map[string]string{}
		for name, amount := range l {
			m[string(name)] = amount.String()
		}
		return m
	}
	for name, c := range map[string]struct {
		rest                  string
		capacity, allocatable map[string]string
	}{
		"all that a node has": {
			onSimulated + "nodeGroups: [{id: t4, maxSize: 4, " + plain + "}]",
			map[string]string{"cpu": "4", "memory": "16Gi", "pods": "110", "ephemeral-storage": "100Gi"},
			map[string]string{"cpu": "4", "memory": "16Gi", "pods": "110", "ephemeral-storage": "100Gi"},
		},
		"reserved is taken off what Pods can have": {
			onSimulated + "nodeGroups: [{id: t4, maxSize: 4, capacity: {cpu: 4, memory: 16Gi, pods: 29, ephemeral-storage: 50Gi, nvidia.com/gpu: 2}, " +
				"labels: {accelerator: nvidia-tesla-t4}, " +
				"reserved: {cpu: 80m, memory: 1Gi}}]",
			map[string]string{"cpu": "4", "memory": "16Gi", "pods": "29", "ephemeral-storage": "50Gi", "nvidia.com/gpu": "2"},
			map[string]string{"cpu": "3920m", "memory": "15Gi", "pods": "29", "ephemeral-storage": "50Gi", "nvidia.com/gpu": "2"},
		},
		"pods are there on AWS too": {
			onAWS + "nodeGroups: [{id: t4, maxSize: 4, autoScalingGroup: train-t4, instanceType: g4dn.xlarge, " + plain + "}]",
			map[string]string{"cpu": "4", "memory": "16Gi", "pods": "110"},
			map[string]string{"cpu": "4", "memory": "16Gi", "pods": "110"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			node := template(t, only(t, c.rest))
			require.Equal(t, c.capacity, amounts(node.Status.Capacity))
			require.Equal(t, c.allocatable, amounts(node.Status.Allocatable))
		})
	}
}

func TestTemplateIsARegisteredReadyNode(t *testing.T) {
	g := group(t, plain+", taints: [{key: nvidia.com/gpu, value: present, effect: NoSchedule}, {key: spot, effect: PreferNoSchedule}]")
	node := template(t, g)
	require.Equal(t, "template-t4", node.Name)
	require.Equal(t, "simulated:///template/t4", node.Spec.ProviderID)
	require.Equal(t, []corev1.Taint{
		{Key: "nvidia.com/gpu", Value: "present", Effect: corev1.TaintEffectNoSchedule}, {Key: "spot", Effect: corev1.TaintEffectPreferNoSchedule},
	}, node.Spec.Taints)
	require.Len(t, node.Status.Conditions, 1)
	require.Equal(t, corev1.NodeReady, node.Status.Conditions[0].Type)
	require.Equal(t, corev1.ConditionTrue, node.Status.Conditions[0].Status)
}

// TestTemplateWithoutCapacity: Cluster Autoscaler would panic over an empty one.
func TestTemplateWithoutCapacity(t *testing.T) {
	for _, capacity := range []string{"", "capacity: {cpu: 4}, ", "capacity: {memory: 16Gi}, "} {
		g := only(t, onAWS+"nodeGroups: [{id: t4, maxSize: 4, "+capacity+"autoScalingGroup: train-t4}]")
		node, err := g.Template()
		require.Nil(t, node)
		require.ErrorContains(t, err, "node group t4: unknown capacity")
		require.ErrorContains(t, err, "nodeGroups[].capacity")
		require.False(t, fits(g, &corev1.Pod{}), "and no Pod waits for it")
	}
}

// TestNodesShareNothing: what happens to one Node must not show on the next,
// nor on the template.
func TestNodesShareNothing(t *testing.T) {
	g := group(t, "capacity: {cpu: 4, memory: 16Gi, nvidia.com/gpu: 1}, labels: {accelerator: some, a: b}, reserved: {cpu: 1}, taints: [{key: nvidia.com/gpu, effect: NoSchedule}]")
	register := func(name string) *corev1.Node {
		node, err := g.NewNode(name, "simulated:///t4/"+name)
		require.NoError(t, err)
		return node
	}
	first := register("n-1")
	require.Equal(t, "n-1", first.Labels[corev1.LabelHostname])
	require.Equal(t, "simulated:///t4/n-1", first.Spec.ProviderID)

	spoiled := register("n-1")
	spoiled.Spec.Taints[0].Key = "other"
	spoiled.Labels["a"] = "c"
	delete(spoiled.Status.Capacity, "nvidia.com/gpu")
	delete(spoiled.Status.Allocatable, "nvidia.com/gpu")
	require.Equal(t, first, register("n-1"))
	require.Equal(t, []corev1.Taint{{Key: "nvidia.com/gpu", Effect: corev1.TaintEffectNoSchedule}}, first.Spec.Taints)
	require.Equal(t, first.Spec.Taints, template(t, g).Spec.Taints)
	require.Equal(t, first.Status, template(t, g).Status)
}
