package provider

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gpu-node-provider/cloud"
	"gpu-node-provider/provider/quota"
)

// The errors that arise here. Those of the cloud are classes of package cloud.
var (
	errInvalid       = errors.New("invalid request")
	errNotFound      = errors.New("not found")
	errPrecondition  = errors.New("precondition not met")
	errUnimplemented = errors.New("not implemented")
	// errGateUnavailable wraps every error of the Gate.
	errGateUnavailable = errors.New("failed to check the checkpoints of training pods")
	// ErrNotAllowed is what authorization wraps when a client may not call.
	ErrNotAllowed = errors.New("this client may not call the provider")
)

// classified carries a class without repeating its words in the text.
type classified struct {
	class error
	text  string
}

func (e *classified) Error() string { return e.text }
func (e *classified) Unwrap() error { return e.class }

func invalid(format string, args ...any) error {
	return &classified{errInvalid, fmt.Sprintf(format, args...)}
}

func precondition(format string, args ...any) error {
	return &classified{errPrecondition, fmt.Sprintf(format, args...)}
}

// Refused makes the error of a caller who may not call.
func Refused(why error) error { return &classified{ErrNotAllowed, why.Error()} }

func unknownGroup(id string) error {
	return &classified{errNotFound, fmt.Sprintf("node group %q is not in the node group file", shorten(id, maxIDInMessage))}
}

// limitError refuses growth, and names what is in its way.
type limitError struct {
	group string
	limit quota.Limit
}

func (e *limitError) Error() string {
	return fmt.Sprintf("no more nodes for group %s: %s", e.group, e.limit.Text)
}

// codeOf lists the classes from the most to the least specific; an error may match several.
var codeOf = []struct {
	class error
	code  codes.Code
}{
	{errInvalid, codes.InvalidArgument},
	{errNotFound, codes.NotFound},
	{errPrecondition, codes.FailedPrecondition},
	{errUnimplemented, codes.Unimplemented},
	{ErrNotAllowed, codes.PermissionDenied},
	{errGateUnavailable, codes.Unavailable},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
	{context.Canceled, codes.Canceled},
	{cloud.ErrInvalid, codes.InvalidArgument},
	{cloud.ErrNotFound, codes.NotFound},
	{cloud.ErrLimit, codes.ResourceExhausted},
	{cloud.ErrPrecondition, codes.FailedPrecondition},
	{cloud.ErrDenied, codes.PermissionDenied},
	{cloud.ErrThrottled, codes.Unavailable},
	{cloud.ErrUnavailable, codes.Unavailable},
	{cloud.ErrUnknownOutcome, codes.Unavailable},
}

// Cluster Autoscaler shows a message in Events and in its status, where about
// 500 bytes survive.
const (
	maxStatusMessage = 500
	maxIDInMessage   = 100
)

// toStatus makes the gRPC status of an error. It is the only place that does.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	return status.Error(code(err), shorten(oneLine(err.Error()), maxStatusMessage))
}

func code(err error) codes.Code {
	var refused *limitError
	if errors.As(err, &refused) {
		return codes.ResourceExhausted
	}
	for _, c := range codeOf {
		if errors.Is(err, c.class) {
			return c.code
		}
	}
	return codes.Internal
}

// oneLine keeps what a client sent from breaking the line that it is shown in.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
}

// shorten cuts a text at a character's border.
func shorten(text string, most int) string {
	const ellipsis = "…"
	if len(text) <= most {
		return text
	}
	cut := most - len(ellipsis)
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + ellipsis
}
