// Package dashboard is what people and machines read of a running provider over
// HTTP: health, readiness, metrics, and the report that status prints.
//
// It only shows; nothing can be changed through it.
package dashboard

import (
	"encoding/json"
	"errors"
	"net/http"

	"gpu-node-provider/provider/report"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// ReportPath is where the report is served as JSON.
const ReportPath = "/report.json"

// StandsBy is why a replica that does not lead has no report, and who has it. It is
// answered with status 421, Misdirected Request.
type StandsBy string

func (s StandsBy) Error() string { return string(s) }

// Options say what is shown.
type Options struct {
	// Report tells the state, or why there is none here.
	Report func() (report.Provider, error)
	// Ready is nil once this replica does its part, and says what is missing
	// before that.
	Ready    func() error
	Gatherer prometheus.Gatherer
}

// Handler serves /healthz, /readyz, /metrics and /report.json.
func Handler(o Options) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n")) // nobody is left to tell when this fails
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
