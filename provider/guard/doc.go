// Package guard is the controller that keeps Cluster Autoscaler away from nodes
// whose training pods are not clear, asks trainers for checkpoints, and keeps
// the record of who trains where.
//
// Cluster Autoscaler evicts pods long before it asks the provider to delete a
// node, so refusing the deletion comes too late. It does heed one annotation,
// cluster-autoscaler.kubernetes.io/scale-down-disabled, at the start of each
// loop. The guard sets it from the moment a trainer starts until its work is
// safe, next to a marker that says whose it is: a person's annotation is never
// touched.
package guard
