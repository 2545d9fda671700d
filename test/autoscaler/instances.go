package main

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-node-provider/proto"
)

const instancesRefresh = 2 * time.Minute

// instanceCache is what NodeGroupNodes answered. Outside of scale-ups it is only
// as fresh as the last round of the background refresh.
type instanceCache struct {
	cloud *cloud

	mu      sync.Mutex
	byGroup map[string][]*proto.Instance
}

// run refreshes for as long as ctx lives, first at once: before any Refresh.
func (c *instanceCache) run(ctx context.Context) {
	for {
		c.refresh(ctx)
		if !pause(ctx, instancesRefresh) {
			return
		}
	}
}

// refresh takes an error for a group without instances, as the real one does.
func (c *instanceCache) refresh(ctx context.Context) {
	groups := c.cloud.nodeGroups(ctx)
	exists := map[string]bool{}
	for _, g := range groups {
		exists[g.id] = true
	}
	c.mu.Lock()
	for id := range c.byGroup {
		if !exists[id] {
			delete(c.byGroup, id)
		}
	}
	c.mu.Unlock()
	for _, g := range groups {
		instances, err := g.instances(ctx)
		if err != nil {
			c.cloud.log.Warn("background Nodes failed: believing in no instances", "group", g.id, "error", err)
			instances = nil
		}
		c.put(g.id, instances)
	}
}

func (c *instanceCache) put(id string, instances []*proto.Instance) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.byGroup[id] = instances
}

func (c *instanceCache) get(id string) ([]*proto.Instance, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	instances, ok := c.byGroup[id]
	return instances, ok
}

func (c *instanceCache) invalidate(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.byGroup, id)
}

// all asks for what is missing, all groups at once, and once more where that failed.
func (c *instanceCache) all(ctx context.Context) (map[string][]*proto.Instance, error) {
	groups := c.cloud.nodeGroups(ctx)
	var asking sync.WaitGroup
	for _, g := range groups {
		if _, ok := c.get(g.id); !ok {
			asking.Go(func() { _, _ = c.fetch(ctx, g) })
		}
	}
	asking.Wait()
	all := map[string][]*proto.Instance{}
	for _, g := range groups {
		instances, ok := c.get(g.id)
		if !ok {
			var err error
			if instances, err = c.fetch(ctx, g); err != nil {
				return nil, err
			}
		}
		all[g.id] = instances
	}
	return all, nil
}

func (c *instanceCache) fetch(ctx context.Context, g *group) ([]*proto.Instance, error) {
	instances, err := g.instances(ctx)
	if err != nil {
		c.cloud.log.Warn("Nodes failed", "group", g.id, "error", err)
		return nil, err
	}
	c.put(g.id, instances)
	return instances, nil
}

// Why an instance is shown to the server as a node.
const (
	fakeReason       = "k8s.io/cluster-autoscaler/fake-node-reason"
	fakeUnregistered = "unregistered"
	fakeCreateError  = "create-error"
)

// fakeNode is an instance as a node, for the calls that take nodes.
func fakeNode(id, reason string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: id, Annotations: map[string]string{fakeReason: reason}},
		Spec:       corev1.NodeSpec{ProviderID: id},
	}
}

// failedCreation says whether an instance will not come. Errors count only while
// an instance is being created, and only with a code.
func failedCreation(i *proto.Instance) bool {
	return i.GetStatus().GetInstanceState() == proto.InstanceStatus_instanceCreating && hasError(i)
}

// hasError: without a state the whole status is lost, the error with it.
func hasError(i *proto.Instance) bool {
	s := i.GetStatus()
	return s.GetInstanceState() != proto.InstanceStatus_unspecified && s.GetErrorInfo().GetErrorCode() != ""
}

func expectedToRegister(i *proto.Instance) bool {
	return i.GetStatus().GetInstanceState() != proto.InstanceStatus_instanceDeleting && !hasError(i)
}

// pause waits, and says whether ctx still lives.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return ctx.Err() == nil
	}
}
