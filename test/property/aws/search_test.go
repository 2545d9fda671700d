package aws

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/proto"
)

const noCapacity = "We currently do not have sufficient g4dn.xlarge capacity in the Availability Zone you requested (us-east-1a)."

// event draws what AWS does by itself, or somebody else with it.
func (w *region) event() func() {
	id, n := pools[w.draw(len(pools), "pool")], 1+w.draw(3, "how many")
	events := []func(){
		func() { w.stub.Launch(id, n) },
		func() { w.stub.BeginLaunch(id, n) },
		func() { w.stub.Arrive(id, n, true) },
		func() { w.stub.Arrive(id, n, false) },
		func() { w.stub.Boot(id, n) },
		func() { w.stub.Launch(id, n); w.stub.Boot(id, n) },
		func() { w.stub.Reap(id) },
		func() { w.stub.Step(id) },
	}
	if w.may["shortages"] {
		events = append(events,
			func() { w.stub.FailArrival(id, n, noCapacity) },
			func() { w.stub.Capacity(id, n-1, noCapacity) },
			func() { w.stub.Capacity(id, -1, "") })
	}
	if w.may["machines end"] {
		events = append(events, func() {
			running := slices.DeleteFunc(w.stub.Group(id).IDs(awstest.InService), func(machine string) bool {
				return w.isNamedLocked(machine) || !w.isKnown(id, machine)
			})
			if len(running) > 0 {
				w.stub.End(running[n%len(running)], awstest.Interrupted)
			}
		})
	}
	if w.may["suspensions"] {
		events = append(events, func() { w.stub.Suspend(id, "Launch") }, func() { w.stub.Resume(id, "Launch") }, func() { w.stub.Resume(id, "Launch") })
	}
	return events[w.draw(len(events), "event")]
}

// isNamedLocked reports whether a deletion that is under way names a machine. The Stub
// lowers the desired capacity a second time for one that AWS has ended in between.
func (w *region) isNamedLocked(machine string) bool {
	for c := range w.active {
		if slices.ContainsFunc(c.named, func(id string) bool { return machineOf(id) == machine }) {
			return true
		}
	}
	return false
}

// isKnown reports whether the provider has seen a machine in service. One that ends between
// two readings, in the first of which it boots, leaves a request open that Cluster
// Autoscaler has closed: the replacement takes its place in flight, and is bought again.
func (w *region) isKnown(id, machine string) bool {
	return slices.ContainsFunc(w.instances(id), func(i *proto.Instance) bool {
		return machineOf(i.GetId()) == machine && i.GetStatus().GetInstanceState() == proto.InstanceStatus_instanceRunning
	})
}

// outsider changes the desired capacity, or takes a machine out of a group. It lowers
// only as far as that costs no machine.
func (w *region) outsider() {
	id := pools[w.draw(len(pools), "pool")]
	g := w.stub.Group(id)
	desired, running, take := w.draw(g.Max+1, "desired"), g.IDs(awstest.InService), w.draw(3, "detach") == 0
	safe := g.Protected
	for _, i := range g.Instances {
		safe = safe && i.Protected
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.outside[id] = w.now()
	w.happensLocked(func() {
		switch {
		case take && len(running) > 0:
			w.stub.Detach(running[desired%len(running)], false)
		case safe || desired >= g.Live()+g.InFlight:
			w.stub.SetDesired(id, desired)
		}
	})
}

// nested draws a call that comes while another one is under way.
func (w *region) nested() func() {
	id, n := pools[w.draw(len(pools), "pool")], w.draw(3, "which")
	return []func(){
		func() { w.ca.refresh() },
		func() { w.ca.scaleUp(id) },
		func() {
			if spare := w.ca.look(id).spare; n < len(spare) {
				w.ca.delete(id, spare[n:n+1], false)
			}
		},
	}[w.draw(3, "nested")]
}

func (w *region) loop() {
	time.Sleep(10 * time.Second) //nolint:forbidigo // fake clock
	w.ca.loop()
}

// wait has Cluster Autoscaler stand still. The provider goes on to read AWS.
func (w *region) wait() {
	for range 1 + w.draw(5, "half minutes") {
		time.Sleep(29 * time.Second) //nolint:forbidigo // fake clock
		w.ca.refresh()
	}
}

func (w *region) pods() {
	id := pools[w.draw(len(pools), "pool")]
	w.need[id] = w.draw(w.group(id).MaxSize+2, "need")
	w.say("%s needs %d nodes", id, w.need[id])
}

func (w *region) happening() { w.happens(w.event()) }

// cancel gives up placeholders, as a request that takes too long does.
func (w *region) cancel() {
	id := pools[w.draw(len(pools), "pool")]
	if n := w.target(id) - w.truth(id).live; n > 0 {
		w.ca.decrease(id, 1+w.draw(n, "delta"))
	}
}

// raw makes a call that no loop makes at this time.
func (w *region) raw() {
	id := pools[w.draw(len(pools), "pool")]
	if w.draw(2, "raw") == 0 {
		w.ca.decrease(id, 1+w.draw(4, "delta"))
		return
	}
	known := w.ca.known(id)
	if len(known) == 0 {
		return
	}
	var named []string
	for range 1 + w.draw(2, "nodes") {
		named = append(named, known[w.draw(len(known), "node")])
	}
	w.ca.delete(id, named, w.draw(2, "fake") == 0)
}

// play plays one sequence, and returns what must not have happened.
func play(t tester, d draw, m mistake) error {
	defer time.Sleep(time.Minute) //nolint:forbidigo // fake clock: until what is late has arrived
	w, err := newRegion(t, d, m)
	if err != nil {
		return err
	}
	steps := []func(){w.loop, w.loop, w.loop, w.loop, w.cancel, w.cancel, w.wait, w.pods, w.pods, w.happening, w.happening, w.happening}
	for _, step := range []struct {
		kind string
		do   func()
	}{
		{"restarts", func() { w.process.dead.Store(true) }}, {"new autoscalers", w.ca.anew}, {"outsiders", w.outsider}, {"raw calls", w.raw},
	} {
		if w.may[step.kind] {
			steps = append(steps, step.do)
		}
	}
	for range 5 + d(25, "steps") {
		steps[d(len(steps), "step")]()
		if w.process.dead.Load() {
			if err := w.start(); err != nil {
				return err
			}
		}
		if err := w.holds(); err != nil {
			return err
		}
	}
	return w.rests()
}

// rests lets everything come to rest: then there is what is needed, and no more.
func (w *region) rests() error {
	w.resting = true
	for _, id := range pools {
		w.need[id] = min(w.need[id], w.group(id).MaxSize)
	}
	for w.wanted("t4")*gpusOf["t4"]+w.wanted("l4")*gpusOf["l4"] > w.quota {
		id := pools[0]
		if w.need["l4"] > w.need["t4"] {
			id = "l4"
		}
		w.need[id]--
	}
	w.say("at rest: t4 needs %d, l4 needs %d", w.need["t4"], w.need["l4"])
	w.happens(func() {
		for _, id := range pools {
			w.stub.Resume(id, "Launch")
			w.stub.Capacity(id, -1, "")
		}
	})
	for range loopsAtRest {
		time.Sleep(30 * time.Second) //nolint:forbidigo // fake clock
		w.happens(func() { w.stub.Step() })
		w.ca.loop()
		if err := w.holds(); err != nil {
			return err
		}
		if w.atRest("t4") && w.atRest("l4") {
			w.blamed()
			return w.found
		}
	}
	return fmt.Errorf("nothing changes any more: %d nodes of t4 are needed, and it is %v; %d of l4, and it is %v",
		w.need["t4"], w.truth("t4"), w.need["l4"], w.truth("l4"))
}

// loopsAtRest are longer than any backoff, surge or request lasts.
const loopsAtRest = 150

// wanted is how many nodes a group keeps.
func (w *region) wanted(id string) int { return max(w.need[id], w.group(id).MinSize) }

func (w *region) atRest(id string) bool {
	t := w.truth(id)
	return t.inService >= w.need[id] && t.target() <= w.wanted(id) && t.live == t.inService && t.desired <= t.live && t.leaving == 0
}

// sequences is how many the search plays, unless -rapid.checks has another number (`make
// search`). Under -short rapid plays a fifth of what it is told.
const (
	sequences      = 2500
	shortSequences = 20
)

func TestMain(m *testing.M) {
	flag.Parse()
	checks := sequences
	if testing.Short() {
		checks = 5 * shortSequences
	}
	explicit := false
	flag.Visit(func(f *flag.Flag) { explicit = explicit || f.Name == "rapid.checks" })
	if !explicit {
		if err := flag.Set("rapid.checks", strconv.Itoa(checks)); err != nil {
			panic(err)
		}
	}
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_EC2_METADATA_DISABLED": "true",
		"AWS_MAX_ATTEMPTS": "1",
	} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

func TestCapacity(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rapid.SyncTest(t, func(t *rapid.T) {
			if err := play(t, func(n int, label string) int { return rapid.IntRange(0, n-1).Draw(t, label) }, mistake{}); err != nil {
				t.Fatal(err)
			}
		})
	})
}
