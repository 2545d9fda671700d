package controlplane

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ManagedByKwok is the label key of Nodes that kwok keeps Ready and whose Pods
// it pretends to run.
const ManagedByKwok = "kwok"

// insecureClient asks health endpoints whose certificates their servers make
// themselves at each start.
var insecureClient = &http.Client{Transport: &http.Transport{
	TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // loopback, health only
	DisableKeepAlives: true,
}}

func (c *Cluster) controllers(ctx context.Context) error {
	manager, err := c.run("kube-controller-manager", "kubernetes/kube-controller-manager", nil,
		"--kubeconfig="+c.file("manager.conf"), "--authentication-kubeconfig="+c.file("manager.conf"), "--authorization-kubeconfig="+c.file("manager.conf"),
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.ports.manager), "--cert-dir="+filepath.Join(c.Dir, "manager"),
		"--leader-elect=false", "--use-service-account-credentials=true",
		"--service-account-private-key-file="+c.file("service-accounts.key"), "--root-ca-file="+c.file("ca.crt"),
		// There is no network to manage, and no cloud.
		"--controllers=*,-node-ipam-controller,-node-route-controller,-service-lb-controller",
		// A third of the usual period, so that a round takes less time.
		"--horizontal-pod-autoscaler-sync-period=5s",
		"--v=1")
	if err != nil {
		return err
	}
	scheduler, err := c.run("kube-scheduler", "kubernetes/kube-scheduler", nil,
		"--kubeconfig="+c.file("scheduler.conf"), "--authentication-kubeconfig="+c.file("scheduler.conf"), "--authorization-kubeconfig="+c.file("scheduler.conf"),
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.ports.scheduler), "--cert-dir="+filepath.Join(c.Dir, "scheduler"),
		"--leader-elect=false", "--v=1")
	if err != nil {
		return err
	}
	if err := manager.Ready(ctx, startTimeout, func(ctx context.Context) error {
		return answers(ctx, insecureClient, fmt.Sprintf("https://127.0.0.1:%d/healthz", c.ports.manager))
	}); err != nil {
		return err
	}
	if err := scheduler.Ready(ctx, startTimeout, func(ctx context.Context) error {
		return answers(ctx, insecureClient, fmt.Sprintf("https://127.0.0.1:%d/readyz", c.ports.scheduler))
	}); err != nil {
		return err
	}
	return manager.Ready(ctx, startTimeout, func(ctx context.Context) error {
		_, err := c.Client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// kwok starts kwok and waits until the control plane's Node is Ready.
func (c *Cluster) kwok(ctx context.Context) error {
	args := []string{
		"--kubeconfig=" + c.Kubeconfig, "--manage-nodes-with-label-selector=" + ManagedByKwok,
		"--node-lease-duration-seconds=40", "--node-ip=127.0.0.1", fmt.Sprintf("--server-address=127.0.0.1:%d", c.ports.kwok),
	}
	for _, stage := range []string{
		"node/fast/node-initialize", "node/heartbeat-with-lease/node-heartbeat-with-lease",
		"pod/fast/pod-ready", "pod/fast/pod-complete", "pod/fast/pod-delete",
	} {
		args = append(args, "--config="+filepath.Join(c.Binaries, "kwok", "stages", stage+".yaml"))
	}
	p, err := c.run("kwok", "kwok/kwok", nil, args...)
	if err != nil {
		return err
	}
	if err := c.createNode(ctx); err != nil {
		return err
	}
	return p.Ready(ctx, startTimeout, func(ctx context.Context) error {
		node, err := c.Client.CoreV1().Nodes().Get(ctx, controlPlane, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("node %s is not Ready", controlPlane)
	})
}

const controlPlane = "control-plane"

func (c *Cluster) createNode(ctx context.Context) error {
	resources := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("16Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	_, err := c.Client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: controlPlane, Labels: map[string]string{
			ManagedByKwok: "", "node-role.kubernetes.io/control-plane": "",
			corev1.LabelHostname: controlPlane, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		}},
		Spec:   corev1.NodeSpec{Taints: []corev1.Taint{{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{Capacity: resources, Allocatable: resources},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating node %s: %w", controlPlane, err)
	}
	return nil
}
