package aws

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/cloud/cloudtest"
)

// Tags of ASGs by what they say of the cluster.
var (
	ofA     = map[string]string{enabledTag: "true", autoscalerTag + "a": "owned"}
	ofB     = map[string]string{enabledTag: "true", clusterTag + "b": "owned", tagPrefix + "label/accelerator": "nvidia-tesla-t4"}
	ofBoth  = map[string]string{enabledTag: "true", clusterTag + "a": "shared", clusterTag + "b": "owned"}
	generic = map[string]string{enabledTag: "true", tagPrefix + "label/accelerator": "nvidia-tesla-t4"}
)

// TestCP02OnlyGroupsOfTheCluster: a group that the tags give to another cluster is not served,
// whether it is listed or discovered, and no write reaches it; all others are served.
func TestCP02OnlyGroupsOfTheCluster(t *testing.T) {
	stub := awstest.NewStub(t)
	for name, tags := range map[string]map[string]string{"a": ofA, "b": ofB, "both": ofBoth, "generic": generic, "bare": nil} {
		stub.CreateGroup(awstest.Group{Name: name, Max: 5, Desired: 1, Tags: tags})
		stub.Settle(name)
	}
	for _, row := range []struct {
		asg                string
		listed, discovered string // in the problem; empty when the group is served
	}{
		{"a", "", ""},
		{"b", "is of cluster b by its tags, and this provider serves cluster a", "is of cluster b by its tags, and this provider serves cluster a"},
		{"both", "", ""},
		{"generic", "", "was discovered, and no tag of it names a cluster: tag it with k8s.io/cluster-autoscaler/a"},
		{"bare", "", "was discovered, and no tag of it names a cluster: tag it with k8s.io/cluster-autoscaler/a"},
	} {
		for discovered, want := range map[bool]string{false: row.listed, true: row.discovered} {
			c := opened(t, stub, Options{Cluster: "a"})
			require.NoError(t, c.Configure(t.Context(), []cloud.Spec{
				{ID: "t4", Name: row.asg, Discovered: discovered}, {ID: "other", Name: map[bool]string{true: "both", false: "a"}[row.asg == "a"]},
			}))
			groups, err := c.Describe(t.Context())
			require.NoError(t, err)
			require.NoError(t, groups[1].Problem, "all others go on")
			if want == "" {
				require.NoError(t, groups[0].Problem, row.asg)
				require.Equal(t, 1, groups[0].Target)
				continue
			}
			require.ErrorIs(t, groups[0].Problem, cloud.ErrPrecondition, row.asg)
			require.ErrorContains(t, groups[0].Problem, want)
			require.ErrorContains(t, groups[0].Problem, "Auto Scaling group "+row.asg)
			machine := machineID("us-east-1a", stub.Group(row.asg).Instances[0].ID)
			_, err = c.Increase(t.Context(), "t4", cloudtest.Exactly(1))
			require.ErrorContains(t, err, want)
			_, _, err = c.Delete(t.Context(), "t4", []string{machine})
			require.ErrorContains(t, err, want)
			require.Equal(t, 1, stub.Group(row.asg).Desired)
		}
	}
}

// TestCP02ClusterFromTags: without the field, the name that all discovered groups have in
// common is taken; with several or none, nothing is discovered and the line to add is named.
func TestCP02ClusterFromTags(t *testing.T) {
	enabled := map[string]string{enabledTag: "true"}
	for name, row := range map[string]struct {
		found, listed map[string]map[string]string
		cluster, off  string
	}{
		"one":                {found: map[string]map[string]string{"1": ofA, "2": ofBoth}, cluster: "a"},
		"nothing found":      {listed: map[string]map[string]string{"1": ofA}},
		"several":            {found: map[string]map[string]string{"1": ofA, "2": ofB}, off: "(a, b): write cluster: NAME below cloud.aws"},
		"two in common":      {found: map[string]map[string]string{"1": ofBoth}, off: "(a, b): write cluster: NAME below cloud.aws"},
		"none":               {found: map[string]map[string]string{"1": generic}, off: "no tag of the Auto Scaling groups names a cluster: write cluster: NAME below cloud.aws"},
		"one without a name": {found: map[string]map[string]string{"1": ofA, "2": generic}, off: "(a): write cluster: NAME below cloud.aws"},
		"listed agrees":      {found: map[string]map[string]string{"1": ofBoth}, listed: map[string]map[string]string{"l": {autoscalerTag + "a": ""}}, cluster: "a"},
		"listed contradicts": {found: map[string]map[string]string{"1": ofB}, listed: map[string]map[string]string{"l": {autoscalerTag + "a": ""}}, off: "(a, b): write"},
		"listed names none":  {found: map[string]map[string]string{"1": ofA}, listed: map[string]map[string]string{"l": nil}, cluster: "a"},
	} {
		t.Run(name, func(t *testing.T) {
			stub := awstest.NewStub(t)
			var listed, want []string
			for asg, tags := range row.listed {
				listed = append(listed, asg)
				stub.CreateGroup(awstest.Group{Name: asg, Max: 5, Tags: without(tags, enabledTag)})
			}
			for _, asg := range []string{"1", "2"} {
				if tags, ok := row.found[asg]; ok {
					stub.CreateGroup(awstest.Group{Name: asg, Max: 5, Tags: tags})
					want = append(want, asg)
				}
			}
			c := opened(t, stub, Options{})
			got, err := c.Discover(t.Context(), enabled, append(listed, "absent"))
			require.NoError(t, err)
			require.Equal(t, row.cluster, got.Cluster)
			require.Contains(t, got.Problem, row.off)
			if row.off != "" {
				require.Empty(t, got.Groups)
				return
			}
			require.Empty(t, got.Problem)
			require.Equal(t, want, got.Groups)
			if row.cluster == "" {
				return
			}
			stub.CreateGroup(awstest.Group{Name: "late", Max: 5, Tags: map[string]string{enabledTag: "true", autoscalerTag + "late": ""}})
			got, err = c.Discover(t.Context(), enabled, listed)
			require.NoError(t, err)
			require.Equal(t, row.cluster, got.Cluster, "another cluster's new group does not take the others out of service")
			require.Contains(t, got.Groups, "late")
			machines, err := c.Machines(t.Context(), []string{"late"})
			require.NoError(t, err)
			require.ErrorContains(t, machines["late"].Problem, "is of cluster late by its tags")
		})
	}
}

func without(tags map[string]string, key string) map[string]string {
	rest := map[string]string{}
	for name, value := range tags {
		if name != key {
			rest[name] = value
		}
	}
	return rest
}
