package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"gpu-node-provider/cloud/logkey"
	"gpu-node-provider/provider/config"
)

// leaseName is the name of the leader's Lease, in the provider's namespace.
const leaseName = "gpu-node-provider"

// leaderLabel marks the Pod of the leader; the gRPC Service selects it.
const leaderLabel = "gpu-node-provider.io/leader"

// A leader must have stopped before another replica may lead: it tries to renew for
// renewDeadline and then to release the Lease for as long again (client-go), which together
// with one retryPeriod has to be less than leaseDuration.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 6 * time.Second
	retryPeriod   = 2 * time.Second
)

// errLeadershipLost ends the process, since another replica may lead now. The restarted
// process is a standby replica.
var errLeadershipLost = errors.New("failed to renew the Lease in time; another replica may lead")

// election elects one replica as the leader, which alone changes the cloud. Standby
// replicas only answer the eviction webhook.
type election struct {
	client    kubernetes.Interface
	namespace string
	pod       string // name of this replica's Pod; empty outside a cluster
	log       *zap.Logger

	elector *leaderelection.LeaderElector // nil without an election: then this process leads
	led     chan struct{}                 // closed when this replica leads
}

// withoutElection returns the election of a single replica: it leads at once.
func withoutElection() *election {
	e := &election{led: make(chan struct{})}
	close(e.led)
	return e
}

func newElection(c *config.Kubernetes, k *kube, log *zap.Logger) (*election, error) {
	if !*c.LeaderElection {
		return withoutElection(), nil
	}
	e := &election{led: make(chan struct{}), log: log}
	e.client, e.namespace, e.pod = k.client, c.Namespace, os.Getenv("POD_NAME")
	// A Pod keeps its name, and so its Lease, when its container restarts. Outside a
	// cluster two processes of one machine need different identities.
	host, err := os.Hostname()
	if err != nil && e.pod == "" {
		return nil, fmt.Errorf("reading the host name, which identifies this replica: %w", err)
	}
	identity := cmp.Or(e.pod, host+"_"+rand.String(8))
	e.elector, err = leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: leaseName,
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: leaseName}, Client: k.client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		ReleaseOnCancel: true, // run stops after all parts that the Lease covers
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(e.led) },
			OnStoppedLeading: func() {},
			OnNewLeader: func(leader string) {
				log.Info("leader elected", zap.String(logkey.Leader, leader), zap.Bool(logkey.ThisReplica, leader == identity))
			},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("leader election: %w", err)
	}
	return e, nil
}

// run runs the election until ctx is done and then releases the Lease, so that another
// replica can lead before it expires. It returns errLeadershipLost when the Lease was not
// renewed in time.
func (e *election) run(ctx context.Context) error {
	if e.elector == nil {
		<-ctx.Done()
		return nil
	}
	if err := e.removeLabel(ctx); err != nil {
		return ignoreStop(err)
	}
	e.elector.Run(ctx)
	if ctx.Err() != nil {
		return nil //nolint:nilerr // ctx is done
	}
	return errLeadershipLost
}

// elects reports whether replicas elect a leader.
func (e *election) elects() bool { return e.elector != nil }

// leads reports whether this replica is the leader.
func (e *election) leads() bool {
	select {
	case <-e.led:
		return true
	default:
		return false
	}
}

// standbyMessage is the answer of a standby replica to a request for the report.
func (e *election) standbyMessage() string {
	if e.elector != nil {
		if leader := e.elector.GetLeader(); leader != "" {
			return "this replica is on standby; ask the leader: " + leader
		}
	}
	return "this replica is on standby, and no replica leads yet"
}

// removeLabel removes the leader label from this replica's Pod, since a Pod keeps its
// labels when its container restarts.
func (e *election) removeLabel(ctx context.Context) error {
	return e.untilDone(ctx, "failed to remove the leader label from this Pod, trying again", func(ctx context.Context) error {
		return e.label(ctx, e.pod, nil)
	})
}

// announce moves the leader label to this replica's Pod, so that the Service selects it.
func (e *election) announce(ctx context.Context) error {
	return e.untilDone(ctx, "failed to move the leader label to this Pod, so the Service does not select it; trying again", func(ctx context.Context) error {
		others, err := e.client.CoreV1().Pods(e.namespace).List(ctx, metav1.ListOptions{LabelSelector: leaderLabel})
		if err != nil {
			return fmt.Errorf("listing Pods with the leader label: %w", err)
		}
		for _, pod := range others.Items {
			if pod.Name != e.pod {
				if err := e.label(ctx, pod.Name, nil); err != nil {
					return err
				}
			}
		}
		yes := "true"
		return e.label(ctx, e.pod, &yes)
	})
}

// untilDone calls try until it succeeds. It does nothing outside a cluster, where there is
// no Pod to label.
func (e *election) untilDone(ctx context.Context, failure string, try func(context.Context) error) error {
	if e.elector == nil || e.pod == "" {
		return nil
	}
	return wait.PollUntilContextCancel(ctx, retryPeriod, true, func(ctx context.Context) (bool, error) {
		err := try(ctx)
		if err != nil && ctx.Err() == nil {
			e.log.Error(failure, zap.String(logkey.Replica, e.pod), zap.Error(err))
		}
		return err == nil, nil
	})
}

func (e *election) label(ctx context.Context, pod string, value *string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]*string{leaderLabel: value}}})
	if err != nil {
		return fmt.Errorf("labelling Pod %s: %w", pod, err)
	}
	_, err = e.client.CoreV1().Pods(e.namespace).Patch(ctx, pod, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) && value == nil {
		return nil // a deleted Pod has no label
	}
	if err != nil {
		return fmt.Errorf("labelling Pod %s/%s: %w", e.namespace, pod, err)
	}
	return nil
}
