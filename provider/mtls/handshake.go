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

// Why a handshake failed; label values, so the set is fixed.
const (
	failedNoCertificate = "no_certificate"    // the client showed none
	failedUnknownCA     = "unknown_ca"        // not of the client CA
	failedExpired       = "expired"           // expired or not yet valid
	failedBadCert       = "bad_certificate"   // of the client CA and yet not good, such as one for servers
	failedNotTLS        = "not_tls"           // a client that speaks plaintext
	failedByClient      = "refused_by_client" // the client did not like our certificate, or its name
	failedClosed        = "closed"            // went away in the middle: a TCP probe, or a client at its own deadline
	failedTimeout       = "timeout"           // connected and then said nothing
	failedOther         = "other"             // such as no common TLS version
)

var failureReasons = []string{
	failedNoCertificate, failedUnknownCA, failedExpired, failedBadCert,
	failedNotTLS, failedByClient, failedClosed, failedTimeout, failedOther,
}

// handshaker counts and logs the handshakes that fail; grpc itself keeps quiet
// about them, and the client's message seldom tells the cause.
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
			level = zap.DebugLevel // load balancers probe like this, all day
		}
		// The reason is part of the message because the sampler tells messages
		// apart: a flood of one reason must not hide another.
		h.log.Log(level, "TLS handshake failed: "+reason,
			zap.String(logkey.Reason, reason), zap.Stringer(logkey.RemoteAddress, raw.RemoteAddr()), zap.Error(err))
	}
	return conn, info, err
}

// Clone keeps the counting; the embedded one would drop it.
func (h *handshaker) Clone() credentials.TransportCredentials {
	clone := *h
	clone.TransportCredentials = h.TransportCredentials.Clone()
	return &clone
}

// sampled lets ten lines a minute of each message through: anybody who reaches
// the port can make a handshake fail, and may not fill the log with it.
func sampled(log *zap.Logger) *zap.Logger {
	return log.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(core, time.Minute, 10, 0)
	}))
}

// closedErrors are what a read or write says when the other side, or the server
// as it stops, has closed the connection.
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
		// crypto/tls has no type for this one. A test with a real handshake
		// fails should a Go release word it in another way.
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
