// Package report is the state of a running provider in plain values: what
// /report.json carries, status prints and doctor reads. The JSON keys are a
// contract with whatever reads that path.
//
// It imports nothing of the project, so that everything that makes, serves or reads a
// report shares these types.
package report

import "time"

// Provider is the whole state at one moment.
type Provider struct {
	Time        time.Time   `json:"time"`
	Snapshot    time.Time   `json:"snapshot"` // when the cloud was last read
	NodeGroups  []NodeGroup `json:"nodeGroups"`
	Quotas      []Quota     `json:"quotas"`
	GPULabel    string      `json:"gpuLabel"`
	ReloadError string      `json:"reloadError,omitempty"` // why the file on disk is not in force
	Held        []Hold      `json:"held,omitempty"`        // nodes that wait for a checkpoint
}

// Hold is an instance that training pods keep.
type Hold struct {
	Instance  string    `json:"instance"`       // provider id
	Node      string    `json:"node,omitempty"` // name of its Node; empty without one
	NodeGroup string    `json:"nodeGroup"`
	Since     time.Time `json:"since"`
	Pods      []Pod     `json:"pods"`
}

// Pod is a training pod that is not clear.
type Pod struct {
	Pod    string     `json:"pod"` // namespace/name
	Reason string     `json:"reason"`
	Until  *time.Time `json:"until,omitempty"` // when the pod stops holding without a person's help; nil when it never does
}

// NodeGroup is one node group. Counts are instances.
type NodeGroup struct {
	ID           string `json:"id"`
	MinSize      int    `json:"minSize"`
	MaxSize      int    `json:"maxSize"`      // of the file
	EffectiveMax int    `json:"effectiveMax"` // as NodeGroups reports it to Cluster Autoscaler
	Target       int    `json:"target"`
	Running      int    `json:"running"`
	Creating     int    `json:"creating"` // booting machines
	Placeholders int    `json:"placeholders"`
	Failed       int    `json:"failed"` // placeholders with an error
	Deleting     int    `json:"deleting"`
	Forgotten    int    `json:"forgotten"` // in flight; the next increase is answered with them
	Retired      bool   `json:"retired"`
	Dropped      bool   `json:"dropped,omitempty"` // retired because no file has it
	Limit        string `json:"limit"`             // the limit that bounds growth, with numbers and source
	Problem      string `json:"problem,omitempty"` // why the cloud cannot serve the group
	// Ignored are declarations of the cloud's group, such as tags, that do not apply, each with
	// its reason.
	Ignored   []string   `json:"ignored,omitempty"`
	Instances []Instance `json:"instances"`
	// LaunchFailures are the last failures since the provider started, the newest first.
	// They stay when their placeholders go.
	LaunchFailures []LaunchFailure `json:"launchFailures,omitempty"`
}

// LaunchFailure is a reason why launches failed.
type LaunchFailure struct {
	Code    string    `json:"code"`    // one of the codes of package cloud
	Message string    `json:"message"` // of the cloud
	Count   int       `json:"count"`   // launches that failed for this reason
	First   time.Time `json:"first"`   // when the provider learned of the first of them
	Last    time.Time `json:"last"`
}

// Instance is one instance or placeholder.
type Instance struct {
	ID          string    `json:"id"` // provider id
	State       string    `json:"state"`
	Placeholder bool      `json:"placeholder,omitempty"`
	Error       string    `json:"error,omitempty"`
	Since       time.Time `json:"since"`
}

// Quota is one quota, in its resource's own unit.
type Quota struct {
	Name     string  `json:"name"`
	Resource string  `json:"resource"`
	Used     float64 `json:"used"`
	Limit    float64 `json:"limit"`
	Source   string  `json:"source"`
	// Unknown is true until a limit that the cloud keeps has been read: until then the
	// quota refuses nothing.
	Unknown bool       `json:"unknown,omitempty"`
	ReadAt  *time.Time `json:"readAt,omitempty"`  // when a limit of the cloud, and its use, were read
	Problem string     `json:"problem,omitempty"` // why they are not newer
}
