package provider

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"time"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"gpu-node-provider/cloud/logkey"
	"gpu-node-provider/proto"
)

// Cluster Autoscaler keeps one connection and never pings, so a client that
// vanished is found out by the server's pings, and a long-lived connection is
// renewed so that it finds a new replica or a new certificate.
const (
	pingAfter       = 30 * time.Second
	pingTimeout     = 10 * time.Second
	connectionAge   = 30 * time.Minute
	connectionGrace = time.Minute
)

// stopTimeout is how long calls in flight have to finish when the server
// stops; it is twice Cluster Autoscaler's own deadline.
const stopTimeout = 10 * time.Second

// Listener is the gRPC side of a Server.
type Listener struct {
	grpc   *grpc.Server
	health *health.Server
	log    *zap.Logger
}

// ListenOptions say who may call and how.
type ListenOptions struct {
	// Credentials are the transport's; nil means plaintext.
	Credentials credentials.TransportCredentials
	// Authorize refuses callers by an error that wraps ErrNotAllowed; nil allows all.
	Authorize  func(context.Context) error
	Log        *zap.Logger
	Registerer prometheus.Registerer
}

// NewListener prepares the gRPC server; Serve opens it.
func NewListener(s *Server, o ListenOptions) *Listener {
	counted := grpcprom.NewServerMetrics(
		grpcprom.WithServerCounterOptions(grpcprom.WithNamespace(namespace)),
		grpcprom.WithServerHandlingTimeHistogram(grpcprom.WithHistogramNamespace(namespace),
			// From a read out of memory to the client's deadline of 5 s.
			grpcprom.WithHistogramBuckets([]float64{.00005, .0002, .001, .005, .025, .1, .5, 1, 2.5, 5, 10})),
	)
	unary := []grpc.UnaryServerInterceptor{counted.UnaryServerInterceptor(), logCalls(o.Log, s.now)}
	var stream []grpc.StreamServerInterceptor
	if o.Authorize != nil {
		unary = append(unary, authorize(o.Authorize))
		stream = append(stream, authorizeStream(o.Authorize))
	}
	unary = append(unary, recoverPanic(o.Log), deadline)

	options := []grpc.ServerOption{
		// Goroutines that stay keep the stack they have grown: a tenth more calls a
		// second than with one goroutine for each call. When all are at work, in a
		// write that waits for instance, grpc-go starts another.
		grpc.NumStreamWorkers(uint32(runtime.GOMAXPROCS(0))),
		grpc.ChainUnaryInterceptor(unary...),
		grpc.ChainStreamInterceptor(stream...),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: pingAfter, Timeout: pingTimeout, MaxConnectionAge: connectionAge, MaxConnectionAgeGrace: connectionGrace,
		}),
	}
	if o.Credentials != nil {
		options = append(options, grpc.Creds(o.Credentials))
	}
	l := &Listener{grpc: grpc.NewServer(options...), health: health.NewServer(), log: o.Log}
	proto.RegisterCloudProviderServer(l.grpc, s)
	healthpb.RegisterHealthServer(l.grpc, l.health)
	reflection.Register(l.grpc)
	counted.InitializeMetrics(l.grpc)
	if o.Registerer != nil {
		o.Registerer.MustRegister(counted)
	}
	return l
}

// Serve answers on the open port until Stop.
func (l *Listener) Serve(port net.Listener) error {
	if err := l.grpc.Serve(port); err != nil {
		return fmt.Errorf("serving gRPC on %s: %w", port.Addr(), err)
	}
	return nil
}

// Stop takes no new calls, lets those in flight finish, and ends what is left
// after stopTimeout; a write that is ended so still finds out what became of it,
// for confirmTimeout at most.
func (l *Listener) Stop() {
	l.health.Shutdown()
	hard := time.AfterFunc(stopTimeout, func() {
		l.log.Warn("calls in flight did not finish before the timeout", zap.Duration(logkey.Timeout, stopTimeout))
		l.grpc.Stop()
	})
	defer hard.Stop()
	l.grpc.GracefulStop()
}

// StopNow ends calls in flight: what they would do is another process' business.
func (l *Listener) StopNow() {
	l.health.Shutdown()
	l.grpc.Stop()
}
