package conformance

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// binary is the program under test; empty when a server elsewhere is tested.
var binary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	if remoteAddress() != "" {
		return m.Run()
	}
	// A test waits for another process most of its time, so the number of cores
	// says nothing about how many can run side by side.
	if err := flag.Set("test.parallel", "8"); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	dir, err := os.MkdirTemp("", "conformance-")
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if binary = os.Getenv("CONFORMANCE_BINARY"); binary == "" {
		binary = filepath.Join(dir, "gpu-node-provider")
		build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", binary, "gpu-node-provider/cmd/gpu-node-provider")
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, "building the program under test:", err)
			return 1
		}
	}
	return m.Run()
}

// remoteAddress is the server to test instead of one of our own.
func remoteAddress() string { return os.Getenv("CONFORMANCE_ADDRESS") }

// parallel lets a test run beside others, unless all of them share one server.
func parallel(t *testing.T) {
	t.Helper()
	if remoteAddress() == "" {
		t.Parallel()
	}
}

// needsOwnServer skips what cannot be shown on a server elsewhere.
func needsOwnServer(t *testing.T) {
	t.Helper()
	if remoteAddress() != "" {
		t.Skip("needs a server of its own: node group file, faults, restarts, log or metrics (CONFORMANCE_ADDRESS is set)")
	}
}
