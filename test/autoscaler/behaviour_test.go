package main

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-node-provider/proto"
)

func inBubble(t *testing.T, s story, play func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { play(t, newWorld(t, s)) })
}

// helper is a pod without a GPU that shares a trainer's node and fits on the
// unmanaged one as well, so it is drained.
func helper(name string, grace int64) *corev1.Pod {
	pod := gpuPod(name)
	pod.Spec.Containers[0].Resources.Requests = quantities("cpu", "1")
	pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	pod.Spec.NodeName, pod.Status.Phase, pod.Spec.TerminationGracePeriodSeconds = "gpu-1", corev1.PodRunning, &grace
	return pod
}

// shared is a world with one node that only helpers are on.
func shared(t *testing.T, w *world) {
	t.Helper()
	w.run()
	w.addPods("a")
	w.until("the pod runs", w.bound("a"))
	for _, pod := range []*corev1.Pod{helper("short", 7), helper("long", 3600)} {
		_, err := w.kube.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	w.removePods("a")
}

func deletionTaints(n *corev1.Node) (soft, hard bool) {
	return hasTaint(n, deletionCandidate), hasTaint(n, toBeDeleted)
}

func TestDrain(t *testing.T) {
	refuse := func(pod string, try int) error {
		if pod == "long" && try < 3 {
			return errors.New("refused by a webhook")
		}
		return nil
	}
	inBubble(t, story{evictionFails: refuse}, func(t *testing.T, w *world) {
		shared(t, w)
		w.until("soft taint", func() bool { soft, _ := deletionTaints(w.node()); return soft })
		assert.False(t, w.node().Spec.Unschedulable)
		w.until("hard taint", func() bool { _, hard := deletionTaints(w.node()); return hard })
		tainted := time.Now()
		assert.True(t, w.node().Spec.Unschedulable)
		w.until("gone", w.called("NodeGroupDeleteNodes"))
		w.mu.Lock()
		defer w.mu.Unlock()
		var after []time.Duration
		for _, at := range w.evictions {
			after = append(after, at.Sub(tainted).Round(time.Second))
		}
		assert.Equal(t, []time.Duration{5 * time.Second, 5 * time.Second, 15 * time.Second, 25 * time.Second}, after, "both at once, the refused one every ten seconds")
		assert.Contains(t, w.events, "evict short grace 7")
		assert.Contains(t, w.events, "evict long grace 600")
	})
}

func TestDrainFails(t *testing.T) {
	for _, tt := range []struct {
		name  string
		story story
		event string
		after time.Duration
	}{
		{"eviction refused", story{evictionFails: func(string, int) error { return errors.New("no") }}, "failed to evict pod", 5*time.Second + 2*time.Minute},
		{"pods stay", story{keepTerminating: true, flags: []string{"--max-graceful-termination-sec=20"}}, "pods remaining after timeout", 55 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, tt.story, func(t *testing.T, w *world) {
				shared(t, w)
				w.until("hard taint", func() bool { _, hard := deletionTaints(w.node()); return hard })
				tainted := time.Now()
				w.until("given up", func() bool { return w.told("ScaleDownFailed: failed to drain and delete node") })
				assert.True(t, w.told(tt.event))
				assert.InDelta(t, tt.after.Seconds(), time.Since(tainted).Seconds(), 1)
				w.live(200 * time.Millisecond)
				_, hard := deletionTaints(w.node())
				assert.False(t, hard)
				assert.False(t, w.node().Spec.Unschedulable)
				assert.Zero(t, w.count("NodeGroupDeleteNodes"))
			})
		})
	}
}

// TestAnnotation: it keeps a node, takes the soft taint away, and is not looked at
// any more once the node is tainted.
func TestAnnotation(t *testing.T) {
	annotate := func(t *testing.T, w *world) {
		require.NoError(t, changeNode(t.Context(), w.kube, "gpu-1", func(n *corev1.Node) bool {
			n.Annotations = map[string]string{scaleDownDisabled: "true"}
			return true
		}))
	}
	inBubble(t, story{}, func(t *testing.T, w *world) {
		shared(t, w)
		w.until("soft taint", func() bool { soft, _ := deletionTaints(w.node()); return soft })
		annotate(t, w)
		w.live(4 * time.Second)
		soft, _ := deletionTaints(w.node())
		assert.False(t, soft)
		w.live(time.Minute)
		assert.Zero(t, w.count("NodeGroupDeleteNodes"))
	})
	inBubble(t, story{}, func(t *testing.T, w *world) {
		shared(t, w)
		w.until("hard taint", func() bool { _, hard := deletionTaints(w.node()); return hard })
		annotate(t, w)
		w.until("gone", w.called("NodeGroupDeleteNodes"))
	})
}

// TestPodThatCameLate saves an empty node.
func TestPodThatCameLate(t *testing.T) {
	inBubble(t, story{}, func(t *testing.T, w *world) {
		w.run()
		w.addPods("a")
		w.until("the pod runs", w.bound("a"))
		w.removePods("a")
		w.until("hard taint", func() bool { _, hard := deletionTaints(w.node()); return hard })
		_, err := w.kube.CoreV1().Pods("default").Create(t.Context(), helper("late", 1), metav1.CreateOptions{})
		require.NoError(t, err)
		w.until("given up", func() bool { return w.told("new pods scheduled") })
		assert.Zero(t, w.count("NodeGroupDeleteNodes"))
	})
}

func TestErrors(t *testing.T) {
	down := status.Error(codes.Unavailable, "down")
	asked := func(w *world) {
		w.addPods(trainers...)
		w.until("nodes are asked for", w.called("NodeGroupIncreaseSize"))
	}
	for _, tt := range []struct {
		name  string
		story story
		play  func(t *testing.T, w *world)
		want  []string
	}{
		{"Refresh: the loop ends", story{}, func(t *testing.T, w *world) {
			w.failing("Refresh", down)
			w.addPods(trainers...)
			w.live(time.Minute)
			calls := w.recorded()
			last := calls[slices.IndexFunc(calls, func(c call) bool { return c.method == "Refresh" })+1:]
			assert.False(t, slices.ContainsFunc(last, func(c call) bool { return c.method == "NodeGroupTargetSize" }))
		}, nil},
		{"IncreaseSize: backoff", story{}, func(t *testing.T, w *world) {
			w.failing("NodeGroupIncreaseSize", status.Error(codes.ResourceExhausted, "quota gpus is used up"))
			asked(w)
			w.live(4 * time.Minute)
			assert.True(t, w.told("Warning FailedToScaleUpGroup: Scale-up failed for group t4: rpc error: code = ResourceExhausted desc = quota gpus is used up"))
			assert.True(t, w.told("a Normal NotTriggerScaleUp: pod didn't trigger scale-up: 1 in backoff after failed scale-up"))
		}, []string{"IncreaseSize t4 3"}},
		{"IncreaseSize: again after the backoff", story{}, func(t *testing.T, w *world) {
			w.failing("NodeGroupIncreaseSize", down)
			asked(w)
			w.live(5*time.Minute + 10*time.Second)
		}, []string{"IncreaseSize t4 3", "IncreaseSize t4 3"}},
		{"NodeGroups: the scale-up is forgotten and made again", story{boot: time.Hour}, func(t *testing.T, w *world) {
			asked(w)
			w.failing("NodeGroups", down)
			w.live(4 * time.Second)
			w.failing("NodeGroups", nil)
			w.live(10 * time.Second)
		}, []string{"IncreaseSize t4 3", "IncreaseSize t4 1"}},
		{"GetOptions right after IncreaseSize: made again", story{boot: time.Hour, fail: map[string]error{"NodeGroupGetOptions": down}}, func(t *testing.T, w *world) {
			asked(w)
			w.failing("NodeGroupGetOptions", nil)
			w.live(10 * time.Second)
			assert.Equal(t, []string{"IncreaseSize t4 3"}, mutations(w.recorded()), "a group of missing nodes only is not healthy")
			w.live(2 * time.Minute) // until the background refresh sees the instances
		}, []string{"IncreaseSize t4 3", "IncreaseSize t4 1"}},
		{"NodeGroupForNode: no scale-up", story{fail: map[string]error{"NodeGroupForNode": down}}, func(_ *testing.T, w *world) {
			w.addPods(trainers...)
			w.live(time.Minute)
		}, nil},
		{"a scale-up that nothing comes of is taken back as a whole", story{silent: true, flags: []string{"--max-node-provision-time=40s"}}, func(t *testing.T, w *world) {
			asked(w)
			w.live(time.Minute)
			assert.True(t, w.told("ScaleUpTimedOut: Nodes added to group t4 failed to register within"))
		}, []string{"IncreaseSize t4 3", "DecreaseTargetSize t4 -3"}},
		{"no room", story{max: func(int) int32 { return 0 }}, func(t *testing.T, w *world) {
			w.addPods(trainers...)
			w.until("told", func() bool {
				return w.told("a Normal NotTriggerScaleUp: pod didn't trigger scale-up: 1 max node group size reached")
			})
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, tt.story, func(t *testing.T, w *world) {
				w.run()
				tt.play(t, w)
				assert.Equal(t, tt.want, mutations(w.recorded()))
			})
		})
	}
}

// TestUnregistered: what is listed and never becomes a node is deleted by its fake
// node, when no scale-up of this process is to blame.
func TestUnregistered(t *testing.T) {
	inBubble(t, story{flags: []string{"--max-node-provision-time=40s"}}, func(t *testing.T, w *world) {
		for _, id := range []string{"sim://lost-1", "sim://lost-2"} {
			w.instances = append(w.instances, &machine{
				bootsAt:  time.Now().Add(time.Hour),
				Instance: &proto.Instance{Id: id, Status: &proto.InstanceStatus{InstanceState: proto.InstanceStatus_instanceRunning}},
			})
		}
		w.target = 2
		w.run()
		w.live(40 * time.Second)
		assert.Empty(t, mutations(w.recorded()))
		w.live(10 * time.Second)
		assert.Equal(t, []string{"DeleteNodes t4 [" +
			"sim://lost-1 sim://lost-1 labels=map[] annotations=map[" + fakeReason + ":unregistered]; " +
			"sim://lost-2 sim://lost-2 labels=map[] annotations=map[" + fakeReason + ":unregistered]] OK"}, mutations(w.recorded()))
	})
}

// TestTargetIsFixed when fewer nodes are there than it says, and nothing is listed for them.
func TestTargetIsFixed(t *testing.T) {
	inBubble(t, story{flags: []string{"--max-node-provision-time=40s"}}, func(t *testing.T, w *world) {
		w.run()
		w.addPods("a")
		w.until("the pod runs", w.bound("a"))
		w.live(5 * time.Second)
		w.mu.Lock()
		w.target = 3
		w.mu.Unlock()
		w.live(time.Minute)
		assert.Equal(t, []string{"IncreaseSize t4 1", "DecreaseTargetSize t4 -2"}, mutations(w.recorded()))
	})
}

// TestStaleTaints are removed by the first loop, and never after: not even when
// that one could not find out whose nodes they are on.
func TestStaleTaints(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fails error
		stays bool
	}{{"removed", nil, false}, {"server down", status.Error(codes.Unavailable, "down"), true}} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, story{}, func(t *testing.T, w *world) {
				_, err := w.NodeGroupIncreaseSize(t.Context(), &proto.NodeGroupIncreaseSizeRequest{Id: "t4", Delta: 1})
				require.NoError(t, err)
				w.addPods("a")
				w.until("the pod runs", w.bound("a"))
				require.NoError(t, addTaint(t.Context(), w.kube, "gpu-1", toBeDeleted, corev1.TaintEffectNoSchedule, true))
				w.failing("NodeGroupForNode", tt.fails)
				w.run()
				w.live(5 * time.Second)
				w.failing("NodeGroupForNode", nil)
				w.live(20 * time.Second)
				_, hard := deletionTaints(w.node())
				assert.Equal(t, tt.stays, hard)
				assert.Equal(t, tt.stays, w.node().Spec.Unschedulable)
			})
		})
	}
}

// TestGPUThatShowsLate counts as on its way: nothing is bought twice.
func TestGPUThatShowsLate(t *testing.T) {
	inBubble(t, story{boot: time.Hour}, func(t *testing.T, w *world) {
		w.run()
		w.addPods("a")
		w.until("a node is asked for", w.called("NodeGroupIncreaseSize"))
		bare := gpuNode("gpu-1")
		gpu := bare.Status.Allocatable
		bare.Status.Allocatable = quantities("cpu", "4", "memory", "16Gi", "pods", "110")
		_, err := w.kube.CoreV1().Nodes().Create(t.Context(), bare, metav1.CreateOptions{})
		require.NoError(t, err)
		w.live(2 * time.Minute)
		require.NoError(t, changeNode(t.Context(), w.kube, "gpu-1", func(n *corev1.Node) bool { n.Status.Allocatable = gpu; return true }))
		w.until("the pod runs", w.bound("a"))
		w.live(30 * time.Second)
		assert.Equal(t, []string{"IncreaseSize t4 1"}, mutations(w.recorded()))
	})
}

// TestPartOfAScaleUpFails: in a backoff not even what is still coming counts.
func TestPartOfAScaleUpFails(t *testing.T) {
	inBubble(t, story{boot: time.Hour, short: 1}, func(t *testing.T, w *world) {
		w.run()
		w.addPods(trainers...)
		w.until("the failed one is deleted", w.called("NodeGroupDeleteNodes"))
		w.live(5 * time.Second)
		for _, name := range trainers {
			assert.True(t, w.told(name+" Normal NotTriggerScaleUp: pod didn't trigger scale-up: 1 in backoff after failed scale-up"))
		}
		assert.Equal(t, 1, w.count("NodeGroupIncreaseSize"))
	})
}

// TestYoungPodsHoldScaleDown: as long as the loop waits for more pods, no node is picked.
func TestYoungPodsHoldScaleDown(t *testing.T) {
	inBubble(t, story{}, func(t *testing.T, w *world) {
		w.run()
		w.addPods("a")
		w.until("the pod runs", w.bound("a"))
		w.removePods("a")
		w.until("soft taint", func() bool { soft, _ := deletionTaints(w.node()); return soft })
		unneeded := time.Now()
		homeless := gpuPod("homeless")
		homeless.Spec.NodeSelector = map[string]string{"accelerator": "a100"}
		_, err := w.kube.CoreV1().Pods("default").Create(t.Context(), homeless, metav1.CreateOptions{})
		require.NoError(t, err)
		w.until("hard taint", func() bool { _, hard := deletionTaints(w.node()); return hard })
		assert.GreaterOrEqual(t, time.Since(unneeded), gpuPodBuffer)
		w.until("told", func() bool {
			return w.told("homeless Normal NotTriggerScaleUp: pod didn't trigger scale-up: 1 node(s) didn't match Pod's node affinity/selector")
		})
	})
}

// TestThreshold: a node at the threshold may go, one above it not.
func TestThreshold(t *testing.T) {
	inBubble(t, story{flags: []string{"--scale-down-gpu-utilization-threshold=0.25"}}, func(t *testing.T, w *world) {
		w.instances = []*machine{{node: "gpu-1", Instance: &proto.Instance{Id: "sim://gpu-1"}}}
		p := w.run()
		node := gpuNode("gpu-1")
		node.Status.Allocatable["nvidia.com/gpu"] = quantities("", "4")[""]
		info := newSnapshot([]*corev1.Node{node}, nil).infos[0]
		info.put(gpuPod("a"))
		assert.Empty(t, p.a.ineligible(t.Context(), info, time.Now()))
		info.put(gpuPod("b"))
		assert.Equal(t, "is used to 50 %", p.a.ineligible(t.Context(), info, time.Now()))
	})
}

// TestTwoNodesWithPods: where the pods have a place besides the two, both are
// unneeded and go one after the other; where each is the other's only place, one
// of them is unneeded.
func TestTwoNodesWithPods(t *testing.T) {
	for _, tt := range []struct {
		name      string
		elsewhere bool
		unneeded  int
	}{{"a place elsewhere", true, 2}, {"a place on each other", false, 1}} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, story{keepTerminating: true}, func(t *testing.T, w *world) {
				w.run()
				w.addPods("a", "b")
				w.until("the pods run", w.bound("a", "b"))
				for _, node := range []string{"gpu-1", "gpu-2"} {
					pod := helper("on-"+node, 1)
					pod.Spec.NodeName = node
					if !tt.elsewhere {
						pod.Spec.Tolerations = nil
					}
					_, err := w.kube.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
					require.NoError(t, err)
				}
				w.removePods("a", "b")
				with := func(key string) int {
					nodes, err := w.kube.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
					require.NoError(t, err)
					n := 0
					for i := range nodes.Items {
						if hasTaint(&nodes.Items[i], key) {
							n++
						}
					}
					return n
				}
				w.until("soft taint", func() bool { return with(deletionCandidate) > 0 })
				w.live(time.Second)
				assert.Equal(t, tt.unneeded, with(deletionCandidate))
				w.until("hard taint", func() bool { return with(toBeDeleted) > 0 })
				w.live(30 * time.Second)
				assert.Equal(t, 1, with(toBeDeleted))
			})
		})
	}
}

// TestCleanup is called only where there is a status config map.
func TestCleanup(t *testing.T) {
	for flag, want := range map[string]int{"--write-status-configmap=true": 1, "--write-status-configmap=false": 0} {
		inBubble(t, story{flags: []string{flag}}, func(t *testing.T, w *world) {
			p := w.run()
			w.live(5 * time.Second)
			maps, err := w.kube.CoreV1().ConfigMaps("kube-system").List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			assert.Len(t, maps.Items, want)
			if want > 0 {
				assert.True(t, strings.Contains(maps.Items[0].Data["status"], "name: t4"))
			}
			p.terminate(t)
			assert.Equal(t, want, w.count("Cleanup"))
		})
	}
}
