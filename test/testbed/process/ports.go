package process

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
)

// The ports lie below those that Linux gives to outgoing connections: one of
// these may take a port in the time between its being found free and its use.
const (
	firstPort = 18_000
	portRange = 14_000
)

// nextPort walks through the range, so that no port is given twice in a process;
// it begins anywhere, for the sake of other processes that do the same.
var nextPort atomic.Uint32

func init() { nextPort.Store(rand.Uint32N(portRange)) }

// FreePorts finds n ports of loopback that nothing listens on, for servers that
// cannot choose their own.
func FreePorts(n int) ([]int, error) {
	ports := make([]int, 0, n)
	for range portRange {
		port := firstPort + int(nextPort.Add(1)%portRange)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			return nil, fmt.Errorf("port %d: %w", port, err)
		}
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, errors.New("no free port of loopback is left")
}
