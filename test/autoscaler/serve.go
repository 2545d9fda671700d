package main

import (
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// How long a process may go without a loop, without one that ended well, and at its start.
const (
	maxInactivity = 10 * time.Minute
	maxFailing    = 15 * time.Minute
	maxStartup    = 20 * time.Minute
)

// loopWatch tells others how the loops go.
type loopWatch struct {
	registry *prometheus.Registry
	duration *prometheus.HistogramVec

	mu           sync.Mutex
	active, well time.Time
	startedUp    bool
}

func newLoopWatch() *loopWatch {
	w := &loopWatch{
		registry: prometheus.NewRegistry(),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "cluster_autoscaler", Name: "function_duration_seconds",
			Help:    "Time taken by various parts of CA main loop.",
			Buckets: prometheus.ExponentialBucketsRange(0.1, 1800, 150),
		}, []string{"function"}),
		active: time.Now(), well: time.Now(),
	}
	w.registry.MustRegister(w.duration)
	return w
}

func (w *loopWatch) started() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.active = time.Now()
}

func (w *loopWatch) ended(start time.Time, err error) {
	w.duration.WithLabelValues("main").Observe(time.Since(start).Seconds())
	w.mu.Lock()
	defer w.mu.Unlock()
	w.startedUp = true
	if err == nil {
		w.well = start
	}
}

func (w *loopWatch) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(w.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/health-check", func(rw http.ResponseWriter, _ *http.Request) {
		w.mu.Lock()
		defer w.mu.Unlock()
		inactivity, failing := maxInactivity, maxFailing
		if !w.startedUp {
			inactivity, failing = maxStartup, maxStartup
		}
		if time.Since(w.active) > inactivity || time.Since(w.well) > failing {
			http.Error(rw, "the loop hangs or fails", http.StatusInternalServerError)
			return
		}
		_, _ = rw.Write([]byte("OK"))
	})
	return mux
}
