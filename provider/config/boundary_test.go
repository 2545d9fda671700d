package config

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// The extreme valid values; testdata/*.bad.yaml cover the values beyond.
func TestBoundariesAreAllowed(t *testing.T) {
	group := func(field string) []string { return []string{"maxSize: 4", "maxSize: 4\n    " + field} }
	top := func(section string) []string { return []string{"redis:\n", section + "\nredis:\n"} }
	simulated := func(fields string) []string { return []string{"simulated: {}", "simulated: {" + fields + "}"} }
	quota := func(fields string) []string { return top("quotas: [{name: a, " + fields + "}]") }
	for name, edit := range map[string][]string{
		"ports":                      top("server: {address: 127.0.0.1:0, httpAddress: 127.0.0.1:65535}"),
		"two free ports":             top("server: {address: 127.0.0.1:0, httpAddress: 127.0.0.1:0}"),
		"same port, other addresses": top("server: {address: 127.0.0.1:8086, httpAddress: 127.0.0.2:8086}"),
		"loopback by name":           top("server: {address: \"localhost:8086\"}"),
		"loopback of IPv6":           top("server: {address: \"[::1]:8086\", httpAddress: \"[::1]:8087\"}"),
		"plaintext asked for":        top("server: {address: \":8086\", insecure: true}"),
		"insecure on loopback":       top("server: {insecure: true}"),
		"HTTP everywhere":            top("server: {httpAddress: \":8087\"}"),
		"any client of the CA":       top("server: {address: \":1\", tls: {certFile: a, keyFile: b, clientCAFile: c}}"),
		"longest prefix":             top("checkpoint: {keyPrefix: " + strings.Repeat("k", 128) + "}"),
		"prefix with a hash tag":     top("checkpoint: {keyPrefix: \"{jobs}:größe\"}"),
		"shortest durations":         top("checkpoint: {maxAge: 1ns, abandonAfter: 1ns, askAfter: 0s, askEvery: 1ns}"),
		"no delays":                  simulated("launchDelay: 0s, bootDelay: 0s, devicePluginDelay: 0s, terminateDelay: 0s, api: {latency: 0s}"),
		"shares":                     simulated("launchErrors: {rate: 1}, api: {errorRate: 1, lostAnswerRate: 0}"),
		"no machines":                simulated("capacity: {t4: 0}"),
		"longest id":                 {"id: t4", "id: " + strings.Repeat("a", 57)},
		"no nodes":                   {"maxSize: 4", "maxSize: 0"},
		"fixed size":                 group("minSize: 4"),
		"largest group":              {"maxSize: 4", "maxSize: 7000"},
		"retired, with a maximum":    group("retired: true"),
		"retired, without":           {"maxSize: 4", "retired: true"},
		"free":                       group("hourlyPrice: 0"),
		"dearest":                    group("hourlyPrice: 10000"),
		"surge":                      group("surge: {max: 1, window: 1ns}"),
		"thresholds":                 group("scaleDown: {utilizationThreshold: 0, gpuUtilizationThreshold: 1, unneededTime: 0s, unreadyTime: 0s}"),
		"windows on arm64":           group("os: windows\n    arch: arm64"),
		"taint's every effect":       group("taints: [{key: a, effect: NoSchedule}, {key: a, effect: NoExecute}, {key: a, effect: PreferNoSchedule}]"),
		"taint until it is set up":   group("taints: [{key: node.cloudprovider.kubernetes.io/uninitialized, value: \"true\", effect: NoSchedule}]"),
		"labels that agree": {
			"    labels: {accelerator: nvidia-tesla-t4}\n",
			"    instanceType: a\n    region: b\n    zones: [c]\n    labels: {accelerator: x, beta.kubernetes.io/os: linux, beta.kubernetes.io/arch: amd64, beta.kubernetes.io/instance-type: a, failure-domain.beta.kubernetes.io/region: b, failure-domain.beta.kubernetes.io/zone: c}\n",
		},
		"labels of nothing else":    {"nvidia-tesla-t4}", "nvidia-tesla-t4, topology.kubernetes.io/zone: a, topology.kubernetes.io/region: b, node.kubernetes.io/instance-type: c}"},
		"all of it reserved":        group("reserved: {cpu: 4, memory: 16Gi, pods: 110, ephemeral-storage: 0}"),
		"least capacity":            {"cpu: 4, memory: 16Gi, nvidia.com/gpu: 1", "cpu: 1m, memory: 1Mi, pods: 1, ephemeral-storage: 0, hugepages-1Gi: 0, nvidia.com/gpu: 1"},
		"most capacity":             {"cpu: 4, memory: 16Gi, nvidia.com/gpu: 1", "cpu: 10k, memory: 1Pi, pods: 10k, ephemeral-storage: 1Pi, hugepages-1Gi: 1Pi, nvidia.com/gpu: 100M"},
		"no more allowed":           quota("resource: nodes, limit: 0"),
		"largest quota":             quota("resource: usd-per-hour, limit: 1G, surge: {max: 1G, window: 1ns}"),
		"parts of a dollar":         quota("resource: usd-per-hour, limit: 0.5, surge: {max: 0.001, window: 1h}"),
		"quota of a device":         quota("resource: nvidia.com/gpu, limit: 1, nodeGroups: [\"t?\"]"),
		"quota of an id and a glob": quota("resource: vcpu, limit: 1, nodeGroups: [t4, \"*\"]"),
	} {
		t.Run(name, func(t *testing.T) {
			parsed(t, edited(t, edit...))
		})
	}
}

func TestEveryLaunchCodeIsAllowed(t *testing.T) {
	for _, code := range LaunchCodes() {
		c := parsed(t, edited(t, "simulated: {}", "simulated: {launchErrors: {code: "+code+"}}"))
		assert.Equal(t, code, c.Cloud.Simulated.LaunchErrors.Code)
	}
}

func TestBoundariesOnAWSAreAllowed(t *testing.T) {
	for name, edit := range map[string][2]string{
		"endpoint with TLS":        {"region: eu-west-1", "region: eu-west-1, endpoint: \"https://aws.example\""},
		"ignored protection":       {"region: eu-west-1", "region: eu-west-1, scaleInProtection: ignore"},
		"long tags":                {"region: eu-west-1", "region: eu-west-1, discovery: {tags: {" + strings.Repeat("k", 128) + ": " + strings.Repeat("v", 256) + "}}"},
		"partition of its own":     {"eu-west-1", "cn-northwest-1"},
		"local zone":               {"maxSize: 4", "maxSize: 4, zones: [eu-west-1-lon-1a]"},
		"longest name":             {"train-t4", strings.Repeat("n", 255)},
		"region said twice":        {"maxSize: 4", "maxSize: 4, region: eu-west-1"},
		"GPUs of the type, shared": {"maxSize: 4", "maxSize: 4, capacity: {nvidia.com/gpu: 4}"},
		"reserved of the type":     {"maxSize: 4", "maxSize: 4, reserved: {cpu: 100m}"},
		"service quota":            {"nodeGroups:", "quotas: [{name: a, resource: vcpu, awsServiceQuota: L-DB2E81BA}]\nnodeGroups:"},
		"device of unknown types":  {"nodeGroups:", "quotas: [{name: a, resource: amd.com/gpu, limit: 3}]\nnodeGroups:"},
		"one server of Sentinel":   {"\"redis:6379\"]", "\"redis:1\"], masterName: m, db: 15"},
		"one server of a cluster":  {"\"redis:6379\"]", "\"redis:65535\"], cluster: true"},
		"redis with both files":    {"\"redis:6379\"]", "\"redis_1:6379\"], tls: {certFile: a, keyFile: b}"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Contains(t, onAWS, edit[0])
			parsed(t, strings.Replace(onAWS, edit[0], edit[1], 1))
		})
	}
}
