package aws

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"gpu-node-provider/cloud"
)

// Codes by what a caller does next, from the "Common Errors" of the three
// services' API references and
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html.
// Throttling is the SDK's own list.
var (
	deniedCodes = []string{
		"AccessDenied", "AccessDeniedException", "AuthFailure", "Blocked", "ExpiredToken", "ExpiredTokenException",
		"IncompleteSignature", "InvalidAccessKeyId", "InvalidClientTokenId", "InvalidSignatureException",
		"MissingAuthenticationToken", "MissingAuthenticationTokenException", "NotAuthorized", "OptInRequired",
		"PendingVerification", "RequestExpired", "SignatureDoesNotMatch", "SubscriptionRequiredException",
		"UnauthorizedOperation", "UnrecognizedClientException",
	}
	// busyCodes refuse a write since another is being carried out.
	busyCodes = []string{"ScalingActivityInProgress", "ScalingActivityInProgressFault", "ResourceContention", "ResourceContentionFault"}
	// notFoundTexts and limitTexts are of ValidationError, which Auto Scaling
	// answers for everything that has no code.
	notFoundTexts = []string{"name not found", "autoscalinggroup not found"}
	limitTexts    = []string{"is above max value", "is below min value", "min size constraint"}
)

const maxFaultMessage = 300

// fault puts an error of a call that changed nothing, or of a read, into its
// class. doing says what failed and for whom, in the words of a log line.
func fault(ctx context.Context, doing string, err error) error {
	if end := ctx.Err(); end != nil {
		return fmt.Errorf("aws: %s: %w: %w", doing, cloud.ErrGivenUp, end)
	}
	class := classOf(err)
	return fmt.Errorf("aws: %s: %s%s: %w", doing, ownWords(err), advice(err, class), class)
}

// unknown is the error of a write that may or may not have been carried out.
func unknown(ctx context.Context, doing string, err error) error {
	if end := ctx.Err(); end != nil {
		return fmt.Errorf("aws: %s: %w: %w", doing, cloud.ErrUnknownOutcome, end)
	}
	return fmt.Errorf("aws: %s: %s: %w", doing, ownWords(err), cloud.ErrUnknownOutcome)
}

func classOf(err error) error {
	var api smithy.APIError
	if !errors.As(err, &api) {
		if isCredentials(err) {
			return cloud.ErrDenied
		}
		return cloud.ErrUnavailable
	}
	code, message := api.ErrorCode(), strings.ToLower(api.ErrorMessage())
	said := func(text string) bool { return strings.Contains(message, text) }
	switch {
	case isThrottled(err):
		return cloud.ErrThrottled
	case slices.Contains(deniedCodes, code):
		return cloud.ErrDenied
	case slices.Contains(busyCodes, code), status(err) >= http.StatusInternalServerError:
		return cloud.ErrUnavailable
	case slices.ContainsFunc(limitTexts, said):
		return cloud.ErrLimit
	case slices.ContainsFunc(notFoundTexts, said):
		return cloud.ErrNotFound
	default: // our requests are well-formed, so it is the group that does not suit
		return cloud.ErrPrecondition
	}
}

// advice says what to do about a class where AWS's own words do not.
func advice(err error, class error) string {
	var dns *net.DNSError
	switch {
	case errors.Is(class, cloud.ErrDenied) && isCredentials(err):
		return " (no usable AWS credentials: give the Pod a role by EKS Pod Identity or IRSA, or set AWS_PROFILE or AWS_ACCESS_KEY_ID)"
	case errors.Is(class, cloud.ErrDenied):
		return " (compare the role's policy with the one in deploy/)"
	case errors.As(err, &dns) && dns.IsNotFound:
		return " (check that cloud.aws.region is an AWS region and reachable from here)"
	default:
		return ""
	}
}

// wasNotSent says whether a call certainly had no effect: AWS refused it, or it
// never got there. Everything else, a 500 and an answer that cannot be read
// among it, may have been carried out.
func wasNotSent(err error) bool {
	if isThrottled(err) || isBusy(err) { // AWS says the latter with status 500, too
		return true
	}
	var api smithy.APIError
	if errors.As(err, &api) {
		code := status(err)
		return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusRequestTimeout &&
			api.ErrorCode() != "RequestTimeout"
	}
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return true
	}
	var dns *net.DNSError
	return errors.As(err, &dns) || isCredentials(err)
}

func isThrottled(err error) bool {
	var api smithy.APIError
	if !errors.As(err, &api) {
		return false
	}
	_, listed := retry.DefaultThrottleErrorCodes[api.ErrorCode()]
	return listed || status(err) == http.StatusTooManyRequests
}

func isBusy(err error) bool {
	var api smithy.APIError
	return errors.As(err, &api) && slices.Contains(busyCodes, api.ErrorCode())
}

// isCredentials says whether no request was made for want of credentials. The
// SDK has no type for it.
func isCredentials(err error) bool {
	text := err.Error()
	return strings.Contains(text, "get credentials") || strings.Contains(text, "get identity") || strings.Contains(text, "sign request")
}

func status(err error) int {
	var response *smithyhttp.ResponseError
	if !errors.As(err, &response) {
		return 0
	}
	return response.HTTPStatusCode()
}

// ownWords is what AWS said, without the SDK's chain of words around it.
func ownWords(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return shorten(api.ErrorCode()+": "+api.ErrorMessage(), maxFaultMessage)
	}
	return shorten(err.Error(), maxFaultMessage)
}

// shorten cuts a text at a character's border.
func shorten(text string, most int) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most] + "…"
}
