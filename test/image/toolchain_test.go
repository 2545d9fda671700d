package image

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOneToolchain: go.mod names the Go of the Makefile, which reads it there, and
// the Dockerfile has to name the same, since it is also built without make.
func TestOneToolchain(t *testing.T) {
	module, dockerfile := versionIn(t, "../../go.mod", `(?m)^go (\S+)$`), versionIn(t, "../../Dockerfile", `(?m)^FROM golang:(\S+) `)
	require.Equal(t, module, dockerfile, "the Go of go.mod and of the Dockerfile")
	require.Regexp(t, `^1\.\d+\.\d+$`, module, "a version without its last number is not one toolchain")
	require.Equal(t, `$$1 == "go" {print $$2}`, versionIn(t, "../../Makefile", `(?m)^export GOTOOLCHAIN := go\$\(shell awk '(.*)' go.mod\)$`))
}

func versionIn(t *testing.T, file, pattern string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	found := regexp.MustCompile(pattern).FindSubmatch(text)
	require.NotNil(t, found, "%s has no line %s", file, pattern)
	return string(found[1])
}
