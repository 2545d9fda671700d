package mtls

import (
	"crypto/x509"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var allFiles = []string{CACertFile, CAKeyFile, ServerCertFile, ServerKeyFile, ClientCertFile, ClientKeyFile}

// tree is every file of a directory with its contents.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	files := map[string]string{}
	for _, entry := range entries {
		if entry.IsDir() {
			files[entry.Name()] = "directory"
			continue
		}
		files[entry.Name()] = string(read(t, dir, entry.Name()))
	}
	return files
}

func TestGenerateMakesACompleteSet(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "certs")
	got, err := Generate(dir, GenerateOptions{Now: at(noon)})
	require.NoError(t, err)
	require.Equal(t, DefaultServerNames(""), got.ServerNames)
	require.Equal(t, "cluster-autoscaler", got.ClientName)
	require.Equal(t, noon.Add(365*24*time.Hour), got.Expiry)
	require.Equal(t, noon.Add(3650*24*time.Hour), got.CAExpiry.UTC())
	require.Len(t, tree(t, dir), len(allFiles), "and nothing else")
	for i, name := range allFiles {
		require.Equal(t, filepath.Join(dir, name), got.Files[i])
		info, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		want := fs.FileMode(0o644)
		if strings.HasSuffix(name, ".key") {
			want = 0o600
		}
		require.Equal(t, want, info.Mode().Perm(), name)
	}

	ca, server, client := certificateIn(t, dir, CACertFile), certificateIn(t, dir, ServerCertFile), certificateIn(t, dir, ClientCertFile)
	require.True(t, ca.IsCA)
	require.Equal(t, []string{
		"gpu-node-provider", "gpu-node-provider.gpu-node-provider", "gpu-node-provider.gpu-node-provider.svc",
		"gpu-node-provider.gpu-node-provider.svc.cluster.local", "gpu-node-provider-webhook.gpu-node-provider.svc", "localhost",
	}, server.DNSNames)
	require.Equal(t, []string{"127.0.0.1", "::1"}, []string{server.IPAddresses[0].String(), server.IPAddresses[1].String()})
	require.Equal(t, []string{"cluster-autoscaler"}, client.DNSNames)
	require.Equal(t, "cluster-autoscaler", client.Subject.CommonName)
	require.Equal(t, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, server.ExtKeyUsage)
	require.Equal(t, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, client.ExtKeyUsage)
	require.NotEqual(t, server.SerialNumber, client.SerialNumber)

	roots := x509.NewCertPool()
	roots.AddCert(ca)
	for _, leaf := range []*x509.Certificate{server, client} {
		_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: noon, KeyUsages: leaf.ExtKeyUsage})
		require.NoError(t, err)
		require.False(t, leaf.IsCA)
		require.Equal(t, noon.Add(-clockSkew), leaf.NotBefore.UTC())
	}
}

func TestGenerateNames(t *testing.T) {
	dir := made(t, GenerateOptions{
		ServerNames: []string{"provider.example.org", "*.example.org", "10.1.2.3", "fd00::1"},
		ClientName:  "spiffe://example.org/cluster-autoscaler",
	})
	server, client := certificateIn(t, dir, ServerCertFile), certificateIn(t, dir, ClientCertFile)
	require.Equal(t, []string{"provider.example.org", "*.example.org"}, server.DNSNames)
	require.True(t, server.IPAddresses[0].Equal(net.ParseIP("10.1.2.3")))
	require.Equal(t, []string{"spiffe://example.org/cluster-autoscaler"}, uris(client))
	require.Empty(t, client.Subject.CommonName)

	long := strings.Repeat("a", 63) + ".b"
	client = certificateIn(t, made(t, GenerateOptions{ClientName: long}), ClientCertFile)
	require.Equal(t, []string{long}, client.DNSNames)
	require.Empty(t, client.Subject.CommonName, "a CN holds 64 characters")

	require.Contains(t, DefaultServerNames("kube-system"), "gpu-node-provider.kube-system.svc")
}

func TestGenerateRefuses(t *testing.T) {
	cases := map[string]struct {
		prepare func(t *testing.T, dir string)
		opts    GenerateOptions
		want    string
	}{
		"bad names": {opts: GenerateOptions{ServerNames: []string{"a:8086", "https://a", "good", ""}, ClientName: "a b"}, want: "" +
			"server name \"a:8086\" is neither a DNS name nor an IP address: write the host alone, without port or scheme\n" +
			"server name \"https://a\" is neither a DNS name nor an IP address: write the host alone, without port or scheme\n" +
			"server name \"\" is neither a DNS name nor an IP address: write the host alone, without port or scheme\n" +
			"client name \"a b\" is neither a DNS name nor a URI such as spiffe://example.org/cluster-autoscaler"},
		"client name with a colon": {
			opts: GenerateOptions{ClientName: "system:ca"},
			want: "client name \"system:ca\" is neither a DNS name nor a URI such as spiffe://example.org/cluster-autoscaler",
		},
		"client URI that would come out in another spelling": {
			opts: GenerateOptions{ClientName: "spiffe://example.org/a b"},
			want: "client name \"spiffe://example.org/a b\" is neither a DNS name nor a URI such as spiffe://example.org/cluster-autoscaler",
		},
		"validity": {
			opts: GenerateOptions{Validity: 365},
			want: "validity 365ns is shorter than 1m0s: set a longer one, such as 8760h",
		},
		"negative validity": {
			opts: GenerateOptions{Validity: -time.Hour},
			want: "validity -1h0m0s is shorter than 1m0s: set a longer one, such as 8760h",
		},
		"renew and force": {
			opts: GenerateOptions{Renew: true, Force: true},
			want: "renew keeps the CA and force replaces it: choose one of them",
		},
		"renew nothing": {opts: GenerateOptions{Renew: true}, want: "CA to renew with: " +
			"D/ca.crt: no such file or directory: correct the path, mount the Secret, or create the files with `gpu-node-provider certs`\n" +
			"D/ca.key: no such file or directory: correct the path, mount the Secret, or create the files with `gpu-node-provider certs`"},
		"files are there": {
			prepare: func(t *testing.T, dir string) {
				require.NoError(t, os.WriteFile(filepath.Join(dir, ServerKeyFile), []byte("mine"), 0o600))
				require.NoError(t, os.Symlink("nowhere", filepath.Join(dir, ClientCertFile)))
			},
			want: "files exist already in D: server.key, client.crt; renew the pairs with their CA, choose another directory, or force a new CA, which rejects the old clients",
		},
		"renew with another's key": {
			opts: GenerateOptions{Renew: true},
			prepare: func(t *testing.T, dir string) {
				copyFiles(t, made(t, GenerateOptions{}), dir, CACertFile)
				copyFiles(t, made(t, GenerateOptions{}), dir, CAKeyFile)
			},
			want: "CA to renew with: D/ca.key is not the key of D/ca.crt",
		},
		"renew with no CA": {
			opts: GenerateOptions{Renew: true},
			prepare: func(t *testing.T, dir string) {
				from := made(t, GenerateOptions{})
				require.NoError(t, os.WriteFile(filepath.Join(dir, CACertFile), read(t, from, ServerCertFile), 0o600))
				require.NoError(t, os.WriteFile(filepath.Join(dir, CAKeyFile), read(t, from, ServerKeyFile), 0o600))
			},
			want: "CA to renew with: D/ca.crt is not a CA certificate",
		},
		"renew with an expired CA": {
			opts: GenerateOptions{Renew: true, Now: at(noon.Add(caValidity))},
			prepare: func(t *testing.T, dir string) {
				copyFiles(t, made(t, GenerateOptions{Now: at(noon)}), dir, CACertFile, CAKeyFile)
			},
			want: "CA to renew with: D/ca.crt expired at 2036-02-27T12:00:00Z; force a new one, and deploy it to both sides",
		},
		"renew beside a damaged certificate": {
			opts: GenerateOptions{Renew: true},
			prepare: func(t *testing.T, dir string) {
				copyFiles(t, made(t, GenerateOptions{}), dir, CACertFile, CAKeyFile)
				require.NoError(t, os.WriteFile(filepath.Join(dir, ServerCertFile), []byte("x"), 0o600))
			},
			want: "certificate file D/server.crt is not PEM: convert it with openssl and -outform pem, or set the names explicitly",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if tc.prepare != nil {
				tc.prepare(t, dir)
			}
			_, err := os.Readlink(filepath.Join(dir, ClientCertFile))
			var before map[string]string
			if err != nil { // a dangling link has no contents
				before = tree(t, dir)
			}
			_, err = Generate(dir, tc.opts)
			require.Error(t, err)
			require.Equal(t, tc.want, strings.ReplaceAll(err.Error(), dir, "D"))
			if before != nil {
				require.Equal(t, before, tree(t, dir), "nothing changed")
			}
		})
	}
	dir := made(t, GenerateOptions{})
	_, err := Generate(dir, GenerateOptions{})
	require.ErrorIs(t, err, ErrExists)
}

func TestRenewKeepsTheAuthorityAndTheNames(t *testing.T) {
	dir := made(t, GenerateOptions{Now: at(noon), ServerNames: []string{"a.example.org", "10.0.0.1"}, ClientName: "spiffe://example.org/x"})
	before := tree(t, dir)
	got, err := Generate(dir, GenerateOptions{Renew: true, Now: at(noon.Add(time.Hour)), Validity: 48 * time.Hour})
	require.NoError(t, err)
	require.Equal(t, []string{"a.example.org", "10.0.0.1"}, got.ServerNames)
	require.Equal(t, "spiffe://example.org/x", got.ClientName)
	require.Equal(t, noon.Add(49*time.Hour), got.Expiry)
	require.Len(t, got.Files, 4)
	after := tree(t, dir)
	for _, name := range allFiles {
		authority := name == CACertFile || name == CAKeyFile
		require.Equal(t, authority, before[name] == after[name], name)
	}

	got, err = Generate(dir, GenerateOptions{Renew: true, Now: at(noon), ServerNames: []string{"b"}, ClientName: "c"})
	require.NoError(t, err)
	require.Equal(t, []string{"b"}, got.ServerNames, "names that are given replace the old ones")
	require.Equal(t, []string{"c"}, certificateIn(t, dir, ClientCertFile).DNSNames)

	got, err = Generate(dir, GenerateOptions{Renew: true, Now: at(noon.Add(caValidity - time.Hour))})
	require.NoError(t, err)
	require.Equal(t, got.CAExpiry, got.Expiry, "no pair outlives its authority")
}

func TestRenewTakesTheNamesOfAForeignPair(t *testing.T) {
	dir := made(t, GenerateOptions{})
	selfSigned(t, dir, &x509.Certificate{DNSNames: []string{"old.example.org"}})
	require.NoError(t, os.Remove(filepath.Join(dir, ClientCertFile)))
	got, err := Generate(dir, GenerateOptions{Renew: true})
	require.NoError(t, err)
	require.Equal(t, []string{"old.example.org"}, got.ServerNames)
	require.Equal(t, DefaultClientName, got.ClientName)
}

func TestForceMakesANewAuthority(t *testing.T) {
	dir := made(t, GenerateOptions{})
	before := tree(t, dir)
	got, err := Generate(dir, GenerateOptions{Force: true, Validity: 2 * caValidity, Now: at(noon)})
	require.NoError(t, err)
	require.Equal(t, noon.Add(2*caValidity), got.Expiry, "an authority lives as long as its pairs")
	after := tree(t, dir)
	require.Len(t, after, len(before))
	for name := range before {
		require.NotEqual(t, before[name], after[name], name)
	}
}

func TestGenerateIsAllOrNothing(t *testing.T) {
	// A directory in the place of the last file makes its rename fail when the
	// others are renamed already.
	t.Run("over old files", func(t *testing.T) {
		dir := made(t, GenerateOptions{})
		require.NoError(t, os.Remove(filepath.Join(dir, ClientKeyFile)))
		require.NoError(t, os.Mkdir(filepath.Join(dir, ClientKeyFile), 0o700))
		require.NoError(t, os.Remove(filepath.Join(dir, ServerCertFile)))
		before := tree(t, dir)
		_, err := Generate(dir, GenerateOptions{Force: true})
		require.ErrorContains(t, err, "write "+filepath.Join(dir, ClientKeyFile)+": ")
		require.Equal(t, before, tree(t, dir))
		info, err := os.Stat(filepath.Join(dir, ServerKeyFile))
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), info.Mode().Perm())
	})
	t.Run("the directory cannot be made", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		_, err := Generate(path, GenerateOptions{Force: true})
		require.ErrorContains(t, err, "create the directory")
	})
}

func TestA11CheckServerName(t *testing.T) {
	dir := made(t, GenerateOptions{})
	cert := filepath.Join(dir, ServerCertFile)
	for _, address := range []string{
		"gpu-node-provider", "gpu-node-provider:8086", "GPU-node-provider.gpu-node-provider.svc:8086",
		"localhost:8086", "127.0.0.1:8086", "127.0.0.1", "[::1]:8086", "::1", "[::1]",
	} {
		require.NoError(t, CheckServerName(cert, address), address)
	}
	const has = "gpu-node-provider, gpu-node-provider.gpu-node-provider, gpu-node-provider.gpu-node-provider.svc, " +
		"gpu-node-provider.gpu-node-provider.svc.cluster.local, gpu-node-provider-webhook.gpu-node-provider.svc, localhost, 127.0.0.1, ::1"
	for address, host := range map[string]string{
		"10.96.0.7:8086": "10.96.0.7", "gpu-node-provider.kube-system.svc": "gpu-node-provider.kube-system.svc", "[fd00::1]:1": "fd00::1", "[fd00::2]": "fd00::2",
	} {
		require.EqualError(t, CheckServerName(cert, address), "certificate file "+cert+" is not valid for \""+host+"\" but for "+has+
			": dial one of those, or issue the certificate again with the name \""+host+"\"")
	}
	require.EqualError(t, CheckServerName(cert, ":8086"), "the address has no host part, so Cluster Autoscaler cannot verify a certificate for it")

	bare := t.TempDir()
	selfSigned(t, bare, &x509.Certificate{})
	require.ErrorContains(t, CheckServerName(filepath.Join(bare, ServerCertFile), "a"), `is not valid for "a" but for no name`)
	require.ErrorContains(t, CheckServerName(filepath.Join(bare, ServerKeyFile), "a"), "contains no certificate")
	require.ErrorContains(t, CheckServerName(filepath.Join(bare, "none"), "a"), "none: no such file")
}
