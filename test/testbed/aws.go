package testbed

import (
	"context"
	"fmt"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-node-provider/test/controlplane"
)

// AWS is a stand-in for AWS as the cloud. Its instances become Nodes here, as
// their kubelets would register them.
type AWS struct {
	Endpoint string
	// Labels are what the kubelets of an Auto Scaling group put on their Nodes, by
	// the group's name.
	Labels map[string]map[string]string
}

const awsRegion = "us-east-1"

// awsEnvironment is how the provider finds credentials.
func (b *Bed) awsEnvironment() []string {
	if b.AWS == nil {
		return nil
	}
	return []string{"AWS_ACCESS_KEY_ID=testing", "AWS_SECRET_ACCESS_KEY=testing", "AWS_EC2_METADATA_DISABLED=true"}
}

// kubelets registers instances as Nodes, keeps their Leases, and removes the
// Nodes of instances that are gone, as the cloud controller manager does.
func (b *Bed) kubelets(ctx context.Context) error {
	client := autoscaling.NewFromConfig(awssdk.Config{
		Region: awsRegion, BaseEndpoint: &b.AWS.Endpoint, Credentials: credentials.NewStaticCredentialsProvider("testing", "testing", ""),
	})
	known := map[string]bool{} // names of Nodes
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		groups, err := client.DescribeAutoScalingGroups(ctx, &autoscaling.DescribeAutoScalingGroupsInput{})
		if err != nil {
			if ctx.Err() == nil {
				fmt.Println("testbed: reading the stand-in for AWS:", err)
			}
			continue
		}
		there := b.registerAll(ctx, groups.AutoScalingGroups)
		for name := range known {
			if !there[name] {
				_ = b.Cluster.Client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}) // gone already, perhaps
			}
		}
		known = there
	}
}

// registerAll returns the names of the instances that have a Node. A kubelet runs on while
// a lifecycle hook holds its instance at the end, and its Node stays Ready.
func (b *Bed) registerAll(ctx context.Context, groups []types.AutoScalingGroup) map[string]bool {
	there := map[string]bool{}
	for _, g := range groups {
		for _, i := range g.Instances {
			if i.LifecycleState != types.LifecycleStateInService && i.LifecycleState != types.LifecycleStateTerminatingWait {
				continue
			}
			there[*i.InstanceId] = true
			if err := b.register(ctx, *g.AutoScalingGroupName, *i.AvailabilityZone, *i.InstanceId); err != nil && ctx.Err() == nil {
				fmt.Println("testbed: registering", *i.InstanceId, err)
			}
		}
	}
	return there
}

// register creates an instance's Node, or renews its Lease. Where kwok runs the Pods of a
// Node, the Lease is kwok's.
func (b *Bed) register(ctx context.Context, group, zone, instance string) error {
	if _, kwok := b.AWS.Labels[group][controlplane.ManagedByKwok]; kwok {
		err := b.createNode(ctx, group, zone, instance)
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}
	leases := b.Cluster.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	now := metav1.NewMicroTime(time.Now())
	lease, err := leases.Get(ctx, instance, metav1.GetOptions{})
	switch {
	case err == nil:
		lease.Spec.RenewTime = &now
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
		return err
	case !apierrors.IsNotFound(err):
		return err
	}
	if err := b.createNode(ctx, group, zone, instance); err != nil {
		return err
	}
	_, err = leases.Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: instance, Namespace: corev1.NamespaceNodeLease},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &instance, LeaseDurationSeconds: new(int32(40)), RenewTime: &now},
	}, metav1.CreateOptions{})
	return err
}

func (b *Bed) createNode(ctx context.Context, group, zone, instance string) error {
	resources := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("15Gi"), corev1.ResourcePods: resource.MustParse("29"),
		"nvidia.com/gpu": resource.MustParse("1"),
	}
	labels := map[string]string{
		corev1.LabelHostname: instance, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		corev1.LabelTopologyRegion: awsRegion, corev1.LabelTopologyZone: zone,
	}
	for key, value := range b.AWS.Labels[group] {
		labels[key] = value
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: instance, Labels: labels},
		Spec: corev1.NodeSpec{
			ProviderID: "aws:///" + zone + "/" + instance,
			Taints:     []corev1.Taint{{Key: "nvidia.com/gpu", Value: "present", Effect: corev1.TaintEffectNoSchedule}},
		},
		Status: corev1.NodeStatus{
			Capacity: resources, Allocatable: resources,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastTransitionTime: metav1.Now()}},
		},
	}
	_, err := b.Cluster.Client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	return err
}
