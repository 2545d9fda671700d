package config

import (
	"slices"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/labels"
)

func (v validator) redis() {
	r := v.c.Redis
	switch {
	case len(r.Addresses) == 0 && r.Embedded == nil:
		v.add("redis", "names no server; write addresses, or embedded to rehearse")
	case len(r.Addresses) > 0 && r.Embedded != nil:
		v.add("redis", "names servers and embedded Redis; keep addresses or embedded")
	case r.Embedded != nil:
		v.embeddedRedis(r)
	default:
		v.redisServers(r)
	}
}

func (v validator) embeddedRedis(r Redis) {
	v.listenAddress("redis.embedded.address", r.Embedded.Address)
	if v.onAWS() {
		v.add("redis.embedded", "loses every acknowledgement on a restart, so it is allowed with the simulated cloud only; write addresses")
	}
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"masterName", r.MasterName != ""},
		{"cluster", r.Cluster},
		{"username", r.Username != ""},
		{"passwordFile", r.PasswordFile != ""},
		{"db", r.DB != 0},
		{"tls", r.TLS != nil},
	} {
		if f.set {
			v.add("redis."+f.name, "has no effect on embedded Redis; remove it")
		}
	}
}

func (v validator) redisServers(r Redis) {
	v.eachOnce("redis.addresses", r.Addresses, func(at, address string) {
		host, port, ok := hostPort(address)
		v.expect(at, address, ok && host != "" && port > 0, "host:port of a server", "write one such as redis:6379")
	})
	v.redisKind(r)
	if t := r.TLS; t != nil && (t.CertFile == "") != (t.KeyFile == "") {
		v.add("redis.tls", "has one of certFile and keyFile; write both, or none")
	}
}

// redisKind requires an explicit choice between a single server, Sentinel and Redis
// Cluster, since go-redis would guess it from the number of addresses.
func (v validator) redisKind(r Redis) {
	switch {
	case r.MasterName != "" && r.Cluster:
		v.add("redis.masterName", "is for Sentinel and redis.cluster for Redis Cluster; remove one of the two")
	case len(r.Addresses) > 1 && r.MasterName == "" && !r.Cluster:
		v.addFrom([]string{"redis.masterName", "redis.cluster"}, "redis.addresses", "has %d servers but neither masterName nor cluster; write masterName for Sentinel or cluster: true for Redis Cluster", len(r.Addresses))
	}
	switch {
	case r.DB < 0:
		v.add("redis.db", "%d is negative; write the number of a database", r.DB)
	case r.DB > 0 && r.Cluster:
		v.add("redis.db", "%d does not exist, since Redis Cluster has database 0 only; remove it", r.DB)
	}
}

// commonLabels are labels that nodes without a GPU also carry.
var commonLabels = []string{
	labelHostname, "kubernetes.io/os", "kubernetes.io/arch", "beta.kubernetes.io/os", "beta.kubernetes.io/arch",
	"node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type", "topology.kubernetes.io/zone",
	"topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region",
}

func (v validator) gpuLabelKey() {
	switch label := v.c.GPULabel; {
	case !isLabelKey(label):
		v.add("gpuLabel", "%s is not a label key; %s", show(label), labelKeyHelp)
	case isCommonLabel(label):
		v.add("gpuLabel", "%s is also on nodes without a GPU, and Cluster Autoscaler would never treat those as ready; choose a label of the GPU nodes alone", show(label))
	}
}

func isCommonLabel(label string) bool {
	return slices.Contains(commonLabels, label) || strings.HasPrefix(label, ownPrefix)
}

// maxKeyPrefix keeps keys readable, which also contain a namespace, a pod name and
// its uid.
const maxKeyPrefix = 128

func (v validator) checkpoint() {
	c := v.c.Checkpoint
	v.expect("checkpoint.mode", string(c.Mode), c.Mode == Enforce || c.Mode == Observe, "a mode", "write enforce or observe")
	v.podSelector(c.PodSelector)
	odd := func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }
	if c.KeyPrefix == "" || len(c.KeyPrefix) > maxKeyPrefix || strings.ContainsFunc(c.KeyPrefix, odd) {
		v.add("checkpoint.keyPrefix", "%s cannot be the prefix of Redis keys; use 1 to %d printable characters without spaces", show(c.KeyPrefix), maxKeyPrefix)
	}
	v.positive("checkpoint.maxAge", c.MaxAge)
	v.positive("checkpoint.abandonAfter", c.AbandonAfter)
	v.notNegative("checkpoint.askAfter", c.AskAfter)
	v.positive("checkpoint.askEvery", c.AskEvery)
	v.eachOnce("checkpoint.askOnTaints", c.AskOnTaints, func(at, taint string) {
		v.expect(at, taint, isLabelKey(taint), "a taint's key", labelKeyHelp)
	})
}

func (v validator) podSelector(text string) {
	selector, err := labels.Parse(text)
	switch {
	case err != nil:
		v.add("checkpoint.podSelector", "%s is not a label selector; write one such as gpu-node-provider.io/checkpoint=required", show(text))
	case selector.Empty():
		v.add("checkpoint.podSelector", "%s selects every pod, and every node would be held; write one such as gpu-node-provider.io/checkpoint=required", show(text))
	}
}
