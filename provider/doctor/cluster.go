package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"gpu-node-provider/provider/checkpoint"
	"gpu-node-provider/provider/nodegroup"
)

// unreadable returns the finding of a check whose part of the snapshot has an error, else
// nil.
func (s *Snapshot) unreadable(parts ...error) []Finding {
	if !s.HasCluster {
		return []Finding{{Level: OK, Text: "not applicable without a Kubernetes API"}}
	}
	for _, err := range parts {
		if err != nil {
			return []Finding{{Level: Warn, Text: "unknown: " + err.Error()}}
		}
	}
	return nil
}

// Concerned reports whether a check needs the Pod. In a large cluster few are needed.
func Concerned(pod *corev1.Pod, selector labels.Selector) bool {
	return selector.Matches(labels.Set(pod.Labels)) || autoscalerCommand(pod) != nil
}

// driverTime is the time that driver and device plugin of a node may take: the default of
// Cluster Autoscaler's --max-node-provision-time.
const driverTime = 15 * time.Minute

// gpuDevices checks that nodes of GPU groups have allocatable GPUs. Without the device
// plugin they never have, and no GPU pod can run.
func gpuDevices(s *Snapshot) (found []Finding) {
	if cannot := s.unreadable(s.CatalogueErr, s.NodesErr); cannot != nil {
		return cannot
	}
	ready := 0
	for _, node := range s.Nodes {
		group, ours := s.Catalogue.Lookup(node.Labels[nodegroup.Label])
		if !ours || group.GPUResource() == "" {
			continue
		}
		amount := node.Status.Allocatable[group.GPUResource()]
		age := s.Now.Sub(node.CreationTimestamp.Time).Round(time.Second)
		switch {
		case !amount.IsZero():
			ready++
		case age < driverTime:
			found = append(found, Finding{Level: Warn, Text: fmt.Sprintf("node %s has no allocatable %s yet, after %s", node.Name, group.GPUResource(), age)})
		default:
			found = append(found, Finding{
				Level: Fail, Text: fmt.Sprintf("node %s has no allocatable %s, after %s", node.Name, group.GPUResource(), age),
				Do: "check the device plugin's Pod on the node, and the GPU driver",
			})
		}
	}
	return append(found, Finding{Level: OK, Text: fmt.Sprintf("nodes with allocatable GPUs: %d", ready)})
}

// instances returns the provider ids of the groups' instances.
func (s *Snapshot) instances() map[string]bool {
	ids := map[string]bool{}
	for _, g := range s.Provider.NodeGroups {
		for _, i := range g.Instances {
			ids[i.ID] = true
		}
	}
	return ids
}

// gpuLabel checks nodes outside all groups: one with the GPU label and without a GPU stops
// all scale-up (cluster-autoscaler/processors/customresources/gpu_processor.go).
func gpuLabel(s *Snapshot) (found []Finding) {
	if cannot := s.unreadable(s.CatalogueErr, s.NodesErr); cannot != nil {
		return cannot
	}
	key := s.Catalogue.GPULabel()
	instances := s.instances()
	for _, node := range s.Nodes {
		_, labelled := node.Labels[key]
		_, ours := s.Catalogue.Lookup(node.Labels[nodegroup.Label])
		if !labelled || ours || instances[node.Spec.ProviderID] || nodegroup.GPUResource(node.Status.Allocatable) != "" {
			continue
		}
		text := fmt.Sprintf("node %s is in no node group and has the label %s but no GPU, so Cluster Autoscaler stops all scale-up", node.Name, key)
		if s.Now.Sub(node.CreationTimestamp.Time) < driverTime {
			found = append(found, Finding{Level: Warn, Text: text, Do: "wait if the node is still booting"})
			continue
		}
		found = append(found, Finding{Level: Fail, Text: text, Do: fmt.Sprintf("kubectl label node %s %s-", node.Name, key)})
	}
	if len(found) == 0 {
		return []Finding{{Level: OK, Text: "no node outside the node groups has the label " + key + " without a GPU"}}
	}
	return found
}

// The label of namespaces that the eviction webhook covers.
const enabledKey, enabledValue = "gpu-node-provider.io/checkpoint", "enabled"

// evictions returns the webhook of deploy/manifests/eviction-webhook.yaml, identified by
// its name and its resource, or nil.
func (s *Snapshot) evictions() *admissionv1.ValidatingWebhook {
	for _, configuration := range s.Webhooks {
		for n, w := range configuration.Webhooks {
			for _, rule := range w.Rules {
				if slices.Contains(rule.Resources, "pods/eviction") && strings.Contains(w.Name, "gpu-node-provider") {
					return &configuration.Webhooks[n]
				}
			}
		}
	}
	return nil
}

func webhook(s *Snapshot) []Finding {
	if cannot := s.unreadable(s.WebhooksErr); cannot != nil {
		return cannot
	}
	w := s.evictions()
	switch {
	case w == nil:
		return []Finding{{
			Level: Warn, Text: "no eviction webhook: kubectl drain evicts training pods that have not saved",
			Do: "apply deploy/manifests/eviction-webhook.yaml",
		}}
	case w.ClientConfig.URL == nil && len(w.ClientConfig.CABundle) == 0:
		return []Finding{{
			Level: Fail, Text: "webhook " + w.Name + " has no caBundle, so every eviction in its namespaces fails",
			Do: "set it to ca.crt of `gpu-node-provider certs`, or let cert-manager inject it",
		}}
	case !s.Evictions:
		return []Finding{{
			Level: Fail, Text: "webhook " + w.Name + " has no listener without server.webhookAddress in the node group file, so every eviction in its namespaces fails",
			Do: "set server.webhookAddress, or delete the webhook",
		}}
	case w.FailurePolicy != nil && *w.FailurePolicy == admissionv1.Ignore:
		return []Finding{{
			Level: Warn, Text: "webhook " + w.Name + " has failurePolicy Ignore, so training pods are evicted while no replica answers",
			Do: "set failurePolicy: Fail",
		}}
	default:
		return []Finding{{Level: OK, Text: "the eviction webhook is configured"}}
	}
}

// trainingPods returns the active training pods on nodes of the groups.
func (s *Snapshot) trainingPods() (pods []*corev1.Pod) {
	ours := map[string]bool{}
	for _, node := range s.Nodes {
		_, ours[node.Name] = s.Catalogue.Lookup(node.Labels[nodegroup.Label])
	}
	for n := range s.Pods {
		pod := &s.Pods[n]
		if ours[pod.Spec.NodeName] && checkpoint.Trains(pod, s.Selector) && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			pods = append(pods, pod)
		}
	}
	return pods
}

// namespaces checks that the webhook covers the namespaces of training pods. An Eviction
// does not have its pod's labels, so the webhook selects by namespace.
func namespaces(s *Snapshot) (found []Finding) {
	if cannot := s.unreadable(s.CatalogueErr, s.NodesErr, s.PodsErr, s.NamespacesErr); cannot != nil {
		return cannot
	}
	enabled := map[string]bool{}
	for _, n := range s.Namespaces {
		enabled[n.Name] = n.Labels[enabledKey] == enabledValue
	}
	outside := map[string]int{}
	for _, pod := range s.trainingPods() {
		if !enabled[pod.Namespace] {
			outside[pod.Namespace]++
		}
	}
	for _, n := range s.Namespaces {
		if outside[n.Name] > 0 {
			found = append(found, Finding{
				Level: Fail, Text: fmt.Sprintf("namespace %s has %d training pods, and the eviction webhook does not cover it", n.Name, outside[n.Name]),
				Do: fmt.Sprintf("kubectl label namespace %s %s=%s", n.Name, enabledKey, enabledValue),
			})
		}
	}
	if len(found) == 0 {
		return []Finding{{Level: OK, Text: fmt.Sprintf("all %d training pods are in namespaces with %s=%s", len(s.trainingPods()), enabledKey, enabledValue)}}
	}
	return found
}

// The flag that limits a pod's grace period when Cluster Autoscaler drains a node, and its
// default in seconds (cluster-autoscaler/config/flags).
const (
	graceFlag    = "max-graceful-termination-sec"
	graceDefault = 600
)

// grace compares the grace periods of training pods with the limit of a drain.
func grace(s *Snapshot) []Finding {
	if cannot := s.unreadable(s.CatalogueErr, s.NodesErr, s.PodsErr); cannot != nil {
		return cannot
	}
	var most *corev1.Pod
	for _, pod := range s.trainingPods() {
		if most == nil || graceOf(pod) > graceOf(most) {
			most = pod
		}
	}
	if most == nil {
		return []Finding{{Level: OK, Text: "no training pods"}}
	}
	limit, found := s.graceLimit()
	source := "--" + graceFlag + " of Cluster Autoscaler"
	if !found {
		source = "default of --" + graceFlag + ", since no Pod has --cloud-provider=externalgrpc"
	}
	text := fmt.Sprintf("training pod %s/%s has a grace period of %d s, and a drain grants at most %d s (%s)", most.Namespace, most.Name, graceOf(most), limit, source)
	if graceOf(most) <= limit {
		return []Finding{{Level: OK, Text: text}}
	}
	return []Finding{{
		Level: Warn, Text: text,
		Do: "raise --max-graceful-termination-sec if the pod needs that time after its last acknowledgement",
	}}
}

func graceOf(pod *corev1.Pod) int64 {
	if pod.Spec.TerminationGracePeriodSeconds == nil {
		return corev1.DefaultTerminationGracePeriodSeconds
	}
	return *pod.Spec.TerminationGracePeriodSeconds
}

// graceLimit reads the flag from the Pod of the Cluster Autoscaler with an external
// provider. Without one it returns the default and found is false.
func (s *Snapshot) graceLimit() (seconds int64, found bool) {
	for n := range s.Pods {
		words := autoscalerCommand(&s.Pods[n])
		if words == nil || s.Pods[n].Status.Phase == corev1.PodFailed {
			continue
		}
		value, set := flagOf(words, graceFlag)
		if seconds, err := strconv.ParseInt(value, 10, 64); set && err == nil {
			return seconds, true
		}
		return graceDefault, true
	}
	return graceDefault, false
}

// autoscalerCommand returns the command line of a Cluster Autoscaler with an external
// provider; nil for any other Pod.
func autoscalerCommand(pod *corev1.Pod) []string {
	for _, c := range pod.Spec.Containers {
		words := slices.Concat(c.Command, c.Args)
		if value, _ := flagOf(words, "cloud-provider"); value == "externalgrpc" {
			return words
		}
	}
	return nil
}

// flagOf returns the value of -name=value, --name=value, -name value or --name value.
func flagOf(words []string, name string) (value string, set bool) {
	for n, word := range words {
		flag, value, joined := strings.Cut(strings.TrimLeft(word, "-"), "=")
		switch {
		case !strings.HasPrefix(word, "-") || flag != name:
		case joined:
			return value, true
		case n+1 < len(words):
			return words[n+1], true
		}
	}
	return "", false
}

// evictDaemonSets is an annotation on pods of a DaemonSet that Cluster Autoscaler reads
// (cluster-autoscaler/utils/daemonset).
const evictDaemonSets = "cluster-autoscaler.kubernetes.io/enable-ds-eviction"

// daemonSets checks DaemonSets whose pods match the selector of training pods, such as an
// uploader of checkpoints: a drain evicts them before they finish.
func daemonSets(s *Snapshot) (found []Finding) {
	if cannot := s.unreadable(s.PodsErr); cannot != nil {
		return cannot
	}
	seen := map[string]bool{}
	for _, pod := range s.Pods {
		for _, owner := range pod.OwnerReferences {
			name := pod.Namespace + "/" + owner.Name
			if owner.Kind != "DaemonSet" || seen[name] || !s.Selector.Matches(labels.Set(pod.Labels)) || pod.Annotations[evictDaemonSets] == "false" {
				continue
			}
			seen[name] = true
			found = append(found, Finding{
				Level: Warn, Text: fmt.Sprintf("DaemonSet %s has the label of training pods, and a drain evicts its pods before the training pods have saved", name),
				Do: fmt.Sprintf("annotate its pod template with %s: \"false\"", evictDaemonSets),
			})
		}
	}
	if len(found) == 0 {
		return []Finding{{Level: OK, Text: "no DaemonSet with the label of training pods is evicted by a drain"}}
	}
	return found
}
