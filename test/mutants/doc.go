// Package mutants holds the tests of the wiring to what they promise: it leaves one
// safeguard out at a time, by an overlay of the source, and fails when the tests of
// that package still pass. `make mutants` runs it.
package mutants
