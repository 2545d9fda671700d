package testbed

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
)

// State is what one look at the system shows.
type State struct {
	Queues   map[string]Queue
	Replicas map[string]int // asked for, by Deployment
	Pods     []*corev1.Pod  // of the trainers
	Nodes    []*corev1.Node // of the pools
}

// Queue is the lists of one job queue.
type Queue struct{ Waiting, InFlight, Done int }

// NodesOf counts the Nodes of a pool by its accelerator label.
func (s State) NodesOf(accelerator string) int {
	n := 0
	for _, node := range s.Nodes {
		if node.Labels["accelerator"] == accelerator {
			n++
		}
	}
	return n
}

// Phase counts the trainers' Pods in a phase; those that are going do not count.
func (s State) Phase(phase corev1.PodPhase) int {
	n := 0
	for _, pod := range s.Pods {
		if pod.Status.Phase == phase && pod.DeletionTimestamp == nil {
			n++
		}
	}
	return n
}

// String is one line for people.
func (s State) String() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(s.Queues)) {
		q := s.Queues[name]
		parts = append(parts, fmt.Sprintf("%s %d waiting %d in flight %d done", name, q.Waiting, q.InFlight, q.Done))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Replicas)) {
		parts = append(parts, fmt.Sprintf("%s %d replicas", name, s.Replicas[name]))
	}
	phases := map[string]int{}
	for _, pod := range s.Pods {
		phase := strings.ToLower(string(pod.Status.Phase))
		if pod.DeletionTimestamp != nil {
			phase = "terminating"
		}
		phases[phase]++
	}
	parts = append(parts, "pods "+counts(phases))
	nodes := map[string]int{}
	for _, node := range s.Nodes {
		nodes[condition(node)]++
	}
	return strings.Join(append(parts, "nodes "+counts(nodes)), " | ")
}

func counts(of map[string]int) string {
	if len(of) == 0 {
		return "0"
	}
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(of)) {
		parts = append(parts, fmt.Sprintf("%d %s", of[what], what))
	}
	return strings.Join(parts, ", ")
}

// condition is what a person would call the state of a Node.
func condition(node *corev1.Node) string {
	for _, taint := range node.Spec.Taints {
		if taint.Key == "ToBeDeletedByClusterAutoscaler" {
			return "draining"
		}
	}
	gpus := node.Status.Allocatable["nvidia.com/gpu"]
	if gpus.IsZero() {
		return "without GPU yet"
	}
	return "ready"
}

// Observer looks at the system all the time, so that nothing that lasts longer
// than a look is missed, and remembers the extremes.
type Observer struct {
	bed     *Bed
	started time.Time

	mu        sync.Mutex
	queues    []string
	state     State
	changed   chan struct{} // closed at each change
	say       func(string)
	sayEvery  time.Duration
	said      time.Time
	unsaid    bool
	mostNodes map[string]int // by accelerator
	mostReps  map[string]int
	everNodes map[string]bool // names of all Nodes of the pools that there ever were
}

const lookEvery = 200 * time.Millisecond

func newObserver(b *Bed) *Observer {
	return &Observer{
		bed: b, started: time.Now(), changed: make(chan struct{}),
		mostNodes: map[string]int{}, mostReps: map[string]int{}, everNodes: map[string]bool{},
	}
}

// Queues sets the queues to look at.
func (o *Observer) Queues(names ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.queues = names
}

// Tell has changes said, one line each, with the time since the start. Of those
// that come quicker than every only the last is.
func (o *Observer) Tell(every time.Duration, say func(string)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.say, o.sayEvery = say, every
}

// Say says something of one's own, with the time.
func (o *Observer) Say(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sayLocked(fmt.Sprintf(format, args...))
}

func (o *Observer) sayLocked(text string) {
	if o.say != nil {
		o.say(fmt.Sprintf("%6.1fs  %s", time.Since(o.started).Seconds(), text))
	}
}

func (o *Observer) run(ctx context.Context) error {
	factory := informers.NewSharedInformerFactory(o.bed.Cluster.Client, 0)
	nodes, pods, deployments := factory.Core().V1().Nodes().Lister(), factory.Core().V1().Pods().Lister(), factory.Apps().V1().Deployments().Lister()
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	factory.WaitForCacheSync(ctx.Done())
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		var now State
		var all []*appsv1.Deployment
		var err error
		if now.Pods, err = pods.List(labels.SelectorFromSet(labels.Set{checkpointLabel: "required"})); err != nil {
			return err
		}
		if now.Nodes, err = nodes.List(labels.SelectorFromSet(nil)); err != nil {
			return err
		}
		if all, err = deployments.List(labels.Everything()); err != nil {
			return err
		}
		o.look(ctx, now, all)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// checkpointLabel marks the Pods of trainers.
const checkpointLabel = "gpu-node-provider.io/checkpoint"

func (o *Observer) look(ctx context.Context, now State, deployments []*appsv1.Deployment) {
	now.Nodes = slices.DeleteFunc(now.Nodes, func(n *corev1.Node) bool { return n.Labels["accelerator"] == "" })
	now.Replicas, now.Queues = map[string]int{}, map[string]Queue{}
	for _, d := range deployments {
		now.Replicas[d.Name] = int(*d.Spec.Replicas)
	}
	o.mu.Lock()
	queues := o.queues
	o.mu.Unlock()
	for _, name := range queues {
		queue, err := o.bed.Queue(ctx, name)
		if err != nil {
			return // Redis is away, or this is the end
		}
		now.Queues[name] = queue
	}

	o.mu.Lock()
	defer o.mu.Unlock()
	line := now.String()
	o.unsaid = o.unsaid || line != o.state.String()
	o.state = now
	for _, n := range now.Nodes {
		o.everNodes[n.Name] = true
		accelerator := n.Labels["accelerator"]
		o.mostNodes[accelerator] = max(o.mostNodes[accelerator], now.NodesOf(accelerator))
	}
	for name, replicas := range now.Replicas {
		o.mostReps[name] = max(o.mostReps[name], replicas)
	}
	close(o.changed)
	o.changed = make(chan struct{})
	if o.unsaid && time.Since(o.said) >= o.sayEvery {
		o.sayLocked(line)
		o.said, o.unsaid = time.Now(), false
	}
}

// Until waits until the system is as it should be. what is for the error, which
// tells the last state.
func (o *Observer) Until(ctx context.Context, within time.Duration, what string, holds func(State) bool) (took time.Duration, err error) {
	begin := time.Now()
	timer := time.NewTimer(within)
	defer timer.Stop()
	for {
		o.mu.Lock()
		state, changed := o.state, o.changed
		o.mu.Unlock()
		if state.Replicas != nil && holds(state) {
			return time.Since(begin), nil
		}
		select {
		case <-changed:
		case <-timer.C:
			return within, fmt.Errorf("this did not happen within %s: %s; last seen: %s", within, what, state)
		case <-ctx.Done():
			return time.Since(begin), fmt.Errorf("%s: %w", what, ctx.Err())
		}
	}
}

// MostNodes is the most Nodes that a pool ever had at once.
func (o *Observer) MostNodes(accelerator string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mostNodes[accelerator]
}

// MostReplicas is the most replicas that a Deployment was ever asked for.
func (o *Observer) MostReplicas(deployment string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mostReps[deployment]
}

// EverNodes counts all Nodes of the pools that there ever were.
func (o *Observer) EverNodes() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.everNodes)
}
