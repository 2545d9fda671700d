// Package config reads the node group file: types, defaults, a strict decoder,
// and a Validate that reports every problem at once, each with its field path.
//
// It knows the file format alone, not what other packages build from it. A Config
// that Load returns is complete and valid, and callers must not change it.
package config

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// The file's apiVersion and kind.
const (
	APIVersion = "gpu-node-provider.io/v1"
	Kind       = "ProviderConfig"
)

// Config is the content of a node group file.
type Config struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	Server     Server      `json:"server"`
	Kubernetes *Kubernetes `json:"kubernetes,omitempty"` // nil: without a Kubernetes API, simulated cloud only
	Cloud      Cloud       `json:"cloud"`
	Redis      Redis       `json:"redis"`
	GPULabel   string      `json:"gpuLabel"`
	Checkpoint Checkpoint  `json:"checkpoint"`
	Quotas     []Quota     `json:"quotas,omitempty"`
	NodeGroups []NodeGroup `json:"nodeGroups"`
}

// Server configures the listeners.
type Server struct {
	Address     string `json:"address"`     // host:port of gRPC
	HTTPAddress string `json:"httpAddress"` // host:port of health, metrics and status
	// WebhookAddress is host:port of the eviction webhook; empty disables it. It serves
	// the certificate of TLS and requests no client certificate from the API server.
	WebhookAddress string `json:"webhookAddress,omitempty"`
	TLS            *TLS   `json:"tls,omitempty"`
	Insecure       bool   `json:"insecure"` // allows plaintext on a non-loopback address
}

// TLS enables mutual TLS on the gRPC port. The three files are re-read when they change.
type TLS struct {
	CertFile       string   `json:"certFile"`
	KeyFile        string   `json:"keyFile"`
	ClientCAFile   string   `json:"clientCAFile"`
	AllowedClients []string `json:"allowedClients,omitempty"` // DNS SAN, URI SAN or CN; empty allows every client of the CA
}

// Kubernetes configures the client of the API server.
type Kubernetes struct {
	Kubeconfig     string `json:"kubeconfig"` // empty: the pod's service account
	Namespace      string `json:"namespace"`
	LeaderElection *bool  `json:"leaderElection"` // not nil after Load
}

// Cloud selects the cloud: exactly one field is not nil.
type Cloud struct {
	AWS       *AWS       `json:"aws,omitempty"`
	Simulated *Simulated `json:"simulated,omitempty"`
}

// AWS maps node groups to Auto Scaling Groups.
type AWS struct {
	Region            string            `json:"region"`
	Endpoint          string            `json:"endpoint,omitempty"` // URL that replaces the endpoints of AWS; for tests
	RefreshInterval   Duration          `json:"refreshInterval"`
	Cluster           string            `json:"cluster,omitempty"` // name of the cluster in the tags of its Auto Scaling Groups
	ScaleInProtection ScaleInProtection `json:"scaleInProtection"`
	Discovery         *Discovery        `json:"discovery,omitempty"`
}

// ScaleInProtection selects how the provider treats the scale-in protection of
// instances, which keeps their Auto Scaling Group from terminating them by itself.
type ScaleInProtection string

// Modes of scale-in protection.
const (
	ScaleInManage  ScaleInProtection = "manage"  // the provider protects instances itself
	ScaleInRequire ScaleInProtection = "require" // a group shrinks only while every instance is protected already
	ScaleInIgnore  ScaleInProtection = "ignore"  // a group shrinks without protection, so AWS may terminate other instances
)

// Discovery makes a node group of every Auto Scaling Group that carries all Tags.
type Discovery struct {
	Tags map[string]string `json:"tags"`
}

// Simulated configures a cloud without machines, for rehearsals.
type Simulated struct {
	StateFile         string         `json:"stateFile"`          // keeps instances over a restart; empty keeps them in memory only
	LaunchDelay       Duration       `json:"launchDelay"`        // from placeholder to booting instance
	BootDelay         Duration       `json:"bootDelay"`          // from booting to running with a registered Node
	DevicePluginDelay Duration       `json:"devicePluginDelay"`  // from registered Node to its GPUs in status.capacity
	TerminateDelay    Duration       `json:"terminateDelay"`     // from deleting to gone
	Capacity          map[string]int `json:"capacity,omitempty"` // instances that can be launched, by group id; unlimited for other groups
	LaunchErrors      LaunchErrors   `json:"launchErrors"`
	API               SimulatedAPI   `json:"api"`
	Heartbeat         *bool          `json:"heartbeat"` // renew Node leases and Ready conditions; false when kwok renews them; not nil after Load
}

// LaunchErrors makes a fraction of the launches fail.
type LaunchErrors struct {
	Rate float64 `json:"rate"` // 0 to 1
	Code string  `json:"code"` // one of LaunchCodes
}

// SimulatedAPI configures latency and failures of the simulated cloud's calls.
type SimulatedAPI struct {
	Latency        Duration `json:"latency"`
	ErrorRate      float64  `json:"errorRate"`      // 0 to 1: calls that fail and change nothing
	LostAnswerRate float64  `json:"lostAnswerRate"` // 0 to 1: writes that succeed and return cloud.ErrUnknown
}

// Redis configures the store of acknowledgements: either Addresses or Embedded.
type Redis struct {
	Addresses    []string       `json:"addresses,omitempty"`
	MasterName   string         `json:"masterName,omitempty"` // Sentinel
	Cluster      bool           `json:"cluster,omitempty"`
	Username     string         `json:"username,omitempty"`
	PasswordFile string         `json:"passwordFile,omitempty"`
	DB           int            `json:"db,omitempty"`
	TLS          *RedisTLS      `json:"tls,omitempty"`
	Embedded     *EmbeddedRedis `json:"embedded,omitempty"`
}

// RedisTLS enables TLS on connections to Redis. Without CAFile the client trusts the system roots.
type RedisTLS struct {
	CAFile     string `json:"caFile,omitempty"`
	CertFile   string `json:"certFile,omitempty"`
	KeyFile    string `json:"keyFile,omitempty"`
	ServerName string `json:"serverName,omitempty"`
}

// EmbeddedRedis starts an in-memory Redis inside the provider, for rehearsals.
type EmbeddedRedis struct {
	Address string `json:"address"`
}

// CheckpointMode selects whether the provider holds nodes.
type CheckpointMode string

// Modes of the checkpoint policy.
const (
	Enforce CheckpointMode = "enforce" // holds nodes and denies deletions and evictions
	Observe CheckpointMode = "observe" // reports and counts what Enforce would hold, for adoption
)

// Checkpoint is the policy that holds nodes for their training pods.
type Checkpoint struct {
	Mode         CheckpointMode `json:"mode"`
	PodSelector  string         `json:"podSelector"`
	KeyPrefix    string         `json:"keyPrefix"`
	MaxAge       Duration       `json:"maxAge"`
	AbandonAfter Duration       `json:"abandonAfter"`
	AskAfter     Duration       `json:"askAfter"`
	AskEvery     Duration       `json:"askEvery"`
	AskOnTaints  []string       `json:"askOnTaints"`
}

// Quota limits the total use of a resource by the node groups that it covers.
type Quota struct {
	Name            string             `json:"name"`
	Resource        string             `json:"resource"` // an extended resource, "vcpu", "nodes" or "usd-per-hour"
	Limit           *resource.Quantity `json:"limit,omitempty"`
	AWSServiceQuota string             `json:"awsServiceQuota,omitempty"` // code of the AWS service quota to read the limit from, instead of Limit
	NodeGroups      []string           `json:"nodeGroups"`                // ids or path.Match patterns
	Surge           *QuotaSurge        `json:"surge,omitempty"`
}

// ServiceQuota is the cloud's own name of the quota to read the limit from; empty for Limit.
func (q Quota) ServiceQuota() string { return q.AWSServiceQuota }

// Quota resources other than extended resources.
const (
	ResourceVCPU       = "vcpu"
	ResourceNodes      = "nodes"
	ResourceUSDPerHour = "usd-per-hour"
)

// QuotaSurge limits growth over a sliding window, in units of the quota's resource.
type QuotaSurge struct {
	Max    resource.Quantity `json:"max"`
	Window Duration          `json:"window"`
}

// NodeGroup is a group of nodes of one shape.
type NodeGroup struct {
	ID               string                 `json:"id"`
	MinSize          int                    `json:"minSize"`
	MaxSize          int                    `json:"maxSize"`           // required unless Retired
	Retired          bool                   `json:"retired,omitempty"` // the group shrinks to 0, does not grow, and stays listed until it is empty
	Dropped          bool                   `json:"-"`                 // in no file and not discovered, and kept as Retired until it is empty
	AutoScalingGroup string                 `json:"autoScalingGroup,omitempty"`
	Discovered       bool                   `json:"-"` // found by its tags, and not in the file
	InstanceType     string                 `json:"instanceType,omitempty"`
	Zones            []string               `json:"zones,omitempty"`
	Region           string                 `json:"region,omitempty"` // defaults to cloud.aws.region
	OS               string                 `json:"os"`
	Arch             string                 `json:"arch"`
	Labels           map[string]string      `json:"labels,omitempty"`
	Taints           []corev1.Taint         `json:"taints,omitempty"`
	Capacity         corev1.ResourceList    `json:"capacity,omitempty"`
	ZoneLabels       []string               `json:"-"`                     // further labels that carry the zone
	Ignored          []string               `json:"-"`                     // what the cloud's group declares and does not apply, each with its reason
	Unknown          string                 `json:"-"`                     // reason why the cloud did not report Capacity; empty when it is known
	MostCapacity     corev1.ResourceList    `json:"-"`                     // largest use of quotas by one node of a group with several instance types; nil means Capacity
	Each             map[string]MachineType `json:"-"`                     // by instance type: use of quotas by machines of the group, also of a type that it no longer launches
	Reserved         corev1.ResourceList    `json:"reserved,omitempty"`    // subtracted from Capacity for allocatable
	HourlyPrice      *float64               `json:"hourlyPrice,omitempty"` // US dollars
	PriceSource      string                 `json:"-"`                     // where HourlyPrice is from; empty for the file
	Surge            *Surge                 `json:"surge,omitempty"`
	ScaleDown        ScaleDown              `json:"scaleDown"`
}

// CloudName is the cloud's own name of the group, and CloudNameField the field of the file that
// it is written in; both are empty where the cloud has none.
func (g NodeGroup) CloudName() string { return g.AutoScalingGroup }

// CloudNameField is the field of CloudName.
func (g NodeGroup) CloudNameField() string {
	if g.AutoScalingGroup == "" {
		return ""
	}
	return "autoScalingGroup"
}

// MachineType is what a machine of one instance type uses of quotas.
type MachineType struct {
	Capacity    corev1.ResourceList
	HourlyPrice *float64 // US dollars; nil when it is not known
}

// Surge limits a group's growth over a sliding window, in nodes.
type Surge struct {
	Max    int      `json:"max"`
	Window Duration `json:"window"`
}

// ScaleDown overrides the autoscaling options of a group; a nil field keeps Cluster Autoscaler's flag.
type ScaleDown struct {
	UtilizationThreshold    *float64  `json:"utilizationThreshold,omitempty"`
	GPUUtilizationThreshold *float64  `json:"gpuUtilizationThreshold,omitempty"`
	UnneededTime            *Duration `json:"unneededTime,omitempty"`
	UnreadyTime             *Duration `json:"unreadyTime,omitempty"`
	MaxNodeProvisionTime    *Duration `json:"maxNodeProvisionTime,omitempty"`
	IgnoreDaemonSets        *bool     `json:"ignoreDaemonSets,omitempty"`
}

// Empty reports whether no option is overridden.
func (s ScaleDown) Empty() bool { return s == ScaleDown{} }

// Duration is a Go duration, written as "90s" or "5m".
type Duration struct{ time.Duration }
