package aws

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	"gpu-node-provider/cloud/aws"
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	// What takes long here is waiting: for deadlines, and for the SDK's pauses.
	if err := flag.Set("test.parallel", "16"); err != nil {
		return failed(err)
	}
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_EC2_METADATA_DISABLED": "true"} {
		if err := os.Setenv(name, value); err != nil {
			return failed(err)
		}
	}
	code := m.Run()
	if code == 0 && everything() {
		if err := called.complete(); err != nil {
			return failed(err)
		}
	}
	return code
}

func failed(err error) int {
	_, _ = fmt.Fprintln(os.Stderr, "test/aws:", err)
	return 1
}

// everything says whether all tests have run.
func everything() bool {
	for _, name := range []string{"test.run", "test.skip", "test.list"} {
		if f := flag.Lookup(name); f != nil && f.Value.String() != "" {
			return false
		}
	}
	return !testing.Short() && !called.skipped
}

// actions are the actions of AWS that arrived at a stand-in.
type actions struct {
	mu      sync.Mutex
	seen    map[string]bool
	skipped bool // where moto is missing, what only moto answers is not called
}

var called = actions{seen: map[string]bool{}}

// add returns those that no policy of ours allows.
func (a *actions) add(names []string) (forbidden []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range names {
		a.seen[name] = true
		if !slices.ContainsFunc(aws.Permissions, func(p aws.Permission) bool { return p.Action == name }) {
			forbidden = append(forbidden, name)
		}
	}
	return forbidden
}

// complete fails when a permission is asked for that no test of this package
// needs: the policy would give away more than the provider uses.
func (a *actions) complete() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var unused []string
	for _, p := range aws.Permissions {
		if !a.seen[p.Action] {
			unused = append(unused, p.Action)
		}
	}
	if len(unused) > 0 {
		return fmt.Errorf("in aws.Permissions, and called by no test: %v", unused)
	}
	return nil
}
