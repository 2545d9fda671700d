package cloud

import (
	"context"
	"errors"
)

// The classes of error, named after what the caller does next. Backends wrap
// them with %w and the vendor's own words; callers test with errors.Is.
var (
	// ErrNotFound: the group does not exist. Correct the file or create the group.
	ErrNotFound = errors.New("not found")
	// ErrInvalid: the request can never succeed as it stands.
	ErrInvalid = errors.New("invalid request")
	// ErrLimit: the cloud's own bound of the group does not allow it.
	ErrLimit = errors.New("limit of the cloud reached")
	// ErrPrecondition: the group's state forbids it until a person or the cloud changes that.
	ErrPrecondition = errors.New("not possible in the group's present state")
	// ErrDenied: credentials or permissions are missing.
	ErrDenied = errors.New("permission denied")
	// ErrThrottled: too many calls; try again later.
	ErrThrottled = errors.New("throttled")
	// ErrUnavailable: the cloud did not answer, or failed on its side; try again.
	ErrUnavailable = errors.New("cloud unavailable")
	// ErrUnknownOutcome: a write was sent and its outcome is not known. Describe tells.
	ErrUnknownOutcome = errors.New("outcome unknown")
	// ErrGivenUp: the caller's time was over before the write was sent, so nothing but
	// what is confirmed has changed. It comes with the context's error, which alone
	// says less.
	ErrGivenUp = errors.New("request not sent")
)

// Passing reports whether time alone may heal an error.
func Passing(err error) bool {
	for _, class := range []error{ErrThrottled, ErrUnavailable, context.DeadlineExceeded} {
		if errors.Is(err, class) {
			return true
		}
	}
	return false
}
