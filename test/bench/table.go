package main

import (
	"fmt"
	"sync"
	"syscall"
	"time"
)

// row is one line of the second table: what was measured, beside what it is
// compared with, or beside the most that it may be.
type row struct {
	name         string
	ours, beside string
	ratio, most  float64
	note         string
}

var heading = sync.OnceFunc(func() {
	fmt.Printf("\n%-20s %10s %10s %6s %6s   %s\n", "measure", "ours", "beside", "ratio", "most", "what stands beside it, and more")
})

// print says whether the limit is met.
func (r row) print() (missed int) {
	heading()
	verdict := ""
	if r.ratio > r.most {
		missed, verdict = 1, fmt.Sprintf("   MISSED: at most %.2f", r.most)
	}
	fmt.Printf("%-20s %10s %10s %6.2f %6.2f   %s%s\n", r.name, r.ours, r.beside, r.ratio, r.most, r.note, verdict)
	return missed
}

// inTurn takes the times of two functions, one after the other, many times. The
// one that begins changes each round: who comes second finds warm caches.
func inTurn(rounds int, ours, beside func() error) (times [2][]float64, err error) {
	calls := [2]func() error{ours, beside}
	for n := range rounds + 1 {
		for k := range calls {
			k = (k + n) % 2
			begin := time.Now()
			if err := calls[k](); err != nil {
				return times, err
			}
			if n > 0 { // the first round warms
				times[k] = append(times[k], float64(time.Since(begin)))
			}
		}
	}
	return times, nil
}

func short(nanoseconds float64) string {
	return time.Duration(nanoseconds).Round(10 * time.Microsecond).String()
}

// cpu is the time that this process has had of the processors.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // fails for nobody
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
