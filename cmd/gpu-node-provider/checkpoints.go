package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/labels"

	"gpu-node-provider/provider"
	"gpu-node-provider/provider/checkpoint"
	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/guard"
	"gpu-node-provider/provider/nodegroup"
)

// checkpoints is everything that holds nodes for training pods; nil without a
// Kubernetes API, where there are no pods.
type checkpoints struct {
	store    *checkpoint.Store
	record   *checkpoint.Record
	assessor *checkpoint.Assessor
	guard    *guard.Guard
	policy   atomic.Pointer[config.Checkpoint]
	log      *zap.Logger
}

// cloudView is what the guard sees of the cloud.
type cloudView interface {
	place(instance string) (guard.Place, bool)
	groupRead(group string) (time.Time, bool)
	complete() <-chan struct{}
}

// newCheckpoints prepares the parts. cloud is asked only while they run.
func newCheckpoints(c *config.Config, k *kube, embedded *embeddedRedis, cloud cloudView, log *zap.Logger, r prometheus.Registerer) (*checkpoints, error) {
	if k == nil {
		return nil, nil //nolint:nilnil // without an API there are no pods to hold nodes for
	}
	store, err := checkpoint.NewStore(redisOptions(c.Redis, embedded), c.Checkpoint.KeyPrefix)
	if err != nil {
		return nil, usageError{fmt.Errorf("redis: %w", err)}
	}
	selector, err := labels.Parse(c.Checkpoint.PodSelector)
	if err != nil {
		return nil, usageError{fmt.Errorf("checkpoint.podSelector: %w", err)}
	}
	p := &checkpoints{store: store, record: checkpoint.NewRecord(k.client, c.Kubernetes.Namespace), log: log}
	p.policy.Store(&c.Checkpoint)
	p.assessor = &checkpoint.Assessor{
		View: k.seen, Record: p.record, Signals: store, Selector: selector, GroupLabel: nodegroup.Label, Now: time.Now,
		Policy: func() checkpoint.Policy { return p.guardPolicy().Policy },
	}
	p.guard = &guard.Guard{
		Assessor: p.assessor, View: k.seen, Record: p.record, Asker: store, Policy: p.guardPolicy, Place: cloud.place, Complete: cloud.complete(), Read: cloud.groupRead, GroupLabel: nodegroup.Label,
		Log: log, Now: time.Now, Metrics: guard.NewMetrics(r),
	}
	return p, nil
}

func redisOptions(c config.Redis, embedded *embeddedRedis) checkpoint.RedisOptions {
	if embedded != nil {
		return checkpoint.RedisOptions{Addresses: []string{embedded.address()}}
	}
	o := checkpoint.RedisOptions{
		Addresses: c.Addresses, MasterName: c.MasterName, Cluster: c.Cluster, Username: c.Username, PasswordFile: c.PasswordFile, DB: c.DB,
	}
	if c.TLS != nil {
		o.TLS = &checkpoint.RedisTLS{CAFile: c.TLS.CAFile, CertFile: c.TLS.CertFile, KeyFile: c.TLS.KeyFile, ServerName: c.TLS.ServerName}
	}
	return o
}

func (p *checkpoints) guardPolicy() guard.Policy {
	c := p.policy.Load()
	return guard.Policy{
		Policy:  checkpoint.Policy{MaxAge: c.MaxAge.Duration, AbandonAfter: c.AbandonAfter.Duration},
		Observe: c.Mode == config.Observe, AskAfter: c.AskAfter.Duration, AskEvery: c.AskEvery.Duration, AskOnTaints: c.AskOnTaints,
	}
}

// reload takes over a new policy.
func (p *checkpoints) reload(c *config.Checkpoint) {
	if p != nil {
		p.policy.Store(c)
	}
}

// gate is asked by DeleteNodes; nil without a Kubernetes API.
func (p *checkpoints) gate() provider.Gate {
	if p == nil {
		return nil
	}
	return func(ctx context.Context, _ string, nodes []provider.GateNode) ([]provider.Refusal, error) {
		instances := make([]checkpoint.Instance, 0, len(nodes))
		for _, n := range nodes {
			instances = append(instances, checkpoint.Instance{ID: n.Instance, Node: n.Node})
		}
		held, err := p.assessor.Hold(ctx, instances)
		if p.guardPolicy().Observe {
			p.observed(held, err)
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", provider.ErrGateUnavailable, err)
		}
		refusals := make([]provider.Refusal, 0, len(held))
		for _, h := range held {
			refusals = append(refusals, provider.Refusal{Instance: h.Instance, Reason: h.Reason})
			if node, ok := p.assessor.View.Node(h.Instance); ok {
				p.guard.Kick(node.Name) // it is held again, so that Cluster Autoscaler stops choosing it
			}
		}
		return refusals, nil
	}
}

func (p *checkpoints) observed(held []checkpoint.Held, err error) {
	if err != nil {
		p.log.Warn("observed: a deletion could not be judged", zap.Error(err))
	}
	for _, h := range held {
		p.log.Warn("observed: an instance goes that would be held", zap.String("instance", h.Instance), zap.String("because", h.Reason))
	}
}

// run runs the guard.
func (p *checkpoints) run(ctx context.Context) error {
	if p == nil {
		<-ctx.Done()
		return nil
	}
	return p.guard.Run(ctx)
}

// passed waits until every node has been looked at.
func (p *checkpoints) passed(ctx context.Context) error {
	if p == nil {
		return nil
	}
	select {
	case <-p.guard.Passed():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// load reads the record; nothing may be decided before.
func (p *checkpoints) load(ctx context.Context) error {
	if p == nil {
		return nil
	}
	warnings, _ := p.store.Warnings(ctx) // what is not known doctor tells, and who cannot read at all tells every reading
	for _, warning := range warnings {
		p.log.Warn("redis", zap.String("warning", warning))
	}
	return p.record.Load(ctx)
}

// held is what status shows.
func (p *checkpoints) held() []provider.HeldReport {
	if p == nil {
		return nil
	}
	var all []provider.HeldReport
	for _, h := range p.guard.Holds() {
		report := provider.HeldReport{Instance: h.Instance, Node: h.Node, NodeGroup: h.Group, Since: h.Since}
		for _, pod := range h.Pods {
			report.Pods = append(report.Pods, provider.HeldPod{Pod: pod.Pod, Reason: pod.Reason, Until: pod.Until})
		}
		all = append(all, report)
	}
	return all
}

func (p *checkpoints) close() {
	if p != nil {
		_ = p.store.Close() // nothing of it is needed any more
	}
}
