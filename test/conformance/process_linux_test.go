package conformance

import "syscall"

// dieWithParent ends the program even when the tests are killed.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
