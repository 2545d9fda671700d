package provider

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"gpu-node-provider/cloud"
	"gpu-node-provider/provider/nodegroup"
)

const namespace = "gpu_node_provider"

// metrics are counters of what happened; sizes are collected from the snapshot
// when somebody scrapes, so that they cannot disagree with it. Labels are
// bounded: groups, quotas and words of this package, never nodes or Pods.
type metrics struct {
	asked, granted, refusedNodes *prometheus.CounterVec
	cancelled, terminated        *prometheus.CounterVec
	refused                      *prometheus.CounterVec
	absorbed, unavoidable        *prometheus.CounterVec
	refreshErrors                *prometheus.CounterVec
	reloads                      *prometheus.CounterVec
	outside                      *prometheus.CounterVec
	launchFailures, notBought    *prometheus.CounterVec
	reloadFailed                 prometheus.Gauge
}

func newMetrics() *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	}
	return &metrics{
		asked:          counter("increase_nodes_asked_total", "Nodes requested by IncreaseSize.", "node_group"),
		granted:        counter("increase_nodes_granted_total", "Nodes granted of those requested.", "node_group"),
		refusedNodes:   counter("increase_nodes_refused_total", "Nodes refused of those requested, because of a limit.", "node_group"),
		cancelled:      counter("placeholders_cancelled_total", "Placeholders cancelled before an instance launched.", "node_group"),
		terminated:     counter("instances_terminated_total", "Instances whose termination the cloud has confirmed.", "node_group"),
		refused:        counter("deletions_refused_total", "Instances whose deletion was refused to keep unsaved training.", "node_group"),
		absorbed:       counter("increases_absorbed_total", "IncreaseSize calls answered with capacity in flight for which Cluster Autoscaler had no open request.", "node_group"),
		unavoidable:    counter("unavoidable_duplicates_total", "Increases while capacity that Cluster Autoscaler had given up on was in flight in another group.", "reason"),
		outside:        counter("capacity_changed_outside_total", "Changes of a group's target that this provider did not make.", "node_group"),
		notBought:      counter("increases_not_bought_total", "IncreaseSize calls answered OK without buying, since other groups had used up a shared limit.", "node_group"),
		launchFailures: counter("launch_failures_total", "Launches that failed in the cloud, by its reason.", "node_group", "reason"),
		refreshErrors:  counter("refresh_errors_total", "Failed reads of the cloud, by class of the error.", "class"),
		reloads:        counter("config_reloads_total", "Changes of the node group file, by outcome.", "outcome"),
		reloadFailed: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Name: "config_reload_failed",
			Help: "1 while the node group file on disk is not in effect.",
		}),
	}
}

// register adds the metrics, and the sizes of the server's snapshot, to a registry; r may be nil.
func (m *metrics) register(r prometheus.Registerer, s *Server) {
	if r != nil {
		r.MustRegister(m.asked, m.granted, m.refusedNodes, m.cancelled, m.terminated, m.refused,
			m.absorbed, m.unavoidable, m.refreshErrors, m.reloads, m.reloadFailed, m.outside, m.launchFailures, m.notBought, sizes{s})
	}
}

// groups starts the counters of all groups at zero, so that the first event of
// one has a rate.
func (m *metrics) groups(c *nodegroup.Catalogue) {
	for _, g := range c.All() {
		for _, v := range []*prometheus.CounterVec{m.asked, m.granted, m.refusedNodes, m.cancelled, m.terminated, m.refused, m.absorbed, m.notBought, m.outside} {
			v.WithLabelValues(g.ID)
		}
	}
}

func (m *metrics) increase(group string, asked, granted int) {
	m.asked.WithLabelValues(group).Add(float64(asked))
	m.granted.WithLabelValues(group).Add(float64(granted))
	m.refusedNodes.WithLabelValues(group).Add(float64(asked - granted))
}

func (m *metrics) refreshFailed(err error) {
	class := "other"
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		class = "deadline"
	case errors.Is(err, cloud.ErrThrottled):
		class = "throttled"
	case errors.Is(err, cloud.ErrDenied):
		class = "denied"
	case errors.Is(err, cloud.ErrUnavailable):
		class = "unavailable"
	}
	m.refreshErrors.WithLabelValues(class).Inc()
}

func (m *metrics) reloaded(err error) {
	if err != nil {
		m.reloads.WithLabelValues("rejected").Inc()
		m.reloadFailed.Set(1)
		return
	}
	m.reloads.WithLabelValues("applied").Inc()
	m.reloadFailed.Set(0)
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
}

var (
	descTarget    = desc("node_group_target_size", "Target size in nodes, placeholders included.", "node_group")
	descMax       = desc("node_group_effective_max_size", "Size up to which the group may grow now.", "node_group")
	descInstances = desc("node_group_instances", "Instances by state.", "node_group", "state")
	descForgotten = desc("node_group_forgotten_capacity", "Capacity in flight for which Cluster Autoscaler has no open scale-up request.", "node_group")
	descUsed      = desc("quota_used", "Use of a quota, in its resource.", "quota", "resource")
	descLimit     = desc("quota_limit", "Limit of a quota, in its resource.", "quota", "resource")
	descAge       = desc("snapshot_age_seconds", "Time since the last full read of the cloud.")
)

// sizes collects what the snapshot says.
type sizes struct{ s *Server }

func (c sizes) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descTarget, descMax, descInstances, descForgotten, descUsed, descLimit, descAge} {
		ch <- d
	}
}

func (c sizes) Collect(ch chan<- prometheus.Metric) {
	now := c.s.current.Load()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, g := range now.order {
		gauge(descTarget, float64(g.state.Target), g.ID)
		gauge(descMax, float64(g.max), g.ID)
		gauge(descForgotten, float64(g.unrequested), g.ID)
		for state, n := range g.count() {
			gauge(descInstances, float64(n), g.ID, state)
		}
	}
	for _, q := range c.s.ledger.Usage() {
		gauge(descUsed, q.Used, q.Name, q.Resource)
		gauge(descLimit, q.Limit, q.Name, q.Resource)
	}
	gauge(descAge, c.s.now().Sub(now.taken).Seconds())
}

// count counts instances by what a person would call their state.
func (g *groupView) count() map[string]int {
	n := map[string]int{"running": 0, "creating": 0, "deleting": 0, "placeholder": 0, "failed": 0}
	for _, i := range g.state.Instances {
		switch {
		case i.Error != nil:
			n["failed"]++
		case i.Placeholder:
			n["placeholder"]++
		default:
			n[i.State.String()]++
		}
	}
	return n
}
