package aws

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/cloud/cloudtest"
)

// What only explains is not asked for in the course of a write.
func TestCP10WritesDoNotWaitForExplanations(t *testing.T) {
	c, stub, g := short(t, 2, 2, Options{})
	stub.SetDesired("train-t4", 6) // there is something to ask about
	stub.Step()
	for _, action := range []string{"DescribeScalingActivities", "DescribeInstances"} {
		stub.Faults(awstest.Rule{Action: action, Fault: awstest.HangBefore()})
	}
	_, err := c.Increase(t.Context(), "t4", cloudtest.Exactly(1))
	require.NoError(t, err)
	_, _, err = c.Cancel(t.Context(), "t4", cloudtest.These(idsOf(g, isPlaceholder)))
	require.NoError(t, err)
	_, _, err = c.Delete(t.Context(), "t4", idsOf(g, isMachine)[:1])
	require.NoError(t, err)
}

// AWS answers ResourceContention with status 500, too, and has changed nothing.
func TestCP09ResourceContentionIsTriedAgain(t *testing.T) {
	for _, status := range []int{400, 500} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			c, stub, g := short(t, 2, 0, Options{})
			busy := awstest.Refuse(status, "ResourceContention", "You already have a pending update to an Amazon EC2 Auto Scaling resource.")
			stub.Faults(awstest.Rule{Action: terminate, Times: 1, Fault: busy}, awstest.Rule{Action: setDesired, Times: 1, Fault: busy})
			gone := idsOf(g, isMachine)[:1]
			after, confirmed, err := c.Delete(t.Context(), "t4", gone)
			require.NoError(t, err)
			require.Equal(t, gone, confirmed)
			require.Equal(t, 1, after.Target)
			after, err = c.Increase(t.Context(), "t4", cloudtest.Exactly(2))
			require.NoError(t, err)
			require.Equal(t, 3, after.Target)
			require.Equal(t, 2, stub.Count(terminate), "refused once")
			require.Equal(t, 2, stub.Count(setDesired), "refused once")
		})
	}
}

// What is beyond the desired capacity goes without lowering it, which AWS refuses at
// MinSize.
func TestCP07SurplusIsEndedWithoutLowering(t *testing.T) {
	c, stub := one(t, awstest.Group{Desired: 3, Protected: true}, Options{})
	stub.SetSize("train-t4", 2, 2)
	stub.SetDesired("train-t4", 2)
	g := get(t, c)
	require.Equal(t, []int{3, 2}, []int{g.Target, g.Min})
	gone := ids(g)[:1]
	after, confirmed, err := c.Delete(t.Context(), "t4", gone)
	require.NoError(t, err)
	require.Equal(t, gone, confirmed)
	require.Equal(t, 2, after.Target)
	stub.Settle()
	require.Equal(t, 2, stub.Group("train-t4").Desired)
	require.Equal(t, 2, get(t, c).Target)
	_, _, err = c.Delete(t.Context(), "t4", ids(get(t, c))[:1])
	require.Error(t, err, "now it would go below MinSize")
}

// An increase sends nothing while AWS shows more than it would set, whatever is remembered of
// earlier writes: AWS would end instances.
func TestCP17IncreaseSendsNoLessThanShown(t *testing.T) {
	c, stub, g := short(t, 2, 4, Options{})
	_, _, err := c.Cancel(t.Context(), "t4", cloudtest.These(idsOf(g, isPlaceholder)))
	require.NoError(t, err)
	stub.Capacity("train-t4", -1, "")
	stub.SetDesired("train-t4", 6) // back to a value of before, as an answer that lags would show
	stub.BeginLaunch("train-t4", 4)
	_, err = c.Increase(t.Context(), "t4", cloudtest.Exactly(1))
	require.ErrorIs(t, err, cloud.ErrUnavailable)
	require.ErrorContains(t, err, "shows a desired capacity of 6 a moment after 2 was set")
	stub.Arrive("train-t4", 4, true)
	stub.SetGroupProtected("train-t4", false)
	for _, id := range stub.Group("train-t4").IDs() {
		stub.SetProtected(id, false)
	}
	stub.Settle()
	require.Empty(t, stub.Victims())
	require.GreaterOrEqual(t, stub.Group("train-t4").Desired, 6)
}

// An answer from before a write lags also after AWS has shown the write once.
func TestCP17IncreaseByAnAnswerThatLags(t *testing.T) {
	c, stub := one(t, awstest.Group{Desired: 2}, Options{})
	_, err := c.Increase(t.Context(), "t4", cloudtest.Exactly(2))
	require.NoError(t, err)
	stub.Settle()
	require.Equal(t, 4, get(t, c).Target)
	stub.Advance(30 * time.Second)
	stub.Faults(awstest.Rule{Action: "DescribeAutoScalingGroups", Times: 1, Fault: awstest.Stale()})
	_, err = c.Increase(t.Context(), "t4", cloudtest.Exactly(1))
	require.NoError(t, err)
	require.Empty(t, stub.Victims())
	require.Equal(t, 5, stub.Group("train-t4").Desired)
}

// Lack of capacity in the words of reservations, capacity blocks and request limits.
func TestCP16LackOfCapacityInOtherWords(t *testing.T) {
	for text, code := range map[string]cloud.LaunchCode{
		"The requested reservation does not have sufficient compatible and available capacity for this request. Launching EC2 instance failed.": cloud.InsufficientInstanceCapacity,
		"The requested Capacity Reservation has expired or is not active. Launching EC2 instance failed.":                                       cloud.InsufficientInstanceCapacity,
		"There are not enough instances available in the capacity block. Launching EC2 instance failed.":                                        cloud.InsufficientInstanceCapacity,
		"Request limit exceeded. Launching EC2 instance failed.":                                                                                cloud.UnfulfillableCapacity,
		"You have reached your quota for maximum Fleet Requests for this account. Launching EC2 instance failed.":                               cloud.UnfulfillableCapacity,
		"You are not authorized to use launch template: lt-0123. Launching EC2 instance failed.":                                                cloud.LaunchTemplateError,
	} {
		require.Equal(t, code, launchCode(text), text)
	}
}

// What Increase has learned (CP17) holds for the raise before a termination too: it sends no
// less than its own reading shows.
func TestCP17LevelSendsNoLessThanShown(t *testing.T) {
	c, stub, g := short(t, 2, 4, Options{})
	_, _, err := c.Cancel(t.Context(), "t4", cloudtest.These(idsOf(g, isPlaceholder)))
	require.NoError(t, err)
	stub.Capacity("train-t4", -1, "")
	stub.SetDesired("train-t4", 6) // back to a value of before, as an answer that lags would show
	stub.Launch("train-t4", 3)
	require.Equal(t, 5, stub.Group("train-t4").Live())
	gone := idsOf(get(t, c), isMachine)[:1]
	_, _, err = c.Delete(t.Context(), "t4", gone)
	require.NoError(t, err)
	require.Equal(t, 5, stub.Group("train-t4").Desired, "6 less the one that was ended")
	require.Empty(t, stub.Victims())
}

// The same with a group whose instances are not protected: nothing but an Increase or a Cancel
// protects them, so AWS ends a machine in service.
func TestCP17DeletionWhileAnOperatorRaisesKillsNoOther(t *testing.T) {
	c, stub := one(t, awstest.Group{Desired: 6}, Options{})
	ids := idsOf(get(t, c), isMachine)
	_, _, err := c.Delete(t.Context(), "t4", ids[:3])
	require.NoError(t, err)
	stub.Settle()
	get(t, c)
	stub.SetDesired("train-t4", 6) // a person wants them back, within the lag time
	stub.Launch("train-t4", 2)
	stub.BeginLaunch("train-t4", 1) // on its way, and not listed yet
	_, _, err = c.Delete(t.Context(), "t4", ids[3:4])
	require.NoError(t, err)
	stub.Arrive("train-t4", 1, true)
	stub.Settle()
	require.Empty(t, stub.Victims(), "AWS ended a machine of its own choice")
}
