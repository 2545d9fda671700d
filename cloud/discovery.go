package cloud

// Discovery is the result of a search for groups by their tags.
type Discovery struct {
	// Groups are the cloud's own names of the groups, sorted.
	Groups []string
	// Cluster is the name that the groups must have in their tags; empty while it is not known.
	Cluster string
	// Problem is why no group is discovered, and what to write in the node group file; empty
	// while groups are discovered.
	Problem string
}
