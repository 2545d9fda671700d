package main

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCP04ValidateRefusesDollarsWithoutAPrice: the limit would be one of a guess.
func TestCP04ValidateRefusesDollarsWithoutAPrice(t *testing.T) {
	for name, row := range map[string]struct {
		cloud, group, want string // want is empty when the file is good
	}{
		"a type that is not on the list": {
			"aws: {region: eu-west-1}", "autoScalingGroup: a, instanceType: p5e.48xlarge",
			"quota spend is in dollars, and the price of node group h200 is not known (p5e.48xlarge is not on the price list for eu-west-1); write its hourlyPrice",
		},
		"a region that is not on the list": {
			"aws: {region: eu-west-1}", "autoScalingGroup: a, instanceType: p5.48xlarge", "(p5.48xlarge is not on the price list for eu-west-1)",
		},
		"a simulated group":                   {"simulated: {}", "instanceType: p5.48xlarge", "the price of node group h200 is not known; write its hourlyPrice"},
		"a price in the file":                 {"simulated: {}", "hourlyPrice: 63", ""},
		"a price on the list":                 {"aws: {region: us-east-1}", "autoScalingGroup: a, instanceType: p5.48xlarge", ""},
		"a type that only doctor can look up": {"aws: {region: us-east-1}", "autoScalingGroup: a", ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir() + "/config.yaml"
			require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `apiVersion: gpu-node-provider.io/v1
kind: ProviderConfig
cloud: {%s}
kubernetes: {kubeconfig: not-used}
redis: {addresses: ["127.0.0.1:1"]}
quotas: [{name: spend, resource: usd-per-hour, limit: 70}]
nodeGroups: [{id: h200, maxSize: 4, labels: {accelerator: x}, capacity: {cpu: 192, memory: 2Ti, nvidia.com/gpu: 8}, %s}]
`, row.cloud, row.group), 0o600))
			p := start(t, "validate", "--offline", "--config", path)
			if row.want == "" {
				require.Zero(t, p.wait(t), "%s", p.stderr.String())
				return
			}
			require.NotZero(t, p.wait(t))
			require.Contains(t, p.stderr.String(), row.want)
		})
	}
}
