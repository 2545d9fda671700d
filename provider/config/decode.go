package config

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxValues limits the values of a file once its aliases are expanded, since a few
// lines of aliases can expand to billions. No valid file of 1 MiB comes near it.
const maxValues = 250_000

// decoder decodes a YAML tree into a Config.
//
// sigs.k8s.io/yaml does not serve here: by way of encoding/json it stops at the
// first mismatch, omits list indexes from its paths and reports no lines.
type decoder struct {
	*problems
	lines  map[string]int // line of each path that the file sets
	broken []string       // paths whose value did not decode
	fields map[reflect.Type]map[string]int
	values int
}

func newDecoder(all *problems) *decoder {
	return &decoder{problems: all, lines: map[string]int{}, fields: map[reflect.Type]map[string]int{}}
}

// decode decodes the tree over the defaults of c. It returns false when it stopped
// early, so that validating c would report values that were merely not reached.
func (d *decoder) decode(root *yaml.Node, c *Config) bool {
	c.setDefaults()
	d.lines[""] = root.Line
	d.value(root, "", reflect.ValueOf(c).Elem())
	if d.values > maxValues {
		d.add("", "holds more than %d values once its aliases are written out; use fewer aliases", maxValues)
		return false
	}
	return true
}

// merge adds the problems that validation found, each with the line of its field or
// of the closest enclosing one. It drops those that follow from a value that did not
// decode.
func (d *decoder) merge(found *problems) {
	for _, f := range found.found {
		if !d.affected(f.Field) && !slices.ContainsFunc(f.causes, d.affected) {
			d.addAt(f.Field, d.line(f.Field), "%s", f.Message)
		}
	}
	d.extra += found.extra
}

// affected reports whether the field, a part of it, or a field around it did not decode.
func (d *decoder) affected(field string) bool {
	return slices.ContainsFunc(d.broken, func(path string) bool { return within(field, path) || within(path, field) })
}

// within reports whether path is outer or lies inside it.
func within(path, outer string) bool {
	rest, ok := strings.CutPrefix(path, outer)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

func (d *decoder) line(path string) int {
	for {
		if line, ok := d.lines[path]; ok {
			return line
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
}

// mismatch reports a value of the wrong type.
func (d *decoder) mismatch(path, format string, args ...any) {
	if len(d.found) < maxProblems {
		d.broken = append(d.broken, path)
	}
	d.addAt(path, d.lines[path], format, args...)
}

// countValue counts a value. It returns false once maxValues is exceeded.
func (d *decoder) countValue() bool {
	d.values++
	return d.values <= maxValues
}

func (d *decoder) value(n *yaml.Node, path string, v reflect.Value) {
	n = target(n)
	if !d.countValue() {
		return
	}
	if isNull(n) {
		d.null(path, v)
		return
	}
	if isText(v.Type()) {
		d.scalar(n, path, v)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(fresh(v.Type().Elem()).Addr())
		d.value(n, path, v.Elem())
	case reflect.Struct:
		d.structure(n, path, v)
	case reflect.Map:
		d.mapping(n, path, v)
	case reflect.Slice:
		d.list(n, path, v)
	default:
		d.scalar(n, path, v)
	}
}

// null treats a key without a value as unset where that is unambiguous: strings,
// lists, mappings and sections that always exist.
func (d *decoder) null(path string, v reflect.Value) {
	t := v.Type()
	section := t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct && !isText(t.Elem())
	container := t.Kind() == reflect.Slice || t.Kind() == reflect.Map || t.Kind() == reflect.Struct && !isText(t)
	switch {
	case section: // its presence enables a feature
		d.mismatch(path, "has no value; write {} to use its defaults, or remove the key")
	case t.Kind() != reflect.String && !container:
		d.mismatch(path, "has no value; write one, or remove the key")
	}
}

func (d *decoder) structure(n *yaml.Node, path string, v reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.mismatch(path, "is %s, not a mapping; write its keys below it", describe(n))
		return
	}
	fields := d.fieldsOf(v.Type())
	child := func(name string) string { return member(path, name) }
	for _, e := range d.entries(n, child) {
		name := e.key.Value
		index, known := fields[name]
		if !known {
			d.addAt(child(name), e.key.Line, "unknown key; %s", suggestion{name, fields})
			continue
		}
		d.lines[child(name)] = e.key.Line
		d.value(e.value, child(name), v.Field(index))
	}
}

func (d *decoder) mapping(n *yaml.Node, path string, v reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.mismatch(path, "is %s, not a mapping; write it as key: value lines", describe(n))
		return
	}
	v.Set(reflect.MakeMap(v.Type()))
	child := func(name string) string { return key(path, name) }
	for _, e := range d.entries(n, child) {
		name := e.key.Value
		d.lines[child(name)] = e.key.Line
		element := fresh(v.Type().Elem())
		d.value(e.value, child(name), element)
		v.SetMapIndex(reflect.ValueOf(name).Convert(v.Type().Key()), element)
	}
}

func (d *decoder) list(n *yaml.Node, path string, v reflect.Value) {
	if n.Kind != yaml.SequenceNode {
		d.mismatch(path, "is %s, not a list; write each entry after a dash, or all of them in [ ]", describe(n))
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), 0, 0))
	for i, child := range n.Content {
		if d.values > maxValues {
			return
		}
		at := item(path, i)
		d.lines[at] = child.Line
		element := fresh(v.Type().Elem())
		if isNull(target(child)) {
			d.mismatch(at, "has no value; write one, or remove the dash")
		} else {
			d.value(child, at, element)
		}
		v.Set(reflect.Append(v, element))
	}
}

// entry is a key of a mapping with its value.
type entry struct{ key, value *yaml.Node }

// entries returns a mapping's own entries, then those merged by << that it does not
// set itself. It reports a key that is set twice and keeps the first value.
func (d *decoder) entries(n *yaml.Node, child func(string) string) []entry {
	var own, merged []entry
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content) && d.countValue(); i += 2 {
		k, v := target(n.Content[i]), n.Content[i+1]
		switch line, twice := seen[k.Value]; {
		case k.Kind != yaml.ScalarNode:
			d.addAt(child("?"), k.Line, "has %s as a key; write plain text", describe(k))
		case twice:
			d.addAt(child(k.Value), n.Content[i].Line, "is set twice, first on line %d; keep one", line)
		case k.ShortTag() == "!!merge":
			seen[k.Value] = k.Line
			merged = d.merged(v, child)
		default:
			seen[k.Value] = k.Line
			own = append(own, entry{k, v})
		}
	}
	for _, e := range merged {
		if _, set := seen[e.key.Value]; !set && d.countValue() {
			seen[e.key.Value] = e.key.Line
			own = append(own, e)
		}
	}
	return own
}

// merged returns the entries of the mapping, or of the list of mappings, that << refers to.
func (d *decoder) merged(n *yaml.Node, child func(string) string) []entry {
	n = target(n)
	switch {
	case !d.countValue():
		return nil
	case n.Kind == yaml.MappingNode:
		return d.entries(n, child)
	case n.Kind == yaml.SequenceNode:
		var all []entry
		for _, part := range n.Content {
			if target(part).Kind != yaml.MappingNode {
				d.addAt(child("<<"), part.Line, "merges %s; give it mappings only", describe(target(part)))
				continue
			}
			all = append(all, d.merged(part, child)...)
		}
		return all
	default:
		d.addAt(child("<<"), n.Line, "merges %s; give it a mapping", describe(n))
		return nil
	}
}

// fieldsOf maps the JSON names of a struct's fields to their indexes.
func (d *decoder) fieldsOf(t reflect.Type) map[string]int {
	if known, ok := d.fields[t]; ok {
		return known
	}
	fields := map[string]int{}
	for i := range t.NumField() {
		if t.Field(i).Type == reflect.TypeFor[*metav1.Time]() {
			continue // timeAdded of a taint, which only Kubernetes sets
		}
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name == "-" { // set by the completion, not by the file
			continue
		}
		fields[name] = i
	}
	d.fields[t] = fields
	return fields
}

// fresh returns a new value with its defaults.
func fresh(t reflect.Type) reflect.Value {
	v := reflect.New(t)
	if d, ok := v.Interface().(defaulter); ok {
		d.setDefaults()
	}
	return v.Elem()
}

// suggestion names a likely key for an unknown one. It is a Stringer so that the distances
// are computed only for problems that fit the report.
type suggestion struct {
	name   string
	fields map[string]int
}

func (a suggestion) String() string {
	names := slices.Sorted(maps.Keys(a.fields))
	closest := slices.MinFunc(names, func(x, y string) int { return cmp.Compare(distance(a.name, x), distance(a.name, y)) })
	if off := distance(a.name, closest); off <= 2 && 2*off < len(a.name) {
		return "did you mean " + closest + "?"
	}
	return "the known keys are " + strings.Join(names, ", ")
}

// distance returns the Levenshtein distance of a and b, ignoring case. A name longer
// than maxShown is not compared, to bound the work.
func distance(a, b string) int {
	if len(a) > maxShown {
		return len(a)
	}
	a, b = strings.ToLower(a), strings.ToLower(b)
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0]++
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}
