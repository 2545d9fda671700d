// Command demo tells the acceptance round of the article on the terminal, as it
// happens, on a real control plane with KEDA, Redis and trainers that are real
// processes: one line a change, and the acceptance table at the end. `make demo`
// builds what it needs.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"gpu-node-provider/test/testbed"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := demo(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		stop()
		os.Exit(1)
	}
}

const accelerator = "nvidia-tesla-t4"

func demo(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "gpu-node-provider-demo-")
	if err != nil {
		return err
	}
	who := "its stand-in, test/autoscaler"
	if !testbed.StandIn() {
		who = os.Getenv(testbed.AutoscalerVariable)
	}
	fmt.Printf("Starting Kubernetes, KEDA, Redis, the provider and Cluster Autoscaler (%s); logs are in %s/logs\n", who, dir)
	bed, err := testbed.Start(ctx, testbed.Options{Dir: dir, Config: testbed.Config{
		Simulated:  "launchDelay: 2s, bootDelay: 8s, devicePluginDelay: 3s",
		NodeGroups: []string{testbed.Pool("t4", accelerator, 4, "surge: {max: 2, window: 15s}")},
	}})
	defer bed.Stop()
	if err != nil {
		return err
	}
	fmt.Printf("Look at it meanwhile: export KUBECONFIG=%s; kubectl get nodes -l accelerator=%s -w\n", bed.Cluster.Kubeconfig, accelerator)
	fmt.Printf("                      bin/gpu-node-provider status --watch --address %s\n\n", bed.HTTP())
	bed.Watch.Tell(0, func(line string) { fmt.Println(line) })
	rows := bed.Play(ctx, testbed.Round{
		Trainers: testbed.Trainers{Name: "train-worker", Queue: "train:jobs", Accelerator: accelerator, MaxReplicas: 4, Cooldown: 15, LeaseSeconds: 10},
		Pool:     "t4", PoolMax: 4, Jobs: testbed.Jobs("job", 3, 30, 0.5),
	})
	bed.Watch.Tell(0, nil)
	fmt.Printf("\n%s", testbed.Table(rows))
	return testbed.Passed(rows)
}
