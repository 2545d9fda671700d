package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/reload"
)

// watchFile puts a changed node group file in force.
func (p *process) watchFile(ctx context.Context) error {
	return reload.Watcher{Files: []string{p.file}, Known: p.known, Changed: func(contents reload.Contents, err error) {
		if err != nil {
			p.rejected(err)
			return
		}
		if err := p.reload(ctx, contents[p.file]); err != nil {
			p.rejected(err)
		}
	}}.Run(ctx)
}

func (p *process) reload(ctx context.Context, data []byte) error {
	next, err := config.Parse(data)
	if err != nil {
		return err
	}
	if changed := p.config.RestartNeeded(next); len(changed) > 0 {
		return fmt.Errorf("these need a restart of the provider: %s", strings.Join(changed, "; "))
	}
	if p.keepForLater(next) {
		return nil
	}
	select {
	case <-p.started:
	case <-ctx.Done():
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, reloadTimeout)
	defer cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.office.Load()
	if err := p.surveyed(ctx, o, next, o.server.Reload); err != nil {
		return err
	}
	p.holding.reload(&next.Checkpoint)
	return nil
}

// keepForLater takes a changed file over on a replica that stands by, and says
// whether it is one.
func (p *process) keepForLater(next *config.Config) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.office.Load() != nil {
		return false
	}
	p.config = next
	p.holding.reload(&next.Checkpoint)
	p.log.Info("node group file kept for when this replica leads")
	return true
}

// reloadTimeout bounds a reload.
const reloadTimeout = 30 * time.Second

func (p *process) rejected(err error) {
	p.kube.warn("ConfigRejected", err.Error())
	if o := p.office.Load(); o != nil {
		o.server.RejectedReload(err)
		return
	}
	p.log.Error("node group file rejected, the old one stays", zap.Error(err))
}
