package checkpoint

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
)

// Instance is one whose deletion was asked for.
type Instance struct {
	ID string // provider id
	// Node is the Node's name as the caller gives it. It is the provider id for Cluster
	// Autoscaler's fakes, which stand for instances without a Node; such a machine may be
	// training all the same.
	Node string
}

// Fake reports whether this is one of Cluster Autoscaler's fakes
// (clusterstate.FakeNode: name == providerID).
func (i Instance) Fake() bool { return i.Node == i.ID }

// Held is an instance that has to stay.
type Held struct {
	Instance string // provider id
	Reason   string // short, since it ends in an Event next to others
}

// parallelLists bounds how many of the gate's reads are made at once.
const parallelLists = 20

// Hold decides which of the instances must stay: it asks the API server which
// Pods are on them at this moment, adds those that the record remembers, and
// reads Redis once for all. Who has neither pods nor a record needs no Redis.
// An error means that it cannot tell.
func (a *Assessor) Hold(ctx context.Context, instances []Instance) ([]Held, error) {
	pods := make([][]Pod, len(instances))
	hints := make([]string, len(instances))
	g, lists := errgroup.WithContext(ctx)
	g.SetLimit(parallelLists)
	for n, i := range instances {
		g.Go(func() (err error) {
			pods[n], hints[n], err = a.liveOn(lists, i)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	judged, err := a.Judge(ctx, slices.Concat(pods...))
	if err != nil {
		return nil, fmt.Errorf("acknowledgement of %s unknown: %w", first(instances, pods), err)
	}
	var held []Held
	for n, i := range instances {
		if reason := Blocking(judged[:len(pods[n])]); reason != "" {
			held = append(held, Held{Instance: i.ID, Reason: reason + hints[n]})
		}
		judged = judged[len(pods[n]):]
	}
	return held, nil
}

// liveOn are the training pods of an instance, at this moment. The instance's
// Node counts, not the name in the request, which may be anything. The hint is for
// people, where an instance may be held for a pod of another.
func (a *Assessor) liveOn(ctx context.Context, i Instance) (pods []Pod, hint string, err error) {
	recorded := a.Record.Of(i.ID)
	node, ok := a.View.Node(i.ID)
	names := map[string]bool{}
	if ok {
		names[node.Name] = true
	}
	if recorded.Node != "" {
		names[recorded.Node] = true
	}
	if !i.Fake() && i.Node != "" {
		names[i.Node] = true
	}
	if len(names) == 0 { // a Node that is not known may be there, and who is not reached cannot say no
		names[i.ID] = true
		pods, hint = a.onNameless()
	}
	var there []*corev1.Pod
	for name := range names {
		live, err := a.View.LivePodsOn(ctx, name)
		if err != nil {
			return nil, "", err
		}
		for n := range live {
			there = append(there, &live[n])
		}
	}
	return append(pods, a.Merge(recorded.Pods, there, node)...), hint, nil
}

// uninitialized is the taint on a Node that the cloud controller manager has not seen to.
const uninitialized = "node.cloudprovider.kubernetes.io/uninitialized"

// onNameless are training pods on Nodes of this cloud that do not say which instance
// they are: any may be the one that is asked about.
func (a *Assessor) onNameless() (pods []Pod, hint string) {
	for _, node := range a.View.Nodes() {
		ofThisCloud := node.Labels[a.GroupLabel] != "" ||
			slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == uninitialized })
		if node.Spec.ProviderID != "" || !ofThisCloud {
			continue
		}
		if on := a.Merge(nil, a.On(node.Name, nil), node); len(on) > 0 {
			pods = append(pods, on...)
			hint = fmt.Sprintf("; Node %s has no spec.providerID and may be this instance: check the cloud controller manager", node.Name)
		}
	}
	return pods, hint
}

// Blocking says which pods hold an instance, in one short line; empty when all are clear.
func Blocking(judged []Judged) string {
	text, more := "", 0
	for _, p := range judged {
		switch {
		case p.Clear:
		case text == "":
			text = fmt.Sprintf("training pod %s: %s", p.ID(), p.Reason)
		default:
			more++
		}
	}
	if more > 0 {
		text += fmt.Sprintf(" (and %d more)", more)
	}
	return text
}

func first(instances []Instance, pods [][]Pod) string {
	for n := range instances {
		if len(pods[n]) > 0 {
			return fmt.Sprintf("training pod %s", pods[n][0].ID())
		}
	}
	return "a training pod"
}
