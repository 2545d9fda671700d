package aws

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestShippedPolicy: deploy/aws/iam-policy.json allows exactly Permissions, and
// binds what changes something to tagged groups.
func TestShippedPolicy(t *testing.T) {
	text, err := os.ReadFile("../../deploy/aws/iam-policy.json")
	require.NoError(t, err)
	var policy struct {
		Statement []struct {
			Effect    string
			Action    []string
			Condition map[string]any
		}
	}
	require.NoError(t, json.Unmarshal(text, &policy))
	allowed := map[string]bool{} // whether it is bound to a tag, by action
	for _, s := range policy.Statement {
		require.Equal(t, "Allow", s.Effect)
		for _, action := range s.Action {
			require.NotContains(t, allowed, action)
			allowed[action] = len(s.Condition) > 0
		}
	}
	needed := map[string]bool{}
	for _, p := range Permissions {
		needed[p.Action] = p.Changes
	}
	require.Equal(t, needed, allowed)
}
