package guard

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"gpu-node-provider/provider/checkpoint"
	"gpu-node-provider/provider/nodegroup"
	"gpu-node-provider/provider/report"
)

const namespace = "gpu_node_provider"

// Metrics are the guard's. A nil Metrics counts nothing.
type Metrics struct {
	held         *prometheus.GaugeVec
	requests     prometheus.Counter
	bad          prometheus.Counter
	abandonments prometheus.Counter
	losses       prometheus.Counter
	redisErrors  *prometheus.CounterVec
	gpuSeconds   *prometheus.CounterVec
	dollars      *prometheus.CounterVec
}

// NewMetrics registers the guard's metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
	}
	m := &Metrics{
		held:         prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "held_nodes", Help: "Nodes that wait for a training pod's acknowledgement."}, []string{"node_group"}),
		requests:     counter("checkpoint_requests_total", "Checkpoint requests sent to trainers."),
		bad:          counter("bad_acknowledgements_total", "Acknowledgements ignored because they are malformed, oversized, of a wrong type or dated in the future."),
		abandonments: counter("checkpoints_abandoned_total", "Training pods whose node was released without an acknowledgement because they could no longer save."),
		losses:       counter("checkpoints_lost_total", "Training pods whose instance ended, not by a call of this provider, before they acknowledged."),
		redisErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "redis_errors_total", Help: "Failed reads of acknowledgements, by cause.",
		}, []string{"cause"}),
		gpuSeconds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "held_gpu_seconds_total", Help: "GPU-seconds of underused nodes that only a missing acknowledgement kept.",
		}, []string{"node_group"}),
		dollars: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "held_dollars_total", Help: "Price of underused nodes that only a missing acknowledgement kept, by their groups' hourly prices.",
		}, []string{"node_group"}),
	}
	r.MustRegister(m.held, m.requests, m.bad, m.abandonments, m.losses, m.redisErrors, m.gpuSeconds, m.dollars)
	return m
}

func (m *Metrics) holding(holds []report.Hold) {
	if m == nil {
		return
	}
	m.held.Reset()
	for _, h := range holds {
		m.held.WithLabelValues(h.NodeGroup).Inc()
	}
}

func (m *Metrics) cost(p nodegroup.Place, d time.Duration) {
	if m != nil {
		m.gpuSeconds.WithLabelValues(p.Group).Add(float64(p.GPUs) * d.Seconds())
		m.dollars.WithLabelValues(p.Group).Add(p.HourlyPrice * d.Hours())
	}
}

func (m *Metrics) requested() {
	if m != nil {
		m.requests.Inc()
	}
}

func (m *Metrics) badAcknowledgement() {
	if m != nil {
		m.bad.Inc()
	}
}

func (m *Metrics) abandoned() {
	if m != nil {
		m.abandonments.Inc()
	}
}

func (m *Metrics) lost(pods int) {
	if m != nil {
		m.losses.Add(float64(pods))
	}
}

func (m *Metrics) redisFailed(err error) {
	if m != nil {
		m.redisErrors.WithLabelValues(checkpoint.Cause(err)).Inc()
	}
}
