package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/reload"
)

// reloadRetry is how soon a changed file is tried again that only the cloud, not
// the file, was in the way of.
const reloadRetry = 5 * time.Second

// change is what became of the file: what it holds, or why it cannot be read.
type change struct {
	contents []byte
	err      error
}

// watchFile puts a changed node group file in force.
func (p *process) watchFile(ctx context.Context) error {
	latest := make(chan change, 1)
	var watching sync.WaitGroup
	defer watching.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	watching.Go(func() {
		ended <- reload.Watcher{Files: []string{p.file}, Known: p.known, Changed: func(contents reload.Contents, err error) {
			select {
			case <-latest: // it is older
			default:
			}
			latest <- change{contents[p.file], err}
		}}.Run(ctx)
	})
	var again <-chan time.Time
	var now change
	for {
		select {
		case err := <-ended:
			return err
		case now = <-latest:
		case <-again:
		}
		again = nil
		if p.take(ctx, now) {
			again = time.After(reloadRetry)
		}
	}
}

// take puts a change in force, or says why not; and whether to try again.
func (p *process) take(ctx context.Context, c change) (again bool) {
	err := c.err
	if err == nil {
		err = p.reload(ctx, c.contents)
	}
	switch {
	case ctx.Err() != nil:
		return false
	case err == nil:
		if o := p.office.Load(); o != nil {
			o.server.TookFile(nil)
		}
		return false
	default:
		// A replica that stands by tries again until it takes the file or leads: what
		// it refuses for the sake of Nodes the leader may have taken, and whoever leads
		// has to tell that its file is not the one on disk.
		standsBy := p.office.Load() == nil
		p.rejected(err)
		return passing(err) || standsBy
	}
}

func (p *process) reload(ctx context.Context, data []byte) error {
	next, err := config.Parse(data)
	if err != nil {
		return err
	}
	if changed := p.config.RestartNeeded(next); len(changed) > 0 {
		return fmt.Errorf("these need a restart of the provider: %s", strings.Join(changed, "; "))
	}
	if kept, err := p.keepForLater(next); kept || err != nil {
		return err
	}
	select {
	case <-p.started:
	case <-ctx.Done():
		return ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, reloadTimeout)
	defer cancel()
	o := p.office.Load()
	if err := p.surveyed(ctx, o, next, o.server.Reload); err != nil {
		return err
	}
	p.holding.reload(&next.Checkpoint)
	return nil
}

// keepForLater keeps a changed file on a replica that stands by, and says whether
// it is one. What the leader refuses it refuses too, as far as it can see: a file
// that drops a group which has Nodes, or gives it another Auto Scaling group. Until this replica leads, evictions are
// judged by the policy that it started with.
func (p *process) keepForLater(next *config.Config) (kept bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.office.Load() != nil {
		return false, nil
	}
	if missing := p.kube.groupsWithout(next, p.config); len(missing) > 0 {
		return false, fmt.Errorf("there are nodes of these groups, which the file has not, or not on the same Auto Scaling group: %s: write retired: true until they are gone",
			strings.Join(missing, ", "))
	}
	p.config = next
	p.log.Info("node group file kept for when this replica leads")
	return true, nil
}

// reloadTimeout bounds a reload.
const reloadTimeout = 30 * time.Second

// rejected tells why a file is not in force; a replica that stands by, once.
func (p *process) rejected(err error) {
	o := p.office.Load()
	if o == nil && p.told == err.Error() {
		return
	}
	p.told = err.Error()
	p.kube.warn("ConfigRejected", err.Error())
	if o != nil {
		o.server.TookFile(err)
		return
	}
	p.log.Error("node group file rejected, the old one stays", zap.Error(err))
}
