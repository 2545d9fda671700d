package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// readBudget is how long Redis may take to answer, with all retries and redirections.
// DeleteNodes has 5 s, and the API server gives the eviction webhook as long.
// Longer holds up what asks; much shorter fails at a fork of a large Redis.
const readBudget = time.Second

// Signals are what Redis holds of one pod.
type Signals struct {
	Ack     *Ack
	BadAck  error // something is there that is no acknowledgement: why not
	Request *Request
}

// Reading is what Redis held at one moment.
type Reading struct {
	Now     time.Time // Redis TIME
	Signals []Signals // in the order of the pods that were asked for
}

// Store is the acknowledgements and requests in Redis. A lost connection heals by
// itself, and no method needs one to have been there before.
type Store struct {
	client  redis.UniversalClient
	prefix  string
	cluster bool
	calls   sync.WaitGroup
}

// NewStore does not connect: Redis may be down. A file that cannot be used is an error.
func NewStore(o RedisOptions, prefix string) (*Store, error) {
	client, err := newClient(o)
	if err != nil {
		return nil, err
	}
	return &Store{client: client, prefix: prefix, cluster: o.Cluster}, nil
}

// Close ends all connections. No other method may be called from then on.
func (s *Store) Close() error {
	err := s.client.Close()
	s.calls.Wait()
	return err
}

// within runs one call for at most readBudget. go-redis as good as always heeds the
// context, but a lock that another call holds while it asks a dead Sentinel does not.
// A call that goes on is waited for in Close.
func within[T any](ctx context.Context, s *Store, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, readBudget)
	defer cancel() // not in the goroutine: it would contend with the answer
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer, 1)
	s.calls.Go(func() {
		value, err := call(ctx)
		answers <- answer{value, err}
	})
	var none T
	select {
	case a := <-answers:
		if a.err != nil {
			return none, failed(a.err)
		}
		return a.value, nil
	case <-ctx.Done():
		return none, failed(ctx.Err())
	}
}

// Read reads the signals of pods from the master in one round trip, or none: an
// error wraps ErrRedis, comes within readBudget, and then nothing is known.
func (s *Store) Read(ctx context.Context, pods []PodID) (Reading, error) {
	return within(ctx, s, func(ctx context.Context) (Reading, error) { return s.read(ctx, pods) })
}

func (s *Store) read(ctx context.Context, pods []PodID) (Reading, error) {
	pipe := s.client.Pipeline()
	now := pipe.Time(ctx)
	var hello *redis.Cmd
	if !s.cluster { // a replica of a Cluster redirects to its master by itself
		hello = pipe.Do(ctx, "HELLO")
	}
	type pair struct{ ack, request *redis.StringCmd }
	pairs := make([]pair, len(pods))
	for i, pod := range pods {
		pairs[i] = pair{
			ack:     pipe.GetRange(ctx, AckKey(s.prefix, pod), 0, maxValue),
			request: pipe.GetRange(ctx, RequestKey(s.prefix, pod), 0, maxValue),
		}
	}
	if err := execute(ctx, pipe); err != nil {
		return Reading{}, err
	}
	if err := now.Err(); err != nil {
		return Reading{}, err
	}
	if hello != nil && isReplica(hello) {
		return Reading{}, errReplica
	}
	reading := Reading{Now: now.Val().UTC(), Signals: make([]Signals, len(pods))}
	for i, pair := range pairs {
		signals, err := decodeSignals(pair.ack, pair.request)
		if err != nil {
			return Reading{}, err
		}
		reading.Signals[i] = signals
	}
	return reading, nil
}

// execute returns an error that no command has: when Redis refuses the login,
// go-redis leaves all commands without one, as if every key were empty.
func execute(ctx context.Context, pipe redis.Pipeliner) error {
	commands, err := pipe.Exec(ctx)
	if err != nil && !slices.ContainsFunc(commands, func(command redis.Cmder) bool { return command.Err() != nil }) {
		return err
	}
	return nil
}

func decodeSignals(ack, request *redis.StringCmd) (Signals, error) {
	var signals Signals
	switch raw, err := ack.Result(); {
	case isWrongType(err):
		signals.BadAck = errors.New("the key does not hold a Redis string; write it with SET")
	case err != nil:
		return Signals{}, err
	case raw != "": // GETRANGE answers so where there is no key
		decoded, err := DecodeAck([]byte(raw))
		if err != nil {
			signals.BadAck = err
		} else {
			signals.Ack = &decoded
		}
	}
	switch raw, err := request.Result(); {
	case isWrongType(err):
	case err != nil:
		return Signals{}, err
	default:
		if decoded, err := DecodeRequest([]byte(raw)); err == nil { // else Ask replaces it
			signals.Request = &decoded
		}
	}
	return signals, nil
}

func isWrongType(err error) bool { return err != nil && redis.HasErrorPrefix(err, "WRONGTYPE") }

// isReplica looks at HELLO's answer, since ROLE and INFO are often forbidden. A
// server too old for HELLO is believed.
func isReplica(hello *redis.Cmd) bool {
	fields, err := hello.Slice()
	if err != nil {
		return false
	}
	for i := 0; i+1 < len(fields); i += 2 {
		if fields[i] == "role" {
			return fields[i+1] != "master"
		}
	}
	return false
}

// Ask asks a pod's trainer for a checkpoint, unless it has been asked already, and
// returns the request that is in force: an older one stays, so that an
// acknowledgement which echoes it counts.
func (s *Store) Ask(ctx context.Context, p PodID, r Request, ttl time.Duration) (Request, error) {
	if r.ID == "" || r.RequestedAt.IsZero() || ttl < time.Second {
		return Request{}, fmt.Errorf("request for %s: id, time and a lifetime of at least 1s are required", p)
	}
	return within(ctx, s, func(ctx context.Context) (Request, error) {
		inForce, err := s.set(ctx, RequestKey(s.prefix, p), r, ttl)
		if err == nil && inForce.ID == r.ID {
			// Trainers poll the key, so a publication that fails costs no more than their interval.
			_ = s.client.Publish(ctx, requestsChannel(s.prefix), RequestKey(s.prefix, p)).Err()
		}
		return inForce, err
	})
}

func (s *Store) set(ctx context.Context, key string, r Request, ttl time.Duration) (Request, error) {
	value := r.Encode()
	pipe := s.client.Pipeline()
	set := pipe.SetArgs(ctx, key, value, redis.SetArgs{Mode: "NX", TTL: ttl})
	get := pipe.GetRange(ctx, key, 0, maxValue)
	if err := execute(ctx, pipe); err != nil {
		return Request{}, err
	}
	if err := set.Err(); err != nil && !errors.Is(err, redis.Nil) {
		return Request{}, err
	}
	if err := get.Err(); err != nil && !isWrongType(err) {
		return Request{}, err
	}
	if inForce, err := DecodeRequest([]byte(get.Val())); err == nil {
		return inForce, nil
	}
	// No trainer can read what is there. SET replaces a value of any type.
	return r, s.client.Set(ctx, key, value, ttl).Err()
}

// Listen calls heard for each acknowledgement that is published, one at a time,
// until the context ends. What is published while the connection is lost is not
// heard: polling is the truth.
func (s *Store) Listen(ctx context.Context, heard func(PodID)) {
	subscription := s.client.Subscribe(ctx, acksChannel(s.prefix))
	messages := subscription.Channel()
	defer func() {
		_ = subscription.Close() // nothing is left to do
		for range messages {     // until go-redis's goroutine has ended
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case message, ok := <-messages:
			if !ok {
				return
			}
			if pod, ok := ParseAckKey(s.prefix, message.Payload); ok {
				heard(pod)
			}
		}
	}
}

// Warnings are what an operator should change about Redis. The error is why they are
// not known, or not all.
func (s *Store) Warnings(ctx context.Context) ([]string, error) {
	var unknown error
	warnings, err := within(ctx, s, func(ctx context.Context) (all []string, err error) {
		cluster, ok := s.client.(*redis.ClusterClient)
		if !ok {
			all, unknown = serverWarnings(ctx, s.client)
			return all, nil
		}
		var mu sync.Mutex
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
			warnings, err := serverWarnings(ctx, master)
			mu.Lock()
			defer mu.Unlock()
			unknown = errors.Join(unknown, err)
			for _, warning := range warnings {
				all = append(all, master.Options().Addr+": "+warning)
			}
			return nil
		})
		return all, err
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(warnings)
	return warnings, unknown
}

func serverWarnings(ctx context.Context, server redis.Cmdable) (warnings []string, err error) {
	pipe := server.Pipeline()
	memory, replication := pipe.Info(ctx, "memory"), pipe.Info(ctx, "replication")
	_, _ = pipe.Exec(ctx) // each command has its own error
	switch policy := infoField(memory.Val(), "maxmemory_policy"); policy {
	case "":
		err = fmt.Errorf("read maxmemory-policy: %w", cmp.Or(memory.Err(), errors.New("INFO has no such line")))
	case "noeviction":
	default:
		warnings = append(warnings, fmt.Sprintf("maxmemory-policy is %s: acknowledgements can be evicted, which holds their nodes longer; set maxmemory-policy to noeviction", policy))
	}
	if infoField(replication.Val(), "role") == "slave" {
		warnings = append(warnings, "the server is a replica and is not used; set redis.addresses to the master, or masterName and the addresses of the Sentinels")
	}
	return warnings, err
}

func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
