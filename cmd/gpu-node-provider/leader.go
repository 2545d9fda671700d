package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/logkey"
	"gpu-node-provider/provider"
	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/nodegroup"
)

// leader is what only the leading replica has, from its first snapshot on.
type leader struct {
	cloud  *runningCloud
	server *provider.Server

	mu    sync.Mutex     // one change of the node groups at a time
	file  *config.Config // in force, as it is on disk
	whole *config.Config // the same, completed by the cloud's description
}

// lead serves Cluster Autoscaler until ctx is done or a part fails. It reads top to
// bottom in the order of a start; nothing is decided before the record of training pods
// has been read, and no call is answered before every node has been looked at.
func (r *replica) lead(ctx context.Context) error {
	running, err := r.openCloud(ctx)
	if err != nil {
		return err
	}
	defer running.close()
	beside, leading := startParts(ctx)
	err = r.leadWith(leading, running, beside)
	if failure := beside.stop(); failure != nil {
		return failure
	}
	if ctx.Err() != nil { // told to stop
		return nil
	}
	return err
}

func (r *replica) leadWith(ctx context.Context, running *runningCloud, beside *parts) error {
	if err := r.loadRecord(ctx); err != nil {
		return err
	}
	if r.kube != nil {
		beside.add(r.kube.guard.Run) // pods come and go also while the cloud cannot be read
	}
	l, err := r.firstSnapshot(ctx, running)
	if err != nil {
		return err
	}
	r.leading.Store(l)
	if r.kube != nil {
		if err := r.progress.await(ctx, "not every node has been looked at yet", r.kube.guard.FirstPass); err != nil {
			return err
		}
	}
	port, err := openPort("server.address", r.config.Server.Address)
	if err != nil {
		return err
	}
	beside.add(running.run)
	beside.add(l.server.Run)
	beside.add(r.announce)
	beside.add(func(ctx context.Context) error { return r.followCloud(ctx, l) })
	beside.add(func(ctx context.Context) error {
		return r.followFile(ctx, nil, func(ctx context.Context, c change) bool { return r.takeFile(ctx, l, c) })
	})
	return r.serveCalls(ctx, l, port)
}

// loadRecord reads the record of training pods; without it no deletion can be judged.
func (r *replica) loadRecord(ctx context.Context) error {
	if r.kube == nil {
		return nil
	}
	return r.progress.retry(ctx, "the record of training pods has not been read yet", r.kube.loadRecord)
}

// firstSnapshot completes the node group file and reads the cloud for the first time.
func (r *replica) firstSnapshot(ctx context.Context, running *runningCloud) (*leader, error) {
	l := &leader{cloud: running, file: r.inForce.Load()}
	o := provider.Options{
		Backend: running.Backend, ReadEvery: running.readEvery, ServiceQuotas: running.quota, Log: r.log, Registerer: r.registry,
	}
	if r.kube != nil {
		o.Cluster, o.Gate = r.kube.view, r.kube.guard.Gate
	}
	err := r.progress.retry(ctx, "the cloud has not been read yet", func(ctx context.Context) (err error) {
		if l.whole, err = running.complete(ctx, l.file); err != nil {
			return err
		}
		o.Catalogue = nodegroup.New(l.whole, running.TemplateID)
		l.server, err = provider.New(ctx, o)
		if errors.Is(err, cloud.ErrInvalid) || errors.Is(err, cloud.ErrNotFound) {
			return usageError{fmt.Errorf("no first snapshot: %w", err)} // another try fails as well
		}
		return err
	})
	return l, err
}

// serveCalls answers on the open port until ctx is done. Calls in flight finish, unless
// another replica may lead already.
func (r *replica) serveCalls(ctx context.Context, l *leader, port net.Listener) error {
	listener := provider.NewListener(l.server, provider.ListenOptions{Credentials: r.credentials, Authorize: r.authorize, Log: r.log, Registerer: r.registry})
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), errLeadershipLost) {
			listener.StopNow()
			return
		}
		listener.Stop()
	})
	defer stop()
	r.progress.finish() // the port is open, and answers as soon as Serve begins
	groups := len(l.whole.NodeGroups)
	r.log.Info("serving", zap.Stringer(logkey.GRPCAddress, port.Addr()), zap.Stringer(logkey.HTTPAddress, r.http.Addr()), zap.Int(logkey.NodeGroups, groups), zap.String(logkey.Version, version))
	if err := r.banner(port.Addr(), groups); err != nil {
		listener.StopNow()
		return errors.Join(err, port.Close())
	}
	return listener.Serve(port)
}

// announce makes the Service select this Pod.
func (r *replica) announce(ctx context.Context) error {
	return r.election.announce(ctx)
}

// place finds the node group of an instance: in the leader's snapshot, else by the label
// of its Node.
func (r *replica) place(instance string) (nodegroup.Place, bool) {
	if l := r.leading.Load(); l != nil {
		return l.server.Place(instance)
	}
	node, ok := r.kube.view.Node(instance)
	if !ok {
		return nodegroup.Place{}, false
	}
	group := node.Labels[nodegroup.Label]
	return nodegroup.Place{Group: group}, group != ""
}

// groupRead is when a group was last read; false before the first snapshot.
func (r *replica) groupRead(group string) (time.Time, bool) {
	if l := r.leading.Load(); l != nil {
		return l.server.GroupRead(group)
	}
	return time.Time{}, false
}

// newNode makes a Node as its group's template promises it. The simulated cloud calls it,
// which runs only after the first snapshot.
func (r *replica) newNode(group, name, providerID string) (*corev1.Node, error) {
	return r.leading.Load().server.NewNode(group, name, providerID)
}

// put puts a changed file in force, completed by the cloud's description.
func (l *leader) put(ctx context.Context, file *config.Config) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	whole, err := l.cloud.complete(ctx, file)
	if err != nil {
		return err
	}
	if file.Cloud.AWS != nil && file.Cloud.AWS.Discovery != nil {
		whole.NodeGroups = append(whole.NodeGroups, nodegroup.Leaving(l.whole, whole, l.server.Instances)...)
	}
	if err := l.server.Reload(ctx, nodegroup.New(whole, l.cloud.TemplateID)); err != nil {
		return err
	}
	l.file, l.whole = file, whole
	return nil
}

// completeAgain asks the cloud again what it adds to the file, and reports whether that
// has changed.
func (l *leader) completeAgain(ctx context.Context) (changed bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, reloadTimeout)
	defer cancel()
	whole, err := l.cloud.complete(ctx, l.file)
	if err != nil {
		return false, err
	}
	whole.NodeGroups = append(whole.NodeGroups, nodegroup.Leaving(l.whole, whole, l.server.Instances)...)
	if nodegroup.SameGroups(whole, l.whole) {
		return false, nil
	}
	if err := l.server.Reload(ctx, nodegroup.New(whole, l.cloud.TemplateID)); err != nil {
		return false, err
	}
	l.whole = whole
	return true, nil
}

// followCloud puts changes of the cloud's description in force: new launch templates,
// other tags, discovered groups.
func (r *replica) followCloud(ctx context.Context, l *leader) error {
	if l.cloud.completeEvery == 0 {
		return nil
	}
	return ignoreStop(wait.PollUntilContextCancel(ctx, l.cloud.completeEvery, false, func(ctx context.Context) (bool, error) {
		changed, err := l.completeAgain(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			r.log.Warn("failed to read the instance types of node groups", zap.Error(err))
		case changed:
			r.log.Info("node groups changed in the cloud's description")
		}
		return false, nil
	}))
}

// ignoreStop drops the error of a poll that its context has ended.
func ignoreStop(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// parts run beside a function and outlive its context until stop, so that calls in
// flight finish while everything that they need is there.
type parts struct {
	group  *errgroup.Group
	ctx    context.Context
	cancel context.CancelFunc
}

// startParts returns no parts yet, and a context that ends with ctx and when a part fails.
func startParts(ctx context.Context) (*parts, context.Context) {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	group, own := errgroup.WithContext(own)
	ctx, end := context.WithCancelCause(ctx)
	context.AfterFunc(own, func() { end(context.Cause(own)) })
	return &parts{group, own, cancel}, ctx
}

func (p *parts) add(part func(context.Context) error) {
	p.group.Go(func() error { return part(p.ctx) })
}

// stop ends the parts and returns the first error of one.
func (p *parts) stop() error {
	p.cancel()
	return p.group.Wait()
}
