package cloud

// Machine describes the machines of a group, by the cloud's own description,
// before any has been launched.
type Machine struct {
	// Problem is why nothing else is known, in one of this package's classes; nil otherwise.
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
	// Architecture is amd64 or arm64; empty when the types differ.
	Architecture string
	// Zones are the group's zones, Min and Max the cloud's own bounds of its size.
	Zones    []string
	Min, Max int
	// HourlyPrice is that of the dearest type in US dollars, since a budget must hold
	// whichever type is launched; nil when the price of one type is not known.
	HourlyPrice *float64
	// PriceSource names the list, place and day of HourlyPrice.
	PriceSource string
	// Tags hold the declarations of the group's tags about its Nodes.
	Tags NodeTags
}

// MachineType is one type of machine.
type MachineType struct {
	Resources   Resources
	HourlyPrice *float64 // US dollars; nil when it is not known
}

// Resources are amounts of one machine, before anything is reserved.
type Resources struct {
	VCPUs     int
	MemoryMiB int64
	// Pods is the largest number of Pods, by the addresses that a machine can have.
	Pods int
	// GPUs are counts by the resource name of the maker's device plugin, such as
	// nvidia.com/gpu; empty without GPUs.
	GPUs map[string]int
}

// NodeTags hold the declarations of a group's tags about its Nodes.
type NodeTags struct {
	Labels map[string]string
	Taints []Taint
	// Resources are quantities by resource name, not parsed.
	Resources map[string]string
	// Ignored are keys of tags that declare nothing known, such as a taint without an effect.
	Ignored []string
}

// Taint is a taint of a Node.
type Taint struct{ Key, Value, Effect string }
