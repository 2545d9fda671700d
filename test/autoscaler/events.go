package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// events are on pods and nodes, and on the status config map for the cluster.
type events struct {
	recorder record.EventRecorder
	status   *corev1.ConfigMap // nil when none is written
}

// newEvents returns what sends events to the API server, and how to end it.
func newEvents(kube kubernetes.Interface) (record.EventRecorder, func()) {
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: kube.CoreV1().Events("")})
	return broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "cluster-autoscaler"}), broadcaster.Shutdown
}

func (e *events) on(object runtime.Object, kind, reason, format string, args ...any) {
	e.recorder.Eventf(object, kind, reason, format, args...)
}

func (e *events) cluster(kind, reason, format string, args ...any) {
	if e.status != nil {
		e.recorder.Eventf(e.status, kind, reason, format, args...)
	}
}

// statusMap is where the status goes; its name is what events refer to.
func statusMap(o options) *corev1.ConfigMap {
	if !o.writeStatus {
		return nil
	}
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: o.namespace, Name: o.statusName},
	}
}

// writeStatus tells what the last loop saw.
func (a *autoscaler) writeStatus(ctx context.Context, now time.Time) {
	if a.events.status == nil {
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, "time: %s\nautoscalerStatus: Running\nnodeGroups:\n", now.UTC().Format(time.RFC3339))
	for _, g := range a.cloud.nodeGroups(ctx) {
		counted := a.registry.perGroup[g.id]
		fmt.Fprintf(&b, "- {name: %s, target: %d, ready: %d, registered: %d, unregistered: %d, minSize: %d, maxSize: %d, backedOff: %t}\n",
			g.id, a.registry.targets[g.id], counted.ready, counted.registered, counted.unregistered+counted.longUnregistered,
			g.min, g.max, a.registry.backedOff(g, now))
	}
	status := a.events.status.DeepCopy()
	status.Annotations = map[string]string{"cluster-autoscaler.kubernetes.io/last-updated": now.UTC().String()}
	status.Data = map[string]string{"status": b.String()}
	maps := a.kube.CoreV1().ConfigMaps(status.Namespace)
	_, err := maps.Update(ctx, status, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = maps.Create(ctx, status, metav1.CreateOptions{})
	}
	if err != nil {
		a.log.Warn("status not written", "error", err)
	}
}
