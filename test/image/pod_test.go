//go:build image

package image

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/provider/mtls"
	"gpu-node-provider/test/controlplane"
	"gpu-node-provider/test/testbed/process"
)

const (
	namespace = "gpu-node-provider"
	name      = "gpu-node-provider-0" // of the provider's Pod
	asg       = "train-t4"            // the Auto Scaling group
	redisCA   = "/etc/redis/tls/ca.crt"
	patience  = 2 * time.Minute
)

// pod is the provider's: the root of its container, and what it talks to, all of
// it over TLS. AWS and Redis show certificates of an authority of the test.
type pod struct {
	root
	authority  string // folder
	api        *controlplane.Cluster
	aws        *awstest.Stub
	redis      string // address
	grpc, http string // addresses
}

func newPod(t *testing.T) *pod {
	t.Helper()
	p := &pod{root: newRoot(t), authority: t.TempDir()}
	_, err := mtls.Generate(p.authority, mtls.GenerateOptions{})
	require.NoError(t, err)
	ports, err := process.FreePorts(2)
	require.NoError(t, err)
	p.grpc, p.http = fmt.Sprintf("127.0.0.1:%d", ports[0]), fmt.Sprintf("127.0.0.1:%d", ports[1])
	p.startAPI()
	p.startRedis()
	p.mount(redisCA, p.generated(mtls.CACertFile))
	p.mount("/etc/gpu-node-provider/config/config.yaml", fmt.Appendf(nil, `apiVersion: gpu-node-provider.io/v1
kind: ProviderConfig
server: {address: %q, httpAddress: %q}
kubernetes: {}
cloud: {aws: {region: us-east-1, endpoint: %q, refreshInterval: 1s}}
redis: {addresses: [%q], tls: {caFile: %s}}
nodeGroups: [{id: t4, maxSize: 2, autoScalingGroup: %s, labels: {accelerator: nvidia-tesla-t4}}]
`, p.grpc, p.http, p.startAWS(), p.redis, redisCA, asg))
	return p
}

func (p *pod) generated(file string) []byte {
	p.t.Helper()
	data, err := os.ReadFile(filepath.Join(p.authority, file))
	require.NoError(p.t, err)
	return data
}

// trustAuthority adds the test's authority to the image's bundle of roots.
func (p *pod) trustAuthority() {
	p.t.Helper()
	roots, err := os.ReadFile(p.path(bundle))
	require.NoError(p.t, err)
	p.mount(bundle, append(roots, p.generated(mtls.CACertFile)...))
}

// startAPI starts an API server with the rights of deploy/manifests, and mounts
// the service account.
func (p *pod) startAPI() {
	p.t.Helper()
	binaries, err := filepath.Abs("../../.cache/controlplane")
	require.NoError(p.t, err)
	p.api, err = controlplane.Start(p.t.Context(), controlplane.Options{Binaries: binaries, Dir: p.t.TempDir(), APIOnly: true})
	p.t.Cleanup(p.api.Stop)
	require.NoError(p.t, err)
	_, err = p.api.Kubectl(p.t.Context(), nil, "apply", "--server-side", "-f", "../../deploy/manifests/namespace.yaml", "-f", "../../deploy/manifests/rbac.yaml")
	require.NoError(p.t, err)
	token, err := p.api.Client.CoreV1().ServiceAccounts(namespace).CreateToken(p.t.Context(), "gpu-node-provider", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(p.t, err)
	ca, err := os.ReadFile(p.api.Config.CAFile)
	require.NoError(p.t, err)
	for file, data := range map[string]string{"token": token.Status.Token, "ca.crt": string(ca), "namespace": namespace} {
		p.mount("/var/run/secrets/kubernetes.io/serviceaccount/"+file, []byte(data))
	}
	p.createPod()
}

// createPod makes the provider's Pod by the template of its Deployment. Nothing runs
// it: it stands for the program in the root.
func (p *pod) createPod() {
	p.t.Helper()
	manifest, err := os.ReadFile("../../deploy/manifests/deployment.yaml")
	require.NoError(p.t, err)
	var deployment appsv1.Deployment
	require.NoError(p.t, yaml.UnmarshalStrict(manifest, &deployment))
	template := deployment.Spec.Template
	template.Name = name
	_, err = p.api.Client.CoreV1().Pods(namespace).Create(p.t.Context(), &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}, metav1.CreateOptions{})
	require.NoError(p.t, err)
}

// startRedis starts one that speaks TLS only.
func (p *pod) startRedis() {
	p.t.Helper()
	ports, err := process.FreePorts(1)
	require.NoError(p.t, err)
	p.redis = fmt.Sprintf("127.0.0.1:%d", ports[0])
	dir := p.t.TempDir()
	server, err := process.Start(process.Spec{Name: "redis", Path: "redis-server", LogDir: dir, Args: []string{
		"--bind", "127.0.0.1", "--port", "0", "--tls-port", strconv.Itoa(ports[0]), "--tls-auth-clients", "no", "--save", "", "--dir", dir,
		"--tls-cert-file", filepath.Join(p.authority, mtls.ServerCertFile), "--tls-key-file", filepath.Join(p.authority, mtls.ServerKeyFile),
		"--tls-ca-cert-file", filepath.Join(p.authority, mtls.CACertFile),
	}})
	require.NoError(p.t, err)
	p.t.Cleanup(server.Kill)
	roots := x509.NewCertPool()
	require.True(p.t, roots.AppendCertsFromPEM(p.generated(mtls.CACertFile)))
	client := redis.NewClient(&redis.Options{Addr: p.redis, TLSConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}})
	defer client.Close() //nolint:errcheck // it was for this alone
	require.NoError(p.t, server.Ready(p.t.Context(), patience, func(ctx context.Context) error { return client.Ping(ctx).Err() }))
}

// startAWS puts TLS in front of a stand-in for AWS and returns its URL.
func (p *pod) startAWS() string {
	p.t.Helper()
	p.aws = awstest.NewStub(p.t, awstest.WithClock(time.Now))
	p.aws.CreateGroup(awstest.Group{Name: asg, Max: 2, Desired: 1, Zones: []string{"us-east-1a"}, InstanceType: "g4dn.xlarge"})
	p.aws.Settle()
	behind, err := url.Parse(p.aws.URL())
	require.NoError(p.t, err)
	pair, err := tls.X509KeyPair(p.generated(mtls.ServerCertFile), p.generated(mtls.ServerKeyFile))
	require.NoError(p.t, err)
	front := httptest.NewUnstartedServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(behind) }})
	front.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	front.Config.ErrorLog = zap.NewStdLog(zap.NewNop()) // of refused handshakes
	front.StartTLS()
	p.t.Cleanup(front.Close)
	return front.URL
}

// serve starts the provider.
func (p *pod) serve() *program {
	p.t.Helper()
	address, err := url.Parse(p.api.Config.Host)
	require.NoError(p.t, err)
	host, port, err := net.SplitHostPort(address.Host)
	require.NoError(p.t, err)
	return p.start([]string{
		"POD_NAME=" + name, "KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port,
		"AWS_ACCESS_KEY_ID=testing", "AWS_SECRET_ACCESS_KEY=testing", "AWS_EC2_METADATA_DISABLED=true",
	}, "/gpu-node-provider", "serve", "--config", "/etc/gpu-node-provider/config/config.yaml")
}

// eventually waits until check passes, and no longer than the program runs.
func (p *pod) eventually(server *program, check func() error) {
	p.t.Helper()
	tick, late := time.NewTicker(200*time.Millisecond), time.After(patience)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-server.ended:
			require.FailNow(p.t, "the provider has ended", server.output.String())
		case <-late:
			require.NoError(p.t, err)
		}
	}
}

// ready is nil when /readyz answers 200.
func (p *pod) ready() error {
	request, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, "http://"+p.http+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("/readyz answers %s: %s", response.Status, text)
	}
	return err
}
