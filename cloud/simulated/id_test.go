package simulated

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseID(t *testing.T) {
	long := strings.Repeat("a", 57)
	for id, want := range map[string]struct {
		group string
		kind  kind
	}{
		"simulated:///t4/t4-bcdf2":                        {"t4", kindMachine},
		"simulated:///a-b/a-b-bcdf2":                      {"a-b", kindMachine},
		"simulated:///t4/placeholder-bcdf2ghjk4":          {"t4", kindPlaceholder},
		"simulated:///t4/template":                        {"t4", kindTemplate},
		"simulated:///placeholder/placeholder-bcdf2":      {"placeholder", kindMachine},
		"simulated:///placeholder/placeholder-bcdf2ghjk4": {"placeholder", kindPlaceholder},
		"simulated:///template/template-bcdf2":            {"template", kindMachine},
		"simulated:///" + long + "/" + long + "-bcdf2":    {long, kindMachine},
		"simulated:///" + long + "a/" + long + "a-bcdf2":  {},
		"":                                      {},
		"simulated":                             {},
		"simulated:///":                         {},
		"simulated:///t4":                       {},
		"simulated:///t4/":                      {},
		"simulated:///t4/t4":                    {},
		"simulated:///t4/t4-bcdf":               {},
		"simulated:///t4/t4-bcdf22":             {},
		"simulated:///t4/t4-bcdfa":              {}, // a is not in the alphabet
		"simulated:///t4/t4-bcd-f":              {},
		"simulated:///t4/t4-BCDF2":              {},
		"simulated:///t4/a-bcdf2":               {},
		"simulated:///a/a-b-bcdf2":              {},
		"simulated:///t4/placeholder-bcdf2":     {},
		"simulated:///t4/template/":             {},
		"simulated:///T4/T4-bcdf2":              {},
		"simulated:////template":                {},
		"simulated://t4/t4-bcdf2":               {},
		" simulated:///t4/t4-bcdf2":             {},
		"simulated:///t4/t4-bcdf2 ":             {},
		"simulated:///t4/t4-bcdf2\n":            {},
		"aws:///eu-west-1a/i-0123456789abcdef0": {},
		"kind://docker/kind/kind-worker":        {},
	} {
		group, _, k := parseID(id)
		require.Equal(t, want.kind, k, "%q", id)
		require.Equal(t, want.group, group, "%q", id)
		require.Equal(t, want.kind != kindForeign, (&Cloud{}).Recognizes(id), "%q", id)
	}
}

// FuzzParseID checks that an id is taken apart only if it can be put together
// again to the same bytes.
func FuzzParseID(f *testing.F) {
	for _, seed := range []string{"", "simulated:///t4/t4-bcdf2", "simulated:///t4/placeholder-bcdf2ghjk4", "simulated:///t4/template", "simulated:////", "\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, id string) {
		group, rest, k := parseID(id)
		switch k {
		case kindForeign:
			require.Empty(t, group)
		case kindMachine:
			require.Equal(t, id, machineID(group, rest))
			require.LessOrEqual(t, len(machineName(group, rest)), 63)
		case kindPlaceholder:
			require.Equal(t, id, placeholderID(group, rest[:serialLen], rest[serialLen:]))
		case kindTemplate:
			require.Equal(t, id, (&Cloud{}).TemplateID(group))
		}
	})
}
