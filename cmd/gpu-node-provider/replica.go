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

// replica is what every replica runs, leader or not: the view of the cluster, the
// eviction webhook, HTTP, and the election. What only the leader runs is in leader.go.
type replica struct {
	serveOptions
	registry *prometheus.Registry
	progress *progress

	http     net.Listener
	redis    checkpoint.RedisOptions
	kube     *kube // nil without a Kubernetes API
	election *election

	// Transport of the gRPC port; nil is plaintext, which Validate has allowed.
	credentials credentials.TransportCredentials
	authorize   func(context.Context) error

	servers []server                      // stopped in this order, after the leader's
	parts   []func(context.Context) error // run from the start to the end
	closers []func()                      // called last first

	inForce  atomic.Pointer[config.Config] // the node group file that this replica goes by
	refused  string                        // why the last change of the file was refused while standing by
	leading  atomic.Pointer[leader]        // nil until this replica has the first snapshot
	stopping atomic.Bool
}

// server is an HTTP server and its open port.
type server struct {
	*http.Server
	serve func() error
}

// newReplica makes every part and starts none, so that bad input is found before
// anything is changed.
func newReplica(o serveOptions) (_ *replica, err error) {
	r := &replica{serveOptions: o, registry: prometheus.NewRegistry(), progress: &progress{log: o.log, missing: "the start has not begun yet"}}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	r.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	r.inForce.Store(o.config)
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
	r.election = leadsAlone()
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

// portFree reports a port in use before anything is started; the gRPC port itself opens
// only when this replica leads.
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
		return nil, usageError{fmt.Errorf("%s: %w; stop the process that uses it, or choose another", field, err)}
	}
	return l, nil
}

// httpTimeout bounds a request's header, and a stop.
const httpTimeout = 5 * time.Second

// openHTTP opens the port of health, metrics and report.
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

// listen opens a port that closes with the replica.
func (r *replica) listen(field, address string) (net.Listener, error) {
	l, err := openPort(field, address)
	if err == nil {
		r.closers = append(r.closers, func() { _ = l.Close() }) // a server has closed it already
	}
	return l, err
}

// loadTLS loads the certificates of the gRPC port and of the webhook; nil without any.
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

// openWebhook opens the port of the eviction webhook, which denies what it cannot judge.
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

var errStopped = errors.New("told to stop")

// run starts the parts. When ctx is done or one fails it stops them one after another:
// the leader's first, so that calls in flight finish while everything that they need is
// there, and the election last, since the Lease covers all of it.
func (r *replica) run(ctx context.Context) error {
	var g oklog.Group
	r.addActs(ctx, &g)
	for _, s := range r.servers {
		g.Add(s.serve, func(cause error) { stopHTTP(s.Server, cause) })
	}
	for _, part := range r.parts {
		addPart(ctx, &g, part)
	}
	addPart(ctx, &g, r.campaign)
	told, cancel := context.WithCancel(ctx) // ends too when a part fails
	g.Add(func() error { <-told.Done(); return errStopped }, func(error) { cancel() })
	if err := g.Run(); !errors.Is(err, errStopped) {
		return err
	}
	r.log.Info("stopped")
	return nil
}

// addActs adds the two acts of a replica: it stands by, and then it leads.
func (r *replica) addActs(ctx context.Context, g *oklog.Group) {
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

// addPart adds a part that a signal ends in its turn only.
func addPart(ctx context.Context, g *oklog.Group, part func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	g.Add(func() error { return part(ctx) }, func(error) { cancel() })
}

// stopHTTP lets requests finish, unless the leadership was lost: then what is stopped
// after it has to end at once, and clients ask again.
func stopHTTP(s *http.Server, cause error) {
	if errors.Is(cause, errLeadershipLost) {
		_ = s.Close()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), httpTimeout)
	defer cancel()
	_ = s.Shutdown(ctx)
}

// standBy returns once this replica leads. Until then it follows the cluster, for the
// webhook, and the node group file.
func (r *replica) standBy(ctx context.Context) error {
	if r.kube != nil {
		if err := r.progress.await(ctx, "the cluster has not been read yet", r.kube.view.WaitForSync); err != nil {
			return err
		}
	}
	if !r.election.leads() {
		r.progress.finish() // it does its part: it answers for evictions
	}
	return r.followFile(ctx, r.election.led, r.keepFile)
}

// campaign takes part in the election until ctx is done, and fails when the Lease is lost.
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

// ready is nil when this replica does its part: the leader serves, the others answer
// for evictions.
func (r *replica) ready() error {
	if err := r.progress.err(); err != nil {
		return err
	}
	if r.stopping.Load() {
		return errors.New("stopping")
	}
	return nil
}

// report is the provider's state, with what is held; only the leader has one.
func (r *replica) report() (report.Provider, error) {
	l := r.leading.Load()
	if l == nil {
		if r.election.leads() {
			return report.Provider{}, r.progress.err()
		}
		return report.Provider{}, dashboard.StandsBy(r.election.directions())
	}
	state := l.server.Report()
	if r.kube != nil {
		state.Held = r.kube.guard.Holds()
	}
	return state, nil
}
