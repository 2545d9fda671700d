// Package property drives the provider through random sequences of events, on a
// clock that only moves when told to, and checks after every step what must
// always hold.
//
// One test plays calls, boots, failures, reloads and restarts on the simulated
// cloud, and looks at the answers of the calls and at the cloud itself, never at the
// provider's insides. The other (checkpoint_*_test.go) plays training pods, Nodes,
// Redis, the API server and changes of the leader, and holds what goes, what stays and
// what is remembered against a model of its own. Providers with a mistake are kept
// beside it, and it has to find each of them.
package property
