package config

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestClash(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"127.0.0.1:1", "127.0.0.1:1", true},
		{"127.0.0.1:1", "127.0.0.1:01", true},
		{"127.0.0.1:1", "127.0.0.1:2", false},
		{"127.0.0.1:1", "10.0.0.1:1", false},
		{"127.0.0.1:1", "127.0.0.2:1", false},
		{"127.0.0.1:1", ":1", true},
		{"[::]:1", "10.0.0.1:1", true},
		{"0.0.0.0:1", "10.0.0.1:1", true},
		{"localhost:1", "127.0.0.1:1", true},
		{"[::1]:1", "localhost:1", true},
		{"localhost:1", "10.0.0.1:1", false},
		{"10.0.0.1:1", "localhost:1", false},
		{"127.0.0.1:0", "127.0.0.1:0", false},
		{"127.0.0.1", "127.0.0.1", false},
		{":1", "1", false},
		{"1", ":1", false},
		{":1", "a b:1", false},
		{"a b:1", ":1", false},
	} {
		assert.Equal(t, tt.want, clash(tt.a, tt.b), "%s %s", tt.a, tt.b)
	}
}

func TestExposed(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:1": false, "127.9.9.9:1": false, "[::1]:1": false, "localhost:1": false, "nonsense": false,
		":1": true, "0.0.0.0:1": true, "[::]:1": true, "10.0.0.1:1": true, "localhost.example:1": true,
	} {
		assert.Equal(t, want, exposed(address), address)
	}
}

func TestIsHTTP(t *testing.T) {
	for endpoint, want := range map[string]bool{
		"http://127.0.0.1:5000": true, "https://aws.example/x": true,
		"http://": false, "ftp://aws.example": false, "aws.example:5000": false, "http://a b": false, "//aws.example": false,
	} {
		assert.Equal(t, want, isHTTP(endpoint), endpoint)
	}
}

func TestDiscoveryTags(t *testing.T) {
	find := func(k, v string) int {
		return len((&Config{Cloud: Cloud{AWS: &AWS{Discovery: &Discovery{Tags: map[string]string{k: v}}}}}).fieldProblems("cloud.aws.discovery.tags"))
	}
	assert.Zero(t, find(strings.Repeat("ä", 128), strings.Repeat("ö", 256)))
	assert.Equal(t, 1, find(strings.Repeat("k", 129), ""))
	assert.Equal(t, 1, find("k", strings.Repeat("v", 257)))
	assert.Equal(t, 1, find("", ""))
}

func (c *Config) fieldProblems(field string) []Problem {
	var found []Problem
	for _, p := range c.problems().sorted() {
		if within(p.Field, field) {
			found = append(found, p)
		}
	}
	return found
}

func TestRulesOfOneCloudKeepStillWithoutOneCloud(t *testing.T) {
	for _, cloud := range []string{"{}", "{simulated: {capacity: {x: 1}}, aws: {region: nowhere}}"} {
		text := strings.Replace(onAWS, "{aws: {region: eu-west-1}}", cloud, 1)
		found := problemsOf(t, strings.NewReplacer("redis: {addresses: [\"redis:6379\"]}", "redis: {embedded: {}}", ", autoScalingGroup: train-t4", "").Replace(text))
		assert.Len(t, found, 1, "%v", found)
		assert.Equal(t, "cloud", found[0].Field)
	}
}

func TestQuotasAreJudgedByTheGroupsThereAre(t *testing.T) {
	const quota = "quotas: [{name: a, resource: nvidia.com/gpu, limit: 3, nodeGroups: [b]}]\n"
	for name, tt := range map[string]struct{ text, want string }{
		"no groups":                    {head + quota + "nodeGroups: []\n", "nodeGroups"},
		"no group that it covers":      {minimalHead + quota, "quotas[0].nodeGroups[0]"},
		"groups that AWS knows":        {discovered + strings.Replace(quota, "name: a", "name: A", 1), "quotas[0].name"},
		"beside groups that AWS knows": {onAWSToo + strings.Replace(quota, "name: a", "name: A", 1), "quotas[0].name"},
	} {
		t.Run(name, func(t *testing.T) {
			found := problemsOf(t, tt.text)
			assert.Len(t, found, 1, "%v", found)
			assert.Equal(t, tt.want, found[0].Field)
		})
	}
}

// discovered has all its groups from AWS, onAWSToo one more in the file.
var (
	onAWSToo      = strings.Replace(onAWS, "eu-west-1", "eu-west-1, discovery: {tags: {a: b}}", 1)
	discovered, _ = strings.CutSuffix(onAWSToo, onAWS[strings.Index(onAWS, "nodeGroups:"):])
)

// The limits on counts are inclusive.
func TestAsMuchAsThereMayBe(t *testing.T) {
	groups := make([]string, maxGroups)
	for i := range groups {
		groups[i] = "- {id: g" + strconv.Itoa(i) + ", maxSize: 1, capacity: {cpu: 1, memory: 1Gi}}\n"
	}
	patterns := `"g*", "g?*", "g??*", "g???*", "g????*", "g*0", "g*1", "g*2", "g*3", "g*4"`
	quotas := make([]string, maxQuotas)
	for i := range quotas {
		quotas[i] = "- {name: q" + strconv.Itoa(i) + ", resource: nodes, limit: 1, nodeGroups: [" + patterns + "]}\n"
	}
	c := parsed(t, head+"nodeGroups:\n"+strings.Join(groups, "")+"quotas:\n"+strings.Join(quotas, ""))
	assert.Len(t, c.NodeGroups, maxGroups)
	assert.Len(t, c.Quotas, maxQuotas)
	assert.Len(t, c.Quotas[0].NodeGroups, maxPatterns)
}
