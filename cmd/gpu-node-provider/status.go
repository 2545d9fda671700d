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
	output   string
	watch    bool
	interval time.Duration
	wait     time.Duration
}

// defaultAddress is that of a provider on this machine, or in this pod.
const defaultAddress = "127.0.0.1:8087"

// statusTimeout bounds one look: who looks at a hanging server wants to know that it hangs.
const statusTimeout = 5 * time.Second

func statusCommand() *cobra.Command {
	var o statusOptions
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the node groups, sizes and limits of a running provider",
		Args:  noArguments,
		RunE:  func(c *cobra.Command, _ []string) error { return status(c.Context(), c.OutOrStdout(), o) },
	}
	c.Flags().StringVar(&o.address, "address", defaultAddress, "the provider's httpAddress")
	c.Flags().StringVarP(&o.output, "output", "o", "table", "table or json")
	c.Flags().BoolVarP(&o.watch, "watch", "w", false, "print again whenever something has changed")
	c.Flags().DurationVar(&o.wait, "wait", 0, "how long to wait for a provider that does not answer yet")
	c.Flags().DurationVar(&o.interval, "interval", time.Second, "how often --watch and --wait look")
	return c
}

func status(ctx context.Context, out io.Writer, o statusOptions) error {
	if o.output != "table" && o.output != "json" {
		return usageError{fmt.Errorf("-o %q: it is table or json", o.output)}
	}
	if o.interval <= 0 {
		return usageError{fmt.Errorf("--interval %s: it must be more than 0", o.interval)}
	}
	if o.watch {
		return watch(ctx, out, o)
	}
	_, text, err := look(ctx, o)
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, text)
	return err
}

func watch(ctx context.Context, out io.Writer, o statusOptions) error {
	last := ""
	for {
		key, text, err := look(ctx, o)
		var usage usageError
		if errors.As(err, &usage) {
			return err
		}
		if err != nil { // it may come back
			key, text = err.Error(), err.Error()+"\n"
		}
		// A look that was cut off by a stop says nothing about the provider.
		if key != last && ctx.Err() == nil {
			last = key
			if _, err := io.WriteString(out, text); err != nil {
				return err
			}
		}
		if !pause(ctx, o.interval) {
			return nil
		}
	}
}

// look fetches the report, and keeps trying for as long as it may wait.
func look(ctx context.Context, o statusOptions) (key, text string, err error) {
	until := time.Now().Add(o.wait)
	for {
		var state report.Provider
		if state, err = fetch(ctx, o.address); err == nil {
			text, err = render(state, o.output)
			return changed(state), text, err
		}
		var usage usageError
		left := time.Until(until)
		if errors.As(err, &usage) || left <= 0 || !pause(ctx, min(o.interval, left)) {
			return "", "", err
		}
	}
}

// pause says false when ctx ended it.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// changed is what makes a report worth printing again: all but the times.
func changed(r report.Provider) string {
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
		return state, fmt.Errorf("no provider answers on %s; it is the httpAddress of its node group file: %w", address, err)
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10)) // what could be read of it is all there is to say
		if response.StatusCode == http.StatusMisdirectedRequest {
			return state, fmt.Errorf("the provider on %s: %w", address, dashboard.StandsBy(strings.TrimSpace(string(text))))
		}
		return state, fmt.Errorf("the provider on %s answers %s: %s", address, response.Status, strings.TrimSpace(string(text)))
	}
	if err := json.NewDecoder(response.Body).Decode(&state); err != nil {
		return state, fmt.Errorf("what answers on %s is not a provider: %w", address, err)
	}
	return state, nil
}

func render(r report.Provider, output string) (string, error) {
	if output == "json" {
		text, err := json.MarshalIndent(r, "", "  ")
		return string(text) + "\n", err
	}
	return table(r), nil
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
	if len(r.Held) > 0 {
		row()
		heldRows(r, row)
	}
	_ = w.Flush()
	b.WriteString(problems(r))
	return b.String()
}

func heldRows(r report.Provider, row func(...string)) {
	row("HELD NODE", "GROUP", "FOR", "TRAINING POD", "BECAUSE")
	for _, h := range r.Held {
		for _, p := range h.Pods {
			row(cmp.Or(h.Node, h.Instance), h.NodeGroup, r.Time.Sub(h.Since).Round(time.Second).String(), p.Pod, because(p))
		}
	}
}

// problems are what a table has no room for.
func problems(r report.Provider) string {
	var b strings.Builder
	for _, q := range r.Quotas {
		if q.Problem != "" {
			fmt.Fprintf(&b, "\nquota %s is not newer: %s\n", q.Name, q.Problem)
		}
	}
	for _, g := range r.NodeGroups {
		if g.Problem != "" {
			fmt.Fprintf(&b, "\n%s: %s\n", g.ID, g.Problem)
		}
		for _, i := range g.Instances {
			if i.Error != "" {
				fmt.Fprintf(&b, "\n%s: %s\n", i.ID, i.Error)
			}
		}
	}
	if r.ReloadError != "" {
		fmt.Fprintf(&b, "\nThe node group file on disk is not in force: %s\n", r.ReloadError)
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

// because is why a pod holds its node, and until when at most.
func because(p report.Pod) string {
	if p.Until == nil {
		return p.Reason
	}
	return p.Reason + "; until " + p.Until.UTC().Format(time.RFC3339) + " at most"
}

func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
