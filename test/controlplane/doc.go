// Package controlplane runs a real Kubernetes control plane on one machine,
// without containers: etcd, kube-apiserver, kube-controller-manager,
// kube-scheduler, kwok, and KEDA's operator and metrics adapter where they are
// wanted. `make controlplane` builds them.
//
// Every cluster has its own ports, folder and certificates, so several run side
// by side. Nodes are not part of it, but for one that stands for the control
// plane itself and carries a taint: Cluster Autoscaler does not act on a cluster
// without any.
package controlplane
