package conformance

import "testing"

// A row is a public bug report that bears on the provider, by its number in
// shared/cases.md. Here is the part of each that shows on the wire; where a
// report and the design differ, the design decides, and the row says so.
type row struct {
	name string
	run  func(*testing.T)
}

// TestCases has no row for what has no part on the wire: A-09 (claims of dynamic
// resources: the doctor), A-20 (the chart), E-02 and E-06 (doctor, gate), E-05
// (Nodes that flap).
func TestCases(t *testing.T) {
	needsOwnServer(t)
	parallel(t)
	for _, rows := range [][]row{contractCases, tlsCases, templateCases, quotaCases} {
		for _, r := range rows {
			t.Run(r.name, func(t *testing.T) {
				parallel(t)
				r.run(t)
			})
		}
	}
}
