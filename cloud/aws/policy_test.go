package aws

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCP02ShippedPolicy: deploy/aws/iam-policy.json allows exactly Permissions, and
// binds what changes something to the groups with a tag that names the cluster.
func TestCP02ShippedPolicy(t *testing.T) {
	text, err := os.ReadFile("../../deploy/aws/iam-policy.json")
	require.NoError(t, err)
	var policy struct {
		Statement []struct {
			Effect    string
			Action    []string
			Condition map[string]map[string]string
		}
	}
	require.NoError(t, json.Unmarshal(text, &policy))
	allowed := map[string][]string{} // tags of which an action needs one, by action
	for _, s := range policy.Statement {
		require.Equal(t, "Allow", s.Effect)
		bound := slices.Collect(maps.Keys(s.Condition["Null"]))
		require.LessOrEqual(t, len(bound), 1, "conditions of one statement are joined by and")
		require.Len(t, s.Condition, len(bound), "no other operator")
		for _, action := range s.Action {
			allowed[action] = append(allowed[action], bound...)
		}
	}
	needed := map[string][]string{}
	for _, p := range Permissions {
		needed[p.Action] = nil
		if p.Changes {
			needed[p.Action] = []string{"aws:ResourceTag/" + autoscalerTag + "CLUSTER_NAME", "aws:ResourceTag/" + clusterTag + "CLUSTER_NAME"}
		}
	}
	require.Equal(t, needed, allowed)
}
