package awstest

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// Error is an error answer of AWS.
type Error struct {
	Status  int
	Code    string
	Message string
}

// Error makes it an error, for tests that print it.
func (e *Error) Error() string { return e.Code + ": " + e.Message }

func invalid(format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Code: "ValidationError", Message: fmt.Sprintf(format, args...)}
}

// badParam is what EC2 says where Auto Scaling says ValidationError.
func badParam(code, format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Code: code, Message: fmt.Sprintf(format, args...)}
}

// The general errors, each with the code of the service it comes from: "Common
// errors" of the three API references, and "Error codes" of EC2's.
var (
	throttled = map[string]Error{
		autoscaling:   {http.StatusBadRequest, "Throttling", "Rate exceeded"},
		ec2:           {http.StatusServiceUnavailable, "RequestLimitExceeded", "Request limit exceeded."},
		servicequotas: {http.StatusBadRequest, "TooManyRequestsException", "Rate exceeded"},
		eks:           {http.StatusTooManyRequests, "TooManyRequestsException", "Too Many Requests"},
	}
	internal = map[string]Error{
		autoscaling:   {http.StatusInternalServerError, "InternalFailure", "The request processing has failed because of an unknown error, exception or failure."},
		ec2:           {http.StatusInternalServerError, "InternalError", "An internal error has occurred"},
		servicequotas: {http.StatusInternalServerError, "ServiceException", "Something went wrong."},
		eks:           {http.StatusInternalServerError, "ServerException", "An internal error occurred."},
	}
	denied = map[string]Error{
		autoscaling:   {http.StatusForbidden, "AccessDenied", "User: %[1]s is not authorized to perform: %[2]s because no identity-based policy allows the %[2]s action"},
		ec2:           {http.StatusForbidden, "UnauthorizedOperation", "You are not authorized to perform this operation. User: %[1]s is not authorized to perform: %[2]s because no identity-based policy allows the %[2]s action"},
		servicequotas: {http.StatusBadRequest, "AccessDeniedException", "User: %[1]s is not authorized to perform: %[2]s because no identity-based policy allows the %[2]s action"},
		eks:           {http.StatusForbidden, "AccessDeniedException", "User: %[1]s is not authorized to perform: %[2]s because no identity-based policy allows the %[2]s action"},
	}
)

const caller = "arn:aws:sts::000000000000:assumed-role/provider/session"

// render writes the error as the service does.
func (e *Error) render(service string) (contentType string, body []byte) {
	w := &xmlWriter{}
	switch service {
	case servicequotas, eks:
		body, err := json.Marshal(map[string]string{"__type": e.Code, "message": e.Message})
		if err != nil {
			panic(err) // strings always marshal
		}
		return contentJSON, body
	case ec2:
		w.in("Response", func() {
			w.in("Errors", func() {
				w.in("Error", func() { w.str("Code", e.Code); w.str("Message", e.Message) })
			})
			w.str("RequestID", requestID)
		})
	default:
		w.open(`ErrorResponse xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/"`)
		w.in("Error", func() {
			kind := "Sender"
			if e.Status >= http.StatusInternalServerError {
				kind = "Receiver"
			}
			w.str("Type", kind)
			w.str("Code", e.Code)
			w.str("Message", e.Message)
		})
		w.str("RequestId", requestID)
		w.close("ErrorResponse")
	}
	return contentXML, w.b
}
