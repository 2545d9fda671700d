package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"gpu-node-provider/provider/dashboard"
	"gpu-node-provider/provider/report"
)

type statusOptions struct {
	address  string
	output   outputFormat
	watch    bool
	interval time.Duration
	wait     time.Duration
}

// defaultAddress is the address of a provider on this machine or in this Pod.
const defaultAddress = "127.0.0.1:8087"

// statusTimeout limits one request, so that a server that hangs is reported.
const statusTimeout = 5 * time.Second

func statusCommand() *cobra.Command {
	var o statusOptions
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the node groups, quotas and held nodes of a running provider",
		Example: `  # Show the provider on this machine, and again whenever something has changed
  gpu-node-provider status --watch

  # Wait for a provider that starts
  gpu-node-provider status --address 127.0.0.1:8087 --wait 1m

  # Print the maximum of each node group
  gpu-node-provider status -o json | jq '.nodeGroups[] | {id, effectiveMax}'

  # Show the provider of a cluster
  kubectl -n gpu-node-provider exec deploy/gpu-node-provider -- /gpu-node-provider status`,
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			return status(c.Context(), c.OutOrStdout(), c.ErrOrStderr(), o)
		},
	}
	addressFlag(c, &o.address)
	outputFlag(c, &o.output)
	c.Flags().BoolVarP(&o.watch, "watch", "w", false, "print again whenever something has changed")
	c.Flags().DurationVar(&o.wait, "wait", 0, "how long to wait for a provider that does not answer yet")
	c.Flags().DurationVar(&o.interval, "interval", time.Second, "how often --watch and --wait ask the provider")
	return c
}

func addressFlag(c *cobra.Command, address *string) {
	c.Flags().StringVar(address, "address", defaultAddress, "the provider's httpAddress")
}

func status(ctx context.Context, out, errOut io.Writer, o statusOptions) error {
	if o.interval <= 0 {
		return usageError{fmt.Errorf("--interval %s: it must be more than 0", o.interval)}
	}
	if o.watch {
		return watch(ctx, out, errOut, o)
	}
	_, text, err := poll(ctx, o)
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, text)
	return err
}

func watch(ctx context.Context, out, errOut io.Writer, o statusOptions) error {
	last := ""
	for {
		key, text, err := poll(ctx, o)
		var usage usageError
		if errors.As(err, &usage) {
			return err
		}
		to := out
		if err != nil { // the provider may return
			key, text = err.Error(), err.Error()+"\n"
			if o.output != asTable { // a program reads out
				to = errOut
			}
		}
		// An error of a request that ctx cancelled says nothing about the provider.
		if key != last && ctx.Err() == nil {
			last = key
			if _, err := io.WriteString(to, text); err != nil {
				return err
			}
		}
		if !pause(ctx, o.interval) {
			return nil
		}
	}
}

// poll fetches the report, and tries again until --wait is over. The key is equal
// for reports that need not be printed again.
func poll(ctx context.Context, o statusOptions) (key, text string, err error) {
	until := time.Now().Add(o.wait)
	for {
		var state report.Provider
		if state, err = fetch(ctx, o.address); err == nil {
			text, err = render(state, o)
			return withoutTimes(state), text, err
		}
		var usage usageError
		left := time.Until(until)
		if errors.As(err, &usage) || left <= 0 || !pause(ctx, min(o.interval, left)) {
			return "", "", err
		}
	}
}

// pause returns false when ctx ended it.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// withoutTimes returns the report without its times, which change with each request.
func withoutTimes(r report.Provider) string {
	r.Time, r.Snapshot = time.Time{}, time.Time{}
	text, err := json.Marshal(r)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func fetch(ctx context.Context, address string) (state report.Provider, err error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+dashboard.ReportPath, nil)
	if err != nil {
		return state, usageError{fmt.Errorf("--address %q: %w", address, err)}
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return state, fmt.Errorf("no provider answers on %s; --address must be its server.httpAddress: %w", address, err)
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10)) // a partial text is still useful
		if response.StatusCode == http.StatusMisdirectedRequest {
			return state, fmt.Errorf("the provider on %s: %w", address, dashboard.StandsBy(strings.TrimSpace(string(text))))
		}
		return state, fmt.Errorf("the provider on %s answers %s: %s", address, response.Status, strings.TrimSpace(string(text)))
	}
	if err := json.NewDecoder(response.Body).Decode(&state); err != nil {
		return state, fmt.Errorf("the server on %s is not a provider: %w", address, err)
	}
	return state, nil
}

func render(r report.Provider, o statusOptions) (string, error) {
	if o.output == asTable {
		return table(r), nil
	}
	var b strings.Builder
	if o.watch && o.output == asYAML {
		b.WriteString("---\n") // one document for each report
	}
	err := encode(&b, r, o.output)
	return b.String(), err
}

func table(r report.Provider) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	row := func(cells ...string) { _, _ = fmt.Fprintln(w, strings.Join(cells, "\t")) } // a Builder does not fail
	row("GROUP", "TARGET", "RUNNING", "BOOTING", "WAITING", "FAILED", "DELETING", "MIN", "MAX NOW", "BOUND BY")
	for _, g := range r.NodeGroups {
		row(g.ID, strconv.Itoa(g.Target), strconv.Itoa(g.Running), strconv.Itoa(g.Creating), strconv.Itoa(g.Placeholders), strconv.Itoa(g.Failed),
			strconv.Itoa(g.Deleting), strconv.Itoa(g.MinSize), strconv.Itoa(g.EffectiveMax), g.Limit)
	}
	if len(r.Quotas) > 0 {
		row()
		row("QUOTA", "USED", "LIMIT", "RESOURCE", "SOURCE")
		for _, q := range r.Quotas {
			row(quotaCells(q)...)
		}
	}
	failureRows(r, row)
	if len(r.Held) > 0 {
		row()
		heldRows(r, row)
	}
	_ = w.Flush()
	b.WriteString(problems(r))
	return b.String()
}

func failureRows(r report.Provider, row func(...string)) {
	headed := false
	for _, g := range r.NodeGroups {
		for _, f := range g.LaunchFailures {
			if !headed {
				headed = true
				row()
				row("GROUP", "FAILED LAUNCHES", "LAST", "CODE", "MESSAGE")
			}
			row(g.ID, strconv.Itoa(f.Count), r.Time.Sub(f.Last).Round(time.Second).String()+" ago", f.Code, oneLine(f.Message))
		}
	}
}

func heldRows(r report.Provider, row func(...string)) {
	row("HELD NODE", "GROUP", "FOR", "TRAINING POD", "REASON")
	for _, h := range r.Held {
		for _, p := range h.Pods {
			row(cmp.Or(h.Node, h.Instance), h.NodeGroup, r.Time.Sub(h.Since).Round(time.Second).String(), p.Pod, holdReason(p))
		}
	}
}

// problems returns the errors that do not fit in the table.
func problems(r report.Provider) string {
	var b strings.Builder
	for _, q := range r.Quotas {
		if q.Problem != "" {
			fmt.Fprintf(&b, "\nquota %s was not refreshed: %s\n", q.Name, q.Problem)
		}
	}
	for _, g := range r.NodeGroups {
		if g.Problem != "" {
			fmt.Fprintf(&b, "\n%s: %s\n", g.ID, g.Problem)
		}
		if g.Dropped {
			fmt.Fprintf(&b, "\n%s: not in the node group file, and kept as retired until its %d instances are gone\n", g.ID, len(g.Instances))
		}
		for _, ignored := range g.Ignored {
			fmt.Fprintf(&b, "\n%s: ignored %s\n", g.ID, ignored)
		}
		for _, i := range g.Instances {
			if i.Error != "" {
				fmt.Fprintf(&b, "\n%s: %s\n", i.ID, i.Error)
			}
		}
	}
	if r.ReloadError != "" {
		fmt.Fprintf(&b, "\nThe node group file on disk is not in effect: %s\n", r.ReloadError)
	}
	return b.String()
}

func quotaCells(q report.Quota) []string {
	if q.Unknown {
		return []string{q.Name, "?", "?", q.Resource, q.Source}
	}
	source := q.Source
	if q.ReadAt != nil {
		source += ", read " + q.ReadAt.UTC().Format(time.RFC3339)
	}
	return []string{q.Name, number(q.Used), number(q.Limit), q.Resource, source}
}

// holdReason returns the reason why a pod holds its node, and the latest time of its release.
func holdReason(p report.Pod) string {
	if p.Until == nil {
		return p.Reason
	}
	return p.Reason + "; until " + p.Until.UTC().Format(time.RFC3339) + " at most"
}

func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
