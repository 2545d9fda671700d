package awstest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"
)

// Moto is a moto server, a process of its own that speaks for all of AWS:
// https://docs.getmoto.org/en/latest/docs/server_mode.html
type Moto struct {
	url     string
	command *exec.Cmd
	ended   chan struct{}
	logPath string
}

// motoStart is how long the server may take to listen. It needs two seconds; a
// machine that also runs everything else needs more.
const motoStart = 60 * time.Second

// StartMoto starts a moto server, which ends with the test, and with the test's
// process if that dies. MOTO_PYTHON names the Python that has moto; without it
// the one is used that make installs. Where there is none the test is skipped,
// or fails where CI is true.
func StartMoto(t testing.TB) *Moto {
	t.Helper()
	python, err := motoPython()
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	m := &Moto{ended: make(chan struct{}), logPath: filepath.Join(t.TempDir(), "moto.log")}
	if err := m.start(python); err != nil {
		t.Fatalf("starting moto: %v", err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-m.command.Process.Pid, syscall.SIGKILL) // it keeps nothing
		<-m.ended
		if t.Failed() {
			t.Logf("moto's log ends:\n%s", m.tail())
		}
	})
	if m.url, err = m.address(t.Context()); err != nil {
		t.Fatalf("waiting for moto: %v; its log ends:\n%s", err, m.tail())
	}
	return m
}

// URL is the endpoint of all services.
func (m *Moto) URL() string { return m.url }

// Reset has the server forget everything:
// https://docs.getmoto.org/en/latest/docs/server_mode.html#reset-api
func (m *Moto) Reset(t testing.TB) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, m.url+"/moto-api/reset", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Close = true
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatalf("resetting moto: %v", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("resetting moto: %s", answer.Status)
	}
}

// motoPython finds the Python that has moto.
func motoPython() (string, error) {
	if python := os.Getenv("MOTO_PYTHON"); python != "" {
		return python, nil
	}
	root, err := filepath.Abs(".")
	if err != nil {
		return "", fmt.Errorf("finding the module: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			break
		}
		parent := filepath.Dir(root)
		if parent == root {
			return "", errors.New("this is not within the module, and MOTO_PYTHON is not set")
		}
		root = parent
	}
	python := filepath.Join(root, ".cache", "moto", "bin", "python")
	if _, err := os.Stat(python); err != nil {
		return "", errors.New("moto is not installed: run make moto, or set MOTO_PYTHON")
	}
	return python, nil
}

func (m *Moto) start(python string) error {
	log, err := os.Create(m.logPath)
	if err != nil {
		return fmt.Errorf("its log: %w", err)
	}
	defer log.Close() //nolint:errcheck // the process has its own descriptor
	// Port 0 lets the kernel choose one that is free; the log tells which.
	m.command = exec.Command(python, "-m", "moto.server", "--host", "127.0.0.1", "--port", "0")
	m.command.Env = append(os.Environ(),
		"MOTO_EC2_LOAD_DEFAULT_AMIS=false", // a second of each start
		"PYTHONDONTWRITEBYTECODE=1",        // the environment may be read-only
		"PYTHONUNBUFFERED=1",
	)
	m.command.Stdout, m.command.Stderr = log, log
	m.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := m.command.Start(); err != nil {
		return err
	}
	go func() {
		_ = m.command.Wait() // it is killed in the end
		close(m.ended)
	}()
	return nil
}

var motoListens = regexp.MustCompile(`Running on (http://127\.0\.0\.1:\d+)`)

// address waits until the log says where the server listens.
func (m *Moto) address(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, motoStart)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if found := motoListens.FindStringSubmatch(m.log()); found != nil {
			return found[1], nil
		}
		select {
		case <-m.ended:
			return "", errors.New("it has ended")
		case <-ctx.Done():
			return "", ctx.Err()
		case <-tick.C:
		}
	}
}

// tail is the end of the log; most of it are lines of calls that went well.
func (m *Moto) tail() string {
	const last = 4 << 10
	log := m.log()
	return log[max(0, len(log)-last):]
}

func (m *Moto) log() string {
	data, err := os.ReadFile(m.logPath)
	if err != nil {
		return err.Error()
	}
	return string(data)
}
