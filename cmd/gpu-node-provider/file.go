package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"gpu-node-provider/cloud"
	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/nodegroup"
	"gpu-node-provider/provider/reload"
)

const (
	// fileRetry is the pause before a changed file is applied again after an error of
	// the cloud.
	fileRetry = 5 * time.Second
	// reloadTimeout limits one attempt to apply a file.
	reloadTimeout = 30 * time.Second
)

// change is the result of reading the node group file: its contents or an error.
type change struct {
	contents reload.Contents
	err      error
}

// followFile calls apply with each change of the node group file, and again after
// fileRetry while apply returns true. It returns when until is closed or ctx is done.
func (r *replica) followFile(ctx context.Context, until <-chan struct{}, apply func(context.Context, change) (again bool)) error {
	latest := make(chan change, 1)
	var watching sync.WaitGroup
	defer watching.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	watching.Go(func() {
		ended <- reload.Watcher{Files: []string{r.file}, Known: r.contents, Changed: func(contents reload.Contents, err error) {
			select {
			case <-latest: // drops an older change
			default:
			}
			latest <- change{contents, err}
		}}.Run(ctx)
	})
	var again <-chan time.Time
	var now change
	for {
		select {
		case <-until:
			return nil
		case err := <-ended:
			return err
		case now = <-latest:
		case <-again:
		}
		again = nil
		if apply(ctx, now) {
			again = time.After(fileRetry)
		}
	}
}

// decode parses a changed file. A change that needs a restart is an error.
func (r *replica) decode(c change) (*config.Config, error) {
	if c.err != nil {
		return nil, c.err
	}
	next, err := config.Parse(c.contents[r.file])
	if err != nil {
		return nil, err
	}
	if changed := r.config.RestartNeeded(next); len(changed) > 0 {
		return nil, fmt.Errorf("restart the provider to change: %s", strings.Join(changed, "; "))
	}
	return next, nil
}

// applyFile makes a changed file effective on the leader. It returns true when a later
// attempt may succeed without a change of the file.
func (r *replica) applyFile(ctx context.Context, l *leader, c change) (again bool) {
	next, err := r.decode(c)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, reloadTimeout)
		defer cancel()
		err = l.apply(ctx, next)
	}
	if ctx.Err() != nil {
		return false
	}
	l.server.TookFile(err)
	if err != nil {
		r.warnOfFile(err)
		return cloud.Passing(err)
	}
	r.effective.Store(next)
	return false
}

// warnOfFile writes an Event about a rejected file.
func (r *replica) warnOfFile(err error) {
	if r.kube != nil {
		r.kube.view.WarnSelf("ConfigRejected", err.Error())
	}
}

// acceptFile makes a changed file effective on a standby replica, for the webhook and for
// the time when this replica leads. It rejects a file that drops a group with Nodes or gives
// it another Auto Scaling group, since the leader would reject it too. The leader also sees
// instances, so a rejected file is tried again.
func (r *replica) acceptFile(_ context.Context, c change) (again bool) {
	next, err := r.decode(c)
	if err == nil {
		err = r.dropsNodes(next)
	}
	if err == nil {
		r.rejected = ""
		r.contents = c.contents
		r.effective.Store(next)
		r.log.Info("node group file in effect on this standby replica")
		return false
	}
	if r.rejected != err.Error() {
		r.rejected = err.Error()
		r.log.Error("node group file rejected, the previous one stays in effect", zap.Error(err))
		r.warnOfFile(err)
	}
	return true
}

// dropsNodes returns an error when the group of a Node is missing from a file or has another
// Auto Scaling group in it. With discovery the groups are not in the file, so it returns nil.
func (r *replica) dropsNodes(next *config.Config) error {
	if r.kube == nil || next.Cloud.AWS != nil && next.Cloud.AWS.Discovery != nil {
		return nil
	}
	before, after := autoScalingGroups(r.effective.Load()), autoScalingGroups(next)
	dropped := map[string]bool{}
	for _, node := range r.kube.view.Nodes() {
		id := node.Labels[nodegroup.Label]
		asg, stays := after[id]
		was, known := before[id]
		if known && (!stays || asg != was) { // a group that is in neither file is kept by the leader, see keepDropped
			dropped[id] = true
		}
	}
	if len(dropped) == 0 {
		return nil
	}
	return fmt.Errorf("node groups with nodes are missing from the file or have another Auto Scaling group in it: %s: set retired: true until the nodes are gone",
		strings.Join(slices.Sorted(maps.Keys(dropped)), ", "))
}

// autoScalingGroups returns the names of the Auto Scaling groups of a file by node group.
func autoScalingGroups(c *config.Config) map[string]string {
	names := make(map[string]string, len(c.NodeGroups))
	for _, g := range c.NodeGroups {
		names[g.ID] = g.AutoScalingGroup
	}
	return names
}
