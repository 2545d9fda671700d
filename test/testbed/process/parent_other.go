//go:build !linux

package process

import "syscall"

// EndWithParent has no effect: only Linux can do it.
func EndWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
