package nodegroup

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	corehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// Fits tells why a new, empty node of the group could not take the Pod; nil
// when it could. It looks at resources, taints, the node selector and required
// node affinity; what depends on other Pods is the scheduler's to say.
func (g *Group) Fits(pod *corev1.Pod) error {
	node := g.template
	if g.templateErr != nil {
		return g.templateErr
	}
	for name, want := range requests(pod) {
		have := node.Status.Allocatable[name]
		if want.Cmp(have) > 0 {
			return fmt.Errorf("it asks for %s %s, a node has %s", want.String(), name, have.String())
		}
	}
	if taint, untolerated := corehelpers.FindMatchingUntoleratedTaint(klog.Logger{}, node.Spec.Taints, pod.Spec.Tolerations, blocksScheduling, false); untolerated {
		return fmt.Errorf("it does not tolerate the taint %s", taint.ToString())
	}
	matches, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	if err != nil {
		return fmt.Errorf("its node affinity cannot be read: %w", err)
	}
	if !matches {
		return errors.New("its node selector or node affinity does not match")
	}
	return nil
}

func blocksScheduling(t *corev1.Taint) bool {
	return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
}
