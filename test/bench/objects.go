package main

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// Objects as kubelets, controllers and device plugins write them.

const (
	trainingLabel = "gpu-node-provider.io/checkpoint"
	groupLabel    = "gpu-node-provider.io/node-group"
	trainers      = "training"
	gpuResource   = corev1.ResourceName("nvidia.com/gpu")
)

func nodeName(n int) string {
	return fmt.Sprintf("ip-10-%d-%d-%d.ec2.internal", n>>16&255, n>>8&255, n&255)
}

func machineID(n int) string { return fmt.Sprintf("aws:///us-east-1a/i-%017x", n) }

// acknowledgement is what a trainer writes when its checkpoint is durable.
func acknowledgement() string {
	return fmt.Sprintf(`{"v":1,"savedAt":%q,"step":48000,"uri":"s3://checkpoints/llama/step-48000"}`, time.Now().UTC().Format(time.RFC3339))
}

func aNode(n int) *corev1.Node {
	amounts := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("48"), corev1.ResourceMemory: resource.MustParse("196608Mi"), corev1.ResourcePods: resource.MustParse("110"),
		corev1.ResourceEphemeralStorage: resource.MustParse("104845292Ki"), "hugepages-1Gi": resource.MustParse("0"), "hugepages-2Mi": resource.MustParse("0"),
		gpuResource: resource.MustParse("4"),
	}
	since := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	var conditions []corev1.NodeCondition
	for kind, why := range map[corev1.NodeConditionType]string{
		corev1.NodeMemoryPressure: "KubeletHasSufficientMemory", corev1.NodeDiskPressure: "KubeletHasNoDiskPressure",
		corev1.NodePIDPressure: "KubeletHasSufficientPID", corev1.NodeReady: "KubeletReady",
	} {
		status := corev1.ConditionFalse
		if kind == corev1.NodeReady {
			status = corev1.ConditionTrue
		}
		conditions = append(conditions, corev1.NodeCondition{
			Type: kind, Status: status, Reason: why, Message: "kubelet has found nothing that is wrong with it", LastHeartbeatTime: since, LastTransitionTime: since,
		})
	}
	return &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{
			Name: nodeName(n), CreationTimestamp: since,
			Labels: map[string]string{
				groupLabel: groupID(n % groups), "accelerator": "nvidia-tesla-t4", corev1.LabelHostname: nodeName(n), corev1.LabelArchStable: "amd64",
				corev1.LabelOSStable: "linux", corev1.LabelInstanceTypeStable: "g4dn.12xlarge", corev1.LabelTopologyRegion: "us-east-1",
				corev1.LabelTopologyZone: "us-east-1a", "eks.amazonaws.com/nodegroup": groupID(n % groups), "eks.amazonaws.com/capacityType": "ON_DEMAND",
				"k8s.io/cloud-provider-aws": "0123456789abcdef", "nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.count": "4", "nvidia.com/gpu.memory": "15360",
				"nvidia.com/cuda.driver.major": "570", "topology.k8s.aws/zone-id": "use1-az1",
			},
			Annotations: map[string]string{
				"volumes.kubernetes.io/controller-managed-attach-detach": "true", "node.alpha.kubernetes.io/ttl": "0", "alpha.kubernetes.io/provided-node-ip": "10.0.0.1",
				"csi.volume.kubernetes.io/nodeid": fmt.Sprintf(`{"ebs.csi.aws.com":"i-%017x","fsx.csi.aws.com":%q}`, n, nodeName(n)),
			},
			ManagedFields: managed("kubelet", "aws-cloud-controller-manager", "kube-controller-manager"),
		},
		Spec: corev1.NodeSpec{ProviderID: machineID(n), Taints: []corev1.Taint{{Key: "nvidia.com/gpu", Value: "present", Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{
			Capacity: amounts, Allocatable: amounts.DeepCopy(), Conditions: conditions, Images: images(),
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeInternalDNS, Address: nodeName(n)}, {Type: corev1.NodeHostName, Address: nodeName(n)},
			},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: 10250}},
			NodeInfo: corev1.NodeSystemInfo{
				MachineID: string(uuid.NewUUID()), SystemUUID: string(uuid.NewUUID()), BootID: string(uuid.NewUUID()), KernelVersion: "6.12.40-63.114.amzn2023.x86_64",
				OSImage: "Amazon Linux 2023.9.20260801", ContainerRuntimeVersion: "containerd://2.1.4", KubeletVersion: "v1.36.3-eks-abcdef0", OperatingSystem: "linux", Architecture: "amd64",
			},
		},
	}
}

// images are as many as a kubelet reports.
func images() []corev1.ContainerImage {
	var all []corev1.ContainerImage
	for n := range 50 {
		repository := fmt.Sprintf("602401143452.dkr.ecr.us-east-1.amazonaws.com/training/image-%02d", n)
		all = append(all, corev1.ContainerImage{Names: []string{repository + fmt.Sprintf("@sha256:%064x", n), repository + ":v1.2.3"}, SizeBytes: 1 << 30})
	}
	return all
}

// managed is as long as such fields are, about half of an object.
func managed(managers ...string) []metav1.ManagedFieldsEntry {
	const fields = `{"f:metadata":{"f:annotations":{".":{},"f:one":{},"f:two":{}},"f:labels":{".":{},"f:app":{},"f:batch.kubernetes.io/controller-uid":{},` +
		`"f:batch.kubernetes.io/job-name":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"trainer\"}":{".":{},"f:args":{},"f:command":{},"f:env":{".":{},` +
		`"k:{\"name\":\"MASTER_ADDR\"}":{".":{},"f:name":{},"f:value":{}},"k:{\"name\":\"NCCL_DEBUG\"}":{".":{},"f:name":{},"f:value":{}}},"f:image":{},` +
		`"f:imagePullPolicy":{},"f:name":{},"f:resources":{".":{},"f:limits":{".":{},"f:cpu":{},"f:memory":{},"f:nvidia.com/gpu":{}},"f:requests":{}}}},` +
		`"f:restartPolicy":{},"f:schedulerName":{},"f:terminationGracePeriodSeconds":{},"f:tolerations":{},"f:volumes":{}}}`
	var all []metav1.ManagedFieldsEntry
	for _, m := range managers {
		all = append(all, metav1.ManagedFieldsEntry{
			Manager: m, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
		})
	}
	return all
}

// aTrainer is a training pod of an indexed Job, with two containers beside its trainer.
func aTrainer(n int, node string) *corev1.Pod {
	job := fmt.Sprintf("llama-%04d", n/8)
	pod := aPod(fmt.Sprintf("%s-%d-x7k2p", job, n%8), node, metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: job, UID: types.UID(fmt.Sprintf("%08d-1111-4111-8111-111111111111", n/8))})
	pod.Labels = map[string]string{
		trainingLabel: "required", "app": "train-worker", "batch.kubernetes.io/job-name": job, "batch.kubernetes.io/job-completion-index": fmt.Sprint(n % 8),
		"batch.kubernetes.io/controller-uid": string(pod.OwnerReferences[0].UID), "team": "language",
	}
	one := corev1.ResourceList{gpuResource: resource.MustParse("1"), corev1.ResourceCPU: resource.MustParse("10"), corev1.ResourceMemory: resource.MustParse("40Gi")}
	pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: one, Requests: one}
	return pod
}

// aService is a pod that does not train.
func aService(n int, node string) *corev1.Pod {
	set := fmt.Sprintf("inference-%03d-6d8f9c7b5d", n/100)
	pod := aPod(fmt.Sprintf("%s-%05x", set, n), node, metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: set, UID: types.UID(fmt.Sprintf("%08d-2222-4222-8222-222222222222", n/100))})
	pod.Namespace, pod.GenerateName = "inference", set+"-"
	pod.Labels = map[string]string{"app": fmt.Sprintf("inference-%03d", n/100), "pod-template-hash": "6d8f9c7b5d", "team": "serving", "version": "v12"}
	return pod
}

func aPod(name, node string, owner metav1.OwnerReference) *corev1.Pod {
	owner.Controller, owner.BlockOwnerDeletion = new(true), new(true)
	since := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	pod := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: trainers, UID: uuid.NewUUID(), CreationTimestamp: since, OwnerReferences: []metav1.OwnerReference{owner},
			Annotations: map[string]string{
				"prometheus.io/scrape": "true", "prometheus.io/port": "9400", "sidecar.istio.io/status": `{"initContainers":["istio-init"],"containers":["istio-proxy"],"volumes":["istio-envoy"]}`,
				"kubectl.kubernetes.io/default-container": "main",
			},
			ManagedFields: managed("kube-controller-manager", "kubelet"),
		},
		Spec: corev1.PodSpec{
			NodeName: node, RestartPolicy: corev1.RestartPolicyNever, ServiceAccountName: "default", SchedulerName: "default-scheduler", TerminationGracePeriodSeconds: new(int64(30)),
			Tolerations: []corev1.Toleration{
				{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
				{Key: "node.kubernetes.io/not-ready", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(300))},
			},
			Volumes: []corev1.Volume{
				{Name: "checkpoints", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "checkpoints"}}},
				{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "settings", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}}},
			},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &since, HostIP: "10.0.0.1", PodIP: "10.1.2.3", QOSClass: corev1.PodQOSBurstable},
	}
	for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: since})
	}
	for _, container := range []string{"main", "istio-proxy", "metrics"} {
		addContainer(pod, container, since)
	}
	return pod
}

func addContainer(pod *corev1.Pod, name string, since metav1.Time) {
	var env []corev1.EnvVar
	for _, key := range []string{"MASTER_ADDR", "MASTER_PORT", "NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "CUDA_DEVICE_ORDER", "OMP_NUM_THREADS", "REDIS_URL", "S3_BUCKET", "LOG_LEVEL", "TZ"} {
		env = append(env, corev1.EnvVar{Name: key, Value: "a value of about this length"})
	}
	env = append(env, corev1.EnvVar{Name: "POD_UID", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.uid"}}})
	image := "602401143452.dkr.ecr.us-east-1.amazonaws.com/training/" + name + ":v1.2.3"
	some := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")}
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8080)}}, PeriodSeconds: 10}
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
		Name: name, Image: image, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"python", "-m", "worker"}, Args: []string{"--batch-size", "32", "--epochs", "10"}, Env: env,
		Resources: corev1.ResourceRequirements{Limits: some, Requests: some}, ReadinessProbe: probe, LivenessProbe: probe,
		VolumeMounts: []corev1.VolumeMount{{Name: "checkpoints", MountPath: "/checkpoints"}, {Name: "scratch", MountPath: "/scratch"}, {Name: "settings", MountPath: "/etc/settings"}},
	})
	pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
		Name: name, Ready: true, Started: new(true), Image: image, ImageID: fmt.Sprintf("%s@sha256:%064x", image, 1), ContainerID: fmt.Sprintf("containerd://%064x", 2),
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: since}},
	})
}
