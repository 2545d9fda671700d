package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// binary is built once, as it is for an image.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "checkpoint-ack")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "checkpoint-ack")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		panic(string(out))
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

type result struct {
	code           int
	stdout, stderr string
	took           time.Duration
}

// call runs the binary in an environment that holds nothing but variables, which
// replace the usual ones; an empty one is not set.
func call(t *testing.T, addr string, variables map[string]string, args ...string) result {
	t.Helper()
	command := exec.CommandContext(t.Context(), binary, args...)
	environment := map[string]string{
		"REDIS_URL": "redis://" + addr, "POD_NAMESPACE": "ns", "POD_NAME": "train-0", "POD_UID": "uid-0",
	}
	for name, value := range variables {
		environment[name] = value
	}
	command.Env = []string{}
	for name, value := range environment {
		if value != "" {
			command.Env = append(command.Env, name+"="+value)
		}
	}
	var stdout, stderr strings.Builder
	command.Stdout, command.Stderr = &stdout, &stderr
	start := time.Now()
	err := command.Run()
	r := result{took: time.Since(start), stdout: stdout.String(), stderr: stderr.String()}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		r.code = exit.ExitCode()
	} else {
		require.NoError(t, err)
	}
	return r
}

// server is a real redis-server.
type server struct {
	*redis.Client
	addr string
	port string
	kill func()
}

func startServer(t *testing.T, port string, args ...string) *server {
	t.Helper()
	if port == "" {
		port = freePort(t)
	}
	command := exec.Command("redis-server", append([]string{"--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", t.TempDir()}, args...)...)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	s := &server{addr: "127.0.0.1:" + port, port: port, kill: func() { _ = command.Process.Kill(); _ = command.Wait() }}
	s.Client = redis.NewClient(&redis.Options{Addr: s.addr, Protocol: 2, DisableIdentity: true})
	t.Cleanup(func() { _ = s.Close(); s.kill() })
	var said strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), "Ready to accept connections") {
			go io.Copy(io.Discard, out) //nolint:errcheck // ends with the process
			return s
		}
	}
	require.FailNow(t, "redis-server did not start", said.String())
	return nil
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close() //nolint:errcheck // nothing was written
	_, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	return port
}

func ack(t *testing.T, raw string) map[string]any {
	t.Helper()
	var fields map[string]any
	require.NoError(t, json.Unmarshal([]byte(raw), &fields), raw)
	return fields
}

func savedAt(t *testing.T, raw string) time.Time {
	t.Helper()
	text, ok := ack(t, raw)["savedAt"].(string)
	require.True(t, ok, raw)
	at, err := time.Parse(time.RFC3339, text)
	require.NoError(t, err)
	return at
}

func TestBinaryIsSmallStaticAndQuick(t *testing.T) {
	info, err := os.Stat(binary)
	require.NoError(t, err)
	assert.LessOrEqual(t, info.Size(), int64(10<<20))
	t.Logf("%.1f MiB", float64(info.Size())/(1<<20))
	s := startServer(t, "")
	best := time.Hour
	for range 10 {
		r := call(t, s.addr, nil)
		require.Zero(t, r.code, r.stderr)
		best = min(best, r.took)
	}
	assert.Less(t, best, 50*time.Millisecond)
	t.Log(best)
}

func TestAcknowledges(t *testing.T) {
	s := startServer(t, "")
	subscription := s.Subscribe(t.Context(), "checkpoint:acks")
	defer subscription.Close() //nolint:errcheck // nothing is left to do
	_, err := subscription.Receive(t.Context())
	require.NoError(t, err)
	before := s.Time(t.Context()).Val()
	r := call(t, s.addr, nil, "--step", "1200", "--uri", `s3://b/"k"?a=1&b=<é>`, "--request", "r1")
	assert.Equal(t, result{took: r.took}, r, "says nothing when all is well")

	key := "checkpoint:ack:ns:train-0:uid-0"
	raw := s.Get(t.Context(), key).Val()
	assert.WithinRange(t, savedAt(t, raw), before.Add(-time.Millisecond), s.Time(t.Context()).Val())
	assert.Contains(t, raw, "?a=1&b=<é>", "as people read it")
	fields := ack(t, raw)
	delete(fields, "savedAt")
	assert.Equal(t, map[string]any{"v": 1.0, "request": "r1", "step": 1200.0, "uri": `s3://b/"k"?a=1&b=<é>`}, fields)
	assert.InDelta(t, 7*24*3600, s.TTL(t.Context(), key).Val().Seconds(), 10)
	message, err := subscription.ReceiveMessage(t.Context())
	require.NoError(t, err)
	assert.Equal(t, key, message.Payload)

	require.Zero(t, call(t, s.addr, map[string]string{"CHECKPOINT_PREFIX": "a:b"}, "--step=0").code)
	fields = ack(t, s.Get(t.Context(), "a:b:ack:ns:train-0:uid-0").Val())
	delete(fields, "savedAt")
	assert.Equal(t, map[string]any{"v": 1.0, "step": 0.0}, fields, "no request, no uri; the first step is one")
}

// request=$(checkpoint-ack requested) || true; checkpoint-ack --request "$request"
func TestEmptyRequestIsNone(t *testing.T) {
	s := startServer(t, "")
	require.Zero(t, call(t, s.addr, nil, "--request", "").code)
	assert.NotContains(t, ack(t, s.Get(t.Context(), "checkpoint:ack:ns:train-0:uid-0").Val()), "request")
}

func TestRequested(t *testing.T) {
	s := startServer(t, "")
	key := "checkpoint:request:ns:train-0:uid-0"
	for _, nothing := range []string{"", "r1", `{"v":1}`, `{"v":1,"id":7}`, `[]`, `{"id":"r1"}` + strings.Repeat(" ", 4096)} {
		if nothing != "" {
			require.NoError(t, s.Set(t.Context(), key, nothing, 0).Err())
		}
		r := call(t, s.addr, nil, "requested")
		assert.Equal(t, result{code: 3, took: r.took}, r, nothing)
	}
	require.NoError(t, s.Del(t.Context(), key).Err())
	require.NoError(t, s.LPush(t.Context(), key, "r1").Err())
	assert.Equal(t, 3, call(t, s.addr, nil, "requested").code)
	require.NoError(t, s.Set(t.Context(), key, `{"v":1,"id":"r1","requestedAt":"2026-08-01T10:20:30Z","reason":"cordoned"}`, 0).Err())
	r := call(t, s.addr, nil, "requested", "--wait", "5s")
	assert.Equal(t, result{stdout: "r1\n", took: r.took}, r)
	assert.Zero(t, s.Exists(t.Context(), "checkpoint:ack:ns:train-0:uid-0").Val(), "asking acknowledges nothing")
}

// The time is that of Redis, whatever the clock of the trainer shows.
func TestTimeIsRediss(t *testing.T) {
	stand := miniredis.RunT(t)
	at := time.Now().Add(time.Hour)
	stand.SetTime(at)
	require.Zero(t, call(t, stand.Addr(), nil).code)
	raw, err := stand.Get("checkpoint:ack:ns:train-0:uid-0")
	require.NoError(t, err)
	assert.WithinRange(t, savedAt(t, raw), at.Add(-5*time.Second), at)
}

// A trainer that runs it in the background continues training while it waits for Redis, so it
// acknowledges the state at its own start.
func TestWaitingForRedisClaimsNoLaterState(t *testing.T) {
	port := freePort(t)
	done := make(chan result, 1)
	started := time.Now()
	go func() { done <- call(t, "127.0.0.1:"+port, nil, "--wait", "30s") }()
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	<-ctx.Done() // Redis is away for that long
	s := startServer(t, port)
	r := <-done
	require.Zero(t, r.code, r.stderr)
	at := savedAt(t, s.Get(t.Context(), "checkpoint:ack:ns:train-0:uid-0").Val())
	assert.WithinRange(t, at, started.Add(-time.Millisecond), started.Add(time.Second))
}

func TestRedisThatIsAway(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close() //nolint:errcheck // nothing was written
	locked := startServer(t, "", "--requirepass", "secret")
	for addr, why := range map[string]string{
		"127.0.0.1:" + freePort(t): "connect: connection refused",
		silent.Addr().String():     "(i/o timeout|context deadline exceeded)",
		locked.addr:                "NOAUTH Authentication required.",
	} {
		for _, args := range [][]string{{"--wait", "700ms"}, {"requested", "--wait", "700ms"}} {
			r := call(t, addr, nil, args...)
			assert.Equal(t, 1, r.code)
			assert.Empty(t, r.stdout)
			assert.Contains(t, r.stderr, "no attempt succeeded within 700ms: ")
			assert.Regexp(t, why, r.stderr)
			assert.Equal(t, 1, strings.Count(r.stderr, "\n"), r.stderr)
			assert.Less(t, r.took, 3*time.Second)
		}
	}
}

func TestPasswordFileIsReadAtEachAttempt(t *testing.T) {
	s := startServer(t, "", "--requirepass", "second")
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte("first\n"), 0o600))
	password := map[string]string{"REDIS_PASSWORD_FILE": file}
	r := call(t, s.addr, password, "--wait", "500ms")
	assert.Equal(t, 1, r.code)
	assert.Contains(t, r.stderr, "WRONGPASS")

	done := make(chan result, 1)
	go func() { done <- call(t, s.addr, password) }()
	admin := redis.NewClient(&redis.Options{Addr: s.addr, Password: "second", Protocol: 2, DisableIdentity: true})
	defer admin.Close()                 //nolint:errcheck // nothing is left to do
	require.Eventually(t, func() bool { // it has tried once
		return strings.Contains(admin.Info(t.Context(), "errorstats").Val(), "errorstat_WRONGPASS")
	}, 10*time.Second, 10*time.Millisecond)
	require.NoError(t, os.WriteFile(file, []byte("second\r\n"), 0o600))
	r = <-done
	assert.Zero(t, r.code, r.stderr)
}

func TestUserMayDoNoMoreThanItHasTo(t *testing.T) {
	s := startServer(t, "")
	require.NoError(t, s.Do(t.Context(), "ACL", "SETUSER", "trainer", "on", ">s3:cr/et", "~checkpoint:*", "+time", "+set", "+getrange").Err())
	url := map[string]string{"REDIS_URL": "redis://trainer:s3%3Acr%2Fet@" + s.addr + "/0"}
	r := call(t, s.addr, url)
	assert.Zero(t, r.code, "without the right to publish: %s", r.stderr)
	assert.Equal(t, 3, call(t, s.addr, url, "requested").code)
}

func TestClusterIsFollowed(t *testing.T) {
	var nodes []*server
	for range 2 {
		nodes = append(nodes, startServer(t, "", "--cluster-enabled", "yes", "--cluster-port", freePort(t)))
	}
	slot := nodes[0].ClusterKeySlot(t.Context(), "checkpoint:ack:ns:train-0:uid-0").Val()
	// The second node has the key, and the program knows the first.
	require.NoError(t, nodes[1].ClusterAddSlots(t.Context(), int(slot)).Err())
	for from := 0; from <= 16383; from++ {
		if from != int(slot) {
			require.NoError(t, nodes[0].ClusterAddSlots(t.Context(), from).Err())
		}
	}
	require.NoError(t, nodes[1].Do(t.Context(), "CLUSTER", "SET-CONFIG-EPOCH", 2).Err())
	bus := nodes[1].ConfigGet(t.Context(), "cluster-port").Val()["cluster-port"]
	require.NoError(t, nodes[0].Do(t.Context(), "CLUSTER", "MEET", "127.0.0.1", nodes[1].port, bus).Err())
	for _, node := range nodes {
		require.Eventually(t, func() bool {
			return strings.Contains(node.ClusterInfo(t.Context()).Val(), "cluster_state:ok")
		}, 15*time.Second, 20*time.Millisecond)
	}
	r := call(t, nodes[0].addr, nil)
	require.Zero(t, r.code, r.stderr)
	assert.EqualValues(t, 1, nodes[1].Exists(t.Context(), "checkpoint:ack:ns:train-0:uid-0").Val())
	for _, node := range nodes {
		assert.Equal(t, 3, call(t, node.addr, nil, "requested").code)
	}
}

func TestWrongUse(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	for _, c := range []struct {
		variables map[string]string
		args      []string
		want      string
	}{
		{map[string]string{"POD_NAME": "", "POD_UID": "", "REDIS_URL": ""}, nil, "not set: REDIS_URL, POD_NAME, POD_UID; see --help"},
		{map[string]string{"POD_NAMESPACE": ""}, []string{"requested"}, "not set: POD_NAMESPACE; see --help"},
		{map[string]string{"POD_NAME": "a:b"}, nil, `POD_NAME="a:b" contains a colon, which is not allowed in the names of Kubernetes`},
		{map[string]string{"REDIS_URL": "http://me:secret@h"}, nil, "REDIS_URL is not a redis:// or rediss:// URL"},
		{map[string]string{"REDIS_URL": "redis://me:secret@h:port"}, nil, "REDIS_URL is not a redis:// or rediss:// URL"},
		{map[string]string{"REDIS_PASSWORD_FILE": none}, nil, "REDIS_PASSWORD_FILE: open " + none + ": no such file or directory"},
		{nil, []string{"--step", "x"}, `invalid value "x" for flag -step: must be an integer of at least 0`},
		{nil, []string{"--step", "-1"}, `invalid value "-1" for flag -step: must be an integer of at least 0`},
		{nil, []string{"--step", ""}, `invalid value "" for flag -step: must be an integer of at least 0`},
		{nil, []string{"--step", "9223372036854775808"}, `invalid value "9223372036854775808" for flag -step: must be an integer of at least 0`},
		{nil, []string{"--wait", "30"}, `invalid value "30" for flag -wait: parse error`},
		{nil, []string{"--wait", "0s"}, "--wait must be greater than 0"},
		{nil, []string{"--uri"}, "flag needs an argument: -uri"},
		{nil, []string{"--stpe", "1"}, "flag provided but not defined: -stpe"},
		{nil, []string{"request"}, `unexpected argument "request"; see --help`},
		{nil, []string{"requested", "--step", "1"}, "flag provided but not defined: -step"},
		{nil, []string{"requested", "now"}, `unexpected argument "now"; see --help`},
		{nil, []string{"--uri", "\xff"}, "--uri and --request must be UTF-8"},
		{nil, []string{"--uri", strings.Repeat("x", 5000)}, "--uri and --request are too long: 5059 bytes of 4096 together"},
	} {
		r := call(t, "127.0.0.1:1", c.variables, c.args...)
		assert.Equal(t, result{code: 2, stderr: "checkpoint-ack: " + c.want + "\n", took: r.took}, r)
	}
	r := call(t, "127.0.0.1:1", map[string]string{"REDIS_URL": ""}, "--help")
	assert.Equal(t, result{stdout: usage, took: r.took}, r)
}

// What just fits is also read: the provider looks at 4096 bytes.
func TestLongestURI(t *testing.T) {
	s := startServer(t, "")
	fits := 0
	for n := 4096; fits == 0; n-- {
		if call(t, s.addr, nil, "--uri", strings.Repeat("x", n)).code == 0 {
			fits = n
		}
	}
	assert.Greater(t, fits, 4000)
	assert.LessOrEqual(t, s.StrLen(t.Context(), "checkpoint:ack:ns:train-0:uid-0").Val(), int64(4096))
}
