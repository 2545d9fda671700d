// Package simulated is a cloud.Backend that pretends: machines boot after a
// delay, fail for lack of capacity, and go away, without anything being bought.
// It owns the pretend machines, their file, and the Node objects that stand for
// them; it is for rehearsals and tests.
//
// It does not know what a node group looks like (NewNode tells), nor
// Cluster Autoscaler, limits or quotas.
//
// There are no timers: every time and every draw of chance is fixed when a unit
// is asked for, and what a unit is at a moment follows from those and the clock.
// So a test with a clock of its own sees the same cloud every time, and a
// restart needs nothing but the file.
package simulated

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"go.uber.org/zap"

	"gpu-node-provider/cloud"
)

// groupMax is the cloud's own bound of a group's Target. It only keeps a typing
// error from filling the memory: the limits that matter are the provider's.
const groupMax = 100_000

// Options says how a Cloud behaves. The zero value is a cloud in memory where
// every machine runs at once and nothing fails.
type Options struct {
	// StateFile is where instances survive a restart; empty keeps them in
	// memory. Its folder must exist and be writable, a second file beside it
	// (".lock") keeps a second process out.
	StateFile string
	// Memory keeps instances when StateFile is empty. Giving the same one to a
	// later New is a restart over the same cloud.
	Memory *Memory

	// LaunchDelay is how long a unit stays a placeholder.
	LaunchDelay time.Duration
	// BootDelay is how long a machine boots before it is Running.
	BootDelay time.Duration
	// DevicePluginDelay is how long a Running machine's Node is without its
	// extended resources.
	DevicePluginDelay time.Duration
	// TerminateDelay is how long a machine is Deleting before it is gone.
	TerminateDelay time.Duration

	// Capacity is how many machines are to be had, by group; a group not named
	// has no bound. A machine on its way out still takes up its place. A unit
	// beyond the bound stays a placeholder with an error for good, even when
	// capacity frees up later.
	Capacity map[string]int
	// LaunchErrorRate is the share of units, 0 to 1, whose launch fails.
	LaunchErrorRate float64
	// LaunchErrorCode is what they fail with; empty is
	// InsufficientInstanceCapacity.
	LaunchErrorCode cloud.LaunchCode
	// API is how calls behave.
	API API

	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Rand is the source of every draw; nil is one with a random seed.
	Rand rand.Source
	// Kubernetes is where Nodes are registered; nil registers none.
	Kubernetes *Kubernetes
	// Log may be nil.
	Log *zap.Logger
}

// API is how the pretend cloud's calls behave. Configure is not a call: it only
// says which groups this process asks about.
type API struct {
	// Latency is how long a call takes: half for the way there, half back.
	Latency time.Duration
	// ErrorRate is the share of calls, 0 to 1, that fail as ErrUnavailable and
	// change nothing.
	ErrorRate float64
	// LostAnswerRate is the share of writes, 0 to 1, that are carried out and
	// answered with ErrUnknownOutcome.
	LostAnswerRate float64
}

// Cloud is the pretend cloud.
type Cloud struct {
	options Options
	store   store
	now     func() time.Time
	log     *zap.Logger

	// mu is held while a write is put on disk, so that nobody sees a write
	// which a crash could still take back.
	mu       sync.Mutex
	current  *state // never changed in place, so it may be read without mu
	order    []string
	named    map[string]bool
	capacity map[string]int
	random   *rand.Rand
	revision uint64 // of the last picture
	closed   bool
}

var _ cloud.Backend = (*Cloud)(nil)

// New opens the cloud's state, or starts an empty one where there is none. No
// group is configured yet. Close releases the file.
func New(options Options) (*Cloud, error) {
	if err := options.validate(); err != nil {
		return nil, fmt.Errorf("simulated cloud: %w", err)
	}
	c := &Cloud{
		options:  options,
		now:      options.Now,
		log:      options.Log,
		named:    map[string]bool{},
		capacity: maps.Clone(options.Capacity),
	}
	if c.now == nil {
		c.now = time.Now
	}
	if c.log == nil {
		c.log = zap.NewNop()
	}
	if c.capacity == nil {
		c.capacity = map[string]int{}
	}
	source := options.Rand
	if source == nil {
		source = rand.NewPCG(rand.Uint64(), rand.Uint64())
	}
	c.random = rand.New(source)

	var err error
	if c.store, err = openStore(options); err != nil {
		return nil, fmt.Errorf("simulated cloud: %w", err)
	}
	if c.current, err = c.store.load(); err != nil {
		return nil, fmt.Errorf("simulated cloud: %w", errors.Join(err, c.store.close()))
	}
	if c.current == nil {
		c.current = newState(c.random)
	}
	return c, nil
}

// Close gives the state file free for another process. Calls that come later
// are refused as ErrUnavailable.
func (c *Cloud) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	return c.store.close()
}

// SetCapacity changes how many machines of a group are to be had, for units
// asked for from now on; a negative number lifts the bound. It is not kept over
// a restart.
func (c *Cloud) SetCapacity(group string, machines int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if machines < 0 {
		delete(c.capacity, group)
		return
	}
	c.capacity[group] = machines
}

// moment is a state, the time to look at it, and the revision of what is seen.
type moment struct {
	*state
	now      time.Time
	revision uint64
}

// momentLocked returns the present. Time never runs backwards
// here: a clock that was set back would turn machines into placeholders again,
// and those may be cancelled. It stands still until the clock has caught up.
func (c *Cloud) momentLocked() moment {
	now := c.now().UTC().Round(0)
	if now.Before(c.current.Clock) {
		now = c.current.Clock
	}
	if now.After(c.current.Clock) {
		next := *c.current
		next.Clock = now
		c.current = &next
	}
	c.revision++
	return moment{c.current, now, c.revision}
}
