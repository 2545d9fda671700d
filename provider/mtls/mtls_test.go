package mtls

import (
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// noon is the clock of tests that make and read certificates without a client.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(t time.Time) func() time.Time { return func() time.Time { return t } }

// selfSigned writes a pair that Generate would not make.
func selfSigned(t *testing.T, dir string, template *x509.Certificate) {
	t.Helper()
	if template.NotAfter.IsZero() {
		template.NotBefore, template.NotAfter = noon.Add(-time.Hour), noon.Add(time.Hour)
	}
	key, err := newKey()
	require.NoError(t, err)
	self := &authority{certificate: template, key: key}
	der, err := x509.CreateCertificate(rand.Reader, template, self.certificate, key.Public(), key)
	require.NoError(t, err)
	keyPEM, err := encodeKey(key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, ServerCertFile), encodeCertificate(der), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, ServerKeyFile), keyPEM, 0o600))
}

// TestNewSaysWhatIsWrong gives each mistake its exact message; D is the
// directory of the files.
func TestNewSaysWhatIsWrong(t *testing.T) {
	put := func(name, data string) func(*testing.T, string, *Options) {
		return func(t *testing.T, dir string, _ *Options) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600))
		}
	}
	issue := func(template x509.Certificate) func(*testing.T, string, *Options) {
		return func(t *testing.T, dir string, _ *Options) { selfSigned(t, dir, &template) }
	}
	remove := func(name string) func(*testing.T, string, *Options) {
		return func(t *testing.T, dir string, _ *Options) { require.NoError(t, os.Remove(filepath.Join(dir, name))) }
	}
	clock := func(now time.Time) func(*testing.T, string, *Options) {
		return func(_ *testing.T, _ string, o *Options) { o.Now = at(now) }
	}
	names := []string{"localhost"}
	cases := map[string]struct {
		change func(*testing.T, string, *Options)
		want   string
	}{
		"nothing set": {
			func(_ *testing.T, _ string, o *Options) { o.CertFile, o.KeyFile, o.ClientCAFile = "", "", "" },
			"no certificate file is set: mutual TLS needs a certificate, its key and the CA of the clients\n" +
				"no key file is set: mutual TLS needs a certificate, its key and the CA of the clients\n" +
				"no client CA file is set: mutual TLS needs a certificate, its key and the CA of the clients",
		},
		"missing certificate": {
			remove(ServerCertFile),
			"certificate file D/server.crt: no such file or directory: correct the path, mount the Secret, or create the files with `gpu-node-provider certs`",
		},
		"key is a directory": {
			func(_ *testing.T, dir string, o *Options) { o.KeyFile = dir },
			"key file D: cannot be read: is not a regular file",
		},
		"empty certificate": {
			put(ServerCertFile, " \n"),
			"certificate file D/server.crt is empty: it must contain PEM blocks",
		},
		"certificate not PEM": {
			put(ServerCertFile, "\x30\x82\x01"),
			"certificate file D/server.crt is not PEM: convert it with openssl and -outform pem",
		},
		"certificate cut short": {
			put(ServerCertFile, "-----BEGIN CERTIFICATE-----\nMIIB"),
			"certificate file D/server.crt is truncated or damaged: 1 PEM blocks begin and 0 are complete; copy it again",
		},
		"certificate of nonsense": {
			put(ServerCertFile, "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"),
			"certificate file D/server.crt contains a certificate that cannot be parsed: x509: malformed certificate; copy it again",
		},
		"certificate and key swapped": {
			func(_ *testing.T, _ string, o *Options) { o.CertFile, o.KeyFile = o.KeyFile, o.CertFile },
			"certificate file D/server.key contains no certificate but PRIVATE KEY: check that the files are not swapped\n" +
				"key file D/server.crt contains no private key but CERTIFICATE: check that the files are not swapped",
		},
		"encrypted key": {
			put(ServerKeyFile, "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n"),
			"key file D/server.key is encrypted and the server has no password for it: decrypt it with `openssl pkey`",
		},
		"encrypted key, old form": {
			put(ServerKeyFile, "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nMIIB\n-----END RSA PRIVATE KEY-----\n"),
			"key file D/server.key is encrypted and the server has no password for it: decrypt it with `openssl pkey`",
		},
		"key of nonsense": {
			put(ServerKeyFile, "-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\n"),
			"key file D/server.key contains a private key that cannot be parsed: asn1: syntax error: truncated tag or length; copy it again",
		},
		"key of another certificate": {
			func(t *testing.T, _ string, o *Options) {
				o.KeyFile = filepath.Join(filepath.Dir(o.KeyFile), ClientKeyFile)
			},
			"key file D/client.key is not the key of the certificate in D/server.crt: use a matching pair, with the server's certificate first in its file",
		},
		"expired": {
			clock(noon.Add(DefaultValidity + time.Second)),
			"certificate file D/server.crt expired at 2027-03-01T12:00:00Z, so no client accepts it: renew it with the same CA",
		},
		"not yet valid": {
			clock(noon.Add(-clockSkew - clockSkew - time.Second)),
			"certificate file D/server.crt is not valid before 2026-03-01T11:55:00Z: check the clocks of this machine and of the CA",
		},
		"no alternative name": {
			issue(x509.Certificate{}),
			"certificate file D/server.crt has no DNS name or IP address as subject alternative name, and clients ignore the CN: issue it again with the host part of the address in Cluster Autoscaler's cloud-config",
		},
		"for clients only": {
			issue(x509.Certificate{DNSNames: names, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}),
			"certificate file D/server.crt lacks the extended key usage `server auth`: issue it again with that usage",
		},
		"client CA is a key": {
			func(t *testing.T, dir string, o *Options) { o.ClientCAFile = filepath.Join(dir, CAKeyFile) },
			"client CA file D/ca.key contains no certificate but PRIVATE KEY: check that the files are not swapped",
		},
		"client CAs cut short after the first": {
			func(t *testing.T, dir string, _ *Options) {
				bundle := append(read(t, dir, CACertFile), read(t, dir, CACertFile)[:100]...)
				require.NoError(t, os.WriteFile(filepath.Join(dir, CACertFile), bundle, 0o600))
			},
			"client CA file D/ca.crt is truncated or damaged: 2 PEM blocks begin and 1 are complete; copy it again",
		},
		"client CA expired": {
			func(t *testing.T, dir string, _ *Options) {
				old := made(t, GenerateOptions{Now: at(noon.AddDate(-20, 0, 0))})
				copyFiles(t, old, dir, CACertFile)
			},
			"client CA file D/ca.crt contains only expired certificates, the first expired at 2016-02-27T12:00:00Z, so no client can connect: renew it",
		},
		"allowed clients": {
			func(_ *testing.T, _ string, o *Options) {
				o.AllowedClients = []string{"good", "", " a", "*.example.org"}
			},
			"allowed client 2 (\"\") is empty or has spaces around it: write the name as in the certificate\n" +
				"allowed client 3 (\" a\") is empty or has spaces around it: write the name as in the certificate\n" +
				"allowed client \"*.example.org\" has a wildcard: write every name, or an empty list to allow all clients of the CA",
		},
		"every problem at once": {
			func(t *testing.T, dir string, o *Options) {
				remove(ServerKeyFile)(t, dir, o)
				put(CACertFile, "x")(t, dir, o)
				o.AllowedClients = []string{"*"}
			},
			"allowed client \"*\" has a wildcard: write every name, or an empty list to allow all clients of the CA\n" +
				"key file D/server.key: no such file or directory: correct the path, mount the Secret, or create the files with `gpu-node-provider certs`\n" +
				"client CA file D/ca.crt is not PEM: convert it with openssl and -outform pem",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			dir := made(t, GenerateOptions{Now: at(noon)})
			opts := options(dir)
			opts.Now = at(noon)
			tc.change(t, dir, &opts)
			s, err := New(opts)
			require.Nil(t, s)
			require.Error(t, err)
			require.Equal(t, tc.want, strings.ReplaceAll(err.Error(), dir, "D"))
		})
	}
}

func TestNewTakesWhatIsGoodEnough(t *testing.T) {
	cases := map[string]func(t *testing.T, dir string, o *Options){
		"clock a little behind the authority's": func(_ *testing.T, _ string, o *Options) { o.Now = at(noon.Add(-2 * clockSkew)) },
		"last second":                           func(_ *testing.T, _ string, o *Options) { o.Now = at(noon.Add(DefaultValidity)) },
		"certificate, key and CA in one file": func(t *testing.T, dir string, o *Options) {
			all := append(read(t, o.CertFile), append(read(t, o.KeyFile), read(t, o.ClientCAFile)...)...)
			path := filepath.Join(dir, "all.pem")
			require.NoError(t, os.WriteFile(path, all, 0o600))
			o.CertFile, o.KeyFile, o.ClientCAFile = path, path, path
		},
		"an expired CA beside a good one": func(t *testing.T, dir string, o *Options) {
			old := made(t, GenerateOptions{Now: at(noon.AddDate(-20, 0, 0))})
			both := append(read(t, old, CACertFile), read(t, dir, CACertFile)...)
			require.NoError(t, os.WriteFile(o.ClientCAFile, both, 0o600))
		},
		"no extended key usage": func(t *testing.T, dir string, _ *Options) {
			selfSigned(t, dir, &x509.Certificate{DNSNames: []string{"localhost"}})
		},
		"any extended key usage": func(t *testing.T, dir string, _ *Options) {
			selfSigned(t, dir, &x509.Certificate{DNSNames: []string{"localhost"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
		},
		"no logger, no registry, no clock": func(t *testing.T, dir string, o *Options) {
			fresh := made(t, GenerateOptions{})
			*o = options(fresh)
		},
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			dir := made(t, GenerateOptions{Now: at(noon)})
			opts := options(dir)
			opts.Now = at(noon)
			change(t, dir, &opts)
			_, err := New(opts)
			require.NoError(t, err)
		})
	}
}

func TestKeyEncodings(t *testing.T) {
	ec, err := newKey()
	require.NoError(t, err)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	sec1, err := x509.MarshalECPrivateKey(ec)
	require.NoError(t, err)
	edDER, err := x509.MarshalPKCS8PrivateKey(edKey)
	require.NoError(t, err)
	parameters := pem.EncodeToMemory(&pem.Block{Type: "EC PARAMETERS", Bytes: []byte{6}})
	for name, data := range map[string][]byte{
		"PKCS 1":                   pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(rsaKey)}),
		"SEC 1":                    pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: sec1}),
		"SEC 1 behind parameters":  append(parameters, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: sec1})...),
		"PKCS 8 of another family": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: edDER}),
	} {
		t.Run(name, func(t *testing.T) {
			key, err := parseKey(data)
			require.NoError(t, err)
			require.NotNil(t, key)
		})
	}

	exchange, err := ecdh.X25519().GenerateKey(rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(exchange)
	require.NoError(t, err)
	_, err = parseKey(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	require.EqualError(t, err, "contains a *ecdh.PrivateKey, which cannot sign: use an ECDSA, RSA or Ed25519 key")

	other, err := newKey()
	require.NoError(t, err)
	require.True(t, belongs(ec, &x509.Certificate{PublicKey: ec.Public()}))
	require.False(t, belongs(other, &x509.Certificate{PublicKey: ec.Public()}))
	require.False(t, belongs(rsaKey, &x509.Certificate{PublicKey: ec.Public()}))
	require.IsType(t, &ecdsa.PrivateKey{}, other)
}

func TestMetricsThatAScrapeSees(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	opts := options(made(t, GenerateOptions{}))
	opts.Registerer = registry
	_, err := New(opts)
	require.NoError(t, err)
	families, err := registry.Gather()
	require.NoError(t, err)
	series := map[string]int{}
	for _, family := range families {
		series[family.GetName()] = len(family.GetMetric())
	}
	require.Equal(t, map[string]int{
		"gpu_node_provider_tls_reload_errors_total":                  1,
		"gpu_node_provider_tls_reload_failed":                        1,
		"gpu_node_provider_tls_certificate_expiry_timestamp_seconds": 1,
		"gpu_node_provider_tls_client_ca_expiry_timestamp_seconds":   1,
		"gpu_node_provider_tls_handshake_failures_total":             len(failureReasons),
		"gpu_node_provider_tls_clients_refused_total":                2,
	}, series, "every series is there from the start")

	_, err = New(opts)
	require.ErrorContains(t, err, "register TLS metrics", "two servers cannot share a registry")
}

func TestExpiryIsThatOfTheFirstToExpireInTheChain(t *testing.T) {
	dir := made(t, GenerateOptions{Now: at(noon)})
	brief := made(t, GenerateOptions{Now: at(noon), Validity: time.Hour})
	chain := append(read(t, dir, ServerCertFile), read(t, brief, ServerCertFile)...)
	require.NoError(t, os.WriteFile(filepath.Join(dir, ServerCertFile), chain, 0o600))
	opts := options(dir)
	opts.Now = at(noon)
	s, err := New(opts)
	require.NoError(t, err)
	require.Equal(t, noon.Add(time.Hour), s.current.Load().expiry.UTC())
}
