package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/util/wait"

	"gpu-node-provider/cloud/logkey"
)

const (
	// retryEvery is the pause between two tries of a step. A cloud or an API server that
	// is away is no reason to exit: until it is back the port stays closed.
	retryEvery = 2 * time.Second
	// remindEvery is how often the log names the step that a start still waits for.
	remindEvery = 10 * time.Second
)

// progress names the step of a start that a replica has not finished yet. Readiness,
// the report and the log show it.
type progress struct {
	log *zap.Logger

	mu      sync.Mutex
	missing string // what has not happened yet; empty when nothing is missing
	failure string // why the last try failed; empty if none has
}

// await runs one step of a start. missing is a clause such as "the cloud has not been
// read yet"; it is shown until finish or the next step.
func (p *progress) await(ctx context.Context, missing string, step func(context.Context) error) error {
	p.set(missing, "")
	var reminding sync.WaitGroup
	defer reminding.Wait()
	ctx, done := context.WithCancel(ctx)
	defer done()
	reminding.Go(func() { p.remind(ctx) })
	return step(ctx)
}

// retry is await of a step that is repeated until it succeeds, or fails with a usageError.
func (p *progress) retry(ctx context.Context, missing string, step func(context.Context) error) error {
	return p.await(ctx, missing, func(ctx context.Context) error {
		return wait.PollUntilContextCancel(ctx, retryEvery, true, func(ctx context.Context) (bool, error) {
			err := step(ctx)
			if usage := (usageError{}); errors.As(err, &usage) {
				return false, err
			}
			if err != nil && ctx.Err() == nil {
				p.failed(err)
			}
			return err == nil, nil
		})
	})
}

// finish says that nothing is missing any more.
func (p *progress) finish() { p.set("", "") }

func (p *progress) set(missing, failure string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.missing, p.failure = missing, failure
}

// failed keeps why a try failed, and logs it when it is not what the try before failed with.
func (p *progress) failed(err error) {
	p.mu.Lock()
	missing, before := p.missing, p.failure
	p.failure = err.Error()
	p.mu.Unlock()
	if before != err.Error() {
		p.log.Warn("start step failed, trying again", zap.String(logkey.WaitingFor, missing), zap.Error(err))
	}
}

// remind logs what is missing until ctx is done.
func (p *progress) remind(ctx context.Context) {
	began := time.Now()
	ticker := time.NewTicker(remindEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			p.log.Info("still waiting", zap.NamedError(logkey.WaitingFor, p.err()), zap.Duration(logkey.Waited, time.Since(began).Round(time.Second)))
		}
	}
}

// err is nil when nothing is missing.
func (p *progress) err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.missing == "":
		return nil
	case p.failure == "":
		return errors.New(p.missing)
	default:
		return fmt.Errorf("%s: %s", p.missing, p.failure)
	}
}
