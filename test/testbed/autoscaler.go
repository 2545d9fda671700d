package testbed

import (
	"context"
	"fmt"
	"os"
	"strings"

	"gpu-node-provider/test/testbed/process"
)

// autoscalerFlags cut waiting times, so that a round takes minutes: a loop every
// 2 s for 10 s, a scale-down after 10 s for 10 min, and 5 s for 5 min until a node is
// looked at again whose Pods had no other place. What has no flag stays, such as the
// 30 s for which a new Pod with a GPU waits.
var autoscalerFlags = []string{
	"--cloud-provider=externalgrpc", "--leader-elect=false", "--namespace=kube-system",
	"--scan-interval=2s", "--scale-down-delay-after-add=5s", "--scale-down-unneeded-time=10s", "--scale-down-unready-time=1m",
	"--unremovable-node-recheck-timeout=5s",
	"--initial-node-group-backoff-duration=20s", "--expander=price,least-waste", "--v=4", "--stderrthreshold=info",
}

// StartAutoscaler starts Cluster Autoscaler, again perhaps.
func (b *Bed) StartAutoscaler(ctx context.Context) error {
	if err := os.WriteFile(b.file("cloud-config"), []byte(fmt.Sprintf("address: %q\ngrpc_timeout: 5s\n%s", b.grpc, b.clientFields())), 0o600); err != nil {
		return err
	}
	ports, err := process.FreePorts(1)
	if err != nil {
		return err
	}
	b.metrics = fmt.Sprintf("127.0.0.1:%d", ports[0])
	args := append([]string{"--cloud-config=" + b.file("cloud-config"), "--kubeconfig=" + b.file("autoscaler.conf"), "--address=" + b.metrics}, autoscalerFlags...)
	b.autoscaler, err = process.Start(process.Spec{
		Name: "autoscaler", Path: b.binaries.autoscaler, Args: append(args, b.AutoscalerFlags...), LogDir: b.Logs(), Append: true,
	})
	if err != nil {
		return err
	}
	return b.autoscaler.Ready(ctx, startTimeout, func(ctx context.Context) error {
		_, err := fetch(ctx, "http://"+b.metrics+"/metrics")
		return err
	})
}

// KillAutoscaler ends it as a crash would.
func (b *Bed) KillAutoscaler() { b.autoscaler.Kill() }

// Loops is what Cluster Autoscaler's metrics say of its main loop.
type Loops struct {
	Count   int
	Seconds float64 // of all together
}

// Loops reads the metrics.
func (b *Bed) Loops(ctx context.Context) (l Loops, err error) {
	text, err := fetch(ctx, "http://"+b.metrics+"/metrics")
	if err != nil {
		return l, err
	}
	for line := range strings.Lines(string(text)) {
		_, _ = fmt.Sscanf(line, `cluster_autoscaler_function_duration_seconds_sum{function="main"} %f`, &l.Seconds) // most lines are others
		_, _ = fmt.Sscanf(line, `cluster_autoscaler_function_duration_seconds_count{function="main"} %d`, &l.Count)
	}
	return l, nil
}
