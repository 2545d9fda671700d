package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
)

const (
	podBuffer    = 2 * time.Second
	gpuPodBuffer = 30 * time.Second
	mostNewNodes = 1000
)

// allNew says whether to wait for more pods: the oldest is very new, or the oldest
// of those that want a GPU is.
func allNew(pods []*corev1.Pod, now time.Time) bool {
	oldest, oldestGPU := now, time.Time{}
	for _, pod := range pods {
		created := pod.CreationTimestamp.Time
		if created.Before(oldest) {
			oldest = created
		}
		if wantsGPU(pod) && (oldestGPU.IsZero() || created.Before(oldestGPU)) {
			oldestGPU = created
		}
	}
	return oldest.Add(podBuffer).After(now) || !oldestGPU.IsZero() && oldestGPU.Add(gpuPodBuffer).After(now)
}

// pendingPods are the unschedulable ones and those of nodes that are being
// drained, without those that fit on what is there or on its way.
func (a *autoscaler) pendingPods(s *snapshot, unschedulable []*corev1.Pod, deleting deletionsInProgress) []*corev1.Pod {
	candidates := slices.Clone(unschedulable)
	for name := range deleting.drained {
		info := s.byName[name]
		if info == nil {
			continue
		}
		for _, pod := range info.pods {
			if pod.DeletionTimestamp == nil && !isMirror(pod) && !isDaemonSet(pod) {
				pod = pod.DeepCopy()
				pod.Spec.NodeName = ""
				candidates = append(candidates, pod)
			}
		}
	}
	slices.SortStableFunc(candidates, func(a, b *corev1.Pod) int {
		return int(corev1helpers.PodPriority(b)) - int(corev1helpers.PodPriority(a))
	})
	var pending []*corev1.Pod
	for _, pod := range candidates {
		if !s.place(pod, anywhere) && !isDaemonSet(pod) {
			pending = append(pending, pod)
		}
	}
	return pending
}

// option is how much a group could grow, and which pods that helps.
type option struct {
	group *group
	count int
	pods  []*corev1.Pod
	waste float64
}

// scaleUp asks one group for nodes, at most. What fails here leaves the loop to go on.
func (a *autoscaler) scaleUp(ctx context.Context, s *snapshot, pods []*corev1.Pod, now time.Time) {
	a.log.Info("pods are unschedulable", "pods", podNames(pods))
	if err := walkForQuotas(ctx, a.cloud, s.nodes()); err != nil {
		a.log.Warn("no scale-up", "error", err)
		return
	}
	why := reasons{}
	var options []option
	for _, g := range a.validGroups(ctx, pods, why, now) {
		if fitting := a.fitting(g, pods, why); len(fitting) > 0 {
			if o := a.estimate(ctx, g, fitting); o.count > 0 {
				options = append(options, o)
			}
		}
	}
	if len(options) == 0 {
		a.log.Info("no group can help", "pods", podNames(pods))
		for _, pod := range pods {
			if told := why.told(pod); told != "" {
				a.events.on(pod, corev1.EventTypeNormal, "NotTriggerScaleUp", "pod didn't trigger scale-up: %s", told)
			}
		}
		return
	}
	a.increase(ctx, slices.MinFunc(options, func(a, b option) int { return cmp.Compare(a.waste, b.waste) }), now)
}

func (a *autoscaler) validGroups(ctx context.Context, pods []*corev1.Pod, why reasons, now time.Time) []*group {
	var valid []*group
	for _, g := range a.cloud.nodeGroups(ctx) {
		skip := a.skipReason(ctx, g, now)
		if skip == "" {
			valid = append(valid, g)
			continue
		}
		for _, pod := range pods {
			why.add(pod, skip)
		}
	}
	return valid
}

// fitting are the pods that a new node of a group could take.
func (a *autoscaler) fitting(g *group, pods []*corev1.Pod, why reasons) []*corev1.Pod {
	fresh := newSnapshot([]*corev1.Node{a.templates.current[g.id]}, nil).infos[0]
	var fitting []*corev1.Pod
	for _, pod := range pods {
		if misfit := fresh.misfit(pod); misfit != "" {
			why.add(pod, misfit)
			continue
		}
		why[pod] = nil
		fitting = append(fitting, pod)
	}
	return fitting
}

// reasons count, by pod, why groups do not help; nil for a pod that one would help.
type reasons map[*corev1.Pod]map[string]int

func (r reasons) add(pod *corev1.Pod, reason string) {
	if counts, known := r[pod]; !known {
		r[pod] = map[string]int{reason: 1}
	} else if counts != nil {
		counts[reason]++
	}
}

func (r reasons) told(pod *corev1.Pod) string {
	list := make([]string, 0, len(r[pod]))
	for reason, n := range r[pod] {
		list = append(list, fmt.Sprintf("%d %s", n, reason))
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// skipReason is why a group is not even looked at.
func (a *autoscaler) skipReason(ctx context.Context, g *group, now time.Time) string {
	const notReady = "not ready for scale-up"
	if !a.registry.groupHealthy(g.id) {
		return notReady
	}
	if a.registry.backedOff(g, now) {
		return "in backoff after failed scale-up"
	}
	size, err := g.targetSize(ctx)
	if err != nil {
		return notReady
	}
	if size >= g.max {
		return "max node group size reached"
	}
	if _, err := g.options(ctx); err != nil {
		a.log.Warn("no options", "group", g.id, "error", err) // and on, as the real one does
	}
	if a.templates.current[g.id] == nil {
		return notReady
	}
	return ""
}

// estimate packs pods onto new nodes, first fit, up to the room that the group has.
func (a *autoscaler) estimate(ctx context.Context, g *group, pods []*corev1.Pod) option {
	room := 0
	if size, err := g.targetSize(ctx); err == nil {
		room = min(g.max-size, mostNewNodes)
	}
	o := option{group: g}
	template := a.templates.current[g.id]
	fresh := newSnapshot(nil, nil)
	var cpu, memory int64
	for _, pod := range pods {
		if !fresh.place(pod, anywhere) {
			if o.count >= room {
				continue
			}
			fresh.add(renamed(template, fmt.Sprintf("%s-e-%d", template.Name, o.count)))
			o.count++
			if !fresh.place(pod, anywhere) {
				continue
			}
		}
		o.pods = append(o.pods, pod)
		wanted := requests(pod)
		cpu, memory = cpu+wanted[corev1.ResourceCPU], memory+wanted[corev1.ResourceMemory]
	}
	if _, err := g.options(ctx); err != nil {
		a.log.Warn("no options", "group", g.id, "error", err) // and on, as the real one does
	}
	o.waste = wasted(cpu, template.Status.Capacity.Cpu().MilliValue()*int64(o.count)) +
		wasted(memory, template.Status.Capacity.Memory().Value()*int64(o.count))
	return o
}

func wasted(used, available int64) float64 {
	if available == 0 {
		return 0
	}
	return float64(available-used) / float64(available)
}

func (a *autoscaler) increase(ctx context.Context, o option, now time.Time) {
	g := o.group
	size, err := g.targetSize(ctx)
	if err != nil {
		a.log.Warn("no scale-up", "group", g.id, "error", err)
		return
	}
	target := min(size+o.count, g.max)
	if target <= size {
		a.log.Info("no scale-up: the group is full", "group", g.id, "target", size, "max", g.max)
		return
	}
	a.cloud.askGPUTypes(ctx)
	a.log.Info("scale-up", "group", g.id, "from", size, "to", target, "max", g.max)
	a.events.cluster(corev1.EventTypeNormal, "ScaledUpGroup",
		"Scale-up: setting group %s size to %d instead of %d (max: %d)", g.id, target, size, g.max)
	if err := g.increase(ctx, target-size); err != nil {
		a.log.Warn("scale-up failed", "group", g.id, "error", err)
		a.events.cluster(corev1.EventTypeWarning, "FailedToScaleUpGroup", "Scale-up failed for group %s: %v", g.id, err)
		a.registry.fail(g, "cloudProviderError", now)
		return
	}
	a.registry.request(ctx, g, target-size, time.Now())
	a.events.cluster(corev1.EventTypeNormal, "ScaledUpGroup",
		"Scale-up: group %s size set to %d instead of %d (max: %d)", g.id, target, size, g.max)
	a.registry.recalculate(ctx)
	for _, pod := range o.pods {
		a.events.on(pod, corev1.EventTypeNormal, "TriggeredScaleUp", "pod triggered scale-up: [{%s %d->%d (max: %d)}]", g.id, size, target, g.max)
	}
	a.lastScaleUp = now
}

func podNames(pods []*corev1.Pod) string {
	const most = 5
	var list []string
	for _, pod := range pods {
		list = append(list, pod.Namespace+"/"+pod.Name)
	}
	if len(list) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:most], " "), len(list)-most)
	}
	return strings.Join(list, " ")
}
