package cloud

import (
	"context"
	"time"
)

// State is where an instance is in its life.
type State int

// The states of an instance. There is no "unknown": a Backend that cannot tell
// reports Creating, since Cluster Autoscaler drops errors on anything else.
const (
	// Creating covers placeholders and machines that boot.
	Creating State = iota + 1
	// Running instances have been handed over by the cloud; whether their Node
	// is Ready is not the cloud's to say.
	Running
	// Deleting instances are on their way out, and no longer part of the target.
	Deleting
)

// String names the state for logs and tables.
func (s State) String() string {
	switch s {
	case Creating:
		return "creating"
	case Running:
		return "running"
	case Deleting:
		return "deleting"
	default:
		return "invalid"
	}
}

// LaunchCode says why a unit of capacity has not been delivered. The set is
// small and fixed because Cluster Autoscaler uses the code verbatim as a metric
// label (cluster-autoscaler/clusterstate/clusterstate.go, RegisterFailedScaleUp).
type LaunchCode string

// The codes of capacity errors (out of resources), then the others.
const (
	InsufficientInstanceCapacity      LaunchCode = "InsufficientInstanceCapacity"
	MaxSpotInstanceCountExceeded      LaunchCode = "MaxSpotInstanceCountExceeded"
	VcpuLimitExceeded                 LaunchCode = "VcpuLimitExceeded"
	UnfulfillableCapacity             LaunchCode = "UnfulfillableCapacity"
	Unsupported                       LaunchCode = "Unsupported"
	InsufficientFreeAddressesInSubnet LaunchCode = "InsufficientFreeAddressesInSubnet"
	LaunchTemplateError               LaunchCode = "LaunchTemplateError"
	Other                             LaunchCode = "Other"
)

// OutOfResources says whether the code stands for missing capacity or quota,
// which another group or a later try may have; false means a fault that repeats.
func (c LaunchCode) OutOfResources() bool {
	switch c {
	case InsufficientInstanceCapacity, MaxSpotInstanceCountExceeded, VcpuLimitExceeded,
		UnfulfillableCapacity, Unsupported, InsufficientFreeAddressesInSubnet:
		return true
	case LaunchTemplateError, Other:
		return false
	default:
		return false
	}
}

// LaunchError is why a unit does not become a running machine.
type LaunchError struct {
	Code    LaunchCode
	Message string
}

// Instance is one unit of a group's capacity: a machine, or a placeholder for
// one that was asked for and is not there.
type Instance struct {
	// ID is the Node's spec.providerID, byte for byte.
	ID string
	// Type is the machine's own instance type, which may differ from what its group
	// launches now; empty for placeholders, and where the cloud has no types.
	Type string
	// Zone is where the machine is; empty for placeholders, and where the cloud has none.
	Zone string
	// Market is how the machine is paid for; empty while that is not known.
	Market Market
	// HourlyPrice is the list price of the machine in US dollars; 0 where none is known, as in
	// the spot market.
	HourlyPrice float64
	// State is Creating for every placeholder.
	State State
	// Placeholder is true as long as no machine stands behind the unit.
	Placeholder bool
	// Error is set only while State is Creating, and stays until the unit goes. Mostly it is
	// a placeholder's; some clouds give a machine that failed to start an id.
	Error *LaunchError
	// Since is when the unit was asked for (placeholders) or launched.
	Since time.Time
}

// Market is how a machine is paid for.
type Market string

// The markets of machines.
const (
	OnDemand Market = "on-demand"
	Spot     Market = "spot"
)

// Group is what the cloud says of one node group at one moment.
type Group struct {
	// ID is the node group's id, as in the Spec.
	ID string
	// Target is the capacity asked for. It equals the number of Instances that
	// are not Deleting, placeholders included, in every Group a Backend returns.
	Target int
	// Min and Max are the cloud's own bounds of Target.
	Min, Max int
	// Suspended is true while the cloud launches nothing for the group because an
	// operator told it so. Max is Target then.
	Suspended bool
	// Instances lists placeholders, live and departing instances, each once.
	Instances []Instance
	// Revision orders the pictures of a group that one Backend returns: the higher one is
	// newer.
	Revision uint64
	// Unsettled is what may still come of writes whose outcome is not known.
	Unsettled Unsettled
	// Problem is why this group cannot be served now, in one of this package's
	// classes: it does not exist in the cloud, or is of a kind that a Backend
	// refuses. The other fields are then what was last known of it, or zero but
	// for ID, and every write to it fails with the same error. It is nil for a
	// group that is as it should be. What fails for all groups is no Problem but
	// the error of Describe.
	Problem error
}

// Unsettled is by how much Target may still change through writes that returned
// ErrUnknownOutcome. The Backend keeps it until it knows their outcome, or nothing can come
// of them any more.
type Unsettled struct {
	// More and Fewer are the most by which Target may rise and fall.
	More, Fewer int
}

// Spec is what a Backend needs to know of a configured node group.
type Spec struct {
	// ID is the node group's id.
	ID string
	// Name is the cloud's own name of the group; empty where it is the id.
	Name string
	// InstanceType is the machine's type; it may be empty.
	InstanceType string
	// Discovered is true for a group that was found by its tags, and is in no file.
	Discovered bool
}

// Existence is a Backend's answer to whether an id is, or was, one of its own.
type Existence int

// What Lookup can say of an id.
const (
	// Foreign ids never belonged to an instance of these groups.
	Foreign Existence = iota + 1
	// Gone ids did, and nothing runs under them any more.
	Gone
	// Present ids belong to an instance that Describe lists.
	Present
)

// Backend grows and shrinks groups of machines.
//
// All methods may be called concurrently, with one exception that the caller
// owes: at most one of Increase, Cancel and Delete is under way for a group at
// a time. A Backend starts nothing new once ctx is done. Every returned error
// matches exactly one class of this package, or is the context's own, or is
// ErrGivenUp with the context's.
//
// A write that returned nil is seen by every Describe that starts afterwards. A
// write whose outcome cannot be known returns ErrUnknownOutcome (or the
// context's error alone) with the group as the Backend knows it then: what may still come of
// the write is in its Unsettled. Any other error means that nothing changed.
//
// Returned values are the caller's: the Backend never changes them afterwards.
type Backend interface {
	// Configure replaces the set of groups. Instances of a group that is no
	// longer named keep running and come back when the group is named again.
	Configure(ctx context.Context, specs []Spec) error

	// Describe returns the named groups, or all configured ones when ids is
	// empty. An id that is not configured is ErrNotFound. Of named groups a launch that
	// has failed lately may still be without its Error.
	Describe(ctx context.Context, ids ...string) ([]Group, error)

	// Increase reads the group and requests as many more instances as more returns for
	// that reading. It calls more once, and not when the reading fails. It returns the
	// group with its raised Target; with 0 the group as it was read, unchanged. A
	// negative number is ErrInvalid, ErrLimit means that Max does not allow all of
	// them. more must not call the Backend, which may hold a lock.
	Increase(ctx context.Context, id string, more func(Group) int) (Group, error)

	// Cancel reads the group and gives up the placeholders that which returns for that
	// reading, as many as Min allows, lowers Target by as many as it gave up, and returns
	// their ids. It calls which once, and not when the reading fails; which must not call
	// the Backend. A placeholder that has become a machine, or that is gone, is left out of
	// the result and changes nothing: Cancel never ends a live or booting instance. An id of
	// another group or cloud is ErrInvalid, and nothing changes.
	Cancel(ctx context.Context, id string, which func(Group) []string) (Group, []string, error)

	// Delete terminates the named instances and lowers Target by one for each
	// that was not already going. It returns the ids whose termination is
	// confirmed, those already Deleting or gone among them; with an error, the
	// confirmed ones are still true. A placeholder, and an id of another group or
	// cloud, is ErrInvalid, and nothing changes.
	Delete(ctx context.Context, id string, instances []string) (Group, []string, error)

	// Lookup tells, for each id, whether it is, was, or never was an instance
	// or placeholder of the named group. The result has the order of ids.
	Lookup(ctx context.Context, id string, instances []string) ([]Existence, error)

	// Recognizes says, from its form alone and without a call, whether an id
	// could be one of this cloud's. It decides whether a Node whose instance is
	// gone may still be placed in a group by its label.
	Recognizes(instance string) bool

	// TemplateID is the provider id to put on a group's template Node. No
	// instance ever has it, and Recognizes accepts it.
	TemplateID(group string) string
}
