package config

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// hostileLimit separates the usual second at most from an endless run.
const hostileLimit = 60 * time.Second

const head = "apiVersion: gpu-node-provider.io/v1\nkind: ProviderConfig\ncloud: {simulated: {}}\nredis: {embedded: {}}\n"

const tooManyValues = "holds more than 250000 values once its aliases are written out; use fewer aliases"

// numbered repeats format with a running number until the size is reached.
func numbered(format string, size int) string {
	var b strings.Builder
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

func mergeChain() string {
	var b strings.Builder
	b.WriteString("- &g0 {id: a}\n")
	for i := 1; b.Len() < 900_000; i++ {
		fmt.Fprintf(&b, "- &g%d {<<: *g%d, k%d: 1}\n", i, i-1, i)
	}
	return b.String()
}

func TestHostileFilesEndSoonWithOneClearError(t *testing.T) {
	for name, tt := range map[string]struct{ file, want string }{
		"alias bomb in an unknown key": {
			"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d]\n",
			"a: unknown key",
		},
		"alias bomb of groups": {
			head + "nodeGroups:\n- &a {id: a, labels: {" + numbered("l%d: 1,", 400_000) + "}}\n" + strings.Repeat("- *a\n", 100_000),
			tooManyValues,
		},
		"merge bomb": {
			head + "nodeGroups:\n- {id: a, labels: &l {" + numbered("l%d: 1,", 400_000) + "}}\n" + strings.Repeat("- {labels: {<<: *l}}\n", 25_000),
			tooManyValues,
		},
		"list that holds itself":          {head + "nodeGroups: &a [*a]\n", "nodeGroups[0]: is a list, not a mapping"},
		"mapping that merges itself":      {head + "nodeGroups:\n- &a {<<: *a}\n", tooManyValues},
		"mapping that merges itself more": {head + "nodeGroups:\n- &a {<<: [*a, *a, *a]}\n", tooManyValues},
		"chain of merges":                 {head + "nodeGroups:\n" + mergeChain(), "unknown key"},
		"too many groups": {
			head + "nodeGroups:\n- &a {id: a}\n" + strings.Repeat("- *a\n", 5_000),
			"nodeGroups: has 5001 groups; Cluster Autoscaler calls the provider for each in every loop, so write at most 5000",
		},
		"too many quotas": {
			minimalHead + "quotas:\n- &q {name: q}\n" + strings.Repeat("- *q\n", 100),
			"quotas: has 101 quotas; write at most 100",
		},
		"too many patterns": {
			minimalHead + "quotas: [{name: q, resource: nodes, limit: 1, nodeGroups: [" + numbered(`"%d*",`, 55) + "]}]\n",
			"quotas[0].nodeGroups: has 11 patterns; write at most 10",
		},
		"many patterns of many groups": {
			head + "nodeGroups:\n" + numbered("- {id: g%d, maxSize: 1, capacity: {cpu: 1, memory: 1Gi}}\n", 280_000) +
				"quotas:\n- &q {name: q, resource: nodes, limit: 3, nodeGroups: [" + numbered(`"*a*a*a*%d",`, 100) + "]}\n" + strings.Repeat("- *q\n", 99),
			"matches no node group",
		},
		"many unknown keys":     {head + numbered("%dkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk: 1\n", 1_000_000), "more problems; correct these first"},
		"one key many times":    {head + strings.Repeat("kind: a\n", 100_000), "more problems; correct these first"},
		"long key":              {head + strings.Repeat("k", 1_000) + ": 1\n", "…: unknown key"},
		"long value":            {head + "gpuLabel: " + strings.Repeat("k", 900_000), "…" + " is not a label key"},
		"long quantity":         {head + "nodeGroups: [{id: a, capacity: {cpu: " + strings.Repeat("9", 900_000) + "}}]", "is not a quantity"},
		"long pattern":          {minimalHead + "quotas: [{name: q, resource: nodes, limit: 1, nodeGroups: [\"" + strings.Repeat("*a", 400_000) + "\"]}]\n", "matches no node group"},
		"long selector":         {head + "checkpoint: {podSelector: \"" + strings.Repeat("a,", 100_000) + "\"}\n", "is not a label selector"},
		"deep lists":            {strings.Repeat("[", 1_000_000), "is not YAML: exceeded max depth of 10000"},
		"deep mappings":         {strings.Repeat("{a: ", 250_000), "is not YAML: exceeded max depth of 10000"},
		"many comments":         {strings.Repeat("#\n", 500_000), "is empty"},
		"many documents":        {strings.Repeat("---\n", 250_000), "is empty"},
		"quote without an end":  {"a: \"" + strings.Repeat("\n", 1_000_000), "is not YAML: found unexpected end of stream"},
		"brackets as addresses": {head + "server: {address: \"" + strings.Repeat("[", 900_000) + "\"}\n", "is not host:port"},
	} {
		t.Run(name, func(t *testing.T) {
			require.LessOrEqual(t, len(tt.file), maxFileSize, "the case is to be refused for something else than its size")
			start := time.Now()
			_, err := Parse([]byte(tt.file))
			assert.Less(t, time.Since(start), hostileLimit)
			require.Error(t, err)
			report := err.Error()
			require.True(t, strings.Contains(report, tt.want), report[:min(len(report), 500)])
			assert.Less(t, len(report), maxFileSize)
		})
	}
}

const minimalHead = head + "nodeGroups: [{id: t4, maxSize: 1, capacity: {cpu: 4, memory: 16Gi}}]\n"
