// Command bench measures what Cluster Autoscaler calls thousands of times a
// loop, beside the least that a gRPC server can do for it: a handler on a bare
// grpc-go server that returns a constant message of the same size. Both run in
// processes of their own and are measured in turn, so that a machine which
// speeds up or slows down does so for both; the median of the rounds counts.
//
// Each of the other measurements, a file each, has what stands beside it too: the
// gate and the refresh from AWS the same calls made raw, the guard and the memory
// of a cluster a number. -only measures one of them.
//
// It fails when a ratio is missed, and prints what has no limit: memory, and
// the time of a swap of the snapshot.
package main
