// Package e2e plays the stories of the whole system on the testbed, each in a
// cluster of its own, several at a time: `make e2e`. CLUSTER_AUTOSCALER names
// a real Cluster Autoscaler, its binary or a checkout that is built; without it the
// stand-in takes its place. What a story has written, logs included, is left in .cache/e2e.
package e2e
