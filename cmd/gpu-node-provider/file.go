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

	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/nodegroup"
	"gpu-node-provider/provider/reload"
)

const (
	// fileRetry is how soon a changed file is tried again that the cloud, not the file,
	// was in the way of.
	fileRetry = 5 * time.Second
	// reloadTimeout bounds one try to put a file in force.
	reloadTimeout = 30 * time.Second
)

// change is a reading of the node group file: its contents, or why it cannot be read.
type change struct {
	contents reload.Contents
	err      error
}

// followFile calls take with each change of the node group file, and again after
// fileRetry while take returns true. It returns when until is closed or ctx is done.
func (r *replica) followFile(ctx context.Context, until <-chan struct{}, take func(context.Context, change) (again bool)) error {
	latest := make(chan change, 1)
	var watching sync.WaitGroup
	defer watching.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	watching.Go(func() {
		ended <- reload.Watcher{Files: []string{r.file}, Known: r.contents, Changed: func(contents reload.Contents, err error) {
			select {
			case <-latest: // it is older
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
		if take(ctx, now) {
			again = time.After(fileRetry)
		}
	}
}

// decode returns the file of a change, if nothing in it needs a restart.
func (r *replica) decode(c change) (*config.Config, error) {
	if c.err != nil {
		return nil, c.err
	}
	next, err := config.Parse(c.contents[r.file])
	if err != nil {
		return nil, err
	}
	if changed := r.config.RestartNeeded(next); len(changed) > 0 {
		return nil, fmt.Errorf("these need a restart of the provider: %s", strings.Join(changed, "; "))
	}
	return next, nil
}

// takeFile puts a changed file in force on the leader. It returns true when time alone
// may put right what was in the way.
func (r *replica) takeFile(ctx context.Context, l *leader, c change) (again bool) {
	next, err := r.decode(c)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, reloadTimeout)
		defer cancel()
		err = l.put(ctx, next)
	}
	if ctx.Err() != nil {
		return false
	}
	l.server.TookFile(err)
	if err != nil {
		r.warnOfFile(err)
		return nodegroup.Passing(err)
	}
	r.inForce.Store(next)
	return false
}

// warnOfFile writes an Event about a file that is not in force.
func (r *replica) warnOfFile(err error) {
	if r.kube != nil {
		r.kube.view.WarnSelf("ConfigRejected", err.Error())
	}
}

// keepFile keeps a changed file on a replica that stands by, which goes by it at once
// and leads with it. It refuses what the leader would refuse, as far as it can see: a
// file that drops a group which has Nodes, or gives it another Auto Scaling group. The
// leader may know better, so a refused file is tried again.
func (r *replica) keepFile(_ context.Context, c change) (again bool) {
	next, err := r.decode(c)
	if err == nil {
		err = r.dropsNodes(next)
	}
	if err == nil {
		r.refused = ""
		r.contents = c.contents
		r.inForce.Store(next)
		r.log.Info("node group file in force on this replica, which stands by")
		return false
	}
	if r.refused != err.Error() {
		r.refused = err.Error()
		r.log.Error("node group file rejected, the old one stays in force", zap.Error(err))
		r.warnOfFile(err)
	}
	return true
}

// dropsNodes is an error when a file loses sight of Nodes: their group is missing from
// it, or is another Auto Scaling group in it. With discovery the file alone does not tell.
func (r *replica) dropsNodes(next *config.Config) error {
	if r.kube == nil || next.Cloud.AWS != nil && next.Cloud.AWS.Discovery != nil {
		return nil
	}
	before, after := autoScalingGroups(r.inForce.Load()), autoScalingGroups(next)
	dropped := map[string]bool{}
	for _, node := range r.kube.view.Nodes() {
		id := node.Labels[nodegroup.Label]
		asg, stays := after[id]
		was, known := before[id]
		if id != "" && (!stays || known && asg != was) {
			dropped[id] = true
		}
	}
	if len(dropped) == 0 {
		return nil
	}
	return fmt.Errorf("these groups have nodes, and are missing from the file or on another Auto Scaling group in it: %s: write retired: true until the nodes are gone",
		strings.Join(slices.Sorted(maps.Keys(dropped)), ", "))
}

// autoScalingGroups are the names of a file's Auto Scaling groups by node group.
func autoScalingGroups(c *config.Config) map[string]string {
	names := make(map[string]string, len(c.NodeGroups))
	for _, g := range c.NodeGroups {
		names[g.ID] = g.AutoScalingGroup
	}
	return names
}
