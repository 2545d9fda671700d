package mtls

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc/credentials"

	"gpu-node-provider/cloud/logkey"
)

// Reasons of failed handshakes: metric label values, so the set is fixed.
const (
	failedNoCertificate = "no_certificate"    // the client presented no certificate
	failedUnknownCA     = "unknown_ca"        // the client certificate is not of the client CA
	failedExpired       = "expired"           // the client certificate is expired or not yet valid
	failedBadCert       = "bad_certificate"   // of the client CA but invalid, such as one for servers
	failedNotTLS        = "not_tls"           // the client speaks plaintext
	failedByClient      = "refused_by_client" // the client rejected the server certificate or its name
	failedClosed        = "closed"            // the client disconnected: a TCP probe, or its own deadline
	failedTimeout       = "timeout"           // the client connected and sent nothing
	failedOther         = "other"             // for example no common TLS version
)

var failureReasons = []string{
	failedNoCertificate, failedUnknownCA, failedExpired, failedBadCert,
	failedNotTLS, failedByClient, failedClosed, failedTimeout, failedOther,
}

// handshaker counts and logs failed handshakes. gRPC does not log them, and the error
// at the client seldom contains the cause.
type handshaker struct {
	credentials.TransportCredentials
	metrics *metrics
	log     *zap.Logger
}

func (h *handshaker) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := h.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		reason := failureReason(err)
		h.metrics.handshakeFailures.WithLabelValues(reason).Inc()
		level := zap.WarnLevel
		if reason == failedClosed {
			level = zap.DebugLevel // probes of load balancers
		}
		// The sampler limits each message separately, so the message contains the
		// reason: many failures of one reason must not hide another.
		h.log.Log(level, "TLS handshake failed: "+reason,
			zap.String(logkey.Reason, reason), zap.Stringer(logkey.RemoteAddress, raw.RemoteAddr()), zap.Error(err))
	}
	return conn, info, err
}

// Clone overrides the embedded Clone, which would return credentials without counting.
func (h *handshaker) Clone() credentials.TransportCredentials {
	clone := *h
	clone.TransportCredentials = h.TransportCredentials.Clone()
	return &clone
}

// sampled limits each message to ten lines per minute, since any client that reaches
// the port can cause failed handshakes.
func sampled(log *zap.Logger) *zap.Logger {
	return log.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(core, time.Minute, 10, 0)
	}))
}

// closedErrors are the errors of reads and writes on a connection that the client, or
// the stopping server, has closed.
var closedErrors = []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE, net.ErrClosed}

func failureReason(err error) string {
	var (
		verification *tls.CertificateVerificationError
		record       tls.RecordHeaderError
		operation    *net.OpError
	)
	switch {
	case errors.As(err, &verification):
		return verificationReason(verification.Err)
	case errors.As(err, &record):
		return failedNotTLS
	case errors.Is(err, os.ErrDeadlineExceeded):
		return failedTimeout
	case errors.As(err, &operation) && operation.Op == "remote error": // an alert of the client
		return failedByClient
	case slices.ContainsFunc(closedErrors, func(target error) bool { return errors.Is(err, target) }):
		return failedClosed
	case strings.Contains(err.Error(), "didn't provide a certificate"):
		// crypto/tls has no type for this error. A test with a real handshake fails
		// when a Go release changes the text.
		return failedNoCertificate
	}
	return failedOther
}

func verificationReason(err error) string {
	var (
		authority x509.UnknownAuthorityError
		invalid   x509.CertificateInvalidError
	)
	switch {
	case errors.As(err, &authority):
		return failedUnknownCA
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return failedExpired
	}
	return failedBadCert
}
