// Package dashboard serves the HTTP endpoints of a running provider: health,
// readiness, metrics, and the report that the status command prints.
//
// It is read-only, and knows the state only as a report.
package dashboard

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"gpu-node-provider/provider/report"
)

// ReportPath is the path of the report in JSON.
const ReportPath = "/report.json"

// StandsBy is the error of a standby replica, which has no report, with the name of the
// leader. Handler answers it with status 421, Misdirected Request.
type StandsBy string

func (s StandsBy) Error() string { return string(s) }

// Options configures Handler. All fields are required.
type Options struct {
	// Report returns the state; an error of type StandsBy on a standby replica.
	Report func() (report.Provider, error)
	// Ready returns nil when this replica is ready, else an error that names what is
	// missing.
	Ready    func() error
	Gatherer prometheus.Gatherer
}

// Handler serves /healthz, /readyz, /metrics and /report.json. It answers 503 while the
// replica is not ready or has no report.
func Handler(o Options) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n")) // fails only when the client has disconnected
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := o.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(o.Gatherer, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET "+ReportPath, func(w http.ResponseWriter, _ *http.Request) {
		state, err := o.Report()
		var by StandsBy
		if errors.As(err, &by) {
			http.Error(w, by.Error(), http.StatusMisdirectedRequest)
			return
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(state)
	})
	return mux
}
