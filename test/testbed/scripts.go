package testbed

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-node-provider/test/controlplane"
)

// Script is a Deployment of training pods that do nothing but run a shell
// script: what they acknowledge is the test's own affair.
type Script struct {
	Name        string
	Accelerator string
	Script      string
	Replicas    int32
	Grace       int64 // seconds
	Image       string
}

// Stubborn trains for ever and does not save when it is told to stop.
const Stubborn = "trap '' TERM; while :; do sleep 0.1; done"

// Hasty trains for ever and ends at once when it is told to stop, without a save.
const Hasty = "trap 'exit 0' TERM; while :; do sleep 0.1; done"

// Start starts the Deployment.
func (b *Bed) StartScript(ctx context.Context, s Script) error {
	client := b.Cluster.Client
	_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: trainersNamespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, err = client.AppsV1().Deployments(trainersNamespace).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: s.Name},
		Spec:       appsv1.DeploymentSpec{Replicas: &s.Replicas, Selector: s.selector(), Template: s.template()},
	}, metav1.CreateOptions{})
	return err
}

func (s Script) selector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": s.Name}}
}

func (s Script) template() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": s.Name, checkpointLabel: "required"}},
		Spec: corev1.PodSpec{
			NodeSelector:                  map[string]string{"accelerator": s.Accelerator},
			Tolerations:                   []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}},
			TerminationGracePeriodSeconds: &s.Grace,
			Containers: []corev1.Container{{
				Name: "trainer", Image: cmp.Or(s.Image, "trainer:dev"), Command: []string{"sh", "-c", s.Script},
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}},
			}},
		},
	}
}

// StartJob starts the script as a Job that takes no second try. Its Pod stays
// when it has failed.
func (b *Bed) StartJob(ctx context.Context, s Script) error {
	template := s.template()
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	_, err := b.Cluster.Client.BatchV1().Jobs(trainersNamespace).Create(ctx, &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: s.Name}, Spec: batchv1.JobSpec{BackoffLimit: new(int32), Template: template},
	}, metav1.CreateOptions{})
	return err
}

// StartStatefulSet starts the script as a StatefulSet, whose Pods come back
// under their names.
func (b *Bed) StartStatefulSet(ctx context.Context, s Script) error {
	_, err := b.Cluster.Client.AppsV1().StatefulSets(trainersNamespace).Create(ctx, &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: s.Name},
		Spec:       appsv1.StatefulSetSpec{Replicas: &s.Replicas, Selector: s.selector(), ServiceName: s.Name, Template: s.template()},
	}, metav1.CreateOptions{})
	return err
}

// Land puts one Pod of the script on a node at once, past the scheduler.
func (b *Bed) Land(ctx context.Context, node string, s Script) error {
	template := s.template()
	template.Spec.NodeName = node
	_, err := b.Cluster.Client.CoreV1().Pods(trainersNamespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: s.Name, Labels: template.Labels,
			Annotations: map[string]string{"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}, // though it has no controller
		},
		Spec: template.Spec,
	}, metav1.CreateOptions{})
	return err
}

// WithoutGuard takes away the provider's right to write to Nodes, so that
// nothing is held by an annotation.
func (b *Bed) WithoutGuard(ctx context.Context) error {
	roles := b.Cluster.Client.RbacV1().ClusterRoles()
	role, err := roles.Get(ctx, "gpu-node-provider", metav1.GetOptions{})
	if err != nil {
		return err
	}
	for n, rule := range role.Rules {
		if slices.Contains(rule.Resources, "nodes") {
			role.Rules[n].Verbs = slices.DeleteFunc(rule.Verbs, func(verb string) bool { return verb == "patch" })
		}
	}
	_, err = roles.Update(ctx, role, metav1.UpdateOptions{})
	return err
}

// DeleteScript deletes the Deployment, and its Pods with it.
func (b *Bed) DeleteScript(ctx context.Context, name string) error {
	background := metav1.DeletePropagationBackground
	return b.Cluster.Client.AppsV1().Deployments(trainersNamespace).Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &background})
}

// SpareNode adds a node of n GPUs that is none of the provider's, for Pods to
// move to; kwok runs it.
func (b *Bed) SpareNode(ctx context.Context, name, accelerator string, gpus int64) error {
	resources := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("32Gi"), corev1.ResourcePods: resource.MustParse("110"),
		"nvidia.com/gpu": *resource.NewQuantity(gpus, resource.DecimalSI),
	}
	_, err := b.Cluster.Client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			controlplane.ManagedByKwok: "", "accelerator": accelerator, corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		}},
		Status: corev1.NodeStatus{Capacity: resources, Allocatable: resources},
	}, metav1.CreateOptions{})
	return err
}

// AckKey is the key of a Pod's acknowledgement, with the default prefix.
func AckKey(pod *corev1.Pod) string {
	return fmt.Sprintf("checkpoint:ack:%s:%s:%s", pod.Namespace, pod.Name, pod.UID)
}

// RequestKey is the key by which a Pod is asked.
func RequestKey(pod *corev1.Pod) string {
	return fmt.Sprintf("checkpoint:request:%s:%s:%s", pod.Namespace, pod.Name, pod.UID)
}

// Acknowledge does what a trainer does after a save.
func (b *Bed) Acknowledge(ctx context.Context, pod *corev1.Pod) error {
	now, err := b.Redis.Time(ctx).Result()
	if err != nil {
		return err
	}
	text, err := json.Marshal(map[string]any{"v": 1, "savedAt": now.UTC().Format(time.RFC3339Nano)})
	if err != nil {
		return err
	}
	if err := b.Redis.Set(ctx, AckKey(pod), text, 0).Err(); err != nil {
		return err
	}
	return b.Redis.Publish(ctx, "checkpoint:acks", AckKey(pod)).Err()
}

// Loop waits for n whole loops of Cluster Autoscaler.
func (b *Bed) Loop(ctx context.Context, n int) error {
	before, err := b.Loops(ctx)
	if err != nil {
		return err
	}
	_, err = b.Watch.Until(ctx, startTimeout+time.Duration(n)*5*time.Second, fmt.Sprintf("%d loops", n), func(State) bool {
		now, err := b.Loops(ctx)
		return err == nil && now.Count >= before.Count+n
	})
	return err
}

// PodsOf are the Pods of a Script on the testbed, those that are going included.
func (s State) PodsOf(script string) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, pod := range s.Pods {
		if pod.Labels["app"] == script {
			pods = append(pods, pod)
		}
	}
	return pods
}

// Tainted says whether Cluster Autoscaler drains a Node.
func Tainted(node *corev1.Node) bool { return condition(node) == "draining" }
