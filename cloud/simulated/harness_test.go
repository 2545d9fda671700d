package simulated

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	clocktesting "k8s.io/utils/clock/testing"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/cloudtest"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(childEnv); path != "" {
		child(path)
		return
	}
	goleak.VerifyTestMain(m)
}

func newClock() *clocktesting.FakeClock {
	return clocktesting.NewFakeClock(time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC))
}

const (
	launch    = 10 * time.Second
	boot      = 2 * time.Minute
	plugin    = time.Minute
	terminate = 30 * time.Second
)

// slowly is a cloud where everything takes its time, and nothing fails.
func slowly(now func() time.Time) Options {
	return Options{
		LaunchDelay: launch, BootDelay: boot, DevicePluginDelay: plugin, TerminateDelay: terminate,
		Now: now, Rand: rand.NewPCG(1, 2), Memory: &Memory{},
	}
}

func specs(ids ...string) []cloud.Spec {
	list := make([]cloud.Spec, 0, len(ids))
	for _, id := range ids {
		list = append(list, cloud.Spec{ID: id})
	}
	return list
}

// open makes a Cloud that is closed with the test, configured with the groups.
func open(t testing.TB, options Options, groups ...string) *Cloud {
	t.Helper()
	c, err := New(options)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	require.NoError(t, c.Configure(t.Context(), specs(groups...)))
	return c
}

// get returns a group without its revision, so that pictures can be compared.
func get(t testing.TB, c *Cloud, group string) cloud.Group {
	t.Helper()
	groups, err := c.Describe(t.Context(), group)
	require.NoError(t, err)
	require.Len(t, groups, 1)
	groups[0].Revision = 0
	return groups[0]
}

func grow(t testing.TB, c *Cloud, group string, n int) cloud.Group {
	t.Helper()
	g, err := c.Increase(t.Context(), group, cloudtest.Exactly(n))
	require.NoError(t, err)
	g.Revision = 0
	return g
}

func idsOf(g cloud.Group) []string {
	ids := make([]string, 0, len(g.Instances))
	for _, i := range g.Instances {
		ids = append(ids, i.ID)
	}
	return ids
}

// states counts instances by what they are.
func states(g cloud.Group) map[string]int {
	counts := map[string]int{}
	for _, i := range g.Instances {
		switch {
		case i.Error != nil:
			counts["failed"]++
		case i.Placeholder:
			counts["placeholder"]++
		default:
			counts[i.State.String()]++
		}
	}
	return counts
}
