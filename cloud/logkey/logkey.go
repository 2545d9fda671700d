// Package logkey lists the keys of structured log fields, so that a key has one
// meaning and one type in the log lines of every package.
//
// It lies below cloud, since implementations of cloud.Backend import nothing else
// of this module. It knows nothing of loggers.
package logkey

// What a line is about.
const (
	NodeGroup        = "node_group"         // string: nodeGroups[].id of the node group file
	AutoScalingGroup = "auto_scaling_group" // string: name of an AWS Auto Scaling Group
	Instance         = "instance"           // string: cloud.Instance.ID, equal to spec.providerID of its Node
	Node             = "node"               // string: name of a Kubernetes Node
	Pod              = "pod"                // string: namespace/name of a Kubernetes Pod
	Replica          = "replica"            // string: Pod name or identity of a replica of this provider
	Quota            = "quota"              // string: quotas[].name of the node group file
	Cluster          = "cluster"            // string: name of the Kubernetes cluster in the tags of cloud groups
	ServiceQuota     = "service_quota"      // string: code of an AWS service quota, such as L-DB2E81BA
	CheckpointID     = "checkpoint_id"      // string: id of a checkpoint request, as its trainer reads it from Redis
	Step             = "step"               // string: a change that the simulated cloud makes to a Node
)

// Why and by whom.
const (
	Error      = "error"       // string: text of an error; the key that zap.Error writes
	Reason     = "reason"      // string: cause of what the message reports, as text or as one of a fixed set
	Limit      = "limit"       // string: limit that left no room, with its use and its source
	ReleasedBy = "released_by" // string: operator who released a Pod, as written on the Node
)

// Sizes of a group, in nodes, placeholders included.
const (
	Delta          = "delta"           // int: change of the target that the call asked for, negative for a decrease
	Granted        = "granted"         // int: nodes by which an IncreaseSize raised the target
	Absorbed       = "absorbed"        // int: nodes in flight that answered for nodes asked for again
	InFlight       = "in_flight"       // int: nodes asked for that are not running yet
	Cancelled      = "cancelled"       // int: placeholders cancelled
	Terminated     = "terminated"      // int: instances whose termination the cloud confirmed
	Arrived        = "arrived"         // int: instances that launched while their placeholders were being cancelled
	Target         = "target"          // int: target size after what the message reports
	PreviousTarget = "previous_target" // int: target size before
)

// Sizes of an Auto Scaling Group, in instances.
const (
	DesiredCapacity      = "desired_capacity"       // int: desired capacity that this provider set
	ShownDesiredCapacity = "shown_desired_capacity" // int: desired capacity that AWS shows
)

// Counts.
const (
	Instances   = "instances"    // int
	Nodes       = "nodes"        // int
	NodeGroups  = "node_groups"  // int
	Pods        = "pods"         // int
	PodsUnsaved = "pods_unsaved" // int: training Pods that ended without an acknowledgement
)

// Calls, connections and the process.
const (
	Method        = "method"         // string: RPC of the externalgrpc service, without its package
	Code          = "code"           // string: gRPC status code of the answer
	Duration      = "duration"       // duration: time that the call took
	Panic         = "panic"          // any: value that a handler panicked with
	Stack         = "stack"          // string: stack trace of a panic
	Timeout       = "timeout"        // duration: time after which waiting ended
	SnapshotAge   = "snapshot_age"   // duration: age of the snapshot that answers reads
	WaitingFor    = "waiting_for"    // string: what start-up is waiting for
	Waited        = "waited"         // duration: time that start-up has waited for it
	RemoteAddress = "remote_address" // string: host:port of the peer
	GRPCAddress   = "grpc_address"   // string: host:port of the gRPC listener
	HTTPAddress   = "http_address"   // string: host:port of the HTTP listener
	Leader        = "leader"         // string: identity of the replica that holds the Lease
	ThisReplica   = "this_replica"   // bool: true when Leader is the replica that logs
	Version       = "version"        // string: version of the binary
	Serial        = "serial"         // string: serial number of the serving certificate
	NotAfter      = "not_after"      // time: end of the serving certificate's validity
)
