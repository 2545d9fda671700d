package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	grpcstatus "google.golang.org/grpc/status"

	"gpu-node-provider/proto"
	"gpu-node-provider/provider/config"
)

// apiServer is a fake Kubernetes API server without Nodes and Pods. It answers only after it
// is released, so that tests can act on a provider that starts.
type apiServer struct {
	kubeconfig string
	asked      chan struct{} // closed by the first request
	answer     func()
}

func newAPIServer(t *testing.T) *apiServer {
	t.Helper()
	may := make(chan struct{})
	a := &apiServer{asked: make(chan struct{}), answer: sync.OnceFunc(func() { close(may) })}
	first := sync.OnceFunc(func() { close(a.asked) })
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		first()
		select {
		case <-may:
		case <-r.Context().Done():
			return
		}
		w.Header().Set("Content-Type", "application/json")
		query := r.URL.Query()
		switch {
		case query.Get("sendInitialEvents") != "": // as an API server without streaming lists
			w.WriteHeader(http.StatusBadRequest)
		case query.Get("watch") != "":
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		default:
			kind := map[string]string{
				"nodes": "NodeList", "pods": "PodList", "namespaces": "NamespaceList", "validatingwebhookconfigurations": "ValidatingWebhookConfigurationList",
			}[filepath.Base(r.URL.Path)]
			version := "v1"
			if group, ok := strings.CutPrefix(filepath.Dir(r.URL.Path), "/apis/"); ok {
				version = group
			}
			fmt.Fprintf(w, `{"kind": %q, "apiVersion": %q, "metadata": {"resourceVersion": "1"}, "items": []}`, kind, version)
		}
	}))
	t.Cleanup(s.Close)
	t.Cleanup(a.answer)
	a.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig.yaml")
	require.NoError(t, os.WriteFile(a.kubeconfig, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q}}]
contexts: [{name: c, context: {cluster: c}}]
current-context: c
`, s.URL), 0o600))
	return a
}

func (a *apiServer) section() string {
	return fmt.Sprintf("kubernetes: {kubeconfig: %q, leaderElection: false}", a.kubeconfig)
}

func (a *apiServer) wait(t *testing.T) {
	t.Helper()
	eventually(t, "the API server is asked", func() bool {
		select {
		case <-a.asked:
			return true
		default:
			return false
		}
	})
}

// TestPortTakenWhileStarting: the port is free when it is checked, and in use when it opens.
// Parts that wait for start-up must end too.
func TestPortTakenWhileStarting(t *testing.T) {
	api := newAPIServer(t)
	grpcPort, httpPort, redisPort := freePort(t), freePort(t), freePort(t)
	p := start(t, "serve", "--config", file{server: ports(grpcPort, httpPort), redis: redisPort, rest: api.section()}.write(t))
	api.wait(t)
	listen(t, grpcPort)
	api.answer()
	require.Equal(t, exitUsage, p.wait(t))
	last := lastLine(p.stderr.String())
	require.Contains(t, last, "server.address: listen tcp "+grpcPort)
	require.Contains(t, last, "stop the process that uses it, or choose another address")
	require.Empty(t, p.stdout.String(), "it never served")
	listen(t, httpPort)
	listen(t, redisPort)
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// TestPartFailsWhileServing: the failure of one part ends the others, and its error is
// the last entry of the log.
func TestPartFailsWhileServing(t *testing.T) {
	grpcPort, httpPort := freePort(t), freePort(t)
	path := file{server: ports(grpcPort, httpPort)}.write(t)
	c, err := config.Load(path)
	require.NoError(t, err)
	core, logs := observer.New(zap.InfoLevel)
	r, err := newReplica(serveOptions{file: path, config: c, log: zap.New(core), out: io.Discard})
	require.NoError(t, err)
	failure := errors.New("no space left on device")
	r.parts = append(r.parts, func(ctx context.Context) error {
		for r.ready() != nil && ctx.Err() == nil {
			runtime.Gosched()
		}
		return failure
	})
	require.ErrorIs(t, r.run(t.Context()), failure)
	r.close()
	require.Zero(t, logs.FilterMessage("stopped").Len(), "it was not told to stop")
	listen(t, grpcPort)
	listen(t, httpPort)
}

// TestStopWhileTheAPIServerIsAway: a stop during start-up is not a failure.
func TestStopWhileTheAPIServerIsAway(t *testing.T) {
	api := newAPIServer(t)
	p := start(t, "serve", "--config", file{rest: api.section()}.write(t))
	api.wait(t)
	p.stop()
	require.Zero(t, p.wait(t), "%s", p.stderr.String())
	require.Contains(t, p.stderr.String(), `"msg":"stopped"`)
}

// TestNotReadyWhileStopping: readiness fails while calls in flight finish, so that clients
// send no new ones.
func TestNotReadyWhileStopping(t *testing.T) {
	p, address, web := serving(t, file{})
	ready := func() (code int, body string) {
		response, err := http.Get("http://" + web + "/readyz")
		require.NoError(t, err)
		defer func() { _ = response.Body.Close() }()
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(text)
	}
	code, _ := ready()
	require.Equal(t, http.StatusOK, code)

	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	ctx, hangUp := context.WithTimeout(t.Context(), patience)
	defer hangUp()
	inFlight, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	for _, want := range []healthpb.HealthCheckResponse_ServingStatus{healthpb.HealthCheckResponse_SERVING, healthpb.HealthCheckResponse_NOT_SERVING} {
		told, err := inFlight.Recv()
		require.NoError(t, err)
		require.Equal(t, want, told.GetStatus())
		p.stop()
	}
	code, body := ready()
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Equal(t, "stopping\n", body)
	require.True(t, p.running())
	hangUp()
	require.Zero(t, p.wait(t), "%s", p.stderr.String())
}

// TestServeRefuses: bad input ends the program before any part starts, with one line of
// text.
func TestServeRefuses(t *testing.T) {
	taken := listen(t, "127.0.0.1:0").Addr().String()
	machines := filepath.Join(t.TempDir(), "state.json")
	another := file{simulated: fmt.Sprintf("stateFile: %q", machines)}
	owner, _, _ := serving(t, another)
	httpPort := freePort(t)
	for name, c := range map[string]struct {
		file  file
		words string
	}{
		"the gRPC port is taken":      {file{server: ports(taken, "127.0.0.1:0")}, "server.address: listen tcp " + taken},
		"the HTTP port is taken":      {file{server: ports("127.0.0.1:0", taken)}, "server.httpAddress: listen tcp " + taken},
		"the Redis port is taken":     {file{server: ports("127.0.0.1:0", httpPort), redis: taken}, "redis.embedded.address: listen tcp " + taken},
		"no cluster here":             {file{rest: "kubernetes: {}"}, "kubernetes.kubeconfig: without one the provider uses its Pod's service account"},
		"no such cluster":             {file{rest: "kubernetes: {kubeconfig: /no/such/file}"}, "/no/such/file"},
		"another provider's machines": {another, machines},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, "serve", "--config", c.file.write(t))
			require.Equal(t, exitUsage, p.wait(t))
			require.Contains(t, p.stderr.String(), c.words)
			require.Equal(t, 1, strings.Count(p.stderr.String(), "\n"), p.stderr.String())
			require.Empty(t, p.stdout.String())
			listen(t, httpPort) // ports that were opened are closed
		})
	}
	owner.stop()
	require.Zero(t, owner.wait(t))
	serving(t, another)
}

// TestServeWithCerts: serve and Cluster Autoscaler can use the files of certs.
func TestServeWithCerts(t *testing.T) {
	dir := t.TempDir()
	made := start(t, "certs", "--dir", dir)
	require.Zero(t, made.wait(t), "%s", made.stderr.String())
	path := func(name string) string {
		require.Contains(t, made.stdout.String(), filepath.Join(dir, name)+"\n")
		return filepath.Join(dir, name)
	}
	p, address, _ := serving(t, file{server: ports("127.0.0.1:0", "127.0.0.1:0") +
		fmt.Sprintf(", tls: {certFile: %q, keyFile: %q, clientCAFile: %q}", path("server.crt"), path("server.key"), path("ca.crt"))})

	pair, err := tls.LoadX509KeyPair(path("client.crt"), path("client.key"))
	require.NoError(t, err)
	ca, err := os.ReadFile(path("ca.crt"))
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(ca))
	for name, c := range map[string]struct {
		as   credentials.TransportCredentials
		want codes.Code
	}{
		"Cluster Autoscaler": {credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots, MinVersion: tls.VersionTLS12}), codes.OK},
		"nobody":             {credentials.NewTLS(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}), codes.Unavailable},
		"plaintext":          {insecure.NewCredentials(), codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			groups, err := nodeGroups(t, address, c.as)
			require.Equal(t, c.want, grpcstatus.Code(err), "%v", err)
			if c.want == codes.OK {
				require.Equal(t, []string{"t4", "cpu"}, groups)
			}
		})
	}
	p.stop()
	require.Zero(t, p.wait(t))
	listen(t, address)

	again := start(t, "certs", "--dir", dir)
	require.Equal(t, exitUsage, again.wait(t), "a CA in use is not replaced unless asked for")
	require.Contains(t, again.stderr.String(), "renew")
}

func nodeGroups(t *testing.T, address string, as credentials.TransportCredentials) (ids []string, err error) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(as))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	response, err := proto.NewCloudProviderClient(conn).NodeGroups(ctx, &proto.NodeGroupsRequest{})
	for _, g := range response.GetNodeGroups() {
		ids = append(ids, g.GetId())
	}
	return ids, err
}
