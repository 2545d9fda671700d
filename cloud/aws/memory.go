package aws

// shownMemory is the memory that Nodes of a type show in status.capacity, in Ki. The
// firmware and the kernel keep the rest of what EC2 advertises. The values are those of
// Nodes with the EKS images for Amazon Linux, and of one kernel: another may keep some MiB
// more.
var shownMemory = map[string]int64{
	"g4dn.xlarge": 16070168, // of 16777216
	"m5.xlarge":   15919124, // of 16777216
}

// leastShown is the share of the advertised memory that Nodes of other types show at least,
// in thousandths. Karpenter's default of VM_MEMORY_OVERHEAD_PERCENT is 7.5 too
// (https://karpenter.sh/docs/reference/settings/); of the types above it is 4.2 and 5.1. A
// template that promises too little leaves a Pod waiting, one that promises too much buys
// nodes on which the Pod never runs.
const leastShown = 925

// memoryOf returns the memory that a Node of a type shows, in bytes, by what EC2 advertises.
func memoryOf(instanceType string, advertisedMiB int64) int64 {
	if shown, ok := shownMemory[instanceType]; ok {
		return shown << 10
	}
	return advertisedMiB << 20 / 1000 * leastShown
}
