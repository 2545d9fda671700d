package simulated

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// fresh is how old a heartbeat may be: times in patches have no fractions of a
// second.
const fresh = beatEvery + 2*tickEvery + time.Second

const gpu = corev1.ResourceName("nvidia.com/gpu")

// cluster is a Kubernetes API with a simulated cloud beside it, in a synctest
// bubble, where waiting takes no time.
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
		Spec: corev1.NodeSpec{
			ProviderID: providerID,
			Taints:     []corev1.Taint{{Key: string(gpu), Value: "present", Effect: corev1.TaintEffectNoSchedule}},
		},
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
	<-time.After(d)
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

// calls counts the calls since the last count, by verb and resource.
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
