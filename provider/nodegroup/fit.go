package nodegroup

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	corehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// Fits returns nil when the Pod fits an empty node of the group, else the first reason
// against it. It checks resources, taints, the node selector and required node
// affinity, not what depends on other Pods.
func (g *Group) Fits(pod *corev1.Pod) error {
	node := g.template
	if g.templateErr != nil {
		return g.templateErr
	}
	for name, want := range requests(pod) {
		have := node.Status.Allocatable[name]
		if want.Cmp(have) > 0 {
			return fmt.Errorf("it requests %s %s, a node has %s", want.String(), name, have.String())
		}
	}
	if taint, untolerated := corehelpers.FindMatchingUntoleratedTaint(klog.Logger{}, node.Spec.Taints, pod.Spec.Tolerations, blocksScheduling, false); untolerated {
		return fmt.Errorf("it does not tolerate the taint %s", taint.ToString())
	}
	matches, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	if err != nil {
		return fmt.Errorf("its node affinity is invalid: %w", err)
	}
	if !matches {
		return errors.New("its node selector or node affinity does not match")
	}
	return nil
}

func blocksScheduling(t *corev1.Taint) bool {
	return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
}
