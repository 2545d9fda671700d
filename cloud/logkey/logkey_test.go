package logkey

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// source calls look with every node of the Go files of the module that are part of a
// binary.
func source(t *testing.T, look func(at token.Position, node ast.Node)) {
	t.Helper()
	files := token.NewFileSet()
	for _, root := range []string{"cmd", "provider", "cloud"} {
		err := filepath.WalkDir(filepath.Join("..", "..", root), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(node ast.Node) bool {
				if node != nil {
					look(files.Position(node.Pos()), node)
				}
				return true
			})
			return nil
		})
		require.NoError(t, err)
	}
}

// selected returns the name that node selects from a package, or "".
func selected(node ast.Node, from string) string {
	s, ok := node.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if x, ok := s.X.(*ast.Ident); !ok || x.Name != from {
		return ""
	}
	return s.Sel.Name
}

func TestFieldsHaveKeysOfThisPackage(t *testing.T) {
	source(t, func(at token.Position, node ast.Node) {
		call, ok := node.(*ast.CallExpr)
		if !ok || selected(call.Fun, "zap") == "" || len(call.Args) == 0 {
			return
		}
		if key, literal := call.Args[0].(*ast.BasicLit); literal && key.Kind == token.STRING {
			t.Errorf("%s: key %s is a literal; use a constant of package logkey", at, key.Value)
		}
	})
}

var snakeCase = regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)

func TestKeysAreDistinctAndUsed(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "logkey.go", nil, parser.ParseComments)
	require.NoError(t, err)
	unused, seen := map[string]bool{}, map[string]string{}
	ast.Inspect(file, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if !ok {
			return true
		}
		name := spec.Names[0].Name
		key, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value) //nolint:errcheck,forcetypeassert // every constant is a literal
		require.NoError(t, err)
		assert.Regexp(t, snakeCase, key, name)
		assert.Empty(t, seen[key], "%s has the key of %s", name, seen[key])
		assert.NotNil(t, spec.Comment, "%s has no type and meaning", name)
		unused[name], seen[key] = true, name
		return true
	})
	require.NotEmpty(t, unused)
	source(t, func(_ token.Position, node ast.Node) { delete(unused, selected(node, "logkey")) })
	assert.Empty(t, unused, "keys that no log line has")
}
