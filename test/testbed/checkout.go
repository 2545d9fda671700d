package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// AutoscalerVariable names a real Cluster Autoscaler: its binary, or a checkout of
// its sources. A relative path begins at the repository.
const AutoscalerVariable = "CLUSTER_AUTOSCALER"

const (
	autoscalerModule = "k8s.io/autoscaler/cluster-autoscaler"
	setOrUnset       = "set " + AutoscalerVariable + " to a cluster-autoscaler binary or a checkout of github.com/kubernetes/autoscaler, or unset it to use the stand-in"
)

// StandIn is true when Cluster Autoscaler is not the real one.
func StandIn() bool { return os.Getenv(AutoscalerVariable) == "" }

// builtAutoscaler builds a checkout once for all beds of a process.
var builtAutoscaler = sync.OnceValues(func() (string, error) {
	root, err := repository()
	if err != nil {
		return "", err
	}
	return autoscalerAt(context.Background(), root, os.Getenv(AutoscalerVariable))
})

// autoscalerAt returns the binary that a path names, and builds it first if it
// names a checkout.
func autoscalerAt(ctx context.Context, root, path string) (string, error) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(root, path)
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", fmt.Errorf("%s: %w; %s", AutoscalerVariable, err, setOrUnset)
	case info.IsDir():
		return buildCheckout(ctx, path, filepath.Join(root, ".cache", "autoscaler", "cluster-autoscaler"))
	case info.Mode().Perm()&0o111 == 0:
		return "", fmt.Errorf("%s: %s is not executable; %s", AutoscalerVariable, path, setOrUnset)
	}
	return path, nil
}

// buildCheckout builds the autoscaler with externalgrpc as its only cloud. Go's
// build cache makes it quick when nothing has changed.
func buildCheckout(ctx context.Context, checkout, binary string) (string, error) {
	module, err := moduleFolder(checkout)
	if err != nil {
		return "", fmt.Errorf("%s: %w; %s", AutoscalerVariable, err, setOrUnset)
	}
	fmt.Fprintf(os.Stderr, "building Cluster Autoscaler from %s; the first time takes minutes\n", module)
	build := exec.CommandContext(ctx, "go", "build", "-tags", "externalgrpc", "-o", binary, ".")
	build.Dir = module
	// The checkout's go.mod may ask for a newer Go than the one that runs the tests.
	build.Env = append(os.Environ(), "GOTOOLCHAIN=auto", "GOWORK=off", "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		lines := bytes.Split(bytes.TrimSpace(output), []byte("\n"))
		return "", fmt.Errorf("%s: %s in %s: %w; build it there by hand, or name a binary. Its output ends:\n%s",
			AutoscalerVariable, strings.Join(build.Args, " "), module, err, bytes.Join(lines[max(0, len(lines)-15):], []byte("\n")))
	}
	return binary, nil
}

// moduleFolder is the folder of a checkout that holds the autoscaler's go.mod.
func moduleFolder(checkout string) (string, error) {
	for _, folder := range []string{filepath.Join(checkout, "cluster-autoscaler"), checkout} {
		text, err := os.ReadFile(filepath.Join(folder, "go.mod"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		if module := moduleOf(string(text)); module != autoscalerModule {
			return "", fmt.Errorf("%s is module %q, not %s", folder, module, autoscalerModule)
		}
		return folder, nil
	}
	return "", fmt.Errorf("%s has neither cluster-autoscaler/go.mod nor go.mod", checkout)
}

// moduleOf reads the module line of a go.mod.
func moduleOf(text string) string {
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); len(words) >= 2 && words[0] == "module" {
			return strings.Trim(words[1], `"`)
		}
	}
	return ""
}
