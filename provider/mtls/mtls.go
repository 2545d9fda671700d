// Package mtls owns the TLS of the gRPC port: which certificate the server
// shows, which clients it lets in, and that both follow their files without a
// restart. For people without cert-manager it also makes the files.
//
// Every client must show a certificate of the client CA; that is decided in the
// handshake. Which of those clients may call is decided at each call, so that a
// client with the wrong name gets an answer that says so and not a cut line.
//
// The files are taken together, from one reading, or not at all. New handshakes
// use the newest good set; connections that exist stay, whatever has changed,
// since Cluster Autoscaler reads its own files only once and a cut connection in
// the middle of its loop costs it the loop. The server's maximal connection age
// bounds how long a client lives on that the new client CA would refuse. A bad
// set changes nothing, is logged and raises a metric, and is looked at again at
// the next change: a pair whose second half is still to come heals by itself.
//
// grpc's certprovider/pemfile watches files as well. It is not used because it
// takes the pair and the CA at different times and tells nobody of a bad pair.
//
// The package does not know gRPC's status codes, the provider's calls or who
// mounts the files.
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
	ClientCAFile string // PEM, one or more: old and new side by side while the client CA changes

	// AllowedClients are who may call, each the DNS SAN, URI SAN or CN of a
	// client certificate; see Authorize. Empty: every client of the CA.
	AllowedClients []string

	Interval   time.Duration         // between two looks at the files; zero: reload.DefaultInterval
	Log        *zap.Logger           // nil: none
	Registerer prometheus.Registerer // nil: the metrics are not registered
	Now        func() time.Time      // nil: time.Now

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

	current atomic.Pointer[material] // never nil, never changed in place
}

// New loads the files. Its error has a line for each thing that is wrong, with
// the file and what to do. An expired certificate is an error too: the server
// would run, and no client could connect.
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

// Run follows the files until the context ends, which is not an error.
func (s *Server) Run(ctx context.Context) error {
	return s.watcher.Run(ctx)
}

// Credentials for grpc.NewServer. They stay good over every reload.
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

// WebhookConfig serves the same certificate, over every reload, to a client that
// has none: the API server as a caller of webhooks.
func (s *Server) WebhookConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return &s.current.Load().config.Certificates[0], nil
		},
	}
}

// reload is called when the files have changed or cannot be read.
func (s *Server) reload(contents reload.Contents, errRead error) {
	m, err := s.files.material(contents, errRead, s.now)
	if err != nil {
		s.metrics.reloadErrors.Inc()
		s.metrics.reloadFailed.Set(1)
		s.log.Error("new TLS files refused, the old ones stay in use",
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
