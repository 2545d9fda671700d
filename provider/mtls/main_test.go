package mtls

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds waits for what another goroutine is about to do.
const patience = 20 * time.Second

// running is a gRPC server on the loopback that serves the health service over
// the credentials under test, and authorizes every call.
type running struct {
	*Server
	t       *testing.T
	address string
	health  *health.Server
	ticks   chan time.Time
	logs    *observer.ObservedLogs
}

// options read the files of a directory that Generate made.
func options(dir string) Options {
	return Options{
		CertFile:     filepath.Join(dir, ServerCertFile),
		KeyFile:      filepath.Join(dir, ServerKeyFile),
		ClientCAFile: filepath.Join(dir, CACertFile),
	}
}

func start(t *testing.T, opts Options, serverOptions ...grpc.ServerOption) *running {
	t.Helper()
	core, logs := observer.New(zap.DebugLevel)
	r := &running{t: t, health: health.NewServer(), ticks: make(chan time.Time), logs: logs}
	opts.Log = zap.New(core)
	opts.ticks = r.ticks
	if opts.Registerer == nil {
		opts.Registerer = prometheus.NewRegistry()
	}
	var err error
	r.Server, err = New(opts)
	require.NoError(t, err)

	server := grpc.NewServer(append([]grpc.ServerOption{
		grpc.Creds(r.Credentials()),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if err := r.Authorize(ctx); err != nil {
				return nil, status.Error(codes.PermissionDenied, err.Error())
			}
			return next(ctx, req)
		}),
	}, serverOptions...)...)
	grpc_health_v1.RegisterHealthServer(server, r.health)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r.address = listener.Addr().String()

	ctx, cancel := context.WithCancel(context.Background())
	served, watched := make(chan error, 1), make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	go func() { watched <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		server.Stop()
		require.NoError(t, <-served)
		require.NoError(t, <-watched)
	})
	return r
}

// poll lets the server look at its files until a change has settled and is dealt
// with: two readings have to agree, and the third tick is taken after that.
func (r *running) poll() {
	for range 3 {
		r.ticks <- time.Time{}
	}
}

// connection is a client of the server with one connection.
type connection struct {
	t      *testing.T
	client grpc_health_v1.HealthClient
}

func (r *running) dial(config *tls.Config) *connection {
	r.t.Helper()
	return r.dialWith(credentials.NewTLS(config))
}

func (r *running) dialWith(creds credentials.TransportCredentials) *connection {
	r.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+r.address, grpc.WithTransportCredentials(creds))
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, conn.Close()) })
	return &connection{t: r.t, client: grpc_health_v1.NewHealthClient(conn)}
}

// call makes one RPC and returns the serial number of the server's certificate.
func (c *connection) call() (serial string, err error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	var server peer.Peer
	_, err = c.client.Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.Peer(&server))
	if err != nil {
		return "", err
	}
	info, ok := server.AuthInfo.(credentials.TLSInfo)
	require.True(c.t, ok, "a connection without TLS")
	return info.State.PeerCertificates[0].SerialNumber.Text(16), nil
}

func (c *connection) mustSee(serial, why string) {
	c.t.Helper()
	got, err := c.call()
	require.NoError(c.t, err, why)
	require.Equal(c.t, serial, got, why)
}

// failures of handshakes by reason, those that are not zero.
func (r *running) failures() map[string]int {
	counts := map[string]int{}
	for _, reason := range failureReasons {
		if n := int(testutil.ToFloat64(r.metrics.handshakeFailures.WithLabelValues(reason))); n > 0 {
			counts[reason] = n
		}
	}
	return counts
}

func (r *running) requireReload(failed, errors int) {
	r.t.Helper()
	require.Equal(r.t, failed, int(testutil.ToFloat64(r.metrics.reloadFailed)), "reload_failed")
	require.Equal(r.t, errors, int(testutil.ToFloat64(r.metrics.reloadErrors)), "reload_errors_total")
}

// made runs Generate into a new directory.
func made(t *testing.T, opts GenerateOptions) (dir string) {
	t.Helper()
	dir = t.TempDir()
	_, err := Generate(dir, opts)
	require.NoError(t, err)
	return dir
}

// renewed copies a directory and renews the pairs of the copy.
func renewed(t *testing.T, from string, opts GenerateOptions) (dir string) {
	t.Helper()
	dir = t.TempDir()
	copyFiles(t, from, dir, CACertFile, CAKeyFile, ServerCertFile, ClientCertFile)
	opts.Renew = true
	_, err := Generate(dir, opts)
	require.NoError(t, err)
	return dir
}

func copyFiles(t *testing.T, from, to string, names ...string) {
	t.Helper()
	for _, name := range names {
		require.NoError(t, os.WriteFile(filepath.Join(to, name), read(t, from, name), 0o600))
	}
}

func read(t *testing.T, path ...string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(path...))
	require.NoError(t, err)
	return data
}

func certificateIn(t *testing.T, path ...string) *x509.Certificate {
	t.Helper()
	chain, err := parseCertificates(read(t, path...))
	require.NoError(t, err)
	return chain[0]
}

func serialOf(t *testing.T, dir string) string {
	t.Helper()
	return certificateIn(t, dir, ServerCertFile).SerialNumber.Text(16)
}

// clientOf is how Cluster Autoscaler connects with the files of a directory.
func clientOf(t *testing.T, dir string) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, ClientCertFile), filepath.Join(dir, ClientKeyFile))
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(read(t, dir, CACertFile)))
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}
}
