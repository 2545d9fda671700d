// Package mtls implements mutual TLS of the gRPC port: the server certificate, the
// client CA and the allowed clients, reloaded from their files without a restart. For
// installations without cert-manager it also generates the files.
//
// The handshake requires a certificate of the client CA. Authorize compares its names
// with the allowed clients at each call, so that a client with the wrong name gets an
// error with a reason, not a closed connection.
//
// The files are used together, from one reading, or not at all. New handshakes use
// the newest valid set. Existing connections stay, since Cluster Autoscaler reads its
// own files only once and loses its loop when a connection breaks in the middle. The
// server's maximum connection age bounds how long a client stays connected that the
// new client CA rejects. An invalid set is logged, counted and otherwise ignored until
// the next change, which repairs a pair whose second file is written later.
//
// certprovider/pemfile of gRPC also watches files. It reads the pair and the CA at
// different times and reports no invalid pair, so it does not serve here.
//
// The package does not know gRPC status codes or the provider's calls.
package mtls

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc/credentials"

	"gpu-node-provider/cloud/logkey"
	"gpu-node-provider/provider/reload"
)

// Options of New. The three files are required.
type Options struct {
	CertFile     string // PEM, the server's certificate first, then its intermediates
	KeyFile      string // PEM, not encrypted
	ClientCAFile string // PEM, one or more certificates: the old and the new CA during a rotation

	// AllowedClients are DNS SANs, URI SANs or CNs of client certificates; see
	// Authorize. Empty allows every client of the CA.
	AllowedClients []string

	Interval   time.Duration         // polling interval of the files; zero means reload.DefaultInterval
	Log        *zap.Logger           // nil disables logging
	Registerer prometheus.Registerer // nil leaves the metrics unregistered
	Now        func() time.Time      // nil means time.Now

	ticks <-chan time.Time // for tests, see reload.Watcher
}

// Server is the TLS side of one gRPC server.
type Server struct {
	files   files
	clients clients
	log     *zap.Logger
	now     func() time.Time
	metrics *metrics
	watcher reload.Watcher

	current atomic.Pointer[material] // not nil and not changed in place
}

// New loads the files. Its error has one line per problem, with the file and what to
// do. It rejects an expired certificate, since no client could connect.
func New(opts Options) (*Server, error) {
	s := &Server{
		files:   files{cert: opts.CertFile, key: opts.KeyFile, clientCA: opts.ClientCAFile},
		log:     opts.Log,
		now:     opts.Now,
		metrics: newMetrics(),
	}
	if s.log == nil {
		s.log = zap.NewNop()
	}
	if s.now == nil {
		s.now = time.Now
	}

	var errClients error
	s.clients, errClients = newClients(opts.AllowedClients)
	contents, errRead := s.files.read()
	m, errMaterial := s.files.material(contents, errRead, s.now)
	if err := errors.Join(errClients, errMaterial); err != nil {
		return nil, err
	}
	if err := s.metrics.register(opts.Registerer); err != nil {
		return nil, fmt.Errorf("register TLS metrics: %w", err)
	}

	s.use(m)
	s.watcher = reload.Watcher{
		Files:    s.files.paths(),
		Interval: opts.Interval,
		Known:    contents,
		Changed:  s.reload,
		Ticks:    opts.ticks,
	}
	return s, nil
}

// Run reloads changed files until the context ends, and returns nil then.
func (s *Server) Run(ctx context.Context) error {
	return s.watcher.Run(ctx)
}

// Credentials returns credentials for grpc.NewServer that use the newest files.
func (s *Server) Credentials() credentials.TransportCredentials {
	config := &tls.Config{
		MinVersion:             tls.VersionTLS12,
		ClientAuth:             tls.RequireAndVerifyClientCert,
		SessionTicketsDisabled: true, // see material
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return s.current.Load().config, nil
		},
	}
	return &handshaker{
		TransportCredentials: credentials.NewTLS(config),
		metrics:              s.metrics,
		log:                  sampled(s.log),
	}
}

// WebhookConfig serves the newest server certificate without requesting one from the
// client, since the API server presents none to webhooks.
func (s *Server) WebhookConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return &s.current.Load().config.Certificates[0], nil
		},
	}
}

// reload is called when the files change or become unreadable.
func (s *Server) reload(contents reload.Contents, errRead error) {
	m, err := s.files.material(contents, errRead, s.now)
	if err != nil {
		s.metrics.reloadErrors.Inc()
		s.metrics.reloadFailed.Set(1)
		s.log.Error("new TLS files rejected, the previous ones stay in use",
			zap.Error(err), zap.Time(logkey.NotAfter, s.current.Load().expiry))
		return
	}
	s.use(m)
	s.log.Info("new TLS files in use",
		zap.String(logkey.Serial, m.serial()), zap.Time(logkey.NotAfter, m.expiry))
}

func (s *Server) use(m *material) {
	s.current.Store(m)
	s.metrics.reloadFailed.Set(0)
	s.metrics.certExpiry.Set(float64(m.expiry.Unix()))
	s.metrics.clientCAExpiry.Set(float64(m.clientCAExpiry.Unix()))
}
