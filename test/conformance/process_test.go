package conformance

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud/logkey"
	testprocess "gpu-node-provider/test/testbed/process"
)

// process is the program, running.
type process struct {
	cmd            *exec.Cmd
	stdout, stderr output
	ended          chan struct{} // closed when it has
}

// start runs the program until it ends, or the test does.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(binary, args...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	p.cmd.SysProcAttr = testprocess.EndWithParent()
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // how it ended is in ProcessState
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s\nstdout:\n%s\nstderr:\n%s", strings.Join(p.cmd.Args, " "), p.stdout.String(), p.stderr.tail(20_000))
		}
	})
	return p
}

// finish runs the program to its end.
func finish(t *testing.T, args ...string) *process {
	t.Helper()
	p := start(t, args...)
	p.wait(t)
	return p
}

// wait waits for the end and returns the exit code.
func (p *process) wait(t *testing.T) int {
	t.Helper()
	eventually(t, "the process ends", func() bool {
		select {
		case <-p.ended:
			return true
		default:
			return false
		}
	})
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// kill ends the process as kill -9 does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended by itself
	<-p.ended
}

func (p *process) signal(t *testing.T, s os.Signal) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(s))
}

// addresses waits until the program has logged its ports.
func (p *process) addresses(t *testing.T) (grpc, http string) {
	t.Helper()
	eventually(t, "the program serves", func() bool {
		if !p.running() {
			require.FailNow(t, "the program ended instead of serving", p.stderr.String())
		}
		return len(p.logged(t, "serving")) > 0
	})
	entry := p.logged(t, "serving")[0]
	grpc, _ = entry[logkey.GRPCAddress].(string)
	http, _ = entry[logkey.HTTPAddress].(string)
	return grpc, http
}

// told waits for the first log entry with the message and returns all that are
// there. Log lines come through a pipe, later perhaps than the answer or the
// metric that goes with them.
func (p *process) told(t *testing.T, message string) []map[string]any {
	t.Helper()
	eventually(t, "the log says "+message, func() bool { return len(p.logged(t, message)) > 0 })
	return p.logged(t, message)
}

// logged returns the log entries with the message so far, oldest first.
func (p *process) logged(t *testing.T, message string) []map[string]any {
	t.Helper()
	var found []map[string]any
	for line := range strings.Lines(p.stderr.String()) {
		entry := map[string]any{}
		if json.Unmarshal([]byte(line), &entry) == nil && entry["msg"] == message {
			found = append(found, entry)
		}
	}
	return found
}

// output collects what a process writes.
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

func (o *output) tail(most int) string {
	text := o.String()
	return text[max(0, len(text)-most):]
}
