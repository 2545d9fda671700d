package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc/credentials"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws"
	"gpu-node-provider/cloud/simulated"
	"gpu-node-provider/provider"
	"gpu-node-provider/provider/cluster"
	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/mtls"
	"gpu-node-provider/provider/nodegroup"
)

func logger(w io.Writer, verbose bool) *zap.Logger {
	encoding := zap.NewProductionEncoderConfig()
	encoding.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	encoding.EncodeDuration = zapcore.StringDurationEncoder
	level := zapcore.InfoLevel
	if verbose {
		level = zapcore.DebugLevel
	}
	return zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(encoding), zapcore.Lock(zapcore.AddSync(w)), level))
}

// kube is the Kubernetes side; nil without a Kubernetes API.
type kube struct {
	client kubernetes.Interface
	seen   *cluster.View
}

// The client's own limit of calls. The default of 5 a second would take
// minutes to register the nodes of a large rehearsal.
const (
	kubeQPS   = 100
	kubeBurst = 200
)

func newKube(c *config.Kubernetes) (*kube, error) {
	if c == nil {
		return nil, nil //nolint:nilnil // a nil kube is the one without an API
	}
	rest, err := restConfig(c.Kubeconfig)
	if err != nil {
		return nil, usageError{err}
	}
	rest.QPS, rest.Burst = kubeQPS, kubeBurst
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return nil, usageError{fmt.Errorf("kubernetes: %w", err)}
	}
	view, err := cluster.New(client, self(c.Namespace))
	if err != nil {
		return nil, err
	}
	return &kube{client: client, seen: view}, nil
}

func restConfig(file string) (*rest.Config, error) {
	if file == "" {
		c, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("kubernetes.kubeconfig: empty means the pod's service account, and there is none: %w", err)
		}
		return c, nil
	}
	c, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, fmt.Errorf("kubernetes.kubeconfig: %w", err)
	}
	return c, nil
}

// self is what Events about the provider as a whole are about: its Pod, which
// the manifests name by the downward API, else its namespace.
func self(namespace string) *corev1.ObjectReference {
	if pod := os.Getenv("POD_NAME"); pod != "" {
		return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: pod}
	}
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Namespace", Namespace: namespace, Name: namespace}
}

func (k *kube) view() *cluster.View {
	if k == nil {
		return nil
	}
	return k.seen
}

func (k *kube) run(ctx context.Context) error {
	if k == nil {
		<-ctx.Done()
		return nil
	}
	return k.seen.Run(ctx)
}

func (k *kube) waitForSync(ctx context.Context) error {
	if k == nil {
		return nil
	}
	return k.seen.WaitForSync(ctx)
}

// groupsWithout are groups of Nodes that a file has not, or that are another Auto
// Scaling group there than in the file before. With discovery the file does not say.
func (k *kube) groupsWithout(c, before *config.Config) (missing []string) {
	if k == nil || c.Cloud.AWS != nil && c.Cloud.AWS.Discovery != nil {
		return nil
	}
	was := map[string]string{}
	for _, g := range before.NodeGroups {
		was[g.ID] = g.AutoScalingGroup
	}
	has := map[string]bool{"": true}
	for _, g := range c.NodeGroups {
		asg, known := was[g.ID]
		has[g.ID] = !known || asg == g.AutoScalingGroup
	}
	for _, node := range k.seen.Nodes() {
		if id := node.Labels[nodegroup.Label]; !has[id] {
			has[id] = true
			missing = append(missing, id)
		}
	}
	slices.Sort(missing)
	return missing
}

func (k *kube) warn(reason, message string) {
	if k != nil {
		k.seen.WarnSelf(reason, message)
	}
}

// runningCloud is a backend and what keeps it going.
type runningCloud struct {
	backend cloud.Backend
	run     func(context.Context) error
	release func() error
	// Only a real cloud has what follows.
	readEvery time.Duration
	survey    *survey
	quotas    func(context.Context, string) (provider.ServiceQuota, error)
}

func newCloud(c *config.Config, k *kube, newNode newNode, log *zap.Logger, r prometheus.Registerer) (*runningCloud, error) {
	if c.Cloud.AWS != nil {
		return newAWS(c.Cloud.AWS, log, r)
	}
	return newSimulated(c, k, newNode, log)
}

// newAWS reads credentials' whereabouts and calls nothing.
func newAWS(c *config.AWS, log *zap.Logger, r prometheus.Registerer) (*runningCloud, error) {
	backend, err := aws.New(context.Background(), aws.Options{
		Region: c.Region, Endpoint: c.Endpoint, ScaleInProtection: aws.ScaleInProtection(c.ScaleInProtection), Registerer: r, Log: log,
	})
	if err != nil {
		return nil, usageError{fmt.Errorf("cloud.aws: %w", err)}
	}
	return &runningCloud{
		backend:   backend,
		run:       func(ctx context.Context) error { <-ctx.Done(); return nil },
		release:   func() error { return nil },
		readEvery: c.RefreshInterval.Duration,
		survey:    newSurvey(backend, log),
		quotas: func(ctx context.Context, code string) (provider.ServiceQuota, error) {
			q, err := backend.Quota(ctx, code)
			return provider.ServiceQuota{Limit: float64(q.Limit), Use: float64(q.Use), Source: q.Source, ReadAt: q.UsedAt, Problem: q.Problem}, err
		},
	}, nil
}

func newSimulated(c *config.Config, k *kube, newNode newNode, log *zap.Logger) (*runningCloud, error) {
	o := c.Cloud.Simulated
	pretend, err := simulated.New(simulated.Options{
		StateFile:         o.StateFile,
		LaunchDelay:       o.LaunchDelay.Duration,
		BootDelay:         o.BootDelay.Duration,
		DevicePluginDelay: o.DevicePluginDelay.Duration,
		TerminateDelay:    o.TerminateDelay.Duration,
		Capacity:          o.Capacity,
		LaunchErrorRate:   o.LaunchErrors.Rate,
		LaunchErrorCode:   cloud.LaunchCode(o.LaunchErrors.Code),
		API:               simulated.API{Latency: o.API.Latency.Duration, ErrorRate: o.API.ErrorRate, LostAnswerRate: o.API.LostAnswerRate},
		Kubernetes:        nodes(c, k, newNode),
		Log:               log,
	})
	if err != nil {
		return nil, usageError{fmt.Errorf("cloud.simulated: %w", err)}
	}
	return &runningCloud{backend: pretend, run: pretend.Run, release: pretend.Close}, nil
}

// newNode makes the Node of an instance.
type newNode = func(group, name, providerID string) (*corev1.Node, error)

// nodes says how the simulated cloud registers its Nodes; nil without a Kubernetes API.
func nodes(c *config.Config, k *kube, newNode newNode) *simulated.Kubernetes {
	if k == nil {
		return nil
	}
	return &simulated.Kubernetes{Client: k.client, NewNode: newNode, Heartbeat: *c.Cloud.Simulated.Heartbeat}
}

func (c *runningCloud) close(log *zap.Logger) {
	if c == nil {
		return
	}
	if err := c.release(); err != nil {
		log.Warn("closing the cloud failed", zap.Error(err))
	}
}

// tlsSide is mutual TLS; nil means plaintext, which Validate has allowed.
type tlsSide struct{ server *mtls.Server }

func newTLS(c *config.TLS, log *zap.Logger, r prometheus.Registerer) (*tlsSide, error) {
	if c == nil {
		return nil, nil //nolint:nilnil // nil is plaintext
	}
	server, err := mtls.New(mtls.Options{
		CertFile: c.CertFile, KeyFile: c.KeyFile, ClientCAFile: c.ClientCAFile, AllowedClients: c.AllowedClients, Log: log, Registerer: r,
	})
	if err != nil {
		return nil, usageError{fmt.Errorf("server.tls: %w", err)}
	}
	return &tlsSide{server}, nil
}

func (t *tlsSide) run(ctx context.Context) error {
	if t == nil {
		<-ctx.Done()
		return nil
	}
	return t.server.Run(ctx)
}

func (t *tlsSide) credentials() credentials.TransportCredentials {
	if t == nil {
		return nil
	}
	return t.server.Credentials()
}

// authorize is nil when everybody whom TLS let in may call.
func (t *tlsSide) authorize() func(context.Context) error {
	if t == nil {
		return nil
	}
	return func(ctx context.Context) error {
		if err := t.server.Authorize(ctx); err != nil {
			return provider.Refused(err)
		}
		return nil
	}
}

// embeddedRedis is a Redis stand-in for rehearsals; nil when the file names real ones.
type embeddedRedis struct {
	server *miniredis.Miniredis
	stop   chan struct{}
}

func startRedis(c *config.EmbeddedRedis) (*embeddedRedis, error) {
	if c == nil {
		return nil, nil //nolint:nilnil // nil is no embedded Redis
	}
	server := miniredis.NewMiniRedis()
	if err := server.StartAddr(c.Address); err != nil {
		return nil, usageError{fmt.Errorf("redis.embedded.address: %w; stop what uses it, or choose another", err)}
	}
	r := &embeddedRedis{server: server, stop: make(chan struct{})}
	go r.age()
	return r, nil
}

// age makes keys expire, which miniredis does only when it is told that time has passed.
func (r *embeddedRedis) age() {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-r.stop:
			return
		case <-ticker.C:
			r.server.FastForward(time.Second)
		}
	}
}

func (r *embeddedRedis) address() string { return r.server.Addr() }

func (r *embeddedRedis) close() {
	if r != nil {
		close(r.stop)
		r.server.Close()
	}
}
