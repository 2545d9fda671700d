package guard

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"

	"gpu-node-provider/cloud/logkey"
	"gpu-node-provider/provider/checkpoint"
	"gpu-node-provider/provider/report"
)

// The marks on a Node. Only what carries our marker is ever removed.
const (
	scaleDownDisabled = "cluster-autoscaler.kubernetes.io/scale-down-disabled" // Cluster Autoscaler's
	heldBy            = "gpu-node-provider.io/held-by"
	blockedBy         = "gpu-node-provider.io/blocked-by"
	// ReleaseAnnotation is set by a person, to let a node go; its value says who.
	ReleaseAnnotation = "gpu-node-provider.io/release"
	// RequestAnnotation is set by a person, to have the node's trainers asked.
	RequestAnnotation = "gpu-node-provider.io/request"
	marker            = "guard"
)

func marked(node *corev1.Node) bool { return node != nil && node.Annotations[heldBy] == marker }

// Marks are all annotations that are ours, for who removes the program. The first
// is Cluster Autoscaler's, and ours only next to the second.
func Marks() (scaleDown, held string, others []string) {
	return scaleDownDisabled, heldBy, []string{blockedBy, ReleaseAnnotation, RequestAnnotation}
}

// wished says whether a person wants something of a node.
func wished(node *corev1.Node) bool {
	return node != nil && (node.Annotations[ReleaseAnnotation] != "" || node.Annotations[RequestAnnotation] != "")
}

func released(node *corev1.Node) string {
	if node == nil {
		return ""
	}
	return node.Annotations[ReleaseAnnotation]
}

// settle brings one instance's marks and Events up to its verdicts. They are in the
// record already.
func (g *Guard) settle(ctx context.Context, s subject, judged []checkpoint.Judged) {
	if released(s.node) != "" && g.release(ctx, s, judged) {
		return // the Node has changed, so it is looked at again at once
	}
	hold := slices.ContainsFunc(judged, func(p checkpoint.Judged) bool { return !p.Clear })
	g.tell(s, judged)
	g.note(s, judged, hold)
	asked := g.ask(ctx, s, judged)
	g.mark(ctx, s, judged, hold, asked)
}

// worthKeeping says whether the record needs a pod: one that may have something
// to lose, and is there or not clear. What was known of one that is there, a person's
// release or when it ended, would be asked for again.
func worthKeeping(p checkpoint.Judged) bool {
	switch p.Stage {
	case checkpoint.Waiting, checkpoint.Succeeded:
		return false
	default:
		return p.There || !p.Clear
	}
}

func kept(judged []checkpoint.Judged) (keep []checkpoint.Pod) {
	for _, p := range judged {
		if worthKeeping(p) {
			keep = append(keep, p.Pod)
		}
	}
	return keep
}

// machine is what the record has to have of an instance.
func machine(s subject, keep []checkpoint.Pod) checkpoint.Machine {
	m := checkpoint.Machine{Instance: s.instance, Group: s.place.Group, Node: s.recorded.Node, Pods: keep}
	if s.node != nil {
		m.Node = s.node.Name
	}
	return m
}

func (g *Guard) remember(ctx context.Context, machines ...checkpoint.Machine) {
	if err := g.Record.Put(ctx, machines...); err != nil {
		g.Log.Error("failed to write the record of training pods, will retry", zap.Error(err))
	}
}

// release carries a person's word out, for the pods of this moment. The wish is
// taken off the Node first: while it stands, or stands in an older view of the Node,
// pods that came later would be released too. It says whether it was carried out.
func (g *Guard) release(ctx context.Context, s subject, judged []checkpoint.Judged) bool {
	who := released(s.node)
	if err := g.View.Annotate(ctx, s.node, map[string]*string{ReleaseAnnotation: nil}); err != nil {
		g.Log.Warn("failed to release a node, will retry", zap.String(logkey.Node, s.node.Name), zap.Error(err))
		return false
	}
	var keep []checkpoint.Pod
	for _, p := range judged {
		if !worthKeeping(p) {
			continue
		}
		p.Released = who // also one that is clear now: its acknowledgement will age
		keep = append(keep, p.Pod)
		if !p.Clear {
			g.Log.Warn("training pod released, unsaved progress may be lost",
				zap.String(logkey.ReleasedBy, who), zap.String(logkey.Node, s.node.Name), zap.String(logkey.Pod, p.ID().String()))
			g.View.WarnOf(podReference(p.Pod), "CheckpointReleased", "released by "+who+": its node may be deleted without an acknowledgement")
		}
	}
	g.remember(ctx, machine(s, keep))
	return true
}

func (g *Guard) note(s subject, judged []checkpoint.Judged, hold bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !hold {
		delete(g.holds, s.instance)
		return
	}
	h := report.Hold{Instance: s.instance, Node: s.recorded.Node, NodeGroup: s.place.Group, Since: g.Now(), Pods: []report.Pod{}}
	if s.node != nil {
		h.Node = s.node.Name
	}
	if before, ok := g.holds[s.instance]; ok {
		h.Since = before.Since
	}
	for _, p := range judged {
		if p.Clear {
			continue
		}
		held := report.Pod{Pod: p.ID().String(), Reason: p.Reason}
		if !p.Until.IsZero() {
			held.Until = &p.Until
		}
		h.Pods = append(h.Pods, held)
	}
	g.holds[s.instance] = h
}

// mark brings the Node's annotations up to date, if they are not.
// asked says that a person's request has been carried out.
func (g *Guard) mark(ctx context.Context, s subject, judged []checkpoint.Judged, hold, asked bool) {
	if s.node == nil {
		return
	}
	hold = hold && !g.Policy().Observe
	change := changes(s.node, hold, names(judged))
	if asked && s.node.Annotations[RequestAnnotation] != "" {
		change[RequestAnnotation] = nil
	}
	if len(change) == 0 {
		return
	}
	if err := g.View.Annotate(ctx, s.node, change); err != nil {
		g.Log.Warn("failed to annotate a node, will retry", zap.String(logkey.Node, s.node.Name), zap.Error(err))
		return
	}
	switch {
	case hold && !marked(s.node):
		g.Log.Info("node held", zap.String(logkey.Node, s.node.Name), zap.String(logkey.Reason, checkpoint.Blocking(judged)))
		g.View.Tell(nodeReference(s.node), "HeldForCheckpoint", checkpoint.Blocking(judged))
	case !hold && marked(s.node):
		g.Log.Info("node no longer held", zap.String(logkey.Node, s.node.Name))
	}
}

// changes are what has to be written to a Node so that it is held, or is not.
// A person's annotation is left alone: without our marker it is not ours.
func changes(node *corev1.Node, hold bool, pods string) map[string]*string {
	have, change := node.Annotations, map[string]*string{}
	disabled := have[scaleDownDisabled] == "true" // any other value disables nothing
	switch {
	case hold && (marked(node) || !disabled):
		for key, value := range map[string]string{scaleDownDisabled: "true", heldBy: marker, blockedBy: pods} {
			if have[key] != value {
				change[key] = &value
			}
		}
	case !hold && marked(node):
		for _, key := range []string{scaleDownDisabled, heldBy, blockedBy} {
			change[key] = nil
		}
	}
	return change
}

// names are the pods that hold a node, without anything that changes by itself:
// each change of an annotation is a write.
func names(judged []checkpoint.Judged) string {
	const most = 5
	var all []string
	for _, p := range judged {
		if !p.Clear {
			all = append(all, p.ID().String())
		}
	}
	if len(all) > most {
		all = append(all[:most], fmt.Sprintf("and %d more", len(all)-most))
	}
	return strings.Join(all, ", ")
}

// tell writes Events about changes of verdicts.
func (g *Guard) tell(s subject, judged []checkpoint.Judged) {
	for _, p := range judged {
		uid := p.ID().UID
		before, known := g.last[uid]
		now := outcome{stage: p.Stage, clear: p.Clear}
		if p.Signals.BadAck != nil {
			now.bad = p.Signals.BadAck.Error()
		}
		g.last[uid] = now
		if now.bad != "" && now.bad != before.bad {
			g.Metrics.badAcknowledgement()
			g.View.WarnOf(podReference(p.Pod), "BadAcknowledgement", "acknowledgement ignored: "+now.bad)
		}
		if !known || now.clear != before.clear {
			g.tellVerdict(s, p, known)
		}
	}
}

// tellVerdict tells of a verdict that is new.
func (g *Guard) tellVerdict(s subject, p checkpoint.Judged, known bool) {
	switch {
	case p.Clear && p.Abandoned: // also at the first look after a restart, when it was not told yet
		g.Metrics.abandoned()
		g.View.WarnOf(podReference(p.Pod), "CheckpointAbandoned", p.Reason)
		g.Log.Warn("checkpoint abandoned", zap.String(logkey.Pod, p.ID().String()), zap.String(logkey.Instance, s.instance), zap.String(logkey.Reason, p.Reason))
	case known && p.Clear && p.Signals.Ack != nil && p.Released == "":
		g.View.Tell(podReference(p.Pod), "CheckpointAcknowledged", p.Reason)
		g.Log.Info("checkpoint acknowledged", zap.String(logkey.Pod, p.ID().String()), zap.String(logkey.Instance, s.instance))
	}
}

func podReference(p checkpoint.Pod) corev1.ObjectReference {
	id := p.ID()
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: id.Namespace, Name: id.Name, UID: id.UID}
}

func nodeReference(node *corev1.Node) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
}
