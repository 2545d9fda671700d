package aws

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/cloud/cloudtest"
)

const (
	setDesired = "SetDesiredCapacity"
	terminate  = "TerminateInstanceInAutoScalingGroup"
)

func ids(g cloud.Group) []string { return idsOf(g, isMachine) }

// short is a group that desires more than it has, and lacks the capacity.
func short(t *testing.T, running, missing int, o Options) (*Cloud, *awstest.Stub, cloud.Group) {
	t.Helper()
	c, stub := one(t, awstest.Group{Desired: running}, o)
	stub.Capacity("train-t4", 0, noCapacity)
	stub.SetDesired("train-t4", running+missing)
	stub.Step()
	g := get(t, c)
	require.Len(t, idsOf(g, isPlaceholder), missing)
	return c, stub, g
}

func TestIncreaseAsksForAnAbsoluteValueDespiteCooldown(t *testing.T) {
	c, stub := one(t, awstest.Group{Desired: 2}, Options{})
	stub.Cooldown("train-t4", true)
	_, err := c.Increase(t.Context(), "t4", cloudtest.Exactly(3))
	require.NoError(t, err)
	calls := stub.Calls(setDesired)
	require.Len(t, calls, 1)
	require.Equal(t, "5", calls[0].Params["DesiredCapacity"])
	require.Equal(t, "false", calls[0].Params["HonorCooldown"])
}

// TestReadingSettlesALostAnswer: what AWS shows is as good as its answer, so an
// increase whose every answer is lost ends at once.
func TestReadingSettlesALostAnswer(t *testing.T) {
	c, stub := one(t, awstest.Group{Desired: 2}, Options{})
	stub.Faults(awstest.Rule{Action: setDesired, Fault: awstest.CutAfter()})
	g, err := c.Increase(t.Context(), "t4", cloudtest.Exactly(3))
	require.NoError(t, err)
	require.Equal(t, 5, g.Target)
	require.Equal(t, 1, stub.Count(setDesired))
}

// A lost answer is settled by sending the same value, so it counts once.
func TestLostAnswersOfAnIncrease(t *testing.T) {
	for name, fault := range map[string]awstest.Fault{
		"cut after": awstest.CutAfter(), "cut before": awstest.CutBefore(), "500 after": awstest.InternalAfter(), "busy": awstest.InProgress(),
	} {
		t.Run(name, func(t *testing.T) {
			c, stub := one(t, awstest.Group{Desired: 2}, Options{})
			stub.Faults(awstest.Rule{Action: setDesired, Times: 1, Fault: fault})
			g, err := c.Increase(t.Context(), "t4", cloudtest.Exactly(3))
			require.NoError(t, err)
			require.Equal(t, 5, g.Target)
			require.Equal(t, 5, stub.Group("train-t4").Desired)
			for _, call := range stub.Calls(setDesired) {
				require.Equal(t, "5", call.Params["DesiredCapacity"])
			}
		})
	}
}

// TestOutcomeOfAnIncrease: what is said when a fault stays until time is up.
func TestOutcomeOfAnIncrease(t *testing.T) {
	for name, row := range map[string]struct {
		fault awstest.Fault
		class error
	}{
		"cut":    {awstest.CutBefore(), cloud.ErrUnknownOutcome},
		"500":    {awstest.Internal(), cloud.ErrUnknownOutcome},
		"busy":   {awstest.InProgress(), cloud.ErrUnavailable},
		"denied": {awstest.Deny(), cloud.ErrDenied},
		"gone":   {awstest.Refuse(400, "ValidationError", "AutoScalingGroup name not found - null"), cloud.ErrNotFound},
		"limit":  {awstest.Refuse(400, "ValidationError", "New SetDesiredCapacity value 5 is above max value 4 for the AutoScalingGroup."), cloud.ErrLimit},
	} {
		t.Run(name, func(t *testing.T) {
			c, stub := one(t, awstest.Group{Desired: 2}, Options{})
			stub.Faults(awstest.Rule{Action: setDesired, Fault: row.fault})
			ctx, cancel := context.WithTimeout(t.Context(), answerTime+3*firstPause)
			defer cancel()
			_, err := c.Increase(ctx, "t4", cloudtest.Exactly(3))
			require.ErrorIs(t, err, row.class)
			require.NoError(t, ctx.Err(), "the caller still has time to hear it")
		})
	}
}

func TestLimitsOfAnIncrease(t *testing.T) {
	c, stub := one(t, awstest.Group{Desired: 2, Max: 4}, Options{})
	for delta, class := range map[int]error{-1: cloud.ErrInvalid, 3: cloud.ErrLimit, math.MaxInt: cloud.ErrLimit} {
		_, err := c.Increase(t.Context(), "t4", cloudtest.Exactly(delta))
		require.ErrorIs(t, err, class)
	}
	require.Zero(t, stub.Count(setDesired))
}

// TestManage: an increase has new instances protected, and a cancel the others
// before it lowers anything, 50 at a time.
func TestManage(t *testing.T) {
	c, stub, g := short(t, 60, 1, Options{})
	_, _, err := c.Cancel(t.Context(), "t4", cloudtest.These(idsOf(g, isPlaceholder)))
	require.NoError(t, err)
	var order []string
	for _, call := range stub.Calls("UpdateAutoScalingGroup", "SetInstanceProtection", setDesired) {
		order = append(order, fmt.Sprintf("%s %d", call.Action, len(call.Names("InstanceIds.member"))))
	}
	require.Equal(t, []string{"UpdateAutoScalingGroup 0", "SetInstanceProtection 50", "SetInstanceProtection 10", setDesired + " 0"}, order)
	require.True(t, stub.Group("train-t4").Protected)

	stub.Capacity("train-t4", -1, "")
	_, err = c.Increase(t.Context(), "t4", cloudtest.Exactly(1))
	require.NoError(t, err)
	stub.Settle()
	for _, i := range stub.Group("train-t4").Instances {
		require.True(t, i.Protected)
	}
	require.Equal(t, 1, stub.Count("UpdateAutoScalingGroup"))

	other, stub2 := one(t, awstest.Group{}, Options{})
	_, err = other.Increase(t.Context(), "t4", cloudtest.Exactly(1))
	require.NoError(t, err)
	require.Equal(t, "UpdateAutoScalingGroup", stub2.Calls("UpdateAutoScalingGroup", setDesired)[0].Action)
}

// Growing matters more than protecting, which the cancel insists on anyway.
func TestIncreaseWithoutLeaveToProtect(t *testing.T) {
	c, stub := one(t, awstest.Group{Desired: 1}, Options{})
	stub.Faults(awstest.Rule{Action: "UpdateAutoScalingGroup", Fault: awstest.Deny()})
	g, err := c.Increase(t.Context(), "t4", cloudtest.Exactly(1))
	require.NoError(t, err)
	_, _, err = c.Cancel(t.Context(), "t4", cloudtest.These(idsOf(g, isPlaceholder)))
	require.ErrorIs(t, err, cloud.ErrDenied)
	require.ErrorContains(t, err, "protecting new instances of Auto Scaling group train-t4")
	require.Equal(t, 2, stub.Group("train-t4").Desired)
}

func TestRequire(t *testing.T) {
	c, stub, g := short(t, 2, 1, Options{ScaleInProtection: Require})
	_, _, err := c.Cancel(t.Context(), "t4", cloudtest.These(idsOf(g, isPlaceholder)))
	require.ErrorIs(t, err, cloud.ErrPrecondition)
	require.ErrorContains(t, err, "scaleInProtection is require, new instances protected: false, instances without protection: 2")
	require.Zero(t, stub.Count("UpdateAutoScalingGroup")+stub.Count("SetInstanceProtection"))
	require.Equal(t, 3, stub.Group("train-t4").Desired)
}

func TestIgnore(t *testing.T) {
	c, stub, g := short(t, 2, 1, Options{ScaleInProtection: Ignore})
	_, given, err := c.Cancel(t.Context(), "t4", cloudtest.These(idsOf(g, isPlaceholder)))
	require.NoError(t, err)
	require.Len(t, given, 1)
	require.Zero(t, stub.Count("UpdateAutoScalingGroup")+stub.Count("SetInstanceProtection"))
}

// An instance that boots without protection could be in service without it when
// the desired capacity falls.
func TestNothingIsLoweredWhileSomethingBootsUnprotected(t *testing.T) {
	c, stub := one(t, awstest.Group{Desired: 2}, Options{})
	stub.SetDesired("train-t4", 4)
	stub.Launch("train-t4", 1)
	placeholders := idsOf(get(t, c), isPlaceholder)
	_, _, err := c.Cancel(t.Context(), "t4", cloudtest.These(placeholders))
	require.ErrorIs(t, err, cloud.ErrUnavailable)
	require.ErrorContains(t, err, "boots and cannot be protected")
	require.Zero(t, stub.Count(setDesired))
	stub.Boot("train-t4", 1)
	_, given, err := c.Cancel(t.Context(), "t4", cloudtest.These(placeholders))
	require.NoError(t, err)
	require.Equal(t, placeholders, given)
	require.Empty(t, stub.Victims())
}

// TestInstanceArrivesDuringCancel is case B-01: the seventh comes into service
// between the reading and the write.
func TestInstanceArrivesDuringCancel(t *testing.T) {
	registry := prometheus.NewRegistry()
	c, stub := one(t, awstest.Group{Desired: 6, Protected: true}, Options{Registerer: registry})
	stub.SetDesired("train-t4", 7)
	stub.BeginLaunch("train-t4", 1)
	waiting := idsOf(get(t, c), isPlaceholder)
	stub.Faults(awstest.Rule{Action: setDesired, Times: 1, Fault: awstest.Do(func() { stub.Arrive("train-t4", 1, true) })})
	g, given, err := c.Cancel(t.Context(), "t4", cloudtest.These(waiting))
	require.NoError(t, err)
	require.Empty(t, given, "it became a machine")
	require.Equal(t, 7, g.Target)
	require.Equal(t, 7, stub.Group("train-t4").Desired)
	stub.Settle()
	require.Empty(t, stub.Kills())
	require.InDelta(t, 1, testutil.ToFloat64(c.metrics.races), 0)
	n, err := testutil.GatherAndCount(registry, "gpu_node_provider_aws_placeholder_race_total")
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// Cluster Autoscaler refreshes while its deletions are under way. What such a
// reading shows has gone down already must not be taken off once more.
func TestReadingDuringDelete(t *testing.T) {
	const running, missing = 8, 9 // what is missing shows a target that is too low
	for name, outside := range map[string]int{"ours alone": 0, "somebody else raises": 50} {
		t.Run(name, func(t *testing.T) {
			c, stub, g := short(t, running, missing, Options{})
			doomed := ids(g)[:parallelTerminations+2]
			shown := 0
			// By the first call after the parallel ones, one at least has got through.
			stub.Faults(awstest.Rule{Action: terminate, Skip: parallelTerminations, Times: 1, Fault: awstest.Do(func() {
				if outside > 0 {
					stub.SetDesired("train-t4", outside)
				}
				g, err := c.Describe(t.Context(), "t4")
				assert.NoError(t, err)
				shown = g[0].Target
			})})
			g, gone, err := c.Delete(t.Context(), "t4", doomed)
			require.NoError(t, err)
			require.NotEqual(t, running+missing, shown)
			require.Len(t, gone, len(doomed))
			want := stub.Group("train-t4").Desired
			if outside == 0 {
				require.Equal(t, running+missing-len(doomed), want)
			}
			require.Equal(t, want, g.Target)
			require.Equal(t, want, get(t, c).Target)
		})
	}
}

// What comes while instances are protected is seen before anything is lowered.
func TestInstanceArrivesDuringProtection(t *testing.T) {
	c, stub := one(t, awstest.Group{Desired: 2}, Options{})
	stub.SetDesired("train-t4", 3)
	waiting := idsOf(get(t, c), isPlaceholder)
	stub.Faults(awstest.Rule{Action: "SetInstanceProtection", Fault: awstest.Do(func() { stub.Launch("train-t4", 1) })})
	g, given, err := c.Cancel(t.Context(), "t4", cloudtest.These(waiting))
	require.NoError(t, err)
	require.Empty(t, given)
	require.Equal(t, 3, g.Target)
	require.Zero(t, stub.Count(setDesired))
}

// An instance can also come when the cancel is long over. It is protected, so
// more is there than desired, until the next write makes up for it.
func TestInstanceArrivesAfterCancel(t *testing.T) {
	c, stub := one(t, awstest.Group{Desired: 1, Protected: true}, Options{})
	stub.SetDesired("train-t4", 2)
	stub.BeginLaunch("train-t4", 1)
	_, given, err := c.Cancel(t.Context(), "t4", cloudtest.These(idsOf(get(t, c), isPlaceholder)))
	require.NoError(t, err)
	require.Len(t, given, 1)
	stub.DeferScaleIn(true)
	stub.Arrive("train-t4", 1, true)
	stub.DeferScaleIn(false)
	require.Equal(t, 2, get(t, c).Target)

	g, err := c.Increase(t.Context(), "t4", cloudtest.Exactly(1))
	require.NoError(t, err)
	require.Equal(t, 3, g.Target)
	require.Equal(t, 3, stub.Group("train-t4").Desired)
	stub.Settle()
	require.Empty(t, stub.Kills())
}

func TestDeleteLevelsFirst(t *testing.T) {
	c, stub := one(t, awstest.Group{Desired: 1, Protected: true}, Options{})
	stub.DeferScaleIn(true)
	stub.Add("train-t4", awstest.InService, 1)
	g, confirmed, err := c.Delete(t.Context(), "t4", ids(get(t, c)))
	require.NoError(t, err)
	require.Len(t, confirmed, 2)
	require.Zero(t, g.Target)
	require.Zero(t, stub.Group("train-t4").Desired)
}

// MinSize may allow only some to be given up.
func TestCancelDownToMinSize(t *testing.T) {
	c, stub, g := short(t, 0, 3, Options{})
	stub.SetSize("train-t4", 1, 20)
	waiting := idsOf(g, isPlaceholder)
	g, given, err := c.Cancel(t.Context(), "t4", cloudtest.These(waiting))
	require.NoError(t, err)
	require.Equal(t, waiting[:2], given)
	require.Equal(t, 1, g.Target)
	_, _, err = c.Cancel(t.Context(), "t4", cloudtest.These(waiting))
	require.ErrorIs(t, err, cloud.ErrLimit)
	require.ErrorContains(t, err, "below the MinSize 1 of Auto Scaling group train-t4")
}

// TestLostAnswerOfADelete: whatever AWS does with a second call, there is none.
func TestLostAnswerOfADelete(t *testing.T) {
	for name, fault := range map[string]awstest.Fault{"cut": awstest.CutAfter(), "500": awstest.InternalAfter()} {
		t.Run(name, func(t *testing.T) {
			c, stub := one(t, awstest.Group{Desired: 3}, Options{})
			stub.Faults(awstest.Rule{Action: terminate, Times: 1, Fault: fault})
			doomed := ids(get(t, c))[:1]
			g, confirmed, err := c.Delete(t.Context(), "t4", doomed)
			require.NoError(t, err)
			require.Equal(t, doomed, confirmed)
			require.Equal(t, 2, g.Target)
			require.Equal(t, 1, stub.Count(terminate))
			require.Equal(t, 2, stub.Group("train-t4").Desired)
			require.Equal(t, 2, get(t, c).Target)
		})
	}
}

// A call that got lost on its way is not known to be: only a new Delete may try.
func TestDeleteThatNeverArrived(t *testing.T) {
	c, stub := one(t, awstest.Group{Desired: 3}, Options{})
	stub.Faults(awstest.Rule{Action: terminate, Times: 1, Fault: awstest.CutBefore()})
	doomed := ids(get(t, c))[:1]
	_, confirmed, err := c.Delete(t.Context(), "t4", doomed)
	require.ErrorIs(t, err, cloud.ErrUnknownOutcome)
	require.Empty(t, confirmed)
	require.Equal(t, 1, stub.Count(terminate))
	_, confirmed, err = c.Delete(t.Context(), "t4", doomed)
	require.NoError(t, err)
	require.Equal(t, doomed, confirmed)
	require.Equal(t, 2, stub.Group("train-t4").Desired)
}

// One that arrives after it was given up is seen by the next reading.
func TestDeleteThatArrivesLate(t *testing.T) {
	c, stub := one(t, awstest.Group{Desired: 2}, Options{})
	stub.Faults(awstest.Rule{Action: terminate, Times: 1, Fault: awstest.CutBefore()})
	doomed := ids(get(t, c))[0]
	_, _, err := c.Delete(t.Context(), "t4", []string{doomed})
	require.ErrorIs(t, err, cloud.ErrUnknownOutcome)
	name, _ := parseID(doomed)
	_, err = c.asg.TerminateInstanceInAutoScalingGroup(t.Context(), &autoscaling.TerminateInstanceInAutoScalingGroupInput{
		InstanceId: &name, ShouldDecrementDesiredCapacity: awssdk.Bool(true),
	})
	require.NoError(t, err)
	require.Equal(t, 1, get(t, c).Target)
}

// Throttled and busy calls had no effect, so those are made again.
func TestDeleteIsRepeatedWhenRefused(t *testing.T) {
	for name, fault := range map[string]awstest.Fault{"throttled": awstest.Throttle(), "busy": awstest.InProgress()} {
		t.Run(name, func(t *testing.T) {
			c, stub := one(t, awstest.Group{Desired: 3}, Options{})
			stub.Faults(awstest.Rule{Action: terminate, Times: 1, Fault: fault})
			g, confirmed, err := c.Delete(t.Context(), "t4", ids(get(t, c))[:1])
			require.NoError(t, err)
			require.Len(t, confirmed, 1)
			require.Equal(t, 2, g.Target)
			require.Equal(t, 2, stub.Group("train-t4").Desired)
		})
	}
}

// What is confirmed is true even when another one failed.
func TestDeleteInPart(t *testing.T) {
	c, stub := one(t, awstest.Group{Desired: 3, Min: 1}, Options{})
	all := ids(get(t, c))
	g, confirmed, err := c.Delete(t.Context(), "t4", all)
	require.ErrorIs(t, err, cloud.ErrLimit)
	require.ErrorContains(t, err, "min size constraint")
	require.Len(t, confirmed, 2)
	require.Equal(t, 1, g.Target)
	require.Equal(t, 1, stub.Group("train-t4").Desired)
	require.Equal(t, 3, stub.Count(terminate))
}

// A termination is told at once, even when the group has to wait for a hook.
func TestDeleteWithHook(t *testing.T) {
	c, stub := one(t, awstest.Group{Desired: 2, TerminateHook: true}, Options{})
	doomed := ids(get(t, c))[:1]
	_, _, err := c.Delete(t.Context(), "t4", doomed)
	require.NoError(t, err)
	for range 2 {
		g := get(t, c)
		require.Equal(t, 1, g.Target)
		require.Equal(t, doomed, idsOf(g, func(i cloud.Instance) bool { return i.State == cloud.Deleting }))
		_, _, err = c.Delete(t.Context(), "t4", doomed)
		require.NoError(t, err)
		stub.Advance(2 * lagTime)
	}
	require.Equal(t, 1, stub.Count(terminate))
}

// TestLookupAfterARestart: EC2 still knows what has gone.
func TestLookupAfterARestart(t *testing.T) {
	_, stub := one(t, awstest.Group{Desired: 3}, Options{})
	stub.CreateGroup(awstest.Group{Name: "other", Max: 3, Desired: 2})
	stub.Settle()
	running := stub.Group("train-t4").IDs()
	stub.End(running[0], awstest.Interrupted)
	stub.Reap("train-t4")
	others := stub.Group("other").IDs()
	stub.End(others[1], awstest.Interrupted)
	stub.Reap("other")

	c := opened(t, stub, Options{})
	require.NoError(t, c.Configure(t.Context(), []cloud.Spec{{ID: "t4", Name: "train-t4"}}))
	lost, there := "aws:///us-east-1a/"+running[0], "aws:///us-east-1a/"+running[1]
	found, err := c.Lookup(t.Context(), "t4", []string{
		lost, there, "aws:///us-east-1a/" + others[0], "aws:///us-east-1a/" + others[1], "aws:///us-east-1a/i-0123456789abcdef0",
		"aws:///us-east-1b/" + running[0], "aws:///us-east-1b/" + running[1], "aws:///us-east-1a/i-placeholder-t4-1", "aws:///us-east-1a/i-placeholder-a100-1",
	})
	require.NoError(t, err)
	require.Equal(t, []cloud.Existence{
		cloud.Gone, cloud.Present, cloud.Foreign, cloud.Foreign, cloud.Foreign, cloud.Foreign, cloud.Foreign, cloud.Gone, cloud.Foreign,
	}, found)
	_, confirmed, err := c.Delete(t.Context(), "t4", []string{lost})
	require.NoError(t, err)
	require.Equal(t, []string{lost}, confirmed)
	require.Zero(t, stub.Count(terminate))
}

// What an earlier process knew is forgotten by EC2 after an hour, but not by the
// process that has seen it.
func TestSeenInstancesAreRemembered(t *testing.T) {
	c, stub := one(t, awstest.Group{Desired: 1}, Options{})
	seen := ids(get(t, c))
	stub.Detach(stub.Group("train-t4").IDs()[0], true)
	stub.Faults(awstest.Rule{Action: "DescribeInstances", Fault: awstest.Deny()})
	get(t, c)
	found, err := c.Lookup(t.Context(), "t4", seen)
	require.NoError(t, err)
	require.Equal(t, []cloud.Existence{cloud.Gone}, found)
	stub.Advance(goneFor + time.Minute)
	get(t, c)
	_, err = c.Lookup(t.Context(), "t4", seen)
	require.ErrorIs(t, err, cloud.ErrDenied, "now EC2 is asked")
}

// A cancel that was abandoned may have brought back the value of before an
// increase, which is then no answer that lags.
func TestAbandonedCancelAfterAnIncrease(t *testing.T) {
	c, stub := one(t, awstest.Group{Desired: 2}, Options{})
	stub.Capacity("train-t4", 0, noCapacity)
	g, err := c.Increase(t.Context(), "t4", cloudtest.Exactly(2))
	require.NoError(t, err)
	stub.Faults(awstest.Rule{Action: setDesired, Fault: awstest.HangAfter()})
	ctx, cancel := context.WithTimeout(t.Context(), answerTime+500*time.Millisecond)
	defer cancel()
	_, _, err = c.Cancel(ctx, "t4", cloudtest.These(idsOf(g, isPlaceholder)))
	require.ErrorIs(t, err, cloud.ErrUnknownOutcome)
	require.Equal(t, 2, stub.Group("train-t4").Desired)
	require.Equal(t, 2, get(t, c).Target)
}

// Nothing is sent to AWS when the caller will be gone before it answers.
func TestNothingIsSentWithoutTimeForTheAnswer(t *testing.T) {
	c, stub, g := short(t, 2, 2, Options{})
	calls := map[string]func(ctx context.Context) error{
		"increase": func(ctx context.Context) error { _, err := c.Increase(ctx, "t4", cloudtest.Exactly(1)); return err },
		"delete":   func(ctx context.Context) error { _, _, err := c.Delete(ctx, "t4", ids(g)); return err },
		"cancel": func(ctx context.Context) error {
			_, _, err := c.Cancel(ctx, "t4", cloudtest.These(idsOf(g, isPlaceholder)))
			return err
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), answerTime*9/10)
			defer cancel()
			err := call(ctx)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorIs(t, err, cloud.ErrGivenUp)
			require.Zero(t, stub.Count(setDesired)+stub.Count(terminate))
		})
	}
}

// A write whose reading runs out of time has sent nothing either.
func TestReadingOfAWriteRunsOutOfTime(t *testing.T) {
	c, stub, _ := short(t, 2, 2, Options{})
	stub.Faults(awstest.Rule{Action: "DescribeAutoScalingGroups", Fault: awstest.HangBefore()})
	ctx, cancel := context.WithTimeout(t.Context(), answerTime*3/2)
	defer cancel()
	_, err := c.Increase(ctx, "t4", cloudtest.Exactly(1))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, cloud.ErrGivenUp)
	require.ErrorContains(t, err, "reading")
	require.Zero(t, stub.Count(setDesired))
}
