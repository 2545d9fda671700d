package pages

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	extast "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/text"
)

// root is the top of the tree.
const root = "../.."

// page is one Markdown file.
type page struct {
	path    string          // from root, with slashes
	anchors map[string]bool // of its headings
	links   []link
	blocks  []block
	spans   []string // the text of its code spans
	rows    []row
	source  string
}

type link struct {
	to   string
	line int
}

// block is a fenced code block. info is the text behind the fence, such as "sh background".
type block struct {
	info, text string
	line       int
}

// row is a row of a table. Its cells are the text as it is written, with backticks.
type row struct {
	heading string // above the table
	header  []string
	cells   []string
}

// generated are folders that a build makes.
var generated = map[string]bool{".git": true, ".cache": true, "bin": true, "node_modules": true}

// tree is every file and folder of the clone, by its path from root.
var tree = sync.OnceValues(func() (map[string]bool, error) {
	all := map[string]bool{".": true}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if generated[entry.Name()] {
			if entry.IsDir() {
				return filepath.SkipDir
			}
			return nil // the .git of a worktree is a file
		}
		relative, err := filepath.Rel(root, path)
		all[filepath.ToSlash(relative)] = true
		return err
	})
	return all, err
})

func files(t *testing.T) map[string]bool {
	t.Helper()
	all, err := tree()
	require.NoError(t, err)
	return all
}

func read(t *testing.T, path string) string {
	t.Helper()
	source, err := os.ReadFile(filepath.Join(root, path))
	require.NoError(t, err)
	return string(source)
}

// pages are all Markdown files, by path.
func pages(t *testing.T) map[string]*page {
	t.Helper()
	all := map[string]*page{}
	for path := range files(t) {
		if strings.HasSuffix(path, ".md") {
			all[path] = parse(path, read(t, path))
		}
	}
	return all
}

func parse(path, source string) *page {
	p := &page{path: path, anchors: map[string]bool{}, source: source}
	src := []byte(source)
	document := goldmark.New(goldmark.WithExtensions(extension.GFM)).Parser().Parse(text.NewReader(src))
	seen, heading := map[string]int{}, ""
	_ = ast.Walk(document, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the walker returns no error
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			heading = textOf(n, src)
			p.anchors[anchor(heading, seen)] = true
		case *ast.Link:
			p.links = append(p.links, link{string(n.Destination), lineOf(n, source)})
		case *ast.Image:
			p.links = append(p.links, link{string(n.Destination), lineOf(n, source)})
		case *ast.CodeSpan:
			p.spans = append(p.spans, textOf(n, src))
		case *ast.FencedCodeBlock:
			p.blocks = append(p.blocks, blockOf(n, source))
		case *extast.Table:
			p.rows = append(p.rows, rowsOf(n, heading, src)...)
		}
		return ast.WalkContinue, nil
	})
	return p
}

// textOf is what a reader sees of a node.
func textOf(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the walker returns no error
		if t, ok := n.(*ast.Text); ok && entering {
			b.Write(t.Segment.Value(source))
		}
		return ast.WalkContinue, nil
	})
	return b.String()
}

// lineOf is the line of the block that holds an inline node.
func lineOf(n ast.Node, source string) int {
	for n != nil && (n.Type() == ast.TypeInline || n.Lines().Len() == 0) {
		n = n.Parent()
	}
	if n == nil {
		return 0
	}
	return 1 + strings.Count(source[:n.Lines().At(0).Start], "\n")
}

func blockOf(n *ast.FencedCodeBlock, source string) block {
	var b block
	if n.Info != nil {
		b.info = string(n.Info.Segment.Value([]byte(source)))
	}
	if n.Lines().Len() > 0 {
		b.line = 1 + strings.Count(source[:n.Lines().At(0).Start], "\n")
	}
	b.text = string(n.Lines().Value([]byte(source)))
	return b
}

func rowsOf(table *extast.Table, heading string, source []byte) []row {
	var header []string
	var rows []row
	for child := table.FirstChild(); child != nil; child = child.NextSibling() {
		var cells []string
		for cell := child.FirstChild(); cell != nil; cell = cell.NextSibling() {
			cells = append(cells, strings.ReplaceAll(string(cell.Lines().Value(source)), `\|`, "|"))
		}
		if header == nil {
			header = cells
			continue
		}
		rows = append(rows, row{heading, header, cells})
	}
	return rows
}

// anchor is GitHub's: lower case, without punctuation, and with a number where a heading repeats.
func anchor(heading string, seen map[string]int) string {
	var b strings.Builder
	for _, r := range strings.ToLower(strings.TrimSpace(heading)) {
		switch {
		case r == ' ':
			b.WriteRune('-')
		case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r), unicode.Is(unicode.M, r):
			b.WriteRune(r)
		}
	}
	slug := b.String()
	times := seen[slug]
	seen[slug]++
	if times > 0 {
		slug += "-" + strconv.Itoa(times)
	}
	return slug
}

// codes are the code spans of a cell.
func codes(cell string) []string {
	var all []string
	for i, part := range strings.Split(cell, "`") {
		if i%2 == 1 {
			all = append(all, part)
		}
	}
	return all
}
