package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	grpcstatus "google.golang.org/grpc/status"

	"gpu-node-provider/proto"
	"gpu-node-provider/provider/config"
)

// The packages of the three locks test the locks. These tests check that the program has them
// in the path of a call: each fails when a lock is missing from the wiring (test/mutants
// removes them, one at a time).

const trainingPod = `{"kind": "Pod", "apiVersion": "v1",
	"metadata": {"name": "train-0", "namespace": "train", "uid": "uid-train-0", "labels": {"gpu-node-provider.io/checkpoint": "required"}},
	"spec": {"nodeName": %q, "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
	"status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z", "containerStatuses": [{"name": "c", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]}}`

var trainer = target{"pods", "train", "train-0"}

// node of the group t4 as Cluster Autoscaler names it in a call.
type node struct{ name, id string }

// grow increases the group t4 by one and waits for the Node.
func grow(t *testing.T, api *kubeAPI, client proto.CloudProviderClient) (n node) {
	t.Helper()
	_, err := client.NodeGroupIncreaseSize(t.Context(), &proto.NodeGroupIncreaseSizeRequest{Id: "t4", Delta: 1})
	require.NoError(t, err)
	eventually(t, "the Node is there", func() bool {
		for _, o := range api.all("nodes") {
			text, err := json.Marshal(o)
			require.NoError(t, err)
			var made struct {
				Metadata struct{ Name string }
				Spec     struct{ ProviderID string }
			}
			require.NoError(t, json.Unmarshal(text, &made))
			n = node{made.Metadata.Name, made.Spec.ProviderID}
		}
		return n.id != ""
	})
	return n
}

func remove(t *testing.T, client proto.CloudProviderClient, name, id string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := client.NodeGroupDeleteNodes(ctx, &proto.NodeGroupDeleteNodesRequest{
		Id: "t4", Nodes: []*proto.ExternalGrpcNode{{Name: name, ProviderID: id}},
	})
	return err
}

// rehearse starts a provider on the simulated cloud with a fake API server.
func rehearse(t *testing.T, api *kubeAPI, f file) (p *program, client proto.CloudProviderClient) {
	t.Helper()
	f.rest += api.section()
	p, address, _ := serving(t, f)
	return p, dial(t, address)
}

// TestCK20TrainingNodeIsNotDeleted: DeleteNodes calls the gate and returns its refusal.
func TestCK20TrainingNodeIsNotDeleted(t *testing.T) {
	api := newKubeAPI(t)
	_, client := rehearse(t, api, file{})
	n := grow(t, api, client)
	api.set(t, trainer, fmt.Sprintf(trainingPod, n.name))
	err := remove(t, client, n.name, n.id)
	require.Equal(t, codes.FailedPrecondition, grpcstatus.Code(err), "%v", err)
	require.ErrorContains(t, err, "train/train-0")
	api.remove(trainer)
}

// TestCK20TrainingNodeIsNotDeletedUnjudged: an error of the gate keeps the node; here its
// live read of the Node's Pods fails.
func TestCK20TrainingNodeIsNotDeletedUnjudged(t *testing.T) {
	api := newKubeAPI(t)
	_, client := rehearse(t, api, file{})
	n := grow(t, api, client)
	api.set(t, trainer, fmt.Sprintf(trainingPod, n.name))
	api.before.Store(new(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.RawQuery, "fieldSelector") {
			return false
		}
		w.WriteHeader(http.StatusInternalServerError)
		return true
	}))
	err := remove(t, client, n.name, n.id)
	require.Equal(t, codes.Unavailable, grpcstatus.Code(err), "%v", err)
}

// TestCK20RecordOutlivesARestart: after a restart the record alone holds the instance of a
// pod that was removed together with its Node.
func TestCK20RecordOutlivesARestart(t *testing.T) {
	api := newKubeAPI(t)
	f := file{simulated: fmt.Sprintf("stateFile: %q", filepath.Join(t.TempDir(), "state.json"))}
	p, client := rehearse(t, api, f)
	n := grow(t, api, client)
	api.set(t, trainer, fmt.Sprintf(trainingPod, n.name))
	eventually(t, "the pod is recorded", func() bool {
		text, err := json.Marshal(api.all("configmaps"))
		return err == nil && strings.Contains(string(text), "uid-train-0")
	})
	p.stop()
	require.Zero(t, p.wait(t))
	api.remove(trainer)

	_, client = rehearse(t, api, f)
	err := remove(t, client, n.id, n.id) // as one of Cluster Autoscaler's fakes
	require.Equal(t, codes.FailedPrecondition, grpcstatus.Code(err), "%v", err)
	require.ErrorContains(t, err, "train/train-0")
}

// TestCK20PortOpensAfterTheFirstPass: no call is answered before every node has been checked;
// here the annotation of a training node cannot be written at first.
func TestCK20PortOpensAfterTheFirstPass(t *testing.T) {
	api := newKubeAPI(t)
	state := fmt.Sprintf("stateFile: %q", filepath.Join(t.TempDir(), "state.json"))
	p, client := rehearse(t, api, file{simulated: state})
	n := grow(t, api, client)
	p.stop()
	require.Zero(t, p.wait(t))
	api.set(t, trainer, fmt.Sprintf(trainingPod, n.name))
	marking, may := make(chan struct{}), make(chan struct{})
	asked, release := sync.OnceFunc(func() { close(marking) }), sync.OnceFunc(func() { close(may) })
	t.Cleanup(release)
	api.before.Store(new(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPatch && strings.HasPrefix(r.URL.Path, "/api/v1/nodes/") {
			asked()
			select {
			case <-may:
			case <-r.Context().Done():
			}
		}
		return false
	}))
	grpcPort, httpPort := freePort(t), freePort(t)
	p = start(t, "serve", "--config", file{server: ports(grpcPort, httpPort), simulated: state, rest: api.section()}.write(t))
	<-marking
	eventually(t, "readiness names the first pass", func() bool {
		return strings.HasPrefix(text(t, "http://"+httpPort+"/readyz"), "not every node has been checked yet")
	})
	require.NoError(t, listen(t, grpcPort).Close()) // the port is not open yet
	release()
	eventually(t, "it serves", func() bool { return text(t, "http://"+httpPort+"/readyz") == "ok\n" })
	require.True(t, p.running())
}

// TestCK20LostLeadershipEndsCallsAtOnce: another replica may lead already, so calls in
// flight must not finish. A stop by a signal lets them finish.
func TestCK20LostLeadershipEndsCallsAtOnce(t *testing.T) {
	grpcPort := freePort(t)
	path := file{server: ports(grpcPort, "127.0.0.1:0")}.write(t)
	c, err := config.Load(path)
	require.NoError(t, err)
	r, err := newReplica(serveOptions{file: path, config: c, log: zap.NewNop(), out: &output{}})
	require.NoError(t, err)
	defer r.close()
	lost := make(chan struct{})
	r.parts = append(r.parts, func(ctx context.Context) error { // as the election does
		select {
		case <-lost:
			return errLeadershipLost
		case <-ctx.Done():
			return nil
		}
	})
	ended := make(chan error, 1)
	go func() { ended <- r.run(t.Context()) }()
	conn, err := grpc.NewClient("passthrough:///"+grpcPort, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	eventually(t, "it serves", func() bool { return r.ready() == nil })
	inFlight, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = inFlight.Recv()
	require.NoError(t, err)
	close(lost)
	select {
	case err := <-ended:
		require.ErrorIs(t, err, errLeadershipLost)
	case <-time.After(5 * time.Second): // a graceful stop waits 10 s for the call
		t.Fatal("the call in flight keeps the process that has lost the leadership")
	}
}
