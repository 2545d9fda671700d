package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds waits for what an informer or a broadcaster is about to do.
const patience = 20 * time.Second

const gpu corev1.ResourceName = "nvidia.com/gpu"

var provider = &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: "gpu-node-provider", Name: "provider-0"}

// apiServer is the fake clientset, with what a real API server does and the
// fake leaves out: Pods are selected by phase, and a patch of an old version is
// a conflict.
func apiServer(objects ...runtime.Object) *fake.Clientset {
	client := fake.NewClientset(objects...)
	client.PrependReactor("list", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		all, err := client.Tracker().List(a.GetResource(), corev1.SchemeGroupVersion.WithKind("Pod"), a.GetNamespace())
		if err != nil {
			return true, nil, err
		}
		list, selector := all.(*corev1.PodList), a.(k8stesting.ListAction).GetListRestrictions().Fields //nolint:errcheck // the tracker has Pods under pods
		list.Items = slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
			return !selector.Matches(fields.Set{"status.phase": string(p.Status.Phase)})
		})
		return true, list, nil
	})
	client.PrependReactor("patch", "nodes", func(a k8stesting.Action) (bool, runtime.Object, error) {
		patch := a.(k8stesting.PatchAction) //nolint:errcheck // it is one
		var known corev1.Node
		if err := json.Unmarshal(patch.GetPatch(), &known); err != nil {
			return true, nil, err
		}
		now, err := client.Tracker().Get(a.GetResource(), "", patch.GetName())
		if err != nil {
			return true, nil, err
		}
		if v := known.ResourceVersion; v != "" && v != now.(*corev1.Node).ResourceVersion { //nolint:errcheck // the tracker has Nodes under nodes
			return true, nil, apierrors.NewConflict(a.GetResource().GroupResource(), patch.GetName(), errors.New("it has been modified"))
		}
		return false, nil, nil
	})
	return client
}

// follow makes a View that has read everything. stop ends its Run and waits for
// that; the test's end does so too.
func follow(t *testing.T, client *fake.Clientset) (v *View, stop func()) {
	t.Helper()
	v, err := New(client, provider)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- v.Run(ctx); close(ended) }()
	stop = func() {
		cancel()
		require.NoError(t, <-ended)
	}
	t.Cleanup(stop)
	synced, cancelSync := context.WithTimeout(t.Context(), patience)
	defer cancelSync()
	require.NoError(t, v.WaitForSync(synced))
	return v, stop
}

// node is a Node that is Ready and has a GPU, changed by edits.
func node(name, id string, edits ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"},
		Spec:       corev1.NodeSpec{ProviderID: id},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{gpu: resource.MustParse("1")},
			Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse}, {Type: corev1.NodeReady, Status: corev1.ConditionTrue},
			},
		},
	}
	for _, edit := range edits {
		edit(n)
	}
	return n
}

func isReady(s corev1.ConditionStatus) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.Conditions[1].Status = s }
}

func gpus(capacity, allocatable corev1.ResourceList) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.Capacity, n.Status.Allocatable = capacity, allocatable }
}

func TestUsable(t *testing.T) {
	one, none := corev1.ResourceList{gpu: resource.MustParse("1")}, corev1.ResourceList{gpu: resource.MustParse("0")}
	for name, c := range map[string]struct {
		node   *corev1.Node
		device corev1.ResourceName
		want   bool
	}{
		"ready with its GPU":                      {node("n", "aws:///a/i-1"), gpu, true},
		"not registered":                          {node("n", "aws:///a/i-2"), gpu, false},
		"registered under another spelling":       {node("n", "aws:///b/i-1"), gpu, false},
		"registered without a provider id":        {node("i-1", ""), gpu, false},
		"not ready":                               {node("n", "aws:///a/i-1", isReady(corev1.ConditionFalse)), gpu, false},
		"not heard of for a while":                {node("n", "aws:///a/i-1", isReady(corev1.ConditionUnknown)), gpu, false},
		"without conditions":                      {node("n", "aws:///a/i-1", func(n *corev1.Node) { n.Status.Conditions = nil }), gpu, false},
		"before its device plugin":                {node("n", "aws:///a/i-1", gpus(nil, nil)), gpu, false},
		"with a device plugin that finds no GPU":  {node("n", "aws:///a/i-1", gpus(none, none)), gpu, false},
		"with a GPU that is not healthy":          {node("n", "aws:///a/i-1", gpus(one, none)), gpu, false},
		"with a GPU, of another vendor":           {node("n", "aws:///a/i-1"), "amd.com/gpu", false},
		"of a group without GPUs":                 {node("n", "aws:///a/i-1", gpus(nil, nil)), "", true},
		"of a group without GPUs, when not ready": {node("n", "aws:///a/i-1", gpus(nil, nil), isReady(corev1.ConditionFalse)), "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, _ := follow(t, apiServer(c.node))
			require.Equal(t, c.want, v.Usable("aws:///a/i-1", c.device))
		})
	}
}

// TestUsableFollowsTheNode: a machine boots, its device plugin starts, and it goes.
func TestUsableFollowsTheNode(t *testing.T) {
	client := apiServer()
	v, _ := follow(t, client)
	usable := func() bool { return v.Usable("aws:///a/i-1", gpu) }
	require.False(t, usable())

	_, err := client.CoreV1().Nodes().Create(t.Context(), node("n", "aws:///a/i-1", gpus(nil, nil)), metav1.CreateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { _, ok := v.Node("aws:///a/i-1"); return ok }, patience, time.Millisecond)
	require.False(t, usable())

	_, err = client.CoreV1().Nodes().UpdateStatus(t.Context(), node("n", "aws:///a/i-1"), metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Eventually(t, usable, patience, time.Millisecond)

	require.NoError(t, client.CoreV1().Nodes().Delete(t.Context(), "n", metav1.DeleteOptions{}))
	require.Eventually(t, func() bool { return !usable() }, patience, time.Millisecond)
}

func TestOtherSpelling(t *testing.T) {
	for name, c := range map[string]struct {
		registered []string
		ask, found string
	}{
		"the same bytes":         {[]string{"aws:///eu-west-1a/i-0abc"}, "aws:///eu-west-1a/i-0abc", ""},
		"another zone":           {[]string{"aws:///eu-west-1b/i-0abc"}, "aws:///eu-west-1a/i-0abc", "aws:///eu-west-1b/i-0abc"},
		"without a zone":         {[]string{"aws:////i-0abc"}, "aws:///eu-west-1a/i-0abc", "aws:////i-0abc"},
		"two slashes":            {[]string{"aws://eu-west-1a/i-0abc"}, "aws:///eu-west-1a/i-0abc", "aws://eu-west-1a/i-0abc"},
		"no scheme":              {[]string{"i-0abc"}, "aws:///eu-west-1a/i-0abc", "i-0abc"},
		"upper case":             {[]string{"aws:///eu-west-1a/I-0ABC"}, "aws:///eu-west-1a/i-0abc", "aws:///eu-west-1a/I-0ABC"},
		"a slash at the end":     {[]string{"aws:///eu-west-1a/i-0abc/"}, "aws:///eu-west-1a/i-0abc", "aws:///eu-west-1a/i-0abc/"},
		"another machine":        {[]string{"aws:///eu-west-1a/i-0abcd"}, "aws:///eu-west-1a/i-0abc", ""},
		"no provider id":         {[]string{""}, "aws:///eu-west-1a/i-0abc", ""},
		"nothing asked for":      {[]string{""}, "", ""},
		"both spellings at once": {[]string{"aws:////i-0abc", "aws:///eu-west-1a/i-0abc"}, "aws:///eu-west-1a/i-0abc", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var nodes []runtime.Object
			for i, id := range c.registered {
				nodes = append(nodes, node("n"+string(rune('0'+i)), id))
			}
			v, _ := follow(t, apiServer(nodes...))
			_, exact := v.Node(c.ask)
			require.Equal(t, c.ask != "" && slices.Contains(c.registered, c.ask), exact)
			found, ok := v.OtherSpelling(c.ask)
			require.Equal(t, c.found != "", ok)
			if ok {
				require.Equal(t, c.found, found.Spec.ProviderID)
			}
		})
	}
}

// TestNodesAreKeptSmall: with 50 images a Node is five times as large.
func TestNodesAreKeptSmall(t *testing.T) {
	v, _ := follow(t, apiServer(node("n", "aws:///a/i-1", func(n *corev1.Node) {
		n.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
		n.Status.Images = []corev1.ContainerImage{{Names: []string{"trainer"}}}
	})))
	kept, ok := v.Node("aws:///a/i-1")
	require.True(t, ok)
	require.Empty(t, kept.ManagedFields)
	require.Empty(t, kept.Status.Images)
	require.NotEmpty(t, kept.Status.Allocatable)
}

// pod is a Pod that the scheduler has found no node for, changed by edits.
func pod(name string, edits ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "training", UID: "u-1"},
		Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable},
		}},
	}
	for _, edit := range edits {
		edit(p)
	}
	return p
}

func TestWaitingPods(t *testing.T) {
	client := apiServer(
		pod("waits"),
		pod("new", func(p *corev1.Pod) { p.Status.Conditions = nil }),
		pod("gated", func(p *corev1.Pod) { p.Status.Conditions[0].Reason = corev1.PodReasonSchedulingGated }),
		pod("pulls-its-image", func(p *corev1.Pod) {
			p.Spec.NodeName, p.Status.Conditions[0] = "n", corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}
		}),
		pod("bound-a-moment-ago", func(p *corev1.Pod) { p.Spec.NodeName = "n" }),
		pod("runs", func(p *corev1.Pod) { p.Spec.NodeName, p.Status.Phase = "n", corev1.PodRunning }),
		pod("failed-before-it-had-a-node", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
	)
	v, _ := follow(t, client)
	names := func() (names []string) {
		for _, p := range v.WaitingPods() {
			names = append(names, p.Name)
		}
		slices.Sort(names)
		return names
	}
	require.Equal(t, []string{"waits"}, names())

	_, err := client.CoreV1().Pods("elsewhere").Create(t.Context(), pod("later", func(p *corev1.Pod) { p.Namespace = "elsewhere" }), metav1.CreateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return slices.Equal(names(), []string{"later", "waits"}) }, patience, time.Millisecond)
	require.NoError(t, client.CoreV1().Pods("training").Delete(t.Context(), "waits", metav1.DeleteOptions{}))
	require.Eventually(t, func() bool { return slices.Equal(names(), []string{"later"}) }, patience, time.Millisecond)
}

func TestWarn(t *testing.T) {
	for name, c := range map[string]struct {
		warn      func(*View)
		namespace string
		about     corev1.ObjectReference
	}{
		"a Pod": {
			func(v *View) { v.Warn(pod("waits"), "QuotaExhausted", "16 of 16 gpus") }, "training",
			corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: "training", Name: "waits", UID: "u-1"},
		},
		"the provider": {func(v *View) { v.WarnSelf("QuotaExhausted", "16 of 16 gpus") }, "gpu-node-provider", *provider},
	} {
		t.Run(name, func(t *testing.T) {
			client := apiServer()
			v, _ := follow(t, client)
			c.warn(v)
			var events []corev1.Event
			require.Eventually(t, func() bool {
				list, err := client.CoreV1().Events(c.namespace).List(context.WithoutCancel(t.Context()), metav1.ListOptions{})
				if err == nil {
					events = list.Items
				}
				return len(events) > 0
			}, patience, time.Millisecond)
			require.Len(t, events, 1)
			require.Equal(t, c.about, events[0].InvolvedObject)
			require.Equal(t, []string{corev1.EventTypeWarning, "QuotaExhausted", "16 of 16 gpus", "gpu-node-provider"},
				[]string{events[0].Type, events[0].Reason, events[0].Message, events[0].Source.Component})
		})
	}
}

func TestCordon(t *testing.T) {
	client := apiServer(node("takes-pods", "aws:///a/i-1"), node("cordoned", "aws:///a/i-2", func(n *corev1.Node) { n.Spec.Unschedulable = true }))
	v, _ := follow(t, client)
	writes := func() (n int) {
		for _, a := range client.Actions() {
			if a.GetVerb() != "list" && a.GetVerb() != "watch" && a.GetVerb() != "get" {
				n++
			}
		}
		return n
	}
	require.NoError(t, v.Cordon(t.Context(), "aws:///a/i-3"), "an instance without a Node has nothing to cordon")
	require.NoError(t, v.Cordon(t.Context(), "aws:///a/i-2"))
	require.Zero(t, writes(), "this is done in each round, and must not cost a call")

	require.NoError(t, v.Cordon(t.Context(), "aws:///a/i-1"))
	after, err := client.CoreV1().Nodes().Get(t.Context(), "takes-pods", metav1.GetOptions{})
	require.NoError(t, err)
	require.True(t, after.Spec.Unschedulable)
	require.Equal(t, "aws:///a/i-1", after.Spec.ProviderID, "nothing else of it changes")
	require.Equal(t, 1, writes())
}

// TestCordonOfANodeThatHasChanged: a Node of the same name may be another
// machine's by now.
func TestCordonOfANodeThatHasChanged(t *testing.T) {
	client := apiServer(node("n", "aws:///a/i-1"))
	v, stop := follow(t, client)
	stop() // what happens from here on is not seen
	successor := node("n", "aws:///a/i-2", func(n *corev1.Node) { n.ResourceVersion = "2" })
	require.NoError(t, client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), successor, ""))
	err := v.Cordon(t.Context(), "aws:///a/i-1")
	require.True(t, apierrors.IsConflict(err), "%v", err)
	require.ErrorContains(t, err, "cordoning node n")
	after, err := client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
	require.NoError(t, err)
	require.False(t, after.Spec.Unschedulable)
}

// TestWaitForSyncWithoutAnAPIServer ends with its context and says what it waited for.
func TestWaitForSyncWithoutAnAPIServer(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("list", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("connection refused")
	})
	v, err := New(client, provider)
	require.NoError(t, err)
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- v.Run(ctx) }()
	told := errors.New("told to stop")
	cancel(told)
	err = v.WaitForSync(ctx)
	require.ErrorIs(t, err, told)
	require.ErrorContains(t, err, "API server")
	require.NoError(t, <-ended)
}
