package aws

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws/awstest"
)

const (
	describeGroups    = "DescribeAutoScalingGroups"
	describeTemplates = "DescribeLaunchTemplateVersions"
	discoveryTag      = "k8s.io/cluster-autoscaler/mine"
)

// many is a Backend whose groups have launch templates of their own, in the given version of
// one to three.
func many(t *testing.T, n int, version string) (*Cloud, *awstest.Stub, []string) {
	t.Helper()
	stub := awstest.NewStub(t)
	var names []string
	var specs []cloud.Spec
	for n := range n {
		name := fmt.Sprintf("g-%03d", n)
		for v := range 3 {
			stub.AddLaunchTemplate(awstest.LaunchTemplate{ID: "lt-" + name, Name: name, Version: fmt.Sprint(v + 1)}, "g4dn.xlarge")
		}
		stub.CreateGroup(awstest.Group{
			Name: name, Max: 4, LaunchTemplate: &awstest.LaunchTemplate{ID: "lt-" + name, Name: name, Version: version}, Tags: map[string]string{discoveryTag: "owned"},
		})
		names, specs = append(names, name), append(specs, cloud.Spec{ID: name, Name: name})
	}
	c := opened(t, stub, Options{Cluster: "mine"})
	require.NoError(t, c.Configure(t.Context(), specs))
	return c, stub, names
}

func typesOfAll(t *testing.T, c *Cloud, names []string) map[string]int {
	t.Helper()
	machines, err := c.Machines(t.Context(), names)
	require.NoError(t, err)
	count := map[string]int{}
	for _, m := range machines {
		require.NoError(t, m.Problem)
		count[m.InstanceTypes[0]]++
	}
	return count
}

// TestPF05LatestTemplatesAreReadInPages: a reading of 250 moving versions costs two calls, and
// counts for templatesFor.
func TestPF05LatestTemplatesAreReadInPages(t *testing.T) {
	for _, version := range []string{"$Latest", "$Default", "3"} { // 3 is the latest
		t.Run(version, func(t *testing.T) {
			c, stub, names := many(t, 250, version)
			require.Equal(t, map[string]int{"g4dn.xlarge": 250}, typesOfAll(t, c, names))
			require.Equal(t, 2, stub.Count(describeTemplates))

			stub.AddLaunchTemplate(awstest.LaunchTemplate{ID: "lt-g-249", Name: "g-249", Version: "4"}, "g4dn.metal")
			stub.Advance(templatesFor - time.Second)
			require.Equal(t, map[string]int{"g4dn.xlarge": 250}, typesOfAll(t, c, names))
			require.Equal(t, 2, stub.Count(describeTemplates))

			stub.Advance(time.Second)
			again := typesOfAll(t, c, names)
			if version == "$Latest" {
				require.Equal(t, map[string]int{"g4dn.xlarge": 249, "g4dn.metal": 1}, again)
			}
			if version == "3" {
				require.Equal(t, 2, stub.Count(describeTemplates), "a numbered version is immutable")
			} else {
				require.Equal(t, 4, stub.Count(describeTemplates))
			}
		})
	}
}

// TestPF05FewTemplatesAreReadOneByOne: a page holds templates of the whole account.
func TestPF05FewTemplatesAreReadOneByOne(t *testing.T) {
	c, stub, names := many(t, fewTemplates, "$Latest")
	typesOfAll(t, c, names)
	for _, call := range stub.Calls(describeTemplates) {
		require.Contains(t, call.Params, "LaunchTemplateId")
	}
	require.Equal(t, fewTemplates, stub.Count(describeTemplates))
}

// TestPF05VersionsThatNoPageHas: a version that is neither the latest nor the default is read
// alone, and so are all where the pages are refused.
func TestPF05VersionsThatNoPageHas(t *testing.T) {
	c, stub, names := many(t, 20, "2")
	require.Equal(t, map[string]int{"g4dn.xlarge": 20}, typesOfAll(t, c, names))
	require.Equal(t, 1+1+20, stub.Count(describeTemplates), "a page of either alias")

	c, stub, names = many(t, 20, "$Latest")
	stub.Faults(awstest.Rule{
		Action: describeTemplates, Match: func(call awstest.Call) bool { return call.Params["LaunchTemplateId"] == "" },
		Fault: awstest.Refuse(http.StatusBadRequest, "MissingParameter", "no template"),
	})
	require.Equal(t, map[string]int{"g4dn.xlarge": 20}, typesOfAll(t, c, names))
}

// TestPF05ThrottledPages: what throttles the pages would throttle hundreds of calls even more.
func TestPF05ThrottledPages(t *testing.T) {
	c, stub, names := many(t, 250, "$Latest")
	stub.Faults(awstest.Rule{Action: describeTemplates, Fault: awstest.Throttle()})
	machines, err := c.Machines(t.Context(), names)
	require.NoError(t, err)
	for _, m := range machines {
		require.ErrorIs(t, m.Problem, cloud.ErrThrottled)
	}
	require.Equal(t, 3, stub.Count(describeTemplates), "the SDK's attempts of one call")
}

// TestPF05OneReading: machines are described from the last reading of their groups. Only groups
// that it has not shown are read.
func TestPF05OneReading(t *testing.T) {
	c, stub, names := many(t, 3, "$Latest")
	_, err := c.Describe(t.Context())
	require.NoError(t, err)
	typesOfAll(t, c, names)
	require.Equal(t, 1, stub.Count(describeGroups))

	stub.CreateGroup(awstest.Group{Name: "new", Max: 1})
	stub.SetTags(names[0], map[string]string{discoveryTag: "owned", tagPrefix + "label/team": "vision"})
	machines, err := c.Machines(t.Context(), append(names, "new", "absent"))
	require.NoError(t, err)
	require.Equal(t, []string{"new", "absent"}, stub.Calls(describeGroups)[1].Names("AutoScalingGroupNames.member"))
	require.NoError(t, machines["new"].Problem)
	require.ErrorIs(t, machines["absent"].Problem, cloud.ErrNotFound)
	require.Empty(t, machines[names[0]].Declared)

	stub.DeleteGroup(names[1])
	_, err = c.Describe(t.Context())
	require.NoError(t, err)
	machines, err = c.Machines(t.Context(), names)
	require.NoError(t, err)
	require.Len(t, machines[names[0]].Declared, 1, "as the last reading has shown")
	require.ErrorIs(t, machines[names[1]].Problem, cloud.ErrNotFound)
}

// TestPF05DiscoveryInPages: the more pages discovery has, the longer its answer counts.
func TestPF05DiscoveryInPages(t *testing.T) {
	c, stub, names := many(t, 250, "$Latest")
	discover := func(want int) {
		t.Helper()
		found, err := c.Discover(t.Context(), map[string]string{discoveryTag: ""}, nil)
		require.NoError(t, err)
		require.Len(t, found.Groups, want)
	}
	discover(250)
	require.Equal(t, 3, stub.Count(describeGroups))
	stub.DeleteGroup(names[0])
	stub.Advance(2*discoveryPage - time.Second)
	discover(250)
	require.Equal(t, 3, stub.Count(describeGroups))
	stub.Advance(time.Second)
	discover(249)
	require.Equal(t, 6, stub.Count(describeGroups))

	c, stub, names = many(t, 3, "$Latest")
	discover(3)
	stub.DeleteGroup(names[0])
	discover(2)
}
