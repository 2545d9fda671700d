package main

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"gpu-node-provider/provider/checkpoint"
	"gpu-node-provider/provider/cluster"
	"gpu-node-provider/provider/guard"
	"gpu-node-provider/provider/nodegroup"
)

const (
	heldPods         = 200
	acknowledgedPods = 600
	podsPerTrainer   = 4 // trainers of a node: all its GPUs
	idlePasses       = 12
	passEvery        = 5 * time.Second // of the guard
)

// idleGuard counts what a guard writes, and what it costs, when nothing changes.
func idleGuard(ctx context.Context, _ settings) (missed int, err error) {
	dir, err := os.MkdirTemp("", "bench-guard-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	server, err := startRedis(ctx, dir)
	if err != nil {
		return 0, err
	}
	defer server.stop()
	w, err := newIdleWorld(ctx, server)
	if err != nil {
		return 0, err
	}
	if err := w.settle(ctx); err != nil {
		return 0, err
	}
	w.writes.Store(0)
	before, begin := cpu(), time.Now()
	for range idlePasses {
		w.guard.Pass(ctx)
	}
	used, took := cpu()-before, time.Since(begin)
	r := row{
		name: "idle guard's writes", ours: fmt.Sprint(w.writes.Load()), beside: "0", ratio: float64(w.writes.Load()), most: 0,
		note: fmt.Sprintf("in %d passes over %d nodes, %d trainers that hold theirs and %d that do not; a pass takes %s, %s of CPU: %.2f %% of a core",
			idlePasses, clusterNodes, heldPods, acknowledgedPods, short(float64(took/idlePasses)), short(float64(used/idlePasses)), 100*used.Seconds()/(idlePasses*passEvery).Seconds()),
	}
	return r.print(), nil
}

// idleWorld is a guard, and an API server that counts what is written to it.
type idleWorld struct {
	guard  *guard.Guard
	client kubernetes.Interface
	known  cluster.Memory
	writes atomic.Int64
}

func newIdleWorld(ctx context.Context, server *redisServer) (*idleWorld, error) {
	w := &idleWorld{}
	trainerNodes := (heldPods + acknowledgedPods) / podsPerTrainer
	var inAPI []runtime.Object // only Nodes that will be marked: the fake is slow
	for n := range trainerNodes {
		node := aNode(n)
		node.UID = types.UID(node.Name)
		inAPI = append(inAPI, node)
	}
	client := fake.NewClientset(inAPI...)
	client.PrependReactor("*", "*", func(a k8stesting.Action) (bool, runtime.Object, error) {
		if verb := a.GetVerb(); verb != "get" && verb != "list" && verb != "watch" {
			w.writes.Add(1)
		}
		return false, nil, nil
	})
	view, known := cluster.NewMemory(client, &record.FakeRecorder{})
	w.client, w.known = client, known
	for n := range clusterNodes {
		if err := w.addNode(ctx, n, n < trainerNodes, server); err != nil {
			return nil, err
		}
	}
	store, err := checkpoint.NewStore(checkpoint.RedisOptions{Addresses: []string{server.address}}, redisPrefix)
	if err != nil {
		return nil, err
	}
	selector, err := labels.Parse(trainingLabel + "=required")
	if err != nil {
		return nil, err
	}
	policy := guard.Policy{Policy: checkpoint.Policy{MaxAge: acknowledge, AbandonAfter: time.Hour}, AskAfter: time.Minute, AskEvery: time.Minute}
	kept := checkpoint.NewRecord(client, "gpu-node-provider")
	places := make(map[string]nodegroup.Place, clusterNodes)
	for n := range clusterNodes {
		places[machineID(n)] = nodegroup.Place{Group: groupID(n % groups), AboveMin: true, GPUs: 4, HourlyPrice: 3.912}
	}
	w.guard = guard.New(guard.Options{
		View: view, Record: kept, Asker: store, Policy: func() guard.Policy { return policy }, GroupLabel: groupLabel, Log: zap.NewNop(), Now: time.Now,
		Place: func(id string) (nodegroup.Place, bool) { p, ok := places[id]; return p, ok },
		Assessor: &checkpoint.Assessor{
			View: view, Record: kept, Signals: store, Selector: selector, Now: time.Now, Policy: func() checkpoint.Policy { return policy.Policy },
		},
	})
	w.guard.AllPlaced()
	return w, nil
}

// addNode adds a Node with its pods: trainers, or three others.
func (w *idleWorld) addNode(ctx context.Context, n int, trains bool, server *redisServer) error {
	node := aNode(n)
	node.UID = types.UID(node.Name)
	if err := w.known.Put(node); err != nil {
		return err
	}
	for k := range podsPerTrainer {
		pod := aService(n*podsPerTrainer+k, node.Name)
		if trains {
			pod = aTrainer(n*podsPerTrainer+k, node.Name)
		}
		if err := w.known.Put(pod); err != nil {
			return err
		}
		if trains && n*podsPerTrainer+k >= heldPods {
			if err := server.Set(ctx, checkpoint.AckKey(redisPrefix, checkpoint.IDOf(pod)), acknowledgement(), 0).Err(); err != nil {
				return err
			}
		}
	}
	return nil
}

// settle has the guard look until it has nothing more to write.
func (w *idleWorld) settle(ctx context.Context) error {
	const most = 5
	for range most {
		w.writes.Store(0)
		w.guard.Pass(ctx)
		if w.writes.Load() == 0 {
			if held := len(w.guard.Holds()); held != heldPods/podsPerTrainer {
				return fmt.Errorf("%d nodes are held instead of %d", held, heldPods/podsPerTrainer)
			}
			return nil
		}
		if err := w.news(ctx); err != nil {
			return err
		}
	}
	return fmt.Errorf("the guard still writes after %d passes", most)
}

// news tells the View what has been written.
func (w *idleWorld) news(ctx context.Context) error {
	list, err := w.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for n := range list.Items {
		if err := w.known.Put(&list.Items[n]); err != nil {
			return err
		}
	}
	return nil
}
