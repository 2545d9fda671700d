package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gpu-node-provider/provider/config"
)

// withoutFiles is a node group file that names missing files.
func withoutFiles(t *testing.T) string {
	return file{
		server: `address: "0.0.0.0:8086", httpAddress: "127.0.0.1:8087", tls: {certFile: /none/tls.crt, keyFile: /none/tls.key, clientCAFile: /none/ca.crt}`,
	}.write(t)
}

// configMapWith is a manifest with a ConfigMap that has a key for each file.
func configMapWith(t *testing.T, files map[string]string) string {
	t.Helper()
	text := "apiVersion: v1\nkind: Namespace\nmetadata: {name: gpu}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: provider, namespace: gpu}\ndata:\n"
	for key, content := range files {
		text += "  " + key + ": |\n    " + strings.ReplaceAll(strings.TrimSpace(content), "\n", "\n    ") + "\n"
	}
	path := filepath.Join(t.TempDir(), "manifest.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func contents(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

func TestValidate(t *testing.T) {
	path := file{}.write(t)
	p := start(t, "validate", "--config", path)
	require.Zero(t, p.wait(t), "%s", p.stderr.String())
	require.Equal(t, path+": ok, 2 node groups, 0 quotas\n", p.stdout.String())
}

func TestValidateOffline(t *testing.T) {
	path := withoutFiles(t)
	p := start(t, "validate", "--config", path)
	require.Equal(t, exitUsage, p.wait(t))
	require.Contains(t, p.stderr.String(), `server.tls.certFile: "/none/tls.crt" cannot be read`)
	require.Contains(t, p.stderr.String(), "correct the path or its permissions, or add --offline")
	require.Equal(t, 3, strings.Count(p.stderr.String(), "\n"), "one line a problem")

	p = start(t, "validate", "--config", path, "--offline")
	require.Zero(t, p.wait(t), "%s", p.stderr.String())
	require.Equal(t, path+": ok, 2 node groups, 0 quotas\n", p.stdout.String())

	bad := file{rest: "gpuLabel: 'a b'"}.write(t)
	p = start(t, "validate", "--config", bad, "--offline")
	require.Equal(t, exitUsage, p.wait(t))
	require.Contains(t, p.stderr.String(), `gpuLabel: "a b" is not a label key`)
}

// TestValidateShippedConfigMap: the command of the README works as written.
func TestValidateShippedConfigMap(t *testing.T) {
	t.Chdir("../..")
	p := start(t, "validate", "--config", "deploy/manifests/config.yaml", "--offline")
	require.Zero(t, p.wait(t), "%s", p.stderr.String())
	require.Equal(t, "deploy/manifests/config.yaml: ConfigMap gpu-node-provider/gpu-node-provider, key config.yaml: ok, 2 node groups, 2 quotas\n", p.stdout.String())

	p = start(t, "validate", "--config", "deploy/manifests/config.yaml")
	require.Equal(t, exitUsage, p.wait(t))
	require.Contains(t, p.stderr.String(), "deploy/manifests/config.yaml: ConfigMap gpu-node-provider/gpu-node-provider, key config.yaml: server.tls.certFile")
	require.Contains(t, p.stderr.String(), "--offline")
}

func TestValidateEveryKeyOfAConfigMap(t *testing.T) {
	good := contents(t, file{}.write(t))
	path := configMapWith(t, map[string]string{"a.yaml": good, "b.yaml": good, "notes": "kind: Notes"})
	p := start(t, "validate", "--config", path)
	require.Zero(t, p.wait(t), "%s", p.stderr.String())
	require.ElementsMatch(t, []string{
		path + ": ConfigMap gpu/provider, key a.yaml: ok, 2 node groups, 0 quotas",
		path + ": ConfigMap gpu/provider, key b.yaml: ok, 2 node groups, 0 quotas",
	}, strings.Split(strings.TrimSpace(p.stdout.String()), "\n"))

	path = configMapWith(t, map[string]string{"a.yaml": good, "b.yaml": good + "size: 1\n"})
	p = start(t, "validate", "--config", path)
	require.Equal(t, exitUsage, p.wait(t))
	require.Contains(t, p.stderr.String(), "size: unknown key")
	require.Contains(t, p.stderr.String(), path+":")
	require.Empty(t, p.stdout.String(), "one bad file is no success")
}

func TestValidatePrint(t *testing.T) {
	path := file{}.write(t)
	p := start(t, "validate", "--config", path, "--print")
	require.Zero(t, p.wait(t), "%s", p.stderr.String())
	printed, err := config.Parse([]byte(p.stdout.String()))
	require.NoError(t, err)
	require.Equal(t, "t4", printed.NodeGroups[0].ID)

	manifest := configMapWith(t, map[string]string{"a.yaml": contents(t, path)})
	p = start(t, "validate", "--config", manifest, "--print")
	require.Zero(t, p.wait(t), "%s", p.stderr.String())
	require.True(t, strings.HasPrefix(p.stdout.String(), "# "+manifest+": ConfigMap gpu/provider, key a.yaml\n"), p.stdout.String())
	again, err := config.Parse([]byte(p.stdout.String()))
	require.NoError(t, err)
	require.Equal(t, printed, again)

	both := configMapWith(t, map[string]string{"a.yaml": contents(t, path), "b.yaml": contents(t, path)})
	p = start(t, "validate", "--config", both, "--print")
	require.Zero(t, p.wait(t), "%s", p.stderr.String())
	documents := strings.Split(p.stdout.String(), "---\n")
	require.Len(t, documents, 2)
	for _, document := range documents {
		_, err := config.Parse([]byte(document))
		require.NoError(t, err)
	}
}

func TestValidateStandardInput(t *testing.T) {
	run := func(text string) (stdout string, err error) {
		root := rootCommand()
		var out output
		root.SetArgs([]string{"validate", "--config", "-", "--offline"})
		root.SetIn(strings.NewReader(text))
		root.SetOut(&out)
		err = root.ExecuteContext(t.Context())
		return out.String(), err
	}
	said, err := run(contents(t, withoutFiles(t)))
	require.NoError(t, err)
	require.Equal(t, "standard input: ok, 2 node groups, 0 quotas\n", said)
	said, err = run(contents(t, configMapWith(t, map[string]string{"c": contents(t, withoutFiles(t))})))
	require.NoError(t, err)
	require.Equal(t, "standard input: ConfigMap gpu/provider, key c: ok, 2 node groups, 0 quotas\n", said)
	_, err = run("")
	require.ErrorContains(t, err, "standard input: is empty")
	require.ErrorAs(t, err, &usageError{})
}

func TestValidateRefuses(t *testing.T) {
	none := configMapWith(t, map[string]string{"notes": "kind: Notes"})
	large := filepath.Join(t.TempDir(), "large.yaml")
	require.NoError(t, os.WriteFile(large, []byte(strings.Repeat("#\n", maxManifest)), 0o600))
	for want, args := range map[string][]string{
		"--config FILE is missing": {},
		"takes no arguments":       {"--config", none, "x"},
		"no such file":             {"--config", "/none"},
		none + ": no key of ConfigMap gpu/provider holds a node group file (kind: ProviderConfig)": {"--config", none, "--offline"},
		large + " is larger than 16 MiB": {"--config", large},
		"/dev/zero is larger":            {"--config", "/dev/zero"},
	} {
		p := start(t, append([]string{"validate"}, args...)...)
		require.Equal(t, exitUsage, p.wait(t), args)
		require.Contains(t, p.stderr.String(), want)
		require.Equal(t, 1, strings.Count(p.stderr.String(), "\n"), p.stderr.String())
		require.Empty(t, p.stdout.String())
	}
}

// TestConfigMapIsNoNodeGroupFile: commands that use the file reject a ConfigMap.
func TestConfigMapIsNoNodeGroupFile(t *testing.T) {
	path := configMapWith(t, map[string]string{"c": contents(t, file{}.write(t))})
	for _, command := range []string{"serve", "doctor"} {
		p := start(t, command, "--config", path)
		require.Equal(t, exitUsage, p.wait(t))
		require.Contains(t, p.stderr.String(), path+" is a manifest with ConfigMap gpu/provider, not a node group file")
		require.Contains(t, p.stderr.String(), "gpu-node-provider validate --config "+path+" --offline")
		require.Equal(t, 1, strings.Count(p.stderr.String(), "\n"), p.stderr.String())
		require.Empty(t, p.stdout.String())
	}
}
