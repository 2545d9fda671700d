package aws

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/cloud/cloudtest"
)

// The races of cases B-01 to B-04 (test/README.md): capacity that comes while it is given up,
// shortage, outside changes, lost answers, in every order. Whatever the order,
//   - no instance in service ends that nobody asked to delete;
//   - what a call reports is what it has done to the desired capacity, and each
//     termination lowers it once;
//   - the next Describe shows AWS as it is.
const asgOfRaces = "train-t4"

// draw is a number below n, from rapid or from a seed.
type draw func(n int, label string) int

// trouble befalls one call of the API.
type trouble int

const (
	none trouble = iota
	cutBefore
	cutAfter
	broken
	brokenAfter
	busy
	stale
	troubles
)

var faultOf = map[trouble]awstest.Fault{
	cutBefore: awstest.CutBefore(), cutAfter: awstest.CutAfter(), broken: awstest.Internal(), brokenAfter: awstest.InternalAfter(),
	busy: awstest.InProgress(), stale: awstest.Stale(),
}

// turn is what happens at one call of the API, just before it: the world moves
// on, and the call may meet trouble.
type turn struct {
	events  []func()
	trouble trouble
	look    bool // at the group
	read    bool // the Backend is asked to Describe while the call is under way
}

// race is one AWS and one Backend, and the account of what must be true.
type race struct {
	draw draw
	stub *awstest.Stub
	c    cloud.Backend

	mayStale bool
	seen     cloud.Group     // as last shown, for what to cancel and delete
	asked    map[string]bool // instances whose end was asked for

	mu     sync.Mutex // the API is called by several goroutines
	turns  []turn     // of the next calls
	due    []turn     // of calls that are being taken in
	now    trouble
	struck bool // trouble has been; from then on time flies, so that nothing is repeated in real time
	lagged bool // a stale answer was among them
	unseen int  // instances that have come since the group was last read

	reading bool // in the middle of an operation, as Cluster Autoscaler does
}

func newRace(t awstest.TB, d draw, r rival) (*race, error) {
	m := &race{draw: d, stub: awstest.NewStub(t, awstest.WithSeed(uint64(d(1000, "seed")))), asked: map[string]bool{}}
	m.stub.CreateGroup(awstest.Group{
		Name: asgOfRaces, Max: 20, Desired: d(5, "desired"), Protected: d(2, "protected") == 1,
		Zones: []string{"us-east-1a", "us-east-1b"}[:1+d(2, "zones")],
	})
	m.stub.Settle()
	// The Backend may find somebody else's scale-up under way.
	m.stub.SetDesired(asgOfRaces, m.stub.Group(asgOfRaces).Desired+d(4, "more desired"))
	m.stub.Launch(asgOfRaces, d(3, "booting"))
	m.stub.WorstVictims(d(2, "worst victims") == 1)
	m.mayStale = d(3, "stale answers") == 0
	m.stub.Faults(awstest.Rule{Match: m.arrives, Fault: awstest.Do(m.happens)})
	for kind, fault := range faultOf {
		m.stub.Faults(awstest.Rule{Match: func(awstest.Call) bool { return m.now == kind }, Fault: fault})
	}
	sdk := awstest.Config(t, m.stub.URL())
	sdk.Retryer = func() awssdk.Retryer { return awssdk.NopRetryer{} } // its pauses are in real time
	if r.connection != nil {
		sdk.HTTPClient = r.connection(sdk.HTTPClient)
	}
	r.options.Now = m.stub.Now
	c, err := open(sdk, r.options)
	if err != nil {
		return nil, err
	}
	m.c = c
	if r.backend != nil {
		m.c = r.backend(c, m.stub)
	}
	if err := m.c.Configure(context.Background(), []cloud.Spec{{ID: "t4", Name: asgOfRaces}}); err != nil {
		return nil, err
	}
	return m, m.describes()
}

// arrives chooses the turn of a call. It runs under the lock of the rules, whose
// next ones look at now.
func (m *race) arrives(c awstest.Call) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	var t turn
	if len(m.turns) > 0 && !m.reading {
		t, m.turns = m.turns[0], m.turns[1:]
	}
	if read := strings.HasPrefix(c.Action, "Describe"); t.trouble == stale && !read || t.trouble == busy && read {
		t.trouble = none
	}
	t.look = c.Action == "DescribeAutoScalingGroups" && t.trouble == none
	m.now = t.trouble
	m.struck = m.struck || t.trouble != none && t.trouble != stale
	m.lagged = m.lagged || t.trouble == stale
	m.due = append(m.due, t)
	return true
}

func (m *race) happens() {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.due[0]
	m.due = m.due[1:]
	before := m.stub.Group(asgOfRaces).Live()
	for _, event := range t.events {
		event()
	}
	m.unseen += max(0, m.stub.Group(asgOfRaces).Live()-before)
	if t.look {
		m.unseen = 0
	}
	if m.struck {
		m.stub.Advance(30 * time.Second)
	}
	if t.read && !m.reading {
		m.reading = true
		m.mu.Unlock()
		_, _ = m.c.Describe(context.Background(), "t4") // what it leads to is what counts
		m.mu.Lock()
		m.reading = false
	}
}

// events are what the world may do at any time, between two calls of one
// operation too. None asks for the end of an instance.
func (m *race) events() []func() {
	n := 1 + m.draw(3, "how many")
	return []func(){
		func() { m.stub.Launch(asgOfRaces, n) },
		func() { m.stub.BeginLaunch(asgOfRaces, n) },
		func() { m.stub.Arrive(asgOfRaces, n, true) },
		func() { m.stub.Arrive(asgOfRaces, n, false) },
		func() { m.stub.FailArrival(asgOfRaces, n, noCapacity) },
		func() { m.stub.Boot(asgOfRaces, n) },
		func() { m.stub.Launch(asgOfRaces, n); m.stub.Boot(asgOfRaces, n) },
		func() { m.stub.Reap(asgOfRaces) },
		func() { m.stub.Step() },
		func() { m.stub.Capacity(asgOfRaces, n-1, noCapacity) },
		func() { m.stub.Capacity(asgOfRaces, -1, "") },
	}
}

func (m *race) event() func() {
	events := m.events()
	return events[m.draw(len(events), "event")]
}

// plan lays down what happens at the calls of the next operation.
func (m *race) plan() {
	var turns []turn
	for range m.draw(7, "turns") {
		var t turn
		for range m.draw(3, "events") {
			t.events = append(t.events, m.event())
		}
		if m.draw(6, "in trouble") == 0 {
			t.trouble = trouble(m.draw(int(troubles), "trouble"))
			if t.trouble == stale && !m.mayStale {
				t.trouble = none
			}
		}
		t.read = m.draw(4, "read") == 0
		turns = append(turns, t)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turns, m.struck, m.unseen = turns, false, 0
}

func (m *race) endPlan() (struck, lagged bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turns = nil
	struck, lagged, m.struck = m.struck, m.lagged, false
	return struck, lagged
}

// step is one thing that happens, and what must be true after it.
func (m *race) step() error {
	kinds := []func() error{m.increases, m.cancels, m.cancels, m.deletes, m.describes, m.outside, m.world, m.world}
	if err := kinds[m.draw(len(kinds), "step")](); err != nil {
		return err
	}
	return m.nobodyDied()
}

func (m *race) world() error {
	m.event()()
	return nil
}

// outside is somebody else at work. Lowering is left to the Backend as long as it
// could cost instances: AWS does what it is told, and those would be no fault of ours.
func (m *race) outside() error {
	g := m.stub.Group(asgOfRaces)
	safe := g.Protected
	for _, i := range g.Instances {
		safe = safe && i.Protected
	}
	switch running := g.IDs(awstest.InService); m.draw(4, "who") {
	case 0:
		if desired := m.draw(g.Max, "desired"); safe || desired >= g.Live()+g.InFlight {
			m.stub.SetDesired(asgOfRaces, desired)
			m.stub.Advance(2 * lagTime) // back to a value of before, it would pass for an answer that lags
		}
	case 1:
		if len(running) > 0 {
			m.stub.End(running[m.draw(len(running), "instance")], awstest.Interrupted)
		}
	case 2:
		if len(running) > 0 {
			m.stub.Detach(running[m.draw(len(running), "instance")], false)
		}
	default:
		m.stub.Advance(time.Duration(m.draw(90, "seconds")) * time.Second)
	}
	return nil
}

func (m *race) nobodyDied() error {
	if victims := m.stub.Victims(); len(victims) > 0 {
		return fmt.Errorf("instance %s was in service, and nobody asked for its end", victims[0].Instance)
	}
	for _, k := range m.stub.Kills() {
		if k.Why == awstest.Asked && !m.asked[k.Instance] {
			return fmt.Errorf("instance %s was ended by its id, and nobody asked for that", k.Instance)
		}
	}
	return nil
}

// describes compares what the Backend shows with AWS. Only after a stale answer
// may it be behind, until time has passed.
func (m *race) describes() error {
	if _, lagged := m.endPlan(); lagged {
		m.stub.Advance(2 * lagTime)
		m.lagged = false
	}
	groups, err := m.c.Describe(context.Background(), "t4")
	if err != nil {
		return fmt.Errorf("describe: %w", err)
	}
	m.seen = groups[0]
	g := m.stub.Group(asgOfRaces)
	if want := max(g.Desired, g.Live()); m.seen.Target != want {
		return fmt.Errorf("the target is shown as %d, and is %d: desired %d, live %d", m.seen.Target, want, g.Desired, g.Live())
	}
	units := 0
	for _, i := range m.seen.Instances {
		if i.State != cloud.Deleting {
			units++
		}
	}
	if units != m.seen.Target {
		return fmt.Errorf("%d units are shown for a target of %d", units, m.seen.Target)
	}
	return nil
}

// operate runs one write of the Backend, with a world that does not stand still,
// and looks what became of the desired capacity.
func (m *race) operate(name string, write func() error, check func(before, after awstest.GroupState, calm bool, err error) error) error {
	before := m.stub.Group(asgOfRaces)
	m.plan()
	err := write()
	struck, lagged := m.endPlan()
	after := m.stub.Group(asgOfRaces)
	if !lagged {
		if wrong := check(before, after, !struck, err); wrong != nil {
			return fmt.Errorf("%s (desired %d → %d, live %d → %d, error: %s): %w", name, before.Desired, after.Desired, before.Live(), after.Live(), fmt.Sprint(err), wrong)
		}
	}
	if wrong := m.nobodyDied(); wrong != nil {
		return fmt.Errorf("%s: %w", name, wrong)
	}
	return m.describes() // not wrong for longer than this
}

func isInDoubt(err error) bool { return errors.Is(err, cloud.ErrUnknownOutcome) }

func (m *race) increases() error {
	delta := 1 + m.draw(4, "delta")
	return m.operate(fmt.Sprintf("increase by %d", delta), func() error {
		_, err := m.c.Increase(context.Background(), "t4", cloudtest.Exactly(delta))
		return err
	}, func(before, after awstest.GroupState, _ bool, err error) error {
		least, most := before.Desired+delta, max(before.Desired, before.Live(), after.Live())+delta
		done := after.Desired >= least && after.Desired <= most
		unchanged := after.Desired == before.Desired
		switch {
		case err == nil && !done:
			return fmt.Errorf("between %d and %d are to be desired", least, most)
		case isInDoubt(err) && !done && !unchanged, err != nil && !isInDoubt(err) && !unchanged:
			return errors.New("something else has come of it")
		}
		return nil
	})
}

func (m *race) pick(wanted func(cloud.Instance) bool) []string {
	ids := idsOf(m.seen, wanted)
	var some []string
	for range min(len(ids), 1+m.draw(4, "how many")) {
		some = append(some, ids[m.draw(len(ids), "which")])
	}
	return some
}

func (m *race) cancels() error {
	named := m.pick(isPlaceholder)
	var given []string
	return m.operate(fmt.Sprintf("cancel %d", len(named)), func() (err error) {
		_, given, err = m.c.Cancel(context.Background(), "t4", cloudtest.These(named))
		return err
	}, func(before, after awstest.GroupState, calm bool, err error) error {
		lowered := before.Desired - after.Desired
		switch {
		case lowered < 0 && after.Desired > max(before.Live(), after.Live()):
			return errors.New("it was raised")
		case err == nil && calm && lowered != len(given):
			return fmt.Errorf("%d are said to be given up, and %d were", len(given), lowered)
		case err == nil && lowered < len(given):
			return fmt.Errorf("%d are said to be given up, and only %d were", len(given), lowered)
		case err != nil && lowered != 0 && !isInDoubt(err):
			return errors.New("something changed after all")
		case lowered > len(distinct(named)):
			return errors.New("more was given up than was named")
		case err == nil && calm && after.Live()-after.Desired > max(0, before.Live()+before.InFlight-before.Desired)+m.unseen:
			return errors.New("what came meanwhile is more than is desired")
		}
		return nil
	})
}

func (m *race) deletes() error {
	named := m.pick(func(i cloud.Instance) bool { return !i.Placeholder })
	for _, id := range named {
		name, _ := parseID(id)
		m.asked[name] = true
	}
	kills := len(m.stub.Kills())
	var confirmed []string
	return m.operate(fmt.Sprintf("delete %d", len(named)), func() (err error) {
		_, confirmed, err = m.c.Delete(context.Background(), "t4", named)
		return err
	}, func(before, after awstest.GroupState, _ bool, err error) error {
		asked, overtaken := 0, 0
		for _, k := range m.stub.Kills()[kills:] {
			switch {
			case k.Why == awstest.Asked:
				asked++
			case slices.ContainsFunc(named, func(id string) bool { return strings.HasSuffix(id, k.Instance) }):
				overtaken++ // ended as it was being told to, it may be counted twice
			}
		}
		for _, id := range confirmed {
			name, _ := parseID(id)
			for _, i := range after.Instances {
				if i.ID == name && !strings.HasPrefix(i.State, awstest.Terminating) {
					return fmt.Errorf("%s is confirmed, and is %s", name, i.State)
				}
			}
		}
		if err == nil && len(confirmed) < len(distinct(named)) {
			return fmt.Errorf("only %d are confirmed", len(confirmed))
		}
		// More machines than are desired are levelled first.
		if from := max(before.Desired, before.Live(), after.Live()+asked); after.Desired < before.Desired-asked-overtaken || after.Desired > from-asked && asked > 0 {
			return fmt.Errorf("%d were ended, from %d", asked+overtaken, from)
		}
		return nil
	})
}

func distinct(ids []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(ids)))
}

// ends lets everything come to rest: then all that is desired is there.
func (m *race) ends() error {
	m.endPlan()
	m.stub.Capacity(asgOfRaces, -1, "")
	m.stub.Advance(2 * lagTime)
	m.stub.Settle()
	m.lagged = false
	if err := m.nobodyDied(); err != nil {
		return err
	}
	if err := m.describes(); err != nil {
		return fmt.Errorf("at rest: %w", err)
	}
	if left := idsOf(m.seen, isPlaceholder); len(left) > 0 {
		return fmt.Errorf("at rest: placeholders %v", left)
	}
	return nil
}

// play is one random run.
func play(t awstest.TB, d draw, r rival) error {
	m, err := newRace(t, d, r)
	if err != nil {
		return err
	}
	for range 1 + d(25, "steps") {
		if err := m.step(); err != nil {
			return err
		}
	}
	return m.ends()
}

// races is how many runs there are, unless -rapid.checks has another number (`make
// search`). Under -short rapid plays a fifth of what it is told.
const (
	races      = 2500
	shortRaces = 20
)

func TestRaces(t *testing.T) {
	setRaces(t)
	rapid.Check(t, func(t *rapid.T) {
		if err := play(t, func(n int, label string) int { return rapid.IntRange(0, n-1).Draw(t, label) }, rival{}); err != nil {
			t.Fatal(err)
		}
	})
}

func setRaces(t *testing.T) {
	checks := flag.Lookup("rapid.checks")
	if checks.Value.String() != checks.DefValue {
		return
	}
	t.Cleanup(func() { require.NoError(t, checks.Value.Set(checks.DefValue)) })
	runs := races
	if testing.Short() {
		runs = 5 * shortRaces
	}
	require.NoError(t, checks.Value.Set(strconv.Itoa(runs)))
}
