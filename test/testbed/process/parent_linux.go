package process

import "syscall"

// EndWithParent makes the kernel end a child when its parent ends, even by SIGKILL.
func EndWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
