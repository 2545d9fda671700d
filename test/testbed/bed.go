package testbed

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/redis/go-redis/v9"
	corev1 "k8s.io/api/core/v1"

	"gpu-node-provider/test/controlplane"
	"gpu-node-provider/test/nodeagent"
	"gpu-node-provider/test/testbed/process"
)

// Options say what a bed is made of.
type Options struct {
	// Dir takes everything that is written. It must exist.
	Dir string
	// Config is the node group file.
	Config Config
	// AutoscalerFlags are those of Cluster Autoscaler besides what every bed has.
	AutoscalerFlags []string
	// Webhook adds the eviction webhook, and with it mutual TLS on the gRPC port.
	Webhook bool
	// AWS is the cloud instead of the simulated one, where it is set.
	AWS *AWS
	// Replicas of the provider; 0 is one.
	Replicas int
	// Without KEDA the replicas of trainers are the test's own affair.
	WithoutKEDA bool
}

// Bed is the system, running.
type Bed struct {
	Options
	Cluster *controlplane.Cluster
	Redis   redis.UniversalClient
	Watch   *Observer

	binaries     binaries
	redis        *process.Process
	masters      []*master // of a Redis Cluster, when there is one
	redisAddress string
	grpc, http   string // addresses of the provider's Services
	webhook      string
	replicas     []*replica
	services     []*service
	running      context.Context // until Stop
	metrics      string          // Cluster Autoscaler's
	agent        *nodeagent.Agent
	autoscaler   *process.Process
	others       []*process.Process
	stop         context.CancelFunc
	wait         sync.WaitGroup
}

// Start starts everything, and Cluster Autoscaler last: it does not bear a
// provider that is not there. Stop must be called, also after an error.
func Start(ctx context.Context, o Options) (*Bed, error) {
	b := &Bed{Options: o}
	var err error
	if b.binaries, err = findBinaries(); err != nil {
		return b, err
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	b.stop, b.running = stop, running
	for _, step := range []func(context.Context) error{b.prepareRedis, b.StartRedis, b.startCluster, b.permissions, b.prepareProvider} {
		if err := step(ctx); err != nil {
			return b, err
		}
	}
	b.startWatching(running)
	if err := b.StartProvider(ctx); err != nil {
		return b, err
	}
	if o.Webhook {
		if err := b.registerWebhook(ctx); err != nil {
			return b, err
		}
	}
	return b, b.StartAutoscaler(ctx)
}

// Stop ends everything.
func (b *Bed) Stop() {
	if b.stop != nil {
		b.stop()
	}
	b.wait.Wait()
	for _, s := range b.services {
		s.close()
	}
	all := []*process.Process{b.autoscaler, b.redis}
	for _, r := range b.replicas {
		all = append(all, r.process)
	}
	for _, m := range b.masters {
		all = append(all, m.process)
	}
	for _, p := range append(all, b.others...) {
		if p != nil {
			p.Stop(stopTimeout)
		}
	}
	if b.Redis != nil {
		_ = b.Redis.Close() // the server is gone already
	}
	if b.Cluster != nil {
		b.Cluster.Stop()
	}
}

// Logs is the folder of all logs.
func (b *Bed) Logs() string { return filepath.Join(b.Dir, "logs") }

func (b *Bed) startCluster(ctx context.Context) (err error) {
	b.Cluster, err = controlplane.Start(ctx, controlplane.Options{Binaries: b.binaries.controlPlane, Dir: b.Dir, KEDA: !b.WithoutKEDA})
	return err
}

func (b *Bed) startWatching(ctx context.Context) {
	b.agent = &nodeagent.Agent{
		Client: b.Cluster.Client, Logs: filepath.Join(b.Logs(), "pods"),
		Skip: func(n *corev1.Node) bool { _, kwok := n.Labels[controlplane.ManagedByKwok]; return kwok },
	}
	b.Watch = newObserver(b)
	parts := []func(context.Context) error{b.agent.Run, b.Watch.run}
	if b.AWS != nil {
		parts = append(parts, b.kubelets)
	}
	for _, run := range parts {
		b.wait.Go(func() {
			if err := run(ctx); err != nil {
				fmt.Fprintln(os.Stderr, "testbed:", err)
			}
		})
	}
}
