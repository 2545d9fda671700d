package main

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	"gpu-node-provider/proto"
)

// call is one call with a request of its own.
type call func(ctx context.Context, c proto.CloudProviderClient, n int) error

func forNodeRequest(id string) *proto.NodeGroupForNodeRequest {
	return &proto.NodeGroupForNodeRequest{Node: &proto.ExternalGrpcNode{
		ProviderID: id, Name: id, Labels: map[string]string{"accelerator": "nvidia-tesla-t4", "kubernetes.io/hostname": id},
	}}
}

func optionsRequest(group string) *proto.NodeGroupAutoscalingOptionsRequest {
	return &proto.NodeGroupAutoscalingOptionsRequest{Id: group, Defaults: &proto.NodeGroupAutoscalingOptions{
		ScaleDownUtilizationThreshold: 0.5, ScaleDownGpuUtilizationThreshold: 0.5,
		ScaleDownUnneededDuration: durationpb.New(10 * time.Minute), ScaleDownUnreadyDuration: durationpb.New(20 * time.Minute),
		MaxNodeProvisionDuration: durationpb.New(15 * time.Minute),
	}}
}

// callsOf are the calls that are measured, with ids all over the world.
func callsOf(ids []string) map[string]call {
	return map[string]call{
		"NodeGroupForNode": func(ctx context.Context, c proto.CloudProviderClient, n int) error {
			_, err := c.NodeGroupForNode(ctx, forNodeRequest(ids[n%len(ids)]))
			return err
		},
		"NodeGroupTargetSize": func(ctx context.Context, c proto.CloudProviderClient, n int) error {
			_, err := c.NodeGroupTargetSize(ctx, &proto.NodeGroupTargetSizeRequest{Id: groupID(n % groups)})
			return err
		},
		"NodeGroupGetOptions": func(ctx context.Context, c proto.CloudProviderClient, n int) error {
			_, err := c.NodeGroupGetOptions(ctx, optionsRequest(groupID(n%groups)))
			return err
		},
		"NodeGroups": func(ctx context.Context, c proto.CloudProviderClient, _ int) error {
			_, err := c.NodeGroups(ctx, &proto.NodeGroupsRequest{})
			return err
		},
	}
}

// sample is what one run of calls took.
type sample struct {
	perSecond float64
	p50, p99  time.Duration
}

// clients are connections that have been used already.
func clients(ctx context.Context, address string, n int) (all []proto.CloudProviderClient, closeAll func(), err error) {
	var connections []*grpc.ClientConn
	closeAll = func() {
		for _, c := range connections {
			_ = c.Close() // a client that is not needed any more
		}
	}
	for range n {
		connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		connections = append(connections, connection)
		client := proto.NewCloudProviderClient(connection)
		if _, err := client.NodeGroups(ctx, &proto.NodeGroupsRequest{}); err != nil {
			closeAll()
			return nil, nil, err
		}
		all = append(all, client)
	}
	return all, closeAll, nil
}

// deadline is Cluster Autoscaler's own, which it sends with every call.
const deadline = 5 * time.Second

func withDeadline(ctx context.Context, client proto.CloudProviderClient, c call, n int) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	return c(ctx, client, n)
}

// run makes calls for a while, one after another on each client.
func run(ctx context.Context, all []proto.CloudProviderClient, c call, length time.Duration) (sample, error) {
	took := make([][]time.Duration, len(all))
	started := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for k, client := range all {
		g.Go(func() error {
			for time.Since(started) < length {
				n := rand.IntN(instances)
				begin := time.Now()
				if err := withDeadline(ctx, client, c, n); err != nil {
					return err
				}
				took[k] = append(took[k], time.Since(begin))
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return sample{}, err
	}
	elapsed := time.Since(started)
	merged := slices.Concat(took...)
	slices.Sort(merged)
	return sample{
		perSecond: float64(len(merged)) / elapsed.Seconds(),
		p50:       merged[len(merged)/2],
		p99:       merged[len(merged)*99/100],
	}, nil
}
