package provider

import (
	"gpu-node-provider/cloud"
	"gpu-node-provider/provider/checkpoint"
)

// Cluster Autoscaler ends an instance that has no Node in its cluster after 15 minutes. In a
// discovered group it may be a machine of another cluster, whose tags are wrong, with trainings
// on it. So only what this process asked for is ended there without a Node; groups that the
// file lists have no such rule.

// arrivedLocked notes the machines of a discovered group that increases of this process asked
// for. Which machine was launched for which request no cloud tells, so the next to arrive
// count, and one that the cloud launches in the place of such a machine.
func (record *groupRecord) arrivedLocked(discovered bool, state cloud.Group) {
	if !discovered {
		record.ordered, record.bought, record.listed = 0, nil, nil
		return
	}
	waiting := 0
	bought, listed := map[string]bool{}, map[string]bool{} // without those that are gone
	for _, i := range state.Instances {
		switch {
		case i.Placeholder:
			waiting++
		case i.State == cloud.Deleting:
		case record.bought[i.ID]:
			bought[i.ID] = true
		}
	}
	if state.Target >= record.target {
		record.ordered += len(record.bought) - len(bought)
	}
	for _, i := range state.Instances {
		if i.Placeholder {
			continue
		}
		if record.ordered > 0 && !record.listed[i.ID] && i.State != cloud.Deleting {
			record.ordered--
			bought[i.ID] = true
		}
		listed[i.ID] = true
	}
	record.ordered = min(record.ordered, waiting) // what is expected is a placeholder until it arrives
	record.bought, record.listed, record.target = bought, listed, state.Target
}

// notOrdered returns the instances of a discovered group that have no Node and that this
// process did not ask for, as held.
func (w *write) notOrdered(instances []checkpoint.Instance) map[string]checkpoint.Held {
	held := map[string]checkpoint.Held{}
	if !w.view.Discovered && !w.view.Dropped { // a dropped group may have been discovered
		return held
	}
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	for _, i := range instances {
		if i.Fake() && !w.record.bought[i.ID] {
			held[i.ID] = checkpoint.Held{Instance: i.ID, Reason: "it has no Node, and this provider has not asked for it since it started, so it may be another cluster's: " +
				"end it by hand, or list its group in the node group file"}
		}
	}
	return held
}

// ordered adds to the machines that are expected to arrive, or takes cancelled ones off.
func (w *write) ordered(n int) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.record.ordered = max(0, w.record.ordered+n)
}
