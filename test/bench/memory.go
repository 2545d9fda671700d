package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"gpu-node-provider/provider/cluster"
)

const (
	mostResident = 250 // MiB
	// settleTime is enough for the garbage of the beginning to go back to Linux.
	settleTime = 40 * time.Second
)

// memory measures what a process takes that follows a large cluster.
func memory(ctx context.Context, _ settings) (missed int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	api, err := start(ctx, serveAPIServer)
	if err != nil {
		return 0, err
	}
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	follower := exec.CommandContext(ctx, self, "-serve", serveView, "-api", api.address)
	follower.Stderr, follower.SysProcAttr = os.Stderr, diesWithUs
	out, err := follower.Output()
	if err != nil {
		return 0, err
	}
	var m footprint
	if _, err := fmt.Sscan(string(out), &m.live, &m.resident, &m.peak, &m.synced); err != nil {
		return 0, err
	}
	return row{
		name: "memory of a cluster", ours: fmt.Sprintf("%.0fMiB", m.resident), beside: fmt.Sprintf("%dMiB", mostResident), ratio: m.resident / mostResident, most: 1,
		note: fmt.Sprintf("resident, with %d nodes and %d training pods that change; live heap %.0f MiB; at its most %.0f MiB while it read them, in %.0f s",
			clusterNodes, clusterPods, m.live, m.peak, m.synced),
	}.print(), nil
}

// footprint is memory in MiB.
type footprint struct {
	live, resident, peak float64
	synced               float64 // seconds
}

// followCluster is the child process: it fills a View from an API server, lets it
// settle and prints its footprint.
func followCluster(ctx context.Context, address string) error {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://" + address, QPS: 100, Burst: 200})
	if err != nil {
		return err
	}
	view, err := cluster.New(client, &corev1.ObjectReference{Kind: "Pod", Name: "provider"})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // of the process too
	begin := time.Now()
	go func() { _ = view.Run(ctx) }() // WaitForSync and what is counted tell of a failure
	if err := view.WaitForSync(ctx); err != nil {
		return err
	}
	m := footprint{synced: time.Since(begin).Seconds()}
	<-time.After(settleTime)
	if len(view.Nodes()) != clusterNodes || len(view.PodsOn(nodeName(clusterNodes-1), nil)) != podsPerNode {
		return fmt.Errorf("%d nodes, %d pods on the last", len(view.Nodes()), len(view.PodsOn(nodeName(clusterNodes-1), nil)))
	}
	if m.resident, err = processMiB(os.Getpid(), "VmRSS"); err != nil {
		return err
	}
	if m.peak, err = processMiB(os.Getpid(), "VmHWM"); err != nil {
		return err
	}
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	m.live = float64(s.HeapAlloc) / (1 << 20)
	_, err = fmt.Println(m.live, m.resident, m.peak, m.synced)
	return err
}
