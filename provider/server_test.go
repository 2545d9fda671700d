package provider

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	clocktesting "k8s.io/utils/clock/testing"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/simulated"
	"gpu-node-provider/proto"
	"gpu-node-provider/provider/checkpoint"
	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/nodegroup"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testFile has a plain group, t4, and one with overrides, opts.
const testFile = `
apiVersion: gpu-node-provider.io/v1
kind: ProviderConfig
cloud: {simulated: {}}
redis: {embedded: {}}
nodeGroups:
  - id: t4
    maxSize: 4
    labels: {accelerator: nvidia-tesla-t4}
    capacity: {cpu: 4, memory: 16Gi, nvidia.com/gpu: 1}
    hourlyPrice: 0.5
  - id: opts
    maxSize: 4
    labels: {accelerator: nvidia-l4}
    capacity: {cpu: 4, memory: 16Gi, nvidia.com/gpu: 1}
    scaleDown: {gpuUtilizationThreshold: 0.7}
`

func testConfig() *config.Config {
	c, err := config.Parse([]byte(testFile))
	if err != nil {
		panic(err)
	}
	return c
}

func catalogue(c *config.Config) *nodegroup.Catalogue {
	return nodegroup.New(c, (&simulated.Cloud{}).TemplateID)
}

func newClock() *clocktesting.FakeClock {
	return clocktesting.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
}

const bootDelay = time.Minute

func newTestCloud(t testing.TB, now func() time.Time) *simulated.Cloud {
	pretend, err := simulated.New(simulated.Options{Now: now, BootDelay: bootDelay, LaunchDelay: time.Second})
	require.NoError(t, err)
	return pretend
}

func newTestServer(t testing.TB, c *config.Config) *Server {
	now := newClock().Now
	return start(t, Options{Catalogue: catalogue(c), Backend: newTestCloud(t, now), Now: now})
}

func start(t testing.TB, o Options) *Server {
	s, err := New(context.Background(), o)
	require.NoError(t, err)
	return s
}

func requireConsistent(t testing.TB, s *Server) {
	for _, g := range s.current.Load().order {
		n := 0
		for _, i := range g.nodes.GetInstances() {
			if i.GetStatus().GetInstanceState() != proto.InstanceStatus_instanceDeleting {
				n++
			}
		}
		require.EqualValues(t, n, g.targetSize.GetTargetSize(), "target of %s", g.ID)
		require.GreaterOrEqual(t, g.max, g.state.Target, "maximum of %s", g.ID)
	}
}

func increase(s *Server, group string, delta int) error {
	_, err := s.NodeGroupIncreaseSize(context.Background(), &proto.NodeGroupIncreaseSizeRequest{Id: group, Delta: int32(delta)})
	return err
}

func targetOfT4(t testing.TB, s *Server) int {
	response, err := s.NodeGroupTargetSize(context.Background(), &proto.NodeGroupTargetSizeRequest{Id: "t4"})
	require.NoError(t, err)
	return int(response.GetTargetSize())
}

// scripted is a cloud whose calls can be held up and made to fail.
type scripted struct {
	cloud.Backend
	describe func(ctx context.Context, groups []cloud.Group) ([]cloud.Group, error)
	increase func(ctx context.Context, g cloud.Group, err error) (cloud.Group, error)
	// loseAnswers carries out a Cancel or Delete, and returns what the group was before.
	loseAnswers bool
	// unsettled is of group t4 in all its pictures.
	unsettled cloud.Unsettled
}

func (b *scripted) shown(g cloud.Group) cloud.Group {
	if g.ID == "t4" {
		g.Unsettled = b.unsettled
	}
	return g
}

// lost returns a group as it was before a write of one unit whose answer is lost.
func (b *scripted) lost(before []cloud.Group) (cloud.Group, []string, error) {
	b.unsettled.Fewer = 1
	return b.shown(before[0]), nil, cloud.ErrUnknownOutcome
}

func (b *scripted) Describe(ctx context.Context, ids ...string) ([]cloud.Group, error) {
	groups, err := b.Backend.Describe(ctx, ids...)
	for n := range groups {
		groups[n] = b.shown(groups[n])
	}
	if b.describe == nil || err != nil {
		return groups, err
	}
	return b.describe(ctx, groups)
}

func (b *scripted) Increase(ctx context.Context, id string, more func(cloud.Group) int) (cloud.Group, error) {
	g, err := b.Backend.Increase(ctx, id, more)
	if b.increase == nil {
		return b.shown(g), err
	}
	return b.increase(ctx, g, err)
}

func (b *scripted) Cancel(ctx context.Context, id string, which func(cloud.Group) []string) (cloud.Group, []string, error) {
	before, _ := b.Backend.Describe(ctx, id)
	g, cancelled, err := b.Backend.Cancel(ctx, id, which)
	if b.loseAnswers {
		return b.lost(before)
	}
	return g, cancelled, err
}

func (b *scripted) Delete(ctx context.Context, id string, instances []string) (cloud.Group, []string, error) {
	before, _ := b.Backend.Describe(ctx, id)
	g, confirmed, err := b.Backend.Delete(ctx, id, instances)
	if b.loseAnswers {
		return b.lost(before)
	}
	return g, confirmed, err
}

func TestSnapshotNeverFallsBehindAnAcknowledgedWrite(t *testing.T) {
	clock := newClock()
	backend := &scripted{Backend: newTestCloud(t, clock.Now)}
	s := start(t, Options{Catalogue: catalogue(testConfig()), Backend: backend, Now: clock.Now})

	read, carryOn := make(chan struct{}), make(chan struct{})
	backend.describe = func(_ context.Context, groups []cloud.Group) ([]cloud.Group, error) {
		close(read) // the cloud was read before the write
		<-carryOn
		return groups, nil
	}
	refreshed := make(chan error)
	go func() { refreshed <- s.refresh(context.Background()) }()
	<-read
	require.NoError(t, increase(s, "t4", 2))
	close(carryOn)
	require.NoError(t, <-refreshed)
	require.Equal(t, 2, targetOfT4(t, s), "the refresh began before the write and must not undo it")
}

func TestUnknownOutcomeIsSettledByTheCloud(t *testing.T) {
	clock := newClock()
	backend := &scripted{Backend: newTestCloud(t, clock.Now)}
	s := start(t, Options{Catalogue: catalogue(testConfig()), Backend: backend, Now: clock.Now})
	backend.increase = func(_ context.Context, g cloud.Group, _ error) (cloud.Group, error) {
		return g, cloud.ErrUnknownOutcome
	}
	require.NoError(t, increase(s, "t4", 2), "the cloud says that it was carried out")
	require.Equal(t, 2, targetOfT4(t, s))
}

func TestAnswerThatNobodyReadIsAbsorbedLater(t *testing.T) {
	clock := newClock()
	backend := &scripted{Backend: newTestCloud(t, clock.Now)}
	s := start(t, Options{Catalogue: catalogue(testConfig()), Backend: backend, Now: clock.Now})

	ctx, cancel := context.WithCancel(context.Background())
	backend.increase = func(_ context.Context, g cloud.Group, err error) (cloud.Group, error) {
		cancel() // the caller goes while the cloud works
		return g, err
	}
	_, err := s.NodeGroupIncreaseSize(ctx, &proto.NodeGroupIncreaseSizeRequest{Id: "t4", Delta: 2})
	require.Equal(t, codes.Canceled, status.Code(err), "%v", err)
	require.Equal(t, 2, targetOfT4(t, s))

	backend.increase = nil
	require.NoError(t, increase(s, "t4", 1))
	require.Equal(t, 2, targetOfT4(t, s), "it asks again for what is on its way")
	require.NoError(t, increase(s, "t4", 1))
	require.Equal(t, 3, targetOfT4(t, s), "once only")
}

func TestOutcomeThatComesToLightLateIsAbsorbed(t *testing.T) {
	clock := newClock()
	backend := &scripted{Backend: newTestCloud(t, clock.Now)}
	s := start(t, Options{Catalogue: catalogue(testConfig()), Backend: backend, Now: clock.Now})

	ctx, cancel := context.WithCancel(context.Background())
	before := s.current.Load().groups["t4"].state
	backend.increase = func(ctx context.Context, _ cloud.Group, _ error) (cloud.Group, error) {
		cancel()
		before.Unsettled.More = 2
		return before, context.Cause(ctx)
	}
	_, err := s.NodeGroupIncreaseSize(ctx, &proto.NodeGroupIncreaseSizeRequest{Id: "t4", Delta: 2})
	require.Error(t, err)
	require.Equal(t, 0, targetOfT4(t, s), "not known yet")

	backend.increase = nil
	_, err = s.Refresh(context.Background(), &proto.RefreshRequest{})
	require.NoError(t, err)
	require.Equal(t, 2, targetOfT4(t, s))
	require.Zero(t, testutil.ToFloat64(s.metrics.outside.WithLabelValues("t4")), "it was ours")
	require.NoError(t, increase(s, "t4", 2))
	require.Equal(t, 2, targetOfT4(t, s), "absorbed")
}

func TestIncreaseAfterALostCancellationIsNotAbsorbedByWhatWasCancelled(t *testing.T) {
	clock := newClock()
	backend := &scripted{Backend: newTestCloud(t, clock.Now)}
	s := start(t, Options{Catalogue: catalogue(testConfig()), Backend: backend, Now: clock.Now})
	require.NoError(t, increase(s, "t4", 1))
	s.autoscalerIsNew()
	placeholder := s.current.Load().groups["t4"].state.Instances[0].ID

	backend.loseAnswers = true
	_, err := s.NodeGroupDeleteNodes(context.Background(), &proto.NodeGroupDeleteNodesRequest{
		Id: "t4", Nodes: []*proto.ExternalGrpcNode{{ProviderID: placeholder, Name: placeholder}},
	})
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	backend.loseAnswers, backend.unsettled = false, cloud.Unsettled{}
	require.NoError(t, increase(s, "t4", 1))
	groups, err := backend.Backend.Describe(context.Background(), "t4")
	require.NoError(t, err)
	require.Equal(t, 1, groups[0].Target, "OK means that a node is on its way")
	require.Equal(t, 1, targetOfT4(t, s))
}

func TestDeletionAfterALostDeletionIsHeldToTheMinimum(t *testing.T) {
	clock := newClock()
	backend := &scripted{Backend: newTestCloud(t, clock.Now)}
	c := testConfig()
	c.NodeGroups[0].MinSize = 1
	s := start(t, Options{Catalogue: catalogue(c), Backend: backend, Now: clock.Now})
	require.NoError(t, increase(s, "t4", 2-targetOfT4(t, s)))
	clock.Step(2 * bootDelay)
	require.NoError(t, s.refresh(context.Background()))
	remove := func(n int) error {
		id := s.current.Load().groups["t4"].state.Instances[n].ID
		_, err := s.NodeGroupDeleteNodes(context.Background(), &proto.NodeGroupDeleteNodesRequest{
			Id: "t4", Nodes: []*proto.ExternalGrpcNode{{ProviderID: id, Name: "node"}},
		})
		return err
	}
	backend.loseAnswers = true
	require.Equal(t, codes.Unavailable, status.Code(remove(0)))
	require.Equal(t, 2, targetOfT4(t, s), "not known yet")
	backend.loseAnswers = false
	require.Equal(t, codes.FailedPrecondition, status.Code(remove(1)), "the first is gone, the second is the minimum")
}

func TestRefreshFailsOnlyWhenTheSnapshotIsOld(t *testing.T) {
	clock := newClock()
	backend := &scripted{Backend: newTestCloud(t, clock.Now)}
	s := start(t, Options{Catalogue: catalogue(testConfig()), Backend: backend, Now: clock.Now})
	backend.describe = func(context.Context, []cloud.Group) ([]cloud.Group, error) { return nil, cloud.ErrThrottled }

	clock.Step(maxSnapshotAge)
	_, err := s.Refresh(context.Background(), &proto.RefreshRequest{})
	require.NoError(t, err, "the snapshot still does")
	clock.Step(time.Second)
	_, err = s.Refresh(context.Background(), &proto.RefreshRequest{})
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "the cloud was last read 1m1s ago")
	groups, err := s.NodeGroups(context.Background(), &proto.NodeGroupsRequest{})
	require.NoError(t, err)
	require.Len(t, groups.GetNodeGroups(), 2, "reads never fail")
}

func TestWritesOfOneGroupWaitAndOthersDoNot(t *testing.T) {
	clock := newClock()
	backend := &scripted{Backend: newTestCloud(t, clock.Now)}
	s := start(t, Options{Catalogue: catalogue(testConfig()), Backend: backend, Now: clock.Now})

	inside, carryOn := make(chan string, 2), make(chan struct{})
	backend.increase = func(_ context.Context, g cloud.Group, err error) (cloud.Group, error) {
		inside <- g.ID
		<-carryOn
		return g, err
	}
	results := make(chan error, 2)
	go func() { results <- increase(s, "t4", 1) }()
	require.Equal(t, "t4", <-inside)

	late, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err := s.NodeGroupIncreaseSize(late, &proto.NodeGroupIncreaseSizeRequest{Id: "t4", Delta: 1})
	require.Equal(t, codes.DeadlineExceeded, status.Code(err), "the group is busy, and the caller has gone")

	go func() { results <- increase(s, "opts", 1) }()
	require.Equal(t, "opts", <-inside, "another group does not wait")
	close(carryOn)
	require.NoError(t, <-results)
	require.NoError(t, <-results)
	require.Equal(t, 1, targetOfT4(t, s), "what came too late started nothing")
}

func TestGateKeepsNodes(t *testing.T) {
	clock := newClock()
	var refuse func(checkpoint.Instance) bool
	var fails error
	s := start(t, Options{
		Catalogue: catalogue(testConfig()), Backend: newTestCloud(t, clock.Now), Now: clock.Now,
		Gate: func(_ context.Context, nodes []checkpoint.Instance) (held []checkpoint.Held, err error) {
			for _, n := range nodes {
				if refuse != nil && refuse(n) {
					held = append(held, checkpoint.Held{Instance: n.ID, Reason: "pod train-0 has not acknowledged"})
				}
			}
			return held, fails
		},
	})
	require.NoError(t, increase(s, "t4", 4))
	clock.Step(2 * bootDelay)
	require.NoError(t, s.refresh(context.Background()))
	var ids []string
	for _, i := range s.current.Load().groups["t4"].state.Instances {
		ids = append(ids, i.ID)
	}
	remove := func(fake bool, ids ...string) error {
		request := &proto.NodeGroupDeleteNodesRequest{Id: "t4"}
		for _, id := range ids {
			node := &proto.ExternalGrpcNode{ProviderID: id, Name: "node"}
			if fake {
				node.Name = id
			}
			request.Nodes = append(request.Nodes, node)
		}
		_, err := s.NodeGroupDeleteNodes(context.Background(), request)
		return err
	}
	refuse = func(n checkpoint.Instance) bool { return n.ID == ids[1] }

	err := remove(false, ids[0], ids[1])
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	require.ErrorContains(t, err, "nothing was deleted; node: pod train-0 has not acknowledged")
	require.Equal(t, 4, targetOfT4(t, s), "for real nodes any refusal keeps all")

	err = remove(true, ids[0], ids[1])
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	require.ErrorContains(t, err, "the other nodes were deleted; kept "+ids[1])
	require.Equal(t, 3, targetOfT4(t, s), "of fakes the clear ones go")

	refuse, fails = nil, errors.New("redis is away")
	err = remove(false, ids[2])
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.Equal(t, 3, targetOfT4(t, s), "who cannot tell lets nothing go")

	fails = nil
	require.NoError(t, remove(false, ids[2]))
	require.Equal(t, 2, targetOfT4(t, s))
}

func TestReloadIsWholeOrNothing(t *testing.T) {
	onAWS := func() *config.Config {
		c := testConfig()
		c.NodeGroups[1].AutoScalingGroup = "gpu-opts"
		return c
	}
	s := newTestServer(t, onAWS())
	require.NoError(t, increase(s, "opts", 1))
	changed := func(change func(*config.Config)) *nodegroup.Catalogue {
		c := onAWS()
		change(c)
		return catalogue(c)
	}
	err := s.Reload(context.Background(), changed(func(c *config.Config) { c.NodeGroups = c.NodeGroups[:1] }))
	require.ErrorContains(t, err, "node group opts is missing from the new file and has 1 instances: set retired: true until it is empty")
	require.ErrorContains(t, s.Reload(context.Background(), changed(func(c *config.Config) { c.NodeGroups[1].ID = "other" })),
		"node group opts is missing from the new file and has 1 instances: its autoScalingGroup gpu-opts belongs to node group other in that file; keep the id opts")
	require.ErrorContains(t, s.Reload(context.Background(), changed(func(c *config.Config) { c.NodeGroups[1].AutoScalingGroup = "gpu-more" })),
		"node group opts has autoScalingGroup gpu-more instead of gpu-opts in the new file and has 1 instances: keep autoScalingGroup: gpu-opts, "+
			"with retired: true until it is empty, and add the other as a node group with a new id")
	s.TookFile(err)
	report := s.Report()
	require.Contains(t, report.ReloadError, "node group opts is missing")
	require.Len(t, report.NodeGroups, 2)

	require.NoError(t, s.Reload(context.Background(), changed(func(c *config.Config) { c.NodeGroups[0].MaxSize = 9; c.NodeGroups = c.NodeGroups[:2] })))
	s.TookFile(nil)
	report = s.Report()
	require.Empty(t, report.ReloadError)
	require.Equal(t, 9, report.NodeGroups[0].EffectiveMax)
}
