package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"gpu-node-provider/provider/dashboard"
	"gpu-node-provider/provider/report"
)

// stubProvider is the HTTP server of a provider, with the report of the test.
type stubProvider struct {
	address string

	mu       sync.Mutex
	report   report.Provider
	cutOff   int // number of requests that are cut off before an answer
	unready  int // number of requests after these that come before the cloud has been read
	requests int
}

func newStubProvider(t *testing.T, edits ...func(*stubProvider)) *stubProvider {
	t.Helper()
	w := &stubProvider{report: report.Provider{
		GPULabel: "accelerator",
		NodeGroups: []report.NodeGroup{{
			ID: "t4", MinSize: 1, MaxSize: 9, EffectiveMax: 8, Target: 2, Running: 3, Creating: 4, Placeholders: 5, Failed: 6, Deleting: 7, Limit: "quota gpus",
			Instances: []report.Instance{{ID: "simulated:///t4/p-1", State: "creating", Placeholder: true, Error: "Other: no such image"}},
		}},
		Quotas: []report.Quota{{Name: "gpus", Resource: "nvidia.com/gpu", Used: 2.5, Limit: 16, Source: "the file"}},
	}}
	for _, edit := range edits {
		edit(w)
	}
	page := dashboard.Handler(dashboard.Options{Report: w.now, Ready: func() error { return nil }, Gatherer: prometheus.NewRegistry()})
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if w.cut() {
			panic(http.ErrAbortHandler)
		}
		page.ServeHTTP(rw, r)
	}))
	t.Cleanup(s.Close)
	w.address = s.Listener.Addr().String()
	return w
}

func (w *stubProvider) cut() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests++
	w.cutOff--
	return w.cutOff >= 0
}

func (w *stubProvider) now() (report.Provider, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unready--
	w.report.Time, w.report.Snapshot = w.report.Time.Add(time.Second), w.report.Snapshot.Add(time.Second)
	if w.unready >= 0 {
		return report.Provider{}, errors.New("the cloud has not been read yet")
	}
	return w.report, nil
}

// seen waits for n more requests.
func (w *stubProvider) seen(t *testing.T, n int) {
	t.Helper()
	before := w.count()
	eventually(t, "status asks", func() bool { return w.count() >= before+n })
}

func (w *stubProvider) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.requests
}

func (w *stubProvider) change(edit func(*stubProvider)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	edit(w)
}

func (w *stubProvider) status(t *testing.T, args ...string) *program {
	t.Helper()
	return start(t, append([]string{"status", "--address", w.address, "--interval", "5ms"}, args...)...)
}

func TestStatusTable(t *testing.T) {
	w := newStubProvider(t, func(w *stubProvider) { w.report.ReloadError = "maxSize: 4 is below minSize" })
	p := w.status(t)
	require.Zero(t, p.wait(t), "%s", p.stderr.String())
	require.Equal(t, `GROUP   TARGET   RUNNING   BOOTING   WAITING   FAILED   DELETING   MIN   MAX NOW   BOUND BY
t4      2        3         4         5         6        7          1     8         quota gpus

QUOTA   USED   LIMIT   RESOURCE         SOURCE
gpus    2.5    16      nvidia.com/gpu   the file

simulated:///t4/p-1: Other: no such image

The node group file on disk is not in effect: maxSize: 4 is below minSize
`, p.stdout.String())
}

// TestOP02StatusOfFailedLaunches: what is deleted already is shown, the newest first.
func TestOP02StatusOfFailedLaunches(t *testing.T) {
	w := newStubProvider(t, func(w *stubProvider) {
		g := &w.report.NodeGroups[0]
		g.Instances = nil
		at := w.report.Time.Add(time.Second) // the time of the report
		g.LaunchFailures = []report.LaunchFailure{
			{Code: "InsufficientInstanceCapacity", Message: "We currently do not have\nsufficient capacity.", Count: 3, Last: at.Add(-time.Minute)},
			{Code: "Other", Message: "no such image", Count: 1, Last: at.Add(-time.Hour)},
		}
	})
	p := w.status(t)
	require.Zero(t, p.wait(t), "%s", p.stderr.String())
	require.Contains(t, p.stdout.String(), `
GROUP   FAILED LAUNCHES   LAST         CODE                           MESSAGE
t4      3                 1m0s ago     InsufficientInstanceCapacity   We currently do not have sufficient capacity.
t4      1                 1h0m0s ago   Other                          no such image
`)
}

func TestStatusOfARealProvider(t *testing.T) {
	_, _, address := serving(t, file{rest: "quotas: [{name: gpus, resource: nvidia.com/gpu, limit: 2}]"})
	p := start(t, "status", "--address", address, "-o", "json")
	require.Zero(t, p.wait(t), "%s", p.stderr.String())
	var got report.Provider
	require.NoError(t, json.Unmarshal([]byte(p.stdout.String()), &got))
	require.NotZero(t, got.Snapshot)
	require.Equal(t, "accelerator", got.GPULabel)
	require.Equal(t, []string{"t4", "cpu"}, []string{got.NodeGroups[0].ID, got.NodeGroups[1].ID})
	require.Equal(t, []int{4, 2}, []int{got.NodeGroups[0].MaxSize, got.NodeGroups[0].EffectiveMax}, "the quota leaves two of four")

	p = start(t, "status", "--address", address)
	require.Zero(t, p.wait(t))
	require.Regexp(t, `(?m)^t4 +0 .* 2 +quota gpus`, p.stdout.String())
}

// TestStatusJSONIsTheWholeReport: scripts see fields that the table omits.
func TestStatusJSONIsTheWholeReport(t *testing.T) {
	w := newStubProvider(t)
	p := w.status(t, "-o", "json")
	require.Zero(t, p.wait(t))
	var got report.Provider
	require.NoError(t, json.Unmarshal([]byte(p.stdout.String()), &got))
	require.Equal(t, w.report, got)
}

func TestStatusYAML(t *testing.T) {
	w := newStubProvider(t)
	asJSON, asYAML := w.status(t, "-o", "json"), w.status(t, "-o", "yaml")
	require.Zero(t, asJSON.wait(t))
	require.Zero(t, asYAML.wait(t))
	require.True(t, strings.HasPrefix(asYAML.stdout.String(), "gpuLabel: accelerator\n"), asYAML.stdout.String())
	requireSameKeys(t, asJSON.stdout.String(), asYAML.stdout.String())
}

// requireSameKeys requires the keys of JSON in YAML. Their values may differ in times.
func requireSameKeys(t *testing.T, asJSON, asYAML string) {
	t.Helper()
	var want, got any
	require.NoError(t, json.Unmarshal([]byte(asJSON), &want))
	require.Error(t, json.Unmarshal([]byte(asYAML), &got), "JSON is YAML, and hard to read")
	require.NoError(t, yaml.Unmarshal([]byte(asYAML), &got))
	require.NotEmpty(t, keys("", want))
	require.Equal(t, keys("", want), keys("", got))
}

// keys returns the paths of all leaves, in order.
func keys(path string, tree any) (all []string) {
	switch tree := tree.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(tree)) {
			all = append(all, keys(path+"."+key, tree[key])...)
		}
	case []any:
		for i, item := range tree {
			all = append(all, keys(fmt.Sprintf("%s[%d]", path, i), item)...)
		}
	default:
		all = []string{path}
	}
	return all
}

// TestStatusWaits: the process of the provider does not run at first, and then has not read
// the cloud.
func TestStatusWaits(t *testing.T) {
	w := newStubProvider(t, func(w *stubProvider) { w.cutOff, w.unready = 2, 2 })
	p := w.status(t, "--wait", patience.String())
	require.Zero(t, p.wait(t), "%s", p.stderr.String())
	require.Equal(t, 5, w.count())
	require.Contains(t, p.stdout.String(), "\nt4 ")
	require.Empty(t, p.stderr.String(), "what went by is no news")
}

func TestStatusWaitsForAProviderThatStarts(t *testing.T) {
	api := newAPIServer(t)
	address := freePort(t)
	waits := start(t, "status", "--address", address, "--wait", patience.String(), "--interval", "5ms")
	start(t, "serve", "--config", file{server: ports("127.0.0.1:0", address), rest: api.section()}.write(t))
	api.wait(t)
	early := start(t, "status", "--address", address)
	require.Equal(t, exitFailure, early.wait(t))
	require.Equal(t, "the provider on "+address+" answers 503 Service Unavailable: the cluster has not been read yet\n", early.stderr.String())
	require.True(t, waits.running())
	api.answer()
	require.Zero(t, waits.wait(t), "%s", waits.stderr.String())
	require.Contains(t, waits.stdout.String(), "\nt4 ")
}

func TestStatusGivesUp(t *testing.T) {
	unused := freePort(t)
	for name, c := range map[string]struct {
		args  []string
		words string
	}{
		"at once":                    {[]string{"--address", unused}, "no provider answers on " + unused + "; --address must be its server.httpAddress: "},
		"at the limit":               {[]string{"--address", unused, "--wait", "30ms", "--interval", "5ms"}, "no provider answers on " + unused},
		"at the limit, not after it": {[]string{"--address", unused, "--wait", "30ms", "--interval", "1h"}, "no provider answers on " + unused},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, append([]string{"status"}, c.args...)...)
			require.Equal(t, exitFailure, p.wait(t))
			require.Contains(t, p.stderr.String(), c.words)
			require.Equal(t, 1, strings.Count(p.stderr.String(), "\n"), p.stderr.String())
			require.Empty(t, p.stdout.String())
		})
	}
}

// TestStatusTriesAgainUntilTheLimit: the last error is printed.
func TestStatusTriesAgainUntilTheLimit(t *testing.T) {
	w := newStubProvider(t, func(w *stubProvider) { w.unready = 1 << 30 })
	p := w.status(t, "--wait", "500ms")
	require.Equal(t, exitFailure, p.wait(t))
	require.Contains(t, p.stderr.String(), "the cloud has not been read yet")
	require.Greater(t, w.count(), 1)
}

// TestStatusOfSomethingElse: a server that is not a provider is not waited for.
func TestStatusOfSomethingElse(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }))
	t.Cleanup(s.Close)
	address := s.Listener.Addr().String()
	p := start(t, "status", "--address", address)
	require.Equal(t, exitFailure, p.wait(t))
	require.Contains(t, p.stderr.String(), "the server on "+address+" is not a provider")
}

func TestStatusRefuses(t *testing.T) {
	for flags, words := range map[string]string{
		"-o xml":                             `invalid argument "xml" for "-o, --output" flag: must be table, json or yaml; see gpu-node-provider status --help`,
		"--interval 0s":                      "--interval 0s: it must be more than 0",
		"--interval -1s":                     "--interval -1s",
		"--address 127.0.0.1:http --wait 1h": `--address "127.0.0.1:http"`, // not waited for, since it can never answer
		"--address 127.0.0.1:http --watch":   `--address "127.0.0.1:http"`,
		"now":                                "takes no arguments",
	} {
		p := start(t, append([]string{"status"}, strings.Fields(flags)...)...)
		require.Equal(t, exitUsage, p.wait(t), flags)
		require.Contains(t, p.stderr.String(), words)
	}
}

// TestStatusWatch: it prints again when more than the time has changed, and continues when
// the provider stops.
func TestStatusWatch(t *testing.T) {
	w := newStubProvider(t)
	p := w.status(t, "--watch")
	tables := func() int { return strings.Count(p.stdout.String(), "GROUP ") }
	eventually(t, "the first table", func() bool { return tables() == 1 })
	w.seen(t, 3)
	require.Equal(t, 1, tables(), "nothing has changed")

	w.change(func(w *stubProvider) { w.report.NodeGroups = []report.NodeGroup{{ID: "a100"}} })
	eventually(t, "the second table", func() bool { return strings.Contains(p.stdout.String(), "\na100 ") })

	w.change(func(w *stubProvider) { w.cutOff = 1 << 30 })
	eventually(t, "it says that no provider answers", func() bool { return strings.Contains(p.stdout.String(), "no provider answers on "+w.address) })
	w.seen(t, 3)
	require.Equal(t, 1, strings.Count(p.stdout.String(), "no provider answers"), "once")

	w.change(func(w *stubProvider) { w.cutOff = 0 })
	eventually(t, "it is back", func() bool { return tables() == 3 })
	p.stop()
	require.Zero(t, p.wait(t))
	require.Empty(t, p.stderr.String())
}

// TestStatusWatchForPrograms: standard output contains only reports.
func TestStatusWatchForPrograms(t *testing.T) {
	w := newStubProvider(t)
	p := w.status(t, "--watch", "-o", "yaml")
	reports := func() int { return strings.Count(p.stdout.String(), "---\n") }
	eventually(t, "the first report", func() bool { return reports() == 1 })
	w.change(func(w *stubProvider) { w.cutOff = 1 << 30 })
	eventually(t, "it says that no provider answers", func() bool { return strings.Contains(p.stderr.String(), "no provider answers") })
	w.change(func(w *stubProvider) { w.cutOff, w.report.NodeGroups = 0, []report.NodeGroup{{ID: "a100"}} })
	eventually(t, "the second report", func() bool { return reports() == 2 })
	p.stop()
	require.Zero(t, p.wait(t))
	for i, want := range []string{"t4", "a100"} {
		var got report.Provider
		require.NoError(t, yaml.UnmarshalStrict([]byte(strings.Split(p.stdout.String(), "---\n")[i+1]), &got))
		require.Equal(t, want, got.NodeGroups[0].ID)
	}
}

// TestStatusWatchStopsInSilence: the error of a request that the stop cancelled is not
// printed.
func TestStatusWatchStopsInSilence(t *testing.T) {
	l := listen(t, "127.0.0.1:0")
	accepted := make(chan net.Conn, 1)
	go func() {
		if c, err := l.Accept(); err == nil {
			accepted <- c
		}
	}()
	p := start(t, "status", "--address", l.Addr().String(), "--watch")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	select {
	case c := <-accepted: // and never answers
		defer func() { _ = c.Close() }()
	case <-ctx.Done():
		require.FailNow(t, "status does not ask")
	}
	p.stop()
	require.Zero(t, p.wait(t))
	require.Empty(t, p.stdout.String()+p.stderr.String())
}

func TestCheckpointList(t *testing.T) {
	w := newStubProvider(t)
	p := start(t, "checkpoint", "list", "--address", w.address)
	require.Zero(t, p.wait(t), "%s", p.stderr.String())
	require.Equal(t, "no node is held\n", p.stdout.String())
	p = start(t, "checkpoint", "list", "--address", w.address, "-o", "json")
	require.Zero(t, p.wait(t), "%s", p.stderr.String())
	require.Equal(t, "[]\n", p.stdout.String())
	until := time.Date(2026, 7, 1, 13, 0, 0, 0, time.UTC)
	w.change(func(w *stubProvider) {
		w.report.Held = []report.Hold{{
			Instance: "simulated:///t4/t4-a", NodeGroup: "t4", Since: w.report.Time.Add(-time.Minute),
			Pods: []report.Pod{{Pod: "ai-train/a", Reason: "it vanished", Until: &until}},
		}}
	})
	p = start(t, "checkpoint", "list", "--address", w.address)
	require.Zero(t, p.wait(t), "%s", p.stderr.String())
	require.Equal(t, `HELD NODE              GROUP   FOR    TRAINING POD   REASON
simulated:///t4/t4-a   t4      1m1s   ai-train/a     it vanished; until 2026-07-01T13:00:00Z at most
`, p.stdout.String())

	asJSON := start(t, "checkpoint", "list", "--address", w.address, "-o", "json")
	require.Zero(t, asJSON.wait(t))
	var held []report.Hold
	require.NoError(t, json.Unmarshal([]byte(asJSON.stdout.String()), &held))
	require.Equal(t, "ai-train/a", held[0].Pods[0].Pod)
	asYAML := start(t, "checkpoint", "list", "--address", w.address, "-o", "yaml")
	require.Zero(t, asYAML.wait(t))
	requireSameKeys(t, asJSON.stdout.String(), asYAML.stdout.String())
}
