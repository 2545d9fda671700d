//go:build image

package image

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"debug/elf"
	"encoding/pem"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const bundle = "etc/ssl/certs/ca-certificates.crt"

// programs are at the root, where a trainer's Dockerfile copies checkpoint-ack from.
var programs = []string{"checkpoint-ack", "gpu-node-provider"}

func TestFiles(t *testing.T) {
	image, err := readImage()
	require.NoError(t, err)
	var names []string
	for _, f := range image.files {
		name := filepath.Clean(f.Name)
		mode := fs.FileMode(0o755)
		if f.Typeflag == tar.TypeReg {
			names = append(names, name)
			if name == bundle {
				mode = 0o644
			}
		}
		assert.Equal(t, mode, f.FileInfo().Mode().Perm(), name)
		assert.Equal(t, [2]int{0, 0}, [2]int{f.Uid, f.Gid}, "the owner of %s", name)
	}
	assert.ElementsMatch(t, append([]string{bundle}, programs...), names)
}

// TestPrograms: the programs need no file of the system, and are those of `make build`.
func TestPrograms(t *testing.T) {
	image, err := readImage()
	require.NoError(t, err)
	for _, name := range programs {
		data := image.file(t, name)
		program, err := elf.NewFile(bytes.NewReader(data))
		require.NoError(t, err, name)
		libraries, err := program.ImportedLibraries()
		require.NoError(t, err, name)
		assert.Empty(t, libraries, name)
		for _, p := range program.Progs {
			assert.NotEqual(t, elf.PT_INTERP, p.Type, "%s asks for an interpreter", name)
		}
		built, err := os.ReadFile(filepath.Join("../../bin", name))
		require.NoError(t, err)
		assert.True(t, bytes.Equal(built, data), "bin/%s is another program than the image's: build both of the same state with `make image`, and with the same flags in Makefile and Dockerfile", name)
	}
}

func TestConfiguration(t *testing.T) {
	image, err := readImage()
	require.NoError(t, err)
	version := strings.TrimSpace(image.version(t))
	require.NotEqual(t, "dev", version, "`make image` names the version")
	c := image.config.Config
	assert.Equal(t, "65532:65532", c.User)
	assert.Equal(t, []string{"/gpu-node-provider"}, c.Entrypoint)
	assert.Empty(t, c.Cmd)
	assert.Equal(t, map[string]struct{}{"8086/tcp": {}, "8087/tcp": {}, "8443/tcp": {}}, c.ExposedPorts)
	assert.NotEmpty(t, c.Labels["org.opencontainers.image.source"])
	assert.Subset(t, c.Labels, map[string]string{
		"org.opencontainers.image.title":    "gpu-node-provider",
		"org.opencontainers.image.version":  version,
		"org.opencontainers.image.licenses": "Apache-2.0",
	})
	for _, variable := range c.Env {
		assert.True(t, strings.HasPrefix(variable, "PATH="), "%s is in the environment of every program", variable)
	}
}

// TestRoots: AWS's own authorities are in the bundle, and nothing in it is not an authority.
func TestRoots(t *testing.T) {
	image, err := readImage()
	require.NoError(t, err)
	var names []string
	for rest := image.file(t, bundle); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			assert.Empty(t, strings.TrimSpace(string(rest)))
			break
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		require.NoError(t, err)
		assert.True(t, certificate.IsCA || certificate.Version < 3, certificate.Subject.String())
		names = append(names, certificate.Subject.CommonName)
	}
	assert.Subset(t, names, []string{"Amazon Root CA 1", "Amazon Root CA 2", "Amazon Root CA 3", "Amazon Root CA 4"})
}

func TestCommandsRun(t *testing.T) {
	r := newRoot(t)
	code, output := r.run(nil, "/gpu-node-provider", "--help")
	assert.Zero(t, code, output)
	assert.Contains(t, output, "serve")
	code, output = r.run(nil, "/checkpoint-ack", "--help")
	assert.Zero(t, code, output)
	assert.Contains(t, output, "REDIS_URL")
	code, output = r.run(nil, "/checkpoint-ack")
	assert.Equal(t, 2, code, "wrong use is told apart: %s", output)
}

func (i *builtImage) file(t *testing.T, name string) []byte {
	t.Helper()
	for _, f := range i.files {
		if filepath.Clean(f.Name) == name {
			return f.data
		}
	}
	require.FailNow(t, "the image has no "+name)
	return nil
}

// version is what the image's program says.
func (i *builtImage) version(t *testing.T) string {
	t.Helper()
	code, output := newRoot(t).run(nil, "/gpu-node-provider", "version")
	require.Zero(t, code, output)
	return output
}
