package provider

import (
	"context"
	"fmt"
)

// lane lets one pass at a time, and lets go of whoever has no time left: a
// mutex would keep a caller past its deadline.
type lane chan struct{}

func newLane() lane { return make(lane, 1) }

// enter waits for its turn or for ctx.
func (l lane) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("nothing was started: %w", err)
	}
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for an earlier call; nothing was started: %w", ctx.Err())
	}
}

func (l lane) leave() { <-l }
