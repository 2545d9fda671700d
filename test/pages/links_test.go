package pages

import (
	"fmt"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// maxReadme keeps README.md an entrance; a subject has a page of its own.
const maxReadme = 10 << 10

func TestReadmeIsShort(t *testing.T) {
	assert.LessOrEqual(t, len(read(t, "README.md")), maxReadme, "bytes in README.md; move a part to the page of its subject")
}

func TestLinks(t *testing.T) {
	all := pages(t)
	found := 0
	for _, from := range slices.Sorted(maps.Keys(all)) {
		for _, l := range all[from].links {
			found++
			assert.Empty(t, broken(all, files(t), from, l.to), "%s:%d: link to %s", from, l.line, l.to)
		}
	}
	assert.Greater(t, found, 50)
}

// broken is why a link leads nowhere; empty for one that does, and for one to another site.
func broken(all map[string]*page, there map[string]bool, from, to string) string {
	u, err := url.Parse(to)
	if err != nil {
		return err.Error()
	}
	switch {
	case u.Scheme == "https":
		return ""
	case u.Scheme != "" || u.Host != "" || strings.HasPrefix(u.Path, "/"):
		return "is neither https nor relative"
	}
	target := from
	if u.Path != "" {
		target = path.Join(path.Dir(from), u.Path)
	}
	switch {
	case strings.HasPrefix(target, ".."):
		return "leaves the clone"
	case !there[target]:
		return fmt.Sprintf("%s does not exist, or is not part of the clone", target)
	case u.Fragment == "":
		return ""
	case all[target] == nil:
		return "has an anchor, and is no page"
	case !all[target].anchors[u.Fragment]:
		return fmt.Sprintf("%s has no heading with this anchor: %s", target, strings.Join(slices.Sorted(maps.Keys(all[target].anchors)), ", "))
	}
	return ""
}

func TestBrokenLinksAreFound(t *testing.T) {
	all := map[string]*page{
		"README.md":   parse("README.md", "# A `b.c` page\n\n## A `b.c` page\n\n## Why, then?\n"),
		"a/README.md": parse("a/README.md", "# A\n"),
	}
	there := map[string]bool{".": true, "README.md": true, "a": true, "a/README.md": true, "LICENSE": true}
	for to, want := range map[string]string{
		"":                          "",
		"a":                         "",
		"a/README.md#a":             "",
		"#a-bc-page":                "",
		"#a-bc-page-1":              "",
		"#why-then":                 "",
		"./LICENSE":                 "",
		"https://example.com/#x":    "",
		"#a-bc-page-2":              "has no heading",
		"#Why-then":                 "has no heading",
		"a/README.md#b":             "has no heading",
		"b":                         "does not exist",
		".cache/x":                  "does not exist",
		"../README.md":              "leaves the clone",
		"a/../../x":                 "leaves the clone",
		"/README.md":                "neither https nor relative",
		"file:///README.md":         "neither https nor relative",
		"http://example.com/":       "neither https nor relative",
		"LICENSE#x":                 "no page",
		"a/README.md#a%zz":          "invalid URL escape",
		"a/README.md#a-bc-page":     "has no heading",
		"//example.com/a/README.md": "neither https nor relative",
	} {
		problem := broken(all, there, "README.md", to)
		if want == "" {
			assert.Empty(t, problem, to)
			continue
		}
		assert.Contains(t, problem, want, to)
	}
}

// A link whose reference is missing is plain text to a Markdown parser.
func TestNoLinkIsLeftAsText(t *testing.T) {
	unresolved := regexp.MustCompile(`\[[^\]\n]+\](\[|\([^)\n]*$)`)
	for _, p := range pages(t) {
		for n, line := range outsideCode(p) {
			assert.False(t, unresolved.MatchString(line), "%s:%d: a link that is not closed, or without its reference: %s", p.path, n+1, line)
		}
	}
}

// outsideCode are the lines of a page, empty where they are code.
func outsideCode(p *page) []string {
	lines := strings.Split(p.source, "\n")
	for _, b := range p.blocks {
		for n := range strings.Count(b.text, "\n") {
			lines[b.line-1+n] = ""
		}
	}
	span := regexp.MustCompile("`[^`]*`")
	for n := range lines {
		lines[n] = span.ReplaceAllString(lines[n], "")
	}
	return lines
}

// mention is a page, with an anchor perhaps, in a comment or a text.
var mention = regexp.MustCompile(`[A-Za-z0-9_./-]*[A-Za-z0-9]\.md\b(#[a-z0-9-]+)?`)

// Code and manifests name pages by their path from the root, or from their own folder.
func TestPagesThatCodeNames(t *testing.T) {
	all, found := pages(t), 0
	for name := range files(t) {
		if !slices.Contains([]string{".go", ".yaml", ".py"}, path.Ext(name)) && path.Base(name) != "Makefile" && path.Base(name) != "Dockerfile" {
			continue
		}
		if path.Dir(name) == "test/pages" {
			continue
		}
		for _, to := range mention.FindAllString(read(t, name), -1) {
			found++
			problem := broken(all, files(t), "README.md", to)
			if problem != "" {
				problem = broken(all, files(t), name, to)
			}
			assert.Empty(t, problem, "%s names %s", name, to)
		}
	}
	require.NotZero(t, found)
}
