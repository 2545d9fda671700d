package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/simulated"
	"gpu-node-provider/proto"
	"gpu-node-provider/provider"
	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/nodegroup"
)

// The size of the world that is measured.
const (
	groups        = 1_000
	nodesPerGroup = 15
	instances     = groups * nodesPerGroup
)

// world is a provider with all its instances running.
type world struct {
	server *provider.Server
	ids    []string // of the instances
	cloud  *changing
}

// changing is a cloud in which every instance has changed each time it is read,
// once it was told to: the most that a refresh can have to do.
type changing struct {
	cloud.Backend
	on    bool
	round int
}

func (c *changing) Describe(ctx context.Context, ids ...string) ([]cloud.Group, error) {
	described, err := c.Backend.Describe(ctx, ids...)
	if !c.on || err != nil {
		return described, err
	}
	c.round++
	for _, g := range described {
		for n := range g.Instances {
			if c.round%2 == 0 {
				g.Instances[n].State = cloud.Creating
			}
		}
	}
	// One id that was not there before makes the index of all of them a new one.
	described[0].Instances[0].ID = fmt.Sprintf("simulated:///%s/%s-%05d", groupID(0), groupID(0), c.round)
	return described, nil
}

const bootDelay = time.Minute

func newWorld() (*world, error) {
	now := time.Now()
	clock := func() time.Time { return now }
	pretend, err := simulated.New(simulated.Options{BootDelay: bootDelay, Now: clock})
	if err != nil {
		return nil, err
	}
	backend := &changing{Backend: pretend}
	ctx := context.Background()
	s, err := provider.New(ctx, provider.Options{Catalogue: nodegroup.New(file(), pretend.TemplateID), Backend: backend, Now: clock})
	if err != nil {
		return nil, err
	}
	w := &world{server: s, cloud: backend}
	for n := range groups {
		if _, err := s.NodeGroupIncreaseSize(ctx, &proto.NodeGroupIncreaseSizeRequest{Id: groupID(n), Delta: nodesPerGroup}); err != nil {
			return nil, err
		}
	}
	now = now.Add(2 * bootDelay)
	if _, err := s.Refresh(ctx, &proto.RefreshRequest{}); err != nil {
		return nil, err
	}
	for n := range groups {
		response, err := s.NodeGroupNodes(ctx, &proto.NodeGroupNodesRequest{Id: groupID(n)})
		if err != nil {
			return nil, err
		}
		for _, i := range response.GetInstances() {
			w.ids = append(w.ids, i.GetId())
		}
	}
	if len(w.ids) != instances {
		return nil, fmt.Errorf("%d instances instead of %d", len(w.ids), instances)
	}
	return w, nil
}

func groupID(n int) string { return fmt.Sprintf("pool-%03d", n) }

// file is a node group file with one quota over all, as a large user has it.
func file() *config.Config {
	threshold := 0.5
	c := &config.Config{
		GPULabel: "accelerator", Cloud: config.Cloud{Simulated: &config.Simulated{}},
		Quotas: []config.Quota{{Name: "gpus", Resource: "nvidia.com/gpu", Limit: resource.NewQuantity(2*instances, resource.DecimalSI), NodeGroups: []string{"*"}}},
	}
	for n := range groups {
		c.NodeGroups = append(c.NodeGroups, config.NodeGroup{
			ID: groupID(n), MaxSize: 2 * nodesPerGroup, OS: "linux", Arch: "amd64", InstanceType: "g4dn.xlarge",
			Labels: map[string]string{"accelerator": "nvidia-tesla-t4"},
			Taints: []corev1.Taint{{Key: "nvidia.com/gpu", Value: "present", Effect: corev1.TaintEffectNoSchedule}},
			Capacity: corev1.ResourceList{
				"cpu": resource.MustParse("4"), "memory": resource.MustParse("16Gi"), "pods": resource.MustParse("110"), "nvidia.com/gpu": resource.MustParse("1"),
			},
			ScaleDown: config.ScaleDown{GPUUtilizationThreshold: &threshold},
		})
	}
	return c
}
