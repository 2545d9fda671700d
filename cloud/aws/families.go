package aws

import (
	"maps"
	"slices"
	"strings"
)

// vcpuQuota is one of EC2's quotas on vCPUs.
type vcpuQuota struct {
	name string
	spot bool
	// families are the letters that an instance type begins with, followed by
	// its generation when that makes a difference: p5en.48xlarge is p5.
	families []string
}

// standard is the family that takes what the others do not name. I includes im
// and is, and so on.
var standard = []string{"a", "c", "d", "h", "i", "im", "is", "m", "r", "t", "z"}

// vcpuQuotas are from https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html
// (read in 2026), by their code in Service Quotas.
var vcpuQuotas = map[string]vcpuQuota{
	"L-1216C47A": {"Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances", false, standard},
	"L-DB2E81BA": {"Running On-Demand G and VT instances", false, []string{"g", "gr", "vt"}},
	"L-417A185B": {"Running On-Demand P instances", false, []string{"p"}},
	"L-6E869C2A": {"Running On-Demand DL instances", false, []string{"dl"}},
	"L-74FC7D96": {"Running On-Demand F instances", false, []string{"f"}},
	"L-1945791B": {"Running On-Demand Inf instances", false, []string{"inf"}},
	"L-2C3B7624": {"Running On-Demand Trn instances", false, []string{"trn"}},
	"L-7295265B": {"Running On-Demand X instances", false, []string{"x"}},
	"L-F7808C92": {"Running On-Demand HPC instances", false, []string{"hpc"}},
	"L-43DA4232": {"Running On-Demand High Memory instances", false, []string{"u"}},

	"L-34B43A08": {"All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests", true, standard},
	"L-3819A6DF": {"All G and VT Spot Instance Requests", true, []string{"g", "gr", "vt"}},
	"L-7212CCBC": {"All P4, P3 and P2 Spot Instance Requests", true, []string{"p2", "p3", "p4"}},
	// P6 is in no quota's name, so it is counted with its predecessor.
	"L-C4BD4855": {"All P5 Spot Instance Requests", true, []string{"p5", "p6"}},
	"L-85EED4F7": {"All DL Spot Instance Requests", true, []string{"dl"}},
	"L-88CF9481": {"All F Spot Instance Requests", true, []string{"f"}},
	"L-B5D1601B": {"All Inf Spot Instance Requests", true, []string{"inf"}},
	"L-6B0D517C": {"All Trn Spot Instance Requests", true, []string{"trn"}},
	"L-E3A00192": {"All X Spot Instance Requests", true, []string{"x"}},
}

// QuotaCodes are the codes that Quota knows, sorted.
func QuotaCodes() []string { return slices.Sorted(maps.Keys(vcpuQuotas)) }

// covers says whether instances of a type count against the quota.
func (q vcpuQuota) covers(instanceType string) bool {
	letters, generation := family(instanceType)
	return slices.Contains(q.families, letters) || slices.Contains(q.families, letters+generation)
}

// family takes the first letters and the generation off a type: g4dn.xlarge is g
// and 4, u-6tb1.56xlarge is u without one.
func family(instanceType string) (letters, generation string) {
	const digits = "0123456789"
	at := strings.IndexAny(instanceType, digits+"-.")
	if at < 0 {
		return instanceType, ""
	}
	rest := instanceType[at:]
	return instanceType[:at], rest[:len(rest)-len(strings.TrimLeft(rest, digits))]
}
