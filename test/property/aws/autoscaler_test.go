package aws

import (
	"context"
	"slices"
	"time"

	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/proto"
)

const (
	grpcTimeout   = 5 * time.Second  // of --cloud-config
	provisionTime = 15 * time.Minute // --max-node-provision-time
	backoffTime   = 5 * time.Minute
)

// autoscaler is Cluster Autoscaler 1.36 as far as the provider can tell: what it requests,
// gives up and deletes, and when it counts what is upcoming
// (cluster-autoscaler/clusterstate/clusterstate.go). Each Pod needs a node of one group.
type autoscaler struct {
	*region
	requests map[string]*request
}

// request is what it remembers of one group.
type request struct {
	increase int // 0 without an open request
	expires  time.Time
	backoff  time.Time
	failed   map[string]bool // placeholders that it has seen failed
}

func newAutoscaler(w *region) *autoscaler {
	a := &autoscaler{region: w, requests: map[string]*request{}}
	for _, id := range pools {
		a.requests[id] = &request{failed: map[string]bool{}}
	}
	return a
}

// standing is what it makes of a group in one loop.
type standing struct {
	target, most int
	upcoming     int
	missing      int      // Pods that no node has room for
	spare        []string // instances with a Node and without a Pod
}

// loop is one loop.
func (a *autoscaler) loop() {
	if !a.refresh() {
		return
	}
	for _, id := range pools {
		a.giveUp(id)
	}
	for _, id := range pools {
		a.scaleUp(id)
	}
	for _, id := range pools {
		a.scaleDown(id)
	}
}

func (a *autoscaler) refresh() bool {
	a.plan()
	defer a.endPlan()
	_, err := a.perform("refresh", "", nil, func(ctx context.Context) error {
		_, err := a.process.Refresh(ctx, &proto.RefreshRequest{})
		return err
	})
	return err == nil
}

func (a *autoscaler) look(id string) standing {
	g := standing{target: a.target(id), most: a.maxima()[id]}
	now := a.stub.Group(id)
	running := now.IDs(awstest.InService)
	a.mu.Lock()
	a.ready[id] = len(running)
	g.missing = a.need[id] - len(running)
	a.mu.Unlock()
	g.upcoming = g.target
	for _, i := range a.instances(id) {
		if slices.Contains(running, machineOf(i.GetId())) && i.GetStatus().GetInstanceState() != proto.InstanceStatus_instanceDeleting {
			g.upcoming--
			g.spare = append(g.spare, i.GetId())
		}
	}
	g.spare = g.spare[:max(0, min(len(g.spare), -g.missing))]
	return g
}

// giveUp ends requests that are fulfilled or have taken too long, and has failed
// placeholders deleted.
func (a *autoscaler) giveUp(id string) {
	r, g := a.requests[id], a.look(id)
	switch {
	case r.increase == 0:
	case g.upcoming <= 0:
		r.increase = 0
		a.closed(id)
	case !a.now().Before(r.expires):
		increase := r.increase
		r.increase, r.backoff = 0, a.now().Add(backoffTime)
		a.closed(id)
		a.decrease(id, increase)
	}
	var failed []string
	for _, i := range a.instances(id) {
		if i.GetStatus().GetErrorInfo() == nil {
			continue
		}
		failed = append(failed, i.GetId())
		if !r.failed[i.GetId()] {
			r.failed[i.GetId()] = true
			a.closed(id)
			r.increase, r.backoff = max(0, r.increase-1), a.now().Add(backoffTime)
		}
	}
	if len(failed) > 0 {
		a.delete(id, failed, true)
	}
}

// closed notes that the next increase may be absorbed again.
func (a *autoscaler) closed(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.absorbed[id] = false
}

func (a *autoscaler) scaleUp(id string) {
	r, g := a.requests[id], a.look(id)
	if a.now().Before(r.backoff) {
		return
	}
	if r.increase == 0 {
		g.upcoming = 0
	}
	if delta := min(g.missing-g.upcoming, g.most-g.target); delta > 0 {
		a.increase(id, delta)
	}
}

func (a *autoscaler) increase(id string, delta int) {
	r := a.requests[id]
	a.plan()
	defer a.endPlan()
	a.say("  increase %s by %d (ready %d, needed %d)", id, delta, a.ready[id], a.need[id])
	absorbed, forgone := a.counter("increases_absorbed_total", id), a.counter("increases_not_bought_total", id)
	c, err := a.perform("increase", id, nil, func(ctx context.Context) error {
		_, err := a.process.NodeGroupIncreaseSize(ctx, &proto.NodeGroupIncreaseSizeRequest{Id: id, Delta: int32(delta)})
		return err
	})
	if err != nil {
		r.backoff = a.now().Add(backoffTime)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.absorbed[id] = false
		return
	}
	r.increase += delta
	r.expires = a.now().Add(provisionTime)
	absorbed, forgone = a.counter("increases_absorbed_total", id)-absorbed, a.counter("increases_not_bought_total", id)-forgone
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case c.grown > 0:
		a.absorbed[id] = false
	case forgone > 0:
	case absorbed > 0 && (c.inFlight > 0 || c.lagged):
		if a.absorbed[id] {
			a.fail("two increases of %s in a row were answered without buying", id)
		}
		a.absorbed[id] = true
	case a.deniedLocked(id), c.arrived > 0:
	default:
		a.fail("an increase of %s by %d was answered, nothing was bought, and nothing was in flight (absorbed %d, in flight %d)", id, delta, absorbed, c.inFlight)
	}
}

func (a *autoscaler) decrease(id string, delta int) {
	a.say("  decrease %s by %d", id, delta)
	a.plan()
	defer a.endPlan()
	_, _ = a.perform("decrease", id, nil, func(ctx context.Context) error {
		_, err := a.process.NodeGroupDecreaseTargetSize(ctx, &proto.NodeGroupDecreaseTargetSizeRequest{Id: id, Delta: -int32(delta)})
		return err
	})
}

// delete names nodes, or what has no Node.
func (a *autoscaler) delete(id string, named []string, fake bool) {
	request := &proto.NodeGroupDeleteNodesRequest{Id: id}
	a.mu.Lock()
	for _, n := range named {
		name := n
		if !fake {
			name = "node-of-" + machineOf(n)
		}
		request.Nodes = append(request.Nodes, &proto.ExternalGrpcNode{ProviderID: n, Name: name})
		a.asked[machineOf(n)] = true
	}
	a.mu.Unlock()
	a.say("  delete %v", named)
	a.plan()
	defer a.endPlan()
	_, err := a.perform("delete", id, named, func(ctx context.Context) error {
		_, err := a.process.NodeGroupDeleteNodes(ctx, request)
		return err
	})
	if err != nil {
		return
	}
	for _, i := range a.instances(id) {
		if slices.Contains(named, i.GetId()) && i.GetStatus().GetInstanceState() != proto.InstanceStatus_instanceDeleting {
			a.mu.Lock()
			a.fail("%s of %s was deleted and is listed as %s", i.GetId(), id, i.GetStatus().GetInstanceState())
			a.mu.Unlock()
		}
	}
}

func (a *autoscaler) scaleDown(id string) {
	g := a.look(id)
	n := min(len(g.spare), g.target-a.group(id).MinSize)
	switch {
	case n <= 0 || g.missing >= 0:
	case a.resting:
		a.delete(id, g.spare[:n], false)
	case a.draw(2, "scale down") == 0:
		a.delete(id, g.spare[:1+a.draw(n, "nodes")], false)
	}
}

// anew is a new process, which has forgotten all requests.
func (a *autoscaler) anew() {
	a.say("  a new autoscaler")
	*a = *newAutoscaler(a.region)
	_, _ = a.process.GPULabel(context.Background(), &proto.GPULabelRequest{})
	a.mu.Lock()
	for _, id := range pools {
		a.absorbed[id] = false
	}
	a.mu.Unlock()
	a.loop()
}

// listed are the ids that a deletion may name.
func (a *autoscaler) known(id string) (ids []string) {
	for _, i := range a.instances(id) {
		ids = append(ids, i.GetId())
	}
	return ids
}
