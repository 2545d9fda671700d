package cloudtest

import (
	"context"
	"errors"
	"time"

	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
)

var deadlineChecks = []check{
	{"nothing is started once the context was cancelled", func(e *env) {
		ctx, cancel := context.WithCancel(e.ctx())
		cancel()
		e.startsNothing(ctx)
	}},
	{"nothing is started once the deadline has passed", func(e *env) {
		ctx, cancel := context.WithDeadline(e.ctx(), time.Unix(1, 0))
		defer cancel()
		e.startsNothing(ctx)
	}},
}

// midwayChecks need Harness.EndMidway.
var midwayChecks = []check{
	{"Describe tells the outcome of an increase that was abandoned", func(e *env) {
		for range 4 {
			e.abandon(1, func(ctx context.Context) (cloud.Group, error) {
				return e.Backend.Increase(ctx, e.one, Exactly(1))
			})
		}
	}},
	{"Describe tells the outcome of a cancel that was abandoned", func(e *env) {
		for _, id := range e.failing(e.one, 4) {
			e.abandon(-1, func(ctx context.Context) (cloud.Group, error) {
				group, _, err := e.Backend.Cancel(ctx, e.one, These([]string{id}))
				return group, err
			})
		}
	}},
	{"Describe tells the outcome of a delete that was abandoned", func(e *env) {
		for _, id := range e.machines(e.one, 4) {
			e.abandon(-1, func(ctx context.Context) (cloud.Group, error) {
				group, confirmed, err := e.Backend.Delete(ctx, e.one, []string{id})
				if len(confirmed) > 0 {
					require.NotContains(e, ids(pick(e.look(e.one), staying)), id, "it was confirmed, and is there")
				}
				return group, err
			})
		}
	}},
	{"reads that are abandoned say so", func(e *env) {
		e.machines(e.one, 1)
		_, err := e.Backend.Describe(e.EndMidway(e.TB))
		e.abandoned(err)
		_, err = e.Backend.Lookup(e.EndMidway(e.TB), e.one, []string{foreignID})
		e.abandoned(err)
	}},
}

// startsNothing makes every call with a context that has ended.
func (e *env) startsNothing(ctx context.Context) {
	e.Helper()
	machines, placeholders := e.machines(e.one, 1), e.failing(e.two, 1)
	e.unchanged(func() {
		_, err := e.Backend.Describe(ctx)
		e.ended(err)
		_, err = e.Backend.Increase(ctx, e.one, Exactly(1))
		e.ended(err)
		_, _, err = e.Backend.Cancel(ctx, e.two, These(placeholders))
		e.ended(err)
		_, confirmed, err := e.Backend.Delete(ctx, e.one, machines)
		e.ended(err)
		require.Empty(e, confirmed)
		_, err = e.Backend.Lookup(ctx, e.one, machines)
		e.ended(err)
		e.ended(e.Backend.Configure(ctx, nil))
	})
	e.settle()
	require.Equal(e, 1, e.look(e.one).Target)
}

// ended requires an error that may be returned when a context has ended.
func (e *env) ended(err error) {
	e.Helper()
	require.Error(e, err)
	e.abandoned(err)
}

func (e *env) abandoned(err error) {
	e.Helper()
	own := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	if err == nil || own && !errors.Is(err, cloud.ErrUnknownOutcome) {
		return
	}
	e.failed(err, cloud.ErrUnknownOutcome)
}

// abandon makes a write that would change the target of group one by delta, and
// ends its context midway. Whatever comes of it, the group is afterwards either
// as before or changed as a whole, and what may still change is told as unsettled.
func (e *env) abandon(delta int, write func(ctx context.Context) (cloud.Group, error)) {
	e.Helper()
	before := e.look(e.one).Target
	group, err := write(e.EndMidway(e.TB))
	e.abandoned(err)
	told := e.look(e.one)
	if err == nil {
		require.Equal(e, before+delta, told.Target)
	}
	if errors.Is(err, cloud.ErrGivenUp) {
		require.Equal(e, before, told.Target)
	}
	require.Contains(e, []int{before, before + delta}, told.Target)
	e.settle()
	after := e.look(e.one).Target
	pictures := []cloud.Group{told}
	if errors.Is(err, cloud.ErrUnknownOutcome) {
		require.Equal(e, e.one, group.ID, "an unknown outcome comes with the group")
		pictures = append(pictures, group)
	}
	for _, picture := range pictures {
		require.LessOrEqual(e, after, picture.Target+picture.Unsettled.More, "the outcome changed after it was told")
		require.GreaterOrEqual(e, after, picture.Target-picture.Unsettled.Fewer, "the outcome changed after it was told")
	}
	require.Zero(e, e.look(e.one).Unsettled, "once everything has settled")
}
