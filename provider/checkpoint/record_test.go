package checkpoint

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

func machine(instance string, pods ...string) Machine {
	m := Machine{V: recordVersion, Instance: instance, Group: "t4", Node: "n"}
	for _, name := range pods {
		m.Pods = append(m.Pods, Pod{Namespace: "ns", Name: name, UID: "uid-" + name, Facts: Facts{Stage: Running, Started: noon}})
	}
	return m
}

func loaded(t *testing.T, client *fake.Clientset) *Record {
	r := NewRecord(client, "system")
	require.NoError(t, r.Load(t.Context()))
	return r
}

func writes(client *fake.Clientset) (n int) {
	for _, a := range client.Actions() {
		if a.GetVerb() == "create" || a.GetVerb() == "update" {
			n++
		}
	}
	return n
}

func TestRecordOutlivesTheProcess(t *testing.T) {
	client := fake.NewClientset()
	r := loaded(t, client)
	require.NoError(t, r.Put(t.Context(), machine("aws:///eu-west-1a/i-1", "a", "b")))
	require.NoError(t, r.Put(t.Context(), machine("aws:///eu-west-1b/i-1", "c")))
	require.Equal(t, r.Machines(), loaded(t, client).Machines(), "two instances whose ids end alike are two")
	require.Len(t, r.Machines(), 2)

	require.NoError(t, r.Put(t.Context(), machine("aws:///eu-west-1a/i-1")))
	again := loaded(t, client)
	require.Len(t, again.Machines(), 1)
	require.Empty(t, again.Of("aws:///eu-west-1a/i-1").Pods)
}

func TestRecordIsWrittenOnlyWhenItChanges(t *testing.T) {
	client := fake.NewClientset()
	r := loaded(t, client)
	require.NoError(t, r.Put(t.Context(), machine("i-1")), "nothing to remove")
	require.Zero(t, writes(client))
	for range 3 {
		require.NoError(t, r.Put(t.Context(), machine("i-1", "a")))
	}
	require.Equal(t, 1, writes(client))
	r = loaded(t, client)
	require.NoError(t, r.Put(t.Context(), machine("i-1", "a")))
	require.Equal(t, 1, writes(client), "nor after a restart")
}

// TestRecordOfManyIsWrittenAtOnce: forty trainings begin together when a queue
// fills, and each ConfigMap may be half a megabyte.
func TestRecordOfManyIsWrittenAtOnce(t *testing.T) {
	client := fake.NewClientset()
	r := loaded(t, client)
	var all []Machine
	for n := range 4000 {
		all = append(all, machine(fmt.Sprintf("i-%d", n), "a"))
	}
	require.NoError(t, r.Put(t.Context(), all...))
	require.Equal(t, all[7], loaded(t, client).Of("i-7"))
	require.Len(t, loaded(t, client).Machines(), 4000)
	list, err := client.CoreV1().ConfigMaps("system").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Greater(t, len(list.Items), 1)
	require.Equal(t, len(list.Items), writes(client))

	all[7].Pods, all[3999] = nil, machine("i-3999", "a", "b")
	require.NoError(t, r.Put(t.Context(), all...))
	require.Equal(t, len(list.Items)+2, writes(client), "nothing has changed in the others")
	require.Empty(t, loaded(t, client).Of("i-7").Pods)
	require.Len(t, loaded(t, client).Of("i-3999").Pods, 2)
}

// TestRemovalThatFailedIsTriedAgain: nobody asks for it a second time.
func TestRemovalThatFailedIsTriedAgain(t *testing.T) {
	client := fake.NewClientset()
	refuse := false
	client.PrependReactor("update", "configmaps", func(k8stesting.Action) (bool, runtime.Object, error) {
		return refuse, nil, errors.New("unreachable")
	})
	r := loaded(t, client)
	require.NoError(t, r.Put(t.Context(), machine("i-1", "a"), machine("i-2", "b"), machine("i-3", "c")))
	refuse = true
	require.ErrorContains(t, r.Put(t.Context(), machine("i-1"), machine("i-2")), "unreachable")
	refuse = false
	require.NoError(t, r.Put(t.Context()))
	require.Len(t, loaded(t, client).Machines(), 1)
	before := writes(client)
	require.NoError(t, r.Put(t.Context(), machine("i-1")))
	require.Equal(t, before, writes(client))
}

func TestRecordThatCannotBeWrittenHoldsAllTheSame(t *testing.T) {
	client := fake.NewClientset()
	refuse := true
	client.PrependReactor("*", "configmaps", func(a k8stesting.Action) (bool, runtime.Object, error) {
		return refuse && a.GetVerb() != "list", nil, errors.New("forbidden")
	})
	r := loaded(t, client)
	require.ErrorContains(t, r.Put(t.Context(), machine("i-1", "a")), "forbidden")
	require.Len(t, r.Of("i-1").Pods, 1)
	refuse = false
	require.NoError(t, r.Put(t.Context(), machine("i-1", "a")))
	require.Len(t, loaded(t, client).Machines(), 1, "the next time it is written")
}

func TestRecordIsSharded(t *testing.T) {
	client := fake.NewClientset()
	r := loaded(t, client)
	var pods []string
	for n := range 400 {
		pods = append(pods, fmt.Sprintf("pod-%d-%s", n, strings.Repeat("x", 150)))
	}
	for n := range 8 {
		require.NoError(t, r.Put(t.Context(), machine(fmt.Sprintf("i-%d", n), pods...)))
	}
	list, err := client.CoreV1().ConfigMaps("system").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Greater(t, len(list.Items), 1)
	for _, shard := range list.Items {
		require.Less(t, sizeOf(&shard), 1<<20, "the API server takes no more")
	}
	require.Len(t, loaded(t, client).Machines(), 8)
}

func TestRecordOfALaterVersionStopsTheStart(t *testing.T) {
	for name, text := range map[string]string{
		"version": `{"v":2,"instance":"i-1","group":"t4","node":"n","pods":[]}`,
		"field":   `{"v":1,"instance":"i-1","group":"t4","node":"n","pods":[],"frozen":true}`,
		"torn":    `{"v":1,"insta`,
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			r := loaded(t, client)
			require.NoError(t, r.Put(t.Context(), machine("i-1", "a")))
			shard, err := client.CoreV1().ConfigMaps("system").Get(t.Context(), shardName("t4", 0), metav1.GetOptions{})
			require.NoError(t, err)
			shard.Data[keyOf("i-1")] = text
			_, err = client.CoreV1().ConfigMaps("system").Update(t.Context(), shard, metav1.UpdateOptions{})
			require.NoError(t, err)
			require.ErrorContains(t, NewRecord(client, "system").Load(t.Context()), "gpu-node-provider-record-t4-0")
		})
	}
}

func TestRecordThatSomebodyRemovedIsWrittenAgain(t *testing.T) {
	client := fake.NewClientset()
	r := loaded(t, client)
	require.NoError(t, r.Put(t.Context(), machine("i-1", "a")))
	require.NoError(t, client.CoreV1().ConfigMaps("system").Delete(t.Context(), shardName("t4", 0), metav1.DeleteOptions{}))
	require.Error(t, r.Put(t.Context(), machine("i-1", "a", "b")))
	require.Len(t, r.Of("i-1").Pods, 2)
	require.NoError(t, r.Put(t.Context(), machine("i-1", "a", "b")))
	require.Len(t, loaded(t, client).Of("i-1").Pods, 2)
}

// TestRecordOfTwoLeaders: who led before, and has not noticed yet that it does not
// any more, writes once more. What the next one has recorded meanwhile stays.
func TestRecordOfTwoLeaders(t *testing.T) {
	client := newVersionedClient()
	before := loaded(t, client)
	require.NoError(t, before.Put(t.Context(), machine("i-1", "a")))
	require.NoError(t, before.Put(t.Context(), machine("i-2", "b")))
	now := loaded(t, client)
	require.NoError(t, now.Put(t.Context(), machine("i-1", "a", "new-1")))
	require.NoError(t, now.Put(t.Context(), machine("i-2", "b", "new-2")))

	require.ErrorContains(t, before.Put(t.Context(), machine("i-1", "a", "late")), "reading it again")
	require.NoError(t, before.Put(t.Context(), machine("i-2", "b", "late")), "it was made before the conflict")
	for instance, names := range map[string]string{"i-1": "a,new-1", "i-2": "b,late,new-2"} {
		require.Equal(t, names, podsOf(loaded(t, client).Of(instance)), instance)
	}
	require.Equal(t, "a,late,new-1", podsOf(before.Of("i-1")), "and is in memory")
	require.NoError(t, before.Put(t.Context(), machine("i-1", "a", "late")), "again, as it was before the conflict")
	require.Equal(t, "a,late,new-1", podsOf(loaded(t, client).Of("i-1")))
	require.NoError(t, before.Put(t.Context(), machine("i-1", "a")))
	require.Equal(t, "a", podsOf(loaded(t, client).Of("i-1")))
	require.NoError(t, before.Put(t.Context(), machine("i-2", "b")))
	require.Equal(t, "b", podsOf(loaded(t, client).Of("i-2")), "but who knows of a pod may drop it")
}

func podsOf(m Machine) string {
	var names []string
	for _, p := range m.Pods {
		names = append(names, p.Name)
	}
	return strings.Join(slices.Sorted(slices.Values(names)), ",")
}

// newVersionedClient is the fake clientset with versions of ConfigMaps, which it
// leaves out: an update of an old one is a conflict.
func newVersionedClient() *fake.Clientset {
	client := fake.NewClientset()
	version := 0
	client.PrependReactor("*", "configmaps", func(a k8stesting.Action) (bool, runtime.Object, error) {
		write, ok := a.(interface{ GetObject() runtime.Object })
		if !ok {
			return false, nil, nil
		}
		m := write.GetObject().(*corev1.ConfigMap) //nolint:errcheck // a ConfigMap is written under configmaps
		if a.GetVerb() == "update" {
			now, err := client.Tracker().Get(a.GetResource(), a.GetNamespace(), m.Name)
			if err != nil {
				return true, nil, err
			}
			if now.(*corev1.ConfigMap).ResourceVersion != m.ResourceVersion { //nolint:errcheck // the same
				return true, nil, apierrors.NewConflict(a.GetResource().GroupResource(), m.Name, errors.New("it has been modified"))
			}
		}
		version++
		m.ResourceVersion = strconv.Itoa(version)
		return false, nil, nil
	})
	return client
}
