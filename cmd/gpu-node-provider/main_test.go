package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"gpu-node-provider/cloud/logkey"
	"gpu-node-provider/test/testbed/process"
)

// asProgram in its environment makes the test binary run as the program.
const asProgram = "GPU_NODE_PROVIDER_IS_THE_PROGRAM"

// TestMain fails when a command leaves goroutines behind.
func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// patience limits every wait for a condition. It is long because it only matters when a test
// fails.
const patience = 20 * time.Second

// program is a running command.
type program struct {
	stdout, stderr output
	stop           func() // as a signal does
	code           chan int
}

// start runs a command until it or the test ends.
func start(t *testing.T, args ...string) *program {
	t.Helper()
	p := &program{}
	p.run(t, &p.stdout, args...)
	return p
}

func (p *program) run(t *testing.T, stdout io.Writer, args ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	p.stop, p.code = cancel, make(chan int, 1)
	go func() { p.code <- run(ctx, args, stdout, &p.stderr) }()
	t.Cleanup(func() {
		cancel()
		p.wait(t)
	})
}

// startProgram runs a command in a separate process.
func startProgram(t *testing.T, args ...string) *program {
	t.Helper()
	p := &program{code: make(chan int, 1)}
	c := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0], args...)
	c.Env = append(os.Environ(), asProgram+"=1")
	c.Stdout, c.Stderr = &p.stdout, &p.stderr
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, c.Start())
	p.stop = func() { _ = c.Process.Signal(syscall.SIGTERM) } // fails when the process has ended
	go func() {
		_ = c.Wait() // the exit code is read below
		p.code <- c.ProcessState.ExitCode()
	}()
	t.Cleanup(func() {
		p.stop()
		p.wait(t)
	})
	return p
}

// wait waits for the end and returns the exit code.
func (p *program) wait(t *testing.T) int {
	t.Helper()
	select {
	case code := <-p.code:
		p.code <- code // for the next call
		return code
	case <-time.After(patience):
		require.FailNow(t, "the command does not end", "stdout:\n%s\nstderr:\n%s", p.stdout.String(), p.stderr.String())
		return -1
	}
}

func (p *program) running() bool { return len(p.code) == 0 }

// output collects what a command writes.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// eventually polls until it holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	require.Eventually(t, holds, patience, 5*time.Millisecond, what)
}

// file is a node group file; its fields are YAML in flow style.
type file struct {
	server, simulated, redis string
	rest                     string // more sections
}

// write writes the file to a new directory.
func (f file) write(t *testing.T) string {
	t.Helper()
	if f.server == "" {
		f.server = ports("127.0.0.1:0", "127.0.0.1:0")
	}
	if f.redis == "" {
		f.redis = "127.0.0.1:0"
	}
	path := filepath.Join(t.TempDir(), "node-groups.yaml")
	text := fmt.Sprintf(`apiVersion: gpu-node-provider.io/v1
kind: ProviderConfig
server: {%s}
cloud: {simulated: {launchDelay: 0s, bootDelay: 0s, devicePluginDelay: 0s, %s}}
redis: {embedded: {address: %q}}
%s
nodeGroups:
- {id: t4, maxSize: 4, labels: {accelerator: nvidia-tesla-t4}, capacity: {cpu: 4, memory: 16Gi, nvidia.com/gpu: 1}}
- {id: cpu, maxSize: 2, capacity: {cpu: 4, memory: 16Gi}}
`, f.server, f.simulated, f.redis, f.rest)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func ports(grpc, http string) string { return fmt.Sprintf("address: %q, httpAddress: %q", grpc, http) }

// freePort returns an address with a free port.
func freePort(t *testing.T) string {
	t.Helper()
	ports, err := process.FreePorts(1)
	require.NoError(t, err)
	return fmt.Sprintf("127.0.0.1:%d", ports[0])
}

func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// serving starts a provider and waits until it has logged its addresses.
func serving(t *testing.T, f file) (p *program, grpc, http string) {
	t.Helper()
	p = start(t, "serve", "--config", f.write(t))
	eventually(t, "it serves", func() bool {
		for line := range strings.Lines(p.stderr.String()) {
			entry := map[string]any{}
			if json.Unmarshal([]byte(line), &entry) == nil && entry["msg"] == "serving" {
				grpc, _ = entry[logkey.GRPCAddress].(string)
				http, _ = entry[logkey.HTTPAddress].(string)
			}
		}
		return grpc != "" || !p.running()
	})
	require.True(t, p.running(), "%s", p.stderr.String())
	return p, grpc, http
}
