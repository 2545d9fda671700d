package config

import (
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// These bounds limit the work of matching patterns against groups.
const (
	maxQuotas   = 100
	maxPatterns = 10 // per quota; plain ids do not count
)

// maxAmount keeps sums of the quota ledger, in millionths, within 64 bits.
var maxAmount = resource.MustParse("1G")

// serviceQuota matches quota codes of AWS Service Quotas.
var serviceQuota = regexp.MustCompile(`^L-[0-9A-F]{8}$`)

func (v validator) quotas() {
	if n := len(v.c.Quotas); n > maxQuotas {
		v.add("quotas", "has %d quotas; write at most %d", n, maxQuotas)
		return
	}
	if n := len(v.c.NodeGroups); n == 0 && !v.c.discovers() || n > maxGroups {
		return // groups reports it
	}
	first := map[string]int{}
	for i := range v.c.Quotas {
		q := quotaRules{v, item("quotas", i), &v.c.Quotas[i]}
		q.name(first, i)
		q.resource()
		q.limit()
		q.surge()
		q.covers()
	}
}

// quotaRules are the rules of one quota.
type quotaRules struct {
	validator
	path string
	*Quota
}

func (q quotaRules) at(name string) string { return member(q.path, name) }

func (q quotaRules) name(first map[string]int, i int) {
	q.expect(q.at("name"), q.Name, isDNSLabel(q.Name), "a name", dnsLabelHelp)
	if q.Name == "" {
		return
	}
	if j, twice := first[q.Name]; twice {
		q.add(q.at("name"), "%s is already used by %s; choose another", show(q.Name), item("quotas", j))
		return
	}
	first[q.Name] = i
}

func (q quotaRules) resource() {
	r, help := q.Resource, "write vcpu, nodes, usd-per-hour, or a device's full name such as nvidia.com/gpu"
	if r == string(corev1.ResourceCPU) {
		help = "write vcpu"
	}
	good := r == ResourceVCPU || r == ResourceNodes || r == ResourceUSDPerHour || isExtendedResource(r)
	q.expect(q.at("resource"), r, good, "a quota resource", help)
}

// fractional reports whether the resource is divisible.
func (q quotaRules) fractional() bool {
	return q.Resource == ResourceVCPU || q.Resource == ResourceUSDPerHour
}

func (q quotaRules) limit() {
	switch {
	case q.Limit == nil && q.AWSServiceQuota == "":
		q.addFrom([]string{q.at("awsServiceQuota")}, q.at("limit"), "is missing; write it, or awsServiceQuota to read it from AWS")
	case q.Limit != nil && q.AWSServiceQuota != "":
		q.add(q.at("limit"), "is set together with awsServiceQuota; remove one of the two")
	case q.Limit != nil:
		if q.Limit.Sign() < 0 || q.Limit.Cmp(maxAmount) > 0 || !q.fractional() && !isWhole(*q.Limit) {
			q.addFrom([]string{q.at("resource")}, q.at("limit"), "%s is not a limit of %s; write %s from 0 to %s", q.Limit, show(q.Resource), q.unit(), &maxAmount)
		}
	default:
		q.serviceQuota()
	}
}

func (q quotaRules) unit() string {
	if q.fractional() {
		return "a number"
	}
	return "a whole number"
}

func (q quotaRules) serviceQuota() {
	at := q.at("awsServiceQuota")
	if !serviceQuota.MatchString(q.AWSServiceQuota) {
		q.add(at, "%s is not the code of a service quota; write one such as L-DB2E81BA", show(q.AWSServiceQuota))
	}
	if q.onSimulated() {
		q.add(at, "is read from AWS, and the simulated cloud has no service quotas; write limit instead")
	}
	if q.Resource != ResourceVCPU {
		q.addFrom([]string{q.at("resource")}, at, "counts vCPUs, not %s; write resource: vcpu", show(q.Resource))
	}
}

func (q quotaRules) surge() {
	if q.Surge == nil {
		return
	}
	most := q.Surge.Max
	if most.Sign() <= 0 || most.Cmp(maxAmount) > 0 || !q.fractional() && !isWhole(most) {
		q.addFrom([]string{q.at("resource")}, q.at("surge.max"), "%s is not a surge of %s; write %s above 0, up to %s", &most, show(q.Resource), q.unit(), &maxAmount)
	}
	q.positive(q.at("surge.window"), q.Surge.Window)
}

// covers checks that the quota limits at least one group, since a typo in a pattern or
// in a resource name would otherwise disable the limit without notice.
func (q quotaRules) covers() {
	field := q.at("nodeGroups")
	if len(q.NodeGroups) == 0 {
		q.add(field, "is empty, so the quota would limit nothing; write ids or patterns of node groups")
		return
	}
	globs := 0
	for _, pattern := range q.NodeGroups {
		if isGlob(pattern) {
			globs++
		}
	}
	if globs > maxPatterns {
		q.add(field, "has %d patterns; write at most %d", globs, maxPatterns)
		return
	}
	covered := map[string]bool{}
	q.eachOnce(field, q.NodeGroups, func(at, pattern string) {
		q.pattern(at, pattern, covered)
	})
	q.used(covered)
}

// isGlob reports whether a pattern contains a wildcard.
func isGlob(pattern string) bool { return strings.ContainsAny(pattern, `*?[\`) }

func (q quotaRules) pattern(at, pattern string, covered map[string]bool) {
	if _, err := path.Match(pattern, ""); err != nil {
		q.add(at, "%s is not a pattern; use * for any text, ? for any character, [abc] for one of those", show(pattern))
		return
	}
	matched := q.ids[pattern]
	if matched {
		covered[pattern] = true
	}
	if isGlob(pattern) {
		for id := range q.ids {
			if ok, _ := path.Match(pattern, id); ok { // the pattern is valid
				covered[id], matched = true, true
			}
		}
	}
	if !matched && !q.c.discovers() && q.unknown(pattern) {
		q.add(at, "%s matches no node group; correct it, or remove it", show(pattern))
	}
}

// used reports a quota of a device that none of its groups offers.
func (q quotaRules) used(covered map[string]bool) {
	if !isExtendedResource(q.Resource) || len(covered) == 0 || q.c.discovers() {
		return
	}
	offers := func(n NodeGroup) bool {
		g := groupRules{q.validator, "", &n}
		_, offered := n.Capacity[corev1.ResourceName(q.Resource)]
		return covered[n.ID] && (offered || !g.capacityKnown())
	}
	if !slices.ContainsFunc(q.c.NodeGroups, offers) {
		q.addFrom([]string{"nodeGroups", q.at("nodeGroups")}, q.at("resource"), "%s is not in the capacity of any group that the quota covers, so it would limit nothing; correct it, or remove the quota", show(q.Resource))
	}
}
