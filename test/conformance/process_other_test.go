//go:build !linux

package conformance

import "syscall"

// dieWithParent is for Linux alone.
func dieWithParent() *syscall.SysProcAttr { return nil }
