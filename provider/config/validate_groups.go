package config

import (
	"slices"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
)

// These bounds keep every answer to Cluster Autoscaler below the 4 MiB that its gRPC
// client accepts, which is about 7,000 placeholders with an error message. Each group
// costs Cluster Autoscaler several calls in every loop.
const (
	maxGroups    = 5_000
	maxGroupSize = 7_000
)

// maxSimulatedID leaves room for the suffix that a simulated node's name, a DNS label
// of up to 63 characters, adds to the group's id.
const maxSimulatedID = 57

// maxHourlyPrice is far above the price of any instance, and keeps sums of prices exact.
const maxHourlyPrice = 10_000

// Labels that the provider sets on nodes.
const (
	ownPrefix     = "gpu-node-provider.io/"
	labelHostname = corev1.LabelHostname
)

// discovers reports whether the cloud adds groups to those of the file.
func (c *Config) discovers() bool { return c.Cloud.AWS != nil && c.Cloud.AWS.Discovery != nil }

func (v validator) groups() {
	switch n := len(v.c.NodeGroups); {
	case n == 0 && !v.c.discovers():
		v.add("nodeGroups", "is empty; write at least one group")
	case n > maxGroups:
		v.add("nodeGroups", "has %d groups; Cluster Autoscaler calls the provider for each in every loop, so write at most %d", n, maxGroups)
		return
	}
	ids, scalingGroups := map[string]int{}, map[string]int{}
	for i := range v.c.NodeGroups {
		g := groupRules{v, item("nodeGroups", i), &v.c.NodeGroups[i]}
		g.unique("id", g.ID, ids, i)
		g.identity()
		g.size()
		if v.onAWS() {
			g.aws()
			g.unique("autoScalingGroup", g.AutoScalingGroup, scalingGroups, i)
		}
		g.platform()
		g.zones()
		g.labels()
		g.gpuLabel()
		g.taints()
		g.capacity()
		g.reserved()
		g.price()
		g.scaleDown()
	}
}

// groupRules are the rules of one node group.
type groupRules struct {
	validator
	path string
	*NodeGroup
}

func (g groupRules) at(name string) string { return member(g.path, name) }

// unique reports a value that an earlier group already has.
func (g groupRules) unique(name, value string, seen map[string]int, i int) {
	if value == "" {
		return
	}
	if first, twice := seen[value]; twice {
		g.add(g.at(name), "%s is already used by %s; choose another", show(value), item("nodeGroups", first))
		return
	}
	seen[value] = i
}

func (g groupRules) identity() {
	g.expect(g.at("id"), g.ID, isDNSLabel(g.ID), "a valid node group id", dnsLabelHelp)
	if g.c.Cloud.Simulated != nil && isDNSLabel(g.ID) && len(g.ID) > maxSimulatedID {
		g.add(g.at("id"), "has %d characters; the simulated cloud names its nodes after it, so use at most %d", len(g.ID), maxSimulatedID)
	}
	if !isLabelValue(g.InstanceType) {
		g.add(g.at("instanceType"), "%s cannot be the value of the instance type label; %s", show(g.InstanceType), labelValueHelp)
	}
	if !isLabelValue(g.Region) {
		g.add(g.at("region"), "%s cannot be the value of the region label; %s", show(g.Region), labelValueHelp)
	}
}

func (g groupRules) size() {
	if g.MinSize < 0 {
		g.add(g.at("minSize"), "%d is negative; write 0 or more", g.MinSize)
	}
	switch {
	case g.Retired && g.MinSize > 0:
		g.add(g.at("minSize"), "%d keeps a retired group from becoming empty; write 0", g.MinSize)
	case g.MaxSize == missingSize:
		g.addFrom([]string{g.at("retired")}, g.at("maxSize"), "is missing; write the maximum number of nodes of the group")
	case g.MaxSize < 0:
		g.add(g.at("maxSize"), "%d is negative; write the maximum number of nodes of the group", g.MaxSize)
	case g.MaxSize > maxGroupSize:
		g.add(g.at("maxSize"), "%d is more than Cluster Autoscaler can list in one answer; write at most %d", g.MaxSize, maxGroupSize)
	case g.MaxSize < g.MinSize && !g.Retired:
		g.addFrom([]string{g.at("minSize")}, g.at("maxSize"), "%d is below minSize %d; raise maxSize or lower minSize", g.MaxSize, g.MinSize)
	}
	if g.Surge == nil {
		return
	}
	if g.Surge.Max < 1 {
		g.add(g.at("surge.max"), "%d never lets the group grow; write 1 or more", g.Surge.Max)
	}
	g.positive(g.at("surge.window"), g.Surge.Window)
}

func (g groupRules) aws() {
	// AWS accepts any printable name of up to 255 characters.
	odd := func(r rune) bool { return !unicode.IsPrint(r) }
	switch name := g.AutoScalingGroup; {
	case name == "":
		g.add(g.at("autoScalingGroup"), "is missing; write the name of the Auto Scaling Group that holds the nodes")
	case len([]rune(name)) > 255 || strings.ContainsFunc(name, odd):
		g.add(g.at("autoScalingGroup"), "%s is not the name of an Auto Scaling Group; copy it from AWS", show(name))
	}
	if region := g.c.Cloud.AWS.Region; awsRegion.MatchString(region) && g.Region != region {
		g.add(g.at("region"), "%s is not cloud.aws.region, %s; remove it, since Auto Scaling Groups are read in that region only", show(g.Region), show(region))
	}
}

func (g groupRules) platform() {
	g.expect(g.at("os"), g.OS, g.OS == "linux" || g.OS == "windows", "an operating system of nodes", "write linux or windows")
	g.expect(g.at("arch"), g.Arch, g.Arch == "amd64" || g.Arch == "arm64", "an architecture of nodes", "write amd64 or arm64")
}

func (g groupRules) zones() {
	g.eachOnce(g.at("zones"), g.Zones, func(at, zone string) {
		switch {
		case zone == "" || !isLabelValue(zone):
			g.add(at, "%s cannot be the value of the zone label; %s", show(zone), labelValueHelp)
		case g.onAWS() && awsRegion.MatchString(g.Region) && !strings.HasPrefix(zone, g.Region):
			g.add(at, "%s is not a zone of region %s; correct it", show(zone), show(g.Region))
		}
	})
}

func (g groupRules) labels() {
	for _, name := range sortedKeys(g.Labels) {
		at, value := key(g.at("labels"), name), g.Labels[name]
		switch {
		case !isLabelKey(name):
			g.add(at, "is not a label key; %s", labelKeyHelp)
		case !isLabelValue(value):
			g.add(at, "%s is not a label value; %s", show(value), labelValueHelp)
		case name == labelHostname || strings.HasPrefix(name, ownPrefix):
			g.add(at, "is set on each node by the provider; remove it")
		default:
			g.contradiction(at, name, value)
		}
	}
}

// contradiction reports a well-known label whose value differs from the field of the
// group that the provider sets the label from.
func (g groupRules) contradiction(at, name, value string) {
	var field, want string
	switch name {
	case corev1.LabelOSStable, "beta.kubernetes.io/os":
		field, want = "os", g.OS
	case corev1.LabelArchStable, "beta.kubernetes.io/arch":
		field, want = "arch", g.Arch
	case corev1.LabelInstanceTypeStable, corev1.LabelInstanceType:
		field, want = "instanceType", g.InstanceType
	case corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaRegion:
		field, want = "region", g.Region
	case corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaZone:
		field, want = "zones", strings.Join(g.Zones, " and ")
	}
	if want != "" && want != value {
		g.add(at, "%s contradicts %s, which is %s; remove one of the two", show(value), field, want)
	}
}

func (g groupRules) taints() {
	type identity struct {
		key    string
		effect corev1.TaintEffect
	}
	first := map[identity]int{}
	effects := []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}
	for i, t := range g.Taints {
		at := item(g.at("taints"), i)
		g.taintKey(at, t.Key)
		if !isLabelValue(t.Value) {
			g.add(member(at, "value"), "%s is not a taint's value; %s", show(t.Value), labelValueHelp)
		}
		g.expect(member(at, "effect"), string(t.Effect), slices.Contains(effects, t.Effect),
			"an effect", "write NoSchedule, PreferNoSchedule or NoExecute")
		id := identity{t.Key, t.Effect}
		if j, twice := first[id]; twice {
			g.add(at, "repeats key and effect of %s; keep one", item(g.at("taints"), j))
			continue
		}
		first[id] = i
	}
}

// transientTaint reports whether a taint is temporary by nature. In a template it would
// repel every pod, and the group would never grow.
func transientTaint(name string) bool {
	return strings.HasPrefix(name, "node.kubernetes.io/") || strings.HasSuffix(name, "OfClusterAutoscaler") || strings.HasSuffix(name, "ByClusterAutoscaler")
}

func (g groupRules) taintKey(at, name string) {
	g.expect(member(at, "key"), name, isLabelKey(name), "a taint's key", labelKeyHelp)
	if transientTaint(name) {
		g.add(member(at, "key"), "%s is set on individual nodes by Kubernetes or Cluster Autoscaler; remove it, or no pod will ever fit the group", show(name))
	}
}

func (g groupRules) price() {
	if p := g.HourlyPrice; p != nil && !(*p >= 0 && *p <= maxHourlyPrice) { // also for NaN
		g.add(g.at("hourlyPrice"), "%s is not a price; write US dollars from 0 to %d", decimal(*p), maxHourlyPrice)
	}
}

func (g groupRules) scaleDown() {
	at, s := g.at("scaleDown"), g.ScaleDown
	shares := []struct {
		name  string
		value *float64
	}{{"utilizationThreshold", s.UtilizationThreshold}, {"gpuUtilizationThreshold", s.GPUUtilizationThreshold}}
	for _, f := range shares {
		if f.value != nil {
			g.share(member(at, f.name), *f.value)
		}
	}
	durations := []struct {
		name  string
		value *Duration
	}{{"unneededTime", s.UnneededTime}, {"unreadyTime", s.UnreadyTime}, {"maxNodeProvisionTime", s.MaxNodeProvisionTime}}
	for _, f := range durations {
		if f.value != nil {
			g.notNegative(member(at, f.name), *f.value)
		}
	}
}
