//go:build image

package image

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// user is the number of the image's user and group.
const user = 65532

// root is a folder that holds the image's files and what a test mounts.
type root struct {
	t      *testing.T
	folder string
}

func newRoot(t *testing.T) root {
	t.Helper()
	image, err := readImage()
	require.NoError(t, err)
	r := root{t, t.TempDir()}
	require.NoError(t, image.unpack(r.folder))
	// The test's own folders are closed to others.
	for folder := r.folder; strings.HasPrefix(folder, os.TempDir()) && folder != os.TempDir(); folder = filepath.Dir(folder) {
		require.NoError(t, os.Chmod(folder, 0o755))
	}
	return r
}

func (r root) path(name string) string { return filepath.Join(r.folder, name) }

// mount puts a file there, as a volume of the Pod would.
func (r root) mount(name string, data []byte) {
	r.t.Helper()
	require.NoError(r.t, os.MkdirAll(filepath.Dir(r.path(name)), 0o755))
	require.NoError(r.t, os.WriteFile(r.path(name), data, 0o644))
}

// program is one that runs in the root.
type program struct {
	*exec.Cmd
	output *output
	ended  chan struct{}
}

// start starts a program of the image, as its user, in an environment that holds
// nothing but the variables given.
func (r root) start(environment []string, path string, args ...string) *program {
	r.t.Helper()
	p := &program{exec.Command(path, args...), &output{}, make(chan struct{})}
	p.Dir, p.Env, p.Stdout, p.Stderr = "/", append([]string{}, environment...), p.output, p.output
	p.SysProcAttr = &syscall.SysProcAttr{Chroot: r.folder, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() == 0 {
		p.SysProcAttr.Credential = &syscall.Credential{Uid: user, Gid: user}
	} else { // may only change its root where it is root itself: in a namespace of users
		p.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		p.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: user, HostID: os.Getuid(), Size: 1}}
		p.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: user, HostID: os.Getgid(), Size: 1}}
	}
	require.NoError(r.t, p.Start(), "run the tests as root, or allow namespaces of users (kernel.unprivileged_userns_clone)")
	go func() {
		_ = p.Wait() // ExitCode tells
		close(p.ended)
	}()
	r.t.Cleanup(func() {
		_ = p.Process.Kill() // it may have ended
		<-p.ended
		if r.t.Failed() {
			r.t.Logf("%s:\n%s", p, p.output)
		}
	})
	return p
}

// run waits for the program's end.
func (r root) run(environment []string, path string, args ...string) (code int, output string) {
	r.t.Helper()
	p := r.start(environment, path, args...)
	select {
	case <-p.ended:
	case <-time.After(patience):
		require.FailNow(r.t, "still running", p.String())
	}
	return p.ProcessState.ExitCode(), p.output.String()
}

// output is what a program writes while the test reads it.
type output struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buffer.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buffer.String()
}
