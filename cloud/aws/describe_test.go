package aws

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/cloud/cloudtest"
)

// TestCallBudget: what 1,000 groups cost, at rest and with some short of capacity.
func TestCallBudget(t *testing.T) {
	stub := awstest.NewStub(t)
	var specs []cloud.Spec
	for n := range 1000 {
		name := fmt.Sprintf("asg-%04d", n)
		stub.CreateGroup(awstest.Group{Name: name, Max: 5, Desired: 1})
		specs = append(specs, cloud.Spec{ID: fmt.Sprintf("g%04d", n), Name: name})
	}
	stub.Settle()
	c := opened(t, stub, Options{})
	require.NoError(t, c.Configure(t.Context(), specs))
	calls := func() map[string]int {
		before := stub.Counts()
		groups, err := c.Describe(t.Context())
		require.NoError(t, err)
		require.Len(t, groups, 1000)
		after := stub.Counts()
		for action, n := range before {
			if after[action] -= n; after[action] == 0 {
				delete(after, action)
			}
		}
		return after
	}
	require.Equal(t, map[string]int{"DescribeAutoScalingGroups": 10, "DescribeInstances": 5}, calls(), "launch times are asked for once")
	require.Equal(t, map[string]int{"DescribeAutoScalingGroups": 10}, calls())

	for n := range 3 {
		name := specs[n].Name
		stub.Capacity(name, 0, noCapacity)
		stub.SetDesired(name, 2)
	}
	require.Equal(t, map[string]int{"DescribeAutoScalingGroups": 10, "DescribeScalingActivities": 3}, calls())
	stub.Step()
	require.Equal(t, map[string]int{"DescribeAutoScalingGroups": 10, "DescribeScalingActivities": 3}, calls())
	require.Equal(t, map[string]int{"DescribeAutoScalingGroups": 10}, calls(), "what has failed is explained already")
}

// TestBadGroupsDoNotSpoilOthers: each is told with what to do.
func TestBadGroupsDoNotSpoilOthers(t *testing.T) {
	stub := awstest.NewStub(t)
	stub.CreateGroup(awstest.Group{Name: "good", Max: 3, Desired: 1})
	stub.CreateGroup(awstest.Group{Name: "weighted", Max: 3, Desired: 2, Overrides: []awstest.Override{{InstanceType: "g4dn.2xlarge", Weight: 2}}})
	stub.CreateGroup(awstest.Group{Name: "vcpus", Max: 30, Desired: 4, DesiredCapacityType: "vcpu"})
	stub.CreateGroup(awstest.Group{Name: "going", Max: 3, Status: "Delete in progress"})
	stub.Settle("good")
	c := opened(t, stub, Options{})
	specs := []cloud.Spec{}
	for _, asg := range []string{"good", "weighted", "vcpus", "going", "absent"} {
		specs = append(specs, cloud.Spec{ID: asg, Name: asg})
	}
	require.NoError(t, c.Configure(t.Context(), specs))
	groups, err := c.Describe(t.Context())
	require.NoError(t, err)
	require.Len(t, groups, 5)
	require.NoError(t, groups[0].Problem)
	require.Equal(t, 1, groups[0].Target)
	for n, row := range []struct {
		class error
		text  string
	}{
		{cloud.ErrPrecondition, "Auto Scaling group weighted has weighted capacity, so a unit of it is not an instance: remove WeightedCapacity"},
		{cloud.ErrPrecondition, "Auto Scaling group vcpus counts its desired capacity in vcpu: set DesiredCapacityType to units"},
		{cloud.ErrPrecondition, "Auto Scaling group going is being deleted (Delete in progress): remove it from the node group file"},
		{cloud.ErrNotFound, "Auto Scaling group absent is not in region us-east-1 of the account that the credentials are for"},
	} {
		g := groups[n+1]
		require.Equal(t, cloud.Group{ID: g.ID, Revision: g.Revision, Problem: g.Problem}, g)
		require.ErrorIs(t, g.Problem, row.class)
		require.ErrorContains(t, g.Problem, row.text)
		_, err := c.Increase(t.Context(), g.ID, cloudtest.Exactly(1))
		require.Equal(t, g.Problem, err)
		_, _, err = c.Delete(t.Context(), g.ID, []string{"aws:///us-east-1a/i-0123456789abcdef0"})
		require.Equal(t, g.Problem, err)
	}

	stub.DeleteGroup("good")
	last := groups[0]
	last.Instances = slices.Clone(last.Instances)
	for range 2 {
		groups, err = c.Describe(t.Context(), "good")
		require.NoError(t, err)
		require.ErrorIs(t, groups[0].Problem, cloud.ErrNotFound)
		groups[0].Problem, groups[0].Revision = nil, last.Revision
		require.Equal(t, last, groups[0], "what was known last stays")
		groups[0].Instances[0].ID = "scribbled over"
	}
}

// TestDescribeFails: what keeps all groups from being read is the call's error.
func TestDescribeFails(t *testing.T) {
	for name, row := range map[string]struct {
		fault awstest.Fault
		class error
		text  string
	}{
		"throttled": {awstest.Throttle(), cloud.ErrThrottled, "reading 1 Auto Scaling groups in us-east-1: Throttling: Rate exceeded"},
		"denied":    {awstest.Deny(), cloud.ErrDenied, "autoscaling:DescribeAutoScalingGroups"},
		"expired":   {awstest.Refuse(http.StatusForbidden, "ExpiredToken", "The security token included in the request is expired"), cloud.ErrDenied, "compare the role's policy"},
		"internal":  {awstest.Internal(), cloud.ErrUnavailable, "InternalFailure"},
		"cut":       {awstest.CutBefore(), cloud.ErrUnavailable, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			c, stub := one(t, awstest.Group{Desired: 1}, Options{})
			before := get(t, c)
			before.Revision = 0
			remove := stub.Faults(awstest.Rule{Action: "DescribeAutoScalingGroups", Fault: row.fault})
			_, err := c.Describe(t.Context())
			require.ErrorIs(t, err, row.class)
			require.ErrorContains(t, err, row.text)
			for _, other := range []error{cloud.ErrThrottled, cloud.ErrDenied, cloud.ErrUnavailable} {
				require.Equal(t, errors.Is(row.class, other), errors.Is(err, other))
			}
			_, err = c.Increase(t.Context(), "t4", cloudtest.Exactly(1))
			require.ErrorIs(t, err, row.class)
			remove()
			after := get(t, c)
			after.Revision = 0
			require.Equal(t, before, after)
		})
	}
}

func TestNoCredentials(t *testing.T) {
	stub := awstest.NewStub(t)
	sdk := awstest.Config(t, stub.URL())
	sdk.Credentials = awssdk.CredentialsProviderFunc(func(context.Context) (awssdk.Credentials, error) {
		return awssdk.Credentials{}, errors.New("no EC2 IMDS role found")
	})
	c, err := open(sdk, Options{})
	require.NoError(t, err)
	require.NoError(t, c.Configure(t.Context(), []cloud.Spec{{ID: "t4", Name: "train-t4"}}))
	_, err = c.Describe(t.Context())
	require.ErrorIs(t, err, cloud.ErrDenied)
	require.ErrorContains(t, err, "no EC2 IMDS role found")
	require.ErrorContains(t, err, "give the Pod a role by EKS Pod Identity or IRSA")
	require.Zero(t, stub.Count("DescribeAutoScalingGroups"))
}

// A reason that cannot be read is worth less than the sizes that can.
func TestReasonsAndLaunchTimesMayFail(t *testing.T) {
	c, stub := one(t, awstest.Group{Desired: 1}, Options{})
	stub.SetDesired("train-t4", 2)
	stub.Faults(awstest.Rule{Action: "DescribeScalingActivities", Fault: awstest.Deny()}, awstest.Rule{Action: "DescribeInstances", Fault: awstest.Deny()})
	g := get(t, c)
	require.Equal(t, 2, g.Target)
	require.Equal(t, stub.Now(), g.Instances[0].Since, "when it was first seen")
}

func TestSince(t *testing.T) {
	c, stub := one(t, awstest.Group{Desired: 1}, Options{})
	launched := stub.Group("train-t4").Instances[0].Launched
	stub.Advance(time.Hour)
	require.WithinDuration(t, launched, get(t, c).Instances[0].Since, time.Second)
	asked := stub.Now()
	_, err := c.Increase(t.Context(), "t4", cloudtest.Exactly(1))
	require.NoError(t, err)
	stub.Advance(time.Hour)
	for _, i := range get(t, c).Instances {
		if i.Placeholder {
			require.WithinDuration(t, asked, i.Since, time.Second)
		}
	}
}

// TestLaunchSuspended is case C-01.
func TestLaunchSuspended(t *testing.T) {
	c, stub := one(t, awstest.Group{Desired: 2, Max: 9}, Options{})
	stub.Suspend("train-t4", "Launch")
	require.Equal(t, 2, get(t, c).Max)
	_, err := c.Increase(t.Context(), "t4", cloudtest.Exactly(1))
	require.ErrorIs(t, err, cloud.ErrPrecondition)
	require.ErrorContains(t, err, "Launch is suspended on Auto Scaling group train-t4")
	stub.Resume("train-t4", "Launch")
	require.Equal(t, 9, get(t, c).Max)
	g, err := c.Increase(t.Context(), "t4", cloudtest.Exactly(1))
	require.NoError(t, err)
	require.Equal(t, 3, g.Target)
}

// TestSomebodyElse is case B-13: their changes are shown, also right after ours.
func TestSomebodyElse(t *testing.T) {
	c, stub := one(t, awstest.Group{Desired: 3}, Options{})
	stub.SetDesired("train-t4", 2)
	require.Equal(t, 2, get(t, c).Target)
	_, err := c.Increase(t.Context(), "t4", cloudtest.Exactly(2)) // to 4
	require.NoError(t, err)
	stub.SetDesired("train-t4", 6)
	require.Equal(t, 6, get(t, c).Target)
	stub.SetDesired("train-t4", 5)
	require.Equal(t, 5, get(t, c).Target)
}

// TestPlaceholders: who they are, who goes first, and that a new process shows
// new ones.
func TestPlaceholders(t *testing.T) {
	c, stub := one(t, awstest.Group{Zones: []string{"us-east-1b", "us-east-1c"}}, Options{})
	stub.Capacity("train-t4", 0, noCapacity)
	g, err := c.Increase(t.Context(), "t4", cloudtest.Exactly(3))
	require.NoError(t, err)
	first := idsOf(g, isPlaceholder)
	for _, id := range first {
		require.Regexp(t, `^aws:///us-east-1b/i-placeholder-t4-\d+$`, id)
	}
	_, given, err := c.Cancel(t.Context(), "t4", cloudtest.These(first[1:2]))
	require.NoError(t, err)
	require.Equal(t, first[1:2], given)
	stub.Capacity("train-t4", 1, noCapacity)
	stub.Launch("train-t4", 1)
	require.Equal(t, first[2:], idsOf(get(t, c), isPlaceholder), "the machine was asked for by the oldest")

	stub.Advance(time.Minute)
	restarted := opened(t, stub, Options{})
	require.NoError(t, restarted.Configure(t.Context(), []cloud.Spec{{ID: "t4", Name: "train-t4"}}))
	again := get(t, restarted)
	require.Equal(t, 2, again.Target)
	require.Len(t, idsOf(again, isPlaceholder), 1)
	for _, id := range idsOf(again, isPlaceholder) {
		require.False(t, slices.Contains(first, id), "%s is used again", id)
	}
	found, err := restarted.Lookup(t.Context(), "t4", first)
	require.NoError(t, err)
	require.Equal(t, []cloud.Existence{cloud.Gone, cloud.Gone, cloud.Gone}, found)
}
