package conformance

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-node-provider/proto"
)

// pod is a training pod that asks for GPUs and tolerates their taint.
func pod(gpus string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "train"},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{"accelerator": "nvidia-tesla-t4"},
			Tolerations:  []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name:  "trainer",
				Image: "trainer",
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(gpus), "cpu": resource.MustParse("1")},
					Limits:   corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(gpus)},
				},
			}},
		},
	}
}

// podBytes is pod as it travels.
func podBytes(gpus string) []byte {
	bytes, err := pod(gpus).Marshal()
	if err != nil {
		panic(err) // plain data always has a form on the wire
	}
	return bytes
}

// templateOf is what Cluster Autoscaler makes of a template when it asks for a
// price: a name of its own, provider id, labels and annotations.
func templateOf(r *proto.NodeGroupTemplateNodeInfoResponse) *proto.ExternalGrpcNode {
	node := &corev1.Node{}
	if err := node.Unmarshal(r.GetNodeBytes()); err != nil {
		return nil
	}
	return &proto.ExternalGrpcNode{
		ProviderID: node.Spec.ProviderID, Name: "template-node-for-t4-8988815104843637782",
		Labels: node.Labels, Annotations: node.Annotations,
	}
}

// flagDefaults are the defaults that Cluster Autoscaler 1.34 sends with its
// flags as they are: in both forms.
func flagDefaults() *proto.NodeGroupAutoscalingOptions {
	return bothForms(&proto.NodeGroupAutoscalingOptions{
		ScaleDownUtilizationThreshold: 0.5, ScaleDownGpuUtilizationThreshold: 0.5,
	}, 10*time.Minute, 20*time.Minute, 15*time.Minute)
}

func bothForms(o *proto.NodeGroupAutoscalingOptions, unneeded, unready, provision time.Duration) *proto.NodeGroupAutoscalingOptions {
	return legacyForm(newForm(o, unneeded, unready, provision), unneeded, unready, provision)
}

// newForm is what 1.34 and later send.
func newForm(o *proto.NodeGroupAutoscalingOptions, unneeded, unready, provision time.Duration) *proto.NodeGroupAutoscalingOptions {
	o.ScaleDownUnneededDuration = durationpb.New(unneeded)
	o.ScaleDownUnreadyDuration = durationpb.New(unready)
	o.MaxNodeProvisionDuration = durationpb.New(provision)
	return o
}

// legacyForm is what 1.34 and earlier send.
func legacyForm(o *proto.NodeGroupAutoscalingOptions, unneeded, unready, provision time.Duration) *proto.NodeGroupAutoscalingOptions {
	o.ScaleDownUnneededTime = &proto.LegacyDuration{Duration: unneeded.Nanoseconds()}
	o.ScaleDownUnreadyTime = &proto.LegacyDuration{Duration: unready.Nanoseconds()}
	o.MaxNodeProvisionTime = &proto.LegacyDuration{Duration: provision.Nanoseconds()}
	return o
}

func stamp(seconds int64) *timestamppb.Timestamp { return &timestamppb.Timestamp{Seconds: seconds} }
