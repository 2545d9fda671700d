package simulated

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"gpu-node-provider/cloud"
)

// fresh is how old a heartbeat may be: times in patches have no fractions of a
// second.
const fresh = beatEvery + 2*tickEvery + time.Second

const gpu = corev1.ResourceName("nvidia.com/gpu")

// cluster is a Kubernetes API with a simulated cloud beside it, in a synctest
// bubble: time.Sleep there passes time, it does not wait.
type cluster struct {
	*testing.T
	client  *fake.Clientset
	options Options
	c       *Cloud
	logs    *observer.ObservedLogs
	stop    func()
}

func inCluster(t *testing.T, test func(t *testing.T, k *cluster)) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zapcore.InfoLevel)
		k := &cluster{T: t, client: fake.NewClientset(), logs: logs, options: slowly(time.Now)}
		k.options.Log = zap.New(core)
		k.options.Kubernetes = &Kubernetes{Client: k.client, NewNode: newNode, Heartbeat: true}
		defer func() {
			if k.stop != nil {
				k.stop()
			}
		}()
		test(t, k)
	})
}

// newNode is how a provider might make a Node; cpu stands for the kubelet's own
// resources.
func newNode(group, name, providerID string) (*corev1.Node, error) {
	resources := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), gpu: resource.MustParse("1")}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"group": group}},
		Spec: corev1.NodeSpec{ProviderID: providerID,
			Taints: []corev1.Taint{{Key: string(gpu), Value: "present", Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{Capacity: resources, Allocatable: resources.DeepCopy()},
	}, nil
}

// start opens the cloud and runs it, as a new process would.
func (k *cluster) start(groups ...string) {
	k.Helper()
	if k.stop != nil {
		k.stop()
	}
	c, err := New(k.options)
	require.NoError(k, err)
	require.NoError(k, c.Configure(k.Context(), specs(groups...)))
	k.c = c
	ctx, cancel := context.WithCancel(k.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	k.stop = func() {
		k.stop = nil
		cancel()
		require.NoError(k, <-ended)
		require.NoError(k, c.Close())
	}
	k.pass(2 * tickEvery)
}

func (k *cluster) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// grown asks for machines, waits until they run and their Nodes are there, and
// returns their ids.
func (k *cluster) grown(n int) []string {
	k.Helper()
	grow(k, k.c, "t4", n)
	k.pass(launch + boot + 2*tickEvery)
	return idsOf(get(k, k.c, "t4"))
}

func (k *cluster) nodes() []corev1.Node {
	k.Helper()
	list, err := k.client.CoreV1().Nodes().List(k.Context(), metav1.ListOptions{})
	require.NoError(k, err)
	return list.Items
}

func (k *cluster) node(name string) *corev1.Node {
	k.Helper()
	node, err := k.client.CoreV1().Nodes().Get(k.Context(), name, metav1.GetOptions{})
	require.NoError(k, err)
	return node
}

func (k *cluster) leases() int {
	k.Helper()
	list, err := k.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(k.Context(), metav1.ListOptions{})
	require.NoError(k, err)
	return len(list.Items)
}

// writes counts the calls since the last count that were no reads, by verb and
// resource.
func (k *cluster) calls() map[string]int {
	counts := map[string]int{}
	for _, action := range k.client.Actions() {
		what := action.GetVerb() + " " + action.GetResource().Resource
		if action.GetSubresource() != "" {
			what += "/" + action.GetSubresource()
		}
		counts[what]++
	}
	k.client.ClearActions()
	return counts
}

func ready(node *corev1.Node) corev1.NodeCondition {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition
		}
	}
	return corev1.NodeCondition{}
}

func TestNodesFollowTheirMachines(t *testing.T) {
	inCluster(t, func(t *testing.T, k *cluster) {
		k.start("t4")
		grow(t, k.c, "t4", 2)
		k.pass(launch + boot - tickEvery)
		require.Empty(t, k.nodes(), "a machine that boots has no Node")
		k.pass(2 * tickEvery)
		g := get(t, k.c, "t4")
		require.Equal(t, map[string]int{"running": 2}, states(g))
		nodes := k.nodes()
		require.Len(t, nodes, 2)
		require.ElementsMatch(t, idsOf(g), []string{nodes[0].Spec.ProviderID, nodes[1].Spec.ProviderID})
		node := k.node(nodes[0].Name)
		require.Equal(t, "simulated:///t4/"+node.Name, node.Spec.ProviderID)
		require.Equal(t, "t4", node.Labels["group"])
		require.Len(t, node.Spec.Taints, 1)
		require.Equal(t, corev1.ConditionTrue, ready(node).Status)
		for _, resources := range []corev1.ResourceList{node.Status.Capacity, node.Status.Allocatable} {
			require.NotContains(t, resources, gpu, "the device plugin has not started yet")
			require.Contains(t, resources, corev1.ResourceCPU)
		}

		k.pass(plugin)
		node = k.node(nodes[0].Name)
		for _, resources := range []corev1.ResourceList{node.Status.Capacity, node.Status.Allocatable} {
			require.Equal(t, int64(1), resources.Name(gpu, resource.DecimalSI).Value())
			require.Equal(t, int64(4), resources.Cpu().Value())
		}

		_, _, err := k.c.Delete(t.Context(), "t4", []string{node.Spec.ProviderID})
		require.NoError(t, err)
		k.pass(terminate - tickEvery)
		require.Len(t, k.nodes(), 2, "the machine is still shutting down")
		require.Equal(t, 2, k.leases())
		k.pass(2 * tickEvery)
		require.Len(t, k.nodes(), 1)
		require.NotEqual(t, node.Name, k.nodes()[0].Name)
		require.Equal(t, 1, k.leases())
	})
}

func TestMachineDeletedWhileItBootsHasNoNode(t *testing.T) {
	inCluster(t, func(t *testing.T, k *cluster) {
		k.options.TerminateDelay = time.Hour
		k.start("t4")
		grow(t, k.c, "t4", 1)
		k.pass(launch)
		_, _, err := k.c.Delete(t.Context(), "t4", idsOf(get(t, k.c, "t4")))
		require.NoError(t, err)
		k.pass(2 * boot)
		require.Empty(t, k.nodes())
	})
}

func TestInterruptedMachineIsReplacedByAnotherNode(t *testing.T) {
	inCluster(t, func(t *testing.T, k *cluster) {
		k.start("t4")
		lost := k.grown(1)[0]
		require.NoError(t, k.c.Interrupt(t.Context(), lost))
		k.pass(launch + boot + 2*tickEvery)
		nodes := k.nodes()
		require.Len(t, nodes, 1)
		require.NotEqual(t, lost, nodes[0].Spec.ProviderID)
	})
}

func TestHeartbeats(t *testing.T) {
	inCluster(t, func(t *testing.T, k *cluster) {
		k.start("t4")
		k.grown(3)
		began := ready(&k.nodes()[0]).LastTransitionTime.Truncate(time.Second) // a patch has no fractions of it
		for range 5 {
			k.pass(beatEvery + tickEvery)
			for _, node := range k.nodes() {
				condition := ready(&node)
				require.Less(t, time.Since(condition.LastHeartbeatTime.Time), fresh)
				require.True(t, began.Equal(condition.LastTransitionTime.Time))
				require.Len(t, node.Status.Conditions, 4)
				lease, err := k.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), node.Name, metav1.GetOptions{})
				require.NoError(t, err)
				require.Less(t, time.Since(lease.Spec.RenewTime.Time), fresh)
				require.Equal(t, node.Name, *lease.Spec.HolderIdentity)
				require.Equal(t, leaseSeconds, *lease.Spec.LeaseDurationSeconds)
				require.Equal(t, node.Name, lease.OwnerReferences[0].Name)
			}
		}
	})
}

// A Node that the node controller gave up while nobody sent heartbeats recovers,
// and conditions of others stay.
func TestHeartbeatsBringANodeBack(t *testing.T) {
	inCluster(t, func(t *testing.T, k *cluster) {
		k.start("t4")
		k.grown(1)
		k.stop()
		node := k.nodes()[0]
		for i := range node.Status.Conditions {
			node.Status.Conditions[i].Status = corev1.ConditionUnknown
		}
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: "KernelDeadlock", Status: corev1.ConditionFalse})
		_, err := k.client.CoreV1().Nodes().UpdateStatus(t.Context(), &node, metav1.UpdateOptions{})
		require.NoError(t, err)
		k.start("t4")
		k.pass(beatEvery)
		for _, condition := range k.nodes()[0].Status.Conditions {
			require.NotEqual(t, corev1.ConditionUnknown, condition.Status, condition.Type)
		}
		require.Len(t, k.nodes()[0].Status.Conditions, 5)
		require.Less(t, time.Since(ready(&k.nodes()[0]).LastTransitionTime.Time), fresh)
	})
}

func TestSomethingElseSendsHeartbeats(t *testing.T) {
	inCluster(t, func(t *testing.T, k *cluster) {
		k.options.Kubernetes.Heartbeat = false
		k.start("t4")
		k.grown(2)
		k.pass(plugin)
		k.calls()
		k.pass(time.Hour)
		require.Empty(t, k.calls())
		require.Zero(t, k.leases())
		require.Equal(t, corev1.ConditionTrue, ready(&k.nodes()[0]).Status)
	})
}

// A tick calls nothing but what there is to do: no reads, and no writes without
// a difference.
func TestTicksCallNothingNeedless(t *testing.T) {
	const machines = 20
	inCluster(t, func(t *testing.T, k *cluster) {
		k.start("t4")
		require.Equal(t, map[string]int{"list nodes": 1, "watch nodes": 1}, k.calls())
		k.grown(machines)
		k.pass(plugin + beatEvery)
		counts := k.calls()
		require.Equal(t, machines, counts["create nodes"])
		require.Equal(t, machines, counts["create leases"])
		require.Len(t, counts, 4, "besides, there are the patches of leases and statuses")
		for range 3 {
			k.pass(beatEvery)
			require.Equal(t, map[string]int{"patch leases": machines, "patch nodes/status": machines}, k.calls())
		}
	})
}

func TestHeartbeatsOfManyNodesAreSpread(t *testing.T) {
	const many = 1000
	now := newClock().Now()
	var machines []machine
	var nodes []*corev1.Node
	sequence := newSequence(rand.New(rand.NewPCG(1, 2)))
	for range many {
		var serial string
		serial, sequence = sequence.take(nil)
		m := machine{group: "t4", name: machineName("t4", serial), id: machineID("t4", serial), state: cloud.Running, devices: now}
		node, err := newNode(m.group, m.name, m.id)
		require.NoError(t, err)
		machines, nodes = append(machines, m), append(nodes, node)
	}
	r := &registrar{kubernetes: &Kubernetes{NewNode: newNode, Heartbeat: true}, seen: map[string]*sighting{}}
	for tick := range 60 {
		beats := 0
		for _, s := range r.plan(machines, map[string]bool{"t4": true}, nodes, now) {
			if s.name == "heartbeat" {
				beats++
			}
			s.done()
		}
		if tick > 0 {
			require.InDelta(t, many*tickEvery/beatEvery, beats, 30, "at tick %d", tick)
		}
		now = now.Add(tickEvery)
	}
}

func TestRestartAdoptsNodes(t *testing.T) {
	inCluster(t, func(t *testing.T, k *cluster) {
		k.start("t4")
		k.grown(3)
		k.stop()
		before := k.nodes()
		k.pass(plugin)
		k.start("t4")
		k.pass(tickEvery)
		counts := k.calls()
		require.Equal(t, 3, counts["create nodes"], "only those before the restart")
		after := k.nodes()
		require.Len(t, after, 3)
		for i := range after {
			require.Equal(t, before[i].Name, after[i].Name)
			require.Contains(t, after[i].Status.Allocatable, gpu, "it became due while nobody was there")
		}
	})
}

func TestLeftOversAreRemoved(t *testing.T) {
	inCluster(t, func(t *testing.T, k *cluster) {
		own := map[string]string{ownAnnotation: "true"}
		add := func(name, id string, annotations map[string]string) {
			_, err := k.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations},
				Spec:       corev1.NodeSpec{ProviderID: id},
			}, metav1.CreateOptions{})
			require.NoError(t, err)
		}
		add("t4-bcdf2", machineID("t4", "bcdf2"), own)
		add("t4-bcdf4", machineID("t4", "bcdf4"), nil)
		add("old-bcdf2", machineID("old", "bcdf2"), own)
		add("aws", "aws:///eu-west-1a/i-0123456789abcdef0", own)
		add("none", "", own)
		add("odd", "simulated:///t4/t4-BCDF2", own)
		add("template", k.c.TemplateID("t4"), own)
		k.start("t4")
		k.grown(1)
		var left []string
		for _, node := range k.nodes() {
			left = append(left, node.Name)
		}
		require.Len(t, left, 7)
		require.NotContains(t, left, "t4-bcdf2", "its machine is unknown: the state was lost")
		require.Subset(t, left, []string{"t4-bcdf4", "old-bcdf2", "aws", "none", "odd", "template"})
	})
}

func TestNodesOfAWipedState(t *testing.T) {
	inCluster(t, func(t *testing.T, k *cluster) {
		k.start("t4")
		k.grown(2)
		k.options.Memory = &Memory{}
		k.start("t4")
		require.Empty(t, k.nodes())
		k.pass(beatEvery)
		require.Zero(t, k.leases())
	})
}

func TestDroppedGroup(t *testing.T) {
	inCluster(t, func(t *testing.T, k *cluster) {
		k.start("t4", "a100")
		ids := k.grown(2)
		_, _, err := k.c.Delete(t.Context(), "t4", ids[:1])
		require.NoError(t, err)
		grow(t, k.c, "t4", 1)
		require.NoError(t, k.c.Configure(t.Context(), specs("a100")))
		k.pass(time.Minute)
		nodes := k.nodes()
		require.Len(t, nodes, 1, "the deleted one has gone, the other one stays")
		require.Equal(t, ids[1], nodes[0].Spec.ProviderID)
		require.Less(t, time.Since(ready(&nodes[0]).LastHeartbeatTime.Time), fresh)
		k.pass(launch + boot)
		require.Len(t, k.nodes(), 1, "nobody can tell what the Node of a group without configuration looks like")
		require.NoError(t, k.c.Configure(t.Context(), specs("t4", "a100")))
		k.pass(2 * tickEvery)
		require.Len(t, k.nodes(), 2)
	})
}

func TestPeoplesChangesStay(t *testing.T) {
	inCluster(t, func(t *testing.T, k *cluster) {
		k.start("t4")
		k.grown(1)
		k.pass(plugin)
		node := k.nodes()[0]
		node.Spec.Unschedulable = true
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule})
		node.Annotations["note"] = "broken fan"
		node.Labels["group"] = "changed"
		_, err := k.client.CoreV1().Nodes().Update(t.Context(), &node, metav1.UpdateOptions{})
		require.NoError(t, err)
		node.Status.Allocatable[gpu] = resource.MustParse("0")
		changed, err := k.client.CoreV1().Nodes().UpdateStatus(t.Context(), &node, metav1.UpdateOptions{})
		require.NoError(t, err)
		k.pass(time.Minute)
		k.start("t4")
		k.pass(time.Minute)
		after := k.node(node.Name)
		require.Empty(t, cmp.Diff(changed.Spec, after.Spec))
		require.Equal(t, changed.Annotations, after.Annotations)
		require.Equal(t, changed.Labels, after.Labels)
		require.True(t, after.Status.Allocatable.Name(gpu, resource.DecimalSI).IsZero(), "a GPU that was taken away stays away")
	})
}

func TestDeletedNodeIsRegisteredAgain(t *testing.T) {
	inCluster(t, func(t *testing.T, k *cluster) {
		k.start("t4")
		k.grown(1)
		k.pass(plugin)
		name := k.nodes()[0].Name
		require.NoError(t, k.client.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}))
		k.pass(2 * tickEvery)
		require.Contains(t, k.node(name).Status.Allocatable, gpu)
	})
}

func TestNodeInTheWay(t *testing.T) {
	inCluster(t, func(t *testing.T, k *cluster) {
		k.start("t4")
		grow(t, k.c, "t4", 2)
		name := machineName("t4", k.c.current.Groups["t4"][0].Serial)
		stranger := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: "kind://docker/kind/worker"}}
		stranger, err := k.client.CoreV1().Nodes().Create(t.Context(), stranger, metav1.CreateOptions{})
		require.NoError(t, err)
		k.pass(launch + boot + plugin + beatEvery)
		require.Equal(t, stranger, k.node(name))
		require.Len(t, k.nodes(), 2, "the other machine has its Node")
		require.NotZero(t, k.logs.FilterField(zap.String("step", "adopt")).Len())
	})
}

func TestOneNodeThatCannotBeMade(t *testing.T) {
	inCluster(t, func(t *testing.T, k *cluster) {
		var bad atomic.Value
		bad.Store("")
		k.options.Kubernetes.NewNode = func(group, name, id string) (*corev1.Node, error) {
			bad.CompareAndSwap("", name)
			if bad.Load() == name {
				return nil, errors.New("no template")
			}
			return newNode(group, name, id)
		}
		k.start("t4")
		k.grown(3)
		require.Len(t, k.nodes(), 2)
		k.pass(10 * time.Second)
		failures := k.logs.FilterMessage("simulated node not updated, trying again")
		require.Equal(t, 1, failures.Len(), "it is not logged at every tick")
		require.Contains(t, fmt.Sprint(failures.All()[0].ContextMap()["error"]), "no template")
		bad.Store("nobody")
		k.pass(2 * tickEvery)
		require.Len(t, k.nodes(), 3)
	})
}

func TestNodeMadeWrongIsPutRight(t *testing.T) {
	inCluster(t, func(t *testing.T, k *cluster) {
		shared, err := newNode("t4", "template", "simulated:///t4/template")
		require.NoError(t, err)
		before := shared.DeepCopy()
		k.options.Kubernetes.NewNode = func(string, string, string) (*corev1.Node, error) { return shared, nil }
		k.start("t4")
		ids := k.grown(1)
		require.Equal(t, ids[0], k.nodes()[0].Spec.ProviderID)
		require.Equal(t, "simulated:///t4/"+k.nodes()[0].Name, ids[0])
		require.Equal(t, before, shared, "it is the caller's")
	})
}

func TestNoNodeMade(t *testing.T) {
	inCluster(t, func(t *testing.T, k *cluster) {
		k.options.Kubernetes.NewNode = func(string, string, string) (*corev1.Node, error) { return nil, nil }
		k.start("t4")
		k.grown(1)
		require.Empty(t, k.nodes())
	})
}

// An API server that fails, for each kind of call in turn, is tried again until
// it works.
func TestAPIErrorsAreTriedAgain(t *testing.T) {
	for _, row := range []struct{ verb, resource string }{
		{"create", "nodes"}, {"patch", "nodes"}, {"delete", "nodes"},
		{"create", "leases"}, {"patch", "leases"}, {"delete", "leases"},
		{"list", "nodes"}, {"watch", "nodes"},
	} {
		t.Run(row.verb+" "+row.resource, func(t *testing.T) {
			inCluster(t, func(t *testing.T, k *cluster) {
				var down atomic.Bool
				down.Store(true)
				fails := func(k8stesting.Action) (bool, runtime.Object, error) {
					return down.Load(), nil, apierrors.NewInternalError(errors.New("etcd is away"))
				}
				k.client.PrependReactor(row.verb, row.resource, fails)
				if row.verb == "watch" { // these go another way through the fake
					k.client.PrependWatchReactor(row.resource, func(k8stesting.Action) (bool, watch.Interface, error) {
						return down.Load(), nil, apierrors.NewInternalError(errors.New("etcd is away"))
					})
				}
				k.start("t4")
				ids := k.grown(2)
				k.pass(plugin + beatEvery)
				_, _, err := k.c.Delete(t.Context(), "t4", ids[:1])
				require.NoError(t, err)
				k.pass(terminate + 2*tickEvery)
				down.Store(false)
				k.pass(2 * time.Minute)
				nodes := k.nodes()
				require.Len(t, nodes, 1)
				require.Equal(t, ids[1], nodes[0].Spec.ProviderID)
				require.Contains(t, nodes[0].Status.Allocatable, gpu)
				require.Less(t, time.Since(ready(&nodes[0]).LastHeartbeatTime.Time), fresh)
				require.Equal(t, 1, k.leases())
				require.NotZero(t, k.logs.FilterLevelExact(zapcore.WarnLevel).Len())
			})
		})
	}
}

func TestRunWithoutKubernetesWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, Options{}, "t4")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		synctest.Wait()
		require.Empty(t, ended)
		cancel()
		require.NoError(t, <-ended)
	})
}

func TestRunEndsWhileTheAPIIsAway(t *testing.T) {
	inCluster(t, func(t *testing.T, k *cluster) {
		k.client.PrependReactor("list", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewServiceUnavailable("starting")
		})
		k.start("t4")
		k.pass(time.Minute)
		k.stop()
		require.NotZero(t, k.logs.FilterMessage("watching nodes failed, trying again").Len())
	})
}
