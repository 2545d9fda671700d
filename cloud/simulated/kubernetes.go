package simulated

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"gpu-node-provider/cloud/logkey"
)

const (
	// tickEvery is how soon a change of the cloud shows as a Node. A tick without
	// changes reads the informer's cache and calls nothing.
	tickEvery = 500 * time.Millisecond
	// beatEvery is the kubelet's own pace. The node controller marks a Node
	// unreachable 40 to 50 seconds after the last beat.
	beatEvery = 10 * time.Second
	// beatAgain is how soon a beat that failed is tried again: often enough for
	// several tries within a Lease, and no storm on a server that is in trouble.
	beatAgain = 5 * time.Second
	// callTimeout keeps one call that hangs from holding up all other Nodes for
	// longer than a beat.
	callTimeout = 10 * time.Second
	// parallelCalls lets 1,000 Nodes beat within the time of a beat at 50 ms a
	// call, without a burst at the start of a rehearsal that starves other clients.
	parallelCalls = 16
	// repeatLog is how often a failure that lasts is logged again.
	repeatLog = time.Minute
)

// Kubernetes is where and how Run registers Nodes. A cluster should have one
// simulated cloud for a group: Nodes of a configured group which this cloud made
// and whose instance it does not know are removed as left-overs.
type Kubernetes struct {
	// Client must be allowed to list, watch, create and delete nodes, to patch
	// nodes/status, and to create, patch and delete leases in kube-node-lease.
	// With Heartbeat it makes two writes a Node every ten seconds, which its
	// rate limit must allow.
	Client kubernetes.Interface
	// NewNode makes the Node of a Running instance with its full capacity,
	// labels and taints. It may be called concurrently, and again for a Node that
	// exists; name, provider id and conditions are set here, and an annotation is
	// added.
	NewNode func(group, name, providerID string) (*corev1.Node, error)
	// Heartbeat keeps Leases and conditions fresh; false leaves that to
	// something else, such as kwok.
	Heartbeat bool
}

// Run registers a Node for each Running instance and removes it when the
// instance is gone, until ctx is done. It returns nil then, and not before:
// whatever fails is logged and tried again. After its creation only a Node's
// status is written, so what people do to it stays. Without Kubernetes it only
// waits.
func (c *Cloud) Run(ctx context.Context) error {
	k := c.options.Kubernetes
	if k == nil {
		<-ctx.Done()
		return nil
	}
	factory := informers.NewSharedInformerFactoryWithOptions(k.Client, 0, informers.WithTransform(trimNode))
	nodes := factory.Core().V1().Nodes()
	// Without the first full list every Node would look missing.
	synced := nodes.Informer().HasSynced
	err := nodes.Informer().SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		c.log.Warn("failed to watch nodes, will retry", zap.Error(err))
	})
	if err != nil { // it could only have been started before
		return fmt.Errorf("simulated: watching nodes: %w", err)
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	if !cache.WaitForCacheSync(ctx.Done(), synced) {
		return nil
	}

	r := &registrar{cloud: c, kubernetes: k, log: c.log, seen: map[string]*sighting{}, logged: map[string]time.Time{}}
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	for {
		if list, err := nodes.Lister().List(labels.Everything()); err == nil { // a lister's cache cannot fail
			r.tick(ctx, list)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// trimNode drops the parts of cached Nodes that take most of the room and that
// nothing here reads.
func trimNode(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetManagedFields(nil)
	}
	if node, ok := object.(*corev1.Node); ok {
		node.Status.Images = nil
	}
	return object, nil
}

// registrar makes the cluster's Nodes follow the cloud's machines. Its fields
// are used by one goroutine.
type registrar struct {
	cloud      *Cloud
	kubernetes *Kubernetes
	log        *zap.Logger
	seen       map[string]*sighting
	logged     map[string]time.Time
}

// sighting is what the registrar remembers of a machine between ticks.
type sighting struct {
	// equipped is true once the Node has had its extended resources. They are
	// given once: a person who takes them away again rehearses a failure.
	equipped bool
	nextBeat time.Time
}

// step is one thing to be done for a machine or its Node.
type step struct {
	name            string
	group, node, id string
	do              func(ctx context.Context) error
	// done is called after do has succeeded, never concurrently; it may be nil.
	done func()
}

func (r *registrar) tick(ctx context.Context, nodes []*corev1.Node) {
	machines, configured, now, err := r.cloud.machines()
	if err != nil { // closed: the Nodes stay for whoever opens the state next
		return
	}
	steps := r.plan(machines, configured, nodes, now)
	results := make([]error, len(steps))
	var calls errgroup.Group
	calls.SetLimit(parallelCalls)
	for i, s := range steps {
		calls.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, callTimeout)
			defer cancel()
			results[i] = s.do(ctx)
			return nil // one failure must not keep the others from their turn
		})
	}
	_ = calls.Wait()
	if ctx.Err() != nil {
		return
	}
	for i, s := range steps {
		if results[i] == nil && s.done != nil {
			s.done()
		}
	}
	r.report(steps, results, now)
}

// report logs what failed, by kind and group: an API server that is away fails
// for every Node alike, and at every tick.
func (r *registrar) report(steps []step, results []error, now time.Time) {
	type failure struct {
		first step
		err   error
		count int
	}
	failures := map[string]*failure{}
	for i, s := range steps {
		err := results[i]
		if err == nil {
			continue
		}
		key := s.name + " " + s.group
		if failures[key] == nil {
			failures[key] = &failure{first: s, err: err}
		}
		failures[key].count++
	}
	for key, f := range failures {
		if last, ok := r.logged[key]; ok && now.Sub(last) < repeatLog {
			continue
		}
		r.logged[key] = now
		r.log.Warn("failed to update a simulated node, will retry", zap.String(logkey.Step, f.first.name),
			zap.String(logkey.NodeGroup, f.first.group), zap.String(logkey.Node, f.first.node),
			zap.Int(logkey.Nodes, f.count), zap.Error(f.err))
	}
	for key := range r.logged {
		if failures[key] == nil {
			delete(r.logged, key)
		}
	}
}

// wrote logs a change that people can see; it may be called concurrently.
func (r *registrar) wrote(s step) {
	r.log.Info("simulated node updated", zap.String(logkey.Step, s.name), zap.String(logkey.NodeGroup, s.group),
		zap.String(logkey.Node, s.node), zap.String(logkey.Instance, s.id))
}
