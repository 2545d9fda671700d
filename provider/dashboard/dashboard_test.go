package dashboard

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"gpu-node-provider/provider/report"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var full = report.Provider{
	Time:     time.Date(2026, 7, 1, 12, 0, 1, 0, time.UTC),
	Snapshot: time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC),
	GPULabel: "accelerator",
	NodeGroups: []report.NodeGroup{{ID: "t4", MaxSize: 4, EffectiveMax: 2, Target: 1, Failed: 1, Limit: "quota gpus: 2 of 2", Instances: []report.Instance{
		{ID: "simulated:///t4/p-1", State: "creating", Placeholder: true, Error: "Other: <none>"},
	}}},
	Quotas: []report.Quota{{Name: "gpus", Resource: "nvidia.com/gpu", Used: 2, Limit: 2, Source: "file"}},
}

// started is a provider that has read the cloud, changed by edits.
func started(t *testing.T, edits ...func(*Options)) *httptest.Server {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gpu_node_provider_test"}, func() float64 { return 7 }))
	o := Options{
		Report:   func() (report.Provider, error) { return full, nil },
		Ready:    func() error { return nil },
		Gatherer: registry,
	}
	for _, edit := range edits {
		edit(&o)
	}
	s := httptest.NewServer(Handler(o))
	t.Cleanup(s.Close)
	return s
}

// starting is a provider that has not read the cloud.
func starting(o *Options) {
	o.Report = func() (report.Provider, error) {
		return report.Provider{}, errors.New("the cloud has not been read yet")
	}
	o.Ready = func() error { return errors.New("the cloud has not been read yet") }
}

// standingBy is a replica that does not lead.
func standingBy(o *Options) {
	o.Report = func() (report.Provider, error) { return report.Provider{}, StandsBy("ask p-1") }
}

func TestPaths(t *testing.T) {
	for name, c := range map[string]struct {
		request string
		edits   []func(*Options)
		code    int
		body    string // part of it
	}{
		"alive":                   {"GET /healthz", nil, http.StatusOK, "ok\n"},
		"alive before it reads":   {"GET /healthz", []func(*Options){starting}, http.StatusOK, "ok\n"}, // a restart would not help
		"ready":                   {"GET /readyz", nil, http.StatusOK, "ok\n"},
		"not ready":               {"GET /readyz", []func(*Options){starting}, http.StatusServiceUnavailable, "the cloud has not been read yet\n"},
		"metrics":                 {"GET /metrics", nil, http.StatusOK, "\ngpu_node_provider_test 7\n"},
		"metrics while it starts": {"GET /metrics", []func(*Options){starting}, http.StatusOK, "\ngpu_node_provider_test 7\n"},
		"no report yet":           {"GET /report.json", []func(*Options){starting}, http.StatusServiceUnavailable, "the cloud has not been read yet\n"},
		"no report here":          {"GET /report.json", []func(*Options){standingBy}, http.StatusMisdirectedRequest, "ask p-1\n"},
		"HEAD":                    {"HEAD /readyz", nil, http.StatusOK, ""},
		"only to look":            {"POST /report.json", nil, http.StatusMethodNotAllowed, ""},
		"nothing to end":          {"DELETE /healthz", nil, http.StatusMethodNotAllowed, ""},
		"another path":            {"GET /report", nil, http.StatusNotFound, ""},
	} {
		t.Run(name, func(t *testing.T) {
			method, path, _ := strings.Cut(c.request, " ")
			request, err := http.NewRequestWithContext(t.Context(), method, started(t, c.edits...).URL+path, nil)
			require.NoError(t, err)
			response, err := http.DefaultClient.Do(request)
			require.NoError(t, err)
			defer func() { _ = response.Body.Close() }()
			body, err := io.ReadAll(response.Body)
			require.NoError(t, err)
			require.Equal(t, c.code, response.StatusCode)
			require.Contains(t, string(body), c.body)
		})
	}
}

// TestReport: status and scripts read back what the provider said, and the
// lists are lists when they are empty.
func TestReport(t *testing.T) {
	for name, want := range map[string]report.Provider{
		"full":  full,
		"empty": {Time: full.Time, Snapshot: full.Snapshot, NodeGroups: []report.NodeGroup{}, Quotas: []report.Quota{}},
	} {
		t.Run(name, func(t *testing.T) {
			s := started(t, func(o *Options) { o.Report = func() (report.Provider, error) { return want, nil } })
			response, err := http.Get(s.URL + ReportPath)
			require.NoError(t, err)
			defer func() { _ = response.Body.Close() }()
			require.Equal(t, http.StatusOK, response.StatusCode)
			require.Equal(t, "application/json", response.Header.Get("Content-Type"))
			var got report.Provider
			require.NoError(t, json.NewDecoder(response.Body).Decode(&got))
			require.Equal(t, want, got)
		})
	}
}
