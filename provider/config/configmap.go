package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// ConfigMap is a ConfigMap of a manifest.
type ConfigMap struct {
	Name  string // namespace/name, or the name alone when the manifest sets no namespace
	Files []EmbeddedFile
}

// EmbeddedFile is a node group file that is the value of a key of a ConfigMap.
type EmbeddedFile struct {
	ConfigMap, Key string

	path string // of the manifest
	text string
	line int // of the manifest, before the first one of text; 0 when lines of text are not lines of the manifest
}

// String returns where in its manifest the file is.
func (f EmbeddedFile) String() string { return fmt.Sprintf("ConfigMap %s, key %s", f.ConfigMap, f.Key) }

// ConfigMaps returns the ConfigMaps among the YAML documents of a manifest. The
// path is for messages only. A manifest that is not YAML from its first document
// on has none: Parse reports why.
func ConfigMaps(path string, data []byte) (maps []ConfigMap, err error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	for first := true; ; first = false {
		var doc yaml.Node
		err := decoder.Decode(&doc)
		switch {
		case errors.Is(err, io.EOF), err != nil && first:
			return maps, nil
		case err != nil:
			var all problems
			malformed(err, &all)
			return nil, failure(path, all.sorted())
		}
		if root := doc.Content[0]; text(root, "apiVersion") == "v1" && text(root, "kind") == "ConfigMap" {
			maps = append(maps, configMap(path, root))
		}
	}
}

func configMap(path string, root *yaml.Node) ConfigMap {
	metadata := child(root, "metadata")
	m := ConfigMap{Name: cmp.Or(text(metadata, "name"), "without a name")}
	if namespace := text(metadata, "namespace"); namespace != "" {
		m.Name = namespace + "/" + m.Name
	}
	data := child(root, "data")
	if data == nil || data.Kind != yaml.MappingNode {
		return m
	}
	for i := 0; i+1 < len(data.Content); i += 2 {
		key, value := data.Content[i], target(data.Content[i+1])
		if value.Kind != yaml.ScalarNode || !isNodeGroupFile(value.Value) {
			continue
		}
		f := EmbeddedFile{ConfigMap: m.Name, Key: key.Value, path: path, text: value.Value}
		if value.Style&yaml.LiteralStyle != 0 {
			f.line = value.Line
		}
		m.Files = append(m.Files, f)
	}
	return m
}

// isNodeGroupFile goes by the header. Text that is not YAML counts when it holds
// the kind, so that a file with a syntax error is reported and not passed over.
func isNodeGroupFile(file string) bool {
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(file), &doc); err != nil {
		return strings.Contains(file, "kind: "+Kind)
	}
	if doc.Kind == 0 {
		return false
	}
	group, _, _ := strings.Cut(APIVersion, "/")
	return text(doc.Content[0], "kind") == Kind || strings.HasPrefix(text(doc.Content[0], "apiVersion"), group+"/")
}

// Parse reads the file. Problems carry the lines of the manifest where the value
// is a literal block, and else the lines of the value.
func (f EmbeddedFile) Parse() (*Config, error) {
	path := f.path
	if f.line == 0 {
		path = fmt.Sprintf("%s (%s)", f.path, f)
	}
	// Blank lines in front move every line number, those inside of messages too.
	c, found := parse([]byte(strings.Repeat("\n", f.line) + f.text))
	if err := failure(path, found); err != nil {
		return nil, err
	}
	return c, nil
}

// child returns the value of a key of a mapping, nil when there is none.
func child(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return target(n.Content[i+1])
		}
	}
	return nil
}

// text returns the scalar of a key of a mapping, empty when there is none.
func text(n *yaml.Node, key string) string {
	if value := child(n, key); value != nil && value.Kind == yaml.ScalarNode {
		return value.Value
	}
	return ""
}
