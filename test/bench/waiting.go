package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/simulated"
	"gpu-node-provider/provider"
	"gpu-node-provider/provider/cluster"
	"gpu-node-provider/provider/nodegroup"
)

const (
	waitingJobs   = 5_000
	waitingShapes = 50
	waitingLooks  = 5
	mostLook      = 500 * time.Millisecond
)

// waiting measures one look at the Pods that wait for a limit, as the processor time of a
// round of the provider with waiting Pods less that of one without.
func waiting(ctx context.Context, _ settings) (missed int, err error) {
	var rounds [3]time.Duration
	for n, shapes := range []int{0, waitingShapes, waitingJobs} {
		if rounds[n], err = roundsWith(ctx, shapes); err != nil {
			return 0, err
		}
	}
	look, different := rounds[1]-rounds[0], rounds[2]-rounds[0]
	return row{
		name: "look at waiting pods", ours: short(float64(look)), beside: short(float64(mostLook)), ratio: look.Seconds() / mostLook.Seconds(), most: 1,
		note: fmt.Sprintf("CPU for %d Jobs in %d shapes, compared with %d groups; %s if each Job has a shape of its own; median of %d",
			waitingJobs, waitingShapes, groups, short(float64(different)), waitingLooks),
	}.print(), nil
}

// roundsWith returns the processor time of a round in which Jobs of so many shapes wait.
func roundsWith(ctx context.Context, shapes int) (time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	view, known := cluster.NewMemory(nil, &record.FakeRecorder{})
	for n := range waitingJobs {
		if shapes == 0 {
			break
		}
		if err := known.Put(aWaitingPod(n, n%shapes)); err != nil {
			return 0, err
		}
	}
	pretend, err := simulated.New(simulated.Options{BootDelay: bootDelay})
	if err != nil {
		return 0, err
	}
	c := file()
	// All groups but the last are at their limit. So every group is compared, and no Event ends
	// the look early.
	c.Quotas[0].Limit, c.Quotas[0].NodeGroups = resource.NewQuantity(0, resource.DecimalSI), nil
	for n := range groups - 1 {
		c.Quotas[0].NodeGroups = append(c.Quotas[0].NodeGroups, groupID(n))
	}
	backend := &rounds{Backend: pretend, left: waitingLooks + 2, done: cancel} // the first is of New, and the last ends no round
	s, err := provider.New(ctx, provider.Options{Catalogue: nodegroup.New(c, pretend.TemplateID), Backend: backend, Cluster: view, ReadEvery: time.Millisecond})
	if err != nil {
		return 0, err
	}
	if err := s.Run(ctx); err != nil {
		return 0, err
	}
	return time.Duration(median(backend.took)), nil
}

// rounds is a cloud that notes the processor time between readings.
type rounds struct {
	cloud.Backend
	left int
	last time.Duration
	took []float64
	done func()
}

func (r *rounds) Describe(ctx context.Context, ids ...string) ([]cloud.Group, error) {
	now := cpu()
	if r.last > 0 {
		r.took = append(r.took, float64(now-r.last))
	}
	r.last = now
	if r.left--; r.left < 0 {
		r.done()
	}
	return r.Backend.Describe(ctx, ids...)
}

// aWaitingPod is the Pod of a Job for which the scheduler has found no node.
func aWaitingPod(n, shape int) *corev1.Pod {
	job := fmt.Sprintf("waiting-%04d", n)
	pod := aPod(job+"-x7k2p", "", metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: job, UID: types.UID(job)})
	amounts := corev1.ResourceList{gpuResource: resource.MustParse("1"), corev1.ResourceMemory: *resource.NewQuantity(4<<30+int64(shape), resource.BinarySI)}
	pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: amounts, Requests: amounts}
	pod.Spec.NodeSelector = map[string]string{"accelerator": "nvidia-tesla-t4"}
	pod.Status = corev1.PodStatus{
		Phase:      corev1.PodPending,
		Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}},
	}
	return pod
}
