package quota

import (
	"fmt"
	"time"
)

// window remembers what was asked for lately, oldest first.
type window struct {
	asked []ask
	sum   int64
}

type ask struct {
	at    time.Time
	group string
	units int64
}

// slide forgets what is older than length.
func (w *window) slide(now time.Time, length time.Duration) {
	old := 0
	for old < len(w.asked) && now.Sub(w.asked[old].at) >= length {
		w.sum -= w.asked[old].units
		old++
	}
	w.asked = w.asked[old:]
}

func (w *window) add(a ask) {
	if a.units == 0 {
		return
	}
	// Almost always at the end; what a restart found in flight comes in any order.
	i := len(w.asked)
	for i > 0 && w.asked[i-1].at.After(a.at) {
		i--
	}
	w.asked = append(w.asked, ask{})
	copy(w.asked[i+1:], w.asked[i:])
	w.asked[i] = a
	w.sum += a.units
}

// refund takes units of a group back, newest first: what was asked for last is
// what has not arrived.
func (w *window) refund(group string, units int64) {
	for i := len(w.asked) - 1; i >= 0 && units > 0; i-- {
		if w.asked[i].group != group {
			continue
		}
		back := min(units, w.asked[i].units)
		w.asked[i].units -= back
		w.sum -= back
		units -= back
	}
}

// relief says when the window next lets something out, if it holds anything.
func (w *window) relief(now time.Time, length time.Duration) string {
	for _, a := range w.asked {
		if a.units > 0 {
			return fmt.Sprintf(", more in %s", a.at.Add(length).Sub(now).Round(time.Second))
		}
	}
	return ""
}
