package config

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestRestartNeeded(t *testing.T) {
	const long = "/a/path/that/is/far/longer/than/what/a/message/shows/of/a/value/"
	for _, tt := range []struct {
		name          string
		before, after []string
		want          []string
	}{
		{"nothing", nil, nil, nil},
		{"what a reload may change", nil, []string{
			"maxSize: 4", "maxSize: 5\n    minSize: 1",
			"redis:\n", "quotas: [{name: a, resource: nodes, limit: 3}]\ncheckpoint: {mode: observe, maxAge: 1m, askOnTaints: []}\nredis:\n",
		}, nil},
		{"a default that is written out", nil, []string{"redis:\n", "server: {address: 127.0.0.1:8086}\nredis:\n"}, nil},
		{
			"server", nil,
			[]string{"redis:\n", "server: {address: 127.0.0.1:1, tls: {certFile: a, keyFile: b, clientCAFile: c, allowedClients: [x]}}\nredis:\n"},
			[]string{
				`server.address: "127.0.0.1:8086" → "127.0.0.1:1"`,
				`server.tls.allowedClients[0]: (unset) → "x"`,
				`server.tls.certFile: (unset) → "a"`,
				`server.tls.clientCAFile: (unset) → "c"`,
				`server.tls.keyFile: (unset) → "b"`,
			},
		},
		{
			"kubernetes",
			[]string{"redis:\n", "kubernetes: {}\nredis:\n"},
			nil,
			[]string{
				`kubernetes.kubeconfig: "" → (unset)`,
				`kubernetes.leaderElection: true → (unset)`,
				`kubernetes.namespace: "gpu-node-provider" → (unset)`,
			},
		},
		{
			"cloud", nil,
			[]string{"simulated: {}", "simulated: {bootDelay: 5m, capacity: {t4: 3}, launchErrors: {rate: 0.5}}"},
			[]string{
				`cloud.simulated.bootDelay: "30s" → "5m"`,
				`cloud.simulated.capacity[t4]: (unset) → 3`,
				`cloud.simulated.launchErrors.rate: 0 → 0.5`,
			},
		},
		{
			"a difference far into a value",
			[]string{"simulated: {}", "simulated: {stateFile: " + long + "a}"},
			[]string{"simulated: {}", "simulated: {stateFile: " + long + "b}"},
			[]string{`cloud.simulated.stateFile: "` + long + `a" → "` + long + `b"`},
		},
		{
			"A-16 gpuLabel, which Cluster Autoscaler caches for its lifetime", nil,
			[]string{"redis:\n", "gpuLabel: gpu\nredis:\n", "{accelerator:", "{gpu:"},
			[]string{`gpuLabel: "accelerator" → "gpu"`},
		},
		{
			"what records hang on", nil,
			[]string{"redis:\n", "checkpoint: {podSelector: a=b, keyPrefix: c}\nredis:\n"},
			[]string{
				`checkpoint.keyPrefix: "checkpoint" → "c"`,
				`checkpoint.podSelector: "gpu-node-provider.io/checkpoint=required" → "a=b"`,
			},
		},
		{
			"redis",
			[]string{"embedded: {}", "addresses: [\"a:1\"]"},
			[]string{"embedded: {}", "addresses: [\"a:1\", \"b:1\"]\n  cluster: true\n  tls: {}"},
			[]string{
				`redis.addresses[1]: (unset) → "b:1"`,
				`redis.cluster: (unset) → true`,
				`redis.tls: (unset) → {}`,
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before, after := parsed(t, edited(t, tt.before...)), parsed(t, edited(t, tt.after...))
			assert.Equal(t, tt.want, before.RestartNeeded(after))
		})
	}
}

func TestRestartNeededForAnotherCloud(t *testing.T) {
	changes := strings.Join(parsed(t, minimal(t)).RestartNeeded(parsed(t, onAWS)), "\n")
	assert.Contains(t, changes, `cloud.aws.region: (unset) → "eu-west-1"`)
	assert.Contains(t, changes, `cloud.simulated.bootDelay: "30s" → (unset)`)
}
