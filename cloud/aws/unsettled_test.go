package aws

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/cloud/cloudtest"
)

// What an increase whose answer is lost may still do is told until it shows.
func TestUnsettledIncrease(t *testing.T) {
	for name, late := range map[string]bool{"shows": true, "never shows": false} {
		t.Run(name, func(t *testing.T) {
			c, stub := one(t, awstest.Group{Desired: 2}, Options{})
			remove := stub.Faults(awstest.Rule{Action: setDesired, Fault: awstest.HangBefore()})
			ctx, cancel := context.WithTimeout(t.Context(), answerTime+firstPause)
			defer cancel()
			g, err := c.Increase(ctx, "t4", cloudtest.Exactly(3))
			require.ErrorIs(t, err, cloud.ErrUnknownOutcome)
			require.Equal(t, 2, g.Target)
			require.Equal(t, cloud.Unsettled{More: 3}, g.Unsettled)
			remove()
			stub.Advance(lagTime / 2)
			require.Equal(t, cloud.Unsettled{More: 3}, get(t, c).Unsettled)
			if late {
				stub.SetDesired("train-t4", 5)
			} else {
				stub.Advance(lagTime)
			}
			require.Zero(t, get(t, c).Unsettled)
		})
	}
}

// What a deletion whose answer is lost may still do is told until it shows.
func TestUnsettledDelete(t *testing.T) {
	c, stub := one(t, awstest.Group{Desired: 3, Protected: true}, Options{})
	remove := stub.Faults(awstest.Rule{Action: terminate, Fault: awstest.CutBefore()})
	ctx, cancel := context.WithTimeout(t.Context(), answerTime+firstPause)
	defer cancel()
	g, _, err := c.Delete(ctx, "t4", idsOf(get(t, c), isMachine)[:2])
	require.ErrorIs(t, err, cloud.ErrUnknownOutcome)
	require.Equal(t, 3, g.Target)
	require.Equal(t, cloud.Unsettled{Fewer: 2}, g.Unsettled)
	remove()
	stub.Advance(lagTime)
	require.Zero(t, get(t, c).Unsettled)
}
