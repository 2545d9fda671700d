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

	"gpu-node-provider/provider"
	"gpu-node-provider/test/process"
)

// Config is a node group file, but for the addresses, which the bed puts in.
// The strings are YAML in flow style.
type Config struct {
	Simulated  string // bootDelay: 5s, …
	NodeGroups []string
	Quotas     []string
	Checkpoint string // {askAfter: 5s, …}; the defaults when empty
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

func (b *Bed) write(c Config) error {
	list := func(entries []string) string { return "[" + strings.Join(entries, ",\n  ") + "]" }
	text := fmt.Sprintf(`apiVersion: gpu-node-provider.io/v1
kind: ProviderConfig
server: {address: %q, httpAddress: %q%s}
kubernetes: {kubeconfig: %q, namespace: gpu-node-provider}
cloud: {simulated: {stateFile: %q, %s}}
redis: {addresses: [%q]}
checkpoint: %s
quotas: %s
nodeGroups: %s
`, b.grpc, b.http, b.tlsFields(), b.file("provider.conf"), b.file("cloud.json"), c.Simulated, b.redisAddress, cmp.Or(c.Checkpoint, "{}"), list(c.Quotas), list(c.NodeGroups))
	// Renamed into place, so that the provider never reads half of it.
	if err := os.WriteFile(b.file("config.yaml.new"), []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(b.file("config.yaml.new"), b.file("config.yaml"))
}

func (b *Bed) file(name string) string { return filepath.Join(b.Dir, name) }

// StartProvider starts the provider, again perhaps, and waits until it serves.
func (b *Bed) StartProvider(ctx context.Context) (err error) {
	if b.grpc == "" {
		ports, err := process.FreePorts(3)
		if err != nil {
			return err
		}
		b.webhook = fmt.Sprintf("127.0.0.1:%d", ports[2])
		if err := b.certificates(ctx); err != nil {
			return err
		}
		b.grpc, b.http = fmt.Sprintf("127.0.0.1:%d", ports[0]), fmt.Sprintf("127.0.0.1:%d", ports[1])
		if err := b.write(b.Config); err != nil {
			return err
		}
	}
	b.provider, err = process.Start(process.Spec{
		Name: "provider", Path: b.binaries.provider, Args: []string{"serve", "--config", b.file("config.yaml")}, LogDir: b.Logs(), Append: true,
	})
	if err != nil {
		return err
	}
	return b.provider.Ready(ctx, startTimeout, func(ctx context.Context) error { return b.get(ctx, "/readyz", nil) })
}

// Reconfigure puts another node group file in place of the one in force.
func (b *Bed) Reconfigure(c Config) error { return b.write(c) }

// KillProvider ends it as a crash would.
func (b *Bed) KillProvider() { b.provider.Kill() }

// ProviderMemory is the provider's resident memory in MiB, from Linux's /proc.
func (b *Bed) ProviderMemory() (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.provider.PID()))
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
func (b *Bed) Report(ctx context.Context) (r provider.Report, err error) {
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

// HTTP is the address of the provider's page and metrics.
func (b *Bed) HTTP() string { return b.http }
