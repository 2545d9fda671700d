package checkpoint

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gpu-node-provider/test/testbed/process"
)

// server is a real redis-server on a port of its own, which it keeps when it is
// killed and started again.
type server struct {
	t    *testing.T
	dir  string
	port int
	args []string
	cmd  *exec.Cmd
	// admin sees the server whatever the Store does. It never retries.
	admin *redis.Client
}

// newServer reserves a port and starts nothing.
func newServer(t *testing.T, args ...string) *server {
	t.Helper()
	s := &server{t: t, dir: t.TempDir(), port: freePort(t), args: args}
	s.admin = redis.NewClient(&redis.Options{Addr: s.addr(), MaxRetries: -1, DialerRetries: 1, Protocol: 2, DisableIdentity: true})
	t.Cleanup(func() {
		_ = s.admin.Close()
		s.kill()
	})
	return s
}

func startServer(t *testing.T, args ...string) *server {
	t.Helper()
	s := newServer(t, args...)
	s.start()
	return s
}

func (s *server) addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// start returns when the server accepts connections.
func (s *server) start() {
	s.t.Helper()
	args := append([]string{"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--dir", s.dir, "--save", ""}, s.args...)
	s.run(args, "Ready to accept connections")
}

func (s *server) run(args []string, ready string) {
	s.t.Helper()
	s.cmd = exec.Command("redis-server", args...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // a test that panics leaves none behind
	out, err := s.cmd.StdoutPipe()
	require.NoError(s.t, err)
	require.NoError(s.t, s.cmd.Start())
	var said strings.Builder
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		said.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), ready) {
			go io.Copy(io.Discard, out) //nolint:errcheck // ends with the process
			return
		}
	}
	s.kill()
	require.FailNow(s.t, "redis-server did not start", said.String())
}

func (s *server) kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.cmd = nil
}

func (s *server) signal(signal syscall.Signal) {
	s.t.Helper()
	require.NoError(s.t, s.cmd.Process.Signal(signal))
}

// do runs a command and returns its answer.
func (s *server) do(args ...any) any {
	s.t.Helper()
	answer, err := s.admin.Do(s.t.Context(), args...).Result()
	if err != nil && err != redis.Nil { //nolint:errorlint // go-redis returns it as it is
		require.NoError(s.t, err, fmt.Sprint(args...))
	}
	return answer
}

// options reach this server and no other.
func (s *server) options() RedisOptions { return RedisOptions{Addresses: []string{s.addr()}} }

func (s *server) store() *Store { return newStore(s.t, s.options()) }

func newStore(t *testing.T, o RedisOptions) *Store {
	t.Helper()
	store, err := NewStore(o, "c")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, store.Close()) })
	return store
}

func freePort(t *testing.T) int {
	t.Helper()
	ports, err := process.FreePorts(1)
	require.NoError(t, err)
	return ports[0]
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestNewStoreNamesWhatItCannotUse(t *testing.T) {
	dir := t.TempDir()
	empty, text := write(t, filepath.Join(dir, "empty"), "\n"), write(t, filepath.Join(dir, "text"), "secret")
	pipe := filepath.Join(dir, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	none := filepath.Join(dir, "none")
	for want, options := range map[string]RedisOptions{
		"redis: no address": {},
		"redis: more than one address needs masterName or cluster":           {Addresses: []string{"a:1", "b:1"}},
		"redis: masterName and cluster exclude each other":                   {Addresses: []string{"a:1"}, MasterName: "m", Cluster: true},
		"redis: password file: stat " + none:                                 {Addresses: []string{"a:1"}, PasswordFile: none},
		"redis: password file: " + empty + " is empty":                       {Addresses: []string{"a:1"}, PasswordFile: empty},
		"redis: password file: " + pipe + " is not a regular file":           {Addresses: []string{"a:1"}, PasswordFile: pipe},
		"redis: password file: " + dir + " is not a regular file":            {Addresses: []string{"a:1"}, PasswordFile: dir},
		"redis: tls.caFile: " + text + " contains no certificate":            {Addresses: []string{"a:1"}, TLS: &RedisTLS{CAFile: text}},
		"redis: tls.caFile: stat " + none:                                    {Addresses: []string{"a:1"}, TLS: &RedisTLS{CAFile: none}},
		"redis: tls.certFile: stat " + none:                                  {Addresses: []string{"a:1"}, TLS: &RedisTLS{CertFile: none, KeyFile: text}},
		"redis: tls.keyFile: stat ":                                          {Addresses: []string{"a:1"}, TLS: &RedisTLS{CertFile: text}},
		"redis: tls.certFile, tls.keyFile: tls: failed to find any PEM data": {Addresses: []string{"a:1"}, TLS: &RedisTLS{CertFile: text, KeyFile: text}},
	} {
		_, err := NewStore(options, "c")
		assert.ErrorContains(t, err, want)
	}
}

func TestCauseIsOneOfAFewWords(t *testing.T) {
	assert.Empty(t, Cause(nil))
	assert.Empty(t, Cause(io.EOF), "not of a Store")
	for want, err := range map[string]error{
		"error":           fmt.Errorf("something new"),
		"connection lost": fmt.Errorf("read: %w", io.ErrUnexpectedEOF),
		"timeout":         fmt.Errorf("dial: %w", os.ErrDeadlineExceeded),
		"MISCONF":         fmt.Errorf("MISCONF Redis is configured to save RDB snapshots"),
		"CLUSTERDOWN":     fmt.Errorf("CLUSTERDOWN The cluster is down"),
		"name lookup":     &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "redis"}},
	} {
		wrapped := fmt.Errorf("node n1: %w", failed(err))
		assert.Equal(t, want, Cause(wrapped))
		assert.ErrorIs(t, wrapped, ErrRedis)
		assert.ErrorIs(t, wrapped, err)
		assert.ErrorContains(t, wrapped, "node n1: redis: "+want)
	}
}

// authority issues certificates for 127.0.0.1 and clients.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.issue("ca", true)
	return a
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// issue writes name.crt and name.key.
func (a *authority) issue(name string, isCA bool) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IsCA: isCA, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(a.t, err)
	rawKey, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(a.t, err)
	write(a.t, a.file(name+".crt"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})))
	write(a.t, a.file(name+".key"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: rawKey})))
	cert, err := x509.ParseCertificate(raw)
	require.NoError(a.t, err)
	return cert, key
}

func TestTLS(t *testing.T) {
	t.Parallel()
	ours, theirs := newAuthority(t), newAuthority(t)
	ours.issue("server", false)
	ours.issue("client", false)
	theirs.issue("client", false)
	s := newServer(t)
	s.args = []string{
		"--port", "0", "--tls-port", strconv.Itoa(s.port), "--tls-ca-cert-file", ours.file("ca.crt"),
		"--tls-cert-file", ours.file("server.crt"), "--tls-key-file", ours.file("server.key"),
	}
	s.start()
	for want, files := range map[string]*RedisTLS{
		"":    {CAFile: ours.file("ca.crt"), CertFile: ours.file("client.crt"), KeyFile: ours.file("client.key")},
		"TLS": {CAFile: theirs.file("ca.crt"), CertFile: ours.file("client.crt"), KeyFile: ours.file("client.key")},
	} {
		_, err := newStore(t, RedisOptions{Addresses: []string{s.addr()}, TLS: files}).Read(t.Context(), nil)
		assert.Equal(t, want, Cause(err), "%v", err)
	}
	for name, files := range map[string]*RedisTLS{
		"no certificate":      {CAFile: ours.file("ca.crt")},
		"another's":           {CAFile: ours.file("ca.crt"), CertFile: theirs.file("client.crt"), KeyFile: theirs.file("client.key")},
		"name is another's":   {CAFile: ours.file("ca.crt"), CertFile: ours.file("client.crt"), KeyFile: ours.file("client.key"), ServerName: "redis"},
		"no TLS at all":       nil,
		"roots of the system": {CertFile: ours.file("client.crt"), KeyFile: ours.file("client.key")},
	} {
		_, err := newStore(t, RedisOptions{Addresses: []string{s.addr()}, TLS: files}).Read(t.Context(), nil)
		assert.ErrorIs(t, err, ErrRedis, name)
	}
}
