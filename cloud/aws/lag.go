package aws

import (
	"maps"
	"slices"
	"time"
)

// lagTime is how long AWS is given to show what it has acknowledged. Its answers are
// eventually consistent, normally within a second; a minute is beyond any lag to be
// expected, and short enough that a value which really was taken back by another client
// is not denied for long. It does not end when AWS has shown the value: another answer
// may still come from a part of AWS that has not heard of it, and to compute the next
// desired capacity from that would take back what was asked for.
const lagTime = time.Minute

// lag is what was written and acknowledged and may not be shown yet. For
// lagTime it counts as if AWS did.
//
// Lag is told from somebody else's later change by the value: an answer that
// lags shows one from before the write, so any other value is somebody's, and
// believed at once. A change back to exactly a value from before is believed
// when the time is over.
type lag struct {
	value  int       // the desired capacity that was written last
	past   []int     // what an answer that lags can show instead
	until  time.Time // until when value counts
	ending map[string]time.Time
	// raise and lower are the farthest values that writes whose outcome is not known may
	// still set.
	raise, lower possible
}

// possible is a desired capacity that may still show, until a time, in the place of another.
type possible struct {
	value, from int
	until       time.Time
}

func (p possible) open(now time.Time) bool { return now.Before(p.until) }

// set notes that the desired capacity has been set. The earlier values are what
// it was believed to be, and what AWS showed last.
func (l *lag) set(value int, now time.Time, earlier ...int) {
	if now.After(l.until) {
		l.past = nil
	} else {
		earlier = append(earlier, l.value)
	}
	l.past = slices.DeleteFunc(append(slices.Clone(l.past), earlier...), func(v int) bool { return v == value })
	l.value, l.until = value, now.Add(lagTime)
}

// ended notes that instances have been told to go.
func (l *lag) ended(instances []string, now time.Time) {
	fresh := map[string]time.Time{}
	for id, until := range l.ending {
		if now.Before(until) {
			fresh[id] = until
		}
	}
	for _, id := range instances {
		fresh[id] = now.Add(lagTime)
	}
	l.ending = fresh
}

// terminated is what terminations did to a desired capacity.
type terminated struct {
	from  int // what was desired before the first of them
	sure  int // how many lowered it
	doubt int // how many more may have
}

// lowered notes terminations, and returns the most that can be desired now. AWS
// shows the desired capacity as it was, as it is, or as it was in between, also
// to a reading that was made while they were under way.
//
// It is false when such a reading has shown another value, which is somebody
// else's: nobody can tell how many terminations that value holds already, so it
// has to be read again.
func (l *lag) lowered(shown int, t terminated, instances []string, now time.Time) (most int, ok bool) {
	l.ended(instances, now)
	least := t.from - t.sure - t.doubt
	if desired := l.desired(shown, now); desired < least || desired > t.from {
		return desired, false
	}
	most = t.from - t.sure
	if t.sure == 0 {
		return most, true
	}
	var earlier []int
	for value := most + 1; value <= t.from; value++ {
		earlier = append(earlier, value)
	}
	if shown < least || shown > t.from { // it lags still further
		earlier = append(earlier, shown)
	}
	l.set(most, now, earlier...)
	return most, true
}

// doubted notes terminations which left the desired capacity somewhere from least to
// most. What AWS shows decides, and less of it once AWS shows that: it may lag, or carry
// them out later. When it shows a value that lags for certain, least is likelier, since
// the terminations were ours.
func (l *lag) doubted(shown, least, most int, now time.Time) {
	var earlier []int
	for value := least; value <= most; value++ {
		earlier = append(earlier, value)
	}
	switch {
	case least == most:
	case slices.Contains(earlier, shown):
		l.set(shown, now, earlier[shown-least+1:]...)
		l.lost(least, shown)
	case l.desired(shown, now) != shown:
		l.set(least, now, append(earlier, shown)...)
	}
}

// lost notes that a write whose outcome is not known may have left the
// desired capacity somewhere from least to most: whatever AWS shows of that, it
// is not taken for an answer that lags.
func (l *lag) lost(least, most int) {
	l.past = slices.DeleteFunc(slices.Clone(l.past), func(v int) bool { return v >= least && v <= most })
}

// mayShow notes that such a write may still be carried out. AWS carries out within seconds
// what it was sent, so after lagTime nothing comes of it any more.
func (l *lag) mayShow(desired, least, most int, now time.Time) {
	if most > desired {
		if l.raise.open(now) {
			most = max(most, l.raise.value)
		}
		l.raise = possible{most, desired, now.Add(lagTime)}
	}
	if least < desired {
		if l.lower.open(now) {
			least = min(least, l.lower.value)
		}
		l.lower = possible{least, desired, now.Add(lagTime)}
	}
}

// unsettled is by how much a desired capacity may still rise and fall.
func (l *lag) unsettled(desired int, now time.Time) (more, fewer int) {
	if l.raise.open(now) {
		more = max(0, l.raise.value-desired)
	}
	if l.lower.open(now) {
		fewer = max(0, desired-l.lower.value)
	}
	return more, fewer
}

// desired is what counts when AWS shows a value.
func (l *lag) desired(shown int, now time.Time) int {
	if now.Before(l.until) && slices.Contains(l.past, shown) {
		return l.value
	}
	return shown
}

// seen notes what AWS shows.
func (l *lag) seen(shown int, now time.Time) {
	switch {
	case !now.Before(l.until):
		l.past = nil
	case shown != l.value && !slices.Contains(l.past, shown): // somebody else's
		l.until, l.past = time.Time{}, nil
	}
	for _, p := range []*possible{&l.raise, &l.lower} {
		if p.open(now) && shown == p.value { // as if AWS had acknowledged it
			l.set(shown, now, p.from)
		}
	}
	if shown >= l.raise.value {
		l.raise = possible{}
	}
	if shown <= l.lower.value {
		l.lower = possible{}
	}
	maps.DeleteFunc(l.ending, func(_ string, until time.Time) bool { return !now.Before(until) })
}

func (l *lag) isEnded(instance string, now time.Time) bool { return now.Before(l.ending[instance]) }
