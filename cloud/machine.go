package cloud

// Machine describes the machines of a group, by the cloud's own description,
// before any has been launched.
type Machine struct {
	// Problem is why the types are not known, in one of this package's classes; nil otherwise.
	// With it the rest is known only if the group itself could be read.
	Problem error

	// InstanceTypes are the types that the cloud may launch.
	InstanceTypes []string
	// Least holds the smallest amount of each resource among the types. Template Nodes are
	// made from it.
	Least Resources
	// Most holds the largest amount of each resource among the types; quotas count it
	// for what is not launched yet.
	Most Resources
	// Each holds the types that the cloud may launch, and those of the machines that the
	// group has from before its types changed: quotas count a machine by its own.
	Each map[string]MachineType
	// Architecture is amd64 or arm64; empty where it is not known.
	Architecture string
	// Zones are the group's zones, Min and Max the cloud's own bounds of its size.
	Zones    []string
	Min, Max int
	// ZoneLabels are the labels beside Kubernetes' own in which Nodes carry their zone.
	ZoneLabels []string
	// HourlyPrice is that of the dearest type in US dollars, since a budget must hold
	// whichever type is launched; nil when the price of one type is not known.
	HourlyPrice *float64
	// PriceSource names the list, place and day of HourlyPrice.
	PriceSource string
	// Declared is what the group declares about its Nodes. Of two declarations of the same
	// thing the first is binding.
	Declared []Declaration
}

// MachineType is one type of machine.
type MachineType struct {
	Resources   Resources
	HourlyPrice *float64 // US dollars; nil when it is not known
}

// Resources are amounts of one machine, before anything is reserved.
type Resources struct {
	VCPUs int
	// Memory is what the Node of such a machine shows, in bytes: less than is advertised.
	Memory int64
	// Pods is the largest number of Pods, by the addresses that a machine can have.
	Pods int
	// Devices are counts of GPUs and other accelerators by the resource name of the maker's
	// device plugin, such as nvidia.com/gpu.
	Devices map[string]int
}

// Declaration is a statement of a group about its Nodes, such as one of its tags.
type Declaration struct {
	// Source names it for a person, such as the key of the tag.
	Source string
	Kind   DeclarationKind
	// Key is that of the label or taint, or the name of the resource or option; Effect is of
	// a taint.
	Key, Value, Effect string
	// Problem is why it declares nothing; empty otherwise.
	Problem string
}

// DeclarationKind is what a Declaration is about.
type DeclarationKind string

// The kinds of declarations.
const (
	DeclaredLabel    DeclarationKind = "label"
	DeclaredTaint    DeclarationKind = "taint"
	DeclaredResource DeclarationKind = "resources"
	DeclaredOption   DeclarationKind = "autoscaling-options"
)
