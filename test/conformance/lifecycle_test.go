package conformance

import (
	"context"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"gpu-node-provider/proto"
)

// TestStopLetsCallsInFlightFinish: an error for a call that was carried out
// would make Cluster Autoscaler buy again, or uncordon a node that goes.
func TestStopLetsCallsInFlightFinish(t *testing.T) {
	needsOwnServer(t)
	parallel(t)
	s := serve(t, file{simulated: []string{"api: {latency: 2s}"}, groups: []string{group("t4"), group("a100")}})
	var answered atomic.Int32
	sent := make(chan struct{}, 2)
	increase := func(id string) func() {
		return func() {
			sent <- struct{}{}
			assert.NoError(t, s.tryIncrease(t.Context(), id, 1))
			answered.Add(1)
		}
	}
	together(increase("t4"), increase("a100"), func() {
		<-sent
		<-sent
		// The calls are under way once a third, with too little time, has been
		// to the cloud and back.
		_, err := s.Refresh(within(t, 500*time.Millisecond), &proto.RefreshRequest{})
		assert.Equal(t, codes.DeadlineExceeded, status.Code(err))
		assert.Zero(t, answered.Load())
		assert.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
	})
	assert.Zero(t, s.wait(t), "the exit code of a stop that was asked for")
	assert.NotEmpty(t, s.logged(t, "stopped"))
	assert.False(t, accepts(s.grpc))

	s.boot(t)
	assert.Equal(t, []int{1, 1}, []int{s.size(t, "t4"), s.size(t, "a100")})
}

// TestKillLosesAndDoublesNothing kills the program again and again while it is
// being written to. What was answered has happened, and nothing happened twice.
func TestKillLosesAndDoublesNothing(t *testing.T) {
	needsOwnServer(t)
	parallel(t)
	s := serve(t, file{groups: []string{group("t4", "maxSize: 5000")}})
	bought, deleted := 0, map[string]bool{}
	for round := range 12 {
		ids := s.ids(t, s.id)
		for id := range deleted {
			require.NotContains(t, ids, id, "it was answered to be deleted")
		}
		after := time.AfterFunc(time.Duration(20+15*round)*time.Millisecond, s.kill)
		unsure := 0
		for err := error(nil); err == nil; {
			if err = s.tryIncrease(t.Context(), s.id, 1); err == nil {
				bought++
			} else {
				unsure = 1 // the kill came in the middle
				break
			}
			if len(ids) > 0 && bought%3 == 0 {
				id := ids[0]
				ids = ids[1:]
				if err = s.tryDelete(t.Context(), s.id, node(id)); err == nil {
					deleted[id] = true
				}
			}
		}
		after.Stop()
		s.restart(t)
		size := s.size(t, s.id)
		// A deletion in the middle may have happened as well.
		require.Contains(t, []int{bought - len(deleted) + unsure, bought - len(deleted), bought - len(deleted) - 1}, size)
		bought = size + len(deleted)
	}
	assert.Greater(t, bought, 10)
}

// TestStateFileIsRefusedWhenItIsNotOurs: a state that cannot be read is never
// taken for an empty cloud.
func TestStateFileIsRefusedWhenItIsNotOurs(t *testing.T) {
	needsOwnServer(t)
	parallel(t)
	for name, text := range map[string]string{"cut short": `{"kind":"gpu-node-prov`, "another file": `{"a": 1}`, "empty": ""} {
		dir := t.TempDir()
		file{}.write(t, dir)
		require.NoError(t, os.WriteFile(statePath(dir), []byte(text), 0o600))
		p := finish(t, "serve", "--config", configPath(dir))
		assert.Equal(t, 2, p.cmd.ProcessState.ExitCode(), name)
		assert.Contains(t, p.stderr.String(), statePath(dir), name)
		after, err := os.ReadFile(statePath(dir))
		require.NoError(t, err)
		assert.Equal(t, text, string(after), name)
	}
}

// TestReload: what may change does without a restart, and a bad file, or one
// that needs a restart, leaves the old one in force.
func TestReload(t *testing.T) {
	needsOwnServer(t)
	parallel(t)
	good := []string{group("t4"), group("a100")}
	for name, bad := range map[string]file{
		"refuses a file that is not valid":     {groups: []string{group("t4", "minSize: 5"), group("a100")}},
		"refuses to drop a group in use":       {groups: []string{group("a100")}},
		"refuses a new GPU label":              {groups: good, top: []string{"gpuLabel: other"}},
		"refuses another cloud":                {groups: good, simulated: booting()},
		"refuses what is not even YAML":        {top: []string{"x: ["}},
		"refuses a file without any group":     {groups: []string{"{}"}},
		"refuses a group's label without GPUs": {groups: []string{group("t4", "capacity: {cpu: 4, memory: 16Gi}"), group("a100")}},
	} {
		t.Run(name, func(t *testing.T) { reloadRefuses(t, file{groups: good}, bad) })
	}
	t.Run("takes groups in and lets empty ones go", reloadGroups)
	t.Run("retires a group", reloadRetires)
}

func reloadRefuses(t *testing.T, good, bad file) {
	parallel(t)
	s := serve(t, good)
	s.increase(t, "t4", 2)
	failed := func() float64 { return s.metric(t, "gpu_node_provider_config_reload_failed") }
	before := s.nodeGroups(t)
	bad.write(t, s.dir)
	eventually(t, "refused", func() bool { return failed() == 1 })
	s.told(t, "node group file rejected, the previous one stays in effect")
	for i, g := range s.nodeGroups(t) {
		assert.Equal(t, before[i].String(), g.String())
	}
	assert.Equal(t, 2, s.size(t, "t4"))
	good.write(t, s.dir)
	eventually(t, "healed", func() bool { return failed() == 0 })
}

func reloadGroups(t *testing.T) {
	parallel(t)
	s := serve(t, file{groups: []string{group("t4"), group("a100")}})
	s.increase(t, "t4", 2)
	file{groups: []string{group("t4", "maxSize: 7"), group("h100")}}.write(t, s.dir)
	eventually(t, "in force", func() bool { return slices.Contains(groupIDs(s.nodeGroups(t)), "h100") })
	assert.Equal(t, []string{"t4", "h100"}, groupIDs(s.nodeGroups(t)))
	assert.Equal(t, 7, s.max(t, "t4"))
	assert.Equal(t, 2, s.size(t, "t4"))
	s.increase(t, "h100", 1)
	assert.Equal(t, 1, s.size(t, "h100"))
}

func reloadRetires(t *testing.T) {
	parallel(t)
	s := serve(t, file{groups: []string{group("t4", "minSize: 1")}})
	s.increase(t, "t4", 2)
	file{groups: []string{group("t4", "retired: true")}}.write(t, s.dir)
	eventually(t, "retired", func() bool { return s.max(t, "t4") == 2 })
	assert.Zero(t, s.nodeGroup(t, "t4").GetMinSize())
	code(t, codes.ResourceExhausted, s.tryIncrease(t.Context(), "t4", 1))
	s.delete(t, "t4", nodes(s.ids(t, "t4")...)...)
	assert.Zero(t, s.max(t, "t4"), "still listed, until the file drops it")
}

func groupIDs(groups []*proto.NodeGroup) []string {
	ids := make([]string, 0, len(groups))
	for _, g := range groups {
		ids = append(ids, g.GetId())
	}
	return ids
}

// TestHealthAndReadiness are what Kubernetes looks at.
func TestHealthAndReadiness(t *testing.T) {
	needsOwnServer(t)
	parallel(t)
	s := serve(t, file{})
	health, err := grpc_health_v1.NewHealthClient(s.conn).Check(context.WithoutCancel(t.Context()), &grpc_health_v1.HealthCheckRequest{})
	require.NoError(t, err)
	assert.Equal(t, grpc_health_v1.HealthCheckResponse_SERVING, health.GetStatus())
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/report.json"} {
		code, body := get(t, "http://"+s.http+path)
		assert.Equal(t, 200, code, path)
		assert.NotEmpty(t, body, path)
	}
}
