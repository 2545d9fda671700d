package process

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// parentVariable makes the test binary a parent that starts a child and waits.
const parentVariable = "PROCESS_TEST_PARENT"

func TestMain(m *testing.M) {
	if folder := os.Getenv(parentVariable); folder != "" {
		p, err := Start(Spec{Name: "child", Path: "sleep", Args: []string{"600"}, LogDir: folder})
		if err != nil {
			panic(err)
		}
		fmt.Println(p.PID())
		<-p.Ended()
		return
	}
	os.Exit(m.Run())
}

func lives(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestChildEndsWithItsParent(t *testing.T) {
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), parentVariable+"="+t.TempDir())
	out, err := parent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	child, err := strconv.Atoi(strings.TrimSpace(line))
	require.NoError(t, err)
	require.True(t, lives(child))
	require.NoError(t, parent.Process.Kill())
	_ = parent.Wait() // killed
	require.Eventually(t, func() bool { return !lives(child) }, 10*time.Second, 10*time.Millisecond)
}

func shell(t *testing.T, script string) *Process {
	p, err := Start(Spec{Name: "shell", Path: "sh", Args: []string{"-c", script}, LogDir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(p.Kill)
	return p
}

// says waits until the log holds a text.
func says(t *testing.T, p *Process, text string) {
	require.NoError(t, p.Ready(t.Context(), 10*time.Second, func(context.Context) error {
		if !strings.Contains(p.Tail(100), text) {
			return errors.New("not yet")
		}
		return nil
	}))
}

func TestStopIsGentle(t *testing.T) {
	p := shell(t, `trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done`)
	says(t, p, "up")
	p.Stop(10 * time.Second)
	require.Equal(t, 3, p.ExitCode())
	require.Contains(t, p.Tail(1), "bye")
}

func TestStopEndsWhatDoesNotListenAndItsChildren(t *testing.T) {
	p := shell(t, `trap '' TERM; sleep 600 & echo child $!; wait; sleep 600`)
	says(t, p, "child")
	var child int
	_, err := fmt.Sscanf(p.Tail(1), "child %d", &child)
	require.NoError(t, err)
	p.Stop(50 * time.Millisecond)
	require.Equal(t, -1, p.ExitCode(), "killed")
	require.Eventually(t, func() bool { return !lives(child) }, 10*time.Second, 10*time.Millisecond)
}

func TestReadyFailsAtOnceWhenTheProcessEnds(t *testing.T) {
	p := shell(t, `echo out of luck; exit 1`)
	err := p.Ready(t.Context(), time.Hour, func(context.Context) error { return errors.New("not yet") })
	require.ErrorContains(t, err, "out of luck")
}
