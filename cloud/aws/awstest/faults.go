package awstest

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Fault is what goes wrong with a call.
type Fault struct {
	answer func(service string) *Error // instead of the own answer
	effect bool                        // the call takes effect all the same
	cut    bool                        // the connection is closed without an answer
	hang   bool                        // no answer until the caller gives up
	stale  bool                        // the answer is from before the last write
	run    func()
}

// Throttle refuses the call with the service's throttling error.
func Throttle() Fault {
	return Fault{answer: func(service string) *Error { e := throttled[service]; return &e }}
}

// Internal answers 500, without an effect.
func Internal() Fault {
	return Fault{answer: func(service string) *Error { e := internal[service]; return &e }}
}

// InternalAfter answers 500, though the call took effect.
func InternalAfter() Fault {
	f := Internal()
	f.effect = true
	return f
}

// Deny refuses the call for want of permission.
func Deny() Fault {
	return Fault{answer: func(service string) *Error { e := denied[service]; return &e }}
}

// Refuse answers with an error of one's own.
func Refuse(status int, code, message string) Fault {
	return Fault{answer: func(string) *Error { return &Error{Status: status, Code: code, Message: message} }}
}

// InProgress refuses the call since the group is busy.
func InProgress() Fault {
	return Refuse(http.StatusBadRequest, "ScalingActivityInProgress", busyMessage)
}

// CutBefore closes the connection before the call has an effect.
func CutBefore() Fault { return Fault{cut: true} }

// CutAfter lets the call take effect and closes the connection: a lost answer.
func CutAfter() Fault { return Fault{cut: true, effect: true} }

// HangBefore never answers, and nothing happens; it ends with the caller's deadline.
func HangBefore() Fault { return Fault{hang: true} }

// HangAfter lets the call take effect and never answers.
func HangAfter() Fault { return Fault{hang: true, effect: true} }

// Stale answers reads from the state before the last write, for a minute after it. Only a
// Stub can.
func Stale() Fault { return Fault{stale: true, effect: true} }

// Do runs the function before the call takes effect, to have the world change
// between what the caller has read and what it writes. The call then goes on.
// The function may use all methods of the Stub.
func Do(run func()) Fault { return Fault{run: run} }

// Rule says which calls a Fault befalls.
type Rule struct {
	// Action is the action's name; empty for all.
	Action string
	// Match, when set, narrows the rule further, for instance to one group.
	Match func(Call) bool
	// Skip lets so many calls that match pass first.
	Skip int
	// Times is how many calls after those meet the fault; 0 is all, until the
	// rule is removed.
	Times int
	Fault Fault
}

// faults are the rules in force.
type faults struct {
	mu    sync.Mutex
	rules []*Rule
}

// Faults adds rules, for the calls that arrive from now on, and returns what
// removes them. The first rule that matches decides; only Do lets the next ones
// have their say as well.
func (f *faults) Faults(rules ...Rule) (remove func()) {
	added := make([]*Rule, len(rules))
	for n := range rules {
		r := rules[n]
		if r.Times == 0 {
			r.Times = -1
		}
		added[n] = &r
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = append(f.rules, added...)
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.rules = slices.DeleteFunc(f.rules, func(r *Rule) bool { return slices.Contains(added, r) })
	}
}

// take uses up the rules that the call meets.
func (f *faults) take(c Call) (befalls Fault, run []func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	befalls = Fault{effect: true}
	for _, r := range f.rules {
		if r.Action != "" && r.Action != c.Action || r.Times == 0 || r.Match != nil && !r.Match(c) {
			continue
		}
		if r.Skip > 0 {
			r.Skip--
			continue
		}
		if r.Times > 0 {
			r.Times--
		}
		if r.Fault.run == nil {
			return r.Fault, run
		}
		run = append(run, r.Fault.run)
	}
	return befalls, run
}

// answer is what goes back to the caller.
type answer struct {
	status      int
	contentType string
	body        []byte
	code        string // of an error, for the ledger
	date        string // by the server's clock
}

func refuse(service string, e *Error) answer {
	contentType, body := e.render(service)
	return answer{status: e.Status, contentType: contentType, body: body, code: e.Code}
}

// gate is the way in that Stub and Proxy share: it notes the call, lets the
// fault that is due befall it, and notes the outcome.
type gate struct {
	faults
	ledger
	closing chan struct{}    // ends the calls that hang
	dated   func() time.Time // the clock of answers that are the gate's own
}

func (g *gate) pass(w http.ResponseWriter, r *http.Request, req request, c *Call, effect func(stale bool) answer) {
	fault, run := g.take(*c)
	for _, do := range run {
		do()
	}
	var a answer
	if fault.effect {
		a = effect(fault.stale)
		g.note(func() { c.Applied = a.status < http.StatusBadRequest })
	}
	if fault.answer != nil {
		e := fault.answer(req.service)
		if e.Code == denied[req.service].Code {
			e.Message = fmt.Sprintf(e.Message, caller, req.service+":"+req.action)
		}
		a = refuse(req.service, e)
	}
	switch {
	case fault.hang:
		select {
		case <-r.Context().Done():
		case <-g.closing:
		}
		g.note(func() { c.Outcome = "hung" })
		panic(http.ErrAbortHandler)
	case fault.cut:
		g.note(func() { c.Outcome = "cut" })
		panic(http.ErrAbortHandler) // closes the connection, and the server logs nothing
	}
	if a.date == "" {
		a.date = g.dated().UTC().Format(http.TimeFormat)
	}
	outcome := a.code
	if outcome == "" {
		outcome = "ok"
	}
	g.note(func() { c.Outcome = outcome })
	w.Header().Set("Date", a.date)
	w.Header().Set("Content-Type", a.contentType)
	w.Header().Set("X-Amzn-Requestid", requestID)
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body) // the caller may be gone
}
