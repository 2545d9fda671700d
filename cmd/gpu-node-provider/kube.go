package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"gpu-node-provider/cloud/logkey"
	"gpu-node-provider/provider/checkpoint"
	"gpu-node-provider/provider/cluster"
	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/guard"
	"gpu-node-provider/provider/nodegroup"
)

// kube holds the parts of a replica that need the Kubernetes API: the view of the cluster,
// and the guard, which holds nodes of training pods, with its record and its store.
type kube struct {
	client kubernetes.Interface
	view   *cluster.View
	store  *checkpoint.Store
	record *checkpoint.Record
	guard  *guard.Guard // runs on the leader only; the webhook of every replica calls it
	log    *zap.Logger
}

// newKube builds the parts without calling the API server or Redis.
func (r *replica) newKube() (*kube, error) {
	c := r.config
	client, err := kubeClient(c.Kubernetes.Kubeconfig)
	if err != nil {
		return nil, err
	}
	k := &kube{client: client, log: r.log}
	if k.view, err = cluster.New(client, self(c.Kubernetes.Namespace)); err != nil {
		return nil, err
	}
	r.parts = append(r.parts, k.view.Run)
	if k.store, err = checkpoint.NewStore(r.redis, c.Checkpoint.KeyPrefix); err != nil {
		return nil, usageError{fmt.Errorf("redis: %w", err)}
	}
	r.closers = append(r.closers, func() { _ = k.store.Close() }) // the process ends
	selector, err := labels.Parse(c.Checkpoint.PodSelector)
	if err != nil {
		return nil, usageError{fmt.Errorf("checkpoint.podSelector: %w", err)}
	}
	k.record = checkpoint.NewRecord(client, c.Kubernetes.Namespace)
	k.guard = guard.New(guard.Options{
		Assessor: &checkpoint.Assessor{
			View: k.view, Record: k.record, Signals: k.store, Selector: selector, GroupLabel: nodegroup.Label, Now: time.Now,
			Policy: func() checkpoint.Policy { return policyOf(r.effective.Load()).Policy },
		},
		View: k.view, Record: k.record, Asker: k.store, GroupLabel: nodegroup.Label,
		Policy: func() guard.Policy { return policyOf(r.effective.Load()) },
		Place:  r.place, Read: r.groupRead,
		Log: r.log, Now: time.Now, Metrics: guard.NewMetrics(r.registry),
	})
	return k, nil
}

// policyOf returns the policy of the guard from a node group file.
func policyOf(file *config.Config) guard.Policy {
	c := file.Checkpoint
	return guard.Policy{
		Policy:  checkpoint.Policy{MaxAge: c.MaxAge.Duration, AbandonAfter: c.AbandonAfter.Duration},
		Observe: c.Mode == config.Observe, AskAfter: c.AskAfter.Duration, AskEvery: c.AskEvery.Duration, AskOnTaints: c.AskOnTaints,
	}
}

// loadRecord reads the record of the training pods on each instance.
func (k *kube) loadRecord(ctx context.Context) error {
	warnings, _ := k.store.Warnings(ctx) // a Redis that does not answer is reported by doctor and by every pass of the guard
	for _, warning := range warnings {
		k.log.Warn("settings of Redis can lose acknowledgements", zap.String(logkey.Reason, warning))
	}
	return k.record.Load(ctx)
}

// Limits of the client, in calls per second. With the default of 5 it would take minutes to
// register the nodes of a large rehearsal.
const (
	kubeQPS   = 100
	kubeBurst = 200
)

// kubeClient returns a client for a kubeconfig, or for the Pod's service account when the
// path is empty.
func kubeClient(kubeconfig string) (kubernetes.Interface, error) {
	c, err := restConfig(kubeconfig)
	if err != nil {
		return nil, usageError{err}
	}
	c.QPS, c.Burst = kubeQPS, kubeBurst
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, usageError{fmt.Errorf("kubernetes: %w", err)}
	}
	return client, nil
}

func restConfig(file string) (*rest.Config, error) {
	if file == "" {
		c, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("kubernetes.kubeconfig: without one the provider uses its Pod's service account, which is missing here: %w", err)
		}
		return c, nil
	}
	c, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, fmt.Errorf("kubernetes.kubeconfig: %w", err)
	}
	return c, nil
}

// self returns the object of Events about the provider as a whole: its Pod, which the
// manifests name through the downward API, else its namespace.
func self(namespace string) *corev1.ObjectReference {
	if pod := os.Getenv("POD_NAME"); pod != "" {
		return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: pod}
	}
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Namespace", Namespace: namespace, Name: namespace}
}
