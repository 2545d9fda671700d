package testbed

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// checkout makes a checkout of an autoscaler that prints a line, below folder.
func checkout(t *testing.T, folder, module, goLine string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "autoscaler")
	inside := filepath.Join(dir, folder)
	require.NoError(t, os.MkdirAll(inside, 0o700))
	for name, text := range map[string]string{
		"go.mod":  "// of a test\nmodule " + module + "\n\ngo " + goLine + "\n",
		"grpc.go": "//go:build externalgrpc\n\npackage main\n\nconst cloud = \"externalgrpc\"\n",
		"main.go": "package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println(cloud) }\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(inside, name), []byte(text), 0o600))
	}
	return dir
}

func TestCheckoutIsBuilt(t *testing.T) {
	// The Makefile and CI set one toolchain for this repository, which must not bind the checkout.
	t.Setenv("GOTOOLCHAIN", "local")
	for name, folder := range map[string]string{"the repository": "cluster-autoscaler", "its folder": "."} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			dir := checkout(t, folder, autoscalerModule, "1.21")
			binary, err := autoscalerAt(t.Context(), root, dir)
			require.NoError(t, err)
			require.Equal(t, filepath.Join(root, ".cache", "autoscaler", "cluster-autoscaler"), binary)
			output, err := exec.Command(binary).CombinedOutput()
			require.NoError(t, err)
			require.Equal(t, "externalgrpc\n", string(output))

			again := "package main\n\nfunc main() { println(cloud, 2) }\n"
			require.NoError(t, os.WriteFile(filepath.Join(dir, folder, "main.go"), []byte(again), 0o600))
			binary, err = autoscalerAt(t.Context(), root, dir)
			require.NoError(t, err)
			output, err = exec.Command(binary).CombinedOutput()
			require.NoError(t, err)
			require.Equal(t, "externalgrpc 2\n", string(output), "a change is built")
		})
	}
}

// TestCheckoutChoosesItsToolchain: without a module proxy the toolchain cannot be
// loaded, and the error shows that Go tried to.
func TestCheckoutChoosesItsToolchain(t *testing.T) {
	t.Setenv("GOTOOLCHAIN", "local")
	t.Setenv("GOPROXY", "off")
	_, err := autoscalerAt(t.Context(), t.TempDir(), checkout(t, "cluster-autoscaler", autoscalerModule, "1.99.0"))
	require.ErrorContains(t, err, "go: download go1.99.0")
}

func TestBinaryIsTaken(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, "cluster-autoscaler")
	require.NoError(t, os.WriteFile(file, nil, 0o700))
	for _, path := range []string{file, "cluster-autoscaler"} {
		binary, err := autoscalerAt(t.Context(), root, path)
		require.NoError(t, err)
		require.Equal(t, file, binary)
	}
}

func TestNoAutoscaler(t *testing.T) {
	empty, other := t.TempDir(), checkout(t, ".", "example.com/other", "1.21")
	broken := checkout(t, "cluster-autoscaler", autoscalerModule, "1.21")
	require.NoError(t, os.Remove(filepath.Join(broken, "cluster-autoscaler", "grpc.go")))
	file := filepath.Join(empty, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for path, want := range map[string]string{
		filepath.Join(empty, "x"): "no such file or directory; set CLUSTER_AUTOSCALER to a cluster-autoscaler binary or a checkout",
		empty:                     "has neither cluster-autoscaler/go.mod nor go.mod; set CLUSTER_AUTOSCALER",
		other:                     `is module "example.com/other", not k8s.io/autoscaler/cluster-autoscaler; set CLUSTER_AUTOSCALER`,
		file:                      "is not executable; set CLUSTER_AUTOSCALER",
		broken:                    "undefined: cloud",
	} {
		_, err := autoscalerAt(t.Context(), t.TempDir(), path)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "CLUSTER_AUTOSCALER: ")
	}
}
