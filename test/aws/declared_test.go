package aws

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/nodegroup"
)

// found completes one discovered group with the given tags beside those of discovery.
func found(t *testing.T, g awstest.Group, tags map[string]string) (config.NodeGroup, *corev1.Node) {
	t.Helper()
	s, stub, c := newCompletion(t, "")
	g.Name, g.Max = "found", 9
	g.Tags = map[string]string{"gpu": "yes", ofTrain: "owned"}
	for key, value := range tags {
		g.Tags[template+key] = value
	}
	stub.CreateGroup(g)
	whole, err := s.Complete(t.Context(), c)
	require.NoError(t, err)
	require.Len(t, whole.NodeGroups, 1)
	group, ok := nodegroup.New(whole, func(string) string { return "template" }).Lookup("found")
	require.True(t, ok)
	node, err := group.Template()
	require.NoError(t, err)
	return whole.NodeGroups[0], node
}

const labelled = "label/accelerator"

// TestND04TagsAreJudgedOneByOne: a tag that breaks a rule is left out and named; the group is
// served with the others.
func TestND04TagsAreJudgedOneByOne(t *testing.T) {
	two := awstest.Group{Zones: []string{"us-east-1a", "us-east-1b"}}
	for tag, row := range map[string]struct{ value, reason string }{
		"label/topology.kubernetes.io/zone":         {"us-east-1a", "contradicts zones, which is us-east-1a and us-east-1b"},
		"label/kubernetes.io/os":                    {"plan9", "is not an operating system of nodes"},
		"label/kubernetes.io/arch":                  {"arm64", "contradicts arch, which is amd64"},
		"label/team":                                {"two words", "is not a label value"},
		"label/not/a/key":                           {"x", "is not a label key"},
		"label/kubernetes.io/hostname":              {"x", "is set on each node by the provider"},
		"taint/dedicated":                           {"training", "is missing; write NoSchedule"},
		"taint/node.kubernetes.io/not-ready":        {":NoSchedule", "no pod will ever fit the group"},
		"resources/memory":                          {"much", "is not a quantity"},
		"resources/cpu":                             {"-1", "is out of bounds"},
		"label/":                                    {"x", "names nothing"},
		"labels/team":                               {"vision", "is none of label/, taint/, resources/"},
		"autoscaling-options/scaledownunneededtime": {"soon", "is not a duration such as 10m"},
		"autoscaling-options/maxnodeprovisiontime":  {"-1s", "is negative"},
	} {
		t.Run(tag, func(t *testing.T) {
			g, node := found(t, two, map[string]string{labelled: "nvidia-tesla-t4", "taint/nvidia.com/gpu": ":NoSchedule", tag: row.value})
			require.Empty(t, g.Unknown)
			require.Len(t, g.Ignored, 1)
			require.Contains(t, g.Ignored[0], template+tag+": ")
			require.Contains(t, g.Ignored[0], row.reason)
			require.NotContains(t, g.Ignored[0], "nodeGroups")
			require.Equal(t, "nvidia-tesla-t4", node.Labels["accelerator"])
			require.Len(t, node.Spec.Taints, 1)
			require.Equal(t, "linux", node.Labels[corev1.LabelOSStable])
		})
	}
}

// TestND04TagsWinOverTheType, as in the in-tree provider.
func TestND04TagsWinOverTheType(t *testing.T) {
	g, node := found(t, awstest.Group{}, map[string]string{
		labelled: "T4", "label/kubernetes.io/os": "windows", "resources/cpu": "3", "resources/hugepages-2Mi": "2Gi", "resources/example.com/fuse": "20",
	})
	require.Empty(t, g.Ignored)
	require.Equal(t, "windows", node.Labels[corev1.LabelOSStable])
	require.Equal(t, "3", node.Status.Capacity.Cpu().String())
	fuse := node.Status.Capacity["example.com/fuse"]
	require.EqualValues(t, 20, fuse.Value())
	require.EqualValues(t, 16070168<<10-2<<30, node.Status.Capacity.Memory().Value(), "ND03: huge pages are set aside")
}

// TestND05Devices: devices are those that the group declares, else those that EC2 tells,
// never both.
func TestND05Devices(t *testing.T) {
	for name, row := range map[string]struct {
		tags map[string]string
		want map[string]int64
	}{
		"by the type":      {nil, map[string]int64{"nvidia.com/gpu": 1}},
		"MIG slices":       {map[string]string{"resources/nvidia.com/mig-1g.5gb": "7"}, map[string]int64{"nvidia.com/mig-1g.5gb": 7}},
		"shared GPUs":      {map[string]string{"resources/nvidia.com/gpu.shared": "4"}, map[string]int64{"nvidia.com/gpu.shared": 4}},
		"slices as GPUs":   {map[string]string{"resources/nvidia.com/gpu": "7"}, map[string]int64{"nvidia.com/gpu": 7}},
		"Windows":          {map[string]string{"label/kubernetes.io/os": "windows"}, map[string]int64{"microsoft.com/directx": 1}},
		"Windows, and tag": {map[string]string{"label/kubernetes.io/os": "windows", "resources/microsoft.com/directx": "4"}, map[string]int64{"microsoft.com/directx": 4}},
		"memory of GPUs":   {map[string]string{"resources/nvidia.com/gpumem": "24576"}, map[string]int64{"nvidia.com/gpu": 1, "nvidia.com/gpumem": 24576}},
	} {
		t.Run(name, func(t *testing.T) {
			if row.tags["resources/nvidia.com/mig-1g.5gb"] == "" && row.tags["resources/nvidia.com/gpu.shared"] == "" {
				if row.tags == nil {
					row.tags = map[string]string{}
				}
				row.tags[labelled] = "nvidia-tesla-t4" // Cluster Autoscaler knows no GPUs under the other names
			}
			g, node := found(t, awstest.Group{}, row.tags)
			require.Empty(t, g.Unknown)
			require.Empty(t, g.Ignored)
			got := map[string]int64{}
			for resource, amount := range node.Status.Capacity {
				if nodegroup.Extended(resource) {
					got[string(resource)] = amount.Value()
				}
			}
			require.Equal(t, row.want, got)
		})
	}
}

// TestND02ZoneOfVolumes: a volume of the EBS CSI driver chooses a zone by a label of its own.
func TestND02ZoneOfVolumes(t *testing.T) {
	const label = "topology.ebs.csi.aws.com/zone"
	_, node := found(t, awstest.Group{}, map[string]string{labelled: "T4"})
	require.Equal(t, "us-east-1a", node.Labels[label])
	_, node = found(t, awstest.Group{Zones: []string{"us-east-1a", "us-east-1b"}}, map[string]string{labelled: "T4"})
	require.NotContains(t, node.Labels, label, "the cloud may launch it in the other zone")
}

// TestND09Options: the options of the in-tree provider's tags.
func TestND09Options(t *testing.T) {
	g, _ := found(t, awstest.Group{}, map[string]string{
		labelled: "T4",
		"autoscaling-options/scaledownutilizationthreshold":    "0.25",
		"autoscaling-options/scaledowngpuutilizationthreshold": "0.75",
		"autoscaling-options/scaledownunneededtime":            "1h0m0s",
		"autoscaling-options/scaledownunreadytime":             "30m",
		"autoscaling-options/maxnodeprovisiontime":             "20m",
		"autoscaling-options/ignoredaemonsetsutilization":      "true",
	})
	require.Empty(t, g.Ignored)
	s := g.ScaleDown
	require.InDelta(t, 0.25, *s.UtilizationThreshold, 0)
	require.InDelta(t, 0.75, *s.GPUUtilizationThreshold, 0)
	require.Equal(t, "1h0m0s 30m0s 20m0s", s.UnneededTime.String()+" "+s.UnreadyTime.String()+" "+s.MaxNodeProvisionTime.String())
	require.True(t, *s.IgnoreDaemonSets)
}

// TestCP06TypesThatAreNotKnownBeforehand: the file writes what a launch template without a type,
// or a choice by attributes, leaves open, as the error advises.
func TestCP06TypesThatAreNotKnownBeforehand(t *testing.T) {
	for name, group := range map[string]awstest.Group{
		"no type":       {LaunchTemplate: &awstest.LaunchTemplate{ID: "lt-empty", Name: "empty", Version: "1"}},
		"by attributes": {Overrides: []awstest.Override{{InstanceType: "g4dn.xlarge", ByAttributes: true}}},
	} {
		for _, written := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", written ", written), func(t *testing.T) {
				file := `{id: t4, maxSize: 4, autoScalingGroup: T4, labels: {accelerator: x}`
				if written {
					file += `, instanceType: g4dn.xlarge, capacity: {cpu: 4, memory: 15Gi, nvidia.com/gpu: 1}, hourlyPrice: 0.5`
				}
				s, stub, c := newCompletion(t, file+"}")
				stub.AddLaunchTemplate(awstest.LaunchTemplate{ID: "lt-empty", Name: "empty", Version: "1"}, "")
				group.Name, group.Max, group.Tags = "T4", 9, map[string]string{template + "taint/spot": ":NoSchedule"}
				stub.CreateGroup(group)
				whole, err := s.Complete(t.Context(), c)
				require.NoError(t, err)
				g := whole.NodeGroups[0]
				if !written {
					require.Contains(t, g.Unknown, "capacity in the node group file")
					return
				}
				require.Empty(t, g.Unknown)
				require.Equal(t, []string{"us-east-1a"}, g.Zones)
				require.Len(t, g.Taints, 1)
				require.Equal(t, "4", g.Capacity.Cpu().String())
				require.Equal(t, "15Gi", g.Capacity.Memory().String())
			})
		}
	}
}

// TestND01ManagedNodeGroup: labels, taints and the market of an EKS managed node group are on no
// tag of its Auto Scaling group.
func TestND01ManagedNodeGroup(t *testing.T) {
	s, stub, c := newCompletion(t, "")
	stub.SetNodeGroup(awstest.NodeGroup{
		Cluster: "train", Name: "gpu", CapacityType: "SPOT",
		Labels: map[string]string{"accelerator": "nvidia-tesla-t4", "team": "vision", "bad": "two words"},
		Tags:   map[string]string{template + "resources/ephemeral-storage": "200Gi"},
		Taints: []awstest.NodeGroupTaint{{Key: "nvidia.com/gpu", Value: "present", Effect: "NO_SCHEDULE"}, {Key: "spot", Effect: "PREFER_NO_SCHEDULE"}},
	})
	stub.CreateGroup(awstest.Group{Name: "eks-gpu-1234", Max: 9, Tags: map[string]string{
		"gpu": "yes", "eks:cluster-name": "train", "eks:nodegroup-name": "gpu", ofTrain: "owned",
		template + "label/team": "speech", template + "resources/ephemeral-storage": "50Gi",
	}})
	whole, err := s.Complete(t.Context(), c)
	require.NoError(t, err)
	g := whole.NodeGroups[0]
	require.Empty(t, g.Unknown)
	require.Equal(t, map[string]string{
		"accelerator": "nvidia-tesla-t4", "eks.amazonaws.com/nodegroup": "gpu", "eks.amazonaws.com/capacityType": "SPOT",
		"team": "speech", // a tag wins, as in the in-tree provider
	}, g.Labels)
	require.Equal(t, []corev1.Taint{
		{Key: "nvidia.com/gpu", Value: "present", Effect: corev1.TaintEffectNoSchedule}, {Key: "spot", Effect: corev1.TaintEffectPreferNoSchedule},
	}, g.Taints)
	require.Equal(t, "200Gi", g.Capacity.StorageEphemeral().String(), "but not a resource's")
	require.Len(t, g.Ignored, 1)
	require.Contains(t, g.Ignored[0], "EKS node group gpu of cluster train, label bad: ")

	stub.Faults(awstest.Rule{Action: "DescribeNodegroup", Fault: awstest.Throttle()})
	again, err := s.Complete(t.Context(), c)
	require.NoError(t, err)
	require.True(t, nodegroup.SameGroups(whole, again), "the last answer counts")
}

// TestND01ManagedNodeGroupThatCannotBeRead: a provider without the permission serves the group
// and names what is missing; while EKS does not answer the start waits.
func TestND01ManagedNodeGroupThatCannotBeRead(t *testing.T) {
	s, stub, c := newCompletion(t, "")
	stub.CreateGroup(awstest.Group{Name: "eks-gpu-1234", Max: 9, Tags: map[string]string{
		"gpu": "yes", "eks:cluster-name": "train", "eks:nodegroup-name": "gpu", ofTrain: "owned", template + labelled: "T4",
	}})
	undo := stub.Faults(awstest.Rule{Action: "DescribeNodegroup", Fault: awstest.Throttle()})
	_, err := s.Complete(t.Context(), c)
	require.ErrorIs(t, err, cloud.ErrThrottled)
	undo()
	stub.Faults(awstest.Rule{Action: "DescribeNodegroup", Fault: awstest.Deny()})
	whole, err := s.Complete(t.Context(), c)
	require.NoError(t, err)
	require.Empty(t, whole.NodeGroups[0].Unknown)
	require.Len(t, whole.NodeGroups[0].Ignored, 1)
	require.Contains(t, whole.NodeGroups[0].Ignored[0], "eks:DescribeNodegroup")
}

// TestCP16MixedArchitectures: a template has one architecture, so a group that launches two is
// not served, and says why.
func TestCP16MixedArchitectures(t *testing.T) {
	s, stub, c := newCompletion(t, t4InFile)
	stub.CreateGroup(awstest.Group{Name: "T4", Max: 9, Overrides: []awstest.Override{{InstanceType: "m5.large"}, {InstanceType: "m7g.large"}}})
	whole, err := s.Complete(t.Context(), c)
	require.NoError(t, err)
	require.Contains(t, whole.NodeGroups[0].Unknown, "Auto Scaling group T4 launches types of different architectures")
}
