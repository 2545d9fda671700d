// Package proto is the wire that Cluster Autoscaler speaks with an external cloud provider: externalgrpc.proto, written
// so that every release from 1.24 to 1.37 is understood, and the Go code generated from it by `make generate`.
//
// It holds no code of its own. How a legacy field and its successor are read and written together is the business of
// package provider.
package proto
