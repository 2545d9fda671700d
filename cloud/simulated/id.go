package simulated

import (
	"math/rand/v2"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	idPrefix          = "simulated:///"
	placeholderPrefix = "placeholder-"
	templateName      = "template"

	// alphabet has no vowels and no look-alikes, so that a name spells nothing
	// and can be read out.
	alphabet = "bcdfghjklmnpqrstvwxz2456789"
	// serialLen is the length of a machine's own part of its name.
	serialLen = 5
	// saltLen more characters follow in a placeholder's name. The different
	// length keeps a group called "placeholder" unambiguous.
	saltLen = 5
	// serials is how many names a group's machines can have: len(alphabet)^serialLen.
	serials = 27 * 27 * 27 * 27 * 27
	// maxGroupLen leaves room for the rest of a Node's name, which is also the
	// value of its hostname label.
	maxGroupLen = validation.DNS1123LabelMaxLength - serialLen - 1
)

// kind is what an id is the id of, by its form.
type kind int

const (
	kindForeign kind = iota
	kindMachine
	kindPlaceholder
	kindTemplate
)

func machineName(group, serial string) string { return group + "-" + serial }

func machineID(group, serial string) string {
	return idPrefix + group + "/" + machineName(group, serial)
}

func placeholderID(group, serial, salt string) string {
	return idPrefix + group + "/" + placeholderPrefix + serial + salt
}

// parseID takes an id apart. Only what this package could have made itself has
// another kind than foreign; rest is what follows the group's or placeholder's
// prefix.
func parseID(id string) (group, rest string, k kind) {
	path, ok := strings.CutPrefix(id, idPrefix)
	if !ok {
		return "", "", kindForeign
	}
	group, name, ok := strings.Cut(path, "/")
	if !ok || !validGroup(group) {
		return "", "", kindForeign
	}
	if name == templateName {
		return group, "", kindTemplate
	}
	if rest, ok := strings.CutPrefix(name, placeholderPrefix); ok && isCode(rest, serialLen+saltLen) {
		return group, rest, kindPlaceholder
	}
	if rest, ok := strings.CutPrefix(name, group+"-"); ok && isCode(rest, serialLen) {
		return group, rest, kindMachine
	}
	return "", "", kindForeign
}

func validGroup(group string) bool {
	return len(group) <= maxGroupLen && len(validation.IsDNS1123Label(group)) == 0
}

func isCode(s string, length int) bool {
	return len(s) == length && strings.Trim(s, alphabet) == ""
}

// code spells a number of [0, serials) with the alphabet.
func code(n uint32) string {
	var b [serialLen]byte
	for i := range b {
		b[i] = alphabet[n%uint32(len(alphabet))]
		n /= uint32(len(alphabet))
	}
	return string(b[:])
}

func randomCode(random *rand.Rand, length int) string {
	b := make([]byte, length)
	for i := range b {
		b[i] = alphabet[random.IntN(len(alphabet))]
	}
	return string(b)
}

// sequence walks over all serials from a random one in steps of a random size
// that shares no factor with their number: a state never uses a serial again,
// although it remembers none, and one that starts anew is unlikely to meet those
// that a lost one has used. Five drawn characters would repeat within thousands.
type sequence struct {
	Next uint32 `json:"next"`
	Step uint32 `json:"step"`
}

func newSequence(random *rand.Rand) sequence {
	return sequence{
		Next: random.Uint32N(serials),
		Step: 1 + 3*random.Uint32N(serials/3), // serials is a power of 3
	}
}

func (s sequence) valid() bool {
	return s.Next < serials && s.Step < serials && s.Step%3 != 0
}

// take returns the next serial that is not in use, and the sequence after it.
func (s sequence) take(used map[string]bool) (string, sequence) {
	for {
		serial := code(s.Next)
		s.Next = (s.Next + s.Step) % serials
		if !used[serial] {
			return serial, s
		}
	}
}

// Recognizes implements cloud.Backend.
func (c *Cloud) Recognizes(instance string) bool {
	_, _, k := parseID(instance)
	return k != kindForeign
}

// TemplateID implements cloud.Backend.
func (c *Cloud) TemplateID(group string) string {
	return idPrefix + group + "/" + templateName
}
