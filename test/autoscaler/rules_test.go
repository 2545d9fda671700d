package main

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestFit(t *testing.T) {
	tolerating := func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}}
	}
	tainted := func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "nvidia.com/gpu", Value: "present", Effect: corev1.TaintEffectNoSchedule}}
	}
	affinity := func(value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "accelerator", Operator: corev1.NodeSelectorOpIn, Values: []string{value}}},
				}}},
			}}
		}
	}
	for _, tt := range []struct {
		name  string
		node  func(*corev1.Node)
		pod   func(*corev1.Pod)
		other []*corev1.Pod
		want  string
	}{
		{name: "free"},
		{name: "gpu in use", other: []*corev1.Pod{gpuPod("other")}, want: "Insufficient nvidia.com/gpu"},
		{name: "no gpu", node: func(n *corev1.Node) { delete(n.Status.Allocatable, "nvidia.com/gpu") }, want: "Insufficient nvidia.com/gpu"},
		{name: "too much cpu", pod: func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests["cpu"] = quantities("", "4100m")[""] }, want: "Insufficient cpu"},
		{name: "pods", node: func(n *corev1.Node) { n.Status.Allocatable["pods"] = quantities("", "0")[""] }, want: "Too many pods"},
		{name: "selector", pod: func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"accelerator": "nvidia-tesla-t4"} }},
		{name: "other selector", pod: func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"accelerator": "a100"} }, want: "node(s) didn't match Pod's node affinity/selector"},
		{name: "affinity", pod: affinity("nvidia-tesla-t4")},
		{name: "other affinity", pod: affinity("a100"), want: "node(s) didn't match Pod's node affinity/selector"},
		{name: "taint", node: tainted, want: "node(s) had untolerated taint {nvidia.com/gpu: present}"},
		{name: "tolerated", node: tainted, pod: tolerating},
		{name: "soft taint", node: func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: deletionCandidate, Effect: corev1.TaintEffectPreferNoSchedule}}
		}},
		{name: "cordoned", node: func(n *corev1.Node) { n.Spec.Unschedulable = true }, pod: tolerating, want: "node(s) were unschedulable"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			node, pod := gpuNode("n"), gpuPod("p")
			if tt.node != nil {
				tt.node(node)
			}
			if tt.pod != nil {
				tt.pod(pod)
			}
			info := newSnapshot([]*corev1.Node{node}, nil).infos[0]
			for _, other := range tt.other {
				info.put(other)
			}
			assert.Equal(t, tt.want, info.misfit(pod))
		})
	}
}

func TestPodRules(t *testing.T) {
	now := time.Now()
	owned := func(kind string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.OwnerReferences[0].Kind = kind }
	}
	annotated := func(key, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations = map[string]string{key: value} }
	}
	volume := func(source corev1.VolumeSource) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}} }
	}
	terminating := func(ago time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now.Add(-ago)} }
	}
	system := func(age time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Namespace, p.CreationTimestamp = "kube-system", metav1.NewTime(now.Add(-age)) }
	}
	emptyDir := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	for _, tt := range []struct {
		name string
		pods []func(*corev1.Pod)
		want string // move, stay (no pod to move), wait, block
	}{
		{"replica set", nil, "move"},
		{"job", []func(*corev1.Pod){owned("Job")}, "move"},
		{"custom controller", []func(*corev1.Pod){owned("PyTorchJob")}, "block"},
		{"bare", []func(*corev1.Pod){func(p *corev1.Pod) { p.OwnerReferences = nil }}, "block"},
		{"bare but safe", []func(*corev1.Pod){func(p *corev1.Pod) { p.OwnerReferences = nil }, annotated(safeToEvict, "true")}, "move"},
		{"not safe", []func(*corev1.Pod){annotated(safeToEvict, "false")}, "block"},
		{"on completion", []func(*corev1.Pod){annotated(safeToEvict, "on-completion")}, "wait"},
		{"daemon set", []func(*corev1.Pod){owned("DaemonSet"), annotated(safeToEvict, "false")}, "stay"},
		{"mirror", []func(*corev1.Pod){owned("Node"), annotated(corev1.MirrorPodAnnotationKey, "x")}, "stay"},
		{"failed", []func(*corev1.Pod){owned("PyTorchJob"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }}, "move"},
		{"terminating", []func(*corev1.Pod){terminating(59 * time.Second)}, "move"},
		{"stuck terminating", []func(*corev1.Pod){terminating(61 * time.Second), owned("PyTorchJob")}, "stay"},
		{"host path", []func(*corev1.Pod){volume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}})}, "block"},
		{"empty dir", []func(*corev1.Pod){volume(emptyDir)}, "block"},
		{"empty dir in memory", []func(*corev1.Pod){volume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "Memory"}})}, "move"},
		{"harmless empty dir", []func(*corev1.Pod){volume(emptyDir), annotated(safeToEvictLocalVolumes, "v")}, "move"},
		{"young system", []func(*corev1.Pod){system(59 * time.Minute)}, "block"},
		{"old system", []func(*corev1.Pod){system(61 * time.Minute), annotated(safeToEvict, "false")}, "move"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := gpuPod("p")
			for _, change := range tt.pods {
				change(pod)
			}
			m, err := podsToMove(&nodeInfo{pods: []*corev1.Pod{pod}}, true, now)
			got := "stay"
			switch {
			case err != nil:
				got = "block"
			case len(m.pods) > 0:
				got = "move"
			case len(m.onCompletion) > 0:
				got = "wait"
			}
			assert.Equal(t, tt.want, got, err)
		})
	}
}

func TestUtilization(t *testing.T) {
	cpuNode := readyNode("n", "", quantities("cpu", "4", "memory", "16Gi"))
	broken := gpuNode("n")
	delete(broken.Status.Allocatable, "nvidia.com/gpu")
	cpuPod := gpuPod("p")
	cpuPod.Spec.Containers[0].Resources.Requests = quantities("cpu", "3", "memory", "1Gi")
	daemon := cpuPod.DeepCopy()
	daemon.OwnerReferences[0].Kind = "DaemonSet"
	for _, tt := range []struct {
		name   string
		node   *corev1.Node
		pod    *corev1.Pod
		ignore bool
		want   float64
	}{
		{"gpu in use", gpuNode("n"), gpuPod("p"), false, 1},
		{"only the gpu counts", gpuNode("n"), cpuPod, false, 0},
		{"a gpu that does not show", broken, gpuPod("p"), false, 0},
		{"the larger of cpu and memory", cpuNode, cpuPod, false, 0.75},
		{"daemon sets ignored", cpuNode, daemon, true, 0},
		{"daemon sets not ignored", cpuNode, daemon, false, 0.75},
	} {
		t.Run(tt.name, func(t *testing.T) {
			info := newSnapshot([]*corev1.Node{tt.node}, nil).infos[0]
			info.put(tt.pod)
			got, err := utilization(info, gpuOf(tt.node, "accelerator"), tt.ignore, time.Now())
			require.NoError(t, err)
			assert.InDelta(t, tt.want, got, 1e-9)
		})
	}
}

func TestBackoffDoublesAfterItIsOver(t *testing.T) {
	b := &backoff{initial: 5 * time.Minute, groups: map[string]backedOff{}}
	now := time.Now()
	at := func(d time.Duration) time.Duration { return b.add("g", now.Add(d)).Sub(now.Add(d)) }
	assert.Equal(t, 5*time.Minute, at(0))
	assert.True(t, b.active("g", now.Add(4*time.Minute)))
	assert.False(t, b.active("g", now.Add(5*time.Minute)))
	assert.Equal(t, 10*time.Minute, at(6*time.Minute))
	assert.Equal(t, 20*time.Minute, at(20*time.Minute))
	assert.Equal(t, 30*time.Minute, at(60*time.Minute))
	assert.Equal(t, 5*time.Minute, at(61*time.Minute), "within a backoff it starts over")
	b.forget(now.Add(5 * time.Hour))
	assert.Empty(t, b.groups)
}

func TestFlags(t *testing.T) {
	for _, tt := range []struct {
		args []string
		code int
	}{
		{[]string{"--bogus"}, 2},
		{[]string{"--cloud-provider=aws"}, 2},
		{[]string{"--scan-interval=soon"}, 2},
		{[]string{"--help"}, 0},
		{[]string{"--cloud-provider=externalgrpc", "--cloud-config=/nowhere"}, 1},
	} {
		assert.Equal(t, tt.code, run(t.Context(), tt.args, io.Discard), tt.args)
	}
	o, err := parseOptions([]string{
		"--cloud-provider=externalgrpc", "--leader-elect=false", "--expander=price,least-waste", "--v=4", "--stderrthreshold=info",
	}, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, groupOptions{0.5, 0.5, 10 * time.Minute, 20 * time.Minute, 15 * time.Minute, 15 * time.Minute, false}, o.group)
}

func TestCloudConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	for _, tt := range []struct {
		text    string
		timeout time.Duration
		wrong   bool
	}{
		{text: `address: "127.0.0.1:1"`, timeout: 5 * time.Second},
		{text: "address: a:1\ngrpc_timeout: 30s", timeout: 30 * time.Second},
		{text: "cert: x", wrong: true},
		{text: "address: a:1\ngrpc_timeout: soon", wrong: true},
	} {
		require.NoError(t, os.WriteFile(path, []byte(tt.text), 0o600))
		c, err := readCloudConfig(path)
		if tt.wrong {
			require.Error(t, err, tt.text)
			continue
		}
		require.NoError(t, err)
		assert.Equal(t, tt.timeout, c.timeout)
	}
}
