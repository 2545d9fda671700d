// Package aws holds the provider on AWS to the public bug reports that bear on
// it: provider.Server over cloud/aws, asked by a real gRPC client, with a
// stand-in for AWS behind real HTTP. What the Backend owes by itself is tested in
// cloud/aws; here is what Cluster Autoscaler gets to see of it, and what AWS.
//
// Tests are named after the ids of test/README.md, which has them all in one table.
//
// Besides the cases: what a refresh interval costs (TestCallsOfARefreshInterval),
// faults of every call of a write (TestFaultsOf…), readings that lag
// (TestAnswersFromBeforeAWrite), and the IAM policy: no test makes an action arrive
// that aws.Permissions does not name, and when all tests have run, each that it
// names has arrived (TestMain).
//
// It does not know Kubernetes: checkpoints, Events and cordons are tested with the
// packages that do them.
package aws
