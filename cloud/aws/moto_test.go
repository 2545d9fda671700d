package aws

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/cloud/cloudtest"
)

// TestMoto is a round on an AWS that others have written: what it takes for the
// wire format and for the rules is not our own opinion.
func TestMoto(t *testing.T) {
	moto := awstest.StartMoto(t)
	moto.CreateGroup(t, awstest.Group{
		Name: "train-t4", Min: 1, Max: 4, Desired: 2, InstanceType: "g4dn.xlarge", Zones: []string{"us-east-1a", "us-east-1b"},
		Tags: map[string]string{tagPrefix + "label/accelerator": "nvidia-tesla-t4", "team": "ml", autoscalerTag + "train": "owned"},
	})
	proxy := awstest.NewProxy(t, moto.URL())
	c, err := open(awstest.Config(t, proxy.URL()), Options{Cluster: "train"})
	require.NoError(t, err)
	specs := []cloud.Spec{{ID: "t4", Name: "train-t4"}, {ID: "absent", Name: "absent"}}
	require.NoError(t, c.Configure(t.Context(), specs))

	found, err := c.Discover(t.Context(), map[string]string{"team": "ml", tagPrefix + "label/accelerator": ""}, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"train-t4"}, found.Groups)
	machines, err := c.Machines(t.Context(), found.Groups)
	require.NoError(t, err)
	require.NoError(t, machines["train-t4"].Problem)
	require.Equal(t, t4x1, machines["train-t4"].Least)
	require.Equal(t, "nvidia-tesla-t4", machines["train-t4"].Declared[0].Value)

	groups, err := c.Describe(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int{2, 1, 4}, []int{groups[0].Target, groups[0].Min, groups[0].Max})
	require.ErrorIs(t, groups[1].Problem, cloud.ErrNotFound)

	_, err = c.Increase(t.Context(), "t4", cloudtest.Exactly(3))
	require.ErrorIs(t, err, cloud.ErrLimit)
	proxy.Faults(awstest.Rule{Action: setDesired, Times: 1, Fault: awstest.CutAfter()})
	g, err := c.Increase(t.Context(), "t4", cloudtest.Exactly(2))
	require.NoError(t, err)
	require.Equal(t, 4, g.Target)
	g = get(t, c)
	require.Len(t, ids(g), 4)

	proxy.Faults(awstest.Rule{Action: terminate, Times: 1, Fault: awstest.CutAfter()})
	doomed := ids(g)[:2]
	g, confirmed, err := c.Delete(t.Context(), "t4", doomed)
	require.NoError(t, err)
	require.Equal(t, doomed, confirmed)
	require.Equal(t, 2, g.Target)
	require.Equal(t, 2, get(t, c).Target)
	require.Equal(t, 2, proxy.Count(terminate))

	existence, err := c.Lookup(t.Context(), "t4", []string{doomed[0], ids(get(t, c))[0], "aws:///us-east-1a/i-0123456789abcdef0"})
	require.NoError(t, err)
	require.Equal(t, []cloud.Existence{cloud.Gone, cloud.Present, cloud.Foreign}, existence)

	allowed := map[string]bool{}
	for _, p := range Permissions {
		allowed[p.Action] = true
	}
	for _, action := range proxy.Actions() {
		require.True(t, allowed[action], "%s is called and not in Permissions", action)
	}
}
