package testbed

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"gpu-node-provider/provider/report"
	"gpu-node-provider/test/testbed/process"
)

// Config is a node group file, but for the addresses, which the bed puts in.
// The strings are YAML in flow style.
type Config struct {
	Simulated  string // bootDelay: 5s, …
	NodeGroups []string
	Quotas     []string
	Checkpoint string // {askAfter: 5s, …}; the defaults when empty
	Redis      string // {addresses: […], …}; the bed's own server when empty
}

// Pool is a node group of one-GPU nodes with a label accelerator. more holds
// further fields.
func Pool(id, accelerator string, maxSize int, more ...string) string {
	fields := append([]string{
		"id: " + id, fmt.Sprintf("maxSize: %d", maxSize), "instanceType: g4dn.xlarge", "hourlyPrice: 0.526",
		fmt.Sprintf("labels: {accelerator: %s}", accelerator),
		"taints: [{key: nvidia.com/gpu, value: present, effect: NoSchedule}]",
		"capacity: {cpu: 4, memory: 16Gi, nvidia.com/gpu: 1}",
	}, more...)
	return "{" + strings.Join(fields, ", ") + "}"
}

// replica is one process of the provider, and the Pod that stands for it.
type replica struct {
	pod       string
	addresses [3]string // by grpcPort, httpPort, webhookPort
	config    string    // its node group file
	process   *process.Process
}

// name is that of its process and log.
func (r *replica) name() string { return strings.TrimPrefix(r.pod, "gpu-node-") }

const (
	grpcPort = iota
	httpPort
	webhookPort
)

const providerNamespace = "gpu-node-provider"

func (b *Bed) write(c Config) error {
	for _, r := range b.replicas {
		if err := b.writeFor(r, c); err != nil {
			return err
		}
	}
	return nil
}

func (b *Bed) writeFor(r *replica, c Config) error {
	list := func(entries []string) string { return "[" + strings.Join(entries, ",\n  ") + "]" }
	text := fmt.Sprintf(`apiVersion: gpu-node-provider.io/v1
kind: ProviderConfig
server: {address: %q, httpAddress: %q%s}
kubernetes: {kubeconfig: %q, namespace: %s}
cloud: %s
redis: %s
checkpoint: %s
quotas: %s
nodeGroups: %s
`, r.addresses[grpcPort], r.addresses[httpPort], b.tlsFields(r), b.file("provider.conf"), providerNamespace, b.cloud(c),
		cmp.Or(c.Redis, fmt.Sprintf("{addresses: [%q]}", b.redisAddress)), cmp.Or(c.Checkpoint, "{}"), list(c.Quotas), list(c.NodeGroups))
	// Renamed into place, so that the provider never reads half of it.
	if err := os.WriteFile(r.config+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(r.config+".new", r.config)
}

func (b *Bed) cloud(c Config) string {
	if b.AWS != nil {
		return fmt.Sprintf("{aws: {region: %s, endpoint: %q, refreshInterval: 2s}}", awsRegion, b.AWS.Endpoint)
	}
	return fmt.Sprintf("{simulated: {stateFile: %q, %s}}", b.file("cloud.json"), c.Simulated)
}

func (b *Bed) file(name string) string { return filepath.Join(b.Dir, name) }

// prepareProvider makes the replicas' Pods, files and addresses, and the Services
// before them.
func (b *Bed) prepareProvider(ctx context.Context) error {
	objects, err := b.manifests("manifests/deployment.yaml", "manifests/service.yaml")
	if err != nil {
		return err
	}
	if err := b.certificates(ctx); err != nil {
		return err
	}
	for n := range max(1, b.Replicas) {
		ports, err := process.FreePorts(3)
		if err != nil {
			return err
		}
		r := &replica{pod: fmt.Sprintf("gpu-node-provider-%d", n), config: b.file(fmt.Sprintf("config-%d.yaml", n))}
		for which, port := range ports {
			r.addresses[which] = fmt.Sprintf("127.0.0.1:%d", port)
		}
		if err := b.createPod(ctx, objects, r.pod); err != nil {
			return err
		}
		b.replicas = append(b.replicas, r)
	}
	for service, of := range map[string]struct {
		address *string
		port    int
	}{"gpu-node-provider": {&b.grpc, grpcPort}, "gpu-node-provider-http": {&b.http, httpPort}, "gpu-node-provider-webhook": {&b.webhook, webhookPort}} {
		if *of.address, err = b.startService(b.running, objects, service, of.port); err != nil {
			return err
		}
	}
	return b.write(b.Config)
}

// createPod makes a Pod by the Deployment's template. No scheduler places it: it
// stands for a process of this machine.
func (b *Bed) createPod(ctx context.Context, objects []*unstructured.Unstructured, name string) error {
	deployment, err := named(objects, "Deployment", "gpu-node-provider")
	if err != nil {
		return err
	}
	template, _, err := unstructured.NestedMap(deployment.Object, "spec", "template")
	if err != nil {
		return fmt.Errorf("deploy/manifests/deployment.yaml: %w", err)
	}
	pod := &unstructured.Unstructured{Object: template}
	pod.SetAPIVersion("v1")
	pod.SetKind("Pod")
	pod.SetName(name)
	pod.SetNamespace(providerNamespace)
	if err := unstructured.SetNestedField(pod.Object, "nobody", "spec", "schedulerName"); err != nil {
		return err
	}
	return b.apply(ctx, pod)
}

// StartProvider starts the replicas that do not run, and waits until one serves.
func (b *Bed) StartProvider(ctx context.Context) error {
	for _, r := range b.replicas {
		if r.process != nil && !isClosed(r.process.Ended()) {
			continue
		}
		var err error
		r.process, err = process.Start(process.Spec{
			Name: r.name(), Path: b.binaries.provider, Args: []string{"serve", "--config", r.config},
			Env: append(b.awsEnvironment(), "POD_NAME="+r.pod), LogDir: b.Logs(), Append: true,
		})
		if err != nil {
			return err
		}
		if err := r.process.Ready(ctx, startTimeout, func(ctx context.Context) error {
			_, err := fetch(ctx, "http://"+r.addresses[httpPort]+"/readyz")
			return err
		}); err != nil {
			return err
		}
	}
	return b.replicas[0].process.Ready(ctx, startTimeout, func(ctx context.Context) error { return b.get(ctx, "/readyz", nil) })
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Reconfigure puts another node group file in place of the one in force.
func (b *Bed) Reconfigure(c Config) error { return b.write(c) }

// KillProvider ends all replicas as a crash would.
func (b *Bed) KillProvider() {
	for _, r := range b.replicas {
		r.process.Kill()
	}
}

// Leader is the name of the Pod that the Service finds; empty when it finds none.
func (b *Bed) Leader(ctx context.Context) (string, error) {
	pods, err := b.Cluster.Client.CoreV1().Pods(providerNamespace).List(ctx, metav1.ListOptions{LabelSelector: "gpu-node-provider.io/leader=true"})
	if err != nil || len(pods.Items) == 0 {
		return "", err
	}
	if len(pods.Items) > 1 {
		return "", fmt.Errorf("%d Pods carry the leader's label", len(pods.Items))
	}
	return pods.Items[0].Name, nil
}

// KillReplica ends one replica as a crash would.
func (b *Bed) KillReplica(pod string) error {
	for _, r := range b.replicas {
		if r.pod == pod {
			r.process.Kill()
			return nil
		}
	}
	return fmt.Errorf("no replica %q", pod)
}

// ProviderMemory is the provider's resident memory in MiB, from Linux's /proc.
func (b *Bed) ProviderMemory() (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.replicas[0].process.PID()))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		var kib float64
		if n, _ := fmt.Sscanf(line, "VmRSS: %f kB", &kib); n == 1 {
			return kib / 1024, nil
		}
	}
	return 0, fmt.Errorf("/proc tells no VmRSS")
}

// Report is what the provider says of itself.
func (b *Bed) Report(ctx context.Context) (r report.Provider, err error) {
	return r, b.get(ctx, "/report.json", &r)
}

func (b *Bed) get(ctx context.Context, path string, into any) error {
	text, err := fetch(ctx, "http://"+b.http+path)
	if err != nil || into == nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// fetch reads an HTTP endpoint that says 200.
func fetch(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s says %s", url, response.Status)
	}
	return io.ReadAll(response.Body)
}

// ConfigFile is a replica's node group file, by the name of its Pod; the first one's
// when that is empty.
func (b *Bed) ConfigFile(pod string) string {
	for _, r := range b.replicas {
		if r.pod == pod || pod == "" {
			return r.config
		}
	}
	return ""
}

// HTTP is the address of the provider's page and metrics.
func (b *Bed) HTTP() string { return b.http }
