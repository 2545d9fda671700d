package mtls

import (
	"crypto/tls"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

func TestGoodClientIsServed(t *testing.T) {
	dir := made(t, GenerateOptions{})
	for name, change := range map[string]func(*tls.Config){
		"TLS 1.3":              func(*tls.Config) {},
		"TLS 1.2":              func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 },
		"by the Service name":  func(c *tls.Config) { c.ServerName = "gpu-node-provider" },
		"by its full name":     func(c *tls.Config) { c.ServerName = "gpu-node-provider.gpu-node-provider.svc.cluster.local" },
		"by another loopback":  func(c *tls.Config) { c.ServerName = "::1" },
		"by localhost as such": func(c *tls.Config) { c.ServerName = "localhost" },
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, options(dir))
			config := clientOf(t, dir)
			change(config)
			creds := credentials.NewTLS(config)
			if config.ServerName != "" {
				// grpc takes the host part of the address, so override it.
				require.NoError(t, creds.OverrideServerName(config.ServerName)) //nolint:staticcheck // there is no other way per name
			}
			r.dialWith(creds).mustSee(serialOf(t, dir), "")
			require.Empty(t, r.failures())
		})
	}
}

func TestA12RefusedInTheHandshakeAndCountedByReason(t *testing.T) {
	dir := made(t, GenerateOptions{})
	other := made(t, GenerateOptions{})
	withPairOf := func(t *testing.T, from string, cert, key string) *tls.Config {
		pair, err := tls.LoadX509KeyPair(filepath.Join(from, cert), filepath.Join(from, key))
		require.NoError(t, err)
		config := clientOf(t, dir)
		config.Certificates = []tls.Certificate{pair}
		return config
	}
	cases := map[string]struct {
		client func(t *testing.T) credentials.TransportCredentials
		reason string
		says   string // part of the logged error, where the reason alone proves little
	}{
		"no certificate": {reason: failedNoCertificate, client: func(t *testing.T) credentials.TransportCredentials {
			config := clientOf(t, dir)
			config.Certificates = nil
			return credentials.NewTLS(config)
		}},
		"no certificate, TLS 1.2": {reason: failedNoCertificate, client: func(t *testing.T) credentials.TransportCredentials {
			config := clientOf(t, dir)
			config.Certificates, config.MaxVersion = nil, tls.VersionTLS12
			return credentials.NewTLS(config)
		}},
		"certificate of another CA": {reason: failedUnknownCA, client: func(t *testing.T) credentials.TransportCredentials {
			config := withPairOf(t, other, ClientCertFile, ClientKeyFile)
			// Sent although the server names only its own CA as acceptable.
			pair := config.Certificates[0]
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
			return credentials.NewTLS(config)
		}},
		"expired certificate": {reason: failedExpired, client: func(t *testing.T) credentials.TransportCredentials {
			old := renewed(t, dir, GenerateOptions{Validity: time.Hour, Now: func() time.Time { return time.Now().Add(-2 * time.Hour) }})
			return credentials.NewTLS(withPairOf(t, old, ClientCertFile, ClientKeyFile))
		}},
		"the server's own certificate": {reason: failedBadCert, client: func(t *testing.T) credentials.TransportCredentials {
			return credentials.NewTLS(withPairOf(t, dir, ServerCertFile, ServerKeyFile))
		}},
		"plaintext": {reason: failedNotTLS, client: func(*testing.T) credentials.TransportCredentials {
			return insecure.NewCredentials()
		}},
		"client that trusts another CA": {reason: failedByClient, client: func(t *testing.T) credentials.TransportCredentials {
			config := clientOf(t, dir)
			config.RootCAs = clientOf(t, other).RootCAs
			return credentials.NewTLS(config)
		}},
		"client that expects another name": {reason: failedByClient, client: func(t *testing.T) credentials.TransportCredentials {
			creds := credentials.NewTLS(clientOf(t, dir))
			require.NoError(t, creds.OverrideServerName("10.0.0.1")) //nolint:staticcheck // there is no other way per name
			return creds
		}},
		"client of an old TLS": {reason: failedOther, says: "unsupported versions", client: func(t *testing.T) credentials.TransportCredentials {
			config := clientOf(t, dir)
			config.MinVersion, config.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
			return credentials.NewTLS(config)
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := start(t, options(dir))
			_, err := r.dialWith(tc.client(t)).call()
			require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
			require.Contains(t, r.requireFailure(tc.reason), tc.says)
		})
	}
}

func TestHandshakeThatIsNotFinished(t *testing.T) {
	dir := made(t, GenerateOptions{})
	t.Run("closed", func(t *testing.T) {
		r := start(t, options(dir))
		conn, err := net.Dial("tcp", r.address)
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		r.requireFailure(failedClosed)
	})
	t.Run("timeout", func(t *testing.T) {
		r := start(t, options(dir), grpc.ConnectionTimeout(20*time.Millisecond))
		conn, err := net.Dial("tcp", r.address)
		require.NoError(t, err)
		r.requireFailure(failedTimeout)
		require.NoError(t, conn.Close())
	})
}

// requireFailure waits for the count, which follows the client's own error, and
// for the log line, whose error it returns.
func (r *running) requireFailure(reason string) string {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return r.failures()[reason] > 0 }, patience, time.Millisecond,
		"handshake failures: want %s", reason)
	require.Len(r.t, r.failures(), 1, "no other reason")
	lines := func() *observer.ObservedLogs { return r.logs.FilterMessage("TLS handshake failed: " + reason) }
	require.Eventually(r.t, func() bool { return lines().Len() > 0 }, patience, time.Millisecond)
	entry := lines().All()[0]
	want := zap.WarnLevel
	if reason == failedClosed {
		want = zap.DebugLevel
	}
	require.Equal(r.t, want, entry.Level)
	require.Equal(r.t, reason, entry.ContextMap()["reason"])
	require.Contains(r.t, entry.ContextMap()["remote_address"], "127.0.0.1:")
	err, ok := entry.ContextMap()["error"].(string)
	require.True(r.t, ok)
	return err
}

func TestFloodOfFailuresDoesNotFillTheLog(t *testing.T) {
	dir := made(t, GenerateOptions{})
	r := start(t, options(dir))
	const flood = 50
	for range flood {
		conn, err := net.Dial("tcp", r.address)
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
	require.Eventually(t, func() bool { return r.failures()[failedClosed] == flood }, patience, time.Millisecond)
	require.Less(t, r.logs.Len(), flood/2)
	_, err := r.dialWith(insecure.NewCredentials()).call()
	require.Error(t, err)
	require.Eventually(t, func() bool { return r.logs.FilterMessage("TLS handshake failed: not_tls").Len() > 0 },
		patience, time.Millisecond, "another reason is still told")
}

func TestCloneCounts(t *testing.T) {
	s, err := New(options(made(t, GenerateOptions{})))
	require.NoError(t, err)
	require.IsType(t, &handshaker{}, s.Credentials().Clone())
	require.Equal(t, "tls", s.Credentials().Clone().Info().SecurityProtocol)
}

func TestConnectionWithoutALPNIsRefused(t *testing.T) {
	dir := made(t, GenerateOptions{})
	r := start(t, options(dir))
	conn, err := tls.Dial("tcp", r.address, clientOf(t, dir))
	require.NoError(t, err)
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	_ = conn.Close()
	r.requireFailure(failedOther)
}

func TestClientCertificatesAreJudgedByTheGivenClock(t *testing.T) {
	dir := made(t, GenerateOptions{Validity: 2 * time.Hour})
	brief := renewed(t, dir, GenerateOptions{Validity: time.Hour})
	opts := options(dir)
	opts.Now = func() time.Time { return time.Now().Add(90 * time.Minute) }
	r := start(t, opts)
	_, err := r.dial(clientOf(t, brief)).call()
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	r.requireFailure(failedExpired)
}

// A resumed session would keep the identity of a certificate that has since been
// replaced, on either side.
func TestSessionsAreNotResumed(t *testing.T) {
	dir := made(t, GenerateOptions{})
	for name, version := range map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13} {
		t.Run(name, func(t *testing.T) {
			r := start(t, options(dir))
			config := clientOf(t, dir)
			config.NextProtos = []string{"h2"}
			config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
			config.MaxVersion = version
			for range 2 {
				conn, err := tls.Dial("tcp", r.address, config)
				require.NoError(t, err)
				// The server's first frame; tickets of TLS 1.3 come before it.
				_, err = conn.Read(make([]byte, 1))
				require.NoError(t, err)
				require.False(t, conn.ConnectionState().DidResume)
				_ = conn.Close()
			}
		})
	}
}
