package nodeagent

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

// catches says whether a process has a handler for a signal, by Linux's /proc. In
// a container it would be process 1, for which the kernel drops signals without
// one, so a SIGTERM that comes before a program has set its handler is lost.
func catches(pid int, signal syscall.Signal) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false // it has ended
	}
	for line := range strings.Lines(string(text)) {
		var mask uint64
		if n, _ := fmt.Sscanf(line, "SigCgt: %x", &mask); n == 1 {
			return mask&(1<<(uint(signal)-1)) != 0
		}
	}
	return false
}
