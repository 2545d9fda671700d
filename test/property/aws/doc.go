// Package aws drives the whole provider on AWS through random sequences: two node groups
// under one quota and one surge, a model of Cluster Autoscaler, and the Stub of awstest. AWS
// ends and replaces machines, other clients change the desired capacity, answers lag and
// are lost, deadlines pass, processes are killed.
//
// Each sequence runs in a synctest bubble, so that pauses, deadlines and repetitions of the
// SDK are those of production and cost no time. After each effect on AWS and each step the
// rules of rules_test.go must hold; they look at AWS itself and at the answers of
// the calls, never inside the provider. Providers with a mistake are kept in
// mistakes_test.go, and the search has to find each of them.
package aws
