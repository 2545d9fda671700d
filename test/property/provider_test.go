package property

import (
	"context"
	"flag"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"gpu-node-provider/cloud"
	"gpu-node-provider/proto"
	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/nodegroup"
)

// sequences is how many random sequences each search plays, unless -rapid.checks has
// another number (`make search`). Under -short rapid plays a fifth of what it is told.
const (
	sequences      = 10_000
	shortSequences = 60
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
	os.Exit(m.Run())
}

func TestProviderHoldsUnderRandomSequences(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		t.Repeat(map[string]func(*rapid.T){
			"":           w.step((*world).holds),
			"refresh":    w.step((*world).refresh),
			"increase":   w.step((*world).increase),
			"increase2":  w.step((*world).increase),
			"decrease":   w.step((*world).decrease),
			"delete":     w.step((*world).delete),
			"repeat":     w.step((*world).repeatDelete),
			"foreign":    w.step((*world).deleteForeign),
			"wait":       w.step((*world).wait),
			"new CA":     w.step((*world).newAutoscaler),
			"interrupt":  w.step((*world).interrupt),
			"kill":       w.step((*world).kill),
			"kill cloud": w.step((*world).killCloud),
			"reload":     w.step((*world).reload),
		})
	})
}

// step gives an action the T of its turn.
func (w *world) step(action func(*world)) func(*rapid.T) {
	return func(t *rapid.T) {
		w.T = t
		action(w)
	}
}

// holds is what must be true after every step.
func (w *world) holds() {
	listed := map[string]string{}
	for _, id := range w.ids() {
		target, counted := w.target(id), 0
		for _, i := range w.nodes(id) {
			if i.GetStatus().GetInstanceState() != proto.InstanceStatus_instanceDeleting {
				counted++
			}
			if other, twice := listed[i.GetId()]; twice {
				w.Fatalf("%s is listed in %s and in %s", i.GetId(), other, id)
			}
			listed[i.GetId()] = id
			w.placed(i.GetId(), id)
		}
		if target != counted {
			w.Fatalf("target of %s is %d, NodeGroupNodes counts %d", id, target, counted)
		}
		if most := w.maximum(id); most < target {
			w.Fatalf("maximum of %s is %d, below its target of %d", id, most, target)
		}
	}
	w.neverAgain()
}

// placed checks that an id is found in its group, as a fake too.
func (w *world) placed(id, group string) {
	response, err := w.server.NodeGroupForNode(context.Background(), &proto.NodeGroupForNodeRequest{Node: &proto.ExternalGrpcNode{ProviderID: id, Name: id}})
	if err != nil || response.GetNodeGroup().GetId() != group {
		w.Fatalf("NodeGroupForNode(%s) = %v, %v; it is listed in %s", id, response, err, group)
	}
}

// neverAgain checks in the cloud itself that an id which is gone stays gone.
func (w *world) neverAgain() {
	now := map[string]bool{}
	for _, g := range w.truth() {
		for _, i := range g.Instances {
			now[i.ID] = true
			if w.gone[i.ID] {
				w.Fatalf("%s was gone and is there again", i.ID)
			}
		}
	}
	for id := range w.seen {
		if !now[id] && w.configured(id) {
			w.gone[id] = true
		}
	}
	maps.Copy(w.seen, now)
}

// configured says whether an id's group is in the file; the instances of one
// that is not cannot be seen.
func (w *world) configured(id string) bool {
	return slices.Contains(w.ids(), "fleeting") || !strings.Contains(id, "fleeting")
}

func (w *world) wait() {
	w.clock = w.clock.Add(time.Duration(rapid.IntRange(1, 90).Draw(w.T, "seconds")) * time.Second)
}

func (w *world) refresh() {
	_, err := w.server.Refresh(context.Background(), &proto.RefreshRequest{})
	if err != nil && !unsure(err) {
		w.Fatalf("Refresh: %v", err)
	}
}

func (w *world) newAutoscaler() {
	if _, err := w.server.GPULabel(context.Background(), &proto.GPULabelRequest{}); err != nil {
		w.Fatalf("GPULabel: %v", err)
	}
	w.refreshed()
	w.absorbsOnce()
}

// refreshed refreshes until the flaky cloud lets it. An age above a minute
// shows its failures.
func (w *world) refreshed() {
	w.clock = w.clock.Add(61 * time.Second)
	for range 100 {
		if _, err := w.server.Refresh(context.Background(), &proto.RefreshRequest{}); err == nil {
			w.outside = false
			return
		}
	}
	w.Fatalf("no refresh passed in 100 tries")
}

// absorbsOnce checks that what is in flight when a process is new is not bought again.
func (w *world) absorbsOnce() {
	id := w.drawGroup()
	inFlight := 0
	for _, i := range w.nodes(id) {
		if i.GetStatus().GetInstanceState() == proto.InstanceStatus_instanceCreating && i.GetStatus().GetErrorInfo() == nil {
			inFlight++
		}
	}
	if inFlight == 0 {
		return
	}
	before := w.truth()[id].Target
	if most := w.maximum(id); most <= w.target(id) && !w.group(id).Retired {
		w.Fatalf("%d of %s are in flight without a request, and the maximum of %d leaves no room to ask", inFlight, id, most)
	}
	for range 100 { // the flaky cloud may not be read
		_, err := w.server.NodeGroupIncreaseSize(context.Background(), &proto.NodeGroupIncreaseSizeRequest{Id: id, Delta: 1})
		if err == nil {
			break
		}
		if !unsure(err) {
			w.Fatalf("an increase that capacity in flight absorbs: %v", err)
		}
	}
	if after := w.truth()[id].Target; after != before {
		w.Fatalf("%d of %s were in flight without a request, and the next increase took the target from %d to %d", inFlight, id, before, after)
	}
}

func (w *world) increase() {
	id := w.drawGroup()
	delta := rapid.IntRange(-1, 5).Draw(w.T, "delta")
	ctx, late := w.call()
	before := w.truth()
	_, err := w.server.NodeGroupIncreaseSize(ctx, &proto.NodeGroupIncreaseSizeRequest{Id: id, Delta: int32(delta)})
	after := w.truth()
	grown := after[id].Target - before[id].Target
	if grown > 0 {
		w.growth = append(w.growth, growth{w.clock, id, grown})
	}

	switch {
	case grown < 0 || grown > max(0, delta):
		w.Fatalf("an increase of %s by %d moved the target from %d to %d", id, delta, before[id].Target, after[id].Target)
	case grown > 0 && late:
		w.Fatalf("an increase of %s was started after its deadline", id)
	case grown > 0 && err != nil && !unsure(err):
		w.Fatalf("an increase of %s by %d failed with %v and grew by %d", id, delta, err, grown)
	case err == nil && w.target(id) != after[id].Target:
		w.Fatalf("after an increase the target of %s is %d, the cloud's is %d", id, w.target(id), after[id].Target)
	}
	w.withinLimits(id, grown, after)
	w.withinSurge(id)
}

// withinLimits checks a growth against every limit.
func (w *world) withinLimits(id string, grown int, after map[string]cloud.Group) {
	if grown == 0 {
		return
	}
	g := w.group(id)
	if g.Retired || after[id].Target > g.MaxSize {
		w.Fatalf("%s grew to %d, its maximum is %d (retired: %t)", id, after[id].Target, g.MaxSize, g.Retired)
	}
	if use, limit := gpus(after), w.gpuLimit(); use > limit && !w.outside {
		w.Fatalf("the quota of %d GPUs was passed: %d used after %s grew by %d", limit, use, id, grown)
	}
}

// withinSurge checks the group's surge in sequences where what was asked for is
// all there is to it: cancelling refunds, and a restart or a reload changes it.
func (w *world) withinSurge(id string) {
	surge := w.group(id).Surge
	if surge == nil || w.surgeUnclear {
		return
	}
	asked := 0
	for _, g := range w.growth {
		if g.group == id && w.clock.Sub(g.at) < surge.Window.Duration {
			asked += g.nodes
		}
	}
	if asked > surge.Max {
		w.Fatalf("%s was granted %d nodes within %s, its surge is %d", id, asked, surge.Window.Duration, surge.Max)
	}
}

func (w *world) decrease() {
	w.surgeUnclear = true
	id := w.drawGroup()
	delta := rapid.IntRange(-4, 1).Draw(w.T, "delta")
	ctx, _ := w.call()
	before := w.truth()
	_, err := w.server.NodeGroupDecreaseTargetSize(ctx, &proto.NodeGroupDecreaseTargetSizeRequest{Id: id, Delta: int32(delta)})
	after := w.truth()
	w.allLive(before, after, nil)
	fallen := before[id].Target - after[id].Target
	placeholders := 0
	for _, i := range before[id].Instances {
		if i.Placeholder {
			placeholders++
		}
	}
	if want := min(max(0, -delta), placeholders); fallen != want && (err == nil || fallen != 0) {
		w.Fatalf("a decrease of %s by %d with %d placeholders lowered the target by %d: %v", id, delta, placeholders, fallen, err)
	}
	if err == nil && fallen == 0 {
		w.Fatalf("a decrease of %s by %d was OK without effect", id, delta)
	}
	if err == nil && w.target(id) != after[id].Target {
		w.Fatalf("after a decrease the target of %s is %d, the cloud's is %d", id, w.target(id), after[id].Target)
	}
}

// allLive checks that no machine has gone but those named.
func (w *world) allLive(before, after map[string]cloud.Group, named []string) {
	still := live(after)
	for id := range live(before) {
		if !still[id] && !slices.Contains(named, id) {
			w.Fatalf("%s ran or booted, nobody named it, and it is going", id)
		}
	}
}

func (w *world) delete() {
	id := w.drawGroup()
	var known []string
	for _, i := range w.nodes(id) {
		known = append(known, i.GetId())
	}
	known = append(known, w.deleted[id]...)
	if len(known) == 0 {
		return
	}
	named := rapid.SliceOfN(rapid.SampledFrom(known), 1, 3).Draw(w.T, "nodes")
	w.deleteNamed(id, named)
}

func (w *world) repeatDelete() {
	id := w.drawGroup()
	if len(w.deleted[id]) == 0 {
		return
	}
	before := w.truth()[id].Target
	w.deleteNamed(id, w.deleted[id])
	if after := w.truth()[id].Target; after != before {
		w.Fatalf("repeating the deletion of %v in %s moved the target from %d to %d", w.deleted[id], id, before, after)
	}
}

func (w *world) deleteNamed(id string, named []string) {
	w.surgeUnclear = true
	fake := rapid.Bool().Draw(w.T, "fake")
	request := &proto.NodeGroupDeleteNodesRequest{Id: id}
	for _, n := range named {
		name := n
		if !fake {
			name = "node-of-" + n
		}
		request.Nodes = append(request.Nodes, &proto.ExternalGrpcNode{ProviderID: n, Name: name})
	}
	ctx, late := w.call()
	before := w.truth()
	_, err := w.server.NodeGroupDeleteNodes(ctx, request)
	after := w.truth()
	w.allLive(before, after, named)
	fallen, due := before[id].Target-after[id].Target, distinctPresent(before[id], named)
	switch {
	case fallen < 0 || fallen > due:
		w.Fatalf("deleting %v of %s, %d of them there, moved the target from %d to %d", named, id, due, before[id].Target, after[id].Target)
	case late && fallen > 0:
		w.Fatalf("a deletion in %s was started after its deadline", id)
	case err == nil && fallen != due:
		w.Fatalf("deleting %v of %s was OK and lowered the target by %d, not %d", named, id, fallen, due)
	case err != nil && !unsure(err) && fallen != 0:
		w.Fatalf("deleting %v of %s failed with %v and lowered the target by %d", named, id, err, fallen)
	case status.Code(err) == codes.InvalidArgument || status.Code(err) == codes.Internal:
		w.Fatalf("deleting %v of %s, all of them once listed there: %v", named, id, err)
	}
	if err == nil {
		w.deleted[id] = append(w.deleted[id], named...)
	}
	w.aboveMinimum(id, before, after)
}

// aboveMinimum checks that no machine went that the minimum needs.
func (w *world) aboveMinimum(id string, before, after map[string]cloud.Group) {
	if len(live(map[string]cloud.Group{id: after[id]})) < len(live(map[string]cloud.Group{id: before[id]})) && after[id].Target < w.group(id).MinSize {
		w.Fatalf("%s went down to %d, its minimum is %d", id, after[id].Target, w.group(id).MinSize)
	}
}

// distinctPresent counts the named ids that are part of the target.
func distinctPresent(g cloud.Group, named []string) int {
	n := 0
	for _, i := range g.Instances {
		if i.State != cloud.Deleting && slices.Contains(named, i.ID) {
			n++
		}
	}
	return n
}

func (w *world) deleteForeign() {
	id := w.drawGroup()
	before := w.truth()
	foreign := rapid.SampledFrom([]string{"aws:///us-east-1a/i-1", "kind://docker/kind/kind-worker", "x", "simulated:///nope/nope-abcde"}).Draw(w.T, "foreign")
	nodes := []*proto.ExternalGrpcNode{{ProviderID: foreign, Name: "n"}}
	for _, i := range before[id].Instances {
		nodes = append(nodes, &proto.ExternalGrpcNode{ProviderID: i.ID, Name: i.ID})
	}
	_, err := w.server.NodeGroupDeleteNodes(context.Background(), &proto.NodeGroupDeleteNodesRequest{Id: id, Nodes: nodes})
	if code := status.Code(err); code != codes.InvalidArgument && !unsure(err) {
		w.Fatalf("deleting the foreign %s: %v", foreign, err)
	}
	if after := w.truth(); after[id].Target != before[id].Target {
		w.Fatalf("a deletion with a foreign id moved the target from %d to %d", before[id].Target, after[id].Target)
	}
}

func (w *world) interrupt() {
	var machines []string
	for id := range live(w.truth()) {
		machines = append(machines, id)
	}
	if len(machines) == 0 {
		return
	}
	slices.Sort(machines)
	w.outside = true
	_ = w.cloud.Interrupt(context.Background(), rapid.SampledFrom(machines).Draw(w.T, "instance")) // the flaky cloud may not
}

func (w *world) kill() {
	w.surgeUnclear = true
	w.startServer()
	w.absorbsOnce()
}

func (w *world) killCloud() {
	w.surgeUnclear = true
	w.startCloud()
	w.startServer()
}

func (w *world) reload() {
	w.surgeUnclear = true
	next := w.file()
	dropped := slices.Contains(w.ids(), "fleeting") && !slices.ContainsFunc(next.NodeGroups, func(g config.NodeGroup) bool { return g.ID == "fleeting" })
	full := len(w.truth()["fleeting"].Instances) > 0
	err := w.server.Reload(context.Background(), nodegroup.New(next, w.cloud.TemplateID))
	if err == nil && dropped && full {
		w.Fatalf("a file that drops a group with instances was taken")
	}
	if err == nil {
		w.config = next
		delete(w.deleted, "fleeting")
	}
}
