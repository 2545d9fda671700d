package provider

import (
	"iter"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpu-node-provider/provider/nodegroup"
	"gpu-node-provider/provider/quota"
)

// Cluster Autoscaler never sends the call that a limit would refuse, since it
// is told a maximum that has the limit in it. So whoever looks at a Pending Pod
// would not learn of the limit, unless the provider writes it there.

// reasonAbsorbed is the reason of the Event that tells of an absorbed increase.
const reasonAbsorbed = "CapacityAbsorbed"

// repeatAfter is when the same is said of the same Pod again; Events last an hour by default.
const repeatAfter = 10 * time.Minute

// maxTold bounds the Events that one call writes: one Pod of a Deployment of
// hundreds tells as much as all.
const maxTold = 20

// podReason is what was said of a Pod.
type podReason struct {
	pod    types.UID
	reason string
}

func podReasonOf(l quota.Limit) string { return string(l.Reason) }

// explainWaiting writes an Event on each Pod that waits only for a limit: it
// fits some group, and every group that it fits is at what it may have.
func (s *Server) explainWaiting() {
	if s.cluster == nil {
		return
	}
	pods := s.cluster.WaitingPods()
	s.forgetToldOf(pods)
	told := 0
	for pod, limited := range byShape(pods, s.current.Load().limitOf) {
		if limited != nil && s.warn(pod, podReasonOf(limited.limit), limited.limit.Text) {
			if told++; told == maxTold {
				return
			}
		}
	}
}

// byShape yields each Pod with what follows from its shape. It is computed once for each
// shape, since thousands of Jobs may wait for one of a thousand groups.
func byShape[T any](pods []*corev1.Pod, of func(*nodegroup.Shape) T) iter.Seq2[*corev1.Pod, T] {
	return func(yield func(*corev1.Pod, T) bool) {
		shapes, known := nodegroup.Shapes{}, map[*nodegroup.Shape]T{}
		for _, pod := range pods {
			shape := shapes.Of(pod)
			result, ok := known[shape]
			if !ok {
				result = of(shape)
				known[shape] = result
			}
			if !yield(pod, result) {
				return
			}
		}
	}
}

// limitOf is the group whose limit Pods of a shape wait for: nil when they fit none, or
// when one that they fit can still grow. Of several, the first of the file.
func (n *snapshot) limitOf(shape *nodegroup.Shape) *groupView {
	var limited *groupView
	for _, g := range n.order {
		if !g.Fits(shape) {
			continue
		}
		if g.limit.Room > 0 || g.inFlight > 0 {
			return nil
		}
		if limited == nil {
			limited = g
		}
	}
	return limited
}

// warnWaiting writes an Event on the Pods that wait for the group.
func (s *Server) warnWaiting(g *groupView, reason, text string) {
	if s.cluster == nil {
		return
	}
	told := 0
	for pod, fits := range byShape(s.cluster.WaitingPods(), g.Fits) {
		if fits && s.warn(pod, reason, text) {
			if told++; told == maxTold {
				return
			}
		}
	}
}

// warn writes an Event unless that was said lately, and says whether it did.
func (s *Server) warn(pod *corev1.Pod, reason, text string) bool {
	key := podReason{pod.UID, reason}
	now := s.now()
	s.mu.Lock()
	last, said := s.toldOf[key]
	if said && now.Sub(last) < repeatAfter {
		s.mu.Unlock()
		return false
	}
	s.toldOf[key] = now
	s.mu.Unlock()
	s.cluster.Warn(pod, reason, text)
	return true
}

// forgetToldOf drops what was said of Pods that wait no more.
func (s *Server) forgetToldOf(waiting []*corev1.Pod) {
	still := make(map[types.UID]bool, len(waiting))
	for _, pod := range waiting {
		still[pod.UID] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.toldOf {
		if !still[key.pod] {
			delete(s.toldOf, key)
		}
	}
}
