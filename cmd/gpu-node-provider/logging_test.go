package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"
)

// entries returns the log entries of a text and fails for a line that is none.
func entries(t *testing.T, text string) (all []map[string]any) {
	t.Helper()
	for line := range strings.Lines(text) {
		entry := map[string]any{}
		require.NoError(t, json.Unmarshal([]byte(line), &entry), "not a log entry: %s", line)
		for _, key := range []string{"level", "ts", "msg"} {
			require.Contains(t, entry, key, line)
		}
		all = append(all, entry)
	}
	return all
}

func TestLoggerLevels(t *testing.T) {
	for verbose, want := range map[bool]int{false: 1, true: 2} {
		var out output
		log := logger(&out, verbose)
		log.Debug("read")
		log.Info("write", zap.Duration("took", time.Second))
		written := entries(t, out.String())
		require.Len(t, written, want)
		last := written[want-1]
		require.Equal(t, []any{"info", "write", "1s"}, []any{last["level"], last["msg"], last["took"]})
		_, err := time.Parse(time.RFC3339Nano, fmt.Sprint(last["ts"]))
		require.NoError(t, err)
	}
}

// TestLibrariesLogToZap at the levels that their entries have.
func TestLibrariesLogToZap(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	redirect(zap.New(core))
	klog.InfoS("elected", "holder", "a")
	klog.ErrorS(errors.New("refused"), "not elected")
	klog.Background().V(1).Info("detail")
	klog.Background().V(4).Info("too much")
	klog.Warning("text")
	grpclog.Error("listener failed")
	grpclog.Info("connected")
	grpclog.Warning("too much")
	client := redis.NewClient(&redis.Options{Addr: freePort(t), DialerRetries: 1, MaxRetries: -1, DialTimeout: time.Second})
	require.Error(t, client.Ping(t.Context()).Err())
	require.NoError(t, client.Close())
	var got []string
	for _, entry := range logs.All() {
		got = append(got, fmt.Sprintln(entry.LoggerName, entry.Level, entry.Message, entry.ContextMap()))
	}
	require.Equal(t, []string{
		"client-go info elected map[holder:a]\n",
		"client-go error not elected map[error:refused]\n",
		"client-go debug detail map[]\n",
		"client-go info text map[]\n",
		"grpc-go error listener failed map[]\n",
	}, got[:5])
	require.Contains(t, strings.Join(got[5:], ""), "go-redis warn ")
	for _, line := range got[5:] {
		require.True(t, strings.HasPrefix(line, "go-redis warn "), line)
	}
}

// TestServeLogsNothingButJSON: no Lease can be read, and a client of the webhook does not
// use TLS. It starts a separate process, because libraries print to the standard error of
// the process.
func TestServeLogsNothingButJSON(t *testing.T) {
	dir := t.TempDir()
	created := start(t, "certs", "--dir", dir)
	require.Zero(t, created.wait(t), "%s", created.stderr.String())
	webhook := freePort(t)
	api := newAPIServer(t)
	api.answer()
	path := file{
		server: ports("127.0.0.1:0", "127.0.0.1:0") + `, webhookAddress: "` + webhook + `", ` +
			`tls: {certFile: "` + dir + `/server.crt", keyFile: "` + dir + `/server.key", clientCAFile: "` + dir + `/ca.crt"}`,
		rest: `kubernetes: {kubeconfig: "` + api.kubeconfig + `"}`,
	}.write(t)
	p := startProgram(t, "serve", "--config", path)
	logged := func(name string) func() bool {
		return func() bool { return strings.Contains(p.stderr.String(), `"logger":"`+name+`"`) }
	}
	eventually(t, "client-go logs", logged("client-go"))
	eventually(t, "the webhook listens", func() bool {
		c, err := net.Dial("tcp", webhook)
		if err != nil {
			return false
		}
		defer func() { _ = c.Close() }()
		_, err = c.Write([]byte("GET / HTTP/1.0\r\n\r\n"))
		return err == nil
	})
	eventually(t, "net/http logs", logged("std"))
	p.stop()
	require.Zero(t, p.wait(t), "%s", p.stderr.String())
	handshake := false
	for _, entry := range entries(t, p.stderr.String()) {
		handshake = handshake || entry["logger"] == "std" && entry["level"] == "warn" && strings.Contains(fmt.Sprint(entry["msg"]), "TLS handshake error")
	}
	require.True(t, handshake, "%s", p.stderr.String())
}

func TestIsTerminal(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	defer func() { _ = terminal.Close() }()
	require.True(t, isTerminal(terminal))

	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer func() { _, _ = r.Close(), w.Close() }()
	regular, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	defer func() { _ = regular.Close() }()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer func() { _ = null.Close() }()
	require.False(t, isTerminal(w))
	require.False(t, isTerminal(regular))
	require.False(t, isTerminal(null))
	require.False(t, isTerminal(&output{}))
}
