// Command autoscaler stands in for the real cluster-autoscaler where that cannot
// be had: a small loop that takes the same flags and behaves towards an
// externalgrpc server and the Kubernetes API as release 1.36 does. It makes the
// same calls in the same order with the same caches, counts, waits, taints,
// evicts and deletes alike, and is held to calls that were recorded from the
// real one. It knows nothing of the server beyond the wire.
//
// It is frozen: nothing is added but what a test needs of the real one's own output.
//
// Names in comments such as "as the real one" mean cluster-autoscaler 1.36.
//
// What it leaves out:
//   - Expanders: the option that wastes least cpu and memory wins, ties go to the
//     group listed first. --expander is taken and ignored, so no prices are asked.
//   - Balancing between similar groups, parallel and salvo scale-up, groups of
//     zero-or-max size, ProvisioningRequests, capacity buffers, enforced minimum
//     sizes, --max-nodes-total, cores, memory and GPU limits. The nodes are still
//     walked for the limits, as their calls and errors stop a loop.
//   - Scheduling beyond resources, unschedulable nodes, taints, nodeSelector and
//     required node affinity: no spread, no affinity between pods, no volumes, no
//     host ports, no preemption, no priorities. Dynamic Resource Allocation, too,
//     but for the calls it makes before Refresh.
//   - PodDisruptionBudgets, replica counts, and DaemonSet pods on nodes that are
//     not there yet. Pods evicted lately are not placed again in the simulation.
//   - Leader election, the flags not listed by --help, rate of soft taints in
//     time (their number a loop is held), batched deletions, the data race and the
//     deadlock of 1.36 between a deletion and the loop, and all metrics but the
//     time of a loop. The status config map is short and of another form.
//   - Lists come from the API server, not from a cache that may lag behind.
package main
