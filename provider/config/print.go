package config

import (
	"bytes"
	"encoding/json"
	"regexp"

	"go.yaml.in/yaml/v3"
)

// Marshal writes the configuration with every default filled in, in the order
// of the types. Parse reads it back to an equal Config.
func (c *Config) Marshal() ([]byte, error) {
	data, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	// JSON is YAML: parsed as such, it keeps the order that a map would lose.
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, err
	}
	relax(&doc)
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(&doc); err != nil {
		return nil, err
	}
	return out.Bytes(), encoder.Close()
}

var (
	// simple is text that reads better without quotes. The encoder puts them
	// back where it would otherwise be a number or the like.
	simple = regexp.MustCompile(`^[A-Za-z0-9/][A-Za-z0-9/._=:@*-]*$`)
	// oldBool is what YAML 1.1, and so other tools, would take for a boolean.
	oldBool = regexp.MustCompile(`^(?i:y|yes|n|no|on|off)$`)
)

// relax turns JSON's style into that of a file that people write.
func relax(n *yaml.Node) {
	if n.Kind != yaml.ScalarNode || simple.MatchString(n.Value) && !oldBool.MatchString(n.Value) {
		n.Style = 0
	}
	for _, child := range n.Content {
		relax(child)
	}
}
