package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"sigs.k8s.io/yaml"
)

// options are the flags, with the defaults of the real one.
type options struct {
	cloudConfig, kubeconfig, address, namespace, statusName string

	scanInterval, delayAfterAdd, delayAfterFailure time.Duration
	deleteDelayAfterTaint, maxPodEviction          time.Duration
	unremovableRecheck, initialBackoff             time.Duration
	maxGraceful                                    int
	skipLocalStorage, cordon, writeStatus          bool

	group groupOptions // where a group has none of its own
}

// groupOptions can differ from group to group.
type groupOptions struct {
	utilization, gpuUtilization           float64
	unneeded, unready, provision, startup time.Duration
	ignoreDaemonSets                      bool
}

func parseOptions(args []string, out io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("autoscaler", flag.ContinueOnError)
	f.SetOutput(out)
	provider := f.String("cloud-provider", "", "has to be externalgrpc")
	f.StringVar(&o.cloudConfig, "cloud-config", "", "`file` with address, cert, key, cacert and grpc_timeout of the server")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "`file`; without it the cluster that this runs in")
	f.StringVar(&o.address, "address", ":8085", "serves /metrics and /health-check")
	f.StringVar(&o.namespace, "namespace", "kube-system", "of the status config map")
	f.StringVar(&o.statusName, "status-config-map-name", "cluster-autoscaler-status", "its name")
	f.BoolVar(&o.writeStatus, "write-status-configmap", true, "whether there is one; without it there is no Cleanup either")
	f.DurationVar(&o.scanInterval, "scan-interval", 10*time.Second, "between loops")
	f.DurationVar(&o.delayAfterAdd, "scale-down-delay-after-add", 10*time.Minute, "no scale-down after a scale-up")
	f.DurationVar(&o.delayAfterFailure, "scale-down-delay-after-failure", 3*time.Minute, "no scale-down after nodes could not be tainted")
	f.DurationVar(&o.deleteDelayAfterTaint, "node-delete-delay-after-taint", 5*time.Second, "between taint and drain")
	f.DurationVar(&o.maxPodEviction, "max-pod-eviction-time", 2*time.Minute, "how long evictions are tried again")
	f.DurationVar(&o.unremovableRecheck, "unremovable-node-recheck-timeout", 5*time.Minute, "how long a node that cannot be emptied is not looked at")
	f.DurationVar(&o.initialBackoff, "initial-node-group-backoff-duration", 5*time.Minute, "after the first failed scale-up")
	f.IntVar(&o.maxGraceful, "max-graceful-termination-sec", 600, "upper limit of a pod's grace period")
	f.BoolVar(&o.skipLocalStorage, "skip-nodes-with-local-storage", true, "hostPath and emptyDir keep a node")
	f.BoolVar(&o.cordon, "cordon-node-before-terminating", true, "cordon with the taint")
	f.DurationVar(&o.group.unneeded, "scale-down-unneeded-time", 10*time.Minute, "before an unneeded node goes")
	f.DurationVar(&o.group.unready, "scale-down-unready-time", 20*time.Minute, "before an unneeded unready node goes")
	f.DurationVar(&o.group.provision, "max-node-provision-time", 15*time.Minute, "before an instance without a node goes")
	f.DurationVar(&o.group.startup, "max-node-startup-time", 15*time.Minute, "before a node that never was ready counts as unready")
	f.Float64Var(&o.group.utilization, "scale-down-utilization-threshold", 0.5, "of cpu or memory, at or below which a node may go")
	f.Float64Var(&o.group.gpuUtilization, "scale-down-gpu-utilization-threshold", 0.5, "the same for GPUs")
	f.Bool("leader-elect", true, "ignored: there is no leader election")
	for _, name := range []string{"expander", "v", "stderrthreshold"} {
		f.String(name, "", "ignored")
	}
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected arguments %q", f.Args())
	}
	if *provider != "externalgrpc" {
		return o, fmt.Errorf("--cloud-provider=%s: only externalgrpc is known here", *provider)
	}
	return o, nil
}

// cloudConfig is the file of --cloud-config.
type cloudConfig struct {
	Address     string `json:"address"`
	Cert        string `json:"cert"`
	Key         string `json:"key"`
	Cacert      string `json:"cacert"`
	GRPCTimeout string `json:"grpc_timeout"`

	timeout time.Duration
}

func readCloudConfig(path string) (cloudConfig, error) {
	c := cloudConfig{timeout: 5 * time.Second}
	raw, err := os.ReadFile(path)
	if err != nil {
		return c, fmt.Errorf("cloud config: %w", err)
	}
	if err := yaml.Unmarshal(raw, &c); err != nil {
		return c, fmt.Errorf("cloud config %s: %w", path, err)
	}
	if c.Address == "" {
		return c, fmt.Errorf("cloud config %s: no address", path)
	}
	if c.GRPCTimeout != "" {
		if c.timeout, err = time.ParseDuration(c.GRPCTimeout); err != nil {
			return c, fmt.Errorf("cloud config %s: grpc_timeout: %w", path, err)
		}
	}
	return c, nil
}
