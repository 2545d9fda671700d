package conformance

import "testing"

// A row is a public bug report that bears on the provider, by its id in
// test/README.md. It tests the part that shows on the wire. Where the provider
// differs from what the report asks for, the row's comment gives the reason.
type row struct {
	name string
	run  func(*testing.T)
}

// TestCases has no row for cases without a part on the wire.
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
