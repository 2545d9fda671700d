package mtls

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

var serverFiles = []string{ServerCertFile, ServerKeyFile, CACertFile}

// served is a server whose files are copies that a test may spoil, a client that
// connected before that, and a stream of it that stays open.
type served struct {
	*running
	dir    string // the server's files
	source string // what Generate made, with the client's files
	old    *connection
	stream grpc_health_v1.Health_WatchClient
	next   grpc_health_v1.HealthCheckResponse_ServingStatus
}

func serve(t *testing.T) *served {
	t.Helper()
	s := &served{dir: t.TempDir(), source: made(t, GenerateOptions{})}
	copyFiles(t, s.source, s.dir, serverFiles...)
	s.connect(t)
	return s
}

func (s *served) connect(t *testing.T) {
	t.Helper()
	s.running = start(t, options(s.dir))
	s.poll()
	require.Zero(t, s.logs.Len(), "nothing is new yet")
	s.old = s.dial(clientOf(t, s.source))
	s.old.mustSee(serialOf(t, s.source), "before the change")
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	var err error
	s.stream, err = s.old.client.Watch(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.WaitForReady(false))
	require.NoError(t, err)
	_, err = s.stream.Recv()
	require.NoError(t, err)
	s.next = grpc_health_v1.HealthCheckResponse_NOT_SERVING
}

// requireOldAlive proves that the first connection and its stream live, and that
// it is still the same connection: it shows the first certificate.
func (s *served) requireOldAlive() {
	s.t.Helper()
	s.old.mustSee(serialOf(s.t, s.source), "the connection from before")
	s.health.SetServingStatus("", s.next)
	got, err := s.stream.Recv()
	require.NoError(s.t, err, "the stream from before")
	require.Equal(s.t, s.next, got.Status)
	s.next = 3 - s.next // SERVING is 1, NOT_SERVING 2
}

func TestA10NewPairForNewHandshakesOldConnectionsStay(t *testing.T) {
	s := serve(t)
	fresh := renewed(t, s.source, GenerateOptions{Validity: time.Hour})
	copyFiles(t, fresh, s.dir, serverFiles...)
	s.poll()

	s.requireOldAlive()
	s.dial(clientOf(t, s.source)).mustSee(serialOf(t, fresh), "a new handshake with the old client pair")
	s.dial(clientOf(t, fresh)).mustSee(serialOf(t, fresh), "a new handshake with the new client pair")
	s.requireReload(0, 0)
	require.Empty(t, s.failures())
	require.InDelta(t, certificateIn(t, fresh, ServerCertFile).NotAfter.Unix(), testutil.ToFloat64(s.metrics.certExpiry), 0)
	require.InDelta(t, certificateIn(t, fresh, CACertFile).NotAfter.Unix(), testutil.ToFloat64(s.metrics.clientCAExpiry), 0)

	lines := s.logs.FilterMessage("new TLS files in use").All()
	require.Len(t, lines, 1)
	require.Equal(t, serialOf(t, fresh), lines[0].ContextMap()["serial"])
}

func TestA10SymlinkSwapOfASecretVolume(t *testing.T) {
	s := &served{dir: t.TempDir(), source: made(t, GenerateOptions{})}
	swap := func(from string) {
		version, err := os.MkdirTemp(s.dir, "..version")
		require.NoError(t, err)
		copyFiles(t, from, version, serverFiles...)
		require.NoError(t, os.Symlink(filepath.Base(version), filepath.Join(s.dir, "..data_tmp")))
		require.NoError(t, os.Rename(filepath.Join(s.dir, "..data_tmp"), filepath.Join(s.dir, "..data")))
	}
	swap(s.source)
	for _, name := range serverFiles {
		require.NoError(t, os.Symlink(filepath.Join("..data", name), filepath.Join(s.dir, name)))
	}
	s.connect(t)

	fresh := renewed(t, s.source, GenerateOptions{})
	swap(fresh)
	s.poll()
	s.requireOldAlive()
	s.dial(clientOf(t, s.source)).mustSee(serialOf(t, fresh), "a new handshake")
	s.requireReload(0, 0)
}

func TestA10BadNewFilesKeepTheOldOnes(t *testing.T) {
	expired := GenerateOptions{Validity: time.Hour, Now: func() time.Time { return time.Now().Add(-2 * time.Hour) }}
	cases := map[string]struct {
		spoil func(t *testing.T, s *served)
		says  string
	}{
		"key of another certificate": {says: "is not the key of the certificate in", spoil: func(t *testing.T, s *served) {
			copyFiles(t, renewed(t, s.source, GenerateOptions{}), s.dir, ServerKeyFile)
		}},
		"certificate without its new key": {says: "is not the key of the certificate in", spoil: func(t *testing.T, s *served) {
			copyFiles(t, renewed(t, s.source, GenerateOptions{}), s.dir, ServerCertFile)
		}},
		"half a certificate": {says: "is truncated or damaged", spoil: func(t *testing.T, s *served) {
			data := read(t, s.source, ServerCertFile)
			require.NoError(t, os.WriteFile(filepath.Join(s.dir, ServerCertFile), data[:len(data)/2], 0o600))
		}},
		"expired pair": {says: "expired at", spoil: func(t *testing.T, s *served) {
			copyFiles(t, renewed(t, s.source, expired), s.dir, serverFiles...)
		}},
		"empty client CA beside a good new pair": {says: "client CA file", spoil: func(t *testing.T, s *served) {
			copyFiles(t, renewed(t, s.source, GenerateOptions{}), s.dir, serverFiles...)
			require.NoError(t, os.Truncate(filepath.Join(s.dir, CACertFile), 0))
		}},
		"missing key": {says: "no such file", spoil: func(t *testing.T, s *served) {
			require.NoError(t, os.Remove(filepath.Join(s.dir, ServerKeyFile)))
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := serve(t)
			tc.spoil(t, s)
			s.poll()
			s.poll()
			s.requireReload(1, 1)
			s.requireOldAlive()
			s.dial(clientOf(t, s.source)).mustSee(serialOf(t, s.source), "a new handshake gets the old pair")
			lines := s.logs.FilterMessage("new TLS files rejected, the previous ones stay in use").All()
			require.Len(t, lines, 1, "said once, not at each look")
			require.Equal(t, zap.ErrorLevel, lines[0].Level)
			require.Contains(t, lines[0].ContextMap()["error"], tc.says)

			fresh := renewed(t, s.source, GenerateOptions{})
			copyFiles(t, fresh, s.dir, serverFiles...)
			s.poll()
			s.requireReload(0, 1)
			s.requireOldAlive()
			s.dial(clientOf(t, s.source)).mustSee(serialOf(t, fresh), "good files heal it")
		})
	}
}

func TestPairWhoseSecondHalfComesLater(t *testing.T) {
	s := serve(t)
	fresh := renewed(t, s.source, GenerateOptions{})
	copyFiles(t, fresh, s.dir, ServerCertFile)
	s.poll()
	s.requireReload(1, 1)
	copyFiles(t, fresh, s.dir, ServerKeyFile)
	s.poll()
	s.requireReload(0, 1)
	s.dial(clientOf(t, s.source)).mustSee(serialOf(t, fresh), "both halves are there")
}

func TestOldFilesPutBackCallOffTheAlarm(t *testing.T) {
	s := serve(t)
	require.NoError(t, os.Remove(filepath.Join(s.dir, CACertFile)))
	s.poll()
	s.requireReload(1, 1)
	copyFiles(t, s.source, s.dir, CACertFile)
	s.poll()
	s.requireReload(0, 1)
}

func TestChangeBetweenNewAndRunIsSeen(t *testing.T) {
	source, dir := made(t, GenerateOptions{}), t.TempDir()
	copyFiles(t, source, dir, serverFiles...)
	ticks := make(chan time.Time)
	opts := options(dir)
	opts.ticks = ticks
	s, err := New(opts)
	require.NoError(t, err)
	fresh := renewed(t, source, GenerateOptions{})
	copyFiles(t, fresh, dir, serverFiles...)

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	for range 3 {
		ticks <- time.Time{}
	}
	require.Equal(t, serialOf(t, fresh), s.current.Load().serial())
	cancel()
	require.NoError(t, <-done)
}

func TestClientCARotation(t *testing.T) {
	s := serve(t)
	other := made(t, GenerateOptions{})
	// The clients of the other CA still verify the server by the old CA.
	newClient := clientOf(t, other)
	newClient.RootCAs = clientOf(t, s.source).RootCAs
	both := append(read(t, s.source, CACertFile), read(t, other, CACertFile)...)
	caFile := filepath.Join(s.dir, CACertFile)

	require.NoError(t, os.WriteFile(caFile, both, 0o600))
	s.poll()
	s.requireOldAlive()
	s.dial(clientOf(t, s.source)).mustSee(serialOf(t, s.source), "both authorities: the old client")
	s.dial(newClient).mustSee(serialOf(t, s.source), "both authorities: the new client")

	copyFiles(t, other, s.dir, CACertFile)
	s.poll()
	s.requireOldAlive()
	s.dial(newClient).mustSee(serialOf(t, s.source), "the new authority alone: the new client")
	require.Empty(t, s.failures())
	_, err := s.dial(clientOf(t, s.source)).call()
	require.Equal(t, codes.Unavailable, status.Code(err), "the old client comes no more: %v", err)
	require.Eventually(t, func() bool {
		// It presents no certificate when the server does not request one of its CA.
		return s.failures()[failedNoCertificate]+s.failures()[failedUnknownCA] > 0
	}, patience, time.Millisecond)
	s.requireOldAlive()
}
