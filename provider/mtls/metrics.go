package mtls

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// Reasons of rejected calls: metric label values, so the set is fixed.
const (
	refusedNotListed     = "not_listed"     // a valid certificate without an allowed name
	refusedNoCertificate = "no_certificate" // a connection without TLS: the server is misconfigured
)

type metrics struct {
	reloadErrors      prometheus.Counter
	reloadFailed      prometheus.Gauge
	certExpiry        prometheus.Gauge
	clientCAExpiry    prometheus.Gauge
	handshakeFailures *prometheus.CounterVec
	clientsRefused    *prometheus.CounterVec
}

func newMetrics() *metrics {
	const namespace, subsystem = "gpu_node_provider", "tls"
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help})
	}
	m := &metrics{
		reloadErrors: prometheus.NewCounter(counter("reload_errors_total",
			"Changes of the TLS files rejected because the files are unreadable or invalid.")),
		reloadFailed: gauge("reload_failed",
			"1 while the TLS files on disk are invalid and older ones are in use."),
		certExpiry: gauge("certificate_expiry_timestamp_seconds",
			"When the server certificate in use, or an intermediate sent with it, expires."),
		clientCAExpiry: gauge("client_ca_expiry_timestamp_seconds",
			"When the last certificate of the client CA file in use expires; no client can connect after it."),
		handshakeFailures: prometheus.NewCounterVec(counter("handshake_failures_total",
			"TLS handshakes that failed, by reason."), []string{"reason"}),
		clientsRefused: prometheus.NewCounterVec(counter("clients_refused_total",
			"Calls rejected because of the client's identity, by reason."), []string{"reason"}),
	}
	// rate() misses the first event of a series that did not exist before it.
	for _, reason := range failureReasons {
		m.handshakeFailures.WithLabelValues(reason)
	}
	for _, reason := range []string{refusedNotListed, refusedNoCertificate} {
		m.clientsRefused.WithLabelValues(reason)
	}
	return m
}

func (m *metrics) register(registerer prometheus.Registerer) error {
	if registerer == nil {
		return nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{
		m.reloadErrors, m.reloadFailed, m.certExpiry, m.clientCAExpiry, m.handshakeFailures, m.clientsRefused,
	} {
		errs = append(errs, registerer.Register(c))
	}
	return errors.Join(errs...)
}
