package nodegroup

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// gpuNode is a group whose nodes have 4 CPUs, 3 of them for Pods, and 2 GPUs.
const gpuNode = "capacity: {cpu: 4, memory: 16Gi, nvidia.com/gpu: 2}, reserved: {cpu: 1}, labels: {accelerator: nvidia-tesla-t4}, " +
	"taints: [{key: nvidia.com/gpu, value: present, effect: NoSchedule}, {key: spot, effect: PreferNoSchedule}]"

// asks are a container's requests, as in asks("cpu", "1").
func asks(pairs ...string) corev1.Container {
	requests := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		requests[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return corev1.Container{Resources: corev1.ResourceRequirements{Requests: requests}}
}

// pod tolerates the taints of gpuNode; edits change it.
func pod(c corev1.Container, edits ...func(*corev1.PodSpec)) *corev1.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{
		Containers:  []corev1.Container{c},
		Tolerations: []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}},
	}}
	for _, edit := range edits {
		edit(&p.Spec)
	}
	return p
}

func tolerates(t ...corev1.Toleration) func(*corev1.PodSpec) {
	return func(p *corev1.PodSpec) { p.Tolerations = t }
}

func selects(key, value string) func(*corev1.PodSpec) {
	return func(p *corev1.PodSpec) { p.NodeSelector = map[string]string{key: value} }
}

func affine(operator corev1.NodeSelectorOperator, values ...string) func(*corev1.PodSpec) {
	return func(p *corev1.PodSpec) {
		p.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "accelerator", Operator: operator, Values: values}}},
			}},
		}}
	}
}

func fits(g *Group, p *corev1.Pod) bool { return g.Fits(Shapes{}.Of(p)) }

func TestFits(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"all that a node has":        {pod(asks("cpu", "3", "memory", "16Gi", "nvidia.com/gpu", "2", "ephemeral-storage", "100Gi")), true},
		"nothing":                    {pod(asks()), true},
		"too many GPUs":              {pod(asks("nvidia.com/gpu", "3")), false},
		"what is reserved":           {pod(asks("cpu", "3500m")), false},
		"too much memory":            {pod(asks("memory", "17Gi")), false},
		"what no node has":           {pod(asks("amd.com/gpu", "1")), false},
		"nothing of what none has":   {pod(asks("amd.com/gpu", "0")), true},
		"too much in two containers": {pod(asks("cpu", "2"), func(p *corev1.PodSpec) { p.Containers = append(p.Containers, asks("cpu", "2")) }), false},
		"too much to begin with":     {pod(asks("cpu", "1"), func(p *corev1.PodSpec) { p.InitContainers = []corev1.Container{asks("cpu", "4")} }), false},
		"one after the other":        {pod(asks("cpu", "3"), func(p *corev1.PodSpec) { p.InitContainers = []corev1.Container{asks("cpu", "3")} }), true},
		"too much with a sidecar": {pod(asks("cpu", "3"), func(p *corev1.PodSpec) {
			p.InitContainers = []corev1.Container{asks("cpu", "1")}
			p.InitContainers[0].RestartPolicy = &always
		}), false},
		"too much with its overhead": {pod(asks("cpu", "3"), func(p *corev1.PodSpec) {
			p.Overhead = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
		}), false},

		"no toleration":             {pod(asks(), tolerates()), false},
		"a toleration of another":   {pod(asks(), tolerates(corev1.Toleration{Key: "nvidia.com/gpu", Value: "none"})), false},
		"tolerates the value":       {pod(asks(), tolerates(corev1.Toleration{Key: "nvidia.com/gpu", Value: "present"})), true},
		"tolerates everything":      {pod(asks(), tolerates(corev1.Toleration{Operator: corev1.TolerationOpExists})), true},
		"selects the group":         {pod(asks(), selects(Label, "t4")), true},
		"selects the GPU":           {pod(asks(), selects("accelerator", "nvidia-tesla-t4")), true},
		"selects another GPU":       {pod(asks(), selects("accelerator", "nvidia-l4")), false},
		"wants the GPU":             {pod(asks(), affine(corev1.NodeSelectorOpIn, "nvidia-l4", "nvidia-tesla-t4")), true},
		"wants another GPU":         {pod(asks(), affine(corev1.NodeSelectorOpIn, "nvidia-l4")), false},
		"wants none of these":       {pod(asks(), affine(corev1.NodeSelectorOpNotIn, "nvidia-tesla-t4")), false},
		"wants what cannot be read": {pod(asks(), affine("Near", "nvidia-l4")), false},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, fits(group(t, gpuNode), c.pod))
		})
	}
}

// TestFitsNotWhereItWouldBeEvicted: NoExecute keeps Pods away as NoSchedule does.
func TestFitsNotWhereItWouldBeEvicted(t *testing.T) {
	require.False(t, fits(group(t, plain+", taints: [{key: drained, effect: NoExecute}]"), pod(asks())))
}

// TestND07StartupTaints: a taint that a node loses when it is ready keeps no Pod from a group.
func TestND07StartupTaints(t *testing.T) {
	for key, want := range map[string]bool{
		"startup-taint.cluster-autoscaler.kubernetes.io/driver": true,
		"ignore-taint.cluster-autoscaler.kubernetes.io/driver":  true,
		"status-taint.cluster-autoscaler.kubernetes.io/driver":  true,
		"nvidia.com/driver": false,
	} {
		require.Equal(t, want, fits(group(t, plain+", taints: [{key: "+key+", effect: NoSchedule}]"), pod(asks())), key)
	}
}

// TestPF03Shapes: Pods have one shape unless they differ in what decides whether they fit.
func TestPF03Shapes(t *testing.T) {
	shapes := Shapes{}
	base := func(edits ...func(*corev1.PodSpec)) *corev1.Pod {
		return pod(asks("cpu", "1", "nvidia.com/gpu", "1"), append([]func(*corev1.PodSpec){selects("a", "b"), affine(corev1.NodeSelectorOpIn, "x")}, edits...)...)
	}
	other := base()
	other.Name, other.Labels, other.Spec.Containers[0].Image = "other", map[string]string{"job": "7"}, "image"
	other.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{}
	require.Same(t, shapes.Of(base()), shapes.Of(other))
	for name, p := range map[string]*corev1.Pod{
		"requests":        pod(asks("cpu", "2", "nvidia.com/gpu", "1"), selects("a", "b"), affine(corev1.NodeSelectorOpIn, "x")),
		"no GPU":          pod(asks("cpu", "1"), selects("a", "b"), affine(corev1.NodeSelectorOpIn, "x")),
		"selector":        base(selects("a", "c")),
		"no selector":     base(func(p *corev1.PodSpec) { p.NodeSelector = nil }),
		"affinity":        base(affine(corev1.NodeSelectorOpNotIn, "x")),
		"no affinity":     base(func(p *corev1.PodSpec) { p.Affinity = nil }),
		"tolerations":     base(tolerates(corev1.Toleration{Operator: corev1.TolerationOpExists})),
		"init containers": base(func(p *corev1.PodSpec) { p.InitContainers = []corev1.Container{asks("cpu", "4")} }),
	} {
		before := len(shapes)
		require.Same(t, shapes.Of(p), shapes.Of(p.DeepCopy()), name)
		require.Len(t, shapes, before+1, name)
	}
}
