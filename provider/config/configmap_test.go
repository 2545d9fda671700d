package config

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const nodeGroupFile = `apiVersion: gpu-node-provider.io/v1
kind: ProviderConfig
cloud: {simulated: {}}
redis: {embedded: {}}
nodeGroups:
- {id: t4, maxSize: 1, capacity: {cpu: 4, memory: 16Gi}}
`

// block returns text as the literal block of a key of a ConfigMap's data.
func block(key, text string) string {
	return "  " + key + ": |\n    " + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n    ") + "\n"
}

func configMapOf(name, data string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: gpu}\ndata:\n" + data
}

func TestConfigMaps(t *testing.T) {
	const deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: provider}\n"
	valid := configMapOf("provider", block("config.yaml", nodeGroupFile))
	for name, c := range map[string]struct {
		manifest string
		maps     []string
		files    []string
	}{
		"a ConfigMap":              {valid, []string{"gpu/provider"}, []string{"ConfigMap gpu/provider, key config.yaml"}},
		"among others in a stream": {"---\n" + deployment + "---\n# empty\n---\n" + valid, []string{"gpu/provider"}, []string{"ConfigMap gpu/provider, key config.yaml"}},
		"two keys, and one of others": {
			configMapOf("provider", block("a.yaml", nodeGroupFile)+block("notes", "kind: Notes")+block("b.yaml", nodeGroupFile)),
			[]string{"gpu/provider"},
			[]string{"ConfigMap gpu/provider, key a.yaml", "ConfigMap gpu/provider, key b.yaml"},
		},
		"two ConfigMaps": {
			valid + "---\n" + configMapOf("other", block("x", nodeGroupFile)),
			[]string{"gpu/provider", "gpu/other"},
			[]string{"ConfigMap gpu/provider, key config.yaml", "ConfigMap gpu/other, key x"},
		},
		"without a namespace": {
			"{apiVersion: v1, kind: ConfigMap, metadata: {name: n}, data: {c: \"kind: ProviderConfig\"}}", []string{"n"}, []string{"ConfigMap n, key c"},
		},
		"known by its apiVersion":   {configMapOf("m", block("c", "apiVersion: gpu-node-provider.io/v2\nkind: Provider")), []string{"gpu/m"}, []string{"ConfigMap gpu/m, key c"}},
		"with a syntax error":       {configMapOf("m", block("c", "kind: ProviderConfig\n\tx: 1")), []string{"gpu/m"}, []string{"ConfigMap gpu/m, key c"}},
		"by an alias":               {"x: &x |\n  kind: ProviderConfig\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {c: *x}\n", []string{"m"}, []string{"ConfigMap m, key c"}},
		"without one":               {configMapOf("m", block("c", "a: b")+block("d", "")+block("e", "- a")+"  f: [1]\n"), []string{"gpu/m"}, nil},
		"without data":              {"{apiVersion: v1, kind: ConfigMap}", []string{"without a name"}, nil},
		"a node group file":         {nodeGroupFile, nil, nil},
		"another kind":              {deployment, nil, nil},
		"a ConfigMap of other kind": {strings.Replace(valid, "v1", "example.com/v1", 1), nil, nil},
		"a list":                    {"- apiVersion: v1\n- kind: ConfigMap\n", nil, nil},
		"nothing":                   {"", nil, nil},
		"no YAML":                   {"a: b: c", nil, nil},
		"binary":                    {"\x00\xff", nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			maps, err := ConfigMaps("manifest.yaml", []byte(c.manifest))
			require.NoError(t, err)
			var names, files []string
			for _, m := range maps {
				names = append(names, m.Name)
				for _, f := range m.Files {
					files = append(files, f.String())
				}
			}
			require.Equal(t, c.maps, names)
			require.Equal(t, c.files, files)
		})
	}
}

func TestConfigMapsOfABrokenStream(t *testing.T) {
	_, err := ConfigMaps("manifest.yaml", []byte(configMapOf("m", block("c", nodeGroupFile))+"---\na: b: c\n"))
	require.ErrorContains(t, err, "manifest.yaml:13: is not YAML")
}

// The lines of problems are those that an editor shows.
func TestEmbeddedFileParse(t *testing.T) {
	parse := func(manifest string) (*Config, error) {
		maps, err := ConfigMaps("m.yaml", []byte(manifest))
		require.NoError(t, err)
		return maps[0].Files[0].Parse()
	}
	c, err := parse("a: b\n---\n" + configMapOf("m", block("c", nodeGroupFile)))
	require.NoError(t, err)
	require.Equal(t, "t4", c.NodeGroups[0].ID)

	const keys = "the known keys are apiVersion, checkpoint, cloud, gpuLabel, kind, kubernetes, nodeGroups, quotas, redis, server"
	wrong := nodeGroupFile + "gpuLabel: accelerator\nsize: 1\ngpuLabel: gpu\n"
	_, err = parse("a: b\n---\n" + configMapOf("m", block("c", wrong)))
	require.EqualError(t, err, "m.yaml:15: size: unknown key; "+keys+"\nm.yaml:16: gpuLabel: is set twice, first on line 14; keep one")

	_, err = parse(configMapOf("m", "  c: \""+strings.ReplaceAll(wrong, "\n", "\\n")+"\"\n"))
	require.EqualError(t, err, "m.yaml (ConfigMap gpu/m, key c):8: size: unknown key; "+keys+"\nm.yaml (ConfigMap gpu/m, key c):9: gpuLabel: is set twice, first on line 7; keep one")
}
