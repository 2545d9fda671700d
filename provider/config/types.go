// Package config reads the node group file: its types, its defaults, a strict
// decoder, and a Validate that reports every problem at once with the path of
// the field.
//
// It knows the words of the file and nothing of what is built from them. A
// Config that Load returns is complete and correct, and is never changed.
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

// Config is the whole file.
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

// Server is where and how the provider listens.
type Server struct {
	Address     string `json:"address"`     // host:port of gRPC
	HTTPAddress string `json:"httpAddress"` // host:port of health, metrics and status
	// WebhookAddress is host:port of the eviction webhook; empty: none. It uses the
	// certificate of TLS and asks the API server for none.
	WebhookAddress string `json:"webhookAddress,omitempty"`
	TLS            *TLS   `json:"tls,omitempty"`
	Insecure       bool   `json:"insecure"` // plaintext on an address that is not loopback
}

// TLS makes the gRPC port speak mutual TLS. The three files are re-read when they change.
type TLS struct {
	CertFile       string   `json:"certFile"`
	KeyFile        string   `json:"keyFile"`
	ClientCAFile   string   `json:"clientCAFile"`
	AllowedClients []string `json:"allowedClients,omitempty"` // DNS SAN, URI SAN or CN; empty: every client of the CA
}

// Kubernetes is how to reach the API server.
type Kubernetes struct {
	Kubeconfig     string `json:"kubeconfig"` // empty: the pod's service account
	Namespace      string `json:"namespace"`
	LeaderElection *bool  `json:"leaderElection"` // never nil in what Load returns
}

// Cloud names exactly one of its members.
type Cloud struct {
	AWS       *AWS       `json:"aws,omitempty"`
	Simulated *Simulated `json:"simulated,omitempty"`
}

// AWS runs node groups on Auto Scaling Groups.
type AWS struct {
	Region            string            `json:"region"`
	Endpoint          string            `json:"endpoint,omitempty"` // a stand-in for AWS
	RefreshInterval   Duration          `json:"refreshInterval"`
	ScaleInProtection ScaleInProtection `json:"scaleInProtection"`
	Discovery         *Discovery        `json:"discovery,omitempty"`
}

// ScaleInProtection is how instances are kept from being an ASG's victims.
type ScaleInProtection string

// The ways to treat scale-in protection.
const (
	ScaleInManage  ScaleInProtection = "manage"
	ScaleInRequire ScaleInProtection = "require"
	ScaleInIgnore  ScaleInProtection = "ignore"
)

// Discovery takes every ASG that carries all the tags as a node group.
type Discovery struct {
	Tags map[string]string `json:"tags"`
}

// Simulated pretends to be a cloud, to rehearse.
type Simulated struct {
	StateFile         string         `json:"stateFile"`          // where instances survive a restart; empty: in memory only
	LaunchDelay       Duration       `json:"launchDelay"`        // placeholder → booting machine
	BootDelay         Duration       `json:"bootDelay"`          // booting → running, its Node registered
	DevicePluginDelay Duration       `json:"devicePluginDelay"`  // Node registered → its GPUs appear
	TerminateDelay    Duration       `json:"terminateDelay"`     // deleting → gone
	Capacity          map[string]int `json:"capacity,omitempty"` // machines to be had, by group; a group not named has no bound
	LaunchErrors      LaunchErrors   `json:"launchErrors"`
	API               SimulatedAPI   `json:"api"`
	Heartbeat         *bool          `json:"heartbeat"` // keep Node leases and Ready conditions fresh; false when kwok does; never nil in what Load returns
}

// LaunchErrors makes a share of all launches fail.
type LaunchErrors struct {
	Rate float64 `json:"rate"` // 0 to 1
	Code string  `json:"code"` // a launch code, see cloud.LaunchCode
}

// SimulatedAPI is how the pretend cloud's calls behave.
type SimulatedAPI struct {
	Latency        Duration `json:"latency"`
	ErrorRate      float64  `json:"errorRate"`      // 0 to 1: calls that fail and change nothing
	LostAnswerRate float64  `json:"lostAnswerRate"` // 0 to 1: writes that are carried out and answered with an unknown outcome
}

// Redis is where trainers acknowledge checkpoints: Addresses or Embedded.
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

// RedisTLS makes the Redis client speak TLS. Without CAFile the system's roots are trusted.
type RedisTLS struct {
	CAFile     string `json:"caFile,omitempty"`
	CertFile   string `json:"certFile,omitempty"`
	KeyFile    string `json:"keyFile,omitempty"`
	ServerName string `json:"serverName,omitempty"`
}

// EmbeddedRedis starts a Redis stand-in inside the provider, to rehearse.
type EmbeddedRedis struct {
	Address string `json:"address"`
}

// CheckpointMode is whether nodes are really held.
type CheckpointMode string

// The modes: Enforce holds nodes; Observe judges, reports and counts only.
const (
	Enforce CheckpointMode = "enforce"
	Observe CheckpointMode = "observe"
)

// Checkpoint is the policy by which nodes are held for their training pods.
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

// Quota bounds what the node groups it covers may use together.
type Quota struct {
	Name            string             `json:"name"`
	Resource        string             `json:"resource"` // an extended resource, "vcpu", "nodes" or "usd-per-hour"
	Limit           *resource.Quantity `json:"limit,omitempty"`
	AWSServiceQuota string             `json:"awsServiceQuota,omitempty"` // takes the limit from AWS instead
	NodeGroups      []string           `json:"nodeGroups"`                // ids or globs (path.Match)
	Surge           *QuotaSurge        `json:"surge,omitempty"`
}

// The quota resources that are not extended resources.
const (
	ResourceVCPU       = "vcpu"
	ResourceNodes      = "nodes"
	ResourceUSDPerHour = "usd-per-hour"
)

// QuotaSurge bounds growth over a sliding window, in units of the quota's resource.
type QuotaSurge struct {
	Max    resource.Quantity `json:"max"`
	Window Duration          `json:"window"`
}

// NodeGroup is one group of equal nodes.
type NodeGroup struct {
	ID               string              `json:"id"`
	MinSize          int                 `json:"minSize"`
	MaxSize          int                 `json:"maxSize"`           // has to be written, unless Retired
	Retired          bool                `json:"retired,omitempty"` // min 0, no growth, listed until empty
	AutoScalingGroup string              `json:"autoScalingGroup,omitempty"`
	InstanceType     string              `json:"instanceType,omitempty"`
	Zones            []string            `json:"zones,omitempty"`
	Region           string              `json:"region,omitempty"` // default: cloud.aws.region
	OS               string              `json:"os"`
	Arch             string              `json:"arch"`
	Labels           map[string]string   `json:"labels,omitempty"`
	Taints           []corev1.Taint      `json:"taints,omitempty"`
	Capacity         corev1.ResourceList `json:"capacity,omitempty"`
	Unknown          string              `json:"-"`                     // why the cloud cannot say what its machines are
	MostCapacity     corev1.ResourceList `json:"-"`                     // what a node may take up of quotas, where the cloud has several types; nil: Capacity
	Reserved         corev1.ResourceList `json:"reserved,omitempty"`    // taken off capacity for allocatable
	HourlyPrice      *float64            `json:"hourlyPrice,omitempty"` // US dollars
	Surge            *Surge              `json:"surge,omitempty"`
	ScaleDown        ScaleDown           `json:"scaleDown"`
}

// Surge bounds a group's growth over a sliding window, in nodes.
type Surge struct {
	Max    int      `json:"max"`
	Window Duration `json:"window"`
}

// ScaleDown overrides what NodeGroupGetOptions answers; a nil field keeps Cluster Autoscaler's flag.
type ScaleDown struct {
	UtilizationThreshold    *float64  `json:"utilizationThreshold,omitempty"`
	GPUUtilizationThreshold *float64  `json:"gpuUtilizationThreshold,omitempty"`
	UnneededTime            *Duration `json:"unneededTime,omitempty"`
	UnreadyTime             *Duration `json:"unreadyTime,omitempty"`
	MaxNodeProvisionTime    *Duration `json:"maxNodeProvisionTime,omitempty"`
	IgnoreDaemonSets        *bool     `json:"ignoreDaemonSets,omitempty"`
}

// Empty is true when no option is overridden, so that NodeGroupGetOptions stays Unimplemented.
func (s ScaleDown) Empty() bool { return s == ScaleDown{} }

// Duration is a Go duration, written as "90s" or "5m".
type Duration struct{ time.Duration }
