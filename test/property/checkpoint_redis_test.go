package property

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"gpu-node-provider/provider/checkpoint"
)

const keyPrefix = "checkpoint"

// redisServer is a Redis and the provider's client of it.
type redisServer interface {
	Read(ctx context.Context, pods []checkpoint.PodID) (checkpoint.Reading, error)
	Ask(ctx context.Context, p checkpoint.PodID, r checkpoint.Request, ttl time.Duration) (checkpoint.Request, error)
	Listen(ctx context.Context, heard func(checkpoint.PodID))

	set(key, value string)
	get(key string) (string, bool)
	del(key string)
	flush()
	fail(failing bool)
	passTime(now time.Time, d time.Duration)
}

// memoryRedis does in memory what a Store and a Redis do together.
type memoryRedis struct {
	now     time.Time
	failing bool
	values  map[string]string
	ends    map[string]time.Time
}

func newMemoryRedis(now time.Time) *memoryRedis {
	return &memoryRedis{now: now, values: map[string]string{}, ends: map[string]time.Time{}}
}

func (m *memoryRedis) set(key, value string) {
	m.values[key] = value
	delete(m.ends, key)
}

func (m *memoryRedis) get(key string) (string, bool) {
	if end, mortal := m.ends[key]; mortal && !m.now.Before(end) {
		m.del(key)
	}
	value, ok := m.values[key]
	return value, ok
}

func (m *memoryRedis) del(key string) {
	delete(m.values, key)
	delete(m.ends, key)
}

func (m *memoryRedis) flush() {
	clear(m.values)
	clear(m.ends)
}

func (m *memoryRedis) fail(failing bool) { m.failing = failing }

func (m *memoryRedis) passTime(now time.Time, _ time.Duration) { m.now = now }

func (m *memoryRedis) reached() error {
	if m.failing {
		return fmt.Errorf("%w: it is down", checkpoint.ErrRedis)
	}
	return nil
}

func (m *memoryRedis) Read(_ context.Context, pods []checkpoint.PodID) (checkpoint.Reading, error) {
	if err := m.reached(); err != nil {
		return checkpoint.Reading{}, err
	}
	reading := checkpoint.Reading{Now: m.now, Signals: make([]checkpoint.Signals, len(pods))}
	for n, p := range pods {
		s := &reading.Signals[n]
		if raw, _ := m.get(checkpoint.AckKey(keyPrefix, p)); raw != "" {
			if ack, err := checkpoint.DecodeAck([]byte(raw)); err != nil {
				s.BadAck = err
			} else {
				s.Ack = &ack
			}
		}
		if raw, ok := m.get(checkpoint.RequestKey(keyPrefix, p)); ok {
			if request, err := checkpoint.DecodeRequest([]byte(raw)); err == nil {
				s.Request = &request
			}
		}
	}
	return reading, nil
}

func (m *memoryRedis) Ask(_ context.Context, p checkpoint.PodID, r checkpoint.Request, ttl time.Duration) (checkpoint.Request, error) {
	if err := m.reached(); err != nil {
		return checkpoint.Request{}, err
	}
	key := checkpoint.RequestKey(keyPrefix, p)
	if raw, ok := m.get(key); ok {
		if request, err := checkpoint.DecodeRequest([]byte(raw)); err == nil {
			return request, nil
		}
	}
	m.set(key, string(r.Encode()))
	m.ends[key] = m.now.Add(ttl)
	return r, nil
}

func (m *memoryRedis) Listen(ctx context.Context, _ func(checkpoint.PodID)) { <-ctx.Done() }

// wired is a Redis at the other end of a wire, fresh for each sequence.
func wired(t *testing.T) func(time.Time) redisServer {
	server := miniredis.RunT(t)
	store, err := checkpoint.NewStore(checkpoint.RedisOptions{Addresses: []string{server.Addr()}}, keyPrefix)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() }) // nothing of it is needed any more
	return func(now time.Time) redisServer {
		server.FlushAll()
		server.SetError("")
		server.SetTime(now)
		return wireRedis{store, server}
	}
}

// wireRedis is the provider's own Store, on a Redis at the other end of a wire.
type wireRedis struct {
	*checkpoint.Store
	server *miniredis.Miniredis
}

func (w wireRedis) set(key, value string) { _ = w.server.Set(key, value) } // it fails only as a call

func (w wireRedis) get(key string) (string, bool) {
	value, err := w.server.Get(key)
	return value, err == nil
}

func (w wireRedis) del(key string) { w.server.Del(key) }

func (w wireRedis) flush() { w.server.FlushAll() }

func (w wireRedis) fail(failing bool) {
	w.server.SetError("")
	if failing {
		w.server.SetError("NOAUTH Authentication required.")
	}
}

func (w wireRedis) passTime(now time.Time, d time.Duration) {
	w.server.FastForward(d)
	w.server.SetTime(now)
}
