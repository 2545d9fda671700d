package aws

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/cloud/cloudtest"
)

// TestPF01ProtectionAtStart: what is configured is protected in the background, so that the
// first write makes no more calls than the next.
func TestPF01ProtectionAtStart(t *testing.T) {
	c, stub := one(t, awstest.Group{Desired: 60}, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	require.Eventually(t, func() bool {
		g := stub.Group("train-t4")
		return g.Protected && !slices.ContainsFunc(g.Instances, func(i awstest.Instance) bool { return !i.Protected })
	}, time.Minute, time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
	actions := func(write func()) (all []string) {
		before := len(stub.Calls())
		write()
		for _, call := range stub.Calls()[before:] {
			all = append(all, call.Action)
		}
		return all
	}
	var g cloud.Group
	require.Equal(t, []string{"DescribeAutoScalingGroups", setDesired}, actions(func() {
		var err error
		g, err = c.Increase(t.Context(), "t4", cloudtest.Exactly(1))
		require.NoError(t, err)
	}))
	require.Equal(t, []string{"DescribeAutoScalingGroups", setDesired, "DescribeAutoScalingGroups"}, actions(func() {
		_, given, err := c.Cancel(t.Context(), "t4", cloudtest.These(idsOf(g, isPlaceholder)))
		require.NoError(t, err)
		require.Len(t, given, 1)
	}))
}
