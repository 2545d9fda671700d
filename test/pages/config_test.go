package pages

import (
	"encoding/json"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"gpu-node-provider/provider/config"
)

const fieldsPage = "provider/config/README.md"

// sections are the headings of the page, and the path of the fields below each.
var sections = map[string]string{
	"Top level": "", "server": "server.", "kubernetes": "kubernetes.", "cloud.aws": "cloud.aws.", "cloud.simulated": "cloud.simulated.",
	"redis": "redis.", "checkpoint": "checkpoint.", "quotas[]": "quotas[].", "nodeGroups[]": "nodeGroups[].",
}

// inPage are the rows of the page by the path of their field.
func inPage(t *testing.T) map[string]row {
	t.Helper()
	fields := map[string]row{}
	for _, r := range pages(t)[fieldsPage].rows {
		prefix, ok := sections[r.heading]
		if !ok || r.header[0] != "field" {
			continue
		}
		for _, name := range codes(r.cells[0]) {
			fields[prefix+name] = r
		}
	}
	return fields
}

func TestEveryFieldIsInThePage(t *testing.T) {
	documented, exists := inPage(t), map[string]bool{}
	for _, field := range fieldsOf(reflect.TypeFor[config.Config](), "") {
		exists[field] = true
		_, whole := documented[field]
		assert.True(t, whole, "%s has no row for %s", fieldsPage, field)
	}
	for field := range documented {
		section := slices.ContainsFunc(sorted(exists), func(f string) bool { return strings.HasPrefix(strings.ReplaceAll(f, "[]", ""), field+".") })
		assert.True(t, exists[field] || section, "%s has a row for %s, which does not exist", fieldsPage, field)
	}
}

// fieldsOf are the paths of all fields that hold a value.
func fieldsOf(of reflect.Type, prefix string) []string {
	var all []string
	for i := range of.NumField() {
		field := of.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		ofType, at := field.Type, prefix+name
		if ofType.Kind() == reflect.Pointer {
			ofType = ofType.Elem()
		}
		if ofType.Kind() == reflect.Slice && ofType.Elem().Kind() == reflect.Struct && ofType.Elem() != reflect.TypeFor[corev1.Taint]() {
			ofType, at = ofType.Elem(), at+"[]"
		}
		leaf := ofType.Kind() != reflect.Struct || ofType == reflect.TypeFor[config.Duration]() || ofType == reflect.TypeFor[resource.Quantity]()
		if leaf {
			all = append(all, at)
			continue
		}
		all = append(all, fieldsOf(ofType, at+".")...)
	}
	return all
}

// The shortest files, whose every other value is a default.
const (
	shortestSimulated = `
apiVersion: gpu-node-provider.io/v1
kind: ProviderConfig
kubernetes: {}
cloud: {simulated: {}}
redis: {embedded: {}}
quotas: [{name: nodes, resource: nodes, limit: 1}]
nodeGroups: [{id: cpu, maxSize: 1, capacity: {cpu: 1, memory: 1Gi}}]
`
	shortestAWS = `
apiVersion: gpu-node-provider.io/v1
kind: ProviderConfig
cloud: {aws: {region: eu-west-1}}
redis: {addresses: ["redis:6379"]}
nodeGroups: [{id: cpu, maxSize: 1, autoScalingGroup: cpu}]
`
)

func TestDefaultsInThePage(t *testing.T) {
	values := map[string]string{}
	for _, file := range []string{shortestAWS, shortestSimulated} {
		c, err := config.Parse([]byte(file))
		require.NoError(t, err)
		raw, err := json.Marshal(c)
		require.NoError(t, err)
		var whole any
		require.NoError(t, json.Unmarshal(raw, &whole))
		collect("", whole, values)
	}
	compared := 0
	for field, r := range inPage(t) {
		said := codes(r.cells[2])
		if len(said) != 1 || r.cells[2] != "`"+said[0]+"`" {
			continue // none, required, or a sentence
		}
		if value, ok := values[field]; ok {
			compared++
			assert.Equal(t, value, said[0], "the default of %s", field)
			continue
		}
		assert.Contains(t, []string{"false", "0", `""`}, said[0], "%s has no default in the code", field)
	}
	assert.Greater(t, compared, 20)
}

// collect flattens a file to paths as the page writes them.
func collect(at string, value any, into map[string]string) {
	switch value := value.(type) {
	case map[string]any:
		for name, child := range value {
			collect(strings.TrimPrefix(at+"."+name, "."), child, into)
		}
	case []any:
		for _, child := range value {
			if text, ok := child.(string); ok && len(value) == 1 {
				into[at] = `["` + text + `"]`
				continue
			}
			collect(at+"[]", child, into)
		}
	default:
		text, _ := json.Marshal(value) // it comes from JSON
		into[at] = strings.Trim(string(text), `"`)
		if value == "" {
			into[at] = `""`
		}
	}
}

// Fields that other pages name in full exist.
func TestFieldsThatPagesNameExist(t *testing.T) {
	documented := inPage(t)
	tops := map[string]bool{"server": true, "kubernetes": true, "cloud": true, "checkpoint": true, "nodeGroups": true, "quotas": true}
	named := 0
	for _, p := range pages(t) {
		for _, span := range p.spans {
			name := strings.TrimRight(strings.SplitN(span, ":", 2)[0], " ")
			top, _, dotted := strings.Cut(name, ".")
			if !dotted || !tops[top] || strings.ContainsAny(name, " /()") || slices.Contains([]string{".py", ".go", ".yaml", ".crt", ".key"}, path.Ext(name)) {
				continue
			}
			if strings.HasPrefix(name, "checkpoint.") && p.path == "deploy/train-worker/README.md" && documented[name].heading == "" {
				continue // functions of checkpoint.py
			}
			named++
			_, field := documented[name]
			_, section := documented[strings.SplitN(name, ".", 2)[0]]
			known := field || section && slices.ContainsFunc(keys(documented), func(f string) bool { return strings.HasPrefix(f, name+".") })
			assert.True(t, known, "%s names the field %s", p.path, name)
		}
	}
	assert.Greater(t, named, 5)
}

func keys(m map[string]row) []string {
	var all []string
	for key := range m {
		all = append(all, key)
	}
	return all
}

// Every block of YAML in the pages is well formed, and every whole node group file is valid.
func TestYAMLInThePages(t *testing.T) {
	whole := 0
	for _, p := range pages(t) {
		for _, b := range p.blocks {
			if b.info != "yaml" {
				continue
			}
			var anything any
			require.NoError(t, yaml.Unmarshal([]byte(b.text), &anything), "%s:%d", p.path, b.line)
			if isNodeGroupFile([]byte(b.text)) {
				whole++
				_, err := config.Parse([]byte(b.text))
				assert.NoError(t, err, "%s:%d", p.path, b.line)
			}
		}
	}
	assert.NotZero(t, whole)
}

// Every node group file that is shipped is valid, also those in ConfigMaps, and the page has a command that shows it.
func TestShippedNodeGroupFiles(t *testing.T) {
	found := 0
	for name := range files(t) {
		if !strings.HasPrefix(name, "deploy/") || path.Ext(name) != ".yaml" {
			continue
		}
		for _, document := range strings.Split(read(t, name), "\n---\n") {
			var configMap struct{ Data map[string]string }
			_ = yaml.Unmarshal([]byte(document), &configMap) // CloudFormation has tags of its own
			for _, text := range append([]string{document}, values(configMap.Data)...) {
				if !isNodeGroupFile([]byte(text)) {
					continue
				}
				found++
				_, err := config.Parse([]byte(text))
				assert.NoError(t, err, name)
				assert.Contains(t, pages(t)[fieldsPage].source, "validate --offline --config "+name)
			}
		}
	}
	assert.GreaterOrEqual(t, found, 3)
}

func values(m map[string]string) []string {
	var all []string
	for _, value := range m {
		all = append(all, value)
	}
	return all
}

func isNodeGroupFile(text []byte) bool {
	var head struct{ Kind string }
	return yaml.Unmarshal(text, &head) == nil && head.Kind == config.Kind
}
