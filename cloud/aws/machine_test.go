package aws

import (
	"testing"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	scalingtypes "github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws/awstest"
)

var (
	t4x1 = cloud.Resources{VCPUs: 4, Memory: 16070168 << 10, Pods: 29, Devices: map[string]int{"nvidia.com/gpu": 1}}
	t4x8 = cloud.Resources{VCPUs: 96, Memory: 384 << 30 / 1000 * 925, Pods: 737, Devices: map[string]int{"nvidia.com/gpu": 8}}
)

func TestMachines(t *testing.T) {
	stub := awstest.NewStub(t)
	stub.CreateGroup(awstest.Group{
		Name: "t4", Min: 1, Max: 4, Desired: 1, Zones: []string{"us-east-1a", "us-east-1b"},
		Tags: map[string]string{tagPrefix + "label/accelerator": "nvidia-tesla-t4", "Name": "t4"},
	})
	stub.CreateGroup(awstest.Group{Name: "mixed", Max: 4, Overrides: []awstest.Override{{InstanceType: "g4dn.xlarge"}, {InstanceType: "g4dn.metal"}}})
	stub.CreateGroup(awstest.Group{Name: "makers", Max: 4, Overrides: []awstest.Override{{InstanceType: "g4dn.xlarge"}, {InstanceType: "g4ad.xlarge"}}})
	stub.CreateGroup(awstest.Group{Name: "arm", Max: 4, InstanceType: "m7g.large"})
	stub.AddLaunchTemplate(awstest.LaunchTemplate{ID: "lt-empty", Name: "empty", Version: "1"}, "")
	stub.CreateGroup(awstest.Group{Name: "empty", Max: 4, LaunchTemplate: &awstest.LaunchTemplate{ID: "lt-empty", Name: "empty", Version: "1"}})
	stub.CreateGroup(awstest.Group{Name: "moved", Max: 4, LaunchTemplate: &awstest.LaunchTemplate{ID: "lt-gone", Name: "gone", Version: "1"}})
	stub.CreateGroup(awstest.Group{Name: "typo", Max: 4, InstanceType: "g4dm.xlarge"})
	c := opened(t, stub, Options{})
	names := []string{"t4", "mixed", "makers", "arm", "empty", "moved", "typo", "absent"}
	machines, err := c.Machines(t.Context(), names)
	require.NoError(t, err)
	require.Len(t, machines, len(names))

	require.Equal(t, cloud.Machine{
		InstanceTypes: []string{"g4dn.xlarge"}, Least: t4x1, Most: t4x1, Architecture: "amd64",
		Zones: []string{"us-east-1a", "us-east-1b"}, Min: 1, Max: 4, HourlyPrice: new(0.526), PriceSource: "list price of g4dn.xlarge in us-east-1 on 2026-01-21",
		Each:       map[string]cloud.MachineType{"g4dn.xlarge": {Resources: t4x1, HourlyPrice: new(0.526)}},
		ZoneLabels: []string{"topology.ebs.csi.aws.com/zone"},
		Declared:   []cloud.Declaration{{Source: tagPrefix + "label/accelerator", Kind: cloud.DeclaredLabel, Key: "accelerator", Value: "nvidia-tesla-t4"}},
	}, machines["t4"])
	require.Equal(t, []string{"g4dn.xlarge", "g4dn.metal"}, machines["mixed"].InstanceTypes)
	require.Equal(t, t4x1, machines["mixed"].Least)
	require.Equal(t, t4x8, machines["mixed"].Most)
	require.Empty(t, machines["makers"].Least.Devices, "no GPU is in both")
	require.Equal(t, map[string]int{"nvidia.com/gpu": 1, "amd.com/gpu": 1}, machines["makers"].Most.Devices)
	require.Equal(t, "arm64", machines["arm"].Architecture)
	require.Empty(t, machines["arm"].Least.Devices)

	for asg, row := range map[string]struct {
		class error
		text  string
	}{
		"empty":  {cloud.ErrPrecondition, "launch template of Auto Scaling group empty has no instance type"},
		"moved":  {cloud.ErrPrecondition, "reading version 1 of the launch template of Auto Scaling group moved: InvalidLaunchTemplateId.NotFound"},
		"typo":   {cloud.ErrNotFound, "instance type g4dm.xlarge of Auto Scaling group typo does not exist in us-east-1"},
		"absent": {cloud.ErrNotFound, "Auto Scaling group absent is not in region us-east-1"},
	} {
		require.ErrorIs(t, machines[asg].Problem, row.class, asg)
		require.ErrorContains(t, machines[asg].Problem, row.text)
		require.Empty(t, machines[asg].InstanceTypes)
	}

	templates, kinds := stub.Count("DescribeLaunchTemplateVersions"), stub.Count("DescribeInstanceTypes")
	again, err := c.Machines(t.Context(), []string{"t4", "mixed"})
	require.NoError(t, err)
	require.Equal(t, machines["t4"], again["t4"])
	require.Equal(t, templates, stub.Count("DescribeLaunchTemplateVersions"))
	require.Equal(t, kinds, stub.Count("DescribeInstanceTypes"))
	stub.Advance(typesFor + time.Minute)
	_, err = c.Machines(t.Context(), []string{"t4"})
	require.NoError(t, err)
	require.Equal(t, kinds+1, stub.Count("DescribeInstanceTypes"))
}

// TestLatestVersionOfATemplate: a new version shows once the last reading is templatesFor ago.
func TestLatestVersionOfATemplate(t *testing.T) {
	stub := awstest.NewStub(t)
	stub.AddLaunchTemplate(awstest.LaunchTemplate{ID: "lt-1", Name: "t4", Version: "1"}, "g4dn.xlarge")
	stub.CreateGroup(awstest.Group{Name: "t4", Max: 4, LaunchTemplate: &awstest.LaunchTemplate{ID: "lt-1", Name: "t4", Version: "$Latest"}})
	c := opened(t, stub, Options{})
	for n, want := range []string{"g4dn.xlarge", "g4dn.metal"} {
		if n > 0 {
			stub.AddLaunchTemplate(awstest.LaunchTemplate{ID: "lt-1", Name: "t4", Version: "2"}, want)
			stub.Advance(templatesFor)
		}
		machines, err := c.Machines(t.Context(), []string{"t4"})
		require.NoError(t, err)
		require.Equal(t, []string{want}, machines["t4"].InstanceTypes)
	}
}

func TestTypesByAttributes(t *testing.T) {
	c := opened(t, awstest.NewStub(t), Options{})
	_, err := c.typesOf(t.Context(), &scalingtypes.AutoScalingGroup{
		AutoScalingGroupName: awssdk.String("any"),
		MixedInstancesPolicy: &scalingtypes.MixedInstancesPolicy{LaunchTemplate: &scalingtypes.LaunchTemplate{
			Overrides: []scalingtypes.LaunchTemplateOverrides{{InstanceRequirements: &scalingtypes.InstanceRequirements{}}},
		}},
	})
	require.ErrorIs(t, err, cloud.ErrPrecondition)
	require.ErrorContains(t, err, "Auto Scaling group any chooses instance types by attributes")
}

// TestND05NeuronDevices: EC2 tells of Neuron devices beside GPUs.
func TestND05NeuronDevices(t *testing.T) {
	got := typeOf(types.InstanceTypeInfo{NeuronInfo: &types.NeuronInfo{NeuronDevices: []types.NeuronDeviceInfo{
		{Count: awssdk.Int32(16), CoreInfo: &types.NeuronDeviceCoreInfo{Count: awssdk.Int32(2)}},
	}}})
	require.Equal(t, map[string]int{"aws.amazon.com/neuron": 16, "aws.amazon.com/neuroncore": 32}, got.resources.Devices)
}

// TestND03Memory: no more is promised than Nodes show.
func TestND03Memory(t *testing.T) {
	for name, row := range map[string]struct{ advertisedMiB, ki int64 }{
		"g4dn.xlarge": {16 << 10, 16070168},
		"m5.xlarge":   {16 << 10, 15919124},
		"p6-unknown":  {1000, 1000 * 1024 * 925 / 1000},
	} {
		require.Equal(t, row.ki, memoryOf(name, row.advertisedMiB)>>10, name)
	}
}

func TestGPUs(t *testing.T) {
	device := func(maker string, count, logical int32) types.GpuDeviceInfo {
		d := types.GpuDeviceInfo{Manufacturer: &maker, Count: &count}
		if logical > 0 {
			d.LogicalGpuCount = &logical
		}
		return d
	}
	for name, want := range map[string]struct {
		device types.GpuDeviceInfo
		gpus   map[string]int
	}{
		"p5.48xlarge":  {device("NVIDIA", 8, 8), map[string]int{"nvidia.com/gpu": 8}},
		"g6f.large":    {device("NVIDIA", 0, 1), map[string]int{"nvidia.com/gpu": 1}}, // an eighth of one
		"g4ad.8xlarge": {device("AMD", 2, 0), map[string]int{"amd.com/gpu": 2}},
		"dl1.24xlarge": {device("Habana", 8, 0), map[string]int{"habana.ai/gaudi": 8}},
		"intel":        {device("Intel", 1, 0), map[string]int{"gpu.intel.com/xe": 1}},
		"unknown":      {device("Acme", 1, 0), map[string]int{"acme.unknown/gpu": 1}},
	} {
		got := typeOf(types.InstanceTypeInfo{GpuInfo: &types.GpuInfo{Gpus: []types.GpuDeviceInfo{want.device}}})
		require.Equal(t, want.gpus, got.resources.Devices, name)
	}
}

// The forms of tags of the in-tree provider.
func TestDeclared(t *testing.T) {
	tag := func(key, value string) scalingtypes.TagDescription {
		return scalingtypes.TagDescription{Key: &key, Value: &value}
	}
	of := func(kind cloud.DeclarationKind, key, value, effect string) cloud.Declaration {
		return cloud.Declaration{Source: tagPrefix + string(kind) + "/" + key, Kind: kind, Key: key, Value: value, Effect: effect}
	}
	unknown := of("labels", "typo", "x", "")
	unknown.Problem = "is none of label/, taint/, resources/ and autoscaling-options/"
	require.Equal(t, []cloud.Declaration{
		of(cloud.DeclaredOption, "scaledownunneededtime", "10m", ""),
		of(cloud.DeclaredLabel, "", "x", ""),
		of(cloud.DeclaredLabel, "accelerator", "nvidia-tesla-t4", ""),
		of(cloud.DeclaredLabel, "example.com/pool", "a", ""),
		unknown,
		of(cloud.DeclaredResource, "nvidia.com/gpu", "2", ""),
		of(cloud.DeclaredTaint, "bad", "present", ""),
		of(cloud.DeclaredTaint, "nvidia.com/gpu", "present", "NoSchedule"),
		of(cloud.DeclaredTaint, "spot", "", "PreferNoSchedule"),
	}, declared([]scalingtypes.TagDescription{
		tag(tagPrefix+"taint/spot", ":PreferNoSchedule"),
		tag(tagPrefix+"label/accelerator", "nvidia-tesla-t4"),
		tag(tagPrefix+"labels/typo", "x"),
		tag(tagPrefix+"label/example.com/pool", "a"),
		tag(tagPrefix+"taint/nvidia.com/gpu", "present:NoSchedule"),
		tag(tagPrefix+"taint/bad", "present"),
		tag(tagPrefix+"resources/nvidia.com/gpu", "2"),
		tag(tagPrefix+"autoscaling-options/scaledownunneededtime", "10m"),
		tag(tagPrefix+"label/", "x"),
		tag("k8s.io/cluster-autoscaler/enabled", "true"),
		tag("Name", "t4"),
	}))
}

func TestDiscover(t *testing.T) {
	stub := awstest.NewStub(t)
	const enabled, owned = "k8s.io/cluster-autoscaler/enabled", "k8s.io/cluster-autoscaler/mine"
	stub.CreateGroup(awstest.Group{Name: "z", Max: 1, Tags: map[string]string{enabled: "true", owned: "owned"}})
	stub.CreateGroup(awstest.Group{Name: "a", Max: 1, Tags: map[string]string{enabled: "", owned: "owned"}})
	stub.CreateGroup(awstest.Group{Name: "half", Max: 1, Tags: map[string]string{enabled: "true"}})
	stub.CreateGroup(awstest.Group{Name: "shared", Max: 1, Tags: map[string]string{enabled: "true", owned: "shared"}})
	c := opened(t, stub, Options{Cluster: "mine"})
	for _, row := range []struct {
		tags map[string]string
		want []string
	}{
		{map[string]string{enabled: "", owned: "owned"}, []string{"a", "z"}},
		{map[string]string{enabled: "", owned: ""}, []string{"a", "shared", "z"}},
		{map[string]string{enabled: "true"}, []string{"half", "shared", "z"}},
		{map[string]string{"nobody": ""}, nil},
		{nil, nil},
	} {
		found, err := c.Discover(t.Context(), row.tags, nil)
		require.NoError(t, err)
		require.Equal(t, cloud.Discovery{Groups: row.want, Cluster: "mine"}, found, row.tags)
	}
	stub.Faults(awstest.Rule{Fault: awstest.Deny()})
	_, err := c.Discover(t.Context(), map[string]string{enabled: ""}, nil)
	require.ErrorIs(t, err, cloud.ErrDenied)
}
