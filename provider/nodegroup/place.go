package nodegroup

// Place is the node group of an instance, and the cost of the instance.
type Place struct {
	Group string
	// AboveMin is false while the group is at its minimum, so that none of its nodes may be deleted.
	AboveMin bool
	GPUs     int64 // GPUs of one node
	// HourlyPrice is in US dollars per hour; an estimate where the file has none.
	HourlyPrice float64
}
