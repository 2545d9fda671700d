package main

import (
	"context"
	"fmt"
	"os/exec"
	"time"

	"github.com/redis/go-redis/v9"

	"gpu-node-provider/test/testbed/process"
)

// redisServer is a real redis-server that keeps nothing on disk.
type redisServer struct {
	*redis.Client
	address string
	process *process.Process
}

func startRedis(ctx context.Context, dir string) (*redisServer, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, fmt.Errorf("%w; install the package redis-server", err)
	}
	ports, err := process.FreePorts(1)
	if err != nil {
		return nil, err
	}
	p, err := process.Start(process.Spec{
		Name: "redis", Path: path, LogDir: dir, WorkDir: dir,
		Args: []string{"--port", fmt.Sprint(ports[0]), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"},
	})
	if err != nil {
		return nil, err
	}
	address := fmt.Sprintf("127.0.0.1:%d", ports[0])
	s := &redisServer{address: address, process: p, Client: redis.NewClient(&redis.Options{Addr: address, Protocol: 2, DisableIdentity: true})}
	if err := p.Ready(ctx, 10*time.Second, func(ctx context.Context) error { return s.Ping(ctx).Err() }); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func (s *redisServer) stop() {
	_ = s.Close() // nobody needs it any more
	s.process.Kill()
}
