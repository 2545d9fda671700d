package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestTrainerWhoseClockIsWrong: Redis' TIME judges. An acknowledgement of an hour
// ahead counts for nothing, until the trainer echoes a request.
func TestTrainerWhoseClockIsWrong(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	store := s.store()
	now := mustRead(t, store, pod(0)).Now
	facts := Facts{Stage: Running, Started: now.Add(-time.Hour)}
	judge := func() Verdict {
		reading := mustRead(t, store, pod(0))
		return Judge(reading.Now, Policy{MaxAge: 20 * time.Minute, AbandonAfter: time.Hour}, facts, reading.Signals[0].Request, reading.Signals[0].Ack)
	}
	for _, off := range []time.Duration{time.Hour, -time.Hour} {
		s.do("SET", AckKey("c", pod(0)), strconv.FormatInt(now.Add(off).Unix(), 10))
		require.False(t, judge().Clear, "%s: %s", off, judge().Reason)
	}
	asked, err := store.Ask(t.Context(), pod(0), Request{ID: "r", RequestedAt: now}, time.Hour)
	require.NoError(t, err)
	s.do("SET", AckKey("c", pod(0)), fmt.Sprintf(`{"v":1,"savedAt":%q,"request":%q}`, now.Add(time.Hour).Format(time.RFC3339), asked.ID))
	require.True(t, judge().Clear, "it read the request before it saved")
}

// What happens to a real Redis in use. In each case a read fails within its budget
// and says why, and is well again by itself.

func heals(t *testing.T, store *Store, pods ...PodID) Reading {
	t.Helper()
	var reading Reading
	eventually(t, "did not heal", func() bool {
		var err error
		reading, err = store.Read(t.Context(), pods)
		return err == nil
	})
	return reading
}

// saying waits for a read that fails for this cause.
func saying(t *testing.T, store *Store, cause string, pods ...PodID) {
	t.Helper()
	var last error
	for start := time.Now(); time.Since(start) < soon; {
		if _, last = read(t, store, pods...); Cause(last) == cause {
			return
		}
	}
	require.Fail(t, "not "+cause, "%v", last)
}

func TestDownAtBoot(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	store := s.store()
	for range 50 { // more failures than there are connections
		_, err := read(t, store, pod(0))
		assert.EqualError(t, err, "redis: connection refused: dial tcp "+s.addr()+": connect: connection refused")
		assert.Equal(t, "connection refused", Cause(err))
	}
	s.start()
	s.do("SET", AckKey("c", pod(0)), "1785579630")
	assert.NotNil(t, heals(t, store, pod(0)).Signals[0].Ack)
}

func TestKilledInUse(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	store := s.store()
	mustRead(t, store, pod(0))
	s.kill()
	for range 50 {
		_, err := read(t, store, pod(0))
		assert.Equal(t, "connection refused", Cause(err), "%v", err)
	}
	_, err := store.Ask(t.Context(), pod(0), Request{ID: "r", RequestedAt: earliest}, time.Hour)
	assert.Equal(t, "connection refused", Cause(err), "%v", err)
	s.start()
	heals(t, store, pod(0))

	// Back before anybody noticed: the dead connection in the pool fails no read.
	s.kill()
	s.start()
	mustRead(t, store, pod(0))
}

func TestLoadingAfterARestart(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	store := s.store()
	for n := range 5000 {
		s.admin.RPush(t.Context(), fmt.Sprint("key", n), n)
	}
	s.do("SET", AckKey("c", pod(0)), "1785579630")
	s.do("SAVE")
	s.kill()
	// It listens before it loads, and each key takes a millisecond.
	args := []string{
		"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--dir", s.dir,
		"--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024",
	}
	s.run(args, "Loading RDB")
	saying(t, store, "LOADING", pod(0))
	assert.NotNil(t, heals(t, store, pod(0)).Signals[0].Ack)
}

func TestPausedForTenSeconds(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	store := s.store()
	heard := listening(t, store)
	eventually(t, "nobody subscribed", func() bool { return s.publishes("junk") })
	mustRead(t, store, pods(10)...)

	s.signal(syscall.SIGSTOP)
	stopped := time.Now()
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for time.Since(stopped) < 10*time.Second {
				_, err := read(t, store, pods(10)...)
				assert.Equal(t, "timeout", Cause(err), "%v", err)
			}
		})
	}
	group.Wait()
	s.signal(syscall.SIGCONT)
	resumed := time.Now()
	heals(t, store, pods(10)...)
	assert.Less(t, time.Since(resumed), 3*time.Second)
	eventually(t, "nobody listens any more", func() bool { return s.publishes(AckKey("c", pod(1))) })
	assert.Equal(t, pod(1), next(t, heard))
}

func TestPasswordFileIsReadForEachConnection(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	password := write(t, filepath.Join(t.TempDir(), "password"), "first\n")
	options := s.options()
	options.PasswordFile = password
	anonymous := s.store()
	mustRead(t, anonymous, pod(0))
	s.do("CONFIG", "SET", "requirepass", "first")
	store := newStore(t, options)
	mustRead(t, store, pod(0))
	dropConnections := func() { s.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") }

	dropConnections()
	_, err := read(t, anonymous, pod(0))
	assert.Equal(t, "NOAUTH", Cause(err), "%v", err)
	selecting := s.options()
	selecting.DB = 1 // SELECT is refused first
	_, err = read(t, newStore(t, selecting), pod(0))
	assert.Equal(t, "NOAUTH", Cause(err), "%v", err)
	mustRead(t, store, pod(0))

	s.do("CONFIG", "SET", "requirepass", "second")
	dropConnections()
	_, err = read(t, store, pod(0))
	assert.Equal(t, "WRONGPASS", Cause(err), "%v", err)
	assert.NotContains(t, fmt.Sprint(err), "first")
	_, err = store.Ask(t.Context(), pod(0), Request{ID: "r", RequestedAt: earliest}, time.Hour)
	assert.Equal(t, "WRONGPASS", Cause(err), "%v", err)
	write(t, password, "")
	_, err = read(t, store, pod(0))
	assert.Equal(t, "password file", Cause(err), "%v", err)
	write(t, password, "second\r\n")
	mustRead(t, store, pod(0))
}

func TestUserMayDoNoMoreThanItHasTo(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	options := s.options()
	options.Username = "provider"
	options.PasswordFile = write(t, filepath.Join(t.TempDir(), "password"), "secret")
	store := newStore(t, options)
	_, err := read(t, store, pod(0))
	assert.Equal(t, "WRONGPASS", Cause(err), "%v", err)

	s.do("ACL", "SETUSER", "provider", "on", ">secret", "resetchannels", "&c:*", "~c:*", "+time", "+getrange", "+set", "+publish", "+subscribe", "+unsubscribe", "+ping")
	request := Request{ID: "r", RequestedAt: earliest}
	_, err = store.Ask(t.Context(), pod(0), request, time.Hour)
	require.NoError(t, err)
	assert.Equal(t, &request, mustRead(t, store, pod(0)).Signals[0].Request)
	warnings, _ := store.Warnings(t.Context()) // it may not ask for them
	assert.Empty(t, warnings)
	heard := listening(t, store)
	eventually(t, "nobody subscribed", func() bool { return s.publishes(AckKey("c", pod(1))) })
	assert.Equal(t, pod(1), next(t, heard))

	s.do("ACL", "SETUSER", "provider", "resetkeys", "~d:*")
	_, err = read(t, store, pod(0))
	assert.Equal(t, "NOPERM", Cause(err), "%v", err)
}

// sentinel watches one master, known as "m".
func sentinel(t *testing.T, master *server) *server {
	t.Helper()
	s := newServer(t)
	config := write(t, filepath.Join(s.dir, "sentinel.conf"), fmt.Sprintf(
		"port %d\nbind 127.0.0.1\ndir %s\nsentinel monitor m 127.0.0.1 %d 1\nsentinel down-after-milliseconds m 1000\nsentinel failover-timeout m 5000\n",
		s.port, s.dir, master.port))
	s.run([]string{config, "--sentinel"}, "Sentinel ID is")
	return s
}

func (s *server) info(section, field string) string {
	answer, err := s.admin.Info(s.t.Context(), section).Result()
	if err != nil {
		return ""
	}
	return infoField(answer, field)
}

func TestSentinelPairFailsOver(t *testing.T) {
	for name, lost := range map[string]bool{"acknowledgement kept": false, "acknowledgement lost": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			master := startServer(t, "--repl-diskless-sync-delay", "0")
			replica := startServer(t, "--replicaof", "127.0.0.1 "+strconv.Itoa(master.port))
			eventually(t, "no replication", func() bool { return replica.info("replication", "master_link_status") == "up" })
			watcher := sentinel(t, master)
			eventually(t, "replica not found", func() bool {
				replicas, err := redis.NewSentinelClient(watcher.admin.Options()).Replicas(t.Context(), "m").Result()
				return err == nil && len(replicas) == 1 && replicas[0]["flags"] == "slave"
			})
			store := newStore(t, RedisOptions{Addresses: []string{watcher.addr()}, MasterName: "m"})
			heard := listening(t, store)
			eventually(t, "nobody subscribed", func() bool { return master.publishes("junk") })

			if lost { // asynchronous replication promises nothing; here it has just stopped
				master.do("ACL", "SETUSER", "default", "-psync", "-sync")
				master.do("CLIENT", "KILL", "TYPE", "replica")
			}
			master.do("SET", AckKey("c", pod(0)), "1785579630")
			if !lost {
				require.EqualValues(t, 1, master.do("WAIT", 1, 5000))
			}
			require.NotNil(t, mustRead(t, store, pod(0)).Signals[0].Ack)

			var group sync.WaitGroup
			ctx, cancel := context.WithCancel(t.Context())
			for range 4 { // under load
				group.Go(func() {
					for ctx.Err() == nil {
						_, _ = read(t, store, pods(20)...)
					}
				})
			}
			master.kill()
			eventually(t, "no failover", func() bool { return replica.info("replication", "role") == "master" })
			reading := heals(t, store, pod(0))
			cancel()
			group.Wait()
			assert.Equal(t, lost, reading.Signals[0].Ack == nil, "the new master's is the truth")

			replica.do("SET", AckKey("c", pod(1)), "1785579630")
			assert.NotNil(t, mustRead(t, store, pod(1)).Signals[0].Ack)
			eventually(t, "nobody listens any more", func() bool { return replica.publishes(AckKey("c", pod(1))) })
			assert.Equal(t, pod(1), next(t, heard))

			// The old master comes back, thinks for a while that it still is one, and is asked nothing.
			master.start()
			replica.do("SET", AckKey("c", pod(2)), "1785579630")
			assert.NotNil(t, mustRead(t, store, pod(2)).Signals[0].Ack)

			watcher.signal(syscall.SIGSTOP) // its part is over
			assert.NotNil(t, mustRead(t, store, pod(2)).Signals[0].Ack)
		})
	}
}

func TestClusterOfThreeMasters(t *testing.T) {
	t.Parallel()
	var nodes []*server
	var addresses []string
	for n := range 3 {
		node := newServer(t)
		node.args = []string{"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(freePort(t)), "--cluster-node-timeout", "1000"}
		node.start()
		node.do("CLUSTER", "ADDSLOTSRANGE", n*5462, min(n*5462+5461, 16383))
		node.do("CLUSTER", "SET-CONFIG-EPOCH", n+1)
		if n > 0 {
			node.do("CLUSTER", "MEET", "127.0.0.1", nodes[0].port, nodes[0].args[3])
		}
		nodes = append(nodes, node)
		addresses = append(addresses, node.addr())
	}
	up := func() bool {
		for _, node := range nodes {
			info, err := node.admin.ClusterInfo(t.Context()).Result()
			if err != nil || infoField(info, "cluster_state") != "ok" || infoField(info, "cluster_known_nodes") != "3" {
				return false
			}
		}
		return true
	}
	eventually(t, "no cluster", up)

	store := newStore(t, RedisOptions{Addresses: addresses[:1], Cluster: true}) // it finds the others
	all := pods(60)
	for n, pod := range all {
		request := Request{ID: fmt.Sprint(n), RequestedAt: earliest}
		_, err := store.Ask(t.Context(), pod, request, time.Hour)
		require.NoError(t, err)
		require.NoError(t, store.client.Set(t.Context(), AckKey("c", pod), fmt.Sprint(1785579630+n), 0).Err())
	}
	for _, node := range nodes {
		require.Greater(t, node.do("DBSIZE"), int64(10), "the keys are spread")
	}
	for n, signals := range mustRead(t, store, all...).Signals {
		require.NotNil(t, signals.Ack)
		assert.EqualValues(t, 1785579630+n, signals.Ack.SavedAt.Unix(), "in order")
		assert.Equal(t, fmt.Sprint(n), signals.Request.ID)
	}
	heard := listening(t, store)
	eventually(t, "not heard through another node", func() bool {
		_ = nodes[2].publishes(AckKey("c", pod(1)))
		return len(heard) > 0
	})
	assert.Equal(t, pod(1), next(t, heard))
	nodes[1].do("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
	warnings, err := store.Warnings(t.Context())
	require.NoError(t, err)
	assert.Equal(t,
		[]string{nodes[1].addr() + ": maxmemory-policy is volatile-ttl: acknowledgements can be evicted, which holds their nodes longer; set maxmemory-policy to noeviction"},
		warnings)

	nodes[2].kill()
	_, err = read(t, store, all...)
	assert.Error(t, err, "a third of the acknowledgements is out of reach")
	kept := slices.IndexFunc(all, func(p PodID) bool { // what another node holds is not served either
		return nodes[0].admin.Exists(t.Context(), AckKey("c", p)).Val() == 1
	})
	saying(t, store, "CLUSTERDOWN", all[kept])
	nodes[2].start()
	eventually(t, "no cluster again", up)
	heals(t, store, all...)

	nodes[0].signal(syscall.SIGSTOP)
	_, err = read(t, store, all...)
	assert.Error(t, err)
	nodes[0].signal(syscall.SIGCONT)
	heals(t, store, all...)
}

// The binary for trainers' images knows none of our packages: here both ends meet.
func TestCheckpointAckIsUnderstood(t *testing.T) {
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "checkpoint-ack")
	build := exec.Command("go", "build", "-o", binary, "gpu-node-provider/cmd/checkpoint-ack")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	s := startServer(t)
	store := s.store()
	run := func(args ...string) (string, int) {
		command := exec.Command(binary, args...)
		command.Env = []string{"REDIS_URL=redis://" + s.addr(), "CHECKPOINT_PREFIX=c", "POD_NAMESPACE=ns", "POD_NAME=train-0", "POD_UID=uid-0"}
		out, err := command.Output()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return string(out), exit.ExitCode()
		}
		require.NoError(t, err)
		return string(out), 0
	}
	heard := listening(t, store)
	eventually(t, "nobody subscribed", func() bool { return s.publishes("junk") })

	_, code := run("requested")
	assert.Equal(t, 3, code)
	_, err = store.Ask(t.Context(), pod(0), Request{ID: "r1", RequestedAt: earliest, Reason: "underused"}, time.Hour)
	require.NoError(t, err)
	id, code := run("requested")
	assert.Equal(t, 0, code)
	assert.Equal(t, "r1\n", id)

	before := mustRead(t, store).Now
	_, code = run("--request", "r1", "--step", "1200", "--uri", `s3://bucket/"k"?a=1&b=é`)
	require.Equal(t, 0, code)
	assert.Equal(t, pod(0), next(t, heard))
	reading := mustRead(t, store, pod(0))
	require.NoError(t, reading.Signals[0].BadAck)
	ack := reading.Signals[0].Ack
	require.NotNil(t, ack)
	assert.WithinRange(t, ack.SavedAt, before.Add(-time.Millisecond), reading.Now)
	ack.SavedAt = time.Time{}
	assert.Equal(t, &Ack{Request: "r1", Step: 1200, URI: `s3://bucket/"k"?a=1&b=é`}, ack)
}
