package main

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/nodegroup"
)

// stray is an instance of a node group by the label of its Node or by its record, which the
// cloud lists in no group of the completed file.
type stray struct {
	group string
	node  string // name of its Node; empty without one
}

// keepDropped adds the groups of strays to the leader's, as retired: a file that a running
// provider would reject for them may be on disk at a start. Without their group their nodes
// would run on, held, counted by no quota and shown nowhere.
func (r *replica) keepDropped(ctx context.Context, l *leader) error {
	strays := r.strays(l)
	if len(strays) == 0 {
		return nil
	}
	dropped, err := r.dropped(ctx, l, strays)
	if err != nil || len(dropped) == 0 {
		return err
	}
	file := *l.file
	file.NodeGroups = slices.Concat(l.file.NodeGroups, dropped)
	completed, err := l.cloud.complete(ctx, &file)
	if err != nil {
		return err
	}
	if err := l.server.Reload(ctx, nodegroup.New(completed, l.cloud.TemplateID)); err != nil {
		return err
	}
	l.completed = completed
	empty := func(g config.NodeGroup) bool { return g.Dropped && l.server.Instances(g.ID) == 0 }
	if l.cloud.owners != nil || !slices.ContainsFunc(completed.NodeGroups, empty) {
		return nil
	}
	rest := *completed // without groups whose nodes have outlived their instances
	rest.NodeGroups = slices.DeleteFunc(slices.Clone(completed.NodeGroups), empty)
	l.completed = &rest
	return l.server.Reload(ctx, nodegroup.New(&rest, l.cloud.TemplateID))
}

// strays returns them by provider id.
func (r *replica) strays(l *leader) map[string]stray {
	if r.kube == nil {
		return nil
	}
	strays := map[string]stray{}
	add := func(instance string, s stray) {
		if _, placed := l.server.Place(instance); !placed && s.group != "" && l.cloud.Recognizes(instance) {
			strays[instance] = s
		}
	}
	for _, m := range r.kube.record.Machines() {
		add(m.Instance, stray{group: m.Group})
	}
	for _, node := range r.kube.view.Nodes() {
		add(node.Spec.ProviderID, stray{node.Labels[nodegroup.Label], node.Name})
	}
	return strays
}

// dropped returns the groups of those strays that the cloud still has, each once.
func (r *replica) dropped(ctx context.Context, l *leader, strays map[string]stray) (groups []config.NodeGroup, err error) {
	instances := slices.Sorted(maps.Keys(strays))
	owners := map[string]string{}
	if l.cloud.owners != nil {
		if owners, err = l.cloud.owners(ctx, instances); err != nil {
			return nil, err
		}
	}
	all := *l.completed
	for _, instance := range instances {
		s, asg := strays[instance], owners[instance]
		if l.cloud.owners != nil && asg == "" { // the instance is gone
			continue
		}
		if slices.ContainsFunc(all.NodeGroups, func(g config.NodeGroup) bool {
			return g.AutoScalingGroup == asg && (asg != "" || g.ID == s.group)
		}) {
			continue // it is known, and cannot be served
		}
		node, err := r.node(ctx, s.node)
		if err != nil {
			return nil, err
		}
		g := nodegroup.Dropped(&all, s.group, asg, node)
		groups, all.NodeGroups = append(groups, g), slices.Concat(all.NodeGroups, []config.NodeGroup{g})
	}
	return groups, nil
}

// node reads a Node with all of its labels, which the view does not keep; nil when it is gone.
func (r *replica) node(ctx context.Context, name string) (*corev1.Node, error) {
	if name == "" {
		return nil, nil //nolint:nilnil // there is none
	}
	node, err := r.kube.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // it is gone
	}
	if err != nil {
		return nil, fmt.Errorf("reading node %s: %w", name, err)
	}
	return node, nil
}
