package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
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

// leader holds what only the leading replica has, from its first snapshot on.
type leader struct {
	cloud  *runningCloud
	server *provider.Server

	mu        sync.Mutex     // serializes changes of the node groups
	file      *config.Config // in effect, as on disk
	completed *config.Config // file with the machines that the cloud describes
}

// lead serves Cluster Autoscaler until ctx is done or a part fails. The order of its steps
// matters: no deletion is decided before the record of training pods has been read, and no
// call is answered before the guard has checked every node.
func (r *replica) lead(ctx context.Context) error {
	running, err := r.openCloud(ctx)
	if err != nil {
		return err
	}
	defer running.close()
	background, leading := startParts(ctx)
	err = r.leadWith(leading, running, background)
	if failure := background.stop(); failure != nil {
		return failure
	}
	if ctx.Err() != nil { // stopped
		return nil
	}
	return err
}

func (r *replica) leadWith(ctx context.Context, running *runningCloud, background *parts) error {
	if err := r.loadRecord(ctx); err != nil {
		return err
	}
	if r.kube != nil {
		background.add(r.kube.guard.Run) // Pods change while the cloud cannot be read
	}
	l, err := r.firstSnapshot(ctx, running)
	if err != nil {
		return err
	}
	err = r.progress.retry(ctx, "the groups of nodes that the node group file does not have are not known yet", func(ctx context.Context) error {
		return r.keepDropped(ctx, l)
	})
	if err != nil {
		return err
	}
	r.leading.Store(l)
	if r.kube != nil {
		if err := r.progress.await(ctx, "not every node has been checked yet", r.kube.guard.FirstPass); err != nil {
			return err
		}
	}
	port, err := openPort("server.address", r.config.Server.Address)
	if err != nil {
		return err
	}
	groups := len(l.completed.NodeGroups) // the parts may change it
	background.add(running.run)
	background.add(l.server.Run)
	background.add(r.announce)
	background.add(func(ctx context.Context) error { return r.followCloud(ctx, l) })
	background.add(func(ctx context.Context) error {
		return r.followFile(ctx, nil, func(ctx context.Context, c change) bool { return r.applyFile(ctx, l, c) })
	})
	return r.serveCalls(ctx, l.server, port, groups)
}

// loadRecord reads the record of training pods, on which every decision about a deletion
// depends.
func (r *replica) loadRecord(ctx context.Context) error {
	if r.kube == nil {
		return nil
	}
	return r.progress.retry(ctx, "the record of training pods has not been read yet", r.kube.loadRecord)
}

// firstSnapshot completes the node group file and reads the cloud for the first time.
func (r *replica) firstSnapshot(ctx context.Context, running *runningCloud) (*leader, error) {
	l := &leader{cloud: running, file: r.effective.Load()}
	o := provider.Options{
		Backend: running.Backend, ReadEvery: running.readEvery, ServiceQuotas: running.quota, Log: r.log, Registerer: r.registry,
	}
	if r.kube != nil {
		o.Cluster, o.Gate = r.kube.view, r.kube.guard.Gate
	}
	err := r.progress.retry(ctx, "the cloud has not been read yet", func(ctx context.Context) (err error) {
		if l.completed, err = running.complete(ctx, l.file); err != nil {
			return err
		}
		o.Catalogue = nodegroup.New(l.completed, running.TemplateID)
		l.server, err = provider.New(ctx, o)
		if errors.Is(err, cloud.ErrInvalid) || errors.Is(err, cloud.ErrNotFound) {
			return usageError{fmt.Errorf("loading the first snapshot: %w", err)} // a retry would fail too
		}
		return err
	})
	return l, err
}

// serveCalls serves gRPC on the open port until ctx is done. Calls in flight finish, unless
// the leadership was lost: then another replica may already write.
func (r *replica) serveCalls(ctx context.Context, s *provider.Server, port net.Listener, groups int) error {
	listener := provider.NewListener(s, provider.ListenOptions{Credentials: r.credentials, Authorize: r.authorize, Log: r.log, Registerer: r.registry})
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), errLeadershipLost) {
			listener.StopNow()
			return
		}
		listener.Stop()
	})
	defer stop()
	r.progress.finish() // the port is open; connections wait until Serve accepts them
	r.log.Info("serving", zap.Stringer(logkey.GRPCAddress, port.Addr()), zap.Stringer(logkey.HTTPAddress, r.http.Addr()), zap.Int(logkey.NodeGroups, groups), zap.String(logkey.Version, version))
	if err := r.banner(port.Addr(), groups); err != nil {
		listener.StopNow()
		return errors.Join(err, port.Close())
	}
	return listener.Serve(port)
}

// announce labels this Pod, so that the Service selects it.
func (r *replica) announce(ctx context.Context) error {
	return ignoreStop(r.election.announce(ctx))
}

// place returns the node group of an instance: from the snapshot on the leader, else from
// the label of its Node.
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

// groupRead returns when a group was last read from the cloud, and false before the first
// snapshot.
func (r *replica) groupRead(group string) (time.Time, bool) {
	if l := r.leading.Load(); l != nil {
		return l.server.GroupRead(group)
	}
	return time.Time{}, false
}

// newNode returns a Node like the template of its group. Only the simulated cloud calls it,
// which starts after the first snapshot, so leading is not nil.
func (r *replica) newNode(group, name, providerID string) (*corev1.Node, error) {
	return r.leading.Load().server.NewNode(group, name, providerID)
}

// apply completes a changed file and makes it effective.
func (l *leader) apply(ctx context.Context, file *config.Config) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	completed, err := l.cloud.complete(ctx, file)
	if err != nil {
		return err
	}
	before := *l.completed
	if file.Cloud.AWS == nil || file.Cloud.AWS.Discovery == nil { // what the old file has must be in the new one
		before.NodeGroups = slices.DeleteFunc(slices.Clone(before.NodeGroups), func(g config.NodeGroup) bool { return !g.Dropped })
	}
	whole := *completed // which may be the file
	whole.NodeGroups = slices.Concat(completed.NodeGroups, nodegroup.Leaving(&before, completed, l.server.Instances))
	if err := l.server.Reload(ctx, nodegroup.New(&whole, l.cloud.TemplateID)); err != nil {
		return err
	}
	l.file, l.completed = file, &whole
	return nil
}

// completeAgain completes the file again, makes the result effective, and returns whether it
// has changed.
func (l *leader) completeAgain(ctx context.Context) (changed bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, reloadTimeout)
	defer cancel()
	completed, err := l.cloud.complete(ctx, l.file)
	if err != nil {
		return false, err
	}
	completed.NodeGroups = append(completed.NodeGroups, nodegroup.Leaving(l.completed, completed, l.server.Instances)...)
	if nodegroup.SameGroups(completed, l.completed) {
		return false, nil
	}
	if err := l.server.Reload(ctx, nodegroup.New(completed, l.cloud.TemplateID)); err != nil {
		return false, err
	}
	l.completed = completed
	return true, nil
}

// followCloud makes changes in the cloud effective: new launch templates, other tags,
// discovered groups.
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
			r.log.Info("node groups changed in the cloud")
		}
		return false, nil
	}))
}

// ignoreStop returns nil for the error of a poll whose context was cancelled.
func ignoreStop(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// parts run in the background until stop, also after the context of the caller is done, so
// that calls in flight finish while their dependencies still run.
type parts struct {
	group  *errgroup.Group
	ctx    context.Context
	cancel context.CancelFunc
}

// startParts returns an empty set of parts, and a context that is cancelled with ctx and
// when a part fails.
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

// stop cancels the parts, waits for them, and returns their first error.
func (p *parts) stop() error {
	p.cancel()
	return p.group.Wait()
}
