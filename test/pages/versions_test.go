package pages

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Builds, CI and the image use one Go.
func TestOneGo(t *testing.T) {
	found := map[string]string{}
	for path, pattern := range map[string]string{
		"Makefile":   `(?m)^export GOTOOLCHAIN = go(\S+)$`,
		"go.mod":     `(?m)^go (\S+)$`,
		"Dockerfile": `(?m)^FROM golang:([0-9.]+)\S* AS `,
	} {
		match := regexp.MustCompile(pattern).FindStringSubmatch(read(t, path))
		require.NotNil(t, match, "%s names no Go", path)
		found[path] = match[1]
	}
	for path, version := range found {
		assert.Equal(t, found["go.mod"], version, "the Go of %s is not that of go.mod", path)
	}
}
