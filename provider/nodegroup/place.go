package nodegroup

// Place is the node group of an instance, and what the instance costs.
type Place struct {
	Group string
	// AboveMin is false while the group is at its minimum, so that none of its nodes may go.
	AboveMin bool
	GPUs     int64
	// HourlyPrice is in US dollars; a rough one where the file has none.
	HourlyPrice float64
}
