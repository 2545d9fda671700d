package testbed

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"

	"gpu-node-provider/test/testbed/process"
)

func (b *Bed) prepareRedis(context.Context) error {
	if err := os.MkdirAll(b.Logs(), 0o700); err != nil {
		return err
	}
	ports, err := process.FreePorts(1)
	if err != nil {
		return err
	}
	b.redisAddress = fmt.Sprintf("127.0.0.1:%d", ports[0])
	b.Redis = redis.NewClient(&redis.Options{Addr: b.redisAddress})
	return nil
}

// StartRedis starts the server, again perhaps: it comes back at its address, and
// has forgotten everything.
func (b *Bed) StartRedis(ctx context.Context) (err error) {
	b.redis, err = b.redisServer(ctx, "redis", b.redisAddress)
	return err
}

// KillRedis ends it as a crash would.
func (b *Bed) KillRedis() { b.redis.Kill() }

// PauseRedis has it answer nobody until ResumeRedis. Connections stay.
func (b *Bed) PauseRedis() error { return b.redis.Signal(syscall.SIGSTOP) }

// ResumeRedis ends the pause.
func (b *Bed) ResumeRedis() error { return b.redis.Signal(syscall.SIGCONT) }

// sentinel is the name of the process.
const sentinel = "redis-sentinel"

// FailOverRedis adds a replica, and a Sentinel that watches both and has the
// replica take over ten seconds after the first has gone. b.Redis and the provider,
// which is started anew, ask the Sentinel from now on.
func (b *Bed) FailOverRedis(ctx context.Context) error {
	ports, err := process.FreePorts(2)
	if err != nil {
		return err
	}
	replica, watcher := fmt.Sprintf("127.0.0.1:%d", ports[0]), fmt.Sprintf("127.0.0.1:%d", ports[1])
	master := strings.Replace(b.redisAddress, ":", " ", 1)
	p, err := b.redisServer(ctx, "redis-replica", replica, "--replicaof", master, "--repl-diskless-sync-delay", "0")
	if err != nil {
		return err
	}
	b.others = append(b.others, p)
	config := b.file("sentinel.conf")
	text := fmt.Sprintf("sentinel monitor m %s 1\nsentinel down-after-milliseconds m 10000\nsentinel failover-timeout m 5000\n", master)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	if p, err = b.redisServer(ctx, sentinel, watcher); err != nil {
		return err
	}
	b.others = append(b.others, p)
	client := redis.NewSentinelClient(&redis.Options{Addr: watcher})
	defer client.Close() //nolint:errcheck // it was for this alone
	if err := p.Ready(ctx, startTimeout, func(ctx context.Context) error {
		replicas, err := client.Replicas(ctx, "m").Result()
		if err == nil && (len(replicas) != 1 || replicas[0]["master-link-status"] != "ok") {
			err = fmt.Errorf("the Sentinel knows no replica in step: %v", replicas)
		}
		return err
	}); err != nil {
		return err
	}
	_ = b.Redis.Close() // of the address that is no longer the way in
	b.Redis = redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{watcher}})
	return b.restartOn(ctx, fmt.Sprintf("{addresses: [%q], masterName: m}", watcher))
}

// StopReplication has the replica get no more of what is written.
func (b *Bed) StopReplication(ctx context.Context) error {
	for _, command := range [][]any{{"ACL", "SETUSER", "default", "-psync", "-sync"}, {"CLIENT", "KILL", "TYPE", "replica"}} {
		if err := b.Redis.Do(ctx, command...).Err(); err != nil {
			return err
		}
	}
	return nil
}

// slots of a Redis Cluster, which its masters share.
const slots = 16384

// SpreadRedis starts a Redis Cluster of three masters. b.Redis and the provider,
// which is started anew, ask it from now on.
func (b *Bed) SpreadRedis(ctx context.Context) error {
	const masters = 3
	ports, err := process.FreePorts(2 * masters)
	if err != nil {
		return err
	}
	var addresses []string
	for n := range masters {
		address := fmt.Sprintf("127.0.0.1:%d", ports[n])
		addresses = append(addresses, address)
		name := fmt.Sprintf("redis-master-%d", n)
		m := &master{address: address, name: name, first: n * slots / masters, last: (n+1)*slots/masters - 1, args: []string{
			"--cluster-enabled", "yes", "--cluster-config-file", name + ".conf", "--cluster-port", strconv.Itoa(ports[masters+n]), "--cluster-node-timeout", "1000",
		}}
		if m.process, err = b.redisServer(ctx, name, address, m.args...); err != nil {
			return err
		}
		b.masters = append(b.masters, m)
		if err := m.join(ctx, ports[0], ports[masters]); err != nil {
			return err
		}
	}
	_ = b.Redis.Close() // of the server that is no longer the one
	b.Redis = redis.NewClusterClient(&redis.ClusterOptions{Addrs: addresses})
	if err := b.masters[0].process.Ready(ctx, startTimeout, func(ctx context.Context) error {
		info, err := b.Redis.ClusterInfo(ctx).Result()
		if err == nil && (!strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d", masters))) {
			err = fmt.Errorf("the cluster is not one yet: %s", info)
		}
		return err
	}); err != nil {
		return err
	}
	return b.restartOn(ctx, fmt.Sprintf("{addresses: [%q], cluster: true}", addresses[0]))
}

// master is one of a Redis Cluster.
type master struct {
	address, name string
	first, last   int // slots
	args          []string
	process       *process.Process
}

// join takes its slots, and meets the first at its port and that of the cluster.
func (m *master) join(ctx context.Context, port, clusterPort int) error {
	client := redis.NewClient(&redis.Options{Addr: m.address})
	defer client.Close() //nolint:errcheck // it was for this alone
	commands := [][]any{{"CLUSTER", "ADDSLOTSRANGE", m.first, m.last}, {"CLUSTER", "SET-CONFIG-EPOCH", m.first + 1}}
	if m.first > 0 {
		commands = append(commands, []any{"CLUSTER", "MEET", "127.0.0.1", port, clusterPort})
	}
	for _, command := range commands {
		if err := client.Do(ctx, command...).Err(); err != nil {
			return fmt.Errorf("%s: %v: %w", m.name, command, err)
		}
	}
	return nil
}

// KillMaster ends the master that has a key, and returns what starts it again,
// with its slots and without its keys.
func (b *Bed) KillMaster(ctx context.Context, key string) (start func() error, err error) {
	slot, err := b.Redis.ClusterKeySlot(ctx, key).Result()
	if err != nil {
		return nil, err
	}
	m := b.masters[slices.IndexFunc(b.masters, func(m *master) bool { return int(slot) <= m.last })]
	m.process.Kill()
	return func() (err error) {
		m.process, err = b.redisServer(ctx, m.name, m.address, m.args...)
		return err
	}, nil
}

// restartOn starts the provider anew on another Redis.
func (b *Bed) restartOn(ctx context.Context, config string) error {
	b.Config.Redis = config
	if err := b.write(b.Config); err != nil {
		return err
	}
	b.KillProvider()
	return b.StartProvider(ctx)
}

// redisServer starts one that keeps nothing on disk, and waits until it answers.
func (b *Bed) redisServer(ctx context.Context, name, address string, more ...string) (*process.Process, error) {
	client := redis.NewClient(&redis.Options{Addr: address})
	defer client.Close() //nolint:errcheck // it was for this alone
	var port int
	if _, err := fmt.Sscanf(address, "127.0.0.1:%d", &port); err != nil {
		return nil, fmt.Errorf("address of %s: %w", name, err)
	}
	args := []string{"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", b.Dir}
	if name == sentinel {
		args = append([]string{b.file("sentinel.conf")}, append(args, "--sentinel")...)
	} else {
		args = append(args, "--save", "", "--appendonly", "no")
	}
	args = append(args, more...)
	p, err := process.Start(process.Spec{Name: name, Path: b.binaries.redis, LogDir: b.Logs(), WorkDir: b.Dir, Append: true, Args: args})
	if err != nil {
		return nil, err
	}
	return p, p.Ready(ctx, startTimeout, func(ctx context.Context) error { return client.Ping(ctx).Err() })
}
