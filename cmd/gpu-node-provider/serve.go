package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	oklog "github.com/oklog/run"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"gpu-node-provider/provider"
	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/dashboard"
	"gpu-node-provider/provider/guard"
	"gpu-node-provider/provider/reload"
)

func serveCommand() *cobra.Command {
	var file string
	var verbose bool
	c := &cobra.Command{
		Use:   "serve --config FILE",
		Short: "Serve the node groups of a file to Cluster Autoscaler",
		Args:  noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			// Read before it is loaded, so that a change in between is not missed.
			known, _ := reload.Read(file) // load says why it cannot be read
			cfg, err := load(file)
			if err != nil {
				return err
			}
			return serve(c.Context(), serveOptions{file: file, known: known, config: cfg, log: logger(c.ErrOrStderr(), verbose), out: c.OutOrStdout()})
		},
	}
	configFlag(c, &file)
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "log reads too")
	return c
}

type serveOptions struct {
	file   string
	known  reload.Contents // what config was read from
	config *config.Config
	log    *zap.Logger
	out    io.Writer
}

// process is everything that runs, top to bottom in the order of building.
type process struct {
	serveOptions
	registry *prometheus.Registry
	http     net.Listener
	kube     *kube
	tls      *tlsSide
	redis    *embeddedRedis
	holding  *checkpoints
	election *election
	synced   chan struct{} // closed once the cluster has been read
	recorded chan struct{} // closed once the record of training pods has been read, by the leader
	snapshot chan struct{} // closed once there is a snapshot
	started  chan struct{} // closed once every node has been looked at, and the port is open
	stopping atomic.Bool
	trouble  atomic.Pointer[string] // why there is no snapshot yet
	told     string                 // why the file was rejected last; watchFile's

	mu     sync.Mutex // between a changed file and the beginning of the lead
	office atomic.Pointer[office]
}

// serve runs until ctx is done or a part fails.
func serve(ctx context.Context, o serveOptions) error {
	p := &process{serveOptions: o, registry: prometheus.NewRegistry(), synced: make(chan struct{}), recorded: make(chan struct{}), snapshot: make(chan struct{}), started: make(chan struct{})}
	p.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	defer p.close()
	if err := p.build(); err != nil {
		return err
	}
	return p.run(ctx)
}

// build makes every part, and starts none: what a person can put right is
// found out before anything is touched.
func (p *process) build() (err error) {
	if err := portFree("server.address", p.config.Server.Address); err != nil {
		return err
	}
	if p.http, err = net.Listen("tcp", p.config.Server.HTTPAddress); err != nil {
		return usageError{fmt.Errorf("server.httpAddress: %w; stop what uses it, or choose another", err)}
	}
	if p.tls, err = newTLS(p.config.Server.TLS, p.log, p.registry); err != nil {
		return err
	}
	if p.kube, err = newKube(p.config.Kubernetes); err != nil {
		return err
	}
	if p.redis, err = startRedis(p.config.Redis.Embedded); err != nil {
		return err
	}
	if p.holding, err = newCheckpoints(p.config, p.kube, p.redis, p, p.log, p.registry); err != nil {
		return err
	}
	if p.election, err = newElection(p.config.Kubernetes, p.kube, p.log); err != nil {
		return err
	}
	if p.election.leads() { // nobody else can
		return p.takeOffice()
	}
	return nil
}

// portFree finds a used port before anything is started; the port itself opens
// only after the first snapshot.
func portFree(field, address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return usageError{fmt.Errorf("%s: %w; stop what uses it, or choose another", field, err)}
	}
	return l.Close()
}

func (p *process) close() {
	p.holding.close()
	if o := p.office.Load(); o != nil {
		o.cloud.close(p.log)
	}
	p.election.close()
	p.redis.close()
	if p.http != nil {
		_ = p.http.Close() // closed already when it was served
	}
}

// run starts the parts and stops them: gRPC first, so that calls in flight
// finish while everything they need is still there.
func (p *process) run(ctx context.Context) error {
	var g oklog.Group
	p.addGRPC(ctx, &g)
	p.addHTTP(&g)
	if err := p.addWebhook(&g); err != nil {
		return err
	}
	add := func(part func(context.Context) error) {
		// Not ctx itself: a signal must end gRPC first, and the rest in its turn.
		partCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		g.Add(func() error { return part(partCtx) }, func(error) { cancel() })
	}
	add(p.kube.run)
	add(p.tls.run)
	add(p.election.run)
	add(once(p.recorded, p.holding.run)) // pods come and go also while the cloud cannot be read
	add(p.onceStarted(func(ctx context.Context) error { return p.office.Load().cloud.run(ctx) }))
	add(p.onceStarted(func(ctx context.Context) error { return p.office.Load().server.Run(ctx) }))
	add(p.onceStarted(p.announce))
	add(p.onceStarted(p.watchCloud))
	add(once(p.synced, p.watchFile))
	told, cancel := context.WithCancel(ctx) // ends too when a part fails
	g.Add(func() error { <-told.Done(); return errStopped }, func(error) { cancel() })
	if err := g.Run(); !errors.Is(err, errStopped) {
		return err
	}
	p.log.Info("stopped")
	return nil
}

var errStopped = errors.New("told to stop")

func (p *process) onceStarted(part func(context.Context) error) func(context.Context) error {
	return once(p.started, part)
}

// once holds a part back until something has happened.
func once(happened <-chan struct{}, part func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-happened:
			return part(ctx)
		case <-ctx.Done():
			return nil
		}
	}
}

// addGRPC leads, when it is this replica's turn: it loads the first snapshot, has
// every node looked at for training pods, and only then opens the port.
func (p *process) addGRPC(ctx context.Context, g *oklog.Group) {
	startCtx, cancel := context.WithCancel(ctx)
	g.Add(func() error {
		if err := p.start(startCtx); err != nil {
			if ctx.Err() != nil {
				return errStopped
			}
			return err
		}
		port, err := net.Listen("tcp", p.config.Server.Address)
		if err != nil {
			return usageError{fmt.Errorf("server.address: %w; stop what uses it, or choose another", err)}
		}
		groups := len(p.office.Load().whole.NodeGroups)
		close(p.started) // from now on the file may change
		if err := p.tell(port.Addr(), groups); err != nil {
			return err
		}
		return p.office.Load().listener.Serve(port)
	}, func(cause error) {
		cancel()
		p.stopping.Store(true)
		p.stopCalls(cause)
	})
}

// stopCalls lets calls in flight finish, unless another replica may lead already.
func (p *process) stopCalls(cause error) {
	switch o := p.office.Load(); {
	case o == nil:
	case errors.Is(cause, errLeadershipLost):
		o.listener.StopNow()
	default:
		o.listener.Stop()
	}
}

// tell says where everything is.
func (p *process) tell(grpc net.Addr, groups int) error {
	where := []zap.Field{zap.Stringer("grpc", grpc), zap.Stringer("http", p.http.Addr()), zap.Int("node_groups", groups)}
	p.log.Info("serving", append(where, zap.String("version", version))...)
	text := fmt.Sprintf("gpu-node-provider %s serves %d node groups\n", version, groups) +
		fmt.Sprintf("  gRPC   %s   for Cluster Autoscaler's cloud-config\n", reachable(p.config.Server.Address, grpc)) +
		fmt.Sprintf("  HTTP   %s   /healthz /readyz /metrics\n", p.http.Addr())
	if p.redis != nil {
		text += fmt.Sprintf("  Redis  %s   embedded, for rehearsal\n", p.redis.address())
	}
	text += fmt.Sprintf("Look at it with: gpu-node-provider status --address %s --watch\n", p.http.Addr())
	_, err := io.WriteString(p.out, text)
	return err
}

// reachable is the address as the file has it, with the port that it got:
// a listener on every address reports [::], which nobody can dial.
func reachable(configured string, got net.Addr) string {
	host, _, err := net.SplitHostPort(configured)
	_, port, err2 := net.SplitHostPort(got.String())
	if err != nil || err2 != nil {
		return got.String()
	}
	return net.JoinHostPort(host, port)
}

// httpTimeout bounds a request's header, and a stop.
const httpTimeout = 5 * time.Second

func (p *process) addHTTP(g *oklog.Group) {
	server := &http.Server{
		Handler:           dashboard.Handler(dashboard.Options{Report: p.report, Ready: p.readiness, Gatherer: p.registry}),
		ReadHeaderTimeout: httpTimeout,
	}
	g.Add(func() error { return server.Serve(p.http) }, func(cause error) { stopHTTP(server, cause) })
}

// stopHTTP lets requests finish, unless what is stopped after it has to end at once:
// whoever is cut off reads, or asks again.
func stopHTTP(server *http.Server, cause error) {
	if errors.Is(cause, errLeadershipLost) {
		_ = server.Close()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), httpTimeout)
	defer cancel()
	_ = server.Shutdown(ctx)
}

// addWebhook answers for evictions. It is there as soon as the cluster has been
// read, and denies what it cannot judge.
func (p *process) addWebhook(g *oklog.Group) error {
	if p.holding == nil || p.config.Server.WebhookAddress == "" {
		return nil
	}
	port, err := net.Listen("tcp", p.config.Server.WebhookAddress)
	if err != nil {
		return usageError{fmt.Errorf("server.webhookAddress: %w; stop what uses it, or choose another", err)}
	}
	mux := http.NewServeMux()
	mux.Handle("POST "+guard.EvictionPath, guard.Webhook{Guard: p.holding.guard, Leads: p.election.leads})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: httpTimeout, TLSConfig: p.tls.server.WebhookConfig()}
	g.Add(func() error { return server.ServeTLS(port, "", "") }, func(cause error) { stopHTTP(server, cause) })
	return nil
}

// report is the provider's, with what is held.
func (p *process) report() (provider.Report, error) {
	o := p.office.Load()
	if o == nil {
		return provider.Report{}, dashboard.StandsBy(p.standing())
	}
	r, ready := o.server.Report()
	if !ready {
		return r, errors.New(p.unread())
	}
	r.Held = p.holding.held()
	return r, nil
}

// unread says what there is nothing to show without, in the order of a start.
func (p *process) unread() string {
	text := "the cloud has not been read yet"
	for _, part := range []struct {
		read <-chan struct{}
		name string
	}{{p.synced, "the cluster"}, {p.recorded, "the record of training pods"}} {
		select {
		case <-part.read:
			continue
		default:
		}
		text = part.name + " has not been read yet"
		break
	}
	if why := p.trouble.Load(); why != nil {
		return text + ": " + *why
	}
	return text
}

// readiness is nil when this replica does its part: the leader serves, the others
// answer for evictions.
func (p *process) readiness() error {
	part, missing := p.synced, "the cluster has not been read yet"
	if p.election.leads() {
		part, missing = p.started, p.unread()
	}
	select {
	case <-part:
	default:
		return errors.New(missing)
	}
	if p.stopping.Load() {
		return errors.New("stopping")
	}
	return nil
}
