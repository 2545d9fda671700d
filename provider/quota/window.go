package quota

import (
	"fmt"
	"slices"
	"time"
)

// window holds the requests within a surge window, oldest first.
type window struct {
	requests []request
	sum      int64 // units of all requests
}

type request struct {
	at    time.Time
	group string
	units int64
}

// slide drops requests older than length.
func (w *window) slide(now time.Time, length time.Duration) {
	old := 0
	for old < len(w.requests) && now.Sub(w.requests[old].at) >= length {
		w.sum -= w.requests[old].units
		old++
	}
	w.requests = w.requests[old:]
}

func (w *window) add(r request) {
	if r.units == 0 {
		return
	}
	// Remember adds requests from before a restart in any order.
	i := len(w.requests)
	for i > 0 && w.requests[i-1].at.After(r.at) {
		i--
	}
	w.requests = slices.Insert(w.requests, i, r)
	w.sum += r.units
}

// refund subtracts units of a group, newest request first, since the newest is the
// one that has not launched.
func (w *window) refund(group string, units int64) {
	for i := len(w.requests) - 1; i >= 0 && units > 0; i-- {
		if w.requests[i].group != group {
			continue
		}
		back := min(units, w.requests[i].units)
		w.requests[i].units -= back
		w.sum -= back
		units -= back
	}
}

// nextRoom returns ", more in 30s" with the time until the oldest request leaves the
// window, or "" for an empty window.
func (w *window) nextRoom(now time.Time, length time.Duration) string {
	for _, r := range w.requests {
		if r.units > 0 {
			return fmt.Sprintf(", more in %s", r.at.Add(length).Sub(now).Round(time.Second))
		}
	}
	return ""
}
