package provider

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/cloudtest"
	"gpu-node-provider/cloud/simulated"
	"gpu-node-provider/proto"
	"gpu-node-provider/provider/checkpoint"
	"gpu-node-provider/provider/cluster"
	"gpu-node-provider/provider/config"
)

// Writes whose outcome is not known, readings in the middle of writes, and callers
// that have gone.

// running has n machines in t4, and returns their ids.
func running(t *testing.T, backend cloud.Backend, n int, gate Gate) (*Server, []string, func(time.Duration)) {
	t.Helper()
	clock := newClock()
	pretend := newTestCloud(t, clock.Now)
	switch b := backend.(type) {
	case *scripted:
		b.Backend = pretend
	case *unfinished:
		b.Backend = pretend
	}
	s := start(t, Options{Catalogue: catalogue(testConfig()), Backend: backend, Now: clock.Now, Gate: gate, ReadEvery: 30 * time.Second})
	require.NoError(t, increase(s, "t4", n))
	clock.Step(2 * bootDelay)
	require.NoError(t, s.refresh(context.Background()))
	var ids []string
	for _, i := range s.current.Load().groups["t4"].state.Instances {
		ids = append(ids, i.ID)
	}
	require.Len(t, ids, n)
	return s, ids, clock.Step
}

func remove(ctx context.Context, s *Server, ids ...string) error {
	request := &proto.NodeGroupDeleteNodesRequest{Id: "t4"}
	for _, id := range ids {
		request.Nodes = append(request.Nodes, &proto.ExternalGrpcNode{ProviderID: id, Name: "node-" + id})
	}
	_, err := s.NodeGroupDeleteNodes(ctx, request)
	return err
}

// unfinished ends all instances but the last, and the caller goes before it can
// tell of that one, as cloud/aws has it.
type unfinished struct {
	scripted
	goes func()
	late []string // what was not ended
}

func (b *unfinished) Delete(ctx context.Context, id string, ids []string) (cloud.Group, []string, error) {
	last := len(ids) - 1
	b.late = ids[last:]
	g, confirmed, err := b.Backend.Delete(ctx, id, ids[:last])
	if err != nil {
		return g, confirmed, err
	}
	b.goes()
	b.unsettled.Fewer = 1
	return b.shown(g), confirmed, cloud.ErrUnknownOutcome
}

// What is confirmed counts, though another termination is in doubt and the caller
// has gone. The cloud is looked at sooner than usual until the doubt is over.
func TestDeletionOfWhichOneIsInDoubt(t *testing.T) {
	backend := &unfinished{}
	s, ids, step := running(t, backend, 4, nil)
	ctx, cancel := context.WithCancel(context.Background())
	backend.goes = cancel
	require.ErrorContains(t, remove(ctx, s, ids...), "1 of 4 terminations are not confirmed")
	require.Equal(t, 1, targetOfT4(t, s))

	_, _, err := backend.Backend.Delete(context.Background(), "t4", backend.late) // carried out after all
	require.NoError(t, err)
	step(watchEvery)
	_, err = s.Refresh(context.Background(), &proto.RefreshRequest{})
	require.NoError(t, err)
	require.Equal(t, 0, targetOfT4(t, s), "not only after ReadEvery")
	require.Zero(t, testutil.ToFloat64(s.metrics.outside.WithLabelValues("t4")), "it was ours")
}

// What became of a write counts though the caller has gone.
func TestOutcomeCountsWithoutTheCaller(t *testing.T) {
	backend := &scripted{}
	s, _, _ := running(t, backend, 1, nil)
	ctx, cancel := context.WithCancel(context.Background())
	backend.increase = func(ctx context.Context, g cloud.Group, _ error) (cloud.Group, error) {
		cancel()
		return g, context.Cause(ctx)
	}
	_, err := s.NodeGroupIncreaseSize(ctx, &proto.NodeGroupIncreaseSizeRequest{Id: "t4", Delta: 2})
	require.Equal(t, codes.Canceled, status.Code(err), "%v", err)
	require.Equal(t, 3, targetOfT4(t, s))
	backend.increase = nil
	require.NoError(t, increase(s, "t4", 2))
	require.Equal(t, 3, targetOfT4(t, s), "absorbed, since nobody has read the answer")
}

// With next to no time left, the cloud would carry out what the caller takes for failed.
func TestNothingIsStartedWithoutTimeForTheAnswer(t *testing.T) {
	s, ids, _ := running(t, &scripted{}, 2, nil)
	require.NoError(t, increase(s, "t4", 1))
	placeholder := s.current.Load().groups["t4"].state.Instances[2].ID
	for name, call := range map[string]func(ctx context.Context) error{
		"increase": func(ctx context.Context) error {
			_, err := s.NodeGroupIncreaseSize(ctx, &proto.NodeGroupIncreaseSizeRequest{Id: "t4", Delta: 1})
			return err
		},
		"decrease": func(ctx context.Context) error {
			_, err := s.NodeGroupDecreaseTargetSize(ctx, &proto.NodeGroupDecreaseTargetSizeRequest{Id: "t4", Delta: -1})
			return err
		},
		"delete": func(ctx context.Context) error { return remove(ctx, s, ids[0]) },
		"cancel": func(ctx context.Context) error { return remove(ctx, s, placeholder) },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), leastTime*9/10)
			defer cancel()
			err := call(ctx)
			require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
			require.ErrorContains(t, err, "less than 1s remains before the caller's deadline")
			groups, err := s.backend.Describe(context.Background(), "t4")
			require.NoError(t, err)
			require.Equal(t, 3, groups[0].Target)
			require.Equal(t, 3, targetOfT4(t, s))
		})
	}
}

// A group is not read by a reading whose answer for it was left out: two of them
// are what ends the record of a machine that trains.
func TestGroupIsNotReadInTheMiddleOfAWrite(t *testing.T) {
	inGate, carryOn := make(chan struct{}), make(chan struct{})
	backend := &scripted{}
	s, ids, step := running(t, backend, 2, func(context.Context, []checkpoint.Instance) ([]checkpoint.Held, error) {
		close(inGate)
		<-carryOn
		return nil, nil
	})
	first, ok := s.GroupRead("t4")
	require.True(t, ok)
	done := make(chan error)
	go func() { done <- remove(context.Background(), s, ids[1]) }()
	<-inGate
	step(30 * time.Second)
	require.NoError(t, s.refresh(context.Background()))
	during, ok := s.GroupRead("t4")
	require.True(t, ok)
	other, ok := s.GroupRead("opts")
	require.True(t, ok)
	close(carryOn)
	require.NoError(t, <-done)
	require.Equal(t, first, during)
	require.True(t, other.After(first))
	after, ok := s.GroupRead("t4")
	require.True(t, ok)
	require.Equal(t, first, after, "what the write saw is no whole reading")
	require.NoError(t, s.refresh(context.Background()))
	after, ok = s.GroupRead("t4")
	require.True(t, ok)
	require.True(t, after.After(first))
}

// Cluster Autoscaler uncordons a whole batch of which part has failed, once it has
// been told. What is on its way out is cordoned again soon after.
func TestDepartingNodeIsCordonedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		view, known := cluster.NewMemory(client, &record.FakeRecorder{})
		pretend, err := simulated.New(simulated.Options{BootDelay: bootDelay, TerminateDelay: time.Minute})
		require.NoError(t, err)
		backend := &unfinished{scripted: scripted{Backend: pretend}, goes: func() {}}
		s := start(t, Options{Catalogue: catalogue(testConfig()), Backend: backend, Cluster: view, ReadEvery: time.Hour})
		require.NoError(t, increase(s, "t4", 2))
		<-time.After(2 * bootDelay)
		require.NoError(t, s.refresh(t.Context()))
		var ids []string
		for n, i := range s.current.Load().groups["t4"].state.Instances {
			ids = append(ids, i.ID)
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", n)}, Spec: corev1.NodeSpec{ProviderID: i.ID}}
			require.NoError(t, known.Put(node))
			_, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
			require.NoError(t, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		require.Error(t, remove(t.Context(), s, ids...))
		cordoned := func(n int) bool {
			node, err := client.CoreV1().Nodes().Get(t.Context(), fmt.Sprint("node-", n), metav1.GetOptions{})
			require.NoError(t, err)
			return node.Spec.Unschedulable
		}
		require.False(t, cordoned(0), "Cluster Autoscaler would undo it")
		<-time.After(uncordonTime + time.Second)
		require.True(t, cordoned(0), "long before ReadEvery")
		require.False(t, cordoned(1), "it stays")
		cancel()
		require.NoError(t, <-ended)
	})
}

// A reading that ran out of time counts as that, though nothing was sent.
func TestReadingThatRanOutOfTime(t *testing.T) {
	s := newTestServer(t, testConfig())
	s.metrics.refreshFailed(fmt.Errorf("%w: %w", cloud.ErrGivenUp, context.DeadlineExceeded))
	require.InDelta(t, 1, testutil.ToFloat64(s.metrics.refreshErrors.WithLabelValues("deadline")), 0)
}

// sharing has a quota of 3 GPUs over all groups, and an increase fails with an error
// although nothing comes of it.
func sharing(t *testing.T, fails error) (*Server, *scripted, func(time.Duration)) {
	t.Helper()
	c, err := config.Parse([]byte(testFile + `
quotas:
  - {name: gpus, resource: nvidia.com/gpu, limit: 3, nodeGroups: ["*"]}
`))
	require.NoError(t, err)
	clock := newClock()
	pretend := newTestCloud(t, clock.Now)
	backend := &scripted{Backend: pretend}
	s := start(t, Options{Catalogue: catalogue(c), Backend: backend, Now: clock.Now})
	backend.increase = func(ctx context.Context, g cloud.Group, _ error) (cloud.Group, error) {
		var placeholders []string
		for _, i := range g.Instances {
			placeholders = append(placeholders, i.ID)
		}
		before, _, err := pretend.Cancel(ctx, g.ID, cloudtest.These(placeholders))
		require.NoError(t, err)
		if isUnknown(fails) {
			backend.unsettled.More += len(placeholders)
		}
		return backend.shown(before), fails
	}
	return s, backend, clock.Step
}

// What may still come of an increase in doubt is not granted to another group.
func TestIncreaseInDoubtCountsAsBought(t *testing.T) {
	s, backend, step := sharing(t, cloud.ErrUnknownOutcome)
	require.Equal(t, codes.Unavailable, status.Code(increase(s, "t4", 1)))
	require.Equal(t, codes.Unavailable, status.Code(increase(s, "t4", 1)))
	backend.increase = nil
	require.NoError(t, increase(s, "opts", 1), "there is room beside both")
	require.NoError(t, increase(s, "opts", 1), "NodeGroups had promised it before the increase in doubt")
	require.Equal(t, 1, s.current.Load().groups["opts"].state.Target)
	require.Equal(t, codes.ResourceExhausted, status.Code(increase(s, "opts", 1)), "Cluster Autoscaler tries the next group")
	require.NoError(t, s.refresh(context.Background()))
	require.Equal(t, codes.ResourceExhausted, status.Code(increase(s, "opts", 1)), "a reading that has not seen it is no proof")
	report := s.Report()
	require.Contains(t, report.NodeGroups[0].Limit, "2 nodes of an unconfirmed increase included")

	step(time.Minute)
	backend.unsettled = cloud.Unsettled{}
	require.NoError(t, s.refresh(context.Background()))
	require.NoError(t, increase(s, "opts", 1), "nothing comes of it any more")
	report = s.Report()
	require.NotContains(t, report.NodeGroups[0].Limit, "unconfirmed")
}

// What was given up before it was sent is in no doubt, however little time was left.
func TestIncreaseThatWasNotSentCountsForNothing(t *testing.T) {
	s, backend, _ := sharing(t, fmt.Errorf("%w: %w", cloud.ErrGivenUp, context.DeadlineExceeded))
	require.Equal(t, codes.DeadlineExceeded, status.Code(increase(s, "t4", 3)))
	backend.increase = nil
	require.NoError(t, increase(s, "opts", 3))
}

// A group that is no more keeps nothing from others, an increase in doubt included.
func TestDoubtEndsWithItsGroup(t *testing.T) {
	s, backend, step := sharing(t, cloud.ErrUnknownOutcome)
	require.Equal(t, codes.Unavailable, status.Code(increase(s, "t4", 3)))
	backend.increase = nil
	backend.describe = func(_ context.Context, groups []cloud.Group) ([]cloud.Group, error) {
		for n := range groups {
			if groups[n].ID == "t4" {
				groups[n].Problem = cloud.ErrNotFound
			}
		}
		return groups, nil
	}
	require.NoError(t, s.refresh(context.Background()))
	step(goneAfter)
	require.NoError(t, s.refresh(context.Background()))
	require.NoError(t, increase(s, "opts", 3))
}

// The snapshot may be older than somebody else's change, so a raise by less is a sign, too.
func TestIncreaseInDoubtAfterSomebodyElseLowered(t *testing.T) {
	backend := &scripted{}
	s, _, _ := running(t, backend, 1, nil)
	require.NoError(t, increase(s, "t4", 1))
	placeholder := s.current.Load().groups["t4"].state.Instances[1].ID
	_, _, err := backend.Backend.Cancel(context.Background(), "t4", cloudtest.These([]string{placeholder}))
	require.NoError(t, err)
	backend.increase = func(_ context.Context, g cloud.Group, _ error) (cloud.Group, error) {
		return g, cloud.ErrUnknownOutcome
	}
	require.NoError(t, increase(s, "t4", 2))
	require.Equal(t, 3, targetOfT4(t, s))
}

// What another increase does is no sign of the one in doubt.
func TestIncreaseInDoubtIsNotProvenByTheNext(t *testing.T) {
	backend := &scripted{}
	s, _, _ := running(t, backend, 1, nil)
	backend.increase = func(ctx context.Context, g cloud.Group, _ error) (cloud.Group, error) {
		before, _, err := backend.Backend.Cancel(ctx, g.ID, cloudtest.These([]string{g.Instances[1].ID})) // not carried out
		require.NoError(t, err)
		backend.unsettled.More = 1
		return backend.shown(before), cloud.ErrUnknownOutcome
	}
	require.Error(t, increase(s, "t4", 1))
	backend.increase = nil
	require.NoError(t, increase(s, "t4", 1))
	require.NoError(t, s.refresh(context.Background()))
	require.NoError(t, increase(s, "t4", 1))
	require.Equal(t, 3, targetOfT4(t, s), "absorbed by nothing")
}

// One new autoscaler process is absorbed once, also when the reading in between failed.
func TestAbsorbedOnceForOneAutoscaler(t *testing.T) {
	backend := &scripted{Backend: nil}
	clock := newClock()
	backend.Backend = newTestCloud(t, clock.Now)
	s := start(t, Options{Catalogue: catalogue(testConfig()), Backend: backend, Now: clock.Now})
	ctx := context.Background()
	refresh := func() {
		_, err := s.Refresh(ctx, &proto.RefreshRequest{})
		require.NoError(t, err)
	}
	require.NoError(t, increase(s, "t4", 1))
	_, err := s.GPULabel(ctx, &proto.GPULabelRequest{})
	require.NoError(t, err)
	backend.describe = func(context.Context, []cloud.Group) ([]cloud.Group, error) { return nil, cloud.ErrThrottled }
	clock.Step(time.Second)
	refresh()
	require.NoError(t, increase(s, "t4", 1))
	require.Equal(t, 1, targetOfT4(t, s), "absorbed")
	backend.describe = nil
	refresh()
	require.NoError(t, increase(s, "t4", 1))
	require.Equal(t, 2, targetOfT4(t, s), "once only")

	_, err = s.GPULabel(ctx, &proto.GPULabelRequest{})
	require.NoError(t, err)
	refresh()
	require.NoError(t, increase(s, "t4", 1))
	require.Equal(t, 2, targetOfT4(t, s), "another process, another time")
}
