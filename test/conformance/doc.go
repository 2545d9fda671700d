// Package conformance holds the provider to the rules of the wire: a test for
// each of the 14 rules that no call may break, the calls that real Cluster
// Autoscalers have been recorded to make, and the public bug reports that bear
// on them.
//
// Everything goes through the real program, started as a process on the
// simulated cloud, and a real gRPC connection. What the rules demand is read off
// answers, the log, the metrics, and what is left after a kill -9; no package of
// the provider is imported but proto, which is the wire.
//
// It does not know Kubernetes: what only shows on Nodes and Pods (cordons,
// Events, the checkpoint gate, the guard) is tested with the packages that do it.
//
// # Another server
//
// With CONFORMANCE_ADDRESS=host:port (plaintext) the subtests that need nothing
// but the wire run against the server there, one after another, and the others
// are skipped. It has to run on the simulated cloud; the node group
// CONFORMANCE_GROUP (default: the first of NodeGroups) is grown and shrunk, and
// left as it was found. README.md has the other settings.
package conformance
