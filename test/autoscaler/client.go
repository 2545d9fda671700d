package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"

	"gpu-node-provider/proto"
)

// cloud is the server, with the caches of the real client.
type cloud struct {
	client   proto.CloudProviderClient
	timeout  time.Duration
	defaults groupOptions
	log      *slog.Logger

	// oneCall is held during calls, so that at most one of NodeGroups,
	// NodeGroupForNode, GPULabel and GetAvailableGPUTypes is on its way.
	oneCall  lock
	groups   []*group // until Refresh; nil is not cached
	forNode  map[string]*group
	gpuLabel *string // for ever
	gpuTypes bool    // asked for, for ever
}

// lock is a mutex that may be held during a call: unlike of a sync.Mutex, a fake
// clock knows of those who wait for it.
type lock chan struct{}

func newLock() lock { return make(lock, 1) }

func (l lock) Lock() { l <- struct{}{} }

func (l lock) Unlock() { <-l }

func newCloud(client proto.CloudProviderClient, timeout time.Duration, defaults groupOptions, log *slog.Logger) *cloud {
	return &cloud{client: client, timeout: timeout, defaults: defaults, log: log, oneCall: newLock(), forNode: map[string]*group{}}
}

// dial connects as the real one does: mutual TLS when there is a certificate,
// otherwise plaintext, whatever else is given.
func dial(c cloudConfig) (*grpc.ClientConn, error) {
	transport := insecure.NewCredentials()
	if c.Cert != "" {
		cert, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, fmt.Errorf("client certificate: %w", err)
		}
		pem, err := os.ReadFile(c.Cacert)
		if err != nil {
			return nil, fmt.Errorf("cacert: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("cacert %s: no certificate in it", c.Cacert)
		}
		host, _, err := net.SplitHostPort(c.Address)
		if err != nil {
			return nil, fmt.Errorf("address: %w", err)
		}
		transport = credentials.NewTLS(&tls.Config{
			ServerName: host, Certificates: []tls.Certificate{cert}, RootCAs: roots, MinVersion: tls.VersionTLS12,
		})
	}
	conn, err := grpc.NewClient("passthrough:///"+c.Address, grpc.WithTransportCredentials(transport))
	if err != nil {
		return nil, fmt.Errorf("server %s: %w", c.Address, err)
	}
	conn.Connect()
	return conn, nil
}

func (c *cloud) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.timeout)
}

// refresh drops what is cached for a loop even when the call then fails.
func (c *cloud) refresh(ctx context.Context) error {
	c.oneCall.Lock()
	c.groups, c.forNode = nil, map[string]*group{}
	c.oneCall.Unlock()
	ctx, cancel := c.within(ctx)
	defer cancel()
	_, err := c.client.Refresh(ctx, &proto.RefreshRequest{})
	return err
}

func (c *cloud) cleanup(ctx context.Context) error {
	ctx, cancel := c.within(ctx)
	defer cancel()
	_, err := c.client.Cleanup(ctx, &proto.CleanupRequest{})
	return err
}

// nodeGroups is empty after an error, which is then not cached.
func (c *cloud) nodeGroups(ctx context.Context) []*group {
	c.oneCall.Lock()
	defer c.oneCall.Unlock()
	if c.groups != nil {
		return c.groups
	}
	ctx, cancel := c.within(ctx)
	defer cancel()
	answer, err := c.client.NodeGroups(ctx, &proto.NodeGroupsRequest{})
	if err != nil {
		c.log.Warn("NodeGroups failed: going on without any", "error", err)
		return nil
	}
	c.groups = []*group{}
	for _, g := range answer.GetNodeGroups() {
		c.groups = append(c.groups, c.newGroup(g))
	}
	return c.groups
}

func (c *cloud) groupByID(ctx context.Context, id string) *group {
	for _, g := range c.nodeGroups(ctx) {
		if g.id == id {
			return g
		}
	}
	return nil
}

// groupForNode is nil for a node of nobody, which is not cached.
func (c *cloud) groupForNode(ctx context.Context, node *corev1.Node) (*group, error) {
	c.oneCall.Lock()
	defer c.oneCall.Unlock()
	key := node.Name + node.Spec.ProviderID
	if g, ok := c.forNode[key]; ok {
		return g, nil
	}
	ctx, cancel := c.within(ctx)
	defer cancel()
	answer, err := c.client.NodeGroupForNode(ctx, &proto.NodeGroupForNodeRequest{Node: onWire(node)})
	if err != nil {
		c.log.Warn("NodeGroupForNode failed", "node", node.Name, "error", err)
		return nil, err
	}
	if answer.GetNodeGroup().GetId() == "" {
		return nil, nil
	}
	g := c.newGroup(answer.GetNodeGroup())
	c.forNode[key] = g
	return g, nil
}

func (c *cloud) label(ctx context.Context) string {
	c.oneCall.Lock()
	defer c.oneCall.Unlock()
	if c.gpuLabel != nil {
		return *c.gpuLabel
	}
	ctx, cancel := c.within(ctx)
	defer cancel()
	answer, err := c.client.GPULabel(ctx, &proto.GPULabelRequest{})
	if err != nil {
		c.log.Warn("GPULabel failed", "error", err)
		return ""
	}
	label := answer.GetLabel()
	c.gpuLabel = &label
	return label
}

// askGPUTypes is for the server alone: the types only label metrics.
func (c *cloud) askGPUTypes(ctx context.Context) {
	c.oneCall.Lock()
	defer c.oneCall.Unlock()
	if c.gpuTypes {
		return
	}
	ctx, cancel := c.within(ctx)
	defer cancel()
	_, err := c.client.GetAvailableGPUTypes(ctx, &proto.GetAvailableGPUTypesRequest{})
	c.gpuTypes = err == nil
}

// group is a node group as one answer showed it. Its template lives as long as
// the object, and NodeGroupForNode makes an object for every node.
type group struct {
	id       string
	min, max int
	cloud    *cloud

	oneCall lock
	node    *corev1.Node
}

func (c *cloud) newGroup(g *proto.NodeGroup) *group {
	return &group{id: g.GetId(), min: int(g.GetMinSize()), max: int(g.GetMaxSize()), cloud: c, oneCall: newLock()}
}

func (g *group) targetSize(ctx context.Context) (int, error) {
	ctx, cancel := g.cloud.within(ctx)
	defer cancel()
	answer, err := g.cloud.client.NodeGroupTargetSize(ctx, &proto.NodeGroupTargetSizeRequest{Id: g.id})
	return int(answer.GetTargetSize()), err
}

func (g *group) increase(ctx context.Context, delta int) error {
	ctx, cancel := g.cloud.within(ctx)
	defer cancel()
	_, err := g.cloud.client.NodeGroupIncreaseSize(ctx, &proto.NodeGroupIncreaseSizeRequest{Id: g.id, Delta: int32(delta)})
	return err
}

func (g *group) decrease(ctx context.Context, delta int) error {
	ctx, cancel := g.cloud.within(ctx)
	defer cancel()
	_, err := g.cloud.client.NodeGroupDecreaseTargetSize(ctx, &proto.NodeGroupDecreaseTargetSizeRequest{Id: g.id, Delta: int32(delta)})
	return err
}

func (g *group) deleteNodes(ctx context.Context, nodes ...*corev1.Node) error {
	ctx, cancel := g.cloud.within(ctx)
	defer cancel()
	request := &proto.NodeGroupDeleteNodesRequest{Id: g.id}
	for _, node := range nodes {
		request.Nodes = append(request.Nodes, onWire(node))
	}
	_, err := g.cloud.client.NodeGroupDeleteNodes(ctx, request)
	return err
}

func (g *group) instances(ctx context.Context) ([]*proto.Instance, error) {
	ctx, cancel := g.cloud.within(ctx)
	defer cancel()
	answer, err := g.cloud.client.NodeGroupNodes(ctx, &proto.NodeGroupNodesRequest{Id: g.id})
	return answer.GetInstances(), err
}

// template panics where the real one does: at an answer without a node.
func (g *group) template(ctx context.Context) (*corev1.Node, error) {
	g.oneCall.Lock()
	defer g.oneCall.Unlock()
	if g.node != nil {
		return g.node, nil
	}
	ctx, cancel := g.cloud.within(ctx)
	defer cancel()
	answer, err := g.cloud.client.NodeGroupTemplateNodeInfo(ctx, &proto.NodeGroupTemplateNodeInfoRequest{Id: g.id})
	if err != nil {
		return nil, err
	}
	if answer.GetNodeBytes() == nil {
		panic("NodeGroupTemplateNodeInfo of " + g.id + " holds no node: the real one dies of this as well")
	}
	node := &corev1.Node{}
	if err := node.Unmarshal(answer.GetNodeBytes()); err != nil {
		return nil, fmt.Errorf("template of %s: %w", g.id, err)
	}
	g.node = node
	return node, nil
}

// options are never cached. An answer replaces every default, and since it has no
// field for the startup time, that becomes 0.
func (g *group) options(ctx context.Context) (groupOptions, error) {
	ctx, cancel := g.cloud.within(ctx)
	defer cancel()
	d := g.cloud.defaults
	answer, err := g.cloud.client.NodeGroupGetOptions(ctx, &proto.NodeGroupAutoscalingOptionsRequest{
		Id: g.id, Defaults: &proto.NodeGroupAutoscalingOptions{
			ScaleDownUtilizationThreshold:    d.utilization,
			ScaleDownGpuUtilizationThreshold: d.gpuUtilization,
			ScaleDownUnneededDuration:        durationpb.New(d.unneeded),
			ScaleDownUnreadyDuration:         durationpb.New(d.unready),
			MaxNodeProvisionDuration:         durationpb.New(d.provision),
		},
	})
	if status.Code(err) == codes.Unimplemented {
		return d, nil
	}
	if err != nil {
		g.cloud.log.Warn("GetOptions failed", "group", g.id, "error", err)
		return d, err
	}
	o := answer.GetNodeGroupAutoscalingOptions()
	if o == nil {
		return d, nil
	}
	return groupOptions{
		utilization:      o.GetScaleDownUtilizationThreshold(),
		gpuUtilization:   o.GetScaleDownGpuUtilizationThreshold(),
		unneeded:         o.GetScaleDownUnneededDuration().AsDuration(),
		unready:          o.GetScaleDownUnreadyDuration().AsDuration(),
		provision:        o.GetMaxNodeProvisionDuration().AsDuration(),
		ignoreDaemonSets: o.GetIgnoreDaemonSetsUtilization(),
	}, nil
}

func onWire(node *corev1.Node) *proto.ExternalGrpcNode {
	return &proto.ExternalGrpcNode{
		ProviderID: node.Spec.ProviderID, Name: node.Name, Labels: node.Labels, Annotations: node.Annotations,
	}
}
