package aws

import "github.com/prometheus/client_golang/prometheus"

// metrics are counters of what should stay rare.
type metrics struct {
	// races counts instances that arrived while their placeholder was given up.
	races prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{races: prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "gpu_node_provider", Subsystem: "aws", Name: "placeholder_race_total",
		Help: "Instances that launched while their placeholder was being cancelled, for which the desired capacity was raised again.",
	})}
	if r != nil {
		r.MustRegister(m.races)
	}
	return m
}
