package nodegroup

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"gpu-node-provider/provider/config"
)

const (
	onSimulated = "cloud: {simulated: {}}\nredis: {embedded: {}}\n"
	onAWS       = "cloud: {aws: {region: eu-west-1}}\nredis: {addresses: [\"redis:6379\"]}\n"
)

// catalogue is that of a file with the rest of it, as serve makes it.
func catalogue(t *testing.T, rest string) *Catalogue {
	t.Helper()
	c, err := config.Parse([]byte("apiVersion: gpu-node-provider.io/v1\nkind: ProviderConfig\n" + rest))
	require.NoError(t, err)
	return New(c, func(group string) string { return "simulated:///template/" + group })
}

// group is the only group of a simulated cloud, called t4, with more lines.
func group(t *testing.T, lines string) *Group {
	t.Helper()
	return only(t, onSimulated+"nodeGroups:\n- {id: t4, maxSize: 4, "+lines+"}\n")
}

func only(t *testing.T, rest string) *Group {
	t.Helper()
	all := catalogue(t, rest).All()
	require.Len(t, all, 1)
	return all[0]
}

const three = onSimulated + `
gpuLabel: gpu
quotas:
- {name: all, resource: nodes, limit: 9}
- {name: t4s, resource: nodes, limit: 9, nodeGroups: ["t4*"]}
- {name: two, resource: nodes, limit: 9, nodeGroups: [cpu, t4-spot, "t4-*"]}
nodeGroups:
- {id: t4, maxSize: 4, labels: {gpu: nvidia-tesla-t4}, capacity: {cpu: 4, memory: 16Gi, nvidia.com/gpu: 1}}
- {id: cpu, maxSize: 4, labels: {pool: plain}, capacity: {cpu: 4, memory: 16Gi}}
- {id: t4-spot, maxSize: 4, labels: {gpu: nvidia-tesla-t4}, capacity: {cpu: 4, memory: 16Gi, nvidia.com/gpu: 1}}
- {id: l4, maxSize: 4, labels: {gpu: nvidia-l4}, capacity: {cpu: 4, memory: 16Gi, nvidia.com/gpu: 1}}
`

func TestCatalogue(t *testing.T) {
	c := catalogue(t, three)
	var ids []string
	for _, g := range c.All() {
		ids = append(ids, g.ID)
		found, ok := c.Lookup(g.ID)
		require.True(t, ok)
		require.Same(t, g, found)
	}
	require.Equal(t, []string{"t4", "cpu", "t4-spot", "l4"}, ids, "in the order of the file")
	_, ok := c.Lookup("t4-")
	require.False(t, ok)
	require.Equal(t, "gpu", c.GPULabel())
	require.Equal(t, map[string]struct{}{"nvidia-tesla-t4": {}, "nvidia-l4": {}}, c.GPUTypes())

	covered := map[string][]string{}
	for _, q := range c.Quotas() {
		covered[q.Name] = q.Groups
	}
	require.Equal(t, map[string][]string{
		"all": {"t4", "cpu", "t4-spot", "l4"},
		"t4s": {"t4", "t4-spot"},
		"two": {"cpu", "t4-spot"}, // a group that two patterns name counts once
	}, covered)
}

func TestGPUResource(t *testing.T) {
	for resources, want := range map[string]corev1.ResourceName{
		"nvidia.com/gpu: 1}, labels: {accelerator: nvidia-l4": "nvidia.com/gpu",
		"amd.com/gpu: 8}, labels: {accelerator: mi300":        "amd.com/gpu",
		"nvidia.com/gpu: 0":        "",
		"nvidia.com/mig-1g.5gb: 7": "", // Cluster Autoscaler does not know it
		"pods: 10":                 "",
	} {
		require.Equal(t, want, group(t, "capacity: {cpu: 4, memory: 16Gi, "+resources+"}").GPUResource(), resources)
	}
}

func TestExtended(t *testing.T) {
	for name, want := range map[corev1.ResourceName]bool{
		"nvidia.com/gpu": true, "nvidia.com/mig-1g.5gb": true, "kubernetes.io/batteries": false,
		corev1.ResourceCPU: false, corev1.ResourceEphemeralStorage: false, "hugepages-2Mi": false,
	} {
		require.Equal(t, want, Extended(name), name)
	}
}

// TestOverrides: what the file does not say must stay nil, since anything else
// would replace a flag of Cluster Autoscaler.
func TestOverrides(t *testing.T) {
	for scaleDown, want := range map[string]Overrides{
		"{}":                                  {},
		"{utilizationThreshold: 0.4}":         {UtilizationThreshold: new(0.4)},
		"{gpuUtilizationThreshold: 0.7}":      {GPUUtilizationThreshold: new(0.7)},
		"{unneededTime: 5m}":                  {UnneededTime: new(5 * time.Minute)},
		"{unreadyTime: 40m}":                  {UnreadyTime: new(40 * time.Minute)},
		"{maxNodeProvisionTime: 30m}":         {MaxNodeProvisionTime: new(30 * time.Minute)},
		"{ignoreDaemonSets: true}":            {IgnoreDaemonSets: new(true)},
		"{ignoreDaemonSets: false}":           {IgnoreDaemonSets: new(false)}, // written, so it overrides
		"{utilizationThreshold: 0}":           {UtilizationThreshold: new(0.0)},
		"{unneededTime: 0s}":                  {UnneededTime: new(time.Duration(0))},
		"{unneededTime: 1s, unreadyTime: 2s}": {UnneededTime: new(time.Second), UnreadyTime: new(2 * time.Second)},
	} {
		t.Run(scaleDown, func(t *testing.T) {
			got, overridden := group(t, "capacity: {cpu: 4, memory: 16Gi}, scaleDown: "+scaleDown).Overrides()
			require.Equal(t, want, got)
			require.Equal(t, scaleDown != "{}", overridden)
		})
	}
}
