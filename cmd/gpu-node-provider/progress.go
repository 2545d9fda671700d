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
	// retryEvery is the pause between two attempts at a step. The process does not exit
	// while the cloud or the API server is unavailable; the port stays closed.
	retryEvery = 2 * time.Second
	// remindEvery is the interval between log entries about a step that is not done.
	remindEvery = 10 * time.Second
)

// progress is the start-up step that a replica has not finished yet. Readiness, the report
// and the log show it.
type progress struct {
	log *zap.Logger

	mu      sync.Mutex
	missing string // the step, as a clause; empty when start-up has finished
	failure string // error of the last attempt; empty before the first failure
}

// await runs one step of start-up. missing is a clause such as "the cloud has not been read
// yet"; it is shown until finish or the next step.
func (p *progress) await(ctx context.Context, missing string, step func(context.Context) error) error {
	p.set(missing, "")
	var reminding sync.WaitGroup
	defer reminding.Wait()
	ctx, done := context.WithCancel(ctx)
	defer done()
	reminding.Go(func() { p.remind(ctx) })
	return step(ctx)
}

// retry is await for a step that is repeated until it succeeds or returns a usageError.
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

// finish marks start-up as finished.
func (p *progress) finish() { p.set("", "") }

func (p *progress) set(missing, failure string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.missing, p.failure = missing, failure
}

// failed records the error of an attempt, and logs it unless the attempt before had the
// same error.
func (p *progress) failed(err error) {
	p.mu.Lock()
	missing, before := p.missing, p.failure
	p.failure = err.Error()
	p.mu.Unlock()
	if before != err.Error() {
		p.log.Warn("start-up step failed, trying again", zap.String(logkey.WaitingFor, missing), zap.Error(err))
	}
}

// remind logs the missing step at intervals until ctx is done.
func (p *progress) remind(ctx context.Context) {
	began := time.Now()
	ticker := time.NewTicker(remindEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			p.log.Info("start-up is still waiting", zap.NamedError(logkey.WaitingFor, p.err()), zap.Duration(logkey.Waited, time.Since(began).Round(time.Second)))
		}
	}
}

// err returns the missing step and its last error, or nil when start-up has finished.
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
