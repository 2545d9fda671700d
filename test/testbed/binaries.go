package testbed

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"gpu-node-provider/test/controlplane"
)

const (
	startTimeout = time.Minute
	stopTimeout  = 5 * time.Second
)

// binaries are the programs of a bed. `make e2e` and `make demo` build them.
type binaries struct {
	root         string // of the repository
	controlPlane string // folder
	provider     string
	autoscaler   string
	redis        string
	python       string // with the trainer's requirements
}

func findBinaries() (b binaries, err error) {
	if b.root, err = repository(); err != nil {
		return b, err
	}
	cache := filepath.Join(b.root, ".cache")
	b.controlPlane = filepath.Join(cache, "controlplane")
	b.provider = filepath.Join(b.root, "bin", "gpu-node-provider")
	b.autoscaler = filepath.Join(cache, "bin", "autoscaler")
	b.python = filepath.Join(cache, "trainer", "bin", "python")
	if !StandIn() {
		if b.autoscaler, err = builtAutoscaler(); err != nil {
			return b, err
		}
	}
	if b.redis, err = exec.LookPath("redis-server"); err != nil {
		return b, fmt.Errorf("%w; install the package redis-server", err)
	}
	problems := []error{controlplane.Built(b.controlPlane)}
	for _, file := range []string{b.provider, b.autoscaler, b.python} {
		if _, err := os.Stat(file); err != nil {
			problems = append(problems, fmt.Errorf("%w; start this with `make e2e` or `make demo`, which build it", err))
		}
	}
	return b, errors.Join(problems...)
}

// repository is the folder above the working directory that holds go.mod.
func repository() (string, error) {
	folder, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(folder, "go.mod")); err == nil {
			return folder, nil
		}
		parent := filepath.Dir(folder)
		if parent == folder {
			return "", errors.New("no go.mod in this folder or above: run this inside the repository")
		}
		folder = parent
	}
}
