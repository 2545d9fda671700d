package config

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
)

// These replace the messages of Kubernetes, which quote regular expressions.
const (
	dnsLabelHelp   = "use up to 63 lowercase letters, digits and '-', a letter or digit first and last"
	labelKeyHelp   = "use up to 63 letters, digits, '-', '_' and '.', optionally after a DNS name and '/'"
	labelValueHelp = "use up to 63 letters, digits, '-', '_' and '.', a letter or digit first and last"
)

func isDNSLabel(s string) bool   { return len(content.IsDNS1123Label(s)) == 0 }
func isLabelKey(s string) bool   { return len(content.IsLabelKey(s)) == 0 }
func isLabelValue(s string) bool { return len(content.IsLabelValue(s)) == 0 }

// isExtendedResource reports whether s is the name of a device plugin's resource.
func isExtendedResource(s string) bool {
	return strings.Contains(s, "/") && isLabelKey(s) && !strings.HasPrefix(s, "kubernetes.io/")
}

// hugePages matches resources such as hugepages-2Mi.
var hugePages = regexp.MustCompile(`^hugepages-[0-9]+[KMG]i$`)

// expect reports a field that is empty, or whose text is not what describes.
func (v validator) expect(field, text string, good bool, what, help string) {
	switch {
	case good:
	case text == "":
		v.add(field, "is missing; %s", help)
	default:
		v.add(field, "%s is not %s; %s", show(text), what, help)
	}
}

func (v validator) positive(field string, d Duration) {
	if d.Duration <= 0 {
		v.add(field, "%s is not a positive duration; write one such as 30s", d)
	}
}

func (v validator) notNegative(field string, d Duration) {
	if d.Duration < 0 {
		v.add(field, "%s is negative; write 0s or more", d)
	}
}

func (v validator) share(field string, f float64) {
	if !(f >= 0 && f <= 1) { // also for NaN
		v.add(field, "%s is not a fraction; write 0 to 1", decimal(f))
	}
}

// decimal formats a number without an exponent.
func decimal(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// eachOnce runs check on every distinct entry and reports duplicates.
func (v validator) eachOnce(field string, list []string, check func(at, s string)) {
	first := map[string]int{}
	for i, s := range list {
		at := item(field, i)
		if j, twice := first[s]; twice {
			v.add(at, "%s is listed twice, first as %s; keep one", show(s), item(field, j))
			continue
		}
		first[s] = i
		check(at, s)
	}
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	return slices.Sorted(maps.Keys(m))
}

func (v validator) launchCode(code string) {
	v.expect("cloud.simulated.launchErrors.code", code, slices.Contains(launchCodes, code),
		"a launch error code", "write one of "+strings.Join(launchCodes, ", "))
}
