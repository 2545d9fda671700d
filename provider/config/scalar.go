package config

import (
	"encoding/json"
	"reflect"
	"regexp"
	"strconv"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"
)

var (
	wholeNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]{0,18})$`)
	// The parser of Kubernetes accepts exponents whose powers of ten exhaust the memory.
	quantity = regexp.MustCompile(`^[+-]?[0-9.]{1,32}([numk]|[KMGTPE]i?|[eE][+-]?[0-9]{1,2})?$`)
)

// plainTags are the tags that YAML resolves untagged text to.
var plainTags = map[string]bool{
	"!!str": true, "!!int": true, "!!float": true, "!!bool": true, "!!timestamp": true, "!!merge": true,
}

// isText reports whether the type is a struct in Go and a scalar in the file.
func isText(t reflect.Type) bool {
	return t == reflect.TypeFor[Duration]() || t == reflect.TypeFor[resource.Quantity]()
}

func (d *decoder) scalar(n *yaml.Node, path string, v reflect.Value) {
	if n.Kind != yaml.ScalarNode {
		d.mismatch(path, "is %s; write a single value", describe(n))
		return
	}
	if !plainTags[n.ShortTag()] {
		d.mismatch(path, "has the tag %s; write the value without a tag", show(n.ShortTag()))
		return
	}
	if isText(v.Type()) {
		d.text(n, path, v)
		return
	}
	switch v.Kind() {
	case reflect.String:
		// The text as written: an unquoted 1.10 or true is a string here.
		v.SetString(n.Value)
	case reflect.Bool:
		d.boolean(n, path, v)
	case reflect.Int:
		d.integer(n, path, v)
	case reflect.Float64:
		d.float(n, path, v)
	default:
		panic("config: decoder does not support the type of a field: " + v.Type().String())
	}
}

func (d *decoder) text(n *yaml.Node, path string, v reflect.Value) {
	switch out := v.Addr().Interface().(type) {
	case *Duration:
		text, _ := json.Marshal(n.Value) // never fails for a string
		if err := out.UnmarshalJSON(text); err != nil {
			d.mismatch(path, "%s; write a number with its unit", err)
		}
	case *resource.Quantity:
		if !quantity.MatchString(n.Value) || json.Unmarshal([]byte(strconv.Quote(n.Value)), out) != nil {
			d.mismatch(path, "%s is not a quantity; write one such as 4, 500m or 16Gi", show(n.Value))
		}
	}
}

func (d *decoder) boolean(n *yaml.Node, path string, v reflect.Value) {
	on, err := strconv.ParseBool(n.Value)
	if err != nil || n.ShortTag() != "!!bool" {
		d.mismatch(path, "%s is not a boolean; write true or false without quotes", show(n.Value))
		return
	}
	v.SetBool(on)
}

func (d *decoder) integer(n *yaml.Node, path string, v reflect.Value) {
	i, err := strconv.ParseInt(n.Value, 10, 64)
	if err != nil || n.ShortTag() != "!!int" || !wholeNumber.MatchString(n.Value) || v.OverflowInt(i) {
		d.mismatch(path, "%s is not a whole number; write digits without quotes", show(n.Value))
		return
	}
	v.SetInt(i)
}

func (d *decoder) float(n *yaml.Node, path string, v reflect.Value) {
	// ParseFloat rejects YAML's .inf and .nan, and YAML reads inf and nan as strings.
	f, err := strconv.ParseFloat(n.Value, 64)
	number := n.ShortTag() == "!!int" || n.ShortTag() == "!!float"
	if err != nil || !number {
		d.mismatch(path, "%s is not a number; write one such as 0.5 without quotes", show(n.Value))
		return
	}
	v.SetFloat(f)
}

// target resolves an alias.
func target(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}

// describe returns the kind of a node, or the quoted value of a scalar, for messages.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	default:
		return show(n.Value)
	}
}
