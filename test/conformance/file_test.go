package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// file is a node group file. Its mappings are lines of "key: value", with
// values in YAML's flow style; what a test does not say has a default.
type file struct {
	server    []string
	simulated []string // the cloud; by default machines run and go at once
	quotas    []string // each a whole mapping
	groups    []string // each a whole mapping, see group; one group t4 when there is none
	top       []string // other sections
}

// settings are lines with those of defaults that are not among them. A line
// without a value takes the default away.
func settings(defaults []string, lines ...string) []string {
	said := map[string]bool{}
	var all []string
	for _, line := range lines {
		key, value, _ := strings.Cut(line, ":")
		said[key] = true
		if strings.TrimSpace(value) != "" {
			all = append(all, line)
		}
	}
	for _, line := range defaults {
		if key, _, _ := strings.Cut(line, ":"); !said[key] {
			all = append(all, line)
		}
	}
	return all
}

func mapping(lines []string) string { return "{" + strings.Join(lines, ", ") + "}" }

// group is a node group like that of the recorded calls, changed by lines.
func group(id string, lines ...string) string {
	return mapping(settings([]string{
		"id: " + id,
		"minSize: 0",
		"maxSize: 4",
		"instanceType: g4dn.xlarge",
		"labels: {accelerator: nvidia-tesla-t4}",
		"taints: [{key: nvidia.com/gpu, value: present, effect: NoSchedule}]",
		"capacity: {cpu: 4, memory: 16Gi, ephemeral-storage: 100Gi, nvidia.com/gpu: 1}",
		"hourlyPrice: 0.526",
	}, lines...))
}

// text is the file. dir is where its state goes.
func (f file) text(dir string) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("apiVersion: gpu-node-provider.io/v1\nkind: ProviderConfig")
	line("server: %s", mapping(settings([]string{`address: "127.0.0.1:0"`, `httpAddress: "127.0.0.1:0"`}, f.server...)))
	line("cloud: {simulated: %s}", mapping(settings([]string{
		fmt.Sprintf("stateFile: %q", statePath(dir)), "launchDelay: 0s", "bootDelay: 0s", "devicePluginDelay: 0s", "terminateDelay: 0s",
	}, f.simulated...)))
	line(`redis: {embedded: {address: "127.0.0.1:0"}}`)
	for _, section := range f.top {
		line("%s", section)
	}
	if len(f.quotas) > 0 {
		line("quotas:")
		for _, q := range f.quotas {
			line("  - %s", q)
		}
	}
	groups := f.groups
	if len(groups) == 0 {
		groups = []string{group("t4")}
	}
	line("nodeGroups:")
	for _, g := range groups {
		line("  - %s", g)
	}
	return b.String()
}

func statePath(dir string) string  { return filepath.Join(dir, "state.json") }
func configPath(dir string) string { return filepath.Join(dir, "node-groups.yaml") }

// write puts the file in dir, replacing it as a whole the way editors and
// ConfigMaps do.
func (f file) write(t *testing.T, dir string) {
	t.Helper()
	writeWhole(t, configPath(dir), f.text(dir))
}

func writeWhole(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
	require.NoError(t, os.Rename(path+".new", path))
}
