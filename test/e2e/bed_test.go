//go:build e2e

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpu-node-provider/test/testbed"
)

const t4 = "nvidia-tesla-t4"

// start starts a bed for one story and tells it as it goes.
func start(t *testing.T, o testbed.Options) *testbed.Bed {
	t.Parallel()
	dir, err := filepath.Abs(filepath.Join("..", "..", ".cache", "e2e", t.Name()))
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, os.MkdirAll(dir, 0o700))
	o.Dir = dir
	if o.Config.Simulated == "" {
		o.Config.Simulated = "launchDelay: 1s, bootDelay: 5s, devicePluginDelay: 2s"
	}
	bed, err := testbed.Start(context.Background(), o)
	t.Cleanup(bed.Stop)
	require.NoError(t, err)
	bed.Watch.Tell(5*time.Second, func(line string) { t.Log(line) })
	t.Cleanup(func() { bed.Watch.Tell(0, nil) })
	return bed
}

// trainers are the usual ones, with a cooldown that a test can wait for.
func trainers(queue, accelerator string, maxReplicas int) testbed.Trainers {
	return testbed.Trainers{Name: "train-worker", Queue: queue, Accelerator: accelerator, MaxReplicas: maxReplicas, Cooldown: 8, LeaseSeconds: 5}
}

// play plays a round, which has to pass.
func play(t *testing.T, bed *testbed.Bed, r testbed.Round) {
	t.Helper()
	rows := bed.Play(t.Context(), r)
	t.Logf("\n%s", testbed.Table(rows))
	require.NoError(t, testbed.Passed(rows))
}

// said checks how often the trainers said a text.
func said(t *testing.T, bed *testbed.Bed, times int, text, why string) {
	t.Helper()
	n, err := bed.Said(text)
	require.NoError(t, err)
	require.Equal(t, times, n, why)
}

// bought checks how many nodes were ever asked of the cloud.
func bought(t *testing.T, bed *testbed.Bed, nodes int) {
	t.Helper()
	growth, err := bed.Growth()
	require.NoError(t, err)
	all := 0
	for _, g := range growth {
		all += g.Nodes
	}
	require.Equal(t, nodes, all, "nothing may be bought twice: %v", growth)
	require.Equal(t, nodes, bed.Watch.EverNodes())
}
