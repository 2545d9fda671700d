package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpu-node-provider/cloud/aws"
	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/proto"
	"gpu-node-provider/provider"
	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/nodegroup"
)

const (
	writeRounds = 10
	writeASG    = "train"
	// A write reads the group once and writes once, each a call of AWS.
	mostWrite = 2.1 // times one call
)

// writes measures IncreaseSize and DeleteNodes beside one call of the SDK, where each
// call of AWS takes 20 ms and 100 ms.
func writes(ctx context.Context, _ settings) (missed int, err error) {
	for key, value := range map[string]string{"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_EC2_METADATA_DISABLED": "true"} {
		if err := os.Setenv(key, value); err != nil {
			return 0, err
		}
	}
	for _, latency := range []time.Duration{20 * time.Millisecond, 100 * time.Millisecond} {
		n, err := writesAt(ctx, latency)
		missed += n
		if err != nil {
			return missed, err
		}
	}
	return missed, nil
}

func writesAt(ctx context.Context, latency time.Duration) (missed int, err error) {
	stub := awstest.NewStub(forGood{}, awstest.WithClock(time.Now))
	stub.CreateGroup(awstest.Group{Name: writeASG, Max: 1000, Desired: 2 * writeRounds, Protected: true})
	stub.Settle()
	stub.Faults(awstest.Rule{Fault: awstest.Do(func() { <-time.After(latency) })})
	raw, err := newRawAWS(ctx, stub.URL())
	if err != nil {
		return 0, err
	}
	s, err := onASG(ctx, stub.URL())
	if err != nil {
		return 0, err
	}
	one := func() error {
		_, err := raw.client.DescribeAutoScalingGroups(ctx, &autoscaling.DescribeAutoScalingGroupsInput{AutoScalingGroupNames: []string{writeASG}})
		return err
	}
	for name, write := range map[string]func() error{
		"increase": func() error {
			_, err := s.NodeGroupIncreaseSize(ctx, &proto.NodeGroupIncreaseSizeRequest{Id: writeASG, Delta: 1})
			return err
		},
		"delete": func() error { return deleteOne(ctx, s) },
	} {
		times, err := inTurn(writeRounds, write, one)
		if err != nil {
			return missed, err
		}
		stub.Settle()
		took, beside := median(times[0]), median(times[1])
		missed += row{
			name: fmt.Sprintf("%s at %s", name, latency), ours: short(took), beside: short(beside), ratio: took / beside, most: mostWrite,
			note: fmt.Sprintf("one call of the SDK that takes %s; median of %d in turn", latency, writeRounds),
		}.print()
	}
	return missed, nil
}

// onASG is a provider with one group on AWS.
func onASG(ctx context.Context, endpoint string) (*provider.Server, error) {
	backend, err := aws.New(ctx, aws.Options{Region: awsRegion, Endpoint: endpoint})
	if err != nil {
		return nil, err
	}
	c := file()
	c.NodeGroups = c.NodeGroups[:1]
	c.NodeGroups[0].ID, c.NodeGroups[0].AutoScalingGroup, c.NodeGroups[0].MaxSize = writeASG, writeASG, 1000
	c.Quotas = []config.Quota{{Name: "gpus", Resource: "nvidia.com/gpu", Limit: resource.NewQuantity(1000, resource.DecimalSI), NodeGroups: []string{writeASG}}}
	return provider.New(ctx, provider.Options{Catalogue: nodegroup.New(c, backend.TemplateID), Backend: backend, ReadEvery: time.Hour})
}

// deleteOne deletes the first instance that runs.
func deleteOne(ctx context.Context, s *provider.Server) error {
	response, err := s.NodeGroupNodes(ctx, &proto.NodeGroupNodesRequest{Id: writeASG})
	if err != nil {
		return err
	}
	for _, i := range response.GetInstances() {
		if i.GetStatus().GetInstanceState() == proto.InstanceStatus_instanceRunning {
			_, err := s.NodeGroupDeleteNodes(ctx, &proto.NodeGroupDeleteNodesRequest{Id: writeASG, Nodes: []*proto.ExternalGrpcNode{{ProviderID: i.GetId(), Name: "node"}}})
			return err
		}
	}
	return fmt.Errorf("no instance of group %s runs", writeASG)
}
