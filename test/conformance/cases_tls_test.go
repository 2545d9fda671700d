package conformance

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"

	"gpu-node-provider/proto"
)

var tlsCases = []row{
	{"A-10 certificates are rotated under a connected client", caseA10},
	{"A-11 the server's name is the host part of the address", caseA11},
	{"A-12 clients without a certificate or with the wrong one", caseA12},
}

// certs makes certificates with the program's own command.
func certs(t *testing.T, dir string, args ...string) {
	t.Helper()
	p := finish(t, append([]string{"certs", "--dir", dir}, args...)...)
	require.Zero(t, p.cmd.ProcessState.ExitCode(), p.stderr.String())
}

// serveTLS starts a provider with the certificates of a folder.
func serveTLS(t *testing.T, dir string, allowed string) *server {
	t.Helper()
	s := &server{dir: t.TempDir(), id: "t4"}
	file{server: []string{fmt.Sprintf("tls: {certFile: %q, keyFile: %q, clientCAFile: %q, allowedClients: %s}",
		filepath.Join(dir, "server.crt"), filepath.Join(dir, "server.key"), filepath.Join(dir, "ca.crt"), allowed)}}.write(t, s.dir)
	s.process = start(t, "serve", "--config", configPath(s.dir))
	s.grpc, s.http = s.addresses(t)
	return s
}

// identity is the client's side of a folder of certificates.
func identity(t *testing.T, dir string) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "client.crt"), filepath.Join(dir, "client.key"))
	require.NoError(t, err)
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	require.NoError(t, err)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(ca))
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, RootCAs: pool}
}

// as connects to the server with a TLS identity, or in plaintext with nil.
func (s *server) as(t *testing.T, config *tls.Config) *grpc.ClientConn {
	t.Helper()
	if config == nil {
		return dial(t, s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	}
	return dial(t, s.grpc, grpc.WithTransportCredentials(credentials.NewTLS(config)))
}

// ask makes a call and returns the serial number of the server's certificate.
func ask(t *testing.T, conn *grpc.ClientConn) (serial string, err error) {
	t.Helper()
	var from peer.Peer
	_, err = proto.NewCloudProviderClient(conn).NodeGroups(t.Context(), &proto.NodeGroupsRequest{}, grpc.Peer(&from))
	if info, ok := from.AuthInfo.(credentials.TLSInfo); ok && len(info.State.PeerCertificates) > 0 {
		serial = info.State.PeerCertificates[0].SerialNumber.Text(16)
	}
	return serial, err
}

func caseA10(t *testing.T) {
	dir := t.TempDir()
	certs(t, dir)
	s := serveTLS(t, dir, "[cluster-autoscaler]")
	stays := s.as(t, identity(t, dir))
	first, err := ask(t, stays)
	require.NoError(t, err)
	fresh := func() string {
		conn := s.as(t, identity(t, dir))
		defer func() { _ = conn.Close() }()
		serial, err := ask(t, conn)
		require.NoError(t, err)
		return serial
	}
	stillConnected := func() {
		serial, err := ask(t, stays)
		require.NoError(t, err)
		assert.Equal(t, first, serial, "the old connection was not cut")
	}

	certs(t, dir, "--renew")
	eventually(t, "new handshakes get the new pair", func() bool { return fresh() != first })
	second := fresh()
	stillConnected()

	// A bad pair keeps the old one, and says so.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "server.key"), []byte("no key"), 0o600))
	eventually(t, "the bad pair is noticed", func() bool { return s.metric(t, "gpu_node_provider_tls_reload_failed") == 1 })
	assert.Len(t, s.told(t, "new TLS files rejected, the previous ones stay in use"), 1)
	assert.Equal(t, second, fresh())
	stillConnected()

	certs(t, dir, "--renew")
	eventually(t, "a good pair heals it", func() bool { return s.metric(t, "gpu_node_provider_tls_reload_failed") == 0 })
	assert.NotContains(t, []string{first, second}, fresh())
	stillConnected()
}

// caseA11: the command that checks an address against a certificate comes with
// the doctor.
func caseA11(t *testing.T) {
	byName := t.TempDir()
	const name = "gpu-node-provider.gpu-node-provider.svc"
	certs(t, byName, "--server-name", name)
	s := serveTLS(t, byName, "[]")
	_, err := ask(t, s.as(t, identity(t, byName))) // by IP address
	text := code(t, codes.Unavailable, err)
	assert.Contains(t, text, "x509")
	eventually(t, "it is counted", func() bool {
		return s.metric(t, `gpu_node_provider_tls_handshake_failures_total{reason="refused_by_client"}`) >= 1
	})
	named := identity(t, byName)
	named.ServerName = name
	_, err = ask(t, s.as(t, named))
	require.NoError(t, err)

	byDefault := t.TempDir()
	certs(t, byDefault, "--namespace", "autoscaling")
	s = serveTLS(t, byDefault, "[]")
	for _, host := range []string{
		"gpu-node-provider", "gpu-node-provider.autoscaling", "gpu-node-provider.autoscaling.svc",
		"gpu-node-provider.autoscaling.svc.cluster.local", "localhost", "127.0.0.1",
	} {
		config := identity(t, byDefault)
		config.ServerName = host
		_, err := ask(t, s.as(t, config))
		assert.NoError(t, err, host)
	}
}

func caseA12(t *testing.T) {
	dir, otherCA, otherName := t.TempDir(), t.TempDir(), t.TempDir()
	certs(t, dir)
	certs(t, otherCA)
	for _, name := range []string{"ca.crt", "ca.key"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(otherName, name), data, 0o600))
	}
	certs(t, otherName, "--renew", "--client-name", "somebody-else")
	s := serveTLS(t, dir, "[cluster-autoscaler]")
	_, err := ask(t, s.as(t, identity(t, dir)))
	require.NoError(t, err)

	none := identity(t, dir)
	none.Certificates = nil
	stranger := identity(t, otherCA)
	stranger.RootCAs = none.RootCAs // it trusts us; we do not trust it
	for reason, config := range map[string]*tls.Config{"no_certificate": none, "unknown_ca": stranger, "not_tls": nil} {
		_, err := ask(t, s.as(t, config))
		code(t, codes.Unavailable, err)
		eventually(t, "counted as "+reason, func() bool {
			return s.metric(t, `gpu_node_provider_tls_handshake_failures_total{reason="`+reason+`"}`) >= 1
		})
	}

	// A good certificate with another name may connect, and call nothing, the
	// health service included.
	conn := s.as(t, identity(t, otherName))
	_, err = ask(t, conn)
	code(t, codes.PermissionDenied, err)
	_, err = grpc_health_v1.NewHealthClient(conn).Check(context.WithoutCancel(t.Context()), &grpc_health_v1.HealthCheckRequest{})
	code(t, codes.PermissionDenied, err)
	err = (&server{CloudProviderClient: proto.NewCloudProviderClient(conn)}).tryIncrease(t.Context(), "t4", 1)
	code(t, codes.PermissionDenied, err)
	assert.Equal(t, 3.0, s.metric(t, `gpu_node_provider_tls_clients_refused_total{reason="not_listed"}`))
	open := serveTLS(t, dir, "[]") // everybody of the client CA
	_, err = ask(t, open.as(t, identity(t, otherName)))
	require.NoError(t, err)
}
