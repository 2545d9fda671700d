package provider

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
	"gpu-node-provider/provider/config"
)

// TestReadingOfAServiceQuotaThatIsRepeated: a cloud answers from what it has read
// within the minute. What has launched meanwhile is no longer somebody else's room,
// and what has gone is not somebody else's use.
func TestReadingOfAServiceQuotaThatIsRepeated(t *testing.T) {
	c := testConfig()
	c.Quotas = []config.Quota{{Name: "g-vcpus", Resource: config.ResourceVCPU, AWSServiceQuota: "L-DB2E81BA", NodeGroups: []string{"*"}}}
	clock := newClock()
	reading := cloud.ServiceQuota{Limit: 16, Use: 8, Source: "Service Quotas", UsedAt: clock.Now()} // of others
	s := start(t, Options{
		Catalogue: catalogue(c), Backend: newTestCloud(t, clock.Now), Now: clock.Now,
		ServiceQuotas: func(context.Context, string) (cloud.ServiceQuota, error) { return reading, nil },
	})
	room := func() int {
		clock.Step(2 * time.Second)
		require.NoError(t, s.refresh(t.Context()))
		s.measureQuotas(t.Context(), s.current.Load().catalogue, s.current.Load().states())
		return s.ledger.Room("t4").Room
	}
	require.Equal(t, 2, room())
	require.NoError(t, increase(s, "t4", 1))
	require.Equal(t, 1, room(), "it boots, and the reading does not know it")
	reading.Use, reading.ReadAt = 12, clock.Now()
	require.Equal(t, 1, room(), "the reading knows it")
	clock.Step(time.Minute)
	_, _, err := s.backend.Delete(t.Context(), "t4", []string{s.current.Load().groups["t4"].state.Instances[0].ID})
	require.NoError(t, err)
	require.NoError(t, s.refresh(t.Context()))
	clock.Step(time.Minute)
	require.Equal(t, 2, room(), "it is gone, and the reading does not know")
}
