package aws

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseID(t *testing.T) {
	for id, want := range map[string]struct {
		name string
		kind kind
	}{
		"aws:///us-east-1a/i-0123456789abcdef0":              {"i-0123456789abcdef0", kindMachine},
		"aws:///us-west-2-lax-1a/i-0123abcd":                 {"i-0123abcd", kindMachine},
		"aws:///us-east-1a/i-placeholder-t4-1":               {"t4", kindPlaceholder},
		"aws:///us-east-1a/i-placeholder-t4-2-3":             {"t4-2", kindPlaceholder},
		"aws:///template/i-template-t4":                      {"t4", kindTemplate},
		"":                                                   {},
		"aws:///us-east-1a":                                  {},
		"aws:///us-east-1a/":                                 {},
		"aws:///us-east-1a/i-xyz":                            {},
		"aws:///us-east-1a/i-0123456789abcdef0/more":         {},
		"aws:///us-east-1a/i-placeholder-t4":                 {},
		"aws://us-east-1a/i-0123456789abcdef0":               {},
		"AWS:///us-east-1a/i-0123456789abcdef0":              {},
		"aws:///us-east-1a/i-0123456789ABCDEF0":              {},
		"aws:///vpc-1/0a1b/fargate-ip-10-0-0-1.ec2.internal": {},
		"gce://p/z/i-0123456789abcdef0":                      {},
		"aws:///us-east-1a/i-0123456789abcdef0\n":            {},
	} {
		name, k := parseID(id)
		require.Equal(t, want.kind, k, "%q", id)
		require.Equal(t, want.name, name, "%q", id)
	}
	require.Equal(t, "aws:///us-east-1a/i-placeholder-t4-7", placeholderID("us-east-1a", "t4", 7))
}

// A process that starts a second after another has numbers beyond all that the
// other can have given out, up to a million.
func TestFirstNumber(t *testing.T) {
	start := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	require.Equal(t, uint64(1_000_000), firstNumber(start.Add(time.Second))-firstNumber(start))
	require.Zero(t, firstNumber(time.Time{}))
}
