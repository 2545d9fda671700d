package checkpoint

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"
)

// soon bounds what takes a moment, on a machine that has much else to do.
const soon = 10 * time.Second

// late is when a budget of a second was not kept.
const late = readBudget + 500*time.Millisecond

func pod(n int) PodID {
	return PodID{"ns", fmt.Sprintf("train-%d", n), types.UID(fmt.Sprintf("uid-%d", n))}
}

func pods(n int) []PodID {
	var all []PodID
	for i := range n {
		all = append(all, pod(i))
	}
	return all
}

// read reads within the budget, or fails the test.
func read(t *testing.T, store *Store, pods ...PodID) (Reading, error) {
	t.Helper()
	start := time.Now()
	reading, err := store.Read(t.Context(), pods)
	assert.Less(t, time.Since(start), late)
	if err != nil {
		assert.ErrorIs(t, err, ErrRedis)
		assert.Equal(t, Reading{}, reading)
		return reading, err
	}
	assert.Len(t, reading.Signals, len(pods))
	return reading, nil
}

func mustRead(t *testing.T, store *Store, pods ...PodID) Reading {
	t.Helper()
	reading, err := read(t, store, pods...)
	require.NoError(t, err)
	return reading
}

// eventually is for what another process does in its own time.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, soon, 20*time.Millisecond, what)
}

func TestReadTellsPodsApartAndKeepsTheirOrder(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	store := s.store()
	at := time.Date(2026, 8, 1, 10, 20, 30, 0, time.UTC)
	request := Request{ID: "r1", RequestedAt: at, Reason: "underused"}
	s.do("SET", AckKey("c", pod(1)), at.Format(time.RFC3339))
	s.do("SET", RequestKey("c", pod(2)), request.Encode())
	s.do("SET", AckKey("c", pod(3)), "yes")
	s.do("SET", RequestKey("c", pod(3)), "yes")
	s.do("LPUSH", AckKey("c", pod(4)), "1")
	s.do("LPUSH", RequestKey("c", pod(4)), "1")
	s.do("SET", AckKey("c", pod(5)), "1785579630"+strings.Repeat(" ", maxValue-10))
	s.do("SET", AckKey("c", pod(6)), "1785579630"+strings.Repeat(" ", maxValue-9))
	s.do("SET", AckKey("other", pod(7)), "1785579630")
	incarnation := pod(1)
	incarnation.UID = "another"

	reading := mustRead(t, store, append(pods(8), incarnation)...)
	assert.WithinDuration(t, time.Now(), reading.Now, soon)
	assert.Equal(t, time.UTC, reading.Now.Location())
	want := []Signals{
		{},
		{Ack: &Ack{SavedAt: at}},
		{Request: &request},
		{BadAck: fmt.Errorf(`"yes" is neither Unix seconds nor RFC 3339 nor JSON`)},
		{BadAck: fmt.Errorf("the key does not hold a Redis string; write it with SET")},
		{Ack: &Ack{SavedAt: at}},
		{BadAck: fmt.Errorf("longer than 4096 bytes")},
		{},
		{},
	}
	for i, signals := range reading.Signals {
		assert.Equal(t, fmt.Sprint(want[i].BadAck), fmt.Sprint(signals.BadAck), i)
		assert.Equal(t, want[i].Ack, signals.Ack, i)
		assert.Equal(t, want[i].Request, signals.Request, i)
	}

	assert.Empty(t, mustRead(t, store).Signals)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := store.Read(ctx, pods(1))
	assert.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, "cancelled", Cause(err))
}

func TestReadIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	store := s.store()
	mustRead(t, store) // connects
	packets := func() (count int64) {
		_, err := fmt.Sscan(infoField(fmt.Sprint(s.do("INFO", "stats")), "total_reads_processed"), &count)
		require.NoError(t, err)
		return count
	}
	before := packets()
	mustRead(t, store, pods(100)...)
	assert.LessOrEqual(t, packets()-before, int64(5), "one round trip reads some 10 kB in a few pieces")
	mustRead(t, store, pods(5000)...)
}

// A password file on a dead network volume heeds no context.
func TestBudgetHoldsAgainstWhatHeedsNoContext(t *testing.T) {
	t.Parallel()
	store, err := NewStore(RedisOptions{Addresses: []string{"127.0.0.1:1"}}, "c")
	require.NoError(t, err)
	release, closed := make(chan struct{}), make(chan struct{})
	start := time.Now()
	_, err = within(t.Context(), store, func(context.Context) (int, error) { <-release; return 1, nil })
	assert.Equal(t, "timeout", Cause(err), "%v", err)
	assert.Less(t, time.Since(start), late)
	go func() {
		defer close(closed)
		assert.NoError(t, store.Close())
	}()
	select {
	case <-closed:
		assert.Fail(t, "Close did not wait for the call")
	case <-time.After(100 * time.Millisecond):
	}
	close(release)
	<-closed
}

// The end of the call that brought an answer looks like a context that ended.
func TestAnswerIsNotMistakenForACancellation(t *testing.T) {
	t.Parallel()
	store := newStore(t, RedisOptions{Addresses: []string{"127.0.0.1:1"}})
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 20000 {
				_, err := within(t.Context(), store, func(context.Context) (int, error) { return 1, nil })
				if !assert.NoError(t, err) {
					return
				}
			}
		})
	}
	group.Wait()
}

func TestReadOfAHugeValueStaysSmallAndQuick(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	store := s.store()
	s.do("SETRANGE", AckKey("c", pod(0)), 100<<20, "x")
	s.do("SETRANGE", RequestKey("c", pod(0)), 100<<20, "x")
	sent := func() (bytes int64) {
		_, err := fmt.Sscan(infoField(fmt.Sprint(s.do("INFO", "stats")), "total_net_output_bytes"), &bytes)
		require.NoError(t, err)
		return bytes
	}
	before := sent()
	reading := mustRead(t, store, pods(2)...)
	assert.Less(t, sent()-before, int64(64<<10))
	assert.EqualError(t, reading.Signals[0].BadAck, "longer than 4096 bytes")
	assert.Nil(t, reading.Signals[0].Ack)
	assert.Nil(t, reading.Signals[0].Request)
	assert.Equal(t, Signals{}, reading.Signals[1])
}

func TestAskLeavesAnOlderRequestInForce(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	store := s.store()
	subscription := s.admin.Subscribe(t.Context(), "c:requests")
	defer subscription.Close() //nolint:errcheck // nothing is left to do
	_, err := subscription.Receive(t.Context())
	require.NoError(t, err)

	at := time.Date(2026, 8, 1, 10, 20, 30, 0, time.UTC)
	first, second := Request{"r1", at, "cordoned"}, Request{"r2", at.Add(time.Minute), "evicted"}
	for _, request := range []Request{first, second, first} {
		inForce, err := store.Ask(t.Context(), pod(0), request, time.Hour)
		require.NoError(t, err)
		assert.Equal(t, first, inForce)
	}
	assert.Equal(t, &first, mustRead(t, store, pod(0)).Signals[0].Request)
	assert.InDelta(t, 3600, s.do("TTL", RequestKey("c", pod(0))), 10)
	message, err := subscription.ReceiveMessage(t.Context())
	require.NoError(t, err)
	assert.Equal(t, RequestKey("c", pod(0)), message.Payload)

	// A request that no trainer can read would silence us for ever.
	for n, spoil := range [][]any{{"SET", "junk"}, {"LPUSH", "junk"}, {"SET", strings.Repeat("x", 5000)}, {"SET", `{"v":2,"id":"r0"}`}} {
		s.do(spoil[0], RequestKey("c", pod(n+1)), spoil[1])
		inForce, err := store.Ask(t.Context(), pod(n+1), second, time.Hour)
		require.NoError(t, err)
		assert.Equal(t, second, inForce)
		assert.Equal(t, &second, mustRead(t, store, pod(n+1)).Signals[0].Request)
		assert.InDelta(t, 3600, s.do("TTL", RequestKey("c", pod(n+1))), 10)
	}

	for _, bad := range []Request{{RequestedAt: at}, {ID: "r"}} {
		_, err = store.Ask(t.Context(), pod(9), bad, time.Hour)
		assert.ErrorContains(t, err, "request for ns/train-9: id, time and a lifetime of at least 1s are required")
	}
	_, err = store.Ask(t.Context(), pod(9), first, 0)
	assert.Error(t, err, "it would never expire")
}

func TestAskOfManyAtOnceAgreesOnOne(t *testing.T) {
	t.Parallel()
	store := startServer(t).store()
	var mu sync.Mutex
	seen := map[string]int{}
	var group sync.WaitGroup
	for n := range 32 {
		group.Go(func() {
			inForce, err := store.Ask(t.Context(), pod(0), Request{ID: fmt.Sprint(n), RequestedAt: earliest}, time.Hour)
			assert.NoError(t, err)
			mu.Lock()
			defer mu.Unlock()
			seen[inForce.ID]++
		})
	}
	group.Wait()
	assert.Len(t, seen, 1, "%v", seen)
}

func TestAskSaysWhyItCouldNot(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	store := s.store()
	request := Request{ID: "r1", RequestedAt: earliest}
	s.do("CONFIG", "SET", "maxmemory", "1")
	_, err := store.Ask(t.Context(), pod(0), request, time.Hour)
	assert.Equal(t, "OOM", Cause(err), "%v", err)
	s.do("CONFIG", "SET", "maxmemory", "0")

	// A disk that cannot be written to.
	s.do("CONFIG", "SET", "save", "3600 1")
	require.NoError(t, os.RemoveAll(s.dir))
	s.do("BGSAVE")
	eventually(t, "saving did not fail", func() bool {
		return infoField(fmt.Sprint(s.do("INFO", "persistence")), "rdb_last_bgsave_status") == "err"
	})
	_, err = store.Ask(t.Context(), pod(0), request, time.Hour)
	assert.Equal(t, "MISCONF", Cause(err), "%v", err)
	mustRead(t, store, pod(0)) // still possible
}

// listening starts Listen and returns the pods that it hears.
func listening(t *testing.T, store *Store) <-chan PodID {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	heard, done := make(chan PodID, 100), make(chan struct{})
	go func() {
		defer close(done)
		store.Listen(ctx, func(p PodID) { heard <- p })
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(soon):
			assert.Fail(t, "Listen outlives its context")
		}
	})
	return heard
}

func next(t *testing.T, heard <-chan PodID) PodID {
	t.Helper()
	select {
	case p := <-heard:
		return p
	case <-time.After(soon):
		require.FailNow(t, "nothing was heard")
		return PodID{}
	}
}

// publishes is whether somebody heard it.
func (s *server) publishes(payload string) bool {
	count, err := s.admin.Publish(s.t.Context(), "c:acks", payload).Result()
	return err == nil && count > 0
}

func TestListenHearsAcknowledgementsAndReconnects(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	store := s.store()
	subscribed := func() bool { return s.publishes("junk") }
	heard := listening(t, store)
	s.start() // Redis comes after us
	eventually(t, "nobody subscribed", subscribed)
	for _, payload := range []string{"", "junk", "c:ack:ns:p", "other:ack:ns:p:u", RequestKey("c", pod(0)), strings.Repeat("x", 1<<20), AckKey("c", pod(1))} {
		require.True(t, s.publishes(payload))
	}
	assert.Equal(t, pod(1), next(t, heard))

	s.kill()
	s.start()
	eventually(t, "did not reconnect", subscribed)
	require.True(t, s.publishes(AckKey("c", pod(2))))
	assert.Equal(t, pod(2), next(t, heard))

	s.do("CLIENT", "KILL", "TYPE", "pubsub")
	eventually(t, "did not reconnect", subscribed)
	require.True(t, s.publishes(AckKey("c", pod(3))))
	assert.Equal(t, pod(3), next(t, heard))
}

func TestWarningsNameAnEvictionPolicy(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	store := s.store()
	warnings, err := store.Warnings(t.Context())
	require.NoError(t, err)
	assert.Empty(t, warnings)

	s.do("CONFIG", "SET", "maxmemory", "3mb", "maxmemory-policy", "allkeys-lru")
	warnings, err = store.Warnings(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"maxmemory-policy is allkeys-lru: acknowledgements can be evicted, which holds their nodes longer; set maxmemory-policy to noeviction"}, warnings)

	// What it warns of: an acknowledgement that is gone is none.
	s.do("SET", AckKey("c", pod(0)), "1785579630")
	require.NotNil(t, mustRead(t, store, pod(0)).Signals[0].Ack)
	for n := 0; s.do("OBJECT", "IDLETIME", AckKey("c", pod(0))) != nil; n++ {
		require.Less(t, n, 20000, "not evicted")
		s.do("SET", fmt.Sprint("other", n), strings.Repeat("x", 1000))
	}
	assert.Equal(t, Signals{}, mustRead(t, store, pod(0)).Signals[0])

	s.do("ACL", "SETUSER", "default", "-info")
	warnings, err = store.Warnings(t.Context())
	assert.ErrorContains(t, err, "read maxmemory-policy: NOPERM")
	assert.Empty(t, warnings)
	s.kill()
	_, err = store.Warnings(t.Context())
	assert.Error(t, err)
}

func TestReplicaIsNoSource(t *testing.T) {
	t.Parallel()
	master := startServer(t)
	s := startServer(t, "--replicaof", "127.0.0.1 "+fmt.Sprint(master.port))
	store := s.store()
	_, err := read(t, store, pod(0))
	assert.EqualError(t, err, "redis: READONLY the server is a replica; set redis.addresses to the master, or masterName and the addresses of the Sentinels")
	assert.Equal(t, "READONLY", Cause(err))
	_, err = store.Ask(t.Context(), pod(0), Request{ID: "r", RequestedAt: earliest}, time.Hour)
	assert.Equal(t, "READONLY", Cause(err), "%v", err)
	warnings, err := store.Warnings(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"the server is a replica and is not used; set redis.addresses to the master, or masterName and the addresses of the Sentinels"}, warnings)

	s.do("REPLICAOF", "NO", "ONE")
	mustRead(t, store, pod(0))
	s.do("REPLICAOF", "127.0.0.1", fmt.Sprint(master.port)) // the connection stays
	_, err = read(t, store, pod(0))
	assert.Equal(t, "READONLY", Cause(err), "%v", err)
}

// The embedded stand-in knows neither HELLO without arguments nor INFO memory.
func TestMiniredisWillDo(t *testing.T) {
	t.Parallel()
	stand := miniredis.RunT(t)
	stand.SetTime(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	store := newStore(t, RedisOptions{Addresses: []string{stand.Addr()}})
	require.NoError(t, stand.Set(AckKey("c", pod(0)), "1785579630"))
	request := Request{ID: "r", RequestedAt: earliest}
	inForce, err := store.Ask(t.Context(), pod(0), request, time.Hour)
	require.NoError(t, err)
	assert.Equal(t, request, inForce)
	reading := mustRead(t, store, pods(2)...)
	assert.Equal(t, 2030, reading.Now.Year())
	assert.NotNil(t, reading.Signals[0].Ack)
	assert.Equal(t, &request, reading.Signals[0].Request)
	assert.Equal(t, Signals{}, reading.Signals[1])
	warnings, _ := store.Warnings(t.Context()) // it may not ask for them
	assert.Empty(t, warnings)
	heard := listening(t, store)
	eventually(t, "nobody subscribed", func() bool { return stand.Publish("c:acks", AckKey("c", pod(7))) > 0 })
	assert.Equal(t, pod(7), next(t, heard))
}

// Whatever go-redis waits for or tries again, the caller has an answer in a second.
func TestBudgetHoldsAgainstWhatNeverAnswers(t *testing.T) {
	t.Parallel()
	silent := func() string { // accepts and says nothing
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = listener.Close() })
		go func() {
			var held []net.Conn // else the garbage collector closes them
			for {
				conn, err := listener.Accept()
				if err != nil {
					break
				}
				held = append(held, conn)
			}
			for _, conn := range held {
				_ = conn.Close()
			}
		}()
		return listener.Addr().String()
	}
	for name, options := range map[string]RedisOptions{
		"one server":         {Addresses: []string{silent()}},
		"handshake":          {Addresses: []string{silent()}, TLS: &RedisTLS{}},
		"Sentinels":          {Addresses: []string{silent(), silent(), silent()}, MasterName: "m"},
		"Sentinels with TLS": {Addresses: []string{silent(), silent()}, MasterName: "m", TLS: &RedisTLS{}},
		"Cluster":            {Addresses: []string{silent(), silent(), silent()}, Cluster: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := newStore(t, options)
			listening(t, store) // it has no budget, and holds a lock of go-redis while it asks a Sentinel
			var group sync.WaitGroup
			for n := range 40 { // more than there are connections
				group.Go(func() {
					start := time.Now()
					var err error
					if n%2 == 0 {
						_, err = read(t, store, pods(50)...)
					} else {
						_, err = store.Ask(t.Context(), pod(0), Request{ID: "r", RequestedAt: earliest}, time.Hour)
					}
					assert.Less(t, time.Since(start), late)
					assert.Equal(t, "timeout", Cause(err), "%v", err)
				})
			}
			start := time.Now()
			warnings, _ := store.Warnings(t.Context())
			assert.Empty(t, warnings)
			assert.Less(t, time.Since(start), late)
			group.Wait()
		})
	}
}

func TestCloseLeavesNothingRunning(t *testing.T) {
	s := newServer(t)
	before := goleak.IgnoreCurrent()
	store, err := NewStore(s.options(), "c")
	require.NoError(t, err)
	_, err = store.Read(t.Context(), pods(1))
	assert.Equal(t, "connection refused", Cause(err))
	s.start()
	_, err = store.Read(t.Context(), pods(1))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { store.Listen(ctx, func(PodID) {}) })
	eventually(t, "nobody subscribed", func() bool { return s.publishes("junk") })
	cancel()
	group.Wait()
	require.NoError(t, store.Close())
	require.NoError(t, s.admin.Close())
	s.kill()
	assert.NoError(t, goleak.Find(before))
	_, err = store.client.Ping(t.Context()).Result()
	assert.ErrorIs(t, err, redis.ErrClosed)
}
