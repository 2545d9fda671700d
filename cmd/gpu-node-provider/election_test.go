package main

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"gpu-node-provider/provider/config"
)

const home = "gpu-node-provider" // the namespace of the replicas

// replica takes part in the election as the process of a Pod.
func replica(t *testing.T, client kubernetes.Interface, pod string) *election {
	t.Setenv("POD_NAME", pod)
	e, err := newElection(&config.Kubernetes{Namespace: home, LeaderElection: new(true)}, &kube{client: client}, zaptest.NewLogger(t))
	require.NoError(t, err)
	require.False(t, e.leads())
	return e
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
		a, b := replica(t, client, "a"), replica(t, client, "b")
		a.begin(t.Context())
		<-a.led
		require.NoError(t, a.announce(t.Context()))
		b.begin(t.Context())
		<-time.After(2 * leaseDuration)
		synctest.Wait()
		require.False(t, b.leads())
		require.Equal(t, "a", b.leader())
		require.Equal(t, []string{"a"}, labelled(t, client))
		a.close()
		given := time.Now()
		<-b.led
		require.Less(t, time.Since(given), leaseDuration, "the lease was given back")
		require.NoError(t, b.announce(t.Context()))
		require.Equal(t, []string{"b"}, labelled(t, client))
		b.close()
	})
}

func TestLeaderThatCannotRenewEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := replicaPods(nil)
		var away atomic.Bool
		client.PrependReactor("*", "leases", func(k8stesting.Action) (bool, runtime.Object, error) {
			return away.Load(), nil, errors.New("the API server is away")
		})
		a := replica(t, client, "a")
		a.begin(t.Context())
		<-a.led
		away.Store(true)
		since := time.Now()
		require.ErrorIs(t, a.run(t.Context()), errLeadershipLost)
		require.Less(t, time.Since(since), leaseDuration, "it ends before another may lead")
		a.close()
	})
}

// TestRestartedContainerIsNoLeader: a Pod keeps its labels when its container is
// started again.
func TestRestartedContainerIsNoLeader(t *testing.T) {
	client := replicaPods(map[string]string{leaderLabel: "true"})
	a := replica(t, client, "a")
	require.NoError(t, a.standBy(t.Context()))
	require.Equal(t, []string{"b"}, labelled(t, client))
}

func TestNoElectionLeadsAtOnce(t *testing.T) {
	e, err := newElection(&config.Kubernetes{LeaderElection: new(false)}, &kube{client: fake.NewClientset()}, zaptest.NewLogger(t))
	require.NoError(t, err)
	require.True(t, e.leads())
	require.Empty(t, e.leader())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, e.standBy(ctx))
	require.NoError(t, e.run(ctx))
	e.close()
}
