package config

import (
	"bytes"
	"encoding/json"
	"regexp"

	"go.yaml.in/yaml/v3"
)

// Marshal returns the configuration as YAML with every default, in field order.
// Parse of the result returns an equal Config.
func (c *Config) Marshal() ([]byte, error) {
	data, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	// Parsing the JSON as YAML nodes keeps the field order, which a map would lose.
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, err
	}
	blockStyle(&doc)
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(&doc); err != nil {
		return nil, err
	}
	return out.Bytes(), encoder.Close()
}

var (
	// simple matches text that needs no quotes. The encoder adds them again where
	// the text would otherwise decode as another type.
	simple = regexp.MustCompile(`^[A-Za-z0-9/][A-Za-z0-9/._=:@*-]*$`)
	// oldBool matches text that YAML 1.1, and so other tools, decodes as a boolean.
	oldBool = regexp.MustCompile(`^(?i:y|yes|n|no|on|off)$`)
)

// blockStyle replaces the flow style and quotes of JSON with block style.
func blockStyle(n *yaml.Node) {
	if n.Kind != yaml.ScalarNode || simple.MatchString(n.Value) && !oldBool.MatchString(n.Value) {
		n.Style = 0
	}
	for _, child := range n.Content {
		blockStyle(child)
	}
}
