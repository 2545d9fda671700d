package provider

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/cloudtest"
	"gpu-node-provider/provider/config"
)

// TestGroupWithAProblem: what is known of it stays, it does not grow, and all is well
// again once the cloud can serve it.
func TestGroupWithAProblem(t *testing.T) {
	now := newClock().Now
	pretend := newTestCloud(t, now)
	b := &scripted{Backend: pretend}
	s := start(t, Options{Catalogue: catalogue(testConfig()), Backend: b, Now: now})
	require.NoError(t, increase(s, "t4", 2))
	ids := s.current.Load().groups["t4"].state.Instances
	b.describe = func(_ context.Context, groups []cloud.Group) ([]cloud.Group, error) {
		for n := range groups {
			if groups[n].ID == "t4" {
				groups[n] = cloud.Group{ID: "t4", Revision: groups[n].Revision, Problem: fmt.Errorf("there is no such group: %w", cloud.ErrNotFound)}
			}
		}
		return groups, nil
	}
	require.NoError(t, s.refresh(t.Context()))
	requireConsistent(t, s)
	require.Equal(t, 2, targetOfT4(t, s))
	require.Equal(t, ids, s.current.Load().groups["t4"].state.Instances, "an instance that cannot be read is not gone")
	require.Equal(t, 2, s.current.Load().groups["t4"].max)
	require.Equal(t, codes.NotFound, status.Code(increase(s, "t4", 1)))
	report := s.Report()
	require.Contains(t, report.NodeGroups[0].Problem, "there is no such group")
	require.NoError(t, increase(s, "opts", 1), "the other group works")
	b.describe = nil
	require.NoError(t, s.refresh(t.Context()))
	report = s.Report()
	require.Empty(t, report.NodeGroups[0].Problem)
	require.NoError(t, increase(s, "t4", 1))
}

// TestReadingsAtAnInterval: a cloud that counts calls is not read at each Refresh.
func TestReadingsAtAnInterval(t *testing.T) {
	clock := newClock()
	b := &scripted{Backend: newTestCloud(t, clock.Now)}
	readings := 0
	b.describe = func(_ context.Context, groups []cloud.Group) ([]cloud.Group, error) {
		readings++
		return groups, nil
	}
	s := start(t, Options{Catalogue: catalogue(testConfig()), Backend: b, Now: clock.Now, ReadEvery: 30 * time.Second})
	for range 30 {
		clock.Step(time.Second)
		_, err := s.Refresh(t.Context(), nil)
		require.NoError(t, err)
	}
	require.Equal(t, 2, readings, "one at the start, and one after the interval")
}

// TestFailedReadingsAtAnInterval: a cloud that throttles is asked no more often than
// one that does not, and Refresh fails once what is known is old.
func TestFailedReadingsAtAnInterval(t *testing.T) {
	clock := newClock()
	b := &scripted{Backend: newTestCloud(t, clock.Now)}
	s := start(t, Options{Catalogue: catalogue(testConfig()), Backend: b, Now: clock.Now, ReadEvery: 30 * time.Second})
	tries := 0
	b.describe = func(context.Context, []cloud.Group) ([]cloud.Group, error) {
		tries++
		return nil, cloud.ErrThrottled
	}
	for range 60 {
		clock.Step(time.Second)
		_, err := s.Refresh(t.Context(), nil)
		require.NoError(t, err)
	}
	require.Equal(t, 2, tries)
	clock.Step(time.Second)
	_, err := s.Refresh(t.Context(), nil)
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.Equal(t, 2, tries)
	b.describe = nil
	clock.Step(30 * time.Second)
	_, err = s.Refresh(t.Context(), nil)
	require.NoError(t, err)
}

// TestB13CapacityChangedOutside: what somebody else does to a group is counted, and
// what this provider does is not.
func TestB13CapacityChangedOutside(t *testing.T) {
	now := newClock().Now
	pretend := newTestCloud(t, now)
	s := start(t, Options{Catalogue: catalogue(testConfig()), Backend: pretend, Now: now})
	require.NoError(t, increase(s, "t4", 2))
	require.NoError(t, s.refresh(t.Context()))
	outside := s.metrics.outside.WithLabelValues("t4")
	require.Zero(t, testutil.ToFloat64(outside))
	_, err := pretend.Increase(t.Context(), "t4", cloudtest.Exactly(1))
	require.NoError(t, err)
	require.NoError(t, s.refresh(t.Context()))
	require.EqualValues(t, 1, testutil.ToFloat64(outside))
	require.NoError(t, s.refresh(t.Context()))
	require.EqualValues(t, 1, testutil.ToFloat64(outside))
}

// TestServiceQuota: a limit that the cloud keeps binds with what everybody uses,
// and stays in force while it cannot be read.
func TestServiceQuota(t *testing.T) {
	c := testConfig()
	c.Quotas = []config.Quota{{Name: "g-vcpus", Resource: config.ResourceVCPU, AWSServiceQuota: "L-DB2E81BA", NodeGroups: []string{"*"}}}
	clock := newClock()
	reading, failure := cloud.ServiceQuota{}, cloud.ErrUnavailable
	s := start(t, Options{
		Catalogue: catalogue(c), Backend: newTestCloud(t, clock.Now), Now: clock.Now,
		ServiceQuotas: func(_ context.Context, code string) (cloud.ServiceQuota, error) {
			require.Equal(t, "L-DB2E81BA", code)
			return reading, failure
		},
	})
	room := func() int {
		s.measureQuotas(t.Context(), s.current.Load().catalogue, s.current.Load().states())
		return s.ledger.Room("t4").Room
	}
	require.Equal(t, 4, room(), "what has never been read binds nobody: the cloud itself refuses")
	report := s.Report()
	require.True(t, report.Quotas[0].Unknown)
	require.NotEmpty(t, report.Quotas[0].Problem)

	reading, failure = cloud.ServiceQuota{Limit: 16, Use: 4, Source: "Service Quotas", UsedAt: clock.Now()}, nil
	require.Equal(t, 3, room(), "others use 4 of 16, a node takes 4")
	require.NoError(t, increase(s, "t4", 1))
	clock.Step(2 * time.Second)
	require.NoError(t, s.refresh(t.Context()))
	require.Equal(t, 2, room(), "a machine of ours that came after the measurement takes nothing off what others use")
	reading.Use, reading.ReadAt = 8, clock.Now()
	require.Equal(t, 2, room(), "of 8 that are used, 4 are ours and count once")
	failure = cloud.ErrThrottled
	require.Equal(t, 2, room(), "the last reading stays")
	report = s.Report()
	require.Equal(t, 8.0, report.Quotas[0].Used)
	require.Equal(t, 16.0, report.Quotas[0].Limit)
	require.NotEmpty(t, report.Quotas[0].Problem)
	require.NotNil(t, report.Quotas[0].ReadAt)
	require.Equal(t, codes.OK, status.Code(increase(s, "t4", 2)))
	require.NoError(t, s.refresh(t.Context()))
	_, err := s.NodeGroups(t.Context(), nil) // announces nothing more
	require.NoError(t, err)
	require.Equal(t, codes.ResourceExhausted, status.Code(increase(s, "opts", 1)))
}

// TestGroupThatTheCloudDoesNotKnowAnyMore: for a while it keeps its instances, and then
// nothing of it counts.
func TestGroupThatTheCloudDoesNotKnowAnyMore(t *testing.T) {
	clock := newClock()
	b := &scripted{Backend: newTestCloud(t, clock.Now)}
	s := start(t, Options{Catalogue: catalogue(testConfig()), Backend: b, Now: clock.Now})
	require.NoError(t, increase(s, "opts", 2))
	b.describe = func(_ context.Context, groups []cloud.Group) ([]cloud.Group, error) {
		for n := range groups {
			if groups[n].ID == "opts" {
				groups[n].Problem = fmt.Errorf("there is no such group: %w", cloud.ErrNotFound)
			}
		}
		return groups, nil
	}
	c := testConfig()
	c.NodeGroups = c.NodeGroups[:1]
	require.NoError(t, s.refresh(t.Context()))
	clock.Step(goneAfter - time.Second)
	require.NoError(t, s.refresh(t.Context()))
	_, read := s.GroupRead("opts")
	require.False(t, read, "what is not there says nothing of instances")
	require.Equal(t, 2, s.Instances("opts"))
	require.ErrorContains(t, s.Reload(t.Context(), catalogue(c)), "has 2 instances")
	clock.Step(time.Second)
	require.NoError(t, s.refresh(t.Context()))
	require.Zero(t, s.Instances("opts"))
	require.NoError(t, s.Reload(t.Context(), catalogue(c)))
}
