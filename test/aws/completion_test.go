package aws

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws"
	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/nodegroup"
)

const (
	template = "k8s.io/cluster-autoscaler/node-template/"
	ofTrain  = "k8s.io/cluster-autoscaler/train"
)

// newCompletion completes, from a stand-in for AWS, a file with the given groups and
// discovery by the tag gpu.
func newCompletion(t *testing.T, groups string) (*nodegroup.Completion, *awstest.Stub, *config.Config) {
	t.Helper()
	t.Setenv("AWS_ACCESS_KEY_ID", "testing")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "testing")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_MAX_ATTEMPTS", "1")
	stub := awstest.NewStub(t)
	t.Cleanup(func() { assert.Empty(t, called.add(stub.Actions()), "actions that aws.Permissions does not name") })
	backend, err := aws.New(t.Context(), aws.Options{Region: "us-east-1", Endpoint: stub.URL(), Cluster: "train"})
	require.NoError(t, err)
	c, err := config.Parse([]byte(`apiVersion: gpu-node-provider.io/v1
kind: ProviderConfig
cloud: {aws: {region: us-east-1, endpoint: "` + stub.URL() + `", cluster: train, discovery: {tags: {gpu: ""}}}}
redis: {addresses: ["127.0.0.1:1"]}
nodeGroups: [` + groups + `]
`))
	require.NoError(t, err)
	return &nodegroup.Completion{Machines: backend.Machines, Discover: backend.Discover, Log: zaptest.NewLogger(t)}, stub, c
}

const t4InFile = `{id: t4, maxSize: 4, autoScalingGroup: T4, labels: {accelerator: from-file}}`

// latest is a launch template that is read at each completion.
func latest(stub *awstest.Stub, name string) *awstest.LaunchTemplate {
	t := awstest.LaunchTemplate{ID: "lt-" + name, Name: name, Version: "1"}
	stub.AddLaunchTemplate(t, "g4dn.xlarge")
	t.Version = "$Latest"
	return &t
}

func TestFileWinsOverTagsOverType(t *testing.T) {
	s, stub, c := newCompletion(t, t4InFile)
	stub.CreateGroup(awstest.Group{Name: "T4", Max: 9, Tags: map[string]string{
		template + "label/accelerator": "from-tag", template + "label/team": "vision", template + "taint/nvidia.com/gpu": "present:NoSchedule",
		template + "resources/ephemeral-storage": "200Gi", template + "resources/cpu": "3",
	}})
	whole, err := s.Complete(t.Context(), c)
	require.NoError(t, err)
	require.Len(t, whole.NodeGroups, 1)
	g := whole.NodeGroups[0]
	require.Empty(t, g.Unknown)
	require.Equal(t, map[string]string{"accelerator": "from-file", "team": "vision"}, g.Labels)
	require.Equal(t, []corev1.Taint{{Key: "nvidia.com/gpu", Value: "present", Effect: corev1.TaintEffectNoSchedule}}, g.Taints)
	for name, want := range map[corev1.ResourceName]string{"cpu": "3", "memory": "16070168Ki", "nvidia.com/gpu": "1", "ephemeral-storage": "200Gi", "pods": "29"} {
		got := g.Capacity[name]
		require.Equal(t, want, got.String(), name)
	}
	reserved := g.Reserved[corev1.ResourceMemory]
	require.EqualValues(t, (255+11*29+100)<<20, reserved.Value())
	require.Equal(t, "75m", g.Reserved.Cpu().String(), "6 % of the first core, 1 % and 0.5 % of the others")
	require.Equal(t, "g4dn.xlarge", g.InstanceType)
	require.Equal(t, []string{"us-east-1a"}, g.Zones)
	require.InDelta(t, 0.526, *g.HourlyPrice, 1e-9)
	require.Equal(t, 4, g.MaxSize, "the file's")
}

func TestDiscovery(t *testing.T) {
	s, stub, c := newCompletion(t, t4InFile)
	tags := map[string]string{"gpu": "yes", ofTrain: "owned", template + "label/accelerator": "nvidia-tesla-t4"}
	stub.CreateGroup(awstest.Group{Name: "T4", Max: 9, Tags: tags})
	stub.CreateGroup(awstest.Group{Name: "train", Min: 1, Max: 7, Desired: 1, Tags: tags})
	stub.CreateGroup(awstest.Group{Name: "Train", Max: 7, Tags: tags})
	stub.CreateGroup(awstest.Group{Name: "unlabelled", Max: 7, Tags: map[string]string{"gpu": "", ofTrain: "owned"}})
	stub.CreateGroup(awstest.Group{Name: "other", Max: 7})
	whole, err := s.Complete(t.Context(), c)
	require.NoError(t, err)
	byASG := map[string]config.NodeGroup{}
	for _, g := range whole.NodeGroups {
		byASG[g.AutoScalingGroup] = g
	}
	require.Len(t, byASG, 4)
	require.Equal(t, "t4", byASG["T4"].ID, "the file has named it")
	require.Equal(t, "train", byASG["train"].ID)
	require.Equal(t, 1, byASG["train"].MinSize)
	require.Equal(t, 7, byASG["train"].MaxSize)
	require.Regexp(t, `^train-[0-9a-f]{8}$`, byASG["Train"].ID)
	require.Contains(t, byASG["unlabelled"].Unknown, "accelerator", "it has a GPU and no GPU label")

	before := byASG["Train"].ID
	stub.DeleteGroup("train")
	again, err := s.Complete(t.Context(), c)
	require.NoError(t, err)
	require.Contains(t, ids(again), before, "who else is there changes no id")

	stay := nodegroup.Leaving(whole, again, func(group string) int { return strings.Count(group, "train") })
	require.Len(t, stay, 1)
	require.Equal(t, "train", stay[0].ID)
	require.True(t, stay[0].Retired)
	require.Empty(t, nodegroup.Leaving(whole, again, func(string) int { return 0 }))
}

func ids(c *config.Config) (all []string) {
	for _, g := range c.NodeGroups {
		all = append(all, g.ID)
	}
	return all
}

func TestNothingDiscovered(t *testing.T) {
	s, _, c := newCompletion(t, "")
	_, err := s.Complete(t.Context(), c)
	require.ErrorIs(t, err, cloud.ErrUnavailable, "no group at all would be believed")
	require.ErrorContains(t, err, "no Auto Scaling group in us-east-1 carries the tags")
}

// TestThrottledLaunchTemplate: without its capacity a group would count for nothing
// in quotas, so what was known of it stays; and without ever having been known it
// is waited for.
func TestThrottledLaunchTemplate(t *testing.T) {
	s, stub, c := newCompletion(t, t4InFile)
	tags := map[string]string{"gpu": "yes", ofTrain: "owned", template + "label/accelerator": "nvidia-tesla-t4"}
	stub.CreateGroup(awstest.Group{Name: "T4", Max: 9, LaunchTemplate: latest(stub, "a")})
	stub.CreateGroup(awstest.Group{Name: "found", Max: 9, LaunchTemplate: latest(stub, "b"), Tags: tags})
	throttled := awstest.Rule{Action: "DescribeLaunchTemplateVersions", Fault: awstest.Throttle()}
	undo := stub.Faults(throttled)
	_, err := s.Complete(t.Context(), c)
	require.ErrorIs(t, err, cloud.ErrThrottled)
	undo()
	whole, err := s.Complete(t.Context(), c)
	require.NoError(t, err)
	require.Len(t, whole.NodeGroups, 2)
	stub.Faults(throttled)
	again, err := s.Complete(t.Context(), c)
	require.NoError(t, err)
	require.True(t, nodegroup.SameGroups(whole, again))

	changed := *c
	changed.NodeGroups = []config.NodeGroup{c.NodeGroups[0]}
	changed.NodeGroups[0].MaxSize, changed.NodeGroups[0].Labels = 7, map[string]string{"accelerator": "another"}
	again, err = s.Complete(t.Context(), &changed)
	require.NoError(t, err)
	require.Equal(t, 7, again.NodeGroups[0].MaxSize, "a change of the file is no matter of AWS")
	require.Equal(t, "another", again.NodeGroups[0].Labels["accelerator"])
	require.False(t, again.NodeGroups[0].Capacity.Cpu().IsZero())

	changed.NodeGroups[0].Labels = nil
	again, err = s.Complete(t.Context(), &changed)
	require.NoError(t, err)
	require.Contains(t, again.NodeGroups[0].Unknown, "accelerator", "it has a GPU and no label for it, and status says so")
	require.False(t, again.NodeGroups[0].Capacity.Cpu().IsZero(), "its machines count in quotas all the same")
}

// TestCP02DiscoveryWithoutACluster: several clusters in an account and no cloud.aws.cluster
// turn discovery off. The groups of the file are served, and the log names the line to add.
func TestCP02DiscoveryWithoutACluster(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "testing")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "testing")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	stub := awstest.NewStub(t)
	for name, cluster := range map[string]string{"T4": "a", "of-a": "a", "of-b": "b"} {
		stub.CreateGroup(awstest.Group{Name: name, Max: 5, Tags: map[string]string{"gpu": "yes", "kubernetes.io/cluster/" + cluster: "owned", template + "label/accelerator": "t4"}})
	}
	file := func(groups, cluster string) *config.Config {
		c, err := config.Parse([]byte(`apiVersion: gpu-node-provider.io/v1
kind: ProviderConfig
cloud: {aws: {region: us-east-1, endpoint: "` + stub.URL() + `", ` + cluster + ` discovery: {tags: {gpu: ""}}}}
redis: {addresses: ["127.0.0.1:1"]}
nodeGroups: [` + groups + `]
`))
		require.NoError(t, err)
		return c
	}
	completion := func(cluster string) (*nodegroup.Completion, *observer.ObservedLogs) {
		backend, err := aws.New(t.Context(), aws.Options{Region: "us-east-1", Endpoint: stub.URL(), Cluster: cluster})
		require.NoError(t, err)
		core, logs := observer.New(zap.ErrorLevel)
		return &nodegroup.Completion{Machines: backend.Machines, Discover: backend.Discover, Log: zap.New(core)}, logs
	}
	s, logs := completion("")
	for range 2 {
		whole, err := s.Complete(t.Context(), file(t4InFile, ""))
		require.NoError(t, err)
		require.Equal(t, []string{"t4"}, ids(whole))
		require.Empty(t, whole.NodeGroups[0].Unknown)
	}
	require.Equal(t, 1, logs.Len(), "once")
	require.Contains(t, logs.All()[0].ContextMap()["reason"], "(a, b): write cluster: NAME below cloud.aws")

	_, err := s.Complete(t.Context(), file("", ""))
	require.ErrorIs(t, err, cloud.ErrPrecondition)
	require.ErrorContains(t, err, "write cluster: NAME below cloud.aws")

	s, _ = completion("a")
	whole, err := s.Complete(t.Context(), file(t4InFile, "cluster: a,"))
	require.NoError(t, err)
	require.Equal(t, []string{"t4", "of-a", "of-b"}, ids(whole))
	require.Empty(t, whole.NodeGroups[1].Unknown)
	require.Contains(t, whole.NodeGroups[2].Unknown, "is of cluster b by its tags", "it is named, and not served")
}
