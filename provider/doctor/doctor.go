// Package doctor diagnoses GPU node groups: small named checks on a snapshot of the
// provider, the cloud, the cluster and Redis, each with a level, a text and a remedy.
//
// It reads and changes nothing itself; the caller collects the Snapshot.
package doctor

import (
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"gpu-node-provider/cloud"
	"gpu-node-provider/provider/nodegroup"
	"gpu-node-provider/provider/report"
)

// Level is the severity of a finding.
type Level string

// Levels. Fail means that something does not work, or that training progress can be lost.
const (
	OK   Level = "ok"
	Warn Level = "warn"
	Fail Level = "fail"
)

// Finding is a result of a check.
type Finding struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	Text  string `json:"text"`
	Do    string `json:"do,omitempty"` // remedy: a command or a sentence
}

// Snapshot is the state at one moment. Each part has its own error, so that a part that
// cannot be read does not hide the others.
type Snapshot struct {
	Now time.Time
	// Catalogue is the node group file, completed by the cloud. With CatalogueErr it is
	// the file alone, which may lack the capacity of groups.
	Catalogue    *nodegroup.Catalogue
	CatalogueErr error
	// Selector selects training pods.
	Selector labels.Selector
	// HasCluster is false for a provider without a Kubernetes API.
	HasCluster bool
	// Evictions reports whether the file sets server.webhookAddress.
	Evictions bool

	Provider report.Provider
	// ProviderErr is the error of reading the report. StandsBy is the answer of a
	// standby replica, which has no report.
	ProviderErr error
	StandsBy    string

	Nodes    []corev1.Node
	NodesErr error

	Pods    []corev1.Pod // those for which Concerned returns true
	PodsErr error

	Namespaces    []corev1.Namespace
	NamespacesErr error

	Webhooks    []admissionv1.ValidatingWebhookConfiguration
	WebhooksErr error

	// RedisWarnings are about settings of Redis. With RedisWarningsErr they are incomplete.
	RedisWarnings    []string
	RedisWarningsErr error
	RedisErr         error

	// Conflicts are settings in the cloud that change the groups. With ConflictsErr they
	// are incomplete.
	Conflicts    []cloud.Conflict
	ConflictsErr error
}

// checks are in the order of diagnosis: a failed check can make the later ones
// meaningless.
var checks = []struct {
	name string
	run  func(*Snapshot) []Finding
}{
	{"provider", provider},
	{"node-groups", nodeGroups},
	{"launches", launches},
	{"quotas", quotas},
	{"prices", prices},
	{"overrides", overrides},
	{"cloud", conflicts},
	{"gpu-devices", gpuDevices},
	{"gpu-label", gpuLabel},
	{"redis", redis},
	{"webhook", webhook},
	{"namespaces", namespaces},
	{"grace", grace},
	{"daemonsets", daemonSets},
}

// Examine runs all checks in order. Each returns at least one finding.
func Examine(s *Snapshot) []Finding {
	var all []Finding
	for _, c := range checks {
		for _, f := range c.run(s) {
			f.Check = c.name
			all = append(all, f)
		}
	}
	return all
}

// Worst returns the highest level of the findings.
func Worst(findings []Finding) Level {
	worst := OK
	for _, f := range findings {
		if f.Level == Fail || f.Level == Warn && worst == OK {
			worst = f.Level
		}
	}
	return worst
}
