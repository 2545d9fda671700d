package doctor

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"gpu-node-provider/cloud"
	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/nodegroup"
	"gpu-node-provider/provider/report"
)

const file = `
apiVersion: gpu-node-provider.io/v1
kind: ProviderConfig
cloud: {simulated: {}}
redis: {embedded: {}}
nodeGroups:
  - {id: t4, maxSize: 4, labels: {accelerator: nvidia-tesla-t4}, capacity: {cpu: 4, memory: 16Gi, nvidia.com/gpu: 1}, hourlyPrice: 0.5}
  - {id: cpu, maxSize: 4, capacity: {cpu: 4, memory: 16Gi}, hourlyPrice: 0.1}
`

func catalogue(t *testing.T, text string) *nodegroup.Catalogue {
	c, err := config.Parse([]byte(text))
	require.NoError(t, err)
	return nodegroup.New(c, func(group string) string { return group })
}

var now = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

func node(name, group string, gpus int64) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{"accelerator": "nvidia-tesla-t4"}, CreationTimestamp: metav1.NewTime(now.Add(-time.Hour)),
	}, Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}}}
	if group != "" {
		n.Labels[nodegroup.Label] = group
	}
	if gpus > 0 {
		n.Status.Allocatable["nvidia.com/gpu"] = *resource.NewQuantity(gpus, resource.DecimalSI)
	}
	return n
}

func trainer(name string, grace int64) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ai-train", Name: name, Labels: map[string]string{enabledKey: "required"}},
		Spec:       corev1.PodSpec{NodeName: "gpu-1", TerminationGracePeriodSeconds: &grace},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

func autoscaler(command ...string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "ca"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "ca", Command: command[:1], Args: command[1:]}}},
	}
}

// well is a scene in which everything is as it should be.
func well(t *testing.T) *Scene {
	selector, err := labels.Parse(enabledKey + "=required")
	require.NoError(t, err)
	return &Scene{
		Now: now, Catalogue: catalogue(t, file), Selector: selector, HasCluster: true, Evictions: true,
		Provider: report.Provider{Quotas: []report.Quota{{Name: "gpus", Resource: "nvidia.com/gpu", Source: "L-DB2E81BA", Used: 3, Limit: 16, ReadAt: new(now.Add(-time.Minute))}}},
		Nodes:    []corev1.Node{node("gpu-1", "t4", 1), node("cpu-1", "cpu", 0), node("other", "", 2)},
		Pods: []corev1.Pod{
			trainer("a", 600), trainer("b", 30), autoscaler("./cluster-autoscaler", "--cloud-provider=externalgrpc"),
		},
		Namespaces: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "ai-train", Labels: map[string]string{enabledKey: enabledValue}}}},
		Webhooks: []admissionv1.ValidatingWebhookConfiguration{{Webhooks: []admissionv1.ValidatingWebhook{{
			Name:         "evictions.gpu-node-provider.io",
			Rules:        []admissionv1.RuleWithOperations{{Rule: admissionv1.Rule{Resources: []string{"pods/eviction"}}}},
			ClientConfig: admissionv1.WebhookClientConfig{CABundle: []byte("ca")},
		}}}},
	}
}

// say is all that is not fine, a line each.
func say(s *Scene) string {
	var lines []string
	for _, f := range Examine(s) {
		if f.Level != OK {
			lines = append(lines, string(f.Level)+" "+f.Check+": "+f.Text+" → "+f.Do)
		}
	}
	return strings.Join(lines, "\n")
}

func TestNothingIsWrong(t *testing.T) {
	s := well(t)
	require.Empty(t, say(s))
	require.Equal(t, OK, Worst(Examine(s)))
	said := map[string]string{}
	for _, f := range Examine(s) {
		said[f.Check] = f.Text
	}
	require.Len(t, said, len(checks), "each has something to say")
	require.Equal(t, "gpus: 3 of 16 nvidia.com/gpu used, limit by L-DB2E81BA, read 1m0s ago", said["quotas"])
	require.Equal(t, "1 nodes show their GPUs", said["gpu-devices"])
}

// TestWhatIsWrong: one thing is, and one check says so.
func TestWhatIsWrong(t *testing.T) {
	away := errors.New("it is away")
	for name, row := range map[string]struct {
		change func(s *Scene)
		want   string // every line of what is said
	}{
		"no provider": {
			func(s *Scene) { s.ProviderErr = away },
			"fail provider: it is away → start it, or say where it is by --address\n" +
				"warn node-groups: not known without the provider that leads → \nwarn quotas: not known without the provider that leads → ",
		},
		"a replica that stands by": {
			func(s *Scene) { s.StandsBy = "ask p-1" },
			"warn provider: ask p-1 → run doctor in that Pod for what only the leader knows\n" +
				"warn node-groups: not known without the provider that leads → \nwarn quotas: not known without the provider that leads → ",
		},
		"group that is full": {
			func(s *Scene) {
				s.Provider.NodeGroups = []report.NodeGroup{
					{ID: "t4", Target: 2, EffectiveMax: 2, MaxSize: 4, Limit: "quota gpus: 15 of 16 used"},
					{ID: "at-its-maximum", Target: 4, EffectiveMax: 4, MaxSize: 4}, {ID: "retired", Target: 1, EffectiveMax: 1, MaxSize: 4, Retired: true},
				}
			},
			"warn node-groups: node group t4 cannot grow: quota gpus: 15 of 16 used → ",
		},
		"machines that are not known": {
			func(s *Scene) { s.CatalogueErr = away },
			"warn prices: not known: it is away → \nwarn gpu-devices: not known: it is away → \nwarn gpu-label: not known: it is away → \n" +
				"warn namespaces: not known: it is away → \nwarn grace: not known: it is away → ",
		},
		"file": {
			func(s *Scene) { s.Provider.ReloadError = "no id" },
			"fail provider: the node group file on disk is not in force: no id → correct the file; it is read again when it changes",
		},
		"group": {
			func(s *Scene) { s.Provider.NodeGroups = []report.NodeGroup{{ID: "t4", Problem: "no such group"}} },
			"fail node-groups: node group t4 cannot be served: no such group → ",
		},
		"quota used up": {
			func(s *Scene) { s.Provider.Quotas[0].Used = 16 },
			"warn quotas: gpus: 16 of 16 nvidia.com/gpu used, limit by L-DB2E81BA, read 1m0s ago → it is used up and nothing grows: raise it where it comes from, or end machines",
		},
		"quota not newer": {
			func(s *Scene) { s.Provider.Quotas[0].Problem = "denied" },
			"warn quotas: gpus: 3 of 16 nvidia.com/gpu used, limit by L-DB2E81BA, read 1m0s ago → these are the last known values, there are none newer: denied",
		},
		"quota not read": {
			func(s *Scene) { s.Provider.Quotas[0].Unknown, s.Provider.Quotas[0].Problem = true, "denied" },
			"warn quotas: gpus: its limit has not been read from L-DB2E81BA yet and binds nobody: denied → ",
		},
		"price": {
			func(s *Scene) { s.Catalogue = catalogue(t, strings.Replace(file, ", hourlyPrice: 0.5", "", 1)) },
			"warn prices: a rough price by their resources stands for these groups: t4 → write hourlyPrice in the node group file",
		},
		"overrides": {
			func(s *Scene) {
				s.Catalogue = catalogue(t, strings.Replace(file, "hourlyPrice: 0.5", "hourlyPrice: 0.5, scaleDown: {gpuUtilizationThreshold: 0.7}", 1))
			},
			"warn overrides: scaleDown overrides make Cluster Autoscaler 1.35 and later take a booting GPU node for unready, and buy another: t4 → " +
				"use Cluster Autoscaler's flags instead where you can",
		},
		"somebody else": {
			func(s *Scene) {
				s.Conflicts = []cloud.Conflict{{Group: "t4", What: "AZRebalance is on", Do: "suspend it"}}
			},
			"fail cloud: node group t4: AZRebalance is on → suspend it",
		},
		"cloud": {
			func(s *Scene) { s.ConflictsErr = away },
			"warn cloud: what else changes the groups is not known, or not all: it is away → ",
		},
		"a part of the cloud": {
			func(s *Scene) {
				s.ConflictsErr, s.Conflicts = away, []cloud.Conflict{{Group: "t4", What: "AZRebalance is on", Do: "suspend it"}}
			},
			"warn cloud: what else changes the groups is not known, or not all: it is away → \nfail cloud: node group t4: AZRebalance is on → suspend it",
		},
		"no device": {
			func(s *Scene) { s.Nodes[0] = node("gpu-1", "t4", 0) },
			"fail gpu-devices: node gpu-1 shows no nvidia.com/gpu, after 1h0m0s → look at the device plugin's Pod on it, and at the driver",
		},
		"no device yet": {
			func(s *Scene) {
				s.Nodes[0] = node("gpu-1", "t4", 0)
				s.Nodes[0].CreationTimestamp = metav1.NewTime(now.Add(-time.Minute))
			},
			"warn gpu-devices: node gpu-1 shows no nvidia.com/gpu yet, after 1m0s → ",
		},
		"label": { // case E-02
			func(s *Scene) { s.Nodes[2] = node("other", "", 0) },
			"fail gpu-label: node other is in no group, carries the label accelerator, and shows no GPU: meanwhile Cluster Autoscaler stops all scale-up → " +
				"kubectl label node other accelerator-",
		},
		"label of a group that is no more": {
			func(s *Scene) { s.Nodes[2] = node("other", "gone", 0) }, // the server calls it foreign, too
			"fail gpu-label: node other is in no group, carries the label accelerator, and shows no GPU: meanwhile Cluster Autoscaler stops all scale-up → " +
				"kubectl label node other accelerator-",
		},
		"label of a node that boots": {
			func(s *Scene) {
				s.Nodes[2] = node("other", "", 0)
				s.Nodes[2].CreationTimestamp = metav1.NewTime(now.Add(-time.Minute))
			},
			"warn gpu-label: node other is in no group, carries the label accelerator, and shows no GPU: meanwhile Cluster Autoscaler stops all scale-up → wait, if it is booting",
		},
		"label of ours before it is labelled": {
			func(s *Scene) {
				s.Nodes[2] = node("other", "", 0)
				s.Nodes[2].Spec.ProviderID = "simulated:///t4/i-1"
				s.Provider.NodeGroups = []report.NodeGroup{{ID: "t4", Instances: []report.Instance{{ID: "simulated:///t4/i-1"}}, MaxSize: 1, EffectiveMax: 1}}
			},
			"",
		},
		"Redis": {
			func(s *Scene) { s.RedisErr = away },
			"fail redis: it is away → until it answers, no node with a training pod goes",
		},
		"Redis evicts": {
			func(s *Scene) { s.RedisWarnings = []string{"maxmemory-policy is allkeys-lru"} },
			"warn redis: maxmemory-policy is allkeys-lru → ",
		},
		"Redis does not say": {
			func(s *Scene) { s.RedisWarningsErr = away },
			"warn redis: whether it evicts acknowledgements is not known: it is away → look yourself: maxmemory-policy has to be noeviction",
		},
		"no webhook": {
			func(s *Scene) { s.Webhooks = nil },
			"warn webhook: no webhook is asked about evictions: kubectl drain ends trainers that have not saved → apply deploy/manifests/eviction-webhook.yaml",
		},
		"webhook without a CA": {
			func(s *Scene) { s.Webhooks[0].Webhooks[0].ClientConfig.CABundle = nil },
			"fail webhook: the webhook evictions.gpu-node-provider.io has no caBundle: no pod can be evicted in the namespaces of trainers → " +
				"put ca.crt of `gpu-node-provider certs` into it, or have cert-manager do so",
		},
		"webhook that nobody answers": {
			func(s *Scene) { s.Evictions = false },
			"fail webhook: the webhook evictions.gpu-node-provider.io is called and nobody listens, the node group file has no server.webhookAddress: " +
				"no pod can be evicted in the namespaces of trainers → write server.webhookAddress, or delete the webhook",
		},
		"webhook that lets pass": {
			func(s *Scene) { s.Webhooks[0].Webhooks[0].FailurePolicy = new(admissionv1.Ignore) },
			"warn webhook: the webhook evictions.gpu-node-provider.io has failurePolicy Ignore: trainers are evicted while no replica answers → set failurePolicy: Fail",
		},
		"namespace": {
			func(s *Scene) { s.Namespaces[0].Labels = nil },
			"fail namespaces: 2 training pods are in namespace ai-train, whose evictions nobody is asked about → kubectl label namespace ai-train gpu-node-provider.io/checkpoint=enabled",
		},
		"grace": { // case F-07
			func(s *Scene) { s.Pods[1] = trainer("b", 3600) },
			"warn grace: training pod ai-train/b may take 3600 s to stop, a drain gives it 600 s by Cluster Autoscaler's --max-graceful-termination-sec → " +
				"a node is drained only once its trainers have acknowledged; to give more to what comes after, raise the flag",
		},
		"grace of a trainer that is over": {
			func(s *Scene) {
				s.Pods[1] = trainer("b", 3600)
				s.Pods[1].Status.Phase = corev1.PodFailed
			},
			"",
		},
		"grace by the autoscaler that runs": {
			func(s *Scene) {
				s.Pods[1] = trainer("b", 3600)
				failed := autoscaler("ca", "--cloud-provider=externalgrpc", "--max-graceful-termination-sec=7200")
				failed.Status.Phase = corev1.PodFailed
				s.Pods = append([]corev1.Pod{failed}, s.Pods...)
			},
			"warn grace: training pod ai-train/b may take 3600 s to stop, a drain gives it 600 s by Cluster Autoscaler's --max-graceful-termination-sec → " +
				"a node is drained only once its trainers have acknowledged; to give more to what comes after, raise the flag",
		},
		"grace of a longer flag": {
			func(s *Scene) {
				s.Pods[1] = trainer("b", 3600)
				s.Pods[2] = autoscaler("sh", "--cloud-provider", "externalgrpc", "--max-graceful-termination-sec=3600")
			},
			"",
		},
		"grace without an autoscaler": {
			func(s *Scene) {
				s.Pods[1] = trainer("b", 3600)
				s.Pods[2] = autoscaler("ca", "--cloud-provider=aws", "--max-graceful-termination-sec=7200")
			},
			"warn grace: training pod ai-train/b may take 3600 s to stop, a drain gives it 600 s by the default of --max-graceful-termination-sec " +
				"(no Pod with --cloud-provider=externalgrpc was found) → a node is drained only once its trainers have acknowledged; to give more to what comes after, raise the flag",
		},
		"daemonset": { // case F-11
			func(s *Scene) {
				uploader := trainer("uploader-x", 30)
				uploader.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "uploader", Controller: new(true)}}
				s.Pods = append(s.Pods, uploader, uploader)
			},
			"warn daemonsets: DaemonSet ai-train/uploader carries the label of training pods, and a drain evicts its pods before the trainers' work is safe → " +
				`annotate its pod template with cluster-autoscaler.kubernetes.io/enable-ds-eviction: "false"`,
		},
		"daemonset that stays": {
			func(s *Scene) {
				uploader := trainer("uploader-x", 30)
				uploader.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "uploader", Controller: new(true)}}
				uploader.Annotations = map[string]string{evictDaemonSets: "false"}
				s.Pods = append(s.Pods, uploader)
			},
			"",
		},
		"nothing may be read": {
			func(s *Scene) { s.NodesErr, s.PodsErr, s.NamespacesErr, s.WebhooksErr = away, away, away, away },
			"warn gpu-devices: not known: it is away → \nwarn gpu-label: not known: it is away → \nwarn webhook: not known: it is away → \n" +
				"warn namespaces: not known: it is away → \nwarn grace: not known: it is away → \nwarn daemonsets: not known: it is away → ",
		},
		"no cluster": {
			func(s *Scene) {
				*s = Scene{Now: now, Catalogue: s.Catalogue, Selector: s.Selector, Provider: s.Provider}
			},
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := well(t)
			row.change(s)
			require.Equal(t, row.want, say(s))
			require.Equal(t, strings.Contains(row.want, "fail "), Worst(Examine(s)) == Fail)
		})
	}
}

func TestConcerned(t *testing.T) {
	s := well(t)
	stranger := corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Command: []string{"sleep", "--cloud-provider"}}}}}
	require.False(t, Concerned(&stranger, s.Selector))
	for n := range s.Pods {
		require.True(t, Concerned(&s.Pods[n], s.Selector))
	}
}
