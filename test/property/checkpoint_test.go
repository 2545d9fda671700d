package property

import (
	"context"
	"flag"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"gpu-node-provider/proto"
	"gpu-node-provider/provider/checkpoint"
	"gpu-node-provider/provider/guard"
)

// sequencesAtOnce is how many tests of sequences each run: together they try
// twenty thousand interleavings, and two cores are busy.
const sequencesAtOnce = 2

// TestNoTrainingIsLost plays pods, nodes, Redis, the API server and the provider
// through random interleavings, and checks each against the table "When a pod is
// clear" of provider/checkpoint/README.md.
func TestNoTrainingIsLost(t *testing.T) {
	for range sequencesAtOnce {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) { lose(t, inMemory, mutant{}) })
		})
	}
}

// wireShare is how many sequences in memory come on one over the provider's own
// client of Redis, where each reading is a round trip.
const wireShare = 50

// TestNoTrainingIsLostOverTheWire is the same with a real client, and a Redis that
// speaks the protocol.
func TestNoTrainingIsLostOverTheWire(t *testing.T) {
	t.Parallel()
	redis := wired(t)
	sequence := rapid.Custom(func(t *rapid.T) fault { return play(t, redis, mutant{}) })
	checks, seed := number(t, "rapid.checks"), number(t, "rapid.seed")
	if seed == 0 {
		seed = rand.IntN(1 << 30)
	}
	for n := range max(1, checks/wireShare) {
		if found := sequence.Example(seed + n); found != "" {
			t.Fatalf("%s\nTo reproduce, specify -run=%q -rapid.seed=%d", found, t.Name(), seed+n)
		}
	}
}

// number is the value of a flag of rapid.
func number(t *testing.T, name string) int {
	n, err := strconv.Atoi(flag.Lookup(name).Value.String())
	require.NoError(t, err)
	return n
}

func inMemory(now time.Time) redisServer { return newMemoryRedis(now) }

// lose fails when a sequence finds a fault.
func lose(t *rapid.T, redis func(time.Time) redisServer, m mutant) {
	if f := play(t, redis, m); f != "" {
		t.Fatal(string(f))
	}
}

// play plays one sequence, and returns what must not have happened.
func play(t *rapid.T, redis func(time.Time) redisServer, m mutant) (found fault) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case fault:
			found = r
		default:
			panic(r)
		}
	}()
	s := newSite(t, redis, m)
	t.Repeat(s.actions())
	s.T = t
	s.lastsForNobody()
	return ""
}

// everyday is what happens in every sequence; what is named twice happens more often.
var everyday = map[string]func(*site){
	"train": (*site).train, "train 2": (*site).train, "delete pod": (*site).deletePod, "go": (*site).goAway,
	"acknowledge": (*site).acknowledge, "acknowledge 2": (*site).acknowledge, "wait": (*site).wait, "wait 2": (*site).wait,
	"look": (*site).pass, "look 2": (*site).pass, "delete nodes": (*site).deleteNodes, "delete nodes 2": (*site).deleteNodes,
}

// troubles are drawn for each sequence: with all of them at once hardly a
// sequence gets far with any.
var troubles = []map[string]func(*site){
	{"start": (*site).startPod, "succeed": (*site).succeed},
	{"vanish": (*site).vanish, "fail": (*site).breakPod},
	{"redis fails": (*site).redisFails},
	{"redis forgets": (*site).redisForgets, "redis evicts": (*site).redisEvicts, "request expires": (*site).requestExpires},
	{"API fails": (*site).apiFails},
	{"record touched": (*site).touchRecord},
	{"restart": (*site).restart},
	{"new leader": (*site).newLeader, "late look": (*site).lateLook},
	{"not ready": (*site).notReady},
	{"delete node": (*site).deleteNode, "register": (*site).registerAgain},
	{"taint": (*site).taint, "evict": (*site).evict},
	{"annotate": (*site).annotate},
	{"interrupt": (*site).interrupt, "more": (*site).more, "refresh": (*site).refresh},
	{"news": (*site).news},
}

// lateNews is the last trouble: informers that lag.
var lateNews = len(troubles) - 1

func (s *site) actions() map[string]func(*rapid.T) {
	steps := map[string]func(*rapid.T){}
	add := func(actions map[string]func(*site)) {
		for name, action := range actions {
			steps[name] = func(t *rapid.T) {
				s.T = t
				action(s)
			}
		}
	}
	add(everyday)
	for n, trouble := range troubles {
		if n == lateNews && s.laggy || n != lateNews && rapid.Bool().Draw(s.T, "trouble") {
			add(trouble)
		}
	}
	return steps
}

func (s *site) refreshed() error {
	_, err := s.server.Refresh(context.Background(), &proto.RefreshRequest{})
	return err
}

// deletion is a node of a DeleteNodes.
type deletion struct {
	instance, name string
	unsafe         string
}

func (d deletion) fake() bool { return d.name == d.instance }

// deleteNodes is the question that all this is about.
func (s *site) deleteNodes() {
	machines := s.machines()
	if len(machines) == 0 {
		s.Skip("no machines")
	}
	named := rapid.SliceOfNDistinct(rapid.SampledFrom(machines), 1, min(2, len(machines)), rapid.ID[string]).Draw(s.T, "named")
	var all []deletion
	for _, id := range named {
		d := deletion{instance: id, name: nodeOf(id)}
		if rapid.IntRange(0, 2).Draw(s.T, "fake") == 0 {
			d.name = id
		}
		_, known := s.view.Node(id)
		d.unsafe = s.unsafe(id, known || !d.fake())
		all = append(all, d)
	}
	sure := s.sure(named)
	err := s.call(all)
	if sure && err != nil {
		panic(faultf("%v are held for nothing: %v", named, err))
	}
}

// call deletes nodes, and checks what comes of it.
func (s *site) call(all []deletion) error {
	request := &proto.NodeGroupDeleteNodesRequest{Id: "t4"}
	for _, d := range all {
		request.Nodes = append(request.Nodes, &proto.ExternalGrpcNode{ProviderID: d.instance, Name: d.name})
	}
	_, err := s.server.NodeGroupDeleteNodes(context.Background(), request)
	s.judge(all, err, s.machines())
	return err
}

// judge checks an answer against the table.
func (s *site) judge(all []deletion, err error, left []string) {
	gone, whole := 0, true
	for _, d := range all {
		whole = whole && (d.fake() || d.unsafe == "")
		if slices.Contains(left, d.instance) {
			continue
		}
		gone++
		if s.api.down {
			panic(faultf("%s went without a word of the API server", d.instance))
		}
		if d.unsafe != "" {
			panic(faultf("%s went: %s", d.instance, d.unsafe))
		}
	}
	switch {
	case err == nil && gone < len(all):
		panic(faultf("%d of %v went, and all is well", gone, all))
	case !whole && gone > 0:
		panic(faultf("a part of %v went, which Cluster Autoscaler cannot hear of", all))
	case err != nil && status.Code(err) != codes.FailedPrecondition && status.Code(err) != codes.Unavailable:
		panic(faultf("deleting %v: %v", all, err))
	}
}

// sure says whether nothing keeps the instances, by what is there at this moment.
func (s *site) sure(named []string) bool {
	if s.api.down || s.redisDown || len(s.stale) > 0 {
		return false
	}
	for _, p := range s.trainers {
		if p.stranger || !slices.Contains(named, p.instance) {
			continue
		}
		if !s.surely(p) {
			return false
		}
	}
	return true
}

// surely says whether a pod is clear and the provider cannot have missed why.
func (s *site) surely(p *trainer) bool {
	ok, _ := s.clear(p)
	switch {
	case !ok:
		return false
	case !p.over() || !p.started:
		return true
	case p.end == succeeded:
		return p.pod != nil
	case p.end == gone:
		return p.seenToEnd && newer(s.saved(p), p.term.Add(-s.rules.maxAge))
	default:
		return false
	}
}

// lastsForNobody ends a sequence: once all is well again and everybody has had
// the time to save, every instance may go, but for one whose trainer never does.
func (s *site) lastsForNobody() {
	s.redisDown, s.api.down, s.api.readOnly = false, false, false
	s.redis.fail(false)
	s.news()
	if s.late { // what another has written may be found out late, by a conflict, or by reading it
		s.restart()
	}
	stubborn, silent := s.windUp()
	s.look()
	s.passTime(s.rules.abandonAfter + s.rules.maxAge + 2*time.Hour + time.Minute)
	for _, p := range s.of(func(p *trainer) bool { return alive(p) && p.started && p != stubborn && !silent[p] }) {
		s.write(p, acknowledgement{savedAt: s.clock})
	}
	s.look()
	for _, id := range s.machines() {
		s.freed(id, stubborn)
	}
}

// look has the guard look until its writes meet no conflict.
func (s *site) look() {
	s.refresh()
	for range 5 {
		s.pass()
		s.news()
	}
}

// windUp decides what becomes of each pod: all save, stop or are stopped, but for
// one at most, and those on Nodes that are not Ready, of which nothing is heard.
func (s *site) windUp() (stubborn *trainer, silent map[*trainer]bool) {
	silent = map[*trainer]bool{}
	keep := rapid.Bool().Draw(s.T, "one is stubborn")
	for _, p := range s.of(func(p *trainer) bool { return p.pod != nil && s.exists(p.instance) }) {
		node, there := s.api.nodes[p.node]
		switch {
		case !there: // the Pod garbage collector comes
			s.ends(p, vanished)
			s.dropPod(p)
		case p.over() || !p.started || p.stranger || p.terminating():
		case node.Status.Conditions[0].Status != corev1.ConditionTrue:
			s.redis.del(checkpoint.AckKey(keyPrefix, p.id))
			p.ack, silent[p] = nil, true
		case keep && stubborn == nil && !p.released && node.Annotations[guard.ReleaseAnnotation] == "":
			stubborn = p
		default:
			s.bringToAnEnd(p)
		}
	}
	return stubborn, silent
}

func (s *site) bringToAnEnd(p *trainer) {
	switch rapid.SampledFrom([]string{"saves", "succeeds", "fails", "vanishes", "hangs"}).Draw(s.T, "end") {
	case "saves":
		s.write(p, acknowledgement{savedAt: s.clock})
	case "succeeds":
		s.finish(p, succeeded, corev1.PodSucceeded)
	case "fails":
		s.finish(p, failed, corev1.PodFailed)
	case "vanishes":
		s.ends(p, vanished)
		s.dropPod(p)
	case "hangs":
		s.terminate(p)
	}
}

// freed checks that an instance is as free as its pods are.
func (s *site) freed(id string, stubborn *trainer) {
	node := s.api.nodes[nodeOf(id)]
	holds := false
	if stubborn != nil && stubborn.instance == id {
		saved, _ := s.clear(stubborn) // by an acknowledgement that was of the future once
		holds = !saved
	}
	if node != nil && (node.Annotations[heldBy] != "" || holds && s.persons[node.Name]) != holds {
		panic(faultf("%s is marked %v, and is to be held: %t", node.Name, node.Annotations, holds))
	}
	d := deletion{instance: id, name: nodeOf(id)}
	if rapid.Bool().Draw(s.T, "fake") {
		d.name = id
	}
	d.unsafe = s.unsafe(id, true)
	if err := s.call([]deletion{d}); (err != nil) != holds {
		panic(faultf("%s is to be held: %t, and the answer is: %v", id, holds, err))
	}
}
