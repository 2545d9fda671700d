package config

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCheckFiles(t *testing.T) {
	dir := t.TempDir()
	there := filepath.Join(dir, "there")
	require.NoError(t, os.WriteFile(there, []byte("x"), 0o600))
	pipe := filepath.Join(dir, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	missing := filepath.Join(dir, "missing")

	everywhere := func(file string) *Config {
		return &Config{
			Server:     Server{TLS: &TLS{CertFile: file, KeyFile: file, ClientCAFile: file}},
			Kubernetes: &Kubernetes{Kubeconfig: file},
			Redis:      Redis{PasswordFile: file, TLS: &RedisTLS{CAFile: file, CertFile: file, KeyFile: file}},
			Cloud:      Cloud{Simulated: &Simulated{StateFile: filepath.Join(file, "state.json")}},
		}
	}
	fields := []string{
		"server.tls.certFile", "server.tls.keyFile", "server.tls.clientCAFile", "kubernetes.kubeconfig",
		"redis.passwordFile", "redis.tls.caFile", "redis.tls.certFile", "redis.tls.keyFile",
	}
	for _, tt := range []struct{ name, file, reason string }{
		{"missing", missing, "no such file or directory"},
		{"a directory", dir, "it is not a regular file"},
		{"a pipe", pipe, "it is not a regular file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var want []string
			for _, field := range fields {
				want = append(want, "provider.yaml: "+field+": "+show(tt.file)+" cannot be read: "+tt.reason+"; correct the path or its permissions")
			}
			if tt.file != dir {
				want = append(want, "provider.yaml: cloud.simulated.stateFile: "+show(tt.file+"/state.json")+" is in a directory that does not exist; create it, or correct the path")
			}
			require.EqualError(t, everywhere(tt.file).CheckFiles("provider.yaml"), strings.Join(want, "\n"))
		})
	}

	good := everywhere(there)
	good.Cloud.Simulated.StateFile = filepath.Join(dir, "not-there-yet.json")
	require.NoError(t, good.CheckFiles("provider.yaml"))
	require.NoError(t, (&Config{}).CheckFiles("provider.yaml"))
}

func TestLoadOfWhatCannotBeRead(t *testing.T) {
	_, err := Load(filepath.Join(t.TempDir(), "missing.yaml"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "read node group file: open ")
	assert.NotContains(t, err.Error(), "\n")

	_, err = Load(t.TempDir())
	require.ErrorContains(t, err, "is a directory")
}

func TestLoadStopsAtTheSizeLimit(t *testing.T) {
	_, err := Load("/dev/zero")
	require.EqualError(t, err, "/dev/zero: is larger than 1 MiB; keep only the node group file's own content in it")

	padded := minimal(t) + "#" + strings.Repeat("x", maxFileSize)
	parsed(t, padded[:maxFileSize])
	_, err = Parse([]byte(padded[:maxFileSize+1]))
	require.EqualError(t, err, "is larger than 1 MiB; keep only the node group file's own content in it")
}
