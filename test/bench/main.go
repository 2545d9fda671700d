package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// The limits, as ratios to the constant handler.
const (
	leastThroughput = 0.9
	mostP99         = 1.5
	mostReadOfSwap  = 0.5
)

func main() {
	kind := flag.String("serve", "", "for the program itself: be one of its children")
	api := flag.String("api", "", "for its children: the address of another")
	only := flag.String("only", "", "measure only one of "+strings.Join(partNames(), ", "))
	rounds := flag.Int("rounds", 5, "rounds of calls, of which the median counts")
	length := flag.Duration("length", time.Second, "length of one run")
	flag.Parse()
	missed := 0
	var err error
	if *kind != "" {
		err = beChild(context.Background(), *kind, *api)
	} else {
		missed, err = bench(context.Background(), *only, settings{*rounds, *length})
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	if missed > 0 {
		_, _ = fmt.Fprintf(os.Stderr, "bench: %d limits missed\n", missed)
		os.Exit(1)
	}
}

func readLine(r io.Reader) (string, error) { return bufio.NewReader(r).ReadString('\n') }

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// settings are how long the calls are measured.
type settings struct {
	rounds int
	length time.Duration
}

// part is one measurement. It says how many limits were missed.
type part struct {
	name    string
	measure func(context.Context, settings) (missed int, err error)
}

// parts are measured one after another, since each would disturb the others.
var parts = []part{
	{"calls", calls},
	{"swap", swapping},
	{"gate", gate},
	{"guard", idleGuard},
	{"waiting", waiting},
	{"memory", memory},
	{"aws", awsRefresh},
	{"writes", writes},
}

func partNames() (names []string) {
	for _, p := range parts {
		names = append(names, p.name)
	}
	return names
}

// bench measures all parts, or one, and says how many limits were missed.
func bench(ctx context.Context, only string, s settings) (missed int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := 0
	for _, p := range parts {
		if only != "" && only != p.name {
			continue
		}
		done++
		n, err := p.measure(ctx, s)
		missed += n
		if err != nil {
			return missed, fmt.Errorf("%s: %w", p.name, err)
		}
	}
	if done == 0 {
		return 0, fmt.Errorf("there is no %q to measure, only %s", only, strings.Join(partNames(), ", "))
	}
	return missed, nil
}

// calls measures what Cluster Autoscaler calls thousands of times a loop.
func calls(ctx context.Context, s settings) (missed int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // the children would only disturb what follows
	ours, err := start(ctx, serveProvider)
	if err != nil {
		return 0, err
	}
	bare, err := start(ctx, serveConstant)
	if err != nil {
		return 0, err
	}
	resident, err := ours.residentMiB()
	if err != nil {
		return 0, err
	}
	fmt.Printf("%d groups, %d instances; provider's resident memory %.0f MiB\n", groups, instances, resident)
	fmt.Printf("each figure is the median of %d rounds of %s, the constant handler on a bare grpc-go server in turn\n\n", s.rounds, s.length)
	fmt.Printf("%-20s %7s %10s %10s %6s   %9s %9s   %9s %9s %6s\n", "call", "clients", "calls/s", "constant", "ratio", "p50", "constant", "p99", "constant", "ratio")
	all := callsOf(ours.ids)
	for _, name := range []string{"NodeGroupForNode", "NodeGroupTargetSize", "NodeGroupGetOptions", "NodeGroups"} {
		for _, n := range []int{1, 8} {
			ok, err := compare(ctx, name, all[name], n, [2]*child{ours, bare}, s)
			if err != nil {
				return missed, fmt.Errorf("%s with %d clients: %w", name, n, err)
			}
			if !ok {
				missed++
			}
		}
	}
	return missed, nil
}

// compare measures one call on both servers in turn.
func compare(ctx context.Context, name string, c call, n int, servers [2]*child, s settings) (ok bool, err error) {
	var perSecond, p50, p99 [2][]float64
	var throughput, tail []float64
	for range s.rounds {
		var pair [2]sample
		for k, server := range servers {
			all, closeAll, err := clients(ctx, server.address, n)
			if err != nil {
				return false, err
			}
			if _, err := run(ctx, all, c, s.length/10); err != nil { // warm
				closeAll()
				return false, err
			}
			pair[k], err = run(ctx, all, c, s.length)
			closeAll()
			if err != nil {
				return false, err
			}
			perSecond[k] = append(perSecond[k], pair[k].perSecond)
			p50[k] = append(p50[k], float64(pair[k].p50))
			p99[k] = append(p99[k], float64(pair[k].p99))
		}
		throughput = append(throughput, pair[0].perSecond/pair[1].perSecond)
		tail = append(tail, float64(pair[0].p99)/float64(pair[1].p99))
	}
	ok = median(throughput) >= leastThroughput && median(tail) <= mostP99
	verdict := ""
	if !ok {
		verdict = fmt.Sprintf("   MISSED: at least %.2f and at most %.2f", leastThroughput, mostP99)
	}
	short := func(values []float64) string {
		return time.Duration(median(values)).Round(time.Microsecond).String()
	}
	fmt.Printf("%-20s %7d %10.0f %10.0f %6.2f   %9s %9s   %9s %9s %6.2f%s\n", name, n, median(perSecond[0]), median(perSecond[1]), median(throughput),
		short(p50[0]), short(p50[1]), short(p99[0]), short(p99[1]), median(tail), verdict)
	return ok, nil
}

// swapping measures what a read notices of a swap.
func swapping(context.Context, settings) (missed int, err error) {
	w, err := newWorld()
	if err != nil {
		return 0, err
	}
	s, err := swap(w)
	if err != nil {
		return 0, err
	}
	fmt.Printf("\nswap of a snapshot with every instance changed: %s, cloud included; longest read meanwhile %.3f of that (median of %d swaps, %d reads)\n",
		s.swap.Round(time.Microsecond), s.longestRead, swaps, s.reads)
	if s.longestRead > mostReadOfSwap {
		fmt.Printf("MISSED: a read may take at most %.1f of a swap\n", mostReadOfSwap)
		missed++
	}
	return missed, nil
}
