package nodegroup

import (
	"time"

	"gpu-node-provider/provider/config"
)

// Overrides are the autoscaling options that a group sets itself; a nil field keeps
// Cluster Autoscaler's flag.
type Overrides struct {
	UtilizationThreshold, GPUUtilizationThreshold   *float64
	UnneededTime, UnreadyTime, MaxNodeProvisionTime *time.Duration
	IgnoreDaemonSets                                *bool
}

// Overrides returns the group's own autoscaling options; false when it has none.
func (g *Group) Overrides() (Overrides, bool) {
	s := g.ScaleDown
	return Overrides{
		UtilizationThreshold:    s.UtilizationThreshold,
		GPUUtilizationThreshold: s.GPUUtilizationThreshold,
		UnneededTime:            duration(s.UnneededTime),
		UnreadyTime:             duration(s.UnreadyTime),
		MaxNodeProvisionTime:    duration(s.MaxNodeProvisionTime),
		IgnoreDaemonSets:        s.IgnoreDaemonSets,
	}, !s.Empty()
}

func duration(d *config.Duration) *time.Duration {
	if d == nil {
		return nil
	}
	return &d.Duration
}
