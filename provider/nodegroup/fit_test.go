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

func TestFits(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want string // part of the reason; empty when it fits
	}{
		"all that a node has":        {pod(asks("cpu", "3", "memory", "16Gi", "nvidia.com/gpu", "2", "ephemeral-storage", "100Gi")), ""},
		"nothing":                    {pod(asks()), ""},
		"too many GPUs":              {pod(asks("nvidia.com/gpu", "3")), "it requests 3 nvidia.com/gpu, a node has 2"},
		"what is reserved":           {pod(asks("cpu", "3500m")), "it requests 3500m cpu, a node has 3"},
		"too much memory":            {pod(asks("memory", "17Gi")), "it requests 17Gi memory, a node has 16Gi"},
		"what no node has":           {pod(asks("amd.com/gpu", "1")), "it requests 1 amd.com/gpu, a node has 0"},
		"nothing of what none has":   {pod(asks("amd.com/gpu", "0")), ""},
		"too much in two containers": {pod(asks("cpu", "2"), func(p *corev1.PodSpec) { p.Containers = append(p.Containers, asks("cpu", "2")) }), "4 cpu"},
		"too much to begin with":     {pod(asks("cpu", "1"), func(p *corev1.PodSpec) { p.InitContainers = []corev1.Container{asks("cpu", "4")} }), "4 cpu"},
		"one after the other":        {pod(asks("cpu", "3"), func(p *corev1.PodSpec) { p.InitContainers = []corev1.Container{asks("cpu", "3")} }), ""},
		"too much with a sidecar": {pod(asks("cpu", "3"), func(p *corev1.PodSpec) {
			p.InitContainers = []corev1.Container{asks("cpu", "1")}
			p.InitContainers[0].RestartPolicy = &always
		}), "4 cpu"},
		"too much with its overhead": {pod(asks("cpu", "3"), func(p *corev1.PodSpec) {
			p.Overhead = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
		}), "3100m cpu"},

		"no toleration":             {pod(asks(), tolerates()), "it does not tolerate the taint nvidia.com/gpu=present:NoSchedule"},
		"a toleration of another":   {pod(asks(), tolerates(corev1.Toleration{Key: "nvidia.com/gpu", Value: "none"})), "nvidia.com/gpu=present"},
		"tolerates the value":       {pod(asks(), tolerates(corev1.Toleration{Key: "nvidia.com/gpu", Value: "present"})), ""},
		"tolerates everything":      {pod(asks(), tolerates(corev1.Toleration{Operator: corev1.TolerationOpExists})), ""},
		"selects the group":         {pod(asks(), selects(Label, "t4")), ""},
		"selects the GPU":           {pod(asks(), selects("accelerator", "nvidia-tesla-t4")), ""},
		"selects another GPU":       {pod(asks(), selects("accelerator", "nvidia-l4")), "node selector or node affinity does not match"},
		"wants the GPU":             {pod(asks(), affine(corev1.NodeSelectorOpIn, "nvidia-l4", "nvidia-tesla-t4")), ""},
		"wants another GPU":         {pod(asks(), affine(corev1.NodeSelectorOpIn, "nvidia-l4")), "does not match"},
		"wants none of these":       {pod(asks(), affine(corev1.NodeSelectorOpNotIn, "nvidia-tesla-t4")), "does not match"},
		"wants what cannot be read": {pod(asks(), affine("Near", "nvidia-l4")), "its node affinity is invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			err := group(t, gpuNode).Fits(c.pod)
			if c.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.want)
			}
		})
	}
}

// TestFitsNotWhereItWouldBeEvicted: NoExecute keeps Pods away as NoSchedule does.
func TestFitsNotWhereItWouldBeEvicted(t *testing.T) {
	g := group(t, plain+", taints: [{key: drained, effect: NoExecute}]")
	require.ErrorContains(t, g.Fits(pod(asks())), "it does not tolerate the taint drained:NoExecute")
}
