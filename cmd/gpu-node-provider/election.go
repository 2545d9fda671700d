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

// errLeadershipLost ends the process: another replica may lead now, and one that
// starts anew stands by.
var errLeadershipLost = errors.New("the lease could not be renewed in time, another replica may lead")

// election decides which replica leads: one at a time decides about machines,
// the others answer for evictions.
type election struct {
	client    kubernetes.Interface
	namespace string
	pod       string // the name of this replica's Pod; empty outside a cluster
	log       *zap.Logger

	elector *leaderelection.LeaderElector // nil without an election: this process leads
	led     chan struct{}                 // closed when this replica leads
	stop    context.CancelFunc
	ended   chan struct{} // closed when it takes no part any more
}

func newElection(c *config.Kubernetes, k *kube, log *zap.Logger) (*election, error) {
	e := &election{led: make(chan struct{}), ended: make(chan struct{}), log: log}
	if k == nil || !*c.LeaderElection {
		close(e.led)
		return e, nil
	}
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
		ReleaseOnCancel: true, // close comes after everything that the lease covers
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(e.led) },
			OnStoppedLeading: func() {},
			OnNewLeader: func(leader string) {
				log.Info("leader known", zap.String("leader", leader), zap.Bool("this_replica", leader == identity))
			},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("leader election: %w", err)
	}
	return e, nil
}

// begin takes part, until close.
func (e *election) begin(ctx context.Context) {
	if e.elector == nil {
		return
	}
	ctx, e.stop = context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(e.ended)
		e.elector.Run(ctx)
	}()
}

// run returns an error when the lead is lost.
func (e *election) run(ctx context.Context) error {
	select {
	case <-e.ended:
		return errLeadershipLost
	case <-ctx.Done():
		return nil
	}
}

// close gives the lease back, so that another replica need not wait for its end.
func (e *election) close() {
	if e != nil && e.stop != nil {
		e.stop()
		<-e.ended
	}
}

// leader is who leads; empty when nobody is known to.
func (e *election) leader() string {
	if e.elector == nil {
		return ""
	}
	return e.elector.GetLeader()
}

// leads says whether this replica does.
func (e *election) leads() bool {
	select {
	case <-e.led:
		return true
	default:
		return false
	}
}

// standBy takes the leader's label off this replica's Pod: a container that was
// restarted in its Pod finds what it had before.
func (e *election) standBy(ctx context.Context) error {
	return e.untilDone(ctx, "the leader's label could not be taken off this Pod", func(ctx context.Context) error {
		return e.label(ctx, e.pod, nil)
	})
}

// announce moves the leader's label to this replica's Pod.
func (e *election) announce(ctx context.Context) error {
	return e.untilDone(ctx, "the Service does not find this leader", func(ctx context.Context) error {
		others, err := e.client.CoreV1().Pods(e.namespace).List(ctx, metav1.ListOptions{LabelSelector: leaderLabel})
		if err != nil {
			return fmt.Errorf("looking for the Pod that led before: %w", err)
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

// untilDone tries for as long as the API server does not do it. Outside a cluster
// there is no Pod, and nothing to do.
func (e *election) untilDone(ctx context.Context, trouble string, try func(context.Context) error) error {
	if e.elector == nil || e.pod == "" {
		return nil
	}
	return wait.PollUntilContextCancel(ctx, retryPeriod, true, func(ctx context.Context) (bool, error) {
		err := try(ctx)
		if err != nil && ctx.Err() == nil {
			e.log.Error(trouble+", trying again", zap.String("pod", e.pod), zap.Error(err))
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
