package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"gpu-node-provider/provider/checkpoint"
	"gpu-node-provider/provider/cluster"
	"gpu-node-provider/test/controlplane"
)

const (
	gateNodes   = 100
	gatePods    = 800
	gateRounds  = 30
	gateLists   = 20  // at a time, as the gate makes them
	mostGate    = 1.5 // times the calls alone
	redisPrefix = "checkpoint"
	acknowledge = 20 * time.Minute
)

// gate measures what a DeleteNodes of 100 nodes waits for, on a real API server
// and a real Redis, beside the same calls made without looking at the answers.
func gate(ctx context.Context, _ settings) (missed int, err error) {
	binaries, err := filepath.Abs(filepath.Join(".cache", "controlplane"))
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "bench-gate-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	plane, err := controlplane.Start(ctx, controlplane.Options{Binaries: binaries, Dir: dir, APIOnly: true})
	defer plane.Stop()
	if err != nil {
		return 0, err
	}
	server, err := startRedis(ctx, dir)
	if err != nil {
		return 0, err
	}
	defer server.stop()
	rest := *plane.Config
	rest.QPS = -1 // no pauses of client-go's own: they would be all that is measured
	client, err := kubernetes.NewForConfig(&rest)
	if err != nil {
		return 0, err
	}
	pods, err := populate(ctx, client, server.Client)
	if err != nil {
		return 0, err
	}
	store, err := checkpoint.NewStore(checkpoint.RedisOptions{Addresses: []string{server.address}}, redisPrefix)
	if err != nil {
		return 0, err
	}
	defer store.Close() //nolint:errcheck // nothing is left to do
	assessor, err := gateAssessor(ctx, client, store)
	if err != nil {
		return 0, err
	}
	return compareGate(ctx, assessor, &rawGate{client: client, redis: server.Client, pods: pods})
}

func compareGate(ctx context.Context, assessor *checkpoint.Assessor, raw *rawGate) (missed int, err error) {
	instances := make([]checkpoint.Instance, 0, gateNodes)
	for n := range gateNodes {
		instances = append(instances, checkpoint.Instance{ID: machineID(n), Node: nodeName(n)})
	}
	times, err := inTurn(gateRounds, func() error {
		held, err := assessor.Hold(ctx, instances)
		if err == nil && len(held) != gateNodes/2 {
			err = fmt.Errorf("the gate holds %d nodes instead of %d", len(held), gateNodes/2)
		}
		return err
	}, func() error { return raw.calls(ctx) })
	if err != nil {
		return 0, err
	}
	ours, beside := median(times[0]), median(times[1])
	return row{
		name: "DeleteNodes' gate", ours: short(ours), beside: short(beside), ratio: ours / beside, most: mostGate,
		note: fmt.Sprintf("the same %d LISTs and one raw pipeline; %d pods on real servers, median of %d in turn", gateNodes, gatePods, gateRounds),
	}.print(), nil
}

// gateAssessor is the gate with a View that knows the nodes, and no record.
func gateAssessor(ctx context.Context, client kubernetes.Interface, store *checkpoint.Store) (*checkpoint.Assessor, error) {
	view, known := cluster.NewMemory(client, &record.FakeRecorder{})
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for n := range nodes.Items {
		if err := known.Put(&nodes.Items[n]); err != nil {
			return nil, err
		}
	}
	selector, err := labels.Parse(trainingLabel + "=required")
	if err != nil {
		return nil, err
	}
	return &checkpoint.Assessor{
		View: view, Record: checkpoint.NewRecord(client, "gpu-node-provider"), Signals: store, Selector: selector, Now: time.Now,
		Policy: func() checkpoint.Policy { return checkpoint.Policy{MaxAge: acknowledge, AbandonAfter: time.Hour} },
	}, nil
}

// rawGate makes the calls of the gate and does nothing with what comes back.
type rawGate struct {
	client kubernetes.Interface
	redis  *redis.Client
	pods   []corev1.Pod
}

func (r *rawGate) calls(ctx context.Context) error {
	g, lists := errgroup.WithContext(ctx)
	g.SetLimit(gateLists)
	for n := range gateNodes {
		g.Go(func() error {
			list, err := r.client.CoreV1().Pods(metav1.NamespaceAll).List(lists, metav1.ListOptions{
				FieldSelector: fields.OneTermEqualSelector("spec.nodeName", nodeName(n)).String(),
			})
			if err == nil && len(list.Items) != gatePods/gateNodes {
				err = fmt.Errorf("%d pods on a node instead of %d", len(list.Items), gatePods/gateNodes)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	pipe := r.redis.Pipeline()
	pipe.Time(ctx)
	pipe.Do(ctx, "HELLO")
	for n := range r.pods {
		id := checkpoint.IDOf(&r.pods[n])
		pipe.GetRange(ctx, checkpoint.AckKey(redisPrefix, id), 0, 4096)
		pipe.GetRange(ctx, checkpoint.RequestKey(redisPrefix, id), 0, 4096)
	}
	_, err := pipe.Exec(ctx)
	return err
}

// populate makes the nodes and their training pods, which run. The pods of every
// other node have acknowledged.
func populate(ctx context.Context, client kubernetes.Interface, server *redis.Client) ([]corev1.Pod, error) {
	if err := trainingNamespace(ctx, client); err != nil {
		return nil, err
	}
	for n := range gateNodes {
		if _, err := client.CoreV1().Nodes().Create(ctx, aNode(n), metav1.CreateOptions{}); err != nil {
			return nil, err
		}
	}
	pods := make([]corev1.Pod, gatePods)
	g, calls := errgroup.WithContext(ctx)
	g.SetLimit(gateLists)
	for n := range pods {
		g.Go(func() error {
			wanted := aTrainer(n, nodeName(n%gateNodes))
			pod, err := client.CoreV1().Pods(wanted.Namespace).Create(calls, wanted, metav1.CreateOptions{})
			if err != nil {
				return err
			}
			pod.Status = wanted.Status
			if pod, err = client.CoreV1().Pods(pod.Namespace).UpdateStatus(calls, pod, metav1.UpdateOptions{}); err != nil {
				return err
			}
			pods[n] = *pod
			if n%2 == 0 {
				return server.Set(calls, checkpoint.AckKey(redisPrefix, checkpoint.IDOf(pod)), acknowledgement(), 0).Err()
			}
			return nil
		})
	}
	return pods, g.Wait()
}

// trainingNamespace has what kube-controller-manager would make in it.
func trainingNamespace(ctx context.Context, client kubernetes.Interface) error {
	_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: trainers}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, err = client.CoreV1().ServiceAccounts(trainers).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
