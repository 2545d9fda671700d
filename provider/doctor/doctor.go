// Package doctor explains the state of GPU node groups to people: small named
// checks on one reading of everything, each fine, a warning or a failure, with
// what to do about it. It changes nothing and reads nothing itself: a Scene is what
// the caller has found.
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

// Level is how bad a finding is.
type Level string

// The levels. Fail means that something does not work, or that a training can be lost.
const (
	OK   Level = "ok"
	Warn Level = "warn"
	Fail Level = "fail"
)

// Finding is what a check has to say.
type Finding struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	Text  string `json:"text"`
	Do    string `json:"do,omitempty"` // a command, or a sentence
}

// Scene is what was found at one moment. Each part has its own error, since one
// that cannot be read must not hide the others.
type Scene struct {
	Now time.Time
	// Catalogue is the node group file, completed by the cloud where it is one. With
	// an error it is the file alone, which does not say what the machines are.
	Catalogue    *nodegroup.Catalogue
	CatalogueErr error
	// Selector is that of training pods.
	Selector labels.Selector
	// HasCluster is false for a provider without a Kubernetes API.
	HasCluster bool
	// Evictions says whether the file has an address for the eviction webhook.
	Evictions bool

	Provider report.Provider
	// ProviderErr is why it does not answer, StandsBy why this one cannot.
	ProviderErr error
	StandsBy    string

	Nodes    []corev1.Node
	NodesErr error

	Pods    []corev1.Pod // those that are Concerned
	PodsErr error

	Namespaces    []corev1.Namespace
	NamespacesErr error

	Webhooks    []admissionv1.ValidatingWebhookConfiguration
	WebhooksErr error

	// RedisWarnings are about its settings; the error is why they are not all.
	RedisWarnings    []string
	RedisWarningsErr error
	RedisErr         error

	// Conflicts are settings in the cloud that change the groups, as far as they could be read.
	Conflicts    []cloud.Conflict
	ConflictsErr error
}

// checks are in the order in which a person should look: what comes first keeps the
// later ones from being right.
var checks = []struct {
	name string
	run  func(*Scene) []Finding
}{
	{"provider", provider},
	{"node-groups", nodeGroups},
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

// Examine runs all checks, in their order. Each has one finding at least.
func Examine(s *Scene) []Finding {
	var all []Finding
	for _, c := range checks {
		for _, f := range c.run(s) {
			f.Check = c.name
			all = append(all, f)
		}
	}
	return all
}

// Worst is the worst level among findings.
func Worst(findings []Finding) Level {
	worst := OK
	for _, f := range findings {
		if f.Level == Fail || f.Level == Warn && worst == OK {
			worst = f.Level
		}
	}
	return worst
}
