package simulated

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"gpu-node-provider/cloud"
)

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
	const machines = 10
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

// An API server that fails is not asked at every tick.
func TestFailingHeartbeatsAreNoStorm(t *testing.T) {
	inCluster(t, func(t *testing.T, k *cluster) {
		k.start("t4")
		k.grown(1)
		k.pass(plugin + beatEvery)
		k.client.PrependReactor("patch", "leases", func(k8stesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewServiceUnavailable("starting")
		})
		k.calls()
		k.pass(time.Minute)
		require.InDelta(t, time.Minute/beatAgain, k.calls()["patch leases"], 2)
	})
}
