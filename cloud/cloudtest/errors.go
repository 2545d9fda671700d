package cloudtest

import (
	"errors"
	"fmt"

	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
)

var classes = []error{
	cloud.ErrNotFound, cloud.ErrInvalid, cloud.ErrLimit, cloud.ErrPrecondition,
	cloud.ErrDenied, cloud.ErrThrottled, cloud.ErrUnavailable, cloud.ErrUnknownOutcome,
}

// nowhere is a group that no harness has.
const nowhere = "no-such-group"

var errorChecks = []check{
	{"Describe of an unknown group is not found", func(e *env) {
		_, err := e.Backend.Describe(e.ctx(), nowhere)
		e.failed(err, cloud.ErrNotFound)
		_, err = e.Backend.Describe(e.ctx(), e.one, nowhere)
		e.failed(err, cloud.ErrNotFound)
	}},
	{"Increase of an unknown group is not found", func(e *env) {
		_, err := e.Backend.Increase(e.ctx(), nowhere, Exactly(1))
		e.failed(err, cloud.ErrNotFound)
	}},
	{"Cancel in an unknown group is not found", func(e *env) {
		placeholders := e.failing(e.one, 1)
		e.unchanged(func() {
			_, _, err := e.Backend.Cancel(e.ctx(), nowhere, These(placeholders))
			e.failed(err, cloud.ErrNotFound)
		})
	}},
	{"Delete in an unknown group is not found", func(e *env) {
		machines := e.machines(e.one, 1)
		e.unchanged(func() {
			_, _, err := e.Backend.Delete(e.ctx(), nowhere, machines)
			e.failed(err, cloud.ErrNotFound)
		})
	}},
	{"Lookup in an unknown group is not found", func(e *env) {
		machines := e.machines(e.one, 1)
		_, err := e.Backend.Lookup(e.ctx(), nowhere, machines)
		e.failed(err, cloud.ErrNotFound)
	}},
}

// failed requires an error of exactly one class, and that it is this one.
func (e *env) failed(err, class error) {
	e.Helper()
	require.ErrorIs(e, err, class)
	require.NoError(e, unclassified(err))
}

// unclassified says what is wrong with the class of an error.
func unclassified(err error) error {
	var matched []error
	for _, class := range classes {
		if errors.Is(err, class) {
			matched = append(matched, class)
		}
	}
	if len(matched) != 1 {
		return fmt.Errorf("the error matches %d classes instead of one: %w", len(matched), err)
	}
	return nil
}
