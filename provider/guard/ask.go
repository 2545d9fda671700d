package guard

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpu-node-provider/cloud/logkey"
	"gpu-node-provider/provider/checkpoint"
	"gpu-node-provider/provider/cluster"
)

// ask asks the trainers of a node for a checkpoint when there is a reason. It says
// whether all who had to be asked were.
func (g *Guard) ask(ctx context.Context, s subject, judged []checkpoint.Judged) bool {
	all := true
	node := g.urgent(s)
	idle := g.idle(s)
	for _, p := range judged {
		reason := node
		switch {
		case p.Clear || p.Stage != checkpoint.Running && p.Stage != checkpoint.Terminating:
			continue
		case p.Stage == checkpoint.Terminating:
			reason = "the pod is being deleted"
		case reason == "" && idle && g.notAskedSince(p.ID().UID, g.Policy().AskEvery):
			reason = "its node is underused"
		}
		if reason == "" || p.Signals.Request != nil {
			continue
		}
		all = g.Request(ctx, p.Pod, reason) && all
	}
	return all
}

// Request asks one pod for a checkpoint; false when Redis did not take it.
func (g *Guard) Request(ctx context.Context, p checkpoint.Pod, reason string) bool {
	id := p.ID()
	request := checkpoint.Request{ID: strings.ToLower(rand.Text()[:12]), RequestedAt: g.Now(), Reason: reason}
	if _, err := g.Asker.Ask(ctx, id, request, g.Policy().MaxAge); err != nil {
		g.Log.Warn("failed to request a checkpoint, will retry", zap.String(logkey.Pod, id.String()), zap.Error(err))
		return false
	}
	g.mu.Lock()
	g.asked[id.UID] = g.Now()
	g.mu.Unlock()
	g.Metrics.requested()
	g.Log.Info("checkpoint requested", zap.String(logkey.Pod, id.String()), zap.String(logkey.CheckpointID, request.ID), zap.String(logkey.Reason, reason))
	g.View.Tell(podReference(p), "CheckpointRequested", reason)
	return true
}

// notAskedSince says whether nobody asked a pod for a while.
func (g *Guard) notAskedSince(uid types.UID, d time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.Now().Sub(g.asked[uid]) >= d
}

// urgent is why a node's trainers are asked at once, if they are.
func (g *Guard) urgent(s subject) string {
	if s.node == nil {
		return ""
	}
	if who := s.node.Annotations[RequestAnnotation]; who != "" {
		return "requested by " + who
	}
	for _, taint := range s.node.Spec.Taints {
		switch {
		case taint.Key == cluster.ToBeDeleted:
			return "Cluster Autoscaler is draining its node"
		case slices.Contains(g.Policy().AskOnTaints, taint.Key):
			return "its node has the taint " + taint.Key
		}
	}
	if s.node.Spec.Unschedulable {
		return "its node is cordoned"
	}
	return ""
}

// idle says whether a node has been underused for long enough that Cluster
// Autoscaler would take it if nobody held it.
func (g *Guard) idle(s subject) bool {
	if s.node == nil || !s.place.AboveMin || !g.mostlyFree(s.node) {
		delete(g.underused, s.instance)
		return false
	}
	since, ok := g.underused[s.instance]
	if !ok {
		since = g.Now()
		g.underused[s.instance] = since
	}
	return g.Now().Sub(since) >= g.Policy().AskAfter
}

// mostlyFree says whether at most half of a node's devices are asked for:
// Cluster Autoscaler's own threshold, by its flag, is 0.5 for a GPU.
func (g *Guard) mostlyFree(node *corev1.Node) bool {
	some := false
	used := g.View.DevicesOn(node.Name)
	for name, allocatable := range node.Status.Allocatable {
		if !strings.Contains(string(name), "/") || allocatable.IsZero() {
			continue
		}
		some = true
		if 2*used[name] > allocatable.Value() {
			return false
		}
	}
	return some
}
