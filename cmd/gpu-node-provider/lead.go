package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/simulated"
	"gpu-node-provider/provider"
	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/guard"
	"gpu-node-provider/provider/nodegroup"
)

// office is what only the leader has: it decides about machines.
type office struct {
	cloud    *runningCloud
	server   *provider.Server
	listener *provider.Listener

	file, whole *config.Config // in force: as it is on disk, and as the cloud completes it
}

// takeOffice makes what only the leader has. From now on a changed file is the
// server's business.
func (p *process) takeOffice() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	running, err := newCloud(p.config, p.kube, p.newNode, p.log, p.registry)
	if err != nil {
		return err
	}
	server := provider.New(provider.Options{
		Gate:      p.holding.gate(),
		Catalogue: nodegroup.New(p.config, running.backend.TemplateID), Backend: running.backend, Cluster: p.kube.view(),
		ReadEvery: running.readEvery, ServiceQuotas: running.quotas, Log: p.log, Registerer: p.registry,
	})
	listener := provider.NewListener(server, provider.ListenOptions{
		Credentials: p.tls.credentials(), Authorize: p.tls.authorize(), Log: p.log, Registerer: p.registry,
	})
	p.holding.reload(&p.config.Checkpoint) // of a file that changed while this replica stood by
	p.office.Store(&office{cloud: running, server: server, listener: listener, file: p.config, whole: p.config})
	return nil
}

// place finds an instance in the snapshot in force, which a replica that stands by has
// not. Before there is one, Nodes tell by their label whose they are.
func (p *process) place(instance string) (guard.Place, bool) {
	o := p.office.Load()
	if o == nil {
		return guard.Place{}, false
	}
	if !o.server.Started() {
		if node, ok := p.kube.view().Node(instance); ok {
			group := node.Labels[nodegroup.Label]
			return guard.Place{Group: group}, group != ""
		}
		return guard.Place{}, false
	}
	place, ok := o.server.Place(instance)
	return guard.Place(place), ok
}

// complete is closed once place finds every instance.
func (p *process) complete() <-chan struct{} { return p.snapshot }

// groupRead is when a group was last read, which a replica that stands by does not do.
func (p *process) groupRead(group string) (time.Time, bool) {
	o := p.office.Load()
	if o == nil {
		return time.Time{}, false
	}
	return o.server.GroupRead(group)
}

// newNode makes Nodes as the templates promise them, by the file in force. Only
// the leader's cloud asks for them.
func (p *process) newNode(group, name, providerID string) (*corev1.Node, error) {
	return p.office.Load().server.NewNode(group, name, providerID)
}

// startRetry is how often the first snapshot is tried for. A cloud or an API
// server that is away at this moment is no reason to give up: until it is back
// the port stays closed and readiness says why.
const startRetry = 2 * time.Second

func (p *process) start(ctx context.Context) error {
	if err := p.kube.waitForSync(ctx); err != nil {
		return err
	}
	if err := p.standBy(ctx); err != nil {
		return err
	}
	if err := p.retry(ctx, "record of training pods not read", p.holding.load); err != nil {
		return err
	}
	close(p.recorded)
	p.trouble.Store(nil)
	if err := p.firstSnapshot(ctx); err != nil {
		return err
	}
	close(p.snapshot)
	return p.holding.passed(ctx)
}

// standBy returns when this replica leads.
func (p *process) standBy(ctx context.Context) error {
	if err := p.election.standBy(ctx); err != nil {
		return err
	}
	close(p.synced)
	p.election.begin(ctx)
	select {
	case <-p.election.led:
	case <-ctx.Done():
		return ctx.Err()
	}
	if p.office.Load() != nil {
		return nil
	}
	return wait.PollUntilContextCancel(ctx, startRetry, true, func(context.Context) (bool, error) {
		err := p.takeOffice()
		if errors.Is(err, simulated.ErrInUse) { // by the leader before, which has not ended yet
			p.log.Warn("the cloud is in use, trying again", zap.Error(err))
			return false, nil
		}
		return err == nil, err
	})
}

func (p *process) firstSnapshot(ctx context.Context) error {
	o := p.office.Load()
	return p.retry(ctx, "first snapshot failed", func(ctx context.Context) error {
		err := p.begin(ctx, o)
		if errors.Is(err, cloud.ErrInvalid) || errors.Is(err, cloud.ErrNotFound) {
			return usageError{fmt.Errorf("no first snapshot: %w", err)} // no time will help
		}
		return err
	})
}

// retry repeats what has to succeed before the port opens, until it does or is not
// worth another try.
func (p *process) retry(ctx context.Context, failure string, do func(context.Context) error) error {
	return wait.PollUntilContextCancel(ctx, startRetry, true, func(ctx context.Context) (bool, error) {
		err := do(ctx)
		if usage := (usageError{}); errors.As(err, &usage) {
			return false, err
		}
		if err != nil {
			p.trouble.Store(new(err.Error()))
			p.log.Warn(failure+", trying again", zap.Error(err))
		}
		return err == nil, nil
	})
}

// begin completes the node group file, where the cloud has something to add, and
// reads the cloud.
func (p *process) begin(ctx context.Context, o *office) error {
	if err := p.surveyed(ctx, o, p.config, o.server.Begin); err != nil {
		return err
	}
	return o.server.Start(ctx)
}

// surveyed puts a node group file in force, completed.
func (p *process) surveyed(ctx context.Context, o *office, file *config.Config, use func(context.Context, *nodegroup.Catalogue) error) error {
	whole := file
	if o.cloud.survey != nil {
		var err error
		if whole, err = o.cloud.survey.complete(ctx, file); err != nil {
			return err
		}
		if file.Cloud.AWS.Discovery != nil && o.server.Started() {
			whole.NodeGroups = append(whole.NodeGroups, leaving(o.whole, whole, o.server.Instances)...)
		}
	}
	if err := use(ctx, nodegroup.New(whole, o.cloud.backend.TemplateID)); err != nil {
		return err
	}
	o.file, o.whole = file, whole
	return nil
}

// watchCloud follows what the cloud has to add to the file.
func (p *process) watchCloud(ctx context.Context) error {
	o := p.office.Load()
	if o.cloud.survey == nil {
		<-ctx.Done()
		return nil
	}
	return wait.PollUntilContextCancel(ctx, surveyRounds*o.cloud.readEvery, false, func(ctx context.Context) (bool, error) {
		if err := p.resurvey(ctx, o); err != nil && ctx.Err() == nil {
			p.log.Warn("what the machines of the node groups are was not read", zap.Error(err))
		}
		return false, nil
	})
}

func (p *process) resurvey(ctx context.Context, o *office) error {
	p.mu.Lock() // not while the file changes
	defer p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, reloadTimeout)
	defer cancel()
	whole, err := o.cloud.survey.complete(ctx, o.file)
	if err != nil {
		return err
	}
	whole.NodeGroups = append(whole.NodeGroups, leaving(o.whole, whole, o.server.Instances)...)
	if sameGroups(whole, o.whole) {
		return nil
	}
	if err := o.server.Reload(ctx, nodegroup.New(whole, o.cloud.backend.TemplateID)); err != nil {
		return err
	}
	o.whole = whole
	p.log.Info("node groups changed by what the cloud says of them", zap.Int("node_groups", len(whole.NodeGroups)))
	return nil
}

// announce has the Service find the leader, whose port is open now.
func (p *process) announce(ctx context.Context) error {
	if err := p.election.announce(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// standing says what a replica does that does not lead.
func (p *process) standing() string {
	if leader := p.election.leader(); leader != "" {
		return "this replica stands by; ask the one that leads: " + leader
	}
	return "this replica stands by, and no replica leads yet"
}
