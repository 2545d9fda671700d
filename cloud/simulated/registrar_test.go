package simulated

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	k8stesting "k8s.io/client-go/testing"

	"gpu-node-provider/cloud/logkey"
)

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

// A Node whose removal failed is still known when its group changes and then goes.
func TestDroppedGroupWhileTheAPIIsAway(t *testing.T) {
	inCluster(t, func(t *testing.T, k *cluster) {
		var down atomic.Bool
		k.client.PrependReactor("delete", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
			return down.Load(), nil, apierrors.NewServiceUnavailable("starting")
		})
		k.start("t4", "a100")
		ids := k.grown(1)
		down.Store(true)
		_, _, err := k.c.Delete(t.Context(), "t4", ids)
		require.NoError(t, err)
		k.pass(terminate + 2*tickEvery)
		grow(t, k.c, "t4", 1)
		require.NoError(t, k.c.Configure(t.Context(), specs("a100")))
		k.pass(2 * tickEvery)
		require.Len(t, k.nodes(), 1)
		down.Store(false)
		k.pass(2 * tickEvery)
		require.Empty(t, k.nodes())
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

// Only what a Node lacks is written: a null in a patch would take the rest away.
func TestEquipWritesOnlyWhatIsMissing(t *testing.T) {
	inCluster(t, func(t *testing.T, k *cluster) {
		k.options.Kubernetes.NewNode = func(group, name, id string) (*corev1.Node, error) {
			node, err := newNode(group, name, id)
			node.Status.Allocatable = nil
			return node, err
		}
		k.start("t4")
		k.grown(1)
		node := k.nodes()[0]
		node.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("7")}
		_, err := k.client.CoreV1().Nodes().UpdateStatus(t.Context(), &node, metav1.UpdateOptions{})
		require.NoError(t, err)
		k.pass(plugin)
		after := k.nodes()[0]
		require.Contains(t, after.Status.Capacity, gpu)
		require.Equal(t, int64(7), after.Status.Allocatable.Pods().Value())
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
		require.NotZero(t, k.logs.FilterField(zap.String(logkey.Step, "adopt")).Len())
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
		failures := k.logs.FilterMessage("failed to update a simulated node, will retry")
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
		{"create", "nodes"},
		{"patch", "nodes"},
		{"delete", "nodes"},
		{"create", "leases"},
		{"patch", "leases"},
		{"delete", "leases"},
		{"list", "nodes"},
		{"watch", "nodes"},
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
		require.NotZero(t, k.logs.FilterMessage("failed to watch nodes, will retry").Len())
	})
}
