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

// unread is the finding of a check whose part of the cluster could not be read.
func (s *Scene) unread(parts ...error) []Finding {
	if !s.HasCluster {
		return []Finding{{Level: OK, Text: "there is no Kubernetes API"}}
	}
	for _, err := range parts {
		if err != nil {
			return []Finding{{Level: Warn, Text: "not known: " + err.Error()}}
		}
	}
	return nil
}

// Concerned says whether any check looks at a Pod. Of a large cluster's Pods few are.
func Concerned(pod *corev1.Pod, selector labels.Selector) bool {
	return selector.Matches(labels.Set(pod.Labels)) || calls(pod) != nil
}

// driverTime is how long a machine's driver and device plugin may take. It is
// Cluster Autoscaler's own --max-node-provision-time: it does not wait longer either.
const driverTime = 15 * time.Minute

// gpuDevices: without the device plugin no node ever shows a GPU, and nothing later
// can work.
func gpuDevices(s *Scene) (found []Finding) {
	if cannot := s.unread(s.CatalogueErr, s.NodesErr); cannot != nil {
		return cannot
	}
	shown := 0
	for _, node := range s.Nodes {
		group, ours := s.Catalogue.Lookup(node.Labels[nodegroup.Label])
		if !ours || group.GPUResource() == "" {
			continue
		}
		amount := node.Status.Allocatable[group.GPUResource()]
		age := s.Now.Sub(node.CreationTimestamp.Time).Round(time.Second)
		switch {
		case !amount.IsZero():
			shown++
		case age < driverTime:
			found = append(found, Finding{Level: Warn, Text: fmt.Sprintf("node %s shows no %s yet, after %s", node.Name, group.GPUResource(), age)})
		default:
			found = append(found, Finding{
				Level: Fail, Text: fmt.Sprintf("node %s shows no %s, after %s", node.Name, group.GPUResource(), age),
				Do: "look at the device plugin's Pod on it, and at the driver",
			})
		}
	}
	return append(found, Finding{Level: OK, Text: fmt.Sprintf("%d nodes show their GPUs", shown)})
}

// instances are the provider ids of the provider's machines.
func (s *Scene) instances() map[string]bool {
	ids := map[string]bool{}
	for _, g := range s.Provider.NodeGroups {
		for _, i := range g.Instances {
			ids[i.ID] = true
		}
	}
	return ids
}

// gpuLabel: a node outside all groups with the label and without a GPU stops all
// scale-up (cluster-autoscaler/processors/customresources/gpu_processor.go).
func gpuLabel(s *Scene) (found []Finding) {
	if cannot := s.unread(s.CatalogueErr, s.NodesErr); cannot != nil {
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
		text := fmt.Sprintf("node %s is in no group, carries the label %s, and shows no GPU: meanwhile Cluster Autoscaler stops all scale-up", node.Name, key)
		if s.Now.Sub(node.CreationTimestamp.Time) < driverTime {
			found = append(found, Finding{Level: Warn, Text: text, Do: "wait, if it is booting"})
			continue
		}
		found = append(found, Finding{Level: Fail, Text: text, Do: fmt.Sprintf("kubectl label node %s %s-", node.Name, key)})
	}
	if len(found) == 0 {
		return []Finding{{Level: OK, Text: "nobody else's node carries " + key + " without a GPU"}}
	}
	return found
}

// enabled is the label of namespaces whose evictions are asked about.
const enabledKey, enabledValue = "gpu-node-provider.io/checkpoint", "enabled"

// evictions is the webhook of deploy/manifests/eviction-webhook.yaml, by its name and
// what it is called for.
func (s *Scene) evictions() *admissionv1.ValidatingWebhook {
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

func webhook(s *Scene) []Finding {
	if cannot := s.unread(s.WebhooksErr); cannot != nil {
		return cannot
	}
	w := s.evictions()
	switch {
	case w == nil:
		return []Finding{{
			Level: Warn, Text: "no webhook is asked about evictions: kubectl drain ends trainers that have not saved",
			Do: "apply deploy/manifests/eviction-webhook.yaml",
		}}
	case w.ClientConfig.URL == nil && len(w.ClientConfig.CABundle) == 0:
		return []Finding{{
			Level: Fail, Text: "the webhook " + w.Name + " has no caBundle: no pod can be evicted in the namespaces of trainers",
			Do: "put ca.crt of `gpu-node-provider certs` into it, or have cert-manager do so",
		}}
	case !s.Evictions:
		return []Finding{{
			Level: Fail, Text: "the webhook " + w.Name + " is called and nobody listens, the node group file has no server.webhookAddress: no pod can be evicted in the namespaces of trainers",
			Do: "write server.webhookAddress, or delete the webhook",
		}}
	case w.FailurePolicy != nil && *w.FailurePolicy == admissionv1.Ignore:
		return []Finding{{
			Level: Warn, Text: "the webhook " + w.Name + " has failurePolicy Ignore: trainers are evicted while no replica answers",
			Do: "set failurePolicy: Fail",
		}}
	default:
		return []Finding{{Level: OK, Text: "evictions are asked about"}}
	}
}

// trainers are the training pods on nodes of ours.
func (s *Scene) trainers() (pods []*corev1.Pod) {
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

// namespaces: an Eviction does not carry its pod's labels, so the webhook is chosen
// by the namespace's.
func namespaces(s *Scene) (found []Finding) {
	if cannot := s.unread(s.CatalogueErr, s.NodesErr, s.PodsErr, s.NamespacesErr); cannot != nil {
		return cannot
	}
	enabled := map[string]bool{}
	for _, n := range s.Namespaces {
		enabled[n.Name] = n.Labels[enabledKey] == enabledValue
	}
	outside := map[string]int{}
	for _, pod := range s.trainers() {
		if !enabled[pod.Namespace] {
			outside[pod.Namespace]++
		}
	}
	for _, n := range s.Namespaces {
		if outside[n.Name] > 0 {
			found = append(found, Finding{
				Level: Fail, Text: fmt.Sprintf("%d training pods are in namespace %s, whose evictions nobody is asked about", outside[n.Name], n.Name),
				Do: fmt.Sprintf("kubectl label namespace %s %s=%s", n.Name, enabledKey, enabledValue),
			})
		}
	}
	if len(found) == 0 {
		return []Finding{{Level: OK, Text: fmt.Sprintf("all %d training pods are in namespaces with %s=%s", len(s.trainers()), enabledKey, enabledValue)}}
	}
	return found
}

// The flag by which Cluster Autoscaler cuts a pod's grace when it drains a node, and
// its default (cluster-autoscaler/config/flags).
const (
	graceFlag    = "max-graceful-termination-sec"
	graceDefault = 600
)

// grace compares what trainers need with what a drain gives them.
func grace(s *Scene) []Finding {
	if cannot := s.unread(s.CatalogueErr, s.NodesErr, s.PodsErr); cannot != nil {
		return cannot
	}
	var most *corev1.Pod
	for _, pod := range s.trainers() {
		if most == nil || graceOf(pod) > graceOf(most) {
			most = pod
		}
	}
	if most == nil {
		return []Finding{{Level: OK, Text: "no training pod is there"}}
	}
	limit, found := s.graceLimit()
	source := "Cluster Autoscaler's --" + graceFlag
	if !found {
		source = "the default of --" + graceFlag + " (no Pod with --cloud-provider=externalgrpc was found)"
	}
	text := fmt.Sprintf("training pod %s/%s may take %d s to stop, a drain gives it %d s by %s", most.Namespace, most.Name, graceOf(most), limit, source)
	if graceOf(most) <= limit {
		return []Finding{{Level: OK, Text: text}}
	}
	return []Finding{{
		Level: Warn, Text: text,
		Do: "a node is drained only once its trainers have acknowledged; to give more to what comes after, raise the flag",
	}}
}

func graceOf(pod *corev1.Pod) int64 {
	if pod.Spec.TerminationGracePeriodSeconds == nil {
		return corev1.DefaultTerminationGracePeriodSeconds
	}
	return *pod.Spec.TerminationGracePeriodSeconds
}

// graceLimit reads the flag off the Pod of the Cluster Autoscaler that calls us.
func (s *Scene) graceLimit() (seconds int64, found bool) {
	for n := range s.Pods {
		words := calls(&s.Pods[n])
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

// calls is the command line by which a Pod runs a Cluster Autoscaler that calls an
// external provider; nil for any other.
func calls(pod *corev1.Pod) []string {
	for _, c := range pod.Spec.Containers {
		words := slices.Concat(c.Command, c.Args)
		if value, _ := flagOf(words, "cloud-provider"); value == "externalgrpc" {
			return words
		}
	}
	return nil
}

// flagOf finds -name=value, --name=value, or the two as words of their own.
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

// evictDaemonSets is read off a DaemonSet's pods by Cluster Autoscaler
// (cluster-autoscaler/utils/daemonset).
const evictDaemonSets = "cluster-autoscaler.kubernetes.io/enable-ds-eviction"

// daemonSets: one that carries the label of training pods has to do with
// checkpoints, such as an uploader. A drain evicts it before it has finished.
func daemonSets(s *Scene) (found []Finding) {
	if cannot := s.unread(s.PodsErr); cannot != nil {
		return cannot
	}
	told := map[string]bool{}
	for _, pod := range s.Pods {
		for _, owner := range pod.OwnerReferences {
			name := pod.Namespace + "/" + owner.Name
			if owner.Kind != "DaemonSet" || told[name] || !s.Selector.Matches(labels.Set(pod.Labels)) || pod.Annotations[evictDaemonSets] == "false" {
				continue
			}
			told[name] = true
			found = append(found, Finding{
				Level: Warn, Text: fmt.Sprintf("DaemonSet %s carries the label of training pods, and a drain evicts its pods before the trainers' work is safe", name),
				Do: fmt.Sprintf("annotate its pod template with %s: \"false\"", evictDaemonSets),
			})
		}
	}
	if len(found) == 0 {
		return []Finding{{Level: OK, Text: "none that keeps checkpoints is evicted by a drain"}}
	}
	return found
}
