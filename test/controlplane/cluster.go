package controlplane

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"gpu-node-provider/test/testbed/process"
)

// Options say what to start.
type Options struct {
	// Binaries is the folder that `make controlplane` has filled.
	Binaries string
	// Dir takes data, certificates and logs. It must exist.
	Dir string
	// KEDA starts its operator and metrics adapter too.
	KEDA bool
	// APIOnly starts etcd and the API server, and nobody who would act on what is
	// in them.
	APIOnly bool
}

// Cluster is a control plane that runs.
type Cluster struct {
	Options
	// Kubeconfig is the file of an administrator.
	Kubeconfig string
	Config     *rest.Config
	Client     kubernetes.Interface

	pki       string
	logs      string
	ports     ports
	api       string            // URL
	tokens    map[string]string // by user
	processes []*process.Process
}

type ports struct {
	etcd, peer, api, manager, scheduler, kwok int
	probe, metrics, metricsService            int // KEDA's operator
	adapter, adapterMetrics                   int
}

func freePorts() (p ports, err error) {
	all := []*int{
		&p.etcd, &p.peer, &p.api, &p.manager, &p.scheduler, &p.kwok,
		&p.probe, &p.metrics, &p.metricsService, &p.adapter, &p.adapterMetrics,
	}
	free, err := process.FreePorts(len(all))
	if err != nil {
		return p, err
	}
	for n := range all {
		*all[n] = free[n]
	}
	return p, nil
}

// The users that the API server knows by a token.
const (
	admin          = "admin"
	administrators = "system:masters"
	managerUser    = "system:kube-controller-manager"
	schedulerUser  = "system:kube-scheduler"
)

// startTimeout leaves room for several clusters that start on two cores.
const startTimeout = 2 * time.Minute

// Built says what is missing of the binaries, and how to get it.
func Built(folder string) error {
	for _, file := range []string{"etcd/server", "kubernetes/kube-apiserver", "kwok/kwok", "keda/operator"} {
		if _, err := os.Stat(filepath.Join(folder, file)); err != nil {
			return fmt.Errorf("the control plane is not built: %w; run `make controlplane`", err)
		}
	}
	return nil
}

// Start starts a cluster and waits until all its parts are ready. Stop must be
// called, also after an error.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	c := &Cluster{
		Options: o, Kubeconfig: filepath.Join(o.Dir, "kubeconfig"),
		pki: filepath.Join(o.Dir, "pki"), logs: filepath.Join(o.Dir, "logs"), tokens: map[string]string{},
	}
	if err := Built(o.Binaries); err != nil {
		return c, err
	}
	var err error
	if c.ports, err = freePorts(); err != nil {
		return c, err
	}
	c.api = fmt.Sprintf("https://127.0.0.1:%d", c.ports.api)
	for _, folder := range []string{c.pki, c.logs} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return c, err
		}
	}
	steps := []func(context.Context) error{c.credentials, c.etcd, c.apiServer}
	if !o.APIOnly {
		steps = append(steps, c.controllers, c.kwok)
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return c, err
		}
	}
	if o.KEDA {
		return c, c.keda(ctx)
	}
	return c, nil
}

// Stop ends every process at once, the last started first: nothing of a cluster
// is kept, so nothing has to be put in order.
func (c *Cluster) Stop() {
	for _, p := range slices.Backward(c.processes) {
		p.Kill()
	}
	c.processes = nil
}

// Logs is the folder of the log files.
func (c *Cluster) Logs() string { return c.logs }

func (c *Cluster) run(name, path string, env []string, args ...string) (*process.Process, error) {
	p, err := process.Start(process.Spec{
		Name: name, Path: filepath.Join(c.Binaries, path), Args: args, Env: env, LogDir: c.logs, WorkDir: c.Dir,
	})
	if err != nil {
		return nil, err
	}
	c.processes = append(c.processes, p)
	return p, nil
}

func (c *Cluster) file(name string) string { return filepath.Join(c.pki, name) }

func (c *Cluster) credentials(context.Context) error {
	ca, err := newAuthority(c.pki, "ca")
	if err != nil {
		return err
	}
	proxy, err := newAuthority(c.pki, "front-proxy-ca")
	if err != nil {
		return err
	}
	err = errors.Join(
		ca.issue("apiserver", "kube-apiserver", "kubernetes", "kubernetes.default", "kubernetes.default.svc"),
		ca.issue("keda", "keda", "keda-metrics-apiserver.keda.svc", "keda-operator.keda.svc"),
		proxy.issue("front-proxy-client", "front-proxy-client"),
		newKeyPair(c.pki, "service-accounts"),
	)
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, user := range []string{admin, managerUser, schedulerUser} {
		c.tokens[user] = rand.Text()
		group := ""
		if user == admin {
			group = administrators
		}
		fmt.Fprintf(&lines, "%s,%s,%s,%s\n", c.tokens[user], user, user, group)
	}
	if err := os.WriteFile(c.file("tokens.csv"), []byte(lines.String()), 0o600); err != nil {
		return err
	}
	return errors.Join(
		c.WriteKubeconfig(c.Kubeconfig, c.tokens[admin]),
		c.WriteKubeconfig(c.file("manager.conf"), c.tokens[managerUser]),
		c.WriteKubeconfig(c.file("scheduler.conf"), c.tokens[schedulerUser]),
	)
}

// WriteKubeconfig writes a kubeconfig for the holder of a token.
func (c *Cluster) WriteKubeconfig(path, token string) error {
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: c.api, CertificateAuthority: c.file("ca.crt")}
	config.AuthInfos["test"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	config.CurrentContext = "test"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

func (c *Cluster) etcd(ctx context.Context) error {
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", c.ports.etcd), fmt.Sprintf("http://127.0.0.1:%d", c.ports.peer)
	p, err := c.run("etcd", "etcd/server", nil,
		"--name=test", "--data-dir="+filepath.Join(c.Dir, "etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=test="+peer)
	if err != nil {
		return err
	}
	return p.Ready(ctx, startTimeout, func(ctx context.Context) error { return answers(ctx, http.DefaultClient, client+"/health") })
}

func (c *Cluster) apiServer(ctx context.Context) error {
	p, err := c.run("kube-apiserver", "kubernetes/kube-apiserver", nil,
		fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", c.ports.etcd), fmt.Sprintf("--secure-port=%d", c.ports.api),
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged=true",
		"--authorization-mode=Node,RBAC", "--token-auth-file="+c.file("tokens.csv"), "--client-ca-file="+c.file("ca.crt"),
		"--tls-cert-file="+c.file("apiserver.crt"), "--tls-private-key-file="+c.file("apiserver.key"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+c.file("service-accounts.pub"), "--service-account-signing-key-file="+c.file("service-accounts.key"),
		"--requestheader-client-ca-file="+c.file("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file="+c.file("front-proxy-client.crt"), "--proxy-client-key-file="+c.file("front-proxy-client.key"),
		"--v=1")
	if err != nil {
		return err
	}
	if c.Config, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig); err != nil {
		return err
	}
	c.Config.QPS, c.Config.Burst = 200, 400
	if c.Client, err = kubernetes.NewForConfig(c.Config); err != nil {
		return err
	}
	return p.Ready(ctx, startTimeout, func(ctx context.Context) error {
		return c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// answers asks an HTTP endpoint for 200.
func answers(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s says %s", url, response.Status)
	}
	return nil
}
