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

// healthy returns a snapshot without findings above OK.
func healthy(t *testing.T) *Snapshot {
	selector, err := labels.Parse(enabledKey + "=required")
	require.NoError(t, err)
	return &Snapshot{
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

// problems returns the findings above OK, one per line.
func problems(s *Snapshot) string {
	var lines []string
	for _, f := range Examine(s) {
		if f.Level != OK {
			lines = append(lines, string(f.Level)+" "+f.Check+": "+f.Text+" → "+f.Do)
		}
	}
	return strings.Join(lines, "\n")
}

func TestHealthy(t *testing.T) {
	s := healthy(t)
	require.Empty(t, problems(s))
	require.Equal(t, OK, Worst(Examine(s)))
	texts := map[string]string{}
	for _, f := range Examine(s) {
		texts[f.Check] = f.Text
	}
	require.Len(t, texts, len(checks), "every check has a finding")
	require.Equal(t, "gpus: 3 of 16 nvidia.com/gpu used, limit from L-DB2E81BA, read 1m0s ago", texts["quotas"])
	require.Equal(t, "nodes with allocatable GPUs: 1", texts["gpu-devices"])
}

// TestFindings: each row breaks one part of a healthy snapshot.
func TestFindings(t *testing.T) {
	away := errors.New("it is away")
	for name, row := range map[string]struct {
		change func(s *Snapshot)
		want   string // all findings above OK
	}{
		"a quota in dollars over a group without a price": {
			func(s *Snapshot) {
				s.Catalogue = catalogue(t, strings.Replace(file, ", hourlyPrice: 0.5", "", 1)+"quotas: [{name: spend, resource: usd-per-hour, limit: 70}]\n")
			},
			"fail prices: quota spend is in dollars, and the real price is not known of node groups: t4 → set hourlyPrice in the node group file",
		},
		"a launch failed lately": {
			func(s *Snapshot) {
				s.Provider.NodeGroups = []report.NodeGroup{{ID: "t4", EffectiveMax: 4, LaunchFailures: []report.LaunchFailure{
					{Code: "InsufficientInstanceCapacity", Message: "no capacity", Count: 3, Last: now.Add(-time.Minute)},
					{Code: "LaunchTemplateError", Message: "no such image", Count: 1, Last: now.Add(-59 * time.Minute)},
					{Code: "Other", Message: "long ago", Count: 1, Last: now.Add(-time.Hour)},
				}}}
			},
			"warn launches: node group t4: 3 failed, the last 1m0s ago: InsufficientInstanceCapacity: no capacity → raise the limit that the cloud names, or add a node group of another instance type or zone\n" +
				"warn launches: node group t4: 1 failed, the last 59m0s ago: LaunchTemplateError: no such image → correct what the cloud names, in the launch template or the group",
		},
		"no provider": {
			func(s *Snapshot) { s.ProviderErr = away },
			"fail provider: it is away → start the provider, or set --address\n" +
				"warn node-groups: unknown without a report of the leader → \nwarn launches: unknown without a report of the leader → \nwarn quotas: unknown without a report of the leader → ",
		},
		"standby replica": {
			func(s *Snapshot) { s.StandsBy = "ask p-1" },
			"warn provider: ask p-1 → run doctor in the Pod of the leader to check node groups and quotas\n" +
				"warn node-groups: unknown without a report of the leader → \nwarn launches: unknown without a report of the leader → \nwarn quotas: unknown without a report of the leader → ",
		},
		"group that is full": {
			func(s *Snapshot) {
				s.Provider.NodeGroups = []report.NodeGroup{
					{ID: "t4", Target: 2, EffectiveMax: 2, MaxSize: 4, Limit: "quota gpus: 15 of 16 used"},
					{ID: "at-its-maximum", Target: 4, EffectiveMax: 4, MaxSize: 4},
					{ID: "retired", Target: 1, EffectiveMax: 1, MaxSize: 4, Retired: true},
				}
			},
			"warn node-groups: node group t4 cannot grow: quota gpus: 15 of 16 used → ",
		},
		"unknown capacity": {
			func(s *Snapshot) { s.CatalogueErr = away },
			"warn prices: unknown: it is away → \nwarn gpu-devices: unknown: it is away → \nwarn gpu-label: unknown: it is away → \n" +
				"warn namespaces: unknown: it is away → \nwarn grace: unknown: it is away → ",
		},
		"file": {
			func(s *Snapshot) { s.Provider.ReloadError = "no id" },
			"fail provider: the node group file on disk is rejected: no id → correct the file; the provider reloads it when it changes",
		},
		"group": {
			func(s *Snapshot) { s.Provider.NodeGroups = []report.NodeGroup{{ID: "t4", Problem: "no such group"}} },
			"fail node-groups: node group t4 cannot be served: no such group → ",
		},
		"quota used up": {
			func(s *Snapshot) { s.Provider.Quotas[0].Used = 16 },
			"warn quotas: gpus: 16 of 16 nvidia.com/gpu used, limit from L-DB2E81BA, read 1m0s ago → raise the limit at its source, or delete nodes; until then its node groups cannot grow",
		},
		"quota not newer": {
			func(s *Snapshot) { s.Provider.Quotas[0].Problem = "denied" },
			"warn quotas: gpus: 3 of 16 nvidia.com/gpu used, limit from L-DB2E81BA, read 1m0s ago → these are the last known values; the newest reading failed: denied",
		},
		"quota not read": {
			func(s *Snapshot) { s.Provider.Quotas[0].Unknown, s.Provider.Quotas[0].Problem = true, "denied" },
			"warn quotas: gpus: the limit has not been read from L-DB2E81BA yet, and does not apply: denied → ",
		},
		"price": {
			func(s *Snapshot) { s.Catalogue = catalogue(t, strings.Replace(file, ", hourlyPrice: 0.5", "", 1)) },
			"warn prices: estimated from their resources, above any real price, for node groups: t4 → set hourlyPrice in the node group file",
		},
		"overrides": {
			func(s *Snapshot) {
				s.Catalogue = catalogue(t, strings.Replace(file, "hourlyPrice: 0.5", "hourlyPrice: 0.5, scaleDown: {gpuUtilizationThreshold: 0.7}", 1))
			},
			"warn overrides: scaleDown overrides make Cluster Autoscaler 1.35 and later treat a booting GPU node as unready, and request another: t4 → " +
				"use the flags of Cluster Autoscaler instead where possible",
		},
		"conflicting setting": {
			func(s *Snapshot) {
				s.Conflicts = []cloud.Conflict{{Group: "t4", What: "AZRebalance is on", Do: "suspend it"}}
			},
			"fail cloud: node group t4: AZRebalance is on → suspend it",
		},
		"cloud": {
			func(s *Snapshot) { s.ConflictsErr = away },
			"warn cloud: failed to read all conflicting settings: it is away → ",
		},
		"part of the cloud": {
			func(s *Snapshot) {
				s.ConflictsErr, s.Conflicts = away, []cloud.Conflict{{Group: "t4", What: "AZRebalance is on", Do: "suspend it"}}
			},
			"warn cloud: failed to read all conflicting settings: it is away → \nfail cloud: node group t4: AZRebalance is on → suspend it",
		},
		"no device": {
			func(s *Snapshot) { s.Nodes[0] = node("gpu-1", "t4", 0) },
			"fail gpu-devices: node gpu-1 has no allocatable nvidia.com/gpu, after 1h0m0s → check the device plugin's Pod on the node, and the GPU driver",
		},
		"no device yet": {
			func(s *Snapshot) {
				s.Nodes[0] = node("gpu-1", "t4", 0)
				s.Nodes[0].CreationTimestamp = metav1.NewTime(now.Add(-time.Minute))
			},
			"warn gpu-devices: node gpu-1 has no allocatable nvidia.com/gpu yet, after 1m0s → ",
		},
		"label": { // case E-02
			func(s *Snapshot) { s.Nodes[2] = node("other", "", 0) },
			"fail gpu-label: node other is in no node group and has the label accelerator but no GPU, so Cluster Autoscaler stops all scale-up → " +
				"kubectl label node other accelerator-",
		},
		"label of a deleted group": {
			func(s *Snapshot) { s.Nodes[2] = node("other", "gone", 0) }, // the server calls it foreign, too
			"fail gpu-label: node other is in no node group and has the label accelerator but no GPU, so Cluster Autoscaler stops all scale-up → " +
				"kubectl label node other accelerator-",
		},
		"label of a node that boots": {
			func(s *Snapshot) {
				s.Nodes[2] = node("other", "", 0)
				s.Nodes[2].CreationTimestamp = metav1.NewTime(now.Add(-time.Minute))
			},
			"warn gpu-label: node other is in no node group and has the label accelerator but no GPU, so Cluster Autoscaler stops all scale-up → wait if the node is still booting",
		},
		"label of ours before it is labelled": {
			func(s *Snapshot) {
				s.Nodes[2] = node("other", "", 0)
				s.Nodes[2].Spec.ProviderID = "simulated:///t4/i-1"
				s.Provider.NodeGroups = []report.NodeGroup{{ID: "t4", Instances: []report.Instance{{ID: "simulated:///t4/i-1"}}, MaxSize: 1, EffectiveMax: 1}}
			},
			"",
		},
		"Redis": {
			func(s *Snapshot) { s.RedisErr = away },
			"fail redis: it is away → nodes with training pods stay held until Redis answers",
		},
		"Redis evicts": {
			func(s *Snapshot) { s.RedisWarnings = []string{"maxmemory-policy is allkeys-lru"} },
			"warn redis: maxmemory-policy is allkeys-lru → ",
		},
		"Redis denies INFO": {
			func(s *Snapshot) { s.RedisWarningsErr = away },
			"warn redis: unknown whether Redis evicts acknowledgements: it is away → check that maxmemory-policy is noeviction",
		},
		"no webhook": {
			func(s *Snapshot) { s.Webhooks = nil },
			"warn webhook: no eviction webhook: kubectl drain evicts training pods that have not saved → apply deploy/manifests/eviction-webhook.yaml",
		},
		"webhook without a CA": {
			func(s *Snapshot) { s.Webhooks[0].Webhooks[0].ClientConfig.CABundle = nil },
			"fail webhook: webhook evictions.gpu-node-provider.io has no caBundle, so every eviction in its namespaces fails → " +
				"set it to ca.crt of `gpu-node-provider certs`, or let cert-manager inject it",
		},
		"webhook without a listener": {
			func(s *Snapshot) { s.Evictions = false },
			"fail webhook: webhook evictions.gpu-node-provider.io has no listener without server.webhookAddress in the node group file, " +
				"so every eviction in its namespaces fails → set server.webhookAddress, or delete the webhook",
		},
		"webhook that ignores failures": {
			func(s *Snapshot) { s.Webhooks[0].Webhooks[0].FailurePolicy = new(admissionv1.Ignore) },
			"warn webhook: webhook evictions.gpu-node-provider.io has failurePolicy Ignore, so training pods are evicted while no replica answers → set failurePolicy: Fail",
		},
		"namespace": {
			func(s *Snapshot) { s.Namespaces[0].Labels = nil },
			"fail namespaces: namespace ai-train has 2 training pods, and the eviction webhook does not cover it → kubectl label namespace ai-train gpu-node-provider.io/checkpoint=enabled",
		},
		"grace": { // case F-07
			func(s *Snapshot) { s.Pods[1] = trainer("b", 3600) },
			"warn grace: training pod ai-train/b has a grace period of 3600 s, and a drain grants at most 600 s (--max-graceful-termination-sec of Cluster Autoscaler) → " +
				"raise --max-graceful-termination-sec if the pod needs that time after its last acknowledgement",
		},
		"grace of a failed trainer": {
			func(s *Snapshot) {
				s.Pods[1] = trainer("b", 3600)
				s.Pods[1].Status.Phase = corev1.PodFailed
			},
			"",
		},
		"grace by the autoscaler that runs": {
			func(s *Snapshot) {
				s.Pods[1] = trainer("b", 3600)
				failed := autoscaler("ca", "--cloud-provider=externalgrpc", "--max-graceful-termination-sec=7200")
				failed.Status.Phase = corev1.PodFailed
				s.Pods = append([]corev1.Pod{failed}, s.Pods...)
			},
			"warn grace: training pod ai-train/b has a grace period of 3600 s, and a drain grants at most 600 s (--max-graceful-termination-sec of Cluster Autoscaler) → " +
				"raise --max-graceful-termination-sec if the pod needs that time after its last acknowledgement",
		},
		"grace of a longer flag": {
			func(s *Snapshot) {
				s.Pods[1] = trainer("b", 3600)
				s.Pods[2] = autoscaler("sh", "--cloud-provider", "externalgrpc", "--max-graceful-termination-sec=3600")
			},
			"",
		},
		"grace without an autoscaler": {
			func(s *Snapshot) {
				s.Pods[1] = trainer("b", 3600)
				s.Pods[2] = autoscaler("ca", "--cloud-provider=aws", "--max-graceful-termination-sec=7200")
			},
			"warn grace: training pod ai-train/b has a grace period of 3600 s, and a drain grants at most 600 s (default of --max-graceful-termination-sec, " +
				"since no Pod has --cloud-provider=externalgrpc) → raise --max-graceful-termination-sec if the pod needs that time after its last acknowledgement",
		},
		"daemonset": { // case F-11
			func(s *Snapshot) {
				uploader := trainer("uploader-x", 30)
				uploader.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "uploader", Controller: new(true)}}
				s.Pods = append(s.Pods, uploader, uploader)
			},
			"warn daemonsets: DaemonSet ai-train/uploader has the label of training pods, and a drain evicts its pods before the training pods have saved → " +
				`annotate its pod template with cluster-autoscaler.kubernetes.io/enable-ds-eviction: "false"`,
		},
		"daemonset that stays": {
			func(s *Snapshot) {
				uploader := trainer("uploader-x", 30)
				uploader.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "uploader", Controller: new(true)}}
				uploader.Annotations = map[string]string{evictDaemonSets: "false"}
				s.Pods = append(s.Pods, uploader)
			},
			"",
		},
		"nothing is readable": {
			func(s *Snapshot) { s.NodesErr, s.PodsErr, s.NamespacesErr, s.WebhooksErr = away, away, away, away },
			"warn gpu-devices: unknown: it is away → \nwarn gpu-label: unknown: it is away → \nwarn webhook: unknown: it is away → \n" +
				"warn namespaces: unknown: it is away → \nwarn grace: unknown: it is away → \nwarn daemonsets: unknown: it is away → ",
		},
		"no cluster": {
			func(s *Snapshot) {
				*s = Snapshot{Now: now, Catalogue: s.Catalogue, Selector: s.Selector, Provider: s.Provider}
			},
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := healthy(t)
			row.change(s)
			require.Equal(t, row.want, problems(s))
			require.Equal(t, strings.Contains(row.want, "fail "), Worst(Examine(s)) == Fail)
		})
	}
}

func TestConcerned(t *testing.T) {
	s := healthy(t)
	stranger := corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Command: []string{"sleep", "--cloud-provider"}}}}}
	require.False(t, Concerned(&stranger, s.Selector))
	for n := range s.Pods {
		require.True(t, Concerned(&s.Pods[n], s.Selector))
	}
}
