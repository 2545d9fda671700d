//go:build mutants

package mutants

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// mutant is a change of one file that a test of a package has to notice.
type mutant struct {
	file     string // from the root of the module
	old, new string
	run      string // the tests, a regular expression
	in       string // their package, from the root of the module
}

const (
	cmd   = "cmd/gpu-node-provider"
	guard = "provider/guard"
)

var mutants = map[string]mutant{
	"the gate is not wired": {
		cmd + "/leader.go", "o.Cluster, o.Gate = r.kube.view, r.kube.guard.Gate", "o.Cluster = r.kube.view", "CK20TrainingNode", cmd,
	},
	"the gate drops its error": {
		guard + "/gate.go", "return held, err\n", "return held, nil\n", "CK20TrainingNode", cmd,
	},
	"the provider drops the gate's error": {
		"provider/gate.go", `return nil, fmt.Errorf("%w: %w", errGateUnavailable, err)`, "_ = fmt.Sprint(err)\n\t\treturn held, nil", "CK20TrainingNode", cmd,
	},
	"the gate drops what it holds": {
		guard + "/gate.go", "return held, err\n", "return nil, err\n", "CK20TrainingNode", cmd,
	},
	"the provider drops what the gate holds": {
		"provider/gate.go", "held[h.Instance] = h", "_ = h", "CK20TrainingNode", cmd,
	},
	"the record is not loaded": {
		cmd + "/leader.go", "if err := r.loadRecord(ctx); err != nil {", "if err := ctx.Err(); err != nil {", "CK20Record", cmd,
	},
	"the port opens before the first pass": {
		cmd + "/leader.go", `r.progress.await(ctx, "not every node has been checked yet", r.kube.guard.FirstPass)`, "ctx.Err()", "CK20Port", cmd,
	},
	"calls finish although the leadership is lost": {
		cmd + "/leader.go", "listener.StopNow()\n\t\t\treturn", "listener.Stop()\n\t\t\treturn", "CK20Lost", cmd,
	},
	"the cause of a stop is not handed on": {
		cmd + "/replica.go", "cancel(cause)", "cancel(nil)", "CK20Lost", cmd,
	},
	"a lost Lease is no failure": {
		cmd + "/election.go", "\treturn errLeadershipLost\n}", "\treturn nil\n}", "LeaderThatCannotRenewEnds", cmd,
	},
	"the webhook allows when the pod cannot be read": {
		guard + "/webhook.go", "if err != nil {\n\t\treturn \"\", err\n\t}\n\tif h.Policy()", "if err != nil {\n\t\treturn \"\", nil\n\t}\n\tif h.Policy()", "CK20Eviction", guard,
	},
	"the webhook allows when the node's pods cannot be read": {
		guard + "/webhook.go", "evicted, err := h.together(ctx, pod, node)\n\tif err != nil {\n\t\treturn \"\", err", "evicted, err := h.together(ctx, pod, node)\n\tif err != nil {\n\t\treturn \"\", nil", "CK20Eviction", guard,
	},
	"the webhook allows on a node that it does not know": {
		guard + "/webhook.go", `return "", fmt.Errorf("node %s is not in the cache yet", pod.Spec.NodeName)`, `return fmt.Sprint(), nil`, "CK20Eviction", guard,
	},
	"a node to be deleted is not taken for one that leaves": {
		guard + "/webhook.go", "if taint.Key == cluster.ToBeDeleted {\n\t\t\treturn true", "if taint.Key == cluster.ToBeDeleted {\n\t\t\treturn false", "CK20ToBeDeleted", guard,
	},
}

func TestMutantsAreCaught(t *testing.T) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	for name, m := range mutants {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(root, m.file)
			source, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, 1, strings.Count(string(source), m.old), "%s does not have this once any more, so nothing would be left out: %s", m.file, m.old)
			changed := filepath.Join(t.TempDir(), filepath.Base(m.file))
			require.NoError(t, os.WriteFile(changed, []byte(strings.Replace(string(source), m.old, m.new, 1)), 0o600))
			overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{path: changed}})
			require.NoError(t, err)
			list := filepath.Join(t.TempDir(), "overlay.json")
			require.NoError(t, os.WriteFile(list, overlay, 0o600))

			command := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "-overlay", list, "-count", "1", "-run", m.run, "./"+m.in)
			command.Dir = root
			said, err := command.CombinedOutput()
			require.Error(t, err, "no test fails:\n%s", said)
			require.Contains(t, string(said), "--- FAIL: Test", "it fails in another way")
		})
	}
}
