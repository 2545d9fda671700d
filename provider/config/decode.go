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

// maxValues bounds what a file holds once its aliases are written out. A few
// lines of aliases can stand for billions of values, and no file of 1 MiB that
// is meant comes near.
const maxValues = 250_000

// decoder writes a YAML tree over a Config.
//
// It is written here because sigs.k8s.io/yaml, by way of encoding/json, stops
// at the first mismatch, leaves list indexes out of its paths and has no lines.
type decoder struct {
	*problems
	lines  map[string]int // of each path that the file sets
	broken []string       // paths whose value could not be read
	fields map[reflect.Type]map[string]int
	values int
}

func newDecoder(all *problems) *decoder {
	return &decoder{problems: all, lines: map[string]int{}, fields: map[reflect.Type]map[string]int{}}
}

// decode reads the tree over c's defaults. It is false when there is no point
// in looking at the result.
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

// merge adds what the rules found, each with the line of its field or of the
// closest one around it. What only follows from a value that could not be read
// is left out.
func (d *decoder) merge(found *problems) {
	for _, f := range found.found {
		if !d.touched(f.Field) && !slices.ContainsFunc(f.causes, d.touched) {
			d.addAt(f.Field, d.line(f.Field), "%s", f.Message)
		}
	}
	d.extra += found.extra
}

// touched is whether some of the field could not be read.
func (d *decoder) touched(field string) bool {
	return slices.ContainsFunc(d.broken, func(path string) bool { return within(field, path) || within(path, field) })
}

// within is whether path is outer or lies inside it.
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

// mismatch reports a value that cannot be what its field needs.
func (d *decoder) mismatch(path, format string, args ...any) {
	if len(d.found) < maxProblems {
		d.broken = append(d.broken, path)
	}
	d.addAt(path, d.lines[path], format, args...)
}

// spend counts values, and is false once there have been too many.
func (d *decoder) spend() bool {
	d.values++
	return d.values <= maxValues
}

func (d *decoder) value(n *yaml.Node, path string, v reflect.Value) {
	n = target(n)
	if !d.spend() {
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

// null treats a key without a value as left out where that can mean only one
// thing: text, lists, mappings and sections that are there anyway.
func (d *decoder) null(path string, v reflect.Value) {
	t := v.Type()
	section := t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct && !isText(t.Elem())
	container := t.Kind() == reflect.Slice || t.Kind() == reflect.Map || t.Kind() == reflect.Struct && !isText(t)
	switch {
	case section: // its mere presence switches something on
		d.mismatch(path, "has no value; write {} to have it with its defaults, or remove the key")
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
			d.addAt(child(name), e.key.Line, "unknown key; %s", advice{name, fields})
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

// entries lists a mapping's own entries, then those that << merges and that it
// does not set itself. A key that is set twice is reported, and its first value
// counts.
func (d *decoder) entries(n *yaml.Node, child func(string) string) []entry {
	var own, merged []entry
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content) && d.spend(); i += 2 {
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
		if _, set := seen[e.key.Value]; !set && d.spend() {
			seen[e.key.Value] = e.key.Line
			own = append(own, e)
		}
	}
	return own
}

// merged lists the entries of the mapping, or the list of mappings, behind <<.
func (d *decoder) merged(n *yaml.Node, child func(string) string) []entry {
	n = target(n)
	switch {
	case !d.spend():
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

// fieldsOf maps the file's names of a struct's fields to their indexes.
func (d *decoder) fieldsOf(t reflect.Type) map[string]int {
	if known, ok := d.fields[t]; ok {
		return known
	}
	fields := map[string]int{}
	for i := range t.NumField() {
		if t.Field(i).Type == reflect.TypeFor[*metav1.Time]() {
			continue // a taint's timeAdded, which only Kubernetes writes
		}
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name == "-" { // it is not the file's to say
			continue
		}
		fields[name] = i
	}
	d.fields[t] = fields
	return fields
}

// fresh is a new value with its defaults.
func fresh(t reflect.Type) reflect.Value {
	v := reflect.New(t)
	if d, ok := v.Interface().(defaulter); ok {
		d.setDefaults()
	}
	return v.Elem()
}

// advice names the key that was meant, or those there are. It is worked out
// only for problems that are kept.
type advice struct {
	name   string
	fields map[string]int
}

func (a advice) String() string {
	names := slices.Sorted(maps.Keys(a.fields))
	closest := slices.MinFunc(names, func(x, y string) int { return cmp.Compare(distance(a.name, x), distance(a.name, y)) })
	if off := distance(a.name, closest); off <= 2 && 2*off < len(a.name) {
		return "did you mean " + closest + "?"
	}
	return "the keys here are " + strings.Join(names, ", ")
}

// distance is how many letters have to be added, dropped or replaced to make b
// of a, in whatever case. Long names are far from everything.
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
