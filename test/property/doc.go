// Package property drives the provider and the simulated cloud through random
// sequences of calls, boots, failures, reloads and restarts, on a clock that
// only moves when told to, and checks after every step what must always hold.
//
// It looks at the answers of the calls and at the cloud itself, never at the
// provider's insides.
package property
