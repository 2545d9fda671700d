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

// leaseName is the Lease that the leader holds, in the provider's namespace.
const leaseName = "gpu-node-provider"

// leaderLabel marks the Pod of the leader; the gRPC Service selects it.
const leaderLabel = "gpu-node-provider.io/leader"

// A leader has ended before others may lead: it tries to renew for renewDeadline,
// and then to give the lease up for as long again (client-go's release), which
// together with one retryPeriod has to be below leaseDuration.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 6 * time.Second
	retryPeriod   = 2 * time.Second
)

// errLeadershipLost ends the process, since another replica may lead now. It stands by
// when it starts anew.
var errLeadershipLost = errors.New("failed to renew the Lease in time, another replica may lead")

// election makes one replica the leader, which alone decides about machines. The others
// answer for evictions.
type election struct {
	client    kubernetes.Interface
	namespace string
	pod       string // the name of this replica's Pod; empty outside a cluster
	log       *zap.Logger

	elector *leaderelection.LeaderElector // nil without an election: this process leads
	led     chan struct{}                 // closed when this replica leads
}

// leadsAlone is the election of a process that is the only one.
func leadsAlone() *election {
	e := &election{led: make(chan struct{})}
	close(e.led)
	return e
}

func newElection(c *config.Kubernetes, k *kube, log *zap.Logger) (*election, error) {
	if !*c.LeaderElection {
		return leadsAlone(), nil
	}
	e := &election{led: make(chan struct{}), log: log}
	e.client, e.namespace, e.pod = k.client, c.Namespace, os.Getenv("POD_NAME")
	// A Pod's name is its own also after a restart, and so is its lease. Outside a
	// cluster two processes of one machine must not take each other for the same.
	host, err := os.Hostname()
	if err != nil && e.pod == "" {
		return nil, fmt.Errorf("naming this replica: %w", err)
	}
	identity := cmp.Or(e.pod, host+"_"+rand.String(8))
	e.elector, err = leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: leaseName,
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: leaseName}, Client: k.client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		ReleaseOnCancel: true, // run is stopped after everything that the Lease covers
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(e.led) },
			OnStoppedLeading: func() {},
			OnNewLeader: func(leader string) {
				log.Info("leader known", zap.String(logkey.Leader, leader), zap.Bool(logkey.ThisReplica, leader == identity))
			},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("leader election: %w", err)
	}
	return e, nil
}

// run takes part until ctx is done, and gives the Lease back then, so that another
// replica need not wait for its end. It returns errLeadershipLost when the Lease could
// not be renewed in time.
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
		return nil
	}
	return errLeadershipLost
}

// elects reports whether there are other candidates.
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

// directions tell a person who asks this replica where the leader is.
func (e *election) directions() string {
	if e.elector != nil {
		if leader := e.elector.GetLeader(); leader != "" {
			return "this replica stands by; ask the leader: " + leader
		}
	}
	return "this replica stands by, and no replica leads yet"
}

// removeLabel takes the leader's label off this replica's Pod, which keeps it when its
// container restarts.
func (e *election) removeLabel(ctx context.Context) error {
	return e.untilDone(ctx, "failed to take the leader's label off this Pod", func(ctx context.Context) error {
		return e.label(ctx, e.pod, nil)
	})
}

// announce moves the leader's label to this replica's Pod, so that the Service selects it.
func (e *election) announce(ctx context.Context) error {
	return e.untilDone(ctx, "failed to put the leader's label on this Pod, so the Service does not find it", func(ctx context.Context) error {
		others, err := e.client.CoreV1().Pods(e.namespace).List(ctx, metav1.ListOptions{LabelSelector: leaderLabel})
		if err != nil {
			return fmt.Errorf("listing Pods with the leader's label: %w", err)
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

// untilDone repeats try until it succeeds. Outside a cluster there is no Pod to label.
func (e *election) untilDone(ctx context.Context, failure string, try func(context.Context) error) error {
	if e.elector == nil || e.pod == "" {
		return nil
	}
	return wait.PollUntilContextCancel(ctx, retryPeriod, true, func(ctx context.Context) (bool, error) {
		err := try(ctx)
		if err != nil && ctx.Err() == nil {
			e.log.Error(failure+", trying again", zap.String(logkey.Replica, e.pod), zap.Error(err))
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
		return nil // a Pod that is gone has no label
	}
	if err != nil {
		return fmt.Errorf("labelling Pod %s/%s: %w", e.namespace, pod, err)
	}
	return nil
}
