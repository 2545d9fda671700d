// Package testbed puts the whole system of deploy/ on one machine, with real
// parts: a control plane with KEDA, Redis, the provider on the simulated cloud,
// Cluster Autoscaler or its stand-in, and trainers that are real processes. The
// end-to-end tests and the demo tell their stories on it.
//
// The manifests are those of deploy/, with addresses put in and waiting times
// cut, and every part has the rights that deploy/manifests gives it.
package testbed
