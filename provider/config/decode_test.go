package config

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
)

func problemsOf(t *testing.T, text string) []Problem {
	t.Helper()
	_, err := Parse([]byte(text))
	var e *Error
	require.ErrorAs(t, err, &e)
	return e.Problems
}

func TestErrorNamesFileLineAndField(t *testing.T) {
	p := Problem{Field: "kind", Line: 2, Message: "m"}
	for _, tt := range []struct {
		err  Error
		want string
	}{
		{Error{"f", []Problem{p}}, "f:2: kind: m"},
		{Error{"", []Problem{p}}, "line 2: kind: m"},
		{Error{"f", []Problem{{Field: "kind", Message: "m"}}}, "f: kind: m"},
		{Error{"", []Problem{{Message: "m"}}}, "m"},
		{Error{"f", []Problem{p, {Message: "n"}}}, "f:2: kind: m\nf: n"},
	} {
		assert.EqualError(t, &tt.err, tt.want)
	}
}

func TestValidateWithoutAFile(t *testing.T) {
	c := parsed(t, onAWS)
	require.NoError(t, c.Validate())

	c.Kubernetes = nil
	require.EqualError(t, c.Validate(), "kubernetes: is missing; nodes on AWS are held through the Kubernetes API; only the simulated cloud runs without one")
	assert.ErrorContains(t, (&Config{}).Validate(), "apiVersion: is missing; write gpu-node-provider.io/v1\n")
}

// A value that does not decode is reported once, and not again by rules that see its
// default.
func TestValueThatCannotBeReadHasOneProblem(t *testing.T) {
	for name, edit := range map[string][]string{
		"size":                   {"maxSize: 4", "maxSize: lots"},
		"minimum":                {"maxSize: 4", "maxSize: 4\n    minSize: lots"},
		"retired":                {"maxSize: 4", "retired: maybe"},
		"id":                     {"id: t4", "id: [t4]", "nodeGroups:\n", "quotas: [{name: a, resource: nodes, limit: 3, nodeGroups: [t4]}]\nnodeGroups:\n"},
		"id and its capacity":    {"id: t4", "id: [t4]", "simulated: {}", "simulated: {capacity: {t4: 1}}"},
		"group":                  {"  - id: t4\n    maxSize: 4\n    labels: {accelerator: nvidia-tesla-t4}\n    capacity: {cpu: 4, memory: 16Gi, nvidia.com/gpu: 1}\n", "  - t4\n"},
		"GPU":                    {"nvidia.com/gpu: 1", "nvidia.com/gpu: one"},
		"memory":                 {"16Gi", "16GB"},
		"memory and reserved":    {"capacity: {cpu: 4, memory: 16Gi", "reserved: {memory: 1Gi}\n    capacity: {cpu: 4, memory: 16GB"},
		"groups":                 {"nodeGroups:\n  - id: t4\n    maxSize: 4\n    labels: {accelerator: nvidia-tesla-t4}\n    capacity: {cpu: 4, memory: 16Gi, nvidia.com/gpu: 1}\n", "nodeGroups: t4\nquotas: [{name: a, resource: nodes, limit: 3, nodeGroups: [t4]}]\n", "simulated: {}", "simulated: {capacity: {t4: 1}}"},
		"labels":                 {"labels: {accelerator: nvidia-tesla-t4}", "labels: [a]"},
		"cloud":                  {"simulated: {}", "simulated: aws"},
		"cloud without a value":  {"simulated: {}", "simulated:"},
		"redis":                  {"embedded: {}", "addresses: redis:6379"},
		"several redis":          {"embedded: {}", "addresses: [\"a:1\", \"b:1\"]\n  cluster: maybe"},
		"insecure":               {"redis:\n", "server: {address: \":1\", insecure: maybe}\nredis:\n"},
		"quota's resource":       {"nodeGroups:\n", "quotas: [{name: a, resource: {}, limit: 3.5}]\nnodeGroups:\n"},
		"quota's limit":          {"nodeGroups:\n", "quotas: [{name: a, resource: nodes, limit: many}]\nnodeGroups:\n"},
		"quota's groups":         {"nodeGroups:\n", "quotas: [{name: a, resource: nvidia.com/gpu, limit: 3, nodeGroups: t4}]\nnodeGroups:\n"},
		"kubernetes of no value": {"redis:\n", "kubernetes:\nredis:\n"},
	} {
		t.Run(name, func(t *testing.T) {
			found := problemsOf(t, edited(t, edit...))
			assert.Len(t, found, 1, "%v", found)
		})
	}
}

func TestOtherProblemsAreReportedBesideUnreadableValues(t *testing.T) {
	found := problemsOf(t, edited(t, "maxSize: 4", "maxSize: 4\n    os: [linux]\n    arch: x86\n    size: 4"))
	require.Len(t, found, 3)
	assert.Equal(t, "nodeGroups[0].os", found[0].Field)
	assert.Equal(t, "nodeGroups[0].arch", found[1].Field)
	assert.Equal(t, "nodeGroups[0].size", found[2].Field)
}

func TestLinesOfMissingFieldsAreThoseAroundThem(t *testing.T) {
	found := problemsOf(t, strings.Replace(onAWS, "region: eu-west-1", "", 1))
	assert.Equal(t, []Problem{{Field: "cloud.aws.region", Line: 3, Message: "is missing; write one such as eu-west-1"}}, found)
}

func TestEveryProblemIsOneShortLine(t *testing.T) {
	long := strings.Repeat(`\n`, 500)
	for _, text := range []string{
		edited(t, "id: t4", `id: "`+long+`"`),
		edited(t, "cpu: 4", `cpu: 4, "`+long+`": 1`),
		edited(t, "cpu: 4", `cpu: "`+long+`"`),
		edited(t, "nodeGroups:", `"`+long+"\": 1\nnodeGroups:"),
		edited(t, "t4}", `t4, a: "`+long+`"}`),
		edited(t, "t4}", `t4, a: !<`+strings.Repeat("a", 500)+`> b}`),
	} {
		for _, p := range problemsOf(t, text) {
			line := p.render("file")
			assert.NotContains(t, line, "\n")
			assert.Less(t, len(line), 500)
		}
	}
}

func TestWithin(t *testing.T) {
	for _, tt := range []struct {
		path, outer string
		want        bool
	}{
		{"a.b", "a", true},
		{"a[0]", "a", true},
		{"a", "a", true},
		{"a[0].b", "a[0]", true},
		{"ab", "a", false},
		{"a", "a.b", false},
		{"b.a", "a", false},
		{"a[10]", "a[1]", false},
		{".a", "a", false},
	} {
		assert.Equal(t, tt.want, within(tt.path, tt.outer), "%s in %s", tt.path, tt.outer)
	}
}

func TestAdviceForUnknownKeys(t *testing.T) {
	fields := map[string]int{"address": 0, "db": 0, "tls": 0}
	const all = "the known keys are address, db, tls"
	for name, want := range map[string]string{
		"addressx": "did you mean address?", "ADDRESS": "did you mean address?", "addressed": "did you mean address?", "addr": all,
		"d": all, "dbs": "did you mean db?", "tl": all, "tsl": all, "": all, "größe": all,
		strings.Repeat("address", 10): all,
	} {
		assert.Equal(t, want, suggestion{name, fields}.String(), name)
	}
}

// The decoder panics on a field of an unsupported type, so there must be none.
func TestDecoderKnowsEveryFieldOfConfig(t *testing.T) {
	d := newDecoder(&problems{})
	seen := map[reflect.Type]bool{}
	var visit func(path string, rt reflect.Type)
	visit = func(path string, rt reflect.Type) {
		if seen[rt] || isText(rt) {
			return
		}
		seen[rt] = true
		switch rt.Kind() {
		case reflect.Struct:
			for name, i := range d.fieldsOf(rt) {
				assert.NotEmpty(t, name, "%s has a field without a name", path)
				visit(path+"."+name, rt.Field(i).Type)
			}
		case reflect.Map:
			assert.Equal(t, reflect.String, rt.Key().Kind(), path)
			visit(path, rt.Elem())
		case reflect.Pointer, reflect.Slice:
			visit(path, rt.Elem())
		default:
			assert.Contains(t, []reflect.Kind{reflect.String, reflect.Bool, reflect.Int, reflect.Float64}, rt.Kind(), path)
		}
	}
	visit("config", reflect.TypeFor[Config]())
	assert.True(t, seen[reflect.TypeFor[Surge]()])
	assert.True(t, isText(reflect.TypeFor[resource.Quantity]()))
}

func TestErrorIsFoundBehindAWrap(t *testing.T) {
	_, err := Load("testdata/kind.bad.yaml")
	var e *Error
	require.True(t, errors.As(err, &e))
	assert.Equal(t, "testdata/kind.bad.yaml", e.Path)
	assert.Equal(t, "kind", e.Problems[0].Field)
	assert.Equal(t, 2, e.Problems[0].Line)
}
