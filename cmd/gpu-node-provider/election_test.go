package main

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"
	leasev1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"gpu-node-provider/provider/config"
)

const home = "gpu-node-provider" // the namespace of the replicas

// candidate is the election of a replica in a Pod.
func candidate(t *testing.T, client kubernetes.Interface, pod string) *election {
	t.Setenv("POD_NAME", pod)
	e, err := newElection(&config.Kubernetes{Namespace: home, LeaderElection: new(true)}, &kube{client: client}, zaptest.NewLogger(t))
	require.NoError(t, err)
	require.False(t, e.leads())
	return e
}

// campaign runs the election until stop is called; ended receives what run returned.
func campaign(t *testing.T, e *election) (stop func(), ended <-chan error) {
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- e.run(ctx) }()
	return cancel, result
}

func replicaPods(labels map[string]string) *fake.Clientset {
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: home, Labels: labels}}
	}
	return fake.NewClientset(pod("a"), pod("b"))
}

func labelled(t *testing.T, client kubernetes.Interface) (names []string) {
	pods, err := client.CoreV1().Pods(home).List(t.Context(), metav1.ListOptions{LabelSelector: leaderLabel + "=true"})
	require.NoError(t, err)
	for _, p := range pods.Items {
		names = append(names, p.Name)
	}
	return names
}

func TestOneReplicaLeadsAndTheNextFollowsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := replicaPods(nil)
		a, b := candidate(t, client, "a"), candidate(t, client, "b")
		stopA, endedA := campaign(t, a)
		<-a.led
		require.NoError(t, a.announce(t.Context()))
		stopB, endedB := campaign(t, b)
		<-time.After(2 * leaseDuration)
		synctest.Wait()
		require.False(t, b.leads())
		require.Contains(t, b.standbyMessage(), "ask the leader: a")
		require.Equal(t, []string{"a"}, labelled(t, client))
		stopA()
		require.NoError(t, <-endedA)
		given := time.Now()
		<-b.led
		require.Less(t, time.Since(given), leaseDuration, "the lease was given back")
		require.NoError(t, b.announce(t.Context()))
		require.Equal(t, []string{"b"}, labelled(t, client))
		stopB()
		require.NoError(t, <-endedB)
	})
}

// partitioned is a client whose API server can be made unreachable: then a call blocks until
// its context is done.
type partitioned struct {
	kubernetes.Interface
	away atomic.Bool
}

func (p *partitioned) CoordinationV1() coordinationv1.CoordinationV1Interface {
	return &partitionedLeases{CoordinationV1Interface: p.Interface.CoordinationV1(), away: &p.away}
}

type partitionedLeases struct {
	coordinationv1.CoordinationV1Interface
	coordinationv1.LeaseInterface
	away *atomic.Bool
}

func (l *partitionedLeases) Leases(namespace string) coordinationv1.LeaseInterface {
	return &partitionedLeases{LeaseInterface: l.CoordinationV1Interface.Leases(namespace), away: l.away}
}

func (l *partitionedLeases) Get(ctx context.Context, name string, o metav1.GetOptions) (*leasev1.Lease, error) {
	if l.away.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return l.LeaseInterface.Get(ctx, name, o)
}

func (l *partitionedLeases) Update(ctx context.Context, lease *leasev1.Lease, o metav1.UpdateOptions) (*leasev1.Lease, error) {
	if l.away.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return l.LeaseInterface.Update(ctx, lease, o)
}

func TestLeaderThatCannotRenewEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &partitioned{Interface: replicaPods(nil)}
		a := candidate(t, client, "a")
		_, ended := campaign(t, a)
		<-a.led
		client.away.Store(true)
		since := time.Now() // it has just renewed
		require.ErrorIs(t, <-ended, errLeadershipLost)
		require.Less(t, time.Since(since), leaseDuration, "it ends before another may lead")
	})
}

// TestRestartedContainerIsNoLeader: a Pod keeps its labels when its container is
// started again.
func TestRestartedContainerIsNoLeader(t *testing.T) {
	client := replicaPods(map[string]string{leaderLabel: "true"})
	a := candidate(t, client, "a")
	require.NoError(t, a.removeLabel(t.Context()))
	require.Equal(t, []string{"b"}, labelled(t, client))
}

func TestNoElectionLeadsAtOnce(t *testing.T) {
	e, err := newElection(&config.Kubernetes{LeaderElection: new(false)}, &kube{client: fake.NewClientset()}, zaptest.NewLogger(t))
	require.NoError(t, err)
	require.True(t, e.leads())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, e.announce(ctx))
	require.NoError(t, e.run(ctx))
}
