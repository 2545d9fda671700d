package cloud

// Conflict is a setting in the cloud by which something else than this provider
// changes a group's size or ends its instances.
type Conflict struct {
	// Group is the node group's id.
	Group string
	// What names the setting and its effect, Do the command that switches it off.
	What, Do string
}
