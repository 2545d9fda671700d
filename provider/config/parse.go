package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// maxFileSize is the size limit of a ConfigMap.
const maxFileSize = 1 << 20

// Load reads and validates the file at path. It returns an *Error for invalid
// content, and wraps the error of the operating system for an unreadable file.
func Load(path string) (*Config, error) {
	data, err := read(path)
	if err != nil {
		return nil, fmt.Errorf("read node group file: %w", err)
	}
	c, found := parse(data)
	if err := failure(path, found); err != nil {
		return nil, err
	}
	return c, nil
}

// Parse validates content that is already in memory. Its errors are those of Load.
func Parse(data []byte) (*Config, error) {
	c, found := parse(data)
	if err := failure("", found); err != nil {
		return nil, err
	}
	return c, nil
}

// read stops one byte past the limit, since the path may be a device without an end.
func read(path string) (data []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return io.ReadAll(io.LimitReader(f, maxFileSize+1))
}

func parse(data []byte) (*Config, []Problem) {
	var all problems
	root, ok := document(data, &all)
	if !ok {
		return nil, all.sorted()
	}
	c := &Config{}
	d := newDecoder(&all)
	if !d.decode(root, c) {
		return nil, all.sorted()
	}
	c.resolve()
	d.merge(c.problems())
	return c, all.sorted()
}

// document parses data as a single YAML mapping.
func document(data []byte, all *problems) (*yaml.Node, bool) {
	switch {
	case len(data) > maxFileSize:
		all.add("", "is larger than 1 MiB; keep only the node group file's own content in it")
		return nil, false
	case bytes.IndexByte(data, 0) >= 0:
		all.add("", "contains a NUL byte; save it as UTF-8 text")
		return nil, false
	case !utf8.Valid(data):
		all.add("", "is not UTF-8; save it as UTF-8 text")
		return nil, false
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	if err := decoder.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, malformed(err, all)
	}
	if doc.Kind == 0 || isNull(doc.Content[0]) {
		all.add("", "is empty; write at least apiVersion, kind, cloud, redis and nodeGroups")
		return nil, false
	}
	switch err := decoder.Decode(&more); {
	case err == nil:
		all.addAt("", more.Line, "contains a second YAML document; write one document per file")
		return nil, false
	case !errors.Is(err, io.EOF):
		return nil, malformed(err, all)
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		all.addAt("", root.Line, "is %s, not a mapping; begin with apiVersion: %s", describe(root), APIVersion)
		return nil, false
	}
	return root, true
}

// yamlError matches the errors of the YAML parser.
var yamlError = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

func malformed(err error, all *problems) bool {
	text, line := strings.ReplaceAll(err.Error(), "\n", " "), 0
	if m := yamlError.FindStringSubmatch(text); m != nil {
		text = m[2]
		line, _ = strconv.Atoi(m[1]) // no digits: no line
	}
	all.addAt("", line, "is not YAML: %s; check the indentation, colons and quotes", text)
	return false
}
