//go:build pages

package pages

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gpu-node-provider/provider/checkpoint"
)

// Every block of sh, go and python runs as it is written, page by page, in a copy of the tree.
func TestBlocksRun(t *testing.T) {
	for _, address := range []string{"127.0.0.1:8086", "127.0.0.1:8087", "127.0.0.1:6379"} { // of `make run`
		l, err := net.Listen("tcp", address)
		require.NoError(t, err, "the quick start needs this port: stop what uses it")
		require.NoError(t, l.Close())
	}
	w := newWorkspace(t)
	all := pages(t)
	order := slices.Sorted(maps.Keys(all))
	slices.SortStableFunc(order, func(a, b string) int { // the first page builds the programs
		return strings.Compare(filepath.Dir(a), filepath.Dir(b))
	})
	ran := 0
	for _, path := range order {
		ran += w.page(t, all[path])
	}
	assert.GreaterOrEqual(t, ran, 12)
}

// workspace is a copy of the tree, a Redis, and what a reader has on the PATH and in the environment.
type workspace struct {
	dir         string
	environment []string
	redis       *redis.Client
	pod         checkpoint.PodID
}

func newWorkspace(t *testing.T) *workspace {
	t.Helper()
	w := &workspace{dir: t.TempDir(), pod: checkpoint.PodID{Namespace: "ai-train", Name: "train-0", UID: "9c1e"}}
	for path := range files(t) {
		w.copy(t, path)
	}
	// Instances of an earlier `make run` stay as they are.
	example := filepath.Join(w.dir, "deploy/examples/simulated.yaml")
	text, err := os.ReadFile(example)
	require.NoError(t, err)
	const state = "/tmp/gpu-node-provider.state.json"
	require.Contains(t, string(text), state)
	require.NoError(t, os.WriteFile(example, bytes.ReplaceAll(text, []byte(state), []byte(filepath.Join(w.dir, "state.json"))), 0o600))

	address := startRedis(t)
	w.redis = redis.NewClient(&redis.Options{Addr: address})
	t.Cleanup(func() { _ = w.redis.Close() }) // the server ends too
	cache, err := filepath.Abs(filepath.Join(root, ".cache"))
	require.NoError(t, err)
	path := []string{filepath.Join(w.dir, "bin"), filepath.Join(cache, "controlplane/kubernetes"), filepath.Join(cache, "trainer/bin"), os.Getenv("PATH")}
	w.environment = append(os.Environ(), "PATH="+strings.Join(path, ":"), "REDIS_URL=redis://"+address,
		"POD_NAMESPACE="+w.pod.Namespace, "POD_NAME="+w.pod.Name, "POD_UID="+string(w.pod.UID))
	return w
}

func (w *workspace) copy(t *testing.T, path string) {
	t.Helper()
	from, to := filepath.Join(root, path), filepath.Join(w.dir, path)
	info, err := os.Stat(from)
	require.NoError(t, err)
	if info.IsDir() {
		require.NoError(t, os.MkdirAll(to, 0o755))
		return
	}
	require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
	text, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, text, info.Mode().Perm()|0o600))
}

func startRedis(t *testing.T) (address string) {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address = free.Addr().String()
	require.NoError(t, free.Close())
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	server := exec.CommandContext(t.Context(), "redis-server", "--bind", "127.0.0.1", "--port", port, "--save", "", "--dir", t.TempDir())
	require.NoError(t, server.Start(), "redis-server is needed: apt-get install redis-server")
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() }) // it was killed
	client := redis.NewClient(&redis.Options{Addr: address})
	defer func() { _ = client.Close() }() // the server ends too
	require.Eventually(t, func() bool { return client.Ping(t.Context()).Err() == nil }, 30*time.Second, 50*time.Millisecond)
	return address
}

// page runs the blocks of a page, and returns how many. What they leave behind goes, but for the programs.
func (w *workspace) page(t *testing.T, p *page) (ran int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var stop []func()
	defer func() {
		cancel()
		for _, f := range stop {
			f()
		}
		w.clean(t)
	}()
	if p.path == protocolPage {
		require.NoError(t, w.redis.Set(ctx, checkpoint.RequestKey("checkpoint", w.pod), checkpoint.Request{ID: "k3vq7mzd2p5x", RequestedAt: w.redis.Time(ctx).Val()}.Encode(), time.Hour).Err())
	}
	answered, printed := false, ""
	for _, b := range p.blocks {
		language, info, _ := strings.Cut(b.info, " ")
		if info == "output" {
			assert.Equal(t, b.text, printed, "%s:%d: what the block before it prints", p.path, b.line)
		}
		if !slices.Contains([]string{"sh", "go", "python"}, language) {
			continue
		}
		ran++
		t.Logf("%s:%d: %s", p.path, b.line, b.text)
		if info == "background" {
			stop = append(stop, w.start(ctx, t, b))
			continue
		}
		limit, done := context.WithTimeout(ctx, 15*time.Minute)
		output, err := w.command(limit, t, language, b.text).CombinedOutput()
		done()
		printed = string(output)
		require.NoError(t, err, "%s:%d\n%s\n%s", p.path, b.line, b.text, output)
		if p.path == protocolPage {
			answered = w.acknowledged(ctx, t, b) == "k3vq7mzd2p5x" || answered
		}
	}
	switch p.path {
	case protocolPage:
		assert.True(t, answered, "no block answers the request")
	case "README.md":
		assert.Equal(t, 2, target(ctx, t, "t4"), "the page says that 2 of 4 nodes are granted")
	}
	return ran
}

// command runs a block in the copy of the tree.
func (w *workspace) command(ctx context.Context, t *testing.T, language, text string) *exec.Cmd {
	t.Helper()
	var c *exec.Cmd
	switch language {
	case "go":
		require.NoError(t, os.MkdirAll(filepath.Join(w.dir, "example"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(w.dir, "example/main.go"), []byte(text), 0o600))
		c = exec.CommandContext(ctx, "go", "run", "./example")
	case "python":
		c = exec.CommandContext(ctx, "python3", "-c", text)
		c.Path = w.python(t)
	default:
		c = exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", text)
	}
	c.Dir, c.Env = w.dir, w.environment
	return c
}

// python is the one with redis-py.
func (w *workspace) python(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(root, ".cache/trainer/bin/python"))
	require.NoError(t, err)
	return path
}

// start runs a block until the page ends, and waits until the provider is ready.
func (w *workspace) start(ctx context.Context, t *testing.T, b block) (stop func()) {
	t.Helper()
	var output bytes.Buffer
	c := w.command(context.WithoutCancel(ctx), t, "sh", b.text)
	c.Stdout, c.Stderr = &output, &output
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // make and what it runs
	require.NoError(t, c.Start())
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	stop = func() {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGTERM) // it may have ended
		err := <-ended
		if t.Failed() {
			t.Logf("%s\n%s%v", b.text, output.String(), err)
		}
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	limit, done := context.WithTimeout(ctx, 15*time.Minute)
	defer done()
	for {
		select {
		case err := <-ended:
			t.Fatalf("%s ended: %v\n%s", b.text, err, output.String())
		case <-limit.Done():
			stop()
			t.Fatalf("%s is not ready\n%s", b.text, output.String())
		case <-tick.C:
		}
		if response, err := http.Get("http://127.0.0.1:8087/readyz"); err == nil {
			_ = response.Body.Close() // only the code counts
			if response.StatusCode == http.StatusOK {
				return stop
			}
		}
	}
}

// acknowledged checks what a block of the protocol's page has written, removes it, and returns the request that it answers.
func (w *workspace) acknowledged(ctx context.Context, t *testing.T, b block) (request string) {
	t.Helper()
	key := checkpoint.AckKey("checkpoint", w.pod)
	raw, err := w.redis.Get(ctx, key).Bytes()
	require.NoError(t, err, "%d: no acknowledgement", b.line)
	ack, err := checkpoint.DecodeAck(raw)
	require.NoError(t, err, "%d: %s", b.line, raw)
	assert.WithinDuration(t, w.redis.Time(ctx).Val(), ack.SavedAt, 5*time.Minute, "%d: %s", b.line, raw)
	assert.Positive(t, w.redis.TTL(ctx, key).Val(), "%d: it never expires", b.line)
	require.NoError(t, w.redis.Del(ctx, key).Err())
	return ack.Request
}

// target is a group's target size, as the running provider reports it.
func target(ctx context.Context, t *testing.T, group string) int {
	t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:8087/report.json", nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	var report struct {
		NodeGroups []struct {
			ID     string
			Target int
		}
	}
	require.NoError(t, json.NewDecoder(response.Body).Decode(&report))
	for _, g := range report.NodeGroups {
		if g.ID == group {
			return g.Target
		}
	}
	return -1
}

// clean removes what is in the copy and not in the tree.
func (w *workspace) clean(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir(w.dir)
	require.NoError(t, err)
	for _, e := range entries {
		if e.Name() != "bin" && !files(t)[e.Name()] {
			require.NoError(t, os.RemoveAll(filepath.Join(w.dir, e.Name())))
		}
	}
}
