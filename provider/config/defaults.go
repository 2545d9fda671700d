package config

import (
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// missingSize marks a maxSize that the file does not set. No default is safe,
// since it bounds the cost of the group.
const missingSize = math.MinInt

// defaulter sets the defaults of a section before its values are decoded, so that
// a zero in the file is not mistaken for a missing value.
type defaulter interface{ setDefaults() }

func (c *Config) setDefaults() {
	c.Server = Server{Address: "127.0.0.1:8086", HTTPAddress: "127.0.0.1:8087"}
	c.GPULabel = "accelerator"
	c.Checkpoint = Checkpoint{
		Mode:         Enforce,
		PodSelector:  "gpu-node-provider.io/checkpoint=required",
		KeyPrefix:    "checkpoint",
		MaxAge:       Duration{20 * time.Minute},
		AbandonAfter: Duration{time.Hour},
		AskAfter:     Duration{10 * time.Minute},
		AskEvery:     Duration{30 * time.Minute},
		// Taints of aws-node-termination-handler on a node that AWS is about to reclaim.
		AskOnTaints: []string{
			"aws-node-termination-handler/asg-lifecycle-termination",
			"aws-node-termination-handler/rebalance-recommendation",
			"aws-node-termination-handler/scheduled-maintenance",
			"aws-node-termination-handler/spot-itn",
		},
	}
}

func (k *Kubernetes) setDefaults() {
	k.Namespace = "gpu-node-provider"
	k.LeaderElection = new(true)
}

func (a *AWS) setDefaults() {
	a.RefreshInterval = Duration{30 * time.Second}
	a.ScaleInProtection = ScaleInManage
}

func (s *Simulated) setDefaults() {
	s.LaunchDelay = Duration{time.Second}
	s.BootDelay = Duration{30 * time.Second}
	s.DevicePluginDelay = Duration{5 * time.Second}
	s.TerminateDelay = Duration{2 * time.Second}
	s.LaunchErrors.Code = "InsufficientInstanceCapacity"
	s.Heartbeat = new(true)
}

func (e *EmbeddedRedis) setDefaults() { e.Address = "127.0.0.1:6379" }

func (q *Quota) setDefaults() { q.NodeGroups = []string{"*"} }

func (g *NodeGroup) setDefaults() {
	g.MaxSize = missingSize
	g.OS = "linux"
	g.Arch = "amd64"
}

// resolve sets defaults that depend on other sections.
func (c *Config) resolve() {
	if c.Cloud.AWS != nil && c.Kubernetes == nil {
		c.Kubernetes = &Kubernetes{}
		c.Kubernetes.setDefaults()
	}
	for i := range c.NodeGroups {
		g := &c.NodeGroups[i]
		if g.Retired && g.MaxSize == missingSize {
			g.MaxSize = 0
		}
		if c.Cloud.AWS != nil && g.Region == "" {
			g.Region = c.Cloud.AWS.Region
		}
		if c.Cloud.Simulated != nil && len(g.Capacity) > 0 {
			g.completeCapacity()
		}
	}
}

// completeCapacity adds pods and ephemeral-storage where the file leaves them out,
// since without them no pod fits the template Node. On AWS they come from the
// instance type.
func (g *NodeGroup) completeCapacity() {
	for name, amount := range map[corev1.ResourceName]string{
		corev1.ResourcePods:             "110", // the kubelet's default of --max-pods
		corev1.ResourceEphemeralStorage: "100Gi",
	} {
		if _, given := g.Capacity[name]; !given {
			g.Capacity[name] = resource.MustParse(amount)
		}
	}
}
