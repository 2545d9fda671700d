package aws

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws"
	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/proto"
	"gpu-node-provider/provider"
	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/nodegroup"
)

// train is the node group, and the Auto Scaling group, that most tests change.
const train = "train"

// patience bounds every wait; it only matters when something is broken.
const patience = 20 * time.Second

// world is a provider on a stand-in for AWS, with a client of it.
type world struct {
	proto.CloudProviderClient
	t        *testing.T
	stub     *awstest.Stub
	server   *provider.Server
	cloud    *aws.Cloud
	file     setup
	registry *prometheus.Registry
	logs     *observer.ObservedLogs

	first   []string // instances of train, where a test keeps them
	waiting []string // placeholders, likewise
}

// setup is what differs between the worlds of the tests.
type setup struct {
	groups    []string // entries of nodeGroups; train alone when empty
	quotas    []string
	readEvery time.Duration
	// discovered makes the groups be found by their tags, not listed.
	discovered bool
	complete   bool   // complete the groups from the cloud, as the program does
	endpoint   string // the Stub's when empty
}

// group is an entry of nodeGroups, on the Auto Scaling group of the same name.
func group(id string) string {
	return fmt.Sprintf("{id: %s, autoScalingGroup: %s, maxSize: 100, instanceType: g4dn.xlarge, labels: {accelerator: nvidia-tesla-t4}, "+
		"capacity: {cpu: 4, memory: 16Gi, nvidia.com/gpu: 1}}", id, id)
}

// trained is a Stub with the group train, of which all that is desired runs.
func trained(t *testing.T, desired int, change ...func(*awstest.Group)) *awstest.Stub {
	t.Helper()
	stub := awstest.NewStub(t)
	g := awstest.Group{Name: train, Max: 100, Desired: desired}
	for _, c := range change {
		c(&g)
	}
	stub.CreateGroup(g)
	stub.Settle()
	stub.Advance(time.Minute)
	return stub
}

func protected(g *awstest.Group) { g.Protected = true }

// serve starts a provider whose clock is the Stub's, as the program does it.
func serve(t *testing.T, stub *awstest.Stub, file setup) *world {
	t.Helper()
	if len(file.groups) == 0 {
		file.groups = []string{group(train)}
	}
	if file.endpoint == "" {
		file.endpoint = stub.URL()
	}
	core, logs := observer.New(zap.DebugLevel)
	w := &world{t: t, stub: stub, file: file, registry: prometheus.NewRegistry(), logs: logs}
	var err error
	w.cloud, err = aws.New(t.Context(), aws.Options{
		Region: "us-east-1", Endpoint: file.endpoint, Registerer: w.registry, Log: zap.New(core), Now: stub.Now,
	})
	require.NoError(t, err)
	w.server, err = provider.New(t.Context(), provider.Options{
		Catalogue: w.catalogue(file), Backend: w.cloud, ReadEvery: file.readEvery, ServiceQuotas: w.quota,
		Log: zap.New(core), Registerer: w.registry, Now: stub.Now,
	})
	require.NoError(t, err)
	w.listen()
	t.Cleanup(func() {
		assert.Empty(t, called.add(stub.Actions()), "actions that aws.Permissions does not name")
	})
	return w
}

func (w *world) catalogue(file setup) *nodegroup.Catalogue {
	w.t.Helper()
	c, err := config.Parse(fmt.Appendf(nil, `apiVersion: gpu-node-provider.io/v1
kind: ProviderConfig
cloud: {aws: {region: us-east-1}}
kubernetes: {kubeconfig: not-used}
redis: {addresses: ["127.0.0.1:1"]}
nodeGroups: [%s]
quotas: [%s]
`, strings.Join(file.groups, ",\n  "), strings.Join(file.quotas, ",\n  ")))
	require.NoError(w.t, err)
	if file.complete {
		completion := nodegroup.Completion{Machines: w.cloud.Machines, Discover: w.cloud.Discover, Log: zap.NewNop()}
		c, err = completion.Complete(w.t.Context(), c)
		require.NoError(w.t, err)
	}
	for n := range c.NodeGroups {
		c.NodeGroups[n].Discovered = file.discovered
	}
	return nodegroup.New(c, w.cloud.TemplateID)
}

// quota is what the program gives to the provider.
func (w *world) quota(ctx context.Context, code string) (cloud.ServiceQuota, error) {
	return w.cloud.Quota(ctx, code)
}

func (w *world) listen() {
	w.t.Helper()
	port := bufconn.Listen(1 << 20)
	listener := provider.NewListener(w.server, provider.ListenOptions{Log: zap.NewNop()})
	served := make(chan error, 1)
	go func() { served <- listener.Serve(port) }()
	conn, err := grpc.NewClient("passthrough:///bufconn",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return port.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithChainUnaryInterceptor(bounded, audited(w.t)))
	require.NoError(w.t, err)
	w.CloudProviderClient = proto.NewCloudProviderClient(conn)
	w.t.Cleanup(func() {
		assert.NoError(w.t, conn.Close())
		listener.StopNow()
		assert.NoError(w.t, <-served)
	})
}

// bounded gives calls without a deadline one, so that no test hangs.
func bounded(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	if _, ok := ctx.Deadline(); ok {
		return invoke(ctx, method, req, reply, cc, options...)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return invoke(ctx, method, req, reply, cc, options...)
}

// audited looks at every list of instances: Cluster Autoscaler does not see an
// error on anything but a creating instance, nor one without a code (G-03).
func audited(t *testing.T) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
		err := invoke(ctx, method, req, reply, cc, options...)
		if list, ok := reply.(*proto.NodeGroupNodesResponse); ok && err == nil {
			for _, i := range list.GetInstances() {
				if e := i.GetStatus().GetErrorInfo(); e != nil {
					assert.Equal(t, creating, i.GetStatus().GetInstanceState(), "%v", i)
					assert.NotEmpty(t, e.GetErrorCode(), "%v", i)
				}
				assert.NotZero(t, i.GetStatus().GetInstanceState(), "%v", i)
			}
		}
		return err
	}
}

// restart has a new provider on the same AWS: all that the old one remembered is gone.
func (w *world) restart() *world {
	w.t.Helper()
	return serve(w.t, w.stub, w.file)
}

// eventually polls until it holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline.C:
			require.FailNow(t, "this did not happen: "+what)
		case <-tick.C:
		}
	}
}

// metric is the sum of a metric's series.
func (w *world) metric(name string) (sum float64) {
	w.t.Helper()
	families, err := w.registry.Gather()
	require.NoError(w.t, err)
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
			return sum
		}
	}
	require.FailNow(w.t, "no metric "+name)
	return 0
}
