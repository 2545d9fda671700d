package simulated

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// leaseSeconds is what the kubelet writes: four beats.
const leaseSeconds int32 = 40

// healthy are the conditions of a kubelet that has nothing to complain about.
// All of them beat, since the node controller turns all to Unknown when it has
// not heard of a Node for a while, such as during a restart here.
var healthy = []corev1.NodeCondition{
	{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientMemory", Message: "simulated"},
	{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasNoDiskPressure", Message: "simulated"},
	{Type: corev1.NodePIDPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientPID", Message: "simulated"},
	{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "simulated"},
}

func (r *registrar) registerStep(m machine, now time.Time) step {
	s := step{name: "register", group: m.group, node: m.name, id: m.id}
	s.do = func(ctx context.Context) error {
		node, err := r.newNode(m)
		if err != nil {
			return err
		}
		if now.Before(m.devices) {
			dropExtended(node.Status.Capacity)
			dropExtended(node.Status.Allocatable)
		}
		node.Status.Conditions = beat(nil, now)
		_, err = r.kubernetes.Client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // the cache has not heard of it yet
			return nil
		}
		if err != nil {
			return err
		}
		r.wrote(s)
		return nil
	}
	return s
}

func (r *registrar) newNode(m machine) (*corev1.Node, error) {
	made, err := r.kubernetes.NewNode(m.group, m.name, m.id)
	if err != nil {
		return nil, fmt.Errorf("making the Node: %w", err)
	}
	if made == nil {
		return nil, errors.New("making the Node: the constructor returned nil")
	}
	node := made.DeepCopy()
	// Cluster Autoscaler asks for the deletion of every instance that it cannot
	// match with a Node's provider id byte for byte.
	node.Name, node.Spec.ProviderID = m.name, m.id
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	node.Annotations[ownAnnotation] = "true"
	return node, nil
}

// isExtended tells resources that a device plugin brings from the kubelet's own.
func isExtended(name corev1.ResourceName) bool { return strings.Contains(string(name), "/") }

func dropExtended(resources corev1.ResourceList) {
	maps.DeleteFunc(resources, func(name corev1.ResourceName, _ resource.Quantity) bool { return isExtended(name) })
}

// equipStep plays the device plugin: it adds the resources which the Node still
// lacks, and leaves the values of those it has.
func (r *registrar) equipStep(m machine, node *corev1.Node, seen *sighting) step {
	s := step{name: "equip", group: m.group, node: m.name, id: m.id, done: func() { seen.equipped = true }}
	s.do = func(ctx context.Context) error {
		full, err := r.newNode(m)
		if err != nil {
			return err
		}
		status := map[string]any{}
		if missing := lacking(node.Status.Capacity, full.Status.Capacity); len(missing) > 0 {
			status["capacity"] = missing
		}
		if missing := lacking(node.Status.Allocatable, full.Status.Allocatable); len(missing) > 0 {
			status["allocatable"] = missing
		}
		if len(status) == 0 {
			return nil
		}
		if err := r.patchStatus(ctx, m.name, status); err != nil {
			return err
		}
		r.wrote(s)
		return nil
	}
	return s
}

func lacking(have, want corev1.ResourceList) corev1.ResourceList {
	missing := maps.Clone(want)
	maps.DeleteFunc(missing, func(name corev1.ResourceName, _ resource.Quantity) bool {
		_, ok := have[name]
		return ok
	})
	return missing
}

func (r *registrar) beatStep(m machine, node *corev1.Node, seen *sighting, now time.Time) step {
	s := step{name: "heartbeat", group: m.group, node: m.name, id: m.id}
	s.done = func() { seen.nextBeat = now.Add(beatEvery) }
	s.do = func(ctx context.Context) error {
		if err := r.renewLease(ctx, node, now); err != nil {
			return err
		}
		return r.patchStatus(ctx, m.name, map[string]any{"conditions": beat(node.Status.Conditions, now)})
	}
	return s
}

// beat returns the healthy conditions as of now. A condition keeps the time
// since which it has been as it is.
func beat(have []corev1.NodeCondition, now time.Time) []corev1.NodeCondition {
	since := map[corev1.NodeConditionType]corev1.NodeCondition{}
	for _, condition := range have {
		since[condition.Type] = condition
	}
	conditions := make([]corev1.NodeCondition, 0, len(healthy))
	for _, condition := range healthy {
		condition.LastHeartbeatTime = metav1.NewTime(now)
		condition.LastTransitionTime = metav1.NewTime(now)
		if old, ok := since[condition.Type]; ok && old.Status == condition.Status && !old.LastTransitionTime.IsZero() {
			condition.LastTransitionTime = old.LastTransitionTime
		}
		conditions = append(conditions, condition)
	}
	return conditions
}

func (r *registrar) patchStatus(ctx context.Context, name string, status map[string]any) error {
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return fmt.Errorf("encoding a patch: %w", err)
	}
	_, err = r.kubernetes.Client.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return ignoreNotFound(err) // deleted by somebody meanwhile: the next tick registers it again
}

func (r *registrar) renewLease(ctx context.Context, node *corev1.Node, now time.Time) error {
	leases := r.kubernetes.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	renewed := metav1.NewMicroTime(now)
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"renewTime": renewed}})
	if err != nil {
		return fmt.Errorf("encoding a patch: %w", err)
	}
	_, err = leases.Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	seconds := leaseSeconds
	_, err = leases.Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name,
			// So that the Lease goes even when it is not us who delete the Node.
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &node.Name, LeaseDurationSeconds: &seconds, RenewTime: &renewed},
	}, metav1.CreateOptions{})
	return err
}

// removeStep takes a Node away whose machine is gone. The Lease goes first:
// afterwards nothing would point to it.
func (r *registrar) removeStep(group string, node *corev1.Node) step {
	s := step{name: "remove", group: group, node: node.Name, id: node.Spec.ProviderID}
	s.do = func(ctx context.Context) error {
		leases := r.kubernetes.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
		if err := ignoreNotFound(leases.Delete(ctx, node.Name, metav1.DeleteOptions{})); err != nil {
			return err
		}
		// The UID makes sure that it is this Node, and not one that somebody
		// has put in its place since the cache was filled.
		options := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(node.UID))}
		err := r.kubernetes.Client.CoreV1().Nodes().Delete(ctx, node.Name, options)
		if err == nil {
			r.wrote(s)
		}
		return ignoreNotFound(err)
	}
	return s
}

// strangerStep reports a Node that has a machine's name and is not its Node. It
// is left alone: the machine stays unregistered until a person has looked.
func (r *registrar) strangerStep(m machine, node *corev1.Node) step {
	return step{name: "adopt", group: m.group, node: m.name, id: m.id, do: func(context.Context) error {
		return fmt.Errorf("a Node %q with provider id %q already exists", node.Name, node.Spec.ProviderID)
	}}
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
