//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-node-provider/proto"
	"gpu-node-provider/test/testbed"
)

// trouble is what befalls Redis while somebody trains.
type trouble struct {
	begin, end func() error
	// says is how the refusal names it; no acknowledgement, where nothing fails.
	says string
	// counts is the metric that goes up; empty where nothing fails.
	counts string
}

const notAcknowledged = "has not acknowledged a checkpoint"

func cause(c string) string { return fmt.Sprintf("gpu_node_provider_redis_errors_total{cause=%q}", c) }

// outage is one trainer on its node, and what befalls its Redis.
type outage struct {
	*testing.T
	bed    *testbed.Bed
	client proto.CloudProviderClient
	pod    *corev1.Pod
	node   *corev1.Node
}

func training(t *testing.T) *outage {
	bed := start(t, testbed.Options{WithoutKEDA: true, Webhook: true, Config: testbed.Config{
		NodeGroups: []string{testbed.Pool("t4", t4, 20)}, Simulated: "launchDelay: 100ms, bootDelay: 1s, devicePluginDelay: 1s",
	}})
	require.NoError(t, bed.StartScript(t.Context(), testbed.Script{Name: "train", Accelerator: t4, Script: testbed.Hasty, Replicas: 1, Grace: 30}))
	o := &outage{T: t, bed: bed}
	o.pod, o.node = running(t, bed)
	client, closes, err := bed.Provider()
	require.NoError(t, err)
	t.Cleanup(closes)
	o.client = client
	o.refused(notAcknowledged)
	return o
}

// remove asks for the end of the node, as Cluster Autoscaler does.
func (o *outage) remove() error {
	ctx, cancel := context.WithTimeout(o.Context(), 5*time.Second)
	defer cancel()
	_, err := o.client.NodeGroupDeleteNodes(ctx, &proto.NodeGroupDeleteNodesRequest{
		Id: "t4", Nodes: []*proto.ExternalGrpcNode{{Name: o.node.Name, ProviderID: o.node.Spec.ProviderID}},
	})
	return err
}

// refused waits until the end of the node is refused for a reason. It may be
// another before, and never granted.
func (o *outage) refused(says string) codes.Code {
	o.Helper()
	var err error
	_, late := o.bed.Watch.Until(o.Context(), time.Minute, "refused: "+says, func(testbed.State) bool {
		err = o.remove()
		require.Error(o, err, "the node of an unacknowledged trainer goes")
		return strings.Contains(err.Error(), says)
	})
	require.NoError(o, late, "%v", err)
	return status.Code(err)
}

// evict asks for the end of the trainer.
func (o *outage) evict() error {
	return o.bed.Cluster.Client.CoreV1().Pods(o.pod.Namespace).EvictV1(o.Context(), &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: o.pod.Name, Namespace: o.pod.Namespace},
	})
}

// meets plays a trouble: the node stays, and the reason is named to whoever asks
// for its end, in the log and in a metric; the group grows; and all is well again
// without anybody's help.
func (o *outage) meets(name string, trouble trouble) {
	o.Helper()
	o.bed.Watch.Say("Redis: %s", name)
	before := 0.0
	var err error
	if trouble.counts != "" {
		before, err = o.bed.Metric(o.Context(), trouble.counts)
		require.NoError(o, err)
	}
	require.NoError(o, trouble.begin())
	code := o.refused(trouble.says)
	want := codes.FailedPrecondition
	if strings.Contains(trouble.counts, "redis_errors") {
		want = codes.Unavailable
	}
	assert.Equal(o, want, code)
	require.ErrorContains(o, o.evict(), trouble.says)
	failures, err := o.bed.Failures("NodeGroupDeleteNodes")
	require.NoError(o, err)
	assert.True(o, slices.ContainsFunc(failures, func(f string) bool { return strings.Contains(f, trouble.says) }), "the log does not say %q", trouble.says)
	if trouble.counts != "" {
		_, err = o.bed.Watch.Until(o.Context(), time.Minute, trouble.counts+" goes up", func(testbed.State) bool {
			now, err := o.bed.Metric(o.Context(), trouble.counts)
			return err == nil && now > before
		})
		require.NoError(o, err)
	}
	o.grows()
	o.stays()

	require.NoError(o, trouble.end())
	o.refused(notAcknowledged)
	o.stays()
}

// grows asks for another node, which comes.
func (o *outage) grows() {
	o.Helper()
	ever := o.bed.Watch.EverNodes()
	_, err := o.client.NodeGroupIncreaseSize(o.Context(), &proto.NodeGroupIncreaseSizeRequest{Id: "t4", Delta: 1})
	require.NoError(o, err)
	_, err = o.bed.Watch.Until(o.Context(), time.Minute, "a node comes all the same", func(testbed.State) bool { return o.bed.Watch.EverNodes() > ever })
	require.NoError(o, err)
}

// stays waits until the node is held, and looks that nobody has touched it.
func (o *outage) stays() {
	o.Helper()
	_, err := o.bed.Watch.Until(o.Context(), time.Minute, "the node is held", func(s testbed.State) bool {
		for _, n := range s.Nodes {
			if n.Name == o.node.Name {
				return n.Annotations[scaleDownDisabled] == "true"
			}
		}
		return false
	})
	require.NoError(o, err)
	stays(o.T, o.bed, o.node.Name, o.pod)
}

// ends acknowledges; then all nodes go, those that came meanwhile too.
func (o *outage) ends() {
	o.Helper()
	require.NoError(o, o.bed.Acknowledge(o.Context(), o.pod))
	require.NoError(o, o.bed.DeleteScript(o.Context(), "train"))
	_, err := o.bed.Watch.Until(o.Context(), time.Minute, "it is told to stop", func(s testbed.State) bool {
		for _, p := range s.PodsOf("train") {
			if p.DeletionTimestamp == nil {
				return false
			}
		}
		return true
	})
	require.NoError(o, err)
	require.NoError(o, o.bed.Acknowledge(o.Context(), o.pod))
	_, err = o.bed.Watch.Until(o.Context(), 4*time.Minute, "no node is left", func(s testbed.State) bool { return len(s.Nodes) == 0 })
	require.NoError(o, err)
}

// connection is one that stays good while others are refused.
func (o *outage) connection() *redis.Conn {
	client, ok := o.bed.Redis.(*redis.Client)
	require.True(o, ok, "the bed's Redis is one server")
	return client.Conn()
}

// TestRedisOutages: whatever becomes of Redis, no training node goes, the group
// grows, and somebody can find out why.
func TestRedisOutages(t *testing.T) {
	o := training(t)
	bed, ctx := o.bed, t.Context()
	admin := o.connection()
	do := func(commands ...[]any) func() error {
		return func() error {
			for _, c := range commands {
				if err := admin.Do(ctx, c...).Err(); err != nil {
					return fmt.Errorf("%v: %w", c, err)
				}
			}
			return nil
		}
	}
	key := testbed.AckKey(o.pod)
	forget := do([]any{"DEL", key})
	const bad = "gpu_node_provider_bad_acknowledgements_total"

	o.meets("not at its place while the provider starts", trouble{
		begin: func() error {
			bed.KillRedis()
			bed.KillProvider()
			return bed.StartProvider(ctx)
		},
		end:  func() error { return bed.StartRedis(ctx) },
		says: "connection refused", counts: cause("connection refused"),
	})
	_ = admin.Close() // it was killed
	admin = o.connection()
	o.meets("paused", trouble{begin: bed.PauseRedis, end: bed.ResumeRedis, says: "timeout", counts: cause("timeout")})
	o.meets("password", trouble{
		begin: do([]any{"CONFIG", "SET", "requirepass", "changed"}, []any{"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"}),
		end:   do([]any{"CONFIG", "SET", "requirepass", ""}), says: "NOAUTH", counts: cause("NOAUTH"),
	})
	o.meets("key of a wrong type", trouble{begin: do([]any{"LPUSH", key, "1785579630"}), end: forget, says: "does not hold a Redis string", counts: bad})
	o.meets("100 MB", trouble{begin: do([]any{"SETRANGE", key, 100 << 20, "1"}), end: forget, says: "longer than 4096 bytes", counts: bad})
	o.meets("the trainer's clock is an hour ahead", trouble{
		begin: do([]any{"SET", key, fmt.Sprint(time.Now().Add(time.Hour).Unix())}), end: forget, says: "in the future", counts: bad,
	})
	o.meets("acknowledgements are evicted", trouble{
		begin: func() error {
			if err := bed.Acknowledge(ctx, o.pod); err != nil {
				return err
			}
			if err := do([]any{"CONFIG", "SET", "maxmemory-policy", "allkeys-lru"}, []any{"CONFIG", "SET", "maxmemory", "1"})(); err != nil {
				return err
			}
			_, err := bed.Watch.Until(ctx, time.Minute, "it is evicted", func(testbed.State) bool { return admin.Exists(ctx, key).Val() == 0 })
			return err
		},
		end: do([]any{"CONFIG", "SET", "maxmemory", "0"}), says: notAcknowledged,
	})
	o.meets("killed", trouble{
		begin: func() error { bed.KillRedis(); return nil }, end: func() error { return bed.StartRedis(ctx) },
		says: "connection refused", counts: cause("connection refused"),
	})
	o.ends()
}

// TestRedisFailsOver: the replica takes over and knows nothing of an
// acknowledgement.
func TestRedisFailsOver(t *testing.T) {
	o := training(t)
	require.NoError(t, o.bed.FailOverRedis(t.Context()))
	o.meets("fails over, and the acknowledgement is lost", trouble{
		begin: func() error {
			if err := o.bed.StopReplication(t.Context()); err != nil {
				return err
			}
			if err := o.bed.Acknowledge(t.Context(), o.pod); err != nil {
				return err
			}
			o.bed.KillRedis()
			return nil
		},
		end: func() error { return nil }, says: "connection refused", counts: cause("connection refused"),
	})
	o.ends()
}

// TestRedisCluster: the master that has the trainer's key goes, and comes back.
func TestRedisCluster(t *testing.T) {
	o := training(t)
	require.NoError(t, o.bed.SpreadRedis(t.Context()))
	var start func() error
	o.meets("a master is killed", trouble{
		begin: func() (err error) {
			start, err = o.bed.KillMaster(t.Context(), testbed.AckKey(o.pod))
			return err
		},
		end: func() error { return start() }, says: "connection refused", counts: cause("connection refused"),
	})
	o.ends()
}
