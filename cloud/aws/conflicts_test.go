package aws

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws/awstest"
)

// TestConflicts: what AWS does to a group by itself is found, of our groups only.
func TestConflicts(t *testing.T) {
	stub := awstest.NewStub(t)
	zones := []string{"us-east-1a", "us-east-1b"}
	stub.CreateGroup(awstest.Group{Name: "quiet", Max: 9, Zones: zones, Suspended: []string{"AZRebalance"}})
	stub.CreateGroup(awstest.Group{Name: "one-zone", Max: 9})
	stub.CreateGroup(awstest.Group{
		Name: "suspended", Max: 9, Suspended: []string{"ScheduledActions", "AlarmNotification"},
		ScheduledActions: []awstest.ScheduledAction{{Name: "night", Min: -1, Max: -1, Desired: 0}}, Policies: []awstest.Policy{{Name: "busy", Type: "SimpleScaling"}},
	})
	var many []awstest.ScheduledAction
	for range 120 { // more than AWS puts on a page
		many = append(many, awstest.ScheduledAction{Name: "night", Min: -1, Max: -1, Desired: 0})
	}
	loud := awstest.Group{
		Name: "loud", Max: 9, Zones: zones, MaxInstanceLifetime: 86400, CapacityRebalance: true, ScheduledActions: many[:1],
		Policies: []awstest.Policy{{Name: "busy", Type: "TargetTrackingScaling"}},
	}
	stub.CreateGroup(loud)
	stub.CreateGroup(awstest.Group{Name: "foreign", Max: 9, Zones: zones, ScheduledActions: many, Policies: loud.Policies})
	c := opened(t, stub, Options{})
	require.NoError(t, c.Configure(t.Context(), []cloud.Spec{
		{ID: "q", Name: "quiet"},
		{ID: "l", Name: "loud"},
		{ID: "o", Name: "one-zone"},
		{ID: "m", Name: "missing"},
		{ID: "s", Name: "suspended"},
	}))
	found, err := c.Conflicts(t.Context())
	require.NoError(t, err)
	require.Equal(t, []cloud.Conflict{
		{Group: "l", What: "AZRebalance is on, and loud spans 2 zones: it terminates instances to balance the zones", Do: "aws autoscaling suspend-processes --auto-scaling-group-name loud --scaling-processes AZRebalance"},
		{Group: "l", What: "MaxInstanceLifetime of loud is 86400 s: each instance is terminated at that age", Do: "aws autoscaling update-auto-scaling-group --auto-scaling-group-name loud --max-instance-lifetime 0"},
		{Group: "l", What: "CapacityRebalance of loud is on: a Spot instance at elevated risk is replaced before its interruption", Do: "aws autoscaling update-auto-scaling-group --auto-scaling-group-name loud --no-capacity-rebalance"},
		{Group: "l", What: "scheduled action night of loud changes its size", Do: "aws autoscaling delete-scheduled-action --auto-scaling-group-name loud --scheduled-action-name night"},
		{Group: "l", What: "scaling policy busy of loud changes its size", Do: "aws autoscaling delete-policy --auto-scaling-group-name loud --policy-name busy"},
	}, found)

	for _, action := range []string{"DescribeScheduledActions", "DescribePolicies"} {
		undo := stub.Faults(awstest.Rule{Action: action, Fault: awstest.Deny()})
		some, err := c.Conflicts(t.Context())
		require.ErrorIs(t, err, cloud.ErrDenied)
		require.ErrorContains(t, err, action)
		require.Len(t, some, len(found)-1, "what can be read")
		undo()
	}
}

// A predictive policy that only forecasts changes nothing.
func TestPoliciesInForce(t *testing.T) {
	predictive := func(mode types.PredictiveScalingMode) types.ScalingPolicy {
		return types.ScalingPolicy{PredictiveScalingConfiguration: &types.PredictiveScalingConfiguration{Mode: mode}}
	}
	require.True(t, inForce(types.ScalingPolicy{}))
	require.False(t, inForce(types.ScalingPolicy{Enabled: new(bool)}))
	require.True(t, inForce(predictive(types.PredictiveScalingModeForecastAndScale)))
	require.False(t, inForce(predictive(types.PredictiveScalingModeForecastOnly)))
	require.False(t, inForce(predictive("")), "AWS's default")
}

// TestND11 finds what else replaces or ends instances.
func TestND11RefreshesAndHealthChecks(t *testing.T) {
	for want, g := range map[string]awstest.Group{
		"": {},
		"an instance refresh of t4 is InProgress": {Refresh: "InProgress"},
		"health check type of t4 is ELB":          {HealthCheck: "ELB"},
	} {
		stub := awstest.NewStub(t)
		g.Name, g.Max = "t4", 9
		stub.CreateGroup(g)
		c := opened(t, stub, Options{})
		require.NoError(t, c.Configure(t.Context(), []cloud.Spec{{ID: "t4", Name: "t4"}}))
		found, err := c.Conflicts(t.Context())
		require.NoError(t, err)
		if want == "" {
			require.Empty(t, found)
			continue
		}
		require.Len(t, found, 1)
		require.Contains(t, found[0].What, want)
		require.Contains(t, found[0].Do, "--auto-scaling-group-name t4")
	}
	ended := awstest.NewStub(t)
	ended.CreateGroup(awstest.Group{Name: "t4", Max: 9, Refresh: "Successful"})
	c := opened(t, ended, Options{})
	require.NoError(t, c.Configure(t.Context(), []cloud.Spec{{ID: "t4", Name: "t4"}}))
	found, err := c.Conflicts(t.Context())
	require.NoError(t, err)
	require.Empty(t, found)
}
