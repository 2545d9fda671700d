// Package checkpoint knows when a training pod's work is safe: the keys in Redis
// by which trainers acknowledge checkpoints and are asked for them, the rules by
// which an acknowledgement counts, the record of what each instance has held,
// and the gate that lets no instance go before its training pods are clear.
//
// It writes nothing to Nodes and Pods; package guard does.
package checkpoint
