package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"gpu-node-provider/cloud/logkey"
)

// TestStartNamesTheMissingStep: readiness shows the missing step and its last error. The log
// has each new error at once and the step every 10 s.
func TestStartNamesTheMissingStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		p := &progress{log: zap.New(core)}
		require.NoError(t, p.err())
		began := time.Now()
		err := p.retry(t.Context(), "the cloud has not been read yet", func(context.Context) error {
			if since := time.Since(began); since >= 25*time.Second {
				require.EqualError(t, p.err(), "the cloud has not been read yet: throttled")
				return nil
			} else if since >= 5*time.Second {
				return errors.New("throttled")
			}
			return errors.New("denied")
		})
		require.NoError(t, err)
		require.Equal(t, 2, logs.FilterMessage("start-up step failed, trying again").Len(), "one line for each reason, not for each try")
		reminders := logs.FilterMessage("start-up is still waiting").All()
		require.Len(t, reminders, 2)
		require.Equal(t, "the cloud has not been read yet: throttled", reminders[1].ContextMap()[logkey.WaitingFor])
		require.Error(t, p.err(), "until the next step or the end of the start")

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, p.await(ctx, "the cluster has not been read yet", func(ctx context.Context) error { return ctx.Err() }), context.Canceled)
		require.EqualError(t, p.err(), "the cluster has not been read yet")
		require.ErrorIs(t, p.retry(t.Context(), "x", func(context.Context) error { return usageError{errors.ErrUnsupported} }), errors.ErrUnsupported, "another try fails as well")
		p.finish()
		require.NoError(t, p.err())
	})
}
