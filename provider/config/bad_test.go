package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	badSuffix  = ".bad.yaml"
	goodSuffix = ".good.yaml"
)

// badFiles lists one invalid file per rule, with its error after the file's name.
// TestProblemsAllAtOnce covers the file with several problems.
var badFiles = []struct{ name, want string }{
	{"api-version", `:1: apiVersion: "gpu-node-provider.io/v2" is not a supported version; write gpu-node-provider.io/v1`},
	{"aws-cluster-enabled", `:4: cloud.aws.cluster: "enabled" is not the name of a cluster in tags; write NAME of the tag k8s.io/cluster-autoscaler/NAME or kubernetes.io/cluster/NAME`},
	{"aws-cluster-key", `:4: cloud.aws.cluster: "kubernetes.io/cluster/train" is not the name of a cluster in tags; write NAME of the tag k8s.io/cluster-autoscaler/NAME or kubernetes.io/cluster/NAME`},
	{"aws-discovery-no-tags", `:4: cloud.aws.discovery.tags: is empty, which would discover every Auto Scaling Group of the account; write the tags that yours carry`},
	{"aws-discovery-tag", `:4: cloud.aws.discovery.tags[""]: is not a tag; use up to 128 letters for the key and 256 for the value`},
	{"aws-endpoint", `:4: cloud.aws.endpoint: "localhost:5000" is not a URL; write one such as http://127.0.0.1:5000, or remove it to use AWS itself`},
	{"aws-refresh-interval", `:4: cloud.aws.refreshInterval: 0s is not a positive duration; write one such as 30s`},
	{"aws-region-missing", `:4: cloud.aws.region: is missing; write one such as eu-west-1`},
	{"aws-region-zone", `:4: cloud.aws.region: "eu-west-1a" is not a region; write one such as eu-west-1`},
	{"aws-scale-in-protection", `:4: cloud.aws.scaleInProtection: "yes" is not a scale-in protection mode; write manage, require or ignore`},
	{"checkpoint-abandon-after", `:7: checkpoint.abandonAfter: 0s is not a positive duration; write one such as 30s`},
	{"checkpoint-ask-after", `:7: checkpoint.askAfter: -1s is negative; write 0s or more`},
	{"checkpoint-ask-every", `:7: checkpoint.askEvery: 0s is not a positive duration; write one such as 30s`},
	{"checkpoint-key-prefix-control", `:7: checkpoint.keyPrefix: "check\tpoint" cannot be the prefix of Redis keys; use 1 to 128 printable characters without spaces`},
	{"checkpoint-key-prefix-empty", `:7: checkpoint.keyPrefix: "" cannot be the prefix of Redis keys; use 1 to 128 printable characters without spaces`},
	{"checkpoint-key-prefix-space", `:7: checkpoint.keyPrefix: "check point" cannot be the prefix of Redis keys; use 1 to 128 printable characters without spaces`},
	{"checkpoint-max-age", `:7: checkpoint.maxAge: 0s is not a positive duration; write one such as 30s`},
	{"checkpoint-mode", `:7: checkpoint.mode: "warn" is not a mode; write enforce or observe`},
	{"checkpoint-selector", `:7: checkpoint.podSelector: "a in (" is not a label selector; write one such as gpu-node-provider.io/checkpoint=required`},
	{"checkpoint-selector-empty", `:7: checkpoint.podSelector: "" selects every pod, and every node would be held; write one such as gpu-node-provider.io/checkpoint=required`},
	{"checkpoint-taint", `:7: checkpoint.askOnTaints[0]: "spot/itn/now" is not a taint's key; use up to 63 letters, digits, '-', '_' and '.', optionally after a DNS name and '/'`},
	{"checkpoint-taint-twice", `:7: checkpoint.askOnTaints[1]: "spot" is listed twice, first as checkpoint.askOnTaints[0]; keep one`},
	{"cloud-none", `:3: cloud: names no cloud; write aws or simulated below it`},
	{"cloud-two", `:3: cloud: names two clouds; keep aws or simulated`},
	{"form-empty", `: is empty; write at least apiVersion, kind, cloud, redis and nodeGroups`},
	{"form-list", `:1: is a list, not a mapping; begin with apiVersion: gpu-node-provider.io/v1`},
	{"form-not-utf8", `: is not UTF-8; save it as UTF-8 text`},
	{"form-nul", `: contains a NUL byte; save it as UTF-8 text`},
	{"form-only-comments", `: is empty; write at least apiVersion, kind, cloud, redis and nodeGroups`},
	{"form-second-document-broken", `:13: is not YAML: did not find expected node content; check the indentation, colons and quotes`},
	{"form-syntax", `:3: is not YAML: could not find expected ':'; check the indentation, colons and quotes`},
	{"form-text", `:1: is "ProviderConfig", not a mapping; begin with apiVersion: gpu-node-provider.io/v1`},
	{"form-two-documents", `:12: contains a second YAML document; write one document per file`},
	{"form-unclosed", `:3: is not YAML: did not find expected ',' or '}'; check the indentation, colons and quotes`},
	{"form-unknown-alias", `: is not YAML: unknown anchor 'four' referenced; check the indentation, colons and quotes`},
	{"form-utf16", `: contains a NUL byte; save it as UTF-8 text`},
	{"gpu-label-everywhere", `:7: gpuLabel: "kubernetes.io/arch" is also on nodes without a GPU, and Cluster Autoscaler would never treat those as ready; choose a label of the GPU nodes alone`},
	{"gpu-label-key", `:7: gpuLabel: "gpu label" is not a label key; use up to 63 letters, digits, '-', '_' and '.', optionally after a DNS name and '/'`},
	{"gpu-label-ours", `:7: gpuLabel: "gpu-node-provider.io/node-group" is also on nodes without a GPU, and Cluster Autoscaler would never treat those as ready; choose a label of the GPU nodes alone`},
	{"group-arch", `:12: nodeGroups[0].arch: "x86_64" is not an architecture of nodes; write amd64 or arm64`},
	{"group-asg", `:10: nodeGroups[0].autoScalingGroup: "train\tt4" is not the name of an Auto Scaling Group; copy it from AWS`},
	{"group-asg-missing", `:8: nodeGroups[0].autoScalingGroup: is missing; write the name of the Auto Scaling Group that holds the nodes`},
	{"group-asg-twice", `:14: nodeGroups[1].autoScalingGroup: "train-t4" is already used by nodeGroups[0]; choose another`},
	{"group-capacity-cpu", `:11: nodeGroups[0].capacity[cpu]: 0 is out of bounds; write cores from 1m to 10k`},
	{"group-capacity-gpu-fraction", `:11: nodeGroups[0].capacity[nvidia.com/gpu]: 1500m is out of bounds; write a whole number from 0 to 100M`},
	{"group-capacity-gpu-huge", `:11: nodeGroups[0].capacity[nvidia.com/gpu]: 1G is out of bounds; write a whole number from 0 to 100M`},
	{"group-capacity-gpu-negative", `:11: nodeGroups[0].capacity[example.com/fpga]: -1 is out of bounds; write a whole number from 0 to 100M`},
	{"group-capacity-memory", `:11: nodeGroups[0].capacity[memory]: 16 is out of bounds; write bytes with a unit, such as 16Gi, from 1Mi to 1Pi`},
	{"group-capacity-memory-fraction", `:11: nodeGroups[0].capacity[memory]: 16777217500m is out of bounds; write bytes with a unit, such as 16Gi, from 1Mi to 1Pi`},
	{"group-capacity-missing", `:8: nodeGroups[0].capacity: has no cpu and memory; write what a node has, since the simulated cloud has no instance types to read it from`},
	{"group-capacity-no-memory", `:11: nodeGroups[0].capacity: has no memory; write what a node has, since the simulated cloud has no instance types to read it from`},
	{"group-capacity-pods", `:11: nodeGroups[0].capacity[pods]: 0 is out of bounds; write a whole number from 1 to 10k`},
	{"group-capacity-storage", `:11: nodeGroups[0].capacity[ephemeral-storage]: -1 is out of bounds; write bytes with a unit, such as 100Gi, from 0 to 1Pi`},
	{"group-capacity-unknown", `:11: nodeGroups[0].capacity[gpu]: is not a resource of nodes; write cpu, memory, pods, ephemeral-storage, hugepages-<size>, or a device's full name such as nvidia.com/gpu`},
	{"group-gpu-label-empty", `:10: nodeGroups[0].labels[accelerator]: is empty; write the GPU's model, by which Cluster Autoscaler counts GPUs`},
	{"group-gpu-label-mig", `:10: nodeGroups[0].labels[accelerator]: is the GPU label, but capacity has none of the GPUs that Cluster Autoscaler knows (nvidia.com/gpu, habana.ai/gaudi, gpu.intel.com/xe, amd.com/gpu, microsoft.com/directx), so it would never treat a node as ready; remove the label, or add the GPU to capacity`},
	{"group-gpu-label-missing", `:8: nodeGroups[0].labels: lack the GPU label, so Cluster Autoscaler would treat a node as ready before its GPU appears, and request another node; write accelerator: and the GPU's model`},
	{"group-gpu-label-without-gpu", `:10: nodeGroups[0].labels[accelerator]: is the GPU label, but capacity has none of the GPUs that Cluster Autoscaler knows (nvidia.com/gpu, habana.ai/gaudi, gpu.intel.com/xe, amd.com/gpu, microsoft.com/directx), so it would never treat a node as ready; remove the label, or add the GPU to capacity`},
	{"group-gpu-label-zero-gpus", `:10: nodeGroups[0].labels[accelerator]: is the GPU label, but capacity has none of the GPUs that Cluster Autoscaler knows (nvidia.com/gpu, habana.ai/gaudi, gpu.intel.com/xe, amd.com/gpu, microsoft.com/directx), so it would never treat a node as ready; remove the label, or add the GPU to capacity`},
	{"group-id", `:8: nodeGroups[0].id: "T4_spot" is not a valid node group id; use up to 63 lowercase letters, digits and '-', a letter or digit first and last`},
	{"group-id-long", `:8: nodeGroups[0].id: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"… is not a valid node group id; use up to 63 lowercase letters, digits and '-', a letter or digit first and last`},
	{"group-id-missing", `:8: nodeGroups[0].id: is missing; use up to 63 lowercase letters, digits and '-', a letter or digit first and last`},
	{"group-id-simulated", `:8: nodeGroups[0].id: has 58 characters; the simulated cloud names its nodes after it, so use at most 57`},
	{"group-id-twice", `:12: nodeGroups[1].id: "t4" is already used by nodeGroups[0]; choose another`},
	{"group-instance-type", `:12: nodeGroups[0].instanceType: "g4dn/xlarge" cannot be the value of the instance type label; use up to 63 letters, digits, '-', '_' and '.', a letter or digit first and last`},
	{"group-label-arch", `:10: nodeGroups[0].labels[kubernetes.io/arch]: "arm64" contradicts arch, which is amd64; remove one of the two`},
	{"group-label-hostname", `:10: nodeGroups[0].labels[kubernetes.io/hostname]: is set on each node by the provider; remove it`},
	{"group-label-instance-type", `:10: nodeGroups[0].labels[node.kubernetes.io/instance-type]: "g5.xlarge" contradicts instanceType, which is g4dn.xlarge; remove one of the two`},
	{"group-label-key", `:10: nodeGroups[0].labels["team name"]: is not a label key; use up to 63 letters, digits, '-', '_' and '.', optionally after a DNS name and '/'`},
	{"group-label-os", `:10: nodeGroups[0].labels[kubernetes.io/os]: "windows" contradicts os, which is linux; remove one of the two`},
	{"group-label-ours", `:10: nodeGroups[0].labels[gpu-node-provider.io/node-group]: is set on each node by the provider; remove it`},
	{"group-label-region", `:10: nodeGroups[0].labels[topology.kubernetes.io/region]: "b" contradicts region, which is a; remove one of the two`},
	{"group-label-value", `:10: nodeGroups[0].labels[team]: "a b" is not a label value; use up to 63 letters, digits, '-', '_' and '.', a letter or digit first and last`},
	{"group-label-zone", `:10: nodeGroups[0].labels[topology.kubernetes.io/zone]: "a" contradicts zones, which is a and b; remove one of the two`},
	{"group-max-below-min", `:9: nodeGroups[0].maxSize: 4 is below minSize 5; raise maxSize or lower minSize`},
	{"group-max-huge", `:9: nodeGroups[0].maxSize: 7001 is more than Cluster Autoscaler can list in one answer; write at most 7000`},
	{"group-max-missing", `:8: nodeGroups[0].maxSize: is missing; write the maximum number of nodes of the group`},
	{"group-max-negative", `:9: nodeGroups[0].maxSize: -4 is negative; write the maximum number of nodes of the group`},
	{"group-min-negative", `:12: nodeGroups[0].minSize: -1 is negative; write 0 or more`},
	{"group-os", `:12: nodeGroups[0].os: "Linux" is not an operating system of nodes; write linux or windows`},
	{"group-price", `:12: nodeGroups[0].hourlyPrice: -1 is not a price; write US dollars from 0 to 10000`},
	{"group-price-huge", `:12: nodeGroups[0].hourlyPrice: 1000000 is not a price; write US dollars from 0 to 10000`},
	{"group-region", `:12: nodeGroups[0].region: "eu west 1" cannot be the value of the region label; use up to 63 letters, digits, '-', '_' and '.', a letter or digit first and last`},
	{"group-region-other", `:12: nodeGroups[0].region: "us-east-1" is not cloud.aws.region, "eu-west-1"; remove it, since Auto Scaling Groups are read in that region only`},
	{"group-reserved-gpu", `:12: nodeGroups[0].reserved[nvidia.com/gpu]: cannot be reserved; write cpu, memory, pods, ephemeral-storage or hugepages-<size>`},
	{"group-reserved-negative", `:12: nodeGroups[0].reserved[cpu]: -1 is negative; write 0 or more`},
	{"group-reserved-not-there", `:12: nodeGroups[0].reserved[hugepages-2Mi]: is not in capacity; write it there too, or remove it`},
	{"group-reserved-too-much", `:12: nodeGroups[0].reserved[cpu]: 5 is more than the capacity of 4; lower it`},
	{"group-reserved-unknown", `:12: nodeGroups[0].reserved[disk]: cannot be reserved; write cpu, memory, pods, ephemeral-storage or hugepages-<size>`},
	{"group-retired-min", `:13: nodeGroups[0].minSize: 1 keeps a retired group from becoming empty; write 0`},
	{"group-scale-down-gpu-utilization-threshold", `:12: nodeGroups[0].scaleDown.gpuUtilizationThreshold: -0.5 is not a fraction; write 0 to 1`},
	{"group-scale-down-max-node-provision-time", `:12: nodeGroups[0].scaleDown.maxNodeProvisionTime: -1s is negative; write 0s or more`},
	{"group-scale-down-unneeded-time", `:12: nodeGroups[0].scaleDown.unneededTime: -1s is negative; write 0s or more`},
	{"group-scale-down-unready-time", `:12: nodeGroups[0].scaleDown.unreadyTime: -1s is negative; write 0s or more`},
	{"group-scale-down-utilization-threshold", `:12: nodeGroups[0].scaleDown.utilizationThreshold: 1.5 is not a fraction; write 0 to 1`},
	{"group-surge-max", `:12: nodeGroups[0].surge.max: 0 never lets the group grow; write 1 or more`},
	{"group-surge-window", `:12: nodeGroups[0].surge.window: 0s is not a positive duration; write one such as 30s`},
	{"group-taint-autoscaler", `:12: nodeGroups[0].taints[0].key: "ToBeDeletedByClusterAutoscaler" is set on individual nodes by Kubernetes or Cluster Autoscaler; remove it, or no pod will ever fit the group`},
	{"group-taint-effect", `:12: nodeGroups[0].taints[0].effect: "NoRun" is not an effect; write NoSchedule, PreferNoSchedule or NoExecute`},
	{"group-taint-key", `:12: nodeGroups[0].taints[0].key: "a b" is not a taint's key; use up to 63 letters, digits, '-', '_' and '.', optionally after a DNS name and '/'`},
	{"group-taint-kubernetes", `:12: nodeGroups[0].taints[0].key: "node.kubernetes.io/not-ready" is set on individual nodes by Kubernetes or Cluster Autoscaler; remove it, or no pod will ever fit the group`},
	{"group-taint-twice", `:12: nodeGroups[0].taints[1]: repeats key and effect of nodeGroups[0].taints[0]; keep one`},
	{"group-taint-value", `:12: nodeGroups[0].taints[0].value: "b c" is not a taint's value; use up to 63 letters, digits, '-', '_' and '.', a letter or digit first and last`},
	{"group-zone", `:12: nodeGroups[0].zones[0]: "eu west" cannot be the value of the zone label; use up to 63 letters, digits, '-', '_' and '.', a letter or digit first and last`},
	{"group-zone-region", `:12: nodeGroups[0].zones[0]: "us-east-1a" is not a zone of region "eu-west-1"; correct it`},
	{"group-zone-twice", `:12: nodeGroups[0].zones[1]: "a" is listed twice, first as nodeGroups[0].zones[0]; keep one`},
	{"groups-none", `:7: nodeGroups: is empty; write at least one group`},
	{"key-not-text", `:12: nodeGroups[0].?: has a list as a key; write plain text`},
	{"key-time-added", `:12: nodeGroups[0].taints[0].timeAdded: unknown key; the known keys are effect, key, value`},
	{"key-twice", `:12: redis: is set twice, first on line 5; keep one`},
	{"key-twice-label", `:10: nodeGroups[0].labels[accelerator]: is set twice, first on line 10; keep one`},
	{"key-twice-nested", `:12: nodeGroups[0].maxSize: is set twice, first on line 9; keep one`},
	{"key-unknown-far", `:10: nodeGroups[0].desiredCapacity: unknown key; the known keys are arch, autoScalingGroup, capacity, hourlyPrice, id, instanceType, labels, maxSize, minSize, os, region, reserved, retired, scaleDown, surge, taints, zones`},
	{"key-unknown-nested", `:10: nodeGroups[0].minsize: unknown key; did you mean minSize?`},
	{"key-unknown-quoted", `:12: "a\nb": unknown key; the known keys are apiVersion, checkpoint, cloud, gpuLabel, kind, kubernetes, nodeGroups, quotas, redis, server`},
	{"key-unknown-top", `:12: nodeGroup: unknown key; did you mean nodeGroups?`},
	{"kind", `:2: kind: "NodeGroups" is not a supported kind; write ProviderConfig`},
	{"kubernetes-namespace", `:7: kubernetes.namespace: "Gpu_Nodes" is not the name of a namespace; use up to 63 lowercase letters, digits and '-', a letter or digit first and last`},
	{"merge-list-of-text", `:12: nodeGroups[0].<<: merges "t4"; give it mappings only`},
	{"merge-text", `:12: nodeGroups[0].<<: merges "t4"; give it a mapping`},
	{"quota-groups-empty", `:13: quotas[0].nodeGroups: is empty, so the quota would limit nothing; write ids or patterns of node groups`},
	{"quota-groups-pattern", `:13: quotas[0].nodeGroups[0]: "t[4" is not a pattern; use * for any text, ? for any character, [abc] for one of those`},
	{"quota-groups-twice", `:13: quotas[0].nodeGroups[1]: "t4" is listed twice, first as quotas[0].nodeGroups[0]; keep one`},
	{"quota-groups-unknown", `:13: quotas[0].nodeGroups[1]: "a10*" matches no node group; correct it, or remove it`},
	{"quota-limit-fraction", `:13: quotas[0].limit: 1500m is not a limit of "nvidia.com/gpu"; write a whole number from 0 to 1G`},
	{"quota-limit-huge", `:13: quotas[0].limit: 1T is not a limit of "usd-per-hour"; write a number from 0 to 1G`},
	{"quota-limit-missing", `:13: quotas[0].limit: is missing; write it, or awsServiceQuota to read it from AWS`},
	{"quota-limit-negative", `:13: quotas[0].limit: -1 is not a limit of "nodes"; write a whole number from 0 to 1G`},
	{"quota-limit-twice", `:13: quotas[0].limit: is set together with awsServiceQuota; remove one of the two`},
	{"quota-name", `:13: quotas[0].name: "All GPUs" is not a name; use up to 63 lowercase letters, digits and '-', a letter or digit first and last`},
	{"quota-name-missing", `:13: quotas[0].name: is missing; use up to 63 lowercase letters, digits and '-', a letter or digit first and last`},
	{"quota-name-twice", `:14: quotas[1].name: "a" is already used by quotas[0]; choose another`},
	{"quota-resource", `:13: quotas[0].resource: "memory" is not a quota resource; write vcpu, nodes, usd-per-hour, or a device's full name such as nvidia.com/gpu`},
	{"quota-resource-cpu", `:13: quotas[0].resource: "cpu" is not a quota resource; write vcpu`},
	{"quota-resource-missing", `:13: quotas[0].resource: is missing; write vcpu, nodes, usd-per-hour, or a device's full name such as nvidia.com/gpu`},
	{"quota-resource-nowhere", `:13: quotas[0].resource: "nvidia.com/gpus" is not in the capacity of any group that the quota covers, so it would limit nothing; correct it, or remove the quota`},
	{"quota-service-code", `:13: quotas[0].awsServiceQuota: "DB2E81BA" is not the code of a service quota; write one such as L-DB2E81BA`},
	{"quota-service-resource", `:13: quotas[0].awsServiceQuota: counts vCPUs, not "nodes"; write resource: vcpu`},
	{"quota-service-simulated", `:13: quotas[0].awsServiceQuota: is read from AWS, and the simulated cloud has no service quotas; write limit instead`},
	{"quota-surge-fraction", `:13: quotas[0].surge.max: 500m is not a surge of "nodes"; write a whole number above 0, up to 1G`},
	{"quota-surge-window", `:13: quotas[0].surge.window: 0s is not a positive duration; write one such as 30s`},
	{"quota-surge-zero", `:13: quotas[0].surge.max: 0 is not a surge of "nodes"; write a whole number above 0, up to 1G`},
	{"redis-address", `:6: redis.addresses[0]: "redis" is not host:port of a server; write one such as redis:6379`},
	{"redis-address-no-host", `:6: redis.addresses[0]: ":6379" is not host:port of a server; write one such as redis:6379`},
	{"redis-address-port-zero", `:6: redis.addresses[0]: "redis:0" is not host:port of a server; write one such as redis:6379`},
	{"redis-address-twice", `:6: redis.addresses[1]: "redis:6379" is listed twice, first as redis.addresses[0]; keep one`},
	{"redis-db-cluster", `:8: redis.db: 1 does not exist, since Redis Cluster has database 0 only; remove it`},
	{"redis-db-negative", `:7: redis.db: -1 is negative; write the number of a database`},
	{"redis-embedded-address", `:6: redis.embedded.address: "localhost" is not host:port with a port up to 65535; write an address such as 127.0.0.1:8086`},
	{"redis-embedded-cluster", `:7: redis.cluster: has no effect on embedded Redis; remove it`},
	{"redis-embedded-db", `:7: redis.db: has no effect on embedded Redis; remove it`},
	{"redis-embedded-master-name", `:7: redis.masterName: has no effect on embedded Redis; remove it`},
	{"redis-embedded-on-aws", `:6: redis.embedded: loses every acknowledgement on a restart, so it is allowed with the simulated cloud only; write addresses`},
	{"redis-embedded-password-file", `:7: redis.passwordFile: has no effect on embedded Redis; remove it`},
	{"redis-embedded-port-taken", `:6: redis.embedded.address: "127.0.0.1:8087" uses the same port as server.httpAddress; choose another`},
	{"redis-embedded-tls", `:7: redis.tls: has no effect on embedded Redis; remove it`},
	{"redis-embedded-username", `:7: redis.username: has no effect on embedded Redis; remove it`},
	{"redis-none", `:5: redis: names no server; write addresses, or embedded to rehearse`},
	{"redis-sentinel-cluster", `:7: redis.masterName: is for Sentinel and redis.cluster for Redis Cluster; remove one of the two`},
	{"redis-several", `:6: redis.addresses: has 2 servers but neither masterName nor cluster; write masterName for Sentinel or cluster: true for Redis Cluster`},
	{"redis-tls-no-key", `:7: redis.tls: has one of certFile and keyFile; write both, or none`},
	{"redis-two", `:5: redis: names servers and embedded Redis; keep addresses or embedded`},
	{"server-address-bad-host", `:7: server.address: "local host:8086" is not host:port with a port up to 65535; write an address such as 127.0.0.1:8086`},
	{"server-address-no-port", `:7: server.address: "127.0.0.1" is not host:port with a port up to 65535; write an address such as 127.0.0.1:8086`},
	{"server-address-port-name", `:7: server.httpAddress: "127.0.0.1:http" is not host:port with a port up to 65535; write an address such as 127.0.0.1:8086`},
	{"server-address-port-range", `:7: server.address: "127.0.0.1:70000" is not host:port with a port up to 65535; write an address such as 127.0.0.1:8086`},
	{"server-plaintext", `:7: server.address: would serve plaintext on "0.0.0.0:8086", which is not loopback; set server.tls, or server.insecure: true to accept it`},
	{"server-plaintext-all", `:7: server.address: would serve plaintext on ":8086", which is not loopback; set server.tls, or server.insecure: true to accept it`},
	{"server-webhook-address", `:7: server.webhookAddress: "8443" is not host:port with a port up to 65535; write an address such as 127.0.0.1:8086`},
	{"server-webhook-no-kubernetes", `:7: server.webhookAddress: needs a kubernetes section, since the API server calls it; write one, or remove the address`},
	{"server-webhook-plaintext", `:7: server.webhookAddress: needs server.tls, since the API server calls webhooks over TLS only; set it, or remove the address`},
	{"server-webhook-same-port", `:7: server.webhookAddress: "127.0.0.1:8087" uses the same port as server.httpAddress; choose another`},
	{"server-same-address", `:7: server.httpAddress: "127.0.0.1:8086" uses the same port as server.address; choose another`},
	{"server-same-port", `:7: server.httpAddress: "0.0.0.0:8086" uses the same port as server.address; choose another`},
	{"server-same-port-localhost", `:7: server.httpAddress: "localhost:8086" uses the same port as server.address; choose another`},
	{"server-tls-client-empty", `:7: server.tls.allowedClients[0]: "" is not a client name; write its DNS name, URI or common name without spaces around it`},
	{"server-tls-client-spaces", `:7: server.tls.allowedClients[0]: " autoscaler" is not a client name; write its DNS name, URI or common name without spaces around it`},
	{"server-tls-client-wildcard", `:7: server.tls.allowedClients[0]: "*.example.com" has a wildcard, but names are compared literally; write every name, or an empty list to allow all clients of the CA`},
	{"server-tls-client-twice", `:7: server.tls.allowedClients[1]: "ca" is listed twice, first as server.tls.allowedClients[0]; keep one`},
	{"server-tls-insecure", `:7: server.insecure: enables plaintext while server.tls enables TLS; remove one of the two`},
	{"server-tls-no-ca", `:7: server.tls.clientCAFile: is missing; mutual TLS needs certFile, keyFile and clientCAFile`},
	{"server-tls-no-cert", `:7: server.tls.certFile: is missing; mutual TLS needs certFile, keyFile and clientCAFile`},
	{"server-tls-no-key", `:7: server.tls.keyFile: is missing; mutual TLS needs certFile, keyFile and clientCAFile`},
	{"simulated-api-error-rate", `:4: cloud.simulated.api.errorRate: 1.5 is not a fraction; write 0 to 1`},
	{"simulated-api-latency", `:4: cloud.simulated.api.latency: -1s is negative; write 0s or more`},
	{"simulated-api-lost-answer-rate", `:4: cloud.simulated.api.lostAnswerRate: -0.1 is not a fraction; write 0 to 1`},
	{"simulated-boot-delay", `:4: cloud.simulated.bootDelay: -1s is negative; write 0s or more`},
	{"simulated-capacity-negative", `:4: cloud.simulated.capacity[t4]: -1 is negative; write how many instances can be launched`},
	{"simulated-capacity-unknown", `:4: cloud.simulated.capacity[a100]: is not the id of a node group; correct it, or remove the line`},
	{"simulated-device-plugin-delay", `:4: cloud.simulated.devicePluginDelay: -1s is negative; write 0s or more`},
	{"simulated-launch-delay", `:4: cloud.simulated.launchDelay: -1s is negative; write 0s or more`},
	{"simulated-launch-errors-code", `:4: cloud.simulated.launchErrors.code: "OutOfMachines" is not a launch error code; write one of InsufficientInstanceCapacity, MaxSpotInstanceCountExceeded, VcpuLimitExceeded, UnfulfillableCapacity, Unsupported, InsufficientFreeAddressesInSubnet, LaunchTemplateError, Other`},
	{"simulated-launch-errors-rate", `:4: cloud.simulated.launchErrors.rate: 2 is not a fraction; write 0 to 1`},
	{"simulated-terminate-delay", `:4: cloud.simulated.terminateDelay: -1s is negative; write 0s or more`},
	{"type-bool", `:7: server.insecure: "yes" is not a boolean; write true or false without quotes`},
	{"type-bool-quoted", `:7: server.insecure: "true" is not a boolean; write true or false without quotes`},
	{"type-duration-no-unit", `:7: checkpoint.maxAge: "20" is not a duration such as "90s" or "5m"; write a number with its unit`},
	{"type-duration-null", `:7: checkpoint.maxAge: has no value; write one, or remove the key`},
	{"type-duration-text", `:7: checkpoint.maxAge: "soon" is not a duration such as "90s" or "5m"; write a number with its unit`},
	{"type-float", `:12: nodeGroups[0].hourlyPrice: "cheap" is not a number; write one such as 0.5 without quotes`},
	{"type-float-nan", `:12: nodeGroups[0].hourlyPrice: ".nan" is not a number; write one such as 0.5 without quotes`},
	{"type-group-text", `:12: nodeGroups[1]: is "a10g", not a mapping; write its keys below it`},
	{"type-int-fraction", `:9: nodeGroups[0].maxSize: "4.5" is not a whole number; write digits without quotes`},
	{"type-int-huge", `:9: nodeGroups[0].maxSize: "99999999999999999999" is not a whole number; write digits without quotes`},
	{"type-int-null", `:9: nodeGroups[0].maxSize: has no value; write one, or remove the key`},
	{"type-int-octal", `:9: nodeGroups[0].maxSize: "010" is not a whole number; write digits without quotes`},
	{"type-int-quoted", `:9: nodeGroups[0].maxSize: "4" is not a whole number; write digits without quotes`},
	{"type-int-text", `:9: nodeGroups[0].maxSize: "four" is not a whole number; write digits without quotes`},
	{"type-list", `:12: nodeGroups[0].zones: is "eu-west-1a", not a list; write each entry after a dash, or all of them in [ ]`},
	{"type-list-null", `:14: nodeGroups[0].zones[1]: has no value; write one, or remove the dash`},
	{"type-mapping", `:12: nodeGroups[0].surge: is "2", not a mapping; write its keys below it`},
	{"type-mapping-labels", `:13: nodeGroups[0].reserved: is a list, not a mapping; write it as key: value lines`},
	{"type-quantity", `:11: nodeGroups[0].capacity[memory]: "16GB" is not a quantity; write one such as 4, 500m or 16Gi`},
	{"type-quantity-exponent", `:11: nodeGroups[0].capacity[memory]: "1e999999999" is not a quantity; write one such as 4, 500m or 16Gi`},
	{"type-quantity-null", `:11: nodeGroups[0].capacity[memory]: has no value; write one, or remove the key`},
	{"type-section-null", `:4: cloud.simulated: has no value; write {} to use its defaults, or remove the key`},
	{"type-text-list", `:12: nodeGroups[0].instanceType: is a list; write a single value`},
	{"type-text-tag", `:12: nodeGroups[0].instanceType: has the tag "!!binary"; write the value without a tag`},
}

func TestBadFiles(t *testing.T) {
	for _, tt := range badFiles {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join("testdata", tt.name+badSuffix)
			c, err := Load(path)
			require.EqualError(t, err, path+tt.want)
			assert.Nil(t, c)
		})
	}
}

func TestBadFilesAreAllInATable(t *testing.T) {
	listed := map[string]bool{severalFaults: true}
	for _, tt := range badFiles {
		assert.False(t, listed[tt.name], "%s is there twice", tt.name)
		listed[tt.name] = true
	}
	entries, err := os.ReadDir("testdata")
	require.NoError(t, err)
	for _, e := range entries {
		name, bad := strings.CutSuffix(e.Name(), badSuffix)
		if bad {
			assert.True(t, listed[name], "%s is in no table", e.Name())
		}
	}
}

const severalFaults = "many"

func TestProblemsAllAtOnce(t *testing.T) {
	path := filepath.Join("testdata", severalFaults+badSuffix)
	_, err := Load(path)
	want := []string{
		`:3: server.insecure: "maybe" is not a boolean; write true or false without quotes`,
		`:5: cloud.simulated.bootDelay: "30" is not a duration such as "90s" or "5m"; write a number with its unit`,
		`:6: redis: names no server; write addresses, or embedded to rehearse`,
		`:7: redis.embeded: unknown key; did you mean embedded?`,
		`:10: quotas[0].limit: -1 is not a limit of "nvidia.com/gpu"; write a whole number from 0 to 1G`,
		`:10: quotas[0].nodeGroups[0]: "t5*" matches no node group; correct it, or remove it`,
		`:14: nodeGroups[0].maxSize: 2 is below minSize 3; raise maxSize or lower minSize`,
		`:15: nodeGroups[0].maxSize: is set twice, first on line 14; keep one`,
		`:16: nodeGroups[0].labels[accelerator]: is the GPU label, but capacity has none of the GPUs that Cluster Autoscaler knows (nvidia.com/gpu, habana.ai/gaudi, gpu.intel.com/xe, amd.com/gpu, microsoft.com/directx), so it would never treat a node as ready; remove the label, or add the GPU to capacity`,
		`:18: nodeGroups[1].id: "t4" is already used by nodeGroups[0]; choose another`,
		`:18: nodeGroups[1].maxSize: is missing; write the maximum number of nodes of the group`,
		`:19: nodeGroups[1].maxsize: unknown key; did you mean maxSize?`,
		`:21: nodeGroups[1].capacity[nvidia.com/gpu]: "one" is not a quantity; write one such as 4, 500m or 16Gi`,
	}
	require.EqualError(t, err, path+strings.Join(want, "\n"+path))
}
