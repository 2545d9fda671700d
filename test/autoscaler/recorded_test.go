package main

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-node-provider/proto"
)

var trainers = []string{"a", "b", "c"}

// TestAsRecorded plays the stories of the recordings of 1.36, and compares.
func TestAsRecorded(t *testing.T) {
	for _, tt := range []struct {
		recording string
		story     story
		play      func(*world)
	}{
		{"ca-1.36-round", story{boot: 2 * time.Second, work: 6 * time.Second, after: 10 * time.Second}, round},
		{"ca-1.36-refuse", story{boot: 2 * time.Second, refusals: 6}, round},
		{"ca-1.36-nocapacity", story{short: 3}, noCapacity},
		{"ca-1.36-restart", story{boot: 70 * time.Second, after: 50 * time.Second}, restart},
		{"ca-1.36-restart-absorbed", story{boot: 70 * time.Second, after: 90 * time.Second, settled: true, flags: []string{"--scale-down-delay-after-add=10m"}, grant: func(target, delta int) int {
			if target > 0 {
				return 0
			}
			return delta
		}}, restart},
		{"ca-1.36-partial", story{boot: 5 * time.Second, flags: []string{"--max-node-provision-time=40s"}, grant: func(int, int) int { return 1 }}, partial},
	} {
		t.Run(tt.recording, func(t *testing.T) {
			want := readRecording(t, tt.recording)
			var got []call
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, tt.story)
				w.looks = looks(want)
				tt.play(w)
				got = w.recorded()
			})
			compare(t, want, got)
		})
	}
}

// looks are labels and annotations of the recorded nodes when they were deleted.
func looks(calls []call) map[string]*corev1.Node {
	nodes := map[string]*corev1.Node{}
	for _, c := range calls {
		if r, ok := c.request.(*proto.NodeGroupDeleteNodesRequest); ok {
			for _, n := range r.GetNodes() {
				nodes[n.GetName()] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: n.GetLabels(), Annotations: n.GetAnnotations()}}
			}
		}
	}
	return nodes
}

func round(w *world) {
	p := w.run()
	w.live(12 * time.Second)
	w.addPods(trainers...)
	w.until("the pods run", w.bound(trainers...))
	w.live(w.story.work)
	w.removePods(trainers...)
	w.until("all nodes are gone", func() bool { return w.count("NodeGroupDeleteNodes") == w.story.refusals+3 })
	w.live(w.story.after)
	p.terminate(w.t)
}

func noCapacity(w *world) {
	p := w.run()
	w.live(12 * time.Second)
	w.addPods(trainers...)
	w.until("nodes are asked for", w.called("NodeGroupIncreaseSize"))
	w.live(12 * time.Second)
	p.terminate(w.t)
}

func restart(w *world) {
	first := w.run()
	w.live(12 * time.Second)
	w.addPods(trainers...)
	w.until("nodes are asked for", w.called("NodeGroupIncreaseSize"))
	w.live(2 * time.Second)
	first.kill()
	second := w.run()
	w.live(w.story.after)
	second.terminate(w.t)
}

// partial: the server reports what it has for its maximum, but at first and after two minutes.
func partial(w *world) {
	start := time.Now()
	w.story.max = func(target int) int32 {
		if since := time.Since(start); target == 0 || since > 121*time.Second {
			return 4
		}
		return int32(target)
	}
	p := w.run()
	w.live(12 * time.Second)
	w.addPods(trainers...)
	w.until("the pods run", w.bound(trainers...))
	w.live(30 * time.Second)
	p.terminate(w.t)
}

func compare(t *testing.T, want, got []call) {
	t.Helper()
	assert.Equal(t, mutations(want), mutations(got), "what changed anything")
	assert.Equal(t, start(want), start(got), "the first loop")
	compareOptions(t, want, got)
	wanted, found := windows(want), windows(got)
	for _, w := range found {
		assert.Truef(t, slices.Contains(wanted, w), "a loop of ours that the real one does not have:\n%s\n%s", w.calls, w.order)
	}
	for _, w := range wanted {
		assert.Truef(t, slices.Contains(found, w), "a loop of the real one that we do not have:\n%s\n%s", w.calls, w.order)
	}
	increase := func(list []window) []string {
		var with []string
		for _, w := range list {
			if strings.Contains(w.order, "NodeGroupIncreaseSize") {
				with = append(with, w.calls)
			}
		}
		return with
	}
	assert.Equal(t, increase(wanted), increase(found), "the loops that scale up")
}

// compareOptions: every GetOptions carries the same defaults.
func compareOptions(t *testing.T, want, got []call) {
	t.Helper()
	var recorded pb.Message
	for _, c := range want {
		if c.method == "NodeGroupGetOptions" {
			recorded = c.request
			break
		}
	}
	require.NotNil(t, recorded)
	for _, c := range got {
		if c.method == "NodeGroupGetOptions" {
			require.Truef(t, pb.Equal(recorded, c.request), "want %v, got %v", recorded, c.request)
		}
	}
}
