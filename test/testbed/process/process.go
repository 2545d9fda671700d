// Package process runs the parts of a testbed as real processes: each with a
// log of its own, waited for until it is ready, stopped as a service manager
// would, and ended by the kernel when the test itself dies. It also finds ports
// for them. It imports the standard library only, so that unit tests can start a
// real redis-server without the rest of the testbed.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Spec says what to run.
type Spec struct {
	Name    string // of the log file
	Path    string
	Args    []string
	Env     []string // added to the own environment
	LogDir  string   // <Name>.log in it gets stdout and stderr
	Append  bool     // to the log of an earlier run
	WorkDir string
}

// Process is one that was started.
type Process struct {
	Name string
	Log  string // file

	command *exec.Cmd
	ended   chan struct{}
	err     error // of Wait, once ended is closed
}

// Start starts a process. It leads a process group, so that Kill reaches what
// it has started itself.
func Start(spec Spec) (*Process, error) {
	p := &Process{Name: spec.Name, Log: filepath.Join(spec.LogDir, spec.Name+".log"), ended: make(chan struct{})}
	mode := os.O_CREATE | os.O_WRONLY | os.O_TRUNC
	if spec.Append {
		mode = os.O_CREATE | os.O_WRONLY | os.O_APPEND
	}
	log, err := os.OpenFile(p.Log, mode, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", spec.Name, err)
	}
	defer log.Close() //nolint:errcheck // the process has its own descriptor
	p.command = exec.Command(spec.Path, spec.Args...)
	p.command.Env = append(os.Environ(), spec.Env...)
	p.command.Dir = spec.WorkDir
	p.command.Stdout, p.command.Stderr = log, log
	p.command.SysProcAttr = EndWithParent()
	p.command.SysProcAttr.Setpgid = true
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", spec.Name, err)
	}
	go func() {
		p.err = p.command.Wait()
		close(p.ended)
	}()
	return p, nil
}

// PID is the process's number.
func (p *Process) PID() int { return p.command.Process.Pid }

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// ExitCode is the exit code of a process that has ended; -1 after a signal.
func (p *Process) ExitCode() int {
	<-p.ended
	return p.command.ProcessState.ExitCode()
}

// Ready polls until check passes. It fails at once when the process has ended.
func (p *Process) Ready(ctx context.Context, within time.Duration, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("%s ended (%w) before it was ready; its log ends:\n%s", p.Name, p.err, p.Tail(15))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready after %s: %w; its log ends:\n%s", p.Name, within, err, p.Tail(15))
		case <-tick.C:
		}
	}
}

// Signal sends a signal to the process alone.
func (p *Process) Signal(s syscall.Signal) error {
	if err := p.command.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s to %s: %w", s, p.Name, err)
	}
	return nil
}

// Stop sends SIGTERM, and SIGKILL to the whole group when grace has passed or
// when the process has ended and left others behind.
func (p *Process) Stop(grace time.Duration) {
	_ = p.Signal(syscall.SIGTERM) // it may have ended by itself
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.ended:
	case <-timer.C:
	}
	p.Kill()
}

// Kill ends the process and all of its group, and waits.
func (p *Process) Kill() {
	_ = syscall.Kill(-p.PID(), syscall.SIGKILL) // none of them may be left
	<-p.ended
}

// Tail is the end of the log, to show in an error.
func (p *Process) Tail(lines int) string {
	data, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	all := bytes.Split(bytes.TrimRight(data, "\n"), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}
