package aws

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"gpu-node-provider/cloud/aws/awstest"
)

// The actions that the rules are about.
const (
	describe   = "DescribeAutoScalingGroups"
	setDesired = "SetDesiredCapacity"
	terminate  = "TerminateInstanceInAutoScalingGroup"
)

// trouble is what befalls one call of AWS.
type trouble int

const (
	none        trouble = iota
	stale               // a reading from before the last write
	cutBefore           // the connection is closed, and nothing happens
	cutAfter            // the connection is closed, and the call has been carried out
	cutLate             // the connection is closed, and the call is carried out later
	broken              // 500, and nothing happens
	brokenAfter         // 500, and the call has been carried out
	busy                // refused, since an activity is in progress
	slow                // the call is carried out after a while, whether or not its caller has waited
	slowAnswer          // the call is carried out at once, and answered after a while
	killed              // the provider is killed before the call arrives
	killedAfter         // the provider is killed before it reads the answer
)

// troubles are those of each kind that a sequence may have.
var troublesOf = map[string][]trouble{
	"stale answers": {stale, stale},
	"cuts":          {cutBefore, cutAfter, broken, brokenAfter, busy},
	"late effects":  {cutLate, slow},
	"slow answers":  {slow, slowAnswer, slowAnswer},
	"kills":         {killed, killedAfter},
}

// kindsOfTrouble are drawn for each sequence: with all at once few sequences get far.
var kindsOfTrouble = []string{
	"stale answers", "cuts", "late effects", "slow answers", "kills",
	"restarts", "new autoscalers", "outsiders", "machines end", "shortages", "suspensions", "raw calls", "calls at once",
}

// turn is what happens at one call of AWS.
type turn struct {
	events  []func() // before it
	trouble trouble
	after   time.Duration // of a trouble that takes time
	nested  func()        // another call of the provider, while this one is under way
	answer  bool          // nested comes between the effect and the answer
}

// plan draws what happens at the calls of AWS that the next call of the provider makes.
// A nested call takes what is left of the plan of the outer one.
func (w *region) plan() {
	if w.isNested() || w.resting {
		return
	}
	var possible []trouble
	for _, kind := range kindsOfTrouble {
		if w.may[kind] {
			possible = append(possible, troublesOf[kind]...)
		}
	}
	var turns []turn
	for range w.draw(6, "turns") {
		var t turn
		for range w.draw(3, "events") {
			t.events = append(t.events, w.event())
		}
		if len(possible) > 0 && w.draw(4, "in trouble") == 0 {
			t.trouble = possible[w.draw(len(possible), "trouble")]
			t.after = time.Duration(1+w.draw(8, "seconds"))*time.Second - 317*time.Millisecond // never at the time of anything else
		}
		if w.may["calls at once"] && w.draw(4, "nested") == 0 {
			t.nested, t.answer = w.nested(), w.draw(2, "before the answer") == 0
		}
		turns = append(turns, t)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turns = turns
}

// endPlan lets the calls of AWS that are left pass.
func (w *region) endPlan() {
	if w.isNested() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turns = nil
}

func (w *region) isNested() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.nesting
}

func (w *region) turn(write bool) turn {
	w.mu.Lock()
	defer w.mu.Unlock()
	var t turn
	if len(w.turns) > 0 {
		t, w.turns = w.turns[0], w.turns[1:]
	}
	if t.trouble == stale && (write || !w.lagsLocked()) || t.trouble == busy && !write {
		t.trouble = none
	}
	if w.nesting {
		t.nested = nil
	}
	return t
}

// lagsLocked reports whether AWS may lag now. It does so by seconds; the provider reckons
// with a minute, and the answers that explain a reading may take some of it.
func (w *region) lagsLocked() bool {
	for _, at := range w.wrote {
		if age := w.now().Sub(at); age > 40*time.Second && age < 2*time.Minute {
			return false
		}
	}
	return !w.now().Before(w.settled)
}

// wire is the connection of one process to AWS.
type wire struct {
	w *region
	p *process
}

// sent is one call of AWS.
type sent struct {
	*http.Request
	body    []byte
	action  string
	group   string
	write   bool
	desired string
	by      *call
	from    *process

	// rank puts calls that are sent at the same time in order, so that a sequence repeats.
	rank time.Duration

	// of its effect
	whole   *reading
	known   bool // what the provider believes of the group must be right once it is told
	version int
	now     truth
}

func (c *wire) read(r *http.Request) *sent {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		panic(err)
	}
	s := &sent{Request: r, body: body, action: form.Get("Action"), group: form.Get("AutoScalingGroupName"), desired: form.Get("DesiredCapacity"), from: c.p}
	s.write = !strings.HasPrefix(s.action, "Describe")
	s.by, _ = r.Context().Value(callKey{}).(*call)
	if s.by == nil {
		panic("a call of AWS without a call of the provider: " + s.action)
	}
	switch s.action {
	case terminate:
		s.rank = time.Duration(slices.IndexFunc(s.by.named, func(id string) bool { return machineOf(id) == form.Get("InstanceId") })) * time.Microsecond
	case "DescribeScalingActivities":
		s.rank = time.Duration(1+slices.Index(pools, s.group)) * time.Microsecond
	}
	if s.group == "" {
		s.group = s.by.group
	}
	return s
}

// Do implements aws.HTTPClient.
func (c *wire) Do(r *http.Request) (*http.Response, error) {
	w, s := c.w, c.read(r)
	if s.rank > 0 {
		time.Sleep(s.rank) //nolint:forbidigo // fake clock
	}
	w.sentInTime(s)
	t := w.turn(s.write)
	if t.trouble != none {
		s.by.struck = true
		w.doubtful(s)
		w.say("    %s by %s: trouble %d (%s)", s.action, s.by.kind, t.trouble, t.after)
	}
	for _, event := range t.events {
		w.happens(event)
	}
	if t.trouble == killed {
		c.p.dead.Store(true)
	}
	if !t.answer {
		w.runNested(t.nested)
	}
	if c.p.dead.Load() {
		return nil, errCut(s)
	}
	answer, err := c.meet(s, t)
	if t.answer {
		w.runNested(t.nested)
	}
	if t.trouble == killedAfter {
		c.p.dead.Store(true)
	}
	if c.p.dead.Load() {
		return nil, errCut(s)
	}
	w.told(s, t.trouble, answer, err)
	return answer, err
}

func errCut(s *sent) error { return fmt.Errorf("%s: %w", s.action, io.ErrUnexpectedEOF) }

// meet carries the call out as its trouble has it.
func (c *wire) meet(s *sent, t turn) (*http.Response, error) {
	switch t.trouble {
	case cutBefore:
		return nil, errCut(s)
	case cutAfter:
		_, _ = c.carryOut(s, none)
		return nil, errCut(s)
	case cutLate:
		go func() {
			<-time.After(t.after)
			_, _ = c.carryOut(s, none) //nolint:bodyclose // it is in memory
		}()
		return nil, errCut(s)
	case slow:
		answered := make(chan func() (*http.Response, error), 1)
		go func() {
			<-time.After(t.after)
			answer, err := c.carryOut(s, none) //nolint:bodyclose // it is in memory
			answered <- func() (*http.Response, error) { return answer, err }
		}()
		select {
		case answer := <-answered:
			return answer()
		case <-s.Context().Done():
			return nil, s.Context().Err()
		}
	case slowAnswer:
		answer, err := c.carryOut(s, none)
		select {
		case <-time.After(t.after):
			return answer, err
		case <-s.Context().Done():
			return nil, s.Context().Err()
		}
	default:
		if err := s.Context().Err(); err != nil {
			return nil, err
		}
		return c.carryOut(s, t.trouble)
	}
}

// carryOut has AWS do what it is sent, and judges what comes of it.
func (c *wire) carryOut(s *sent, t trouble) (*http.Response, error) {
	w := c.w
	w.mu.Lock()
	defer w.mu.Unlock()
	switch t {
	case stale:
		defer w.stub.Faults(awstest.Rule{Fault: awstest.Stale(), Times: 1})()
	case broken:
		defer w.stub.Faults(awstest.Rule{Fault: awstest.Internal(), Times: 1})()
	case brokenAfter:
		defer w.stub.Faults(awstest.Rule{Fault: awstest.InternalAfter(), Times: 1})()
	case busy:
		defer w.stub.Faults(awstest.Rule{Fault: awstest.InProgress(), Times: 1})()
	default:
	}
	r := s.Clone(context.Background())
	r.Body = io.NopCloser(bytes.NewReader(s.body))
	before := w.truths()
	answer, err := w.stub.Client().Do(r)
	after := w.truths()
	w.say("    %s %s %s by %s: %d; t4 %v, l4 %v", s.action, s.group, s.desired, s.by.kind, answer.StatusCode, after["t4"], after["l4"])
	w.judgeLocked(s, before, after)
	return answer, err
}

func (w *region) runNested(nested func()) {
	if nested == nil {
		return
	}
	w.mu.Lock()
	if w.nesting {
		w.mu.Unlock()
		return
	}
	w.nesting = true
	w.mu.Unlock()
	nested()
	w.mu.Lock()
	w.nesting = false
	w.mu.Unlock()
}
