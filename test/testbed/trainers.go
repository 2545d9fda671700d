package testbed

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// Trainers are a Deployment of workers and the ScaledObject that follows their queue.
type Trainers struct {
	Name         string // of both
	Queue        string
	Accelerator  string
	MaxReplicas  int
	Cooldown     int // seconds; 300 in deploy/, far less in a test
	LeaseSeconds int
}

const trainersNamespace = "ai-train"

// Train installs trainers, as deploy/train-worker and deploy/keda say.
func (b *Bed) Train(ctx context.Context, t Trainers) error {
	objects, err := b.manifests("train-worker/deployment.yaml", "keda/scaledobject.yaml")
	if err != nil {
		return err
	}
	deployment, err := named(objects, "Deployment", "train-worker")
	if err != nil {
		return err
	}
	scaled, err := named(objects, "ScaledObject", "gpu-train-scaler")
	if err != nil {
		return err
	}
	if _, err := b.Cluster.Kubectl(ctx, []byte(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"`+trainersNamespace+`"}}`), "apply", "-f", "-"); err != nil {
		return err
	}
	if err := b.editDeployment(deployment, t); err != nil {
		return err
	}
	if b.WithoutKEDA {
		return b.apply(ctx, deployment)
	}
	if err := b.editScaledObject(scaled, t); err != nil {
		return err
	}
	return b.apply(ctx, deployment, scaled)
}

// editDeployment makes the trainers processes of this machine.
func (b *Bed) editDeployment(object *unstructured.Unstructured, t Trainers) error {
	var d appsv1.Deployment
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &d); err != nil {
		return fmt.Errorf("deploy/train-worker/deployment.yaml: %w", err)
	}
	d.Name = t.Name
	if b.WithoutKEDA {
		d.Spec.Replicas = new(int32(t.MaxReplicas))
	}
	d.Spec.Selector.MatchLabels["queue"] = t.Name
	d.Spec.Template.Labels["queue"] = t.Name
	spec := &d.Spec.Template.Spec
	spec.NodeSelector["accelerator"] = t.Accelerator
	// A trainer that was told to stop before it could listen is killed after this.
	spec.TerminationGracePeriodSeconds = new(int64(20))
	c := &spec.Containers[0]
	c.Command = []string{b.binaries.python, filepath.Join(b.binaries.root, "deploy", "train-worker", "worker.py")}
	spec.Volumes, c.VolumeMounts = nil, nil // the folder is this machine's
	checkpoints := b.file("checkpoints")
	if err := os.MkdirAll(checkpoints, 0o700); err != nil {
		return err
	}
	for name, value := range map[string]string{
		"REDIS_URL": "redis://" + b.redisAddress, "QUEUE": t.Queue, "CHECKPOINT_DIR": checkpoints, "LEASE_SECONDS": fmt.Sprint(t.LeaseSeconds),
	} {
		c.Env = slices.DeleteFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == name })
		c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value})
	}
	edited, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&d)
	if err != nil {
		return err
	}
	object.Object = edited
	unstructured.RemoveNestedField(object.Object, "status")
	object.SetAPIVersion("apps/v1")
	object.SetKind("Deployment")
	return nil
}

// editScaledObject keeps all of it but for names, addresses and times.
func (b *Bed) editScaledObject(object *unstructured.Unstructured, t Trainers) error {
	object.SetName(t.Name)
	triggers, _, err := unstructured.NestedSlice(object.Object, "spec", "triggers")
	if err != nil {
		return fmt.Errorf("deploy/keda/scaledobject.yaml: %w", err)
	}
	for n := range triggers {
		trigger, ok := triggers[n].(map[string]any)
		if !ok {
			return fmt.Errorf("deploy/keda/scaledobject.yaml: trigger %d is no object", n)
		}
		delete(trigger, "authenticationRef")
		metadata, ok := trigger["metadata"].(map[string]any)
		if !ok {
			return fmt.Errorf("deploy/keda/scaledobject.yaml: trigger %d has no metadata", n)
		}
		metadata["address"] = b.redisAddress
		list, ok := metadata["listName"].(string)
		if !ok {
			return fmt.Errorf("deploy/keda/scaledobject.yaml: trigger %d has no listName", n)
		}
		metadata["listName"] = strings.Replace(list, "train:jobs", t.Queue, 1)
	}
	for _, edit := range []struct {
		value any
		path  []string
	}{
		{triggers, []string{"spec", "triggers"}},
		{t.Name, []string{"spec", "scaleTargetRef", "name"}},
		{int64(t.MaxReplicas), []string{"spec", "maxReplicaCount"}},
		{int64(t.Cooldown), []string{"spec", "cooldownPeriod"}},
		{int64(t.Cooldown), []string{"spec", "initialCooldownPeriod"}},
		{int64(2), []string{"spec", "pollingInterval"}},
	} {
		if err := unstructured.SetNestedField(object.Object, edit.value, edit.path...); err != nil {
			return fmt.Errorf("deploy/keda/scaledobject.yaml: %w", err)
		}
	}
	return nil
}
