package pages

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const operation = "cmd/gpu-node-provider/README.md"

// sources are the files of the product, parsed.
func sources(t *testing.T) map[string]*ast.File {
	t.Helper()
	all := map[string]*ast.File{}
	for path := range files(t) {
		top := strings.SplitN(path, "/", 2)[0]
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || !slices.Contains([]string{"cmd", "provider", "cloud"}, top) {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, path), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		all[path] = file
	}
	return all
}

func literal(n ast.Expr) string {
	if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
		value, _ := strconv.Unquote(l.Value) // the parser has read it
		return value
	}
	return ""
}

var (
	metricName = regexp.MustCompile(`^[a-z]+(_[a-z]+)+$`)
	metricHelp = regexp.MustCompile(`^[A-Z0-9].* .*\.$`)
)

// A metric in the code is a name that stands beside its help, as arguments of one call or as fields of one literal.
func TestEveryMetricIsInThePage(t *testing.T) {
	inCode := map[string]bool{}
	for _, file := range sources(t) {
		subsystem := subsystemOf(file)
		ast.Inspect(file, func(n ast.Node) bool {
			var parts []ast.Expr
			switch n := n.(type) {
			case *ast.CallExpr:
				parts = n.Args
			case *ast.CompositeLit:
				for _, element := range n.Elts {
					if pair, ok := element.(*ast.KeyValueExpr); ok {
						parts = append(parts, pair.Value)
					}
				}
			}
			name, help := "", ""
			for _, part := range parts {
				switch text := literal(part); {
				case metricHelp.MatchString(text):
					help = text
				case metricName.MatchString(text) && text != "gpu_node_provider" && name == "":
					name = text
				}
			}
			if name != "" && help != "" {
				inCode["gpu_node_provider_"+subsystem+name] = true
			}
			return true
		})
	}
	assert.Greater(t, len(inCode), 30, "the metrics in the code are not recognised any more")
	inPage := map[string]bool{}
	for _, name := range firstColumn(pages(t)[operation], "Metrics", "metric") {
		if !strings.HasPrefix(name, "grpc_server_") {
			inPage[name] = true
		}
	}
	assert.Equal(t, sorted(inCode), sorted(inPage), "metrics of the code, and of the page")
}

// subsystemOf is the part between the namespace and the names in a file.
func subsystemOf(file *ast.File) (subsystem string) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			for i, name := range n.Names {
				if name.Name == "subsystem" && i < len(n.Values) {
					subsystem = literal(n.Values[i]) + "_"
				}
			}
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Subsystem" && literal(n.Value) != "" {
				subsystem = literal(n.Value) + "_"
			}
		}
		return true
	})
	return subsystem
}

// Metrics that other pages name exist too.
func TestMetricsThatPagesNameExist(t *testing.T) {
	all := pages(t)
	known := firstColumn(all[operation], "Metrics", "metric")
	name := regexp.MustCompile(`\bgpu_node_provider_[a-z_]*[a-z]\b`)
	for _, p := range all {
		for _, metric := range name.FindAllString(p.source, -1) {
			assert.Contains(t, known, metric, p.path)
		}
	}
}

var reasonName = regexp.MustCompile(`^[A-Z][a-z]+([A-Z][a-z]+)+$`)

// writesEvent are the functions that take the reason of an Event.
var writesEvent = regexp.MustCompile(`^(Tell|[wW]arn|WarnOf|WarnSelf|warnWaiting|Eventf?)$`)

// A reason in the code is an argument of what writes an Event, or a constant for it.
func TestEveryEventIsInThePage(t *testing.T) {
	inCode := map[string]bool{}
	for _, file := range sources(t) {
		ast.Inspect(file, func(n ast.Node) bool {
			var candidates []ast.Expr
			switch n := n.(type) {
			case *ast.CallExpr:
				if writesEvent.MatchString(calledName(n.Fun)) {
					candidates = n.Args
				}
			case *ast.ValueSpec:
				ofType, _ := n.Type.(*ast.Ident)
				if ofType != nil && ofType.Name == "Reason" || strings.HasPrefix(strings.ToLower(n.Names[0].Name), "reason") {
					candidates = n.Values
				}
			}
			for _, c := range candidates {
				if reasonName.MatchString(literal(c)) {
					inCode[literal(c)] = true
				}
			}
			return true
		})
	}
	assert.Greater(t, len(inCode), 10, "the Events in the code are not recognised any more")
	inPage := map[string]bool{}
	for _, reason := range firstColumn(pages(t)[operation], "Events", "reason") {
		inPage[reason] = true
	}
	assert.Equal(t, sorted(inCode), sorted(inPage), "Events of the code, and of the page")
}

func calledName(f ast.Expr) string {
	switch f := f.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

// Annotations, labels and other names below our domain are in the code or in the manifests.
func TestNamesOfOurDomainExist(t *testing.T) {
	name := regexp.MustCompile(`gpu-node-provider\.io/[a-z0-9-]*[a-z0-9]`)
	known := map[string]bool{}
	for path := range files(t) {
		if strings.HasPrefix(path, "cmd/") || strings.HasPrefix(path, "provider/") || strings.HasPrefix(path, "deploy/") {
			if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, ".yaml") && !strings.Contains(path, "testdata") {
				for _, found := range name.FindAllString(read(t, path), -1) {
					known[found] = true
				}
			}
		}
	}
	for _, p := range pages(t) {
		for _, found := range name.FindAllString(p.source, -1) {
			assert.True(t, known[found], "%s names %s, which is in no code and no manifest", p.path, found)
		}
	}
}

// firstColumn are the code spans in the first column of the tables below a heading whose first title is given.
func firstColumn(p *page, heading, title string) []string {
	var all []string
	for _, r := range p.rows {
		if r.heading == heading && r.header[0] == title {
			all = append(all, codes(r.cells[0])...)
		}
	}
	return all
}

func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }
