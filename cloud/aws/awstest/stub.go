package awstest

import (
	"net/http"
	"net/http/httptest"
	"sort"
	"sync"
	"time"
)

const (
	contentXML  = "text/xml"
	contentJSON = "application/x-amz-json-1.1"
	requestID   = "00000000-0000-4000-8000-000000000000"
	account     = "000000000000"
	region      = "us-east-1"
)

// Epoch is when the Stub's own clock begins.
var Epoch = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

// Stub is an AWS of its own on a port of loopback. Nothing happens in it by
// itself unless Immediate is on: the test moves it with Step, Launch and Boot.
type Stub struct {
	gate
	url func() string // starts to listen

	mu        sync.Mutex
	groups    map[string]*group
	names     []string // of the groups, sorted
	owner     map[string]*group
	gone      []Instance // ended instances, which EC2 still tells of
	serial    int
	random    uint64
	clock     func() time.Time
	now       time.Time
	immediate bool
	deferred  bool
	worst     bool
	early     bool
	repeated  RepeatedTerminate
	types     map[string]InstanceType
	quotas    map[string]float64
	defaults  map[string]float64
	templates []templateVersion
	// nodeGroups are those of EKS, by cluster/name.
	nodeGroups map[string]NodeGroup
}

// Option changes how a Stub begins.
type Option func(*Stub)

// WithClock has the Stub read the time from elsewhere; Advance then has no effect.
func WithClock(now func() time.Time) Option { return func(s *Stub) { s.clock = now } }

// WithSeed changes the choices that AWS leaves open: the victims of scale-in.
func WithSeed(seed uint64) Option { return func(s *Stub) { s.random = seed } }

// NewStub starts a Stub, which ends with the test.
func NewStub(t TB, options ...Option) *Stub {
	t.Helper()
	s := &Stub{
		groups: map[string]*group{}, owner: map[string]*group{}, random: 1, now: Epoch,
		types: map[string]InstanceType{}, quotas: map[string]float64{}, defaults: map[string]float64{}, nodeGroups: map[string]NodeGroup{},
	}
	s.closing, s.dated = make(chan struct{}), s.Now
	for _, kind := range catalogue {
		s.types[kind.Name] = kind
	}
	for code, value := range defaultQuotas {
		s.defaults["ec2/"+code] = value
	}
	for _, o := range options {
		o(s)
	}
	var server *httptest.Server
	s.url = sync.OnceValue(func() string {
		server = httptest.NewServer(http.HandlerFunc(s.serve))
		return server.URL
	})
	t.Cleanup(func() {
		close(s.closing)
		if server != nil {
			server.Close()
		}
	})
	return s
}

// URL is the endpoint of all three services. Nothing listens until it is called.
func (s *Stub) URL() string { return s.url() }

// Now is the Stub's time.
func (s *Stub) Now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.timeLocked()
}

// Advance moves the Stub's own clock.
func (s *Stub) Advance(by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = s.now.Add(by)
}

func (s *Stub) timeLocked() time.Time {
	if s.clock != nil {
		return s.clock()
	}
	return s.now
}

// tickLocked is the time of an event. The own clock moves a little with each, so
// that no two events are of one moment and their order can be read off.
func (s *Stub) tickLocked() time.Time {
	s.now = s.now.Add(time.Millisecond)
	return s.timeLocked()
}

// handler carries out one action. It writes the content of the answer's result.
type handler struct {
	run   func(s *Stub, r request, w *xmlWriter) *Error
	write bool
}

func (s *Stub) serve(w http.ResponseWriter, r *http.Request) {
	req, err := read(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	call := s.arrive(req, s.Now())
	s.pass(w, r, req, call, func(stale bool) answer { return s.apply(req, stale) })
}

func (s *Stub) apply(req request, stale bool) answer {
	switch req.service {
	case servicequotas:
		return s.quota(req)
	case eks:
		return s.nodeGroup(req)
	}
	table := autoscalingActions
	if req.service == ec2 {
		table = ec2Actions
	}
	h, ok := table[req.action]
	if !ok {
		return refuse(req.service, badParam("InvalidAction", "The action %s is not valid for this web service.", req.action))
	}
	out := &xmlWriter{b: make([]byte, 0, 4<<10)}
	begin(out, req)
	s.mu.Lock()
	defer s.mu.Unlock()
	if stale && !h.write {
		defer s.turnBackLocked()()
	}
	if e := h.run(s, req, out); e != nil {
		return refuse(req.service, e)
	}
	if h.write && s.immediate {
		s.settleLocked(s.names)
	}
	finish(out, req)
	return answer{status: http.StatusOK, contentType: contentXML, body: out.b}
}

// staleFor is how long after a write a stale answer may still be from before it. AWS's
// own lag by seconds.
const staleFor = time.Minute

// turnBackLocked shows every group as it was before its last write, until the
// returned function is called.
func (s *Stub) turnBackLocked() func() {
	groups, owner := s.groups, s.owner
	s.groups = make(map[string]*group, len(groups))
	s.owner = make(map[string]*group, len(owner))
	for name, g := range groups {
		if g.before != nil && s.timeLocked().Sub(g.written) < staleFor {
			g = g.before
		}
		s.groups[name] = g
		for _, i := range g.instances {
			s.owner[i.ID] = g
		}
	}
	return func() { s.groups, s.owner = groups, owner }
}

// begin and finish write what wraps a result. Auto Scaling has an element for
// the result, EC2 has not.
func begin(w *xmlWriter, r request) {
	if r.service == ec2 {
		w.open(r.action + `Response xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"`)
		w.str("requestId", requestID)
		return
	}
	w.open(r.action + `Response xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/"`)
	w.open(r.action + "Result")
}

func finish(w *xmlWriter, r request) {
	if r.service != ec2 {
		w.close(r.action + "Result")
		w.in("ResponseMetadata", func() { w.str("RequestId", requestID) })
	}
	w.close(r.action + "Response")
}

func (s *Stub) groupLocked(name string) (*group, *Error) {
	if g := s.groups[name]; g != nil {
		return g, nil
	}
	return nil, invalid("AutoScalingGroup name not found - AutoScalingGroup '%s' not found", name)
}

func (s *Stub) addLocked(g *group) {
	s.groups[g.Name] = g
	at := sort.SearchStrings(s.names, g.Name)
	s.names = append(s.names, "")
	copy(s.names[at+1:], s.names[at:])
	s.names[at] = g.Name
}
