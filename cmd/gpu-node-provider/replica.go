package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	oklog "github.com/oklog/run"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"google.golang.org/grpc/credentials"

	"gpu-node-provider/provider"
	"gpu-node-provider/provider/checkpoint"
	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/dashboard"
	"gpu-node-provider/provider/guard"
	"gpu-node-provider/provider/mtls"
	"gpu-node-provider/provider/report"
)

// replica holds the parts that run in every replica: the view of the cluster, the
// eviction webhook, the HTTP server, and the election. The leader-only parts are in
// leader.go.
type replica struct {
	serveOptions
	registry *prometheus.Registry
	progress *progress

	http     net.Listener
	redis    checkpoint.RedisOptions
	kube     *kube // nil without a Kubernetes API
	election *election

	// Transport of the gRPC port; nil means plaintext, if the node group file allows it.
	credentials credentials.TransportCredentials
	authorize   func(context.Context) error

	servers []server                      // stopped in this order, after the gRPC server
	parts   []func(context.Context) error // run until the process ends
	closers []func()                      // called last first

	effective atomic.Pointer[config.Config] // the node group file in effect
	rejected  string                        // last error of a changed file on a standby replica; empty after a valid one
	leading   atomic.Pointer[leader]        // nil until this replica leads and has its first snapshot
	stopping  atomic.Bool
}

// server is an HTTP server and its open port.
type server struct {
	*http.Server
	serve func() error
}

// newReplica builds all parts and starts none of them, so that bad input is reported
// before anything changes.
func newReplica(o serveOptions) (_ *replica, err error) {
	r := &replica{serveOptions: o, registry: prometheus.NewRegistry(), progress: &progress{log: o.log, missing: "start-up has not begun yet"}}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	r.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	r.effective.Store(o.config)
	if err := portFree("server.address", o.config.Server.Address); err != nil {
		return nil, err
	}
	if err := r.openHTTP(); err != nil {
		return nil, err
	}
	webhookTLS, err := r.loadTLS()
	if err != nil {
		return nil, err
	}
	if err := r.openRedis(); err != nil {
		return nil, err
	}
	r.election = withoutElection()
	if o.config.Kubernetes == nil {
		return r, nil
	}
	if r.kube, err = r.newKube(); err != nil {
		return nil, err
	}
	if r.election, err = newElection(o.config.Kubernetes, r.kube, o.log); err != nil {
		return nil, err
	}
	return r, r.openWebhook(webhookTLS)
}

func (r *replica) close() {
	for _, done := range slices.Backward(r.closers) {
		done()
	}
}

// portFree returns an error when the port is in use. The gRPC port opens only when this
// replica leads, which is too late to report bad input.
func portFree(field, address string) error {
	l, err := openPort(field, address)
	if err != nil {
		return err
	}
	return l.Close()
}

func openPort(field, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, usageError{fmt.Errorf("%s: %w; stop the process that uses it, or choose another address", field, err)}
	}
	return l, nil
}

// httpTimeout limits reading the header of a request, and a graceful shutdown.
const httpTimeout = 5 * time.Second

// openHTTP opens the port that serves health, metrics and the report.
func (r *replica) openHTTP() (err error) {
	if r.http, err = r.listen("server.httpAddress", r.config.Server.HTTPAddress); err != nil {
		return err
	}
	s := &http.Server{
		Handler:           dashboard.Handler(dashboard.Options{Report: r.report, Ready: r.ready, Gatherer: r.registry}),
		ReadHeaderTimeout: httpTimeout,
	}
	r.servers = append(r.servers, server{s, func() error { return s.Serve(r.http) }})
	return nil
}

// listen opens a port that close closes.
func (r *replica) listen(field, address string) (net.Listener, error) {
	l, err := openPort(field, address)
	if err == nil {
		r.closers = append(r.closers, func() { _ = l.Close() }) // usually closed by its server
	}
	return l, err
}

// loadTLS loads the certificates of the gRPC port and of the webhook. It returns nil when
// the file has none.
func (r *replica) loadTLS() (*mtls.Server, error) {
	c := r.config.Server.TLS
	if c == nil {
		return nil, nil //nolint:nilnil // plaintext
	}
	s, err := mtls.New(mtls.Options{
		CertFile: c.CertFile, KeyFile: c.KeyFile, ClientCAFile: c.ClientCAFile, AllowedClients: c.AllowedClients, Log: r.log, Registerer: r.registry,
	})
	if err != nil {
		return nil, usageError{fmt.Errorf("server.tls: %w", err)}
	}
	r.credentials = s.Credentials()
	r.authorize = func(ctx context.Context) error {
		if err := s.Authorize(ctx); err != nil {
			return provider.Refused(err)
		}
		return nil
	}
	r.parts = append(r.parts, s.Run)
	return s, nil
}

// openWebhook opens the port of the eviction webhook, which denies what it cannot judge. It
// opens before this replica leads, since the API server may call any replica.
func (r *replica) openWebhook(tls *mtls.Server) error {
	address := r.config.Server.WebhookAddress
	if address == "" {
		return nil
	}
	port, err := r.listen("server.webhookAddress", address)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("POST "+guard.EvictionPath, guard.Webhook{Guard: r.kube.guard, Leads: r.election.leads})
	s := &http.Server{Handler: mux, ReadHeaderTimeout: httpTimeout, TLSConfig: tls.WebhookConfig()}
	r.servers = append(r.servers, server{s, func() error { return s.ServeTLS(port, "", "") }})
	return nil
}

var errStopped = errors.New("stopped by a signal")

// run starts the parts. When ctx is done or a part fails, it stops them one after another:
// the leader's first, so that calls in flight finish while their dependencies still run,
// and the election last, since the Lease must cover all other parts.
func (r *replica) run(ctx context.Context) error {
	var g oklog.Group
	r.addStates(ctx, &g)
	for _, s := range r.servers {
		g.Add(s.serve, func(cause error) { stopHTTP(s.Server, cause) })
	}
	for _, part := range r.parts {
		addPart(ctx, &g, part)
	}
	addPart(ctx, &g, r.campaign)
	signalled, cancel := context.WithCancel(ctx) // cancelled also when a part fails
	g.Add(func() error { <-signalled.Done(); return errStopped }, func(error) { cancel() })
	if err := g.Run(); !errors.Is(err, errStopped) {
		return err
	}
	r.log.Info("stopped")
	return nil
}

// addStates adds the two states of a replica, standby and then leader, as one part.
func (r *replica) addStates(ctx context.Context, g *oklog.Group) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	g.Add(func() error {
		defer close(ended)
		if err := r.standBy(ctx); err != nil {
			return err
		}
		return r.lead(ctx)
	}, func(cause error) {
		r.stopping.Store(true)
		cancel(cause)
		<-ended
	})
}

// addPart adds a part that ignores the end of ctx, so that a signal stops the parts in
// order.
func addPart(ctx context.Context, g *oklog.Group, part func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	g.Add(func() error { return part(ctx) }, func(error) { cancel() })
}

// stopHTTP waits for requests in flight, unless the leadership was lost: then the parts
// that stop after it must stop at once, and clients retry.
func stopHTTP(s *http.Server, cause error) {
	if errors.Is(cause, errLeadershipLost) {
		_ = s.Close()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), httpTimeout)
	defer cancel()
	_ = s.Shutdown(ctx)
}

// standBy returns when this replica leads. Until then it follows the node group file, and
// the webhook answers.
func (r *replica) standBy(ctx context.Context) error {
	if r.kube != nil {
		if err := r.progress.await(ctx, "the cluster has not been read yet", r.kube.view.WaitForSync); err != nil {
			return err
		}
	}
	if !r.election.leads() {
		r.progress.finish() // ready, since it answers the webhook
	}
	return r.followFile(ctx, r.election.led, r.acceptFile)
}

// campaign runs the election until ctx is done. It fails when the Lease is lost.
func (r *replica) campaign(ctx context.Context) error {
	if r.kube == nil {
		<-ctx.Done()
		return nil
	}
	if err := r.kube.view.WaitForSync(ctx); err != nil {
		return nil //nolint:nilerr // ctx is done
	}
	return r.election.run(ctx)
}

// ready returns nil when the leader serves, and when a standby replica answers the webhook.
func (r *replica) ready() error {
	if err := r.progress.err(); err != nil {
		return err
	}
	if r.stopping.Load() {
		return errors.New("stopping")
	}
	return nil
}

// report returns the state of the provider with the held nodes. Only the leader has one.
func (r *replica) report() (report.Provider, error) {
	l := r.leading.Load()
	if l == nil {
		if r.election.leads() {
			return report.Provider{}, r.progress.err()
		}
		return report.Provider{}, dashboard.StandsBy(r.election.standbyMessage())
	}
	state := l.server.Report()
	if r.kube != nil {
		state.Held = r.kube.guard.Holds()
	}
	return state, nil
}
