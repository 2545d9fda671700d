// Package test checks that the ids that code, tests and pages cite are explained
// in the repository.
package test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	root      = ".."
	casesPage = "test/README.md"
	rulesPage = "test/conformance/README.md"
)

// ids are the kinds of ids, with the page whose tables explain them.
var ids = []struct {
	page  string
	cited *regexp.Regexp // in any text
	named *regexp.Regexp // in the name of a test
	id    func(match string) string
}{
	{casesPage, regexp.MustCompile(`\b[A-L]-\d\d\b`), regexp.MustCompile(`[A-L]\d\d`), func(m string) string { return m[:1] + "-" + m[len(m)-2:] }},
	{casesPage, regexp.MustCompile(`\b(?:CK|CP|ND|OP|PF)\d\d\b`), regexp.MustCompile(`(?:CK|CP|ND|OP|PF)\d\d`), func(m string) string { return m }},
	{casesPage, regexp.MustCompile(`\bS\d{1,2}\b`), regexp.MustCompile(`S\d{1,2}`), func(m string) string { return m }},
	{rulesPage, regexp.MustCompile(`\b[Rr]ules? \d+\b`), regexp.MustCompile(`Rule\d\d`), func(m string) string { return strings.TrimLeft(m, "Rrules 0") }},
}

var (
	goTest = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	pyTest = regexp.MustCompile(`(?m)^ +def (test_\w+)\(`)
	// idsOfTest are at the beginning of its name, and so are those of a case's function.
	idsOfTest = regexp.MustCompile(`\b(?:Test|case)((?:Rule\d\d|[A-L]\d\d|S\d{1,2}|(?:CK|CP|ND|OP|PF)\d\d)+)(?:\D|$)`)
	idOfTest  = regexp.MustCompile(`Rule\d\d|(?:CK|CP|ND|OP|PF)\d\d|[A-L]\d\d|S\d{1,2}`)
	// elsewhere is a section of a document, or an id of a kind that no page here explains.
	elsewhere = regexp.MustCompile(`§|\b[A-Z]{2}\d\d\b`)
	row       = regexp.MustCompile(`(?m)^\| ([A-L]-\d\d|S\d{1,2}|(?:CK|CP|ND|OP|PF)\d\d|\d{1,2}) \|(.*)$`)
	testName  = regexp.MustCompile(`\b(?:Test[A-Z]\w+|test_\w+)`)
)

// texts reads every file of the repository that cites ids, by its path.
func texts(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() {
			if slices.Contains([]string{".git", ".cache", "bin", "testdata"}, name) {
				return filepath.SkipDir
			}
			return nil
		}
		// A name without a suffix is a script, the Makefile, or a worktree's .git.
		if !slices.Contains([]string{"", ".go", ".json", ".md", ".mod", ".proto", ".py", ".yaml"}, filepath.Ext(name)) {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, path)
		files[filepath.ToSlash(relative)] = string(content)
		return err
	})
	require.NoError(t, err)
	require.Greater(t, len(files), 300, "the walk has missed the repository")
	delete(files, "test/cases_test.go") // its patterns look like ids
	return files
}

// rows are the rows of a page's tables that begin with an id.
func rows(t *testing.T, page string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, m := range row.FindAllStringSubmatch(page, -1) {
		require.NotContains(t, all, m[1], "this id has two rows")
		all[m[1]] = m[2]
	}
	return all
}

func TestEveryCitedIdHasARow(t *testing.T) {
	files := texts(t)
	cited := map[string]bool{}
	for _, kind := range ids {
		explained := rows(t, files[kind.page])
		cite := func(path, match string) {
			id := kind.id(match)
			assert.NotEmpty(t, explained[id], "%s cites %q, which has no row in %s", path, match, kind.page)
			cited[id] = true
		}
		for path, text := range files {
			if path == kind.page {
				text = row.ReplaceAllString(text, "")
			}
			for _, match := range kind.cited.FindAllString(text, -1) {
				cite(path, match)
			}
			for _, name := range idsOfTest.FindAllStringSubmatch(text, -1) {
				for _, match := range idOfTest.FindAllString(name[1], -1) {
					if kind.named.FindString(match) == match {
						cite(path, match)
					}
				}
			}
		}
	}
	require.Greater(t, len(cited), 60, "the patterns find no ids")
}

func TestNoUnknownKindOfIdIsCited(t *testing.T) {
	for path, text := range texts(t) {
		for _, kind := range ids {
			text = kind.cited.ReplaceAllString(text, "")
		}
		assert.Empty(t, elsewhere.FindAllString(text, -1), path)
	}
}

// TestRowsNameTheirTests: each test that a row names exists, and each test that is
// named after an id is in the row of that id.
func TestRowsNameTheirTests(t *testing.T) {
	files := texts(t)
	exist := map[string]bool{}
	for path, text := range files {
		pattern := goTest
		if strings.HasSuffix(path, ".py") {
			pattern = pyTest
		} else if !strings.HasSuffix(path, "_test.go") {
			continue
		}
		for _, m := range pattern.FindAllStringSubmatch(text, -1) {
			exist[m[1]] = true
		}
	}
	explained := rows(t, files[casesPage])
	for id, cells := range explained {
		names := testName.FindAllString(cells, -1)
		assert.True(t, len(names) > 0 || strings.Contains(cells, "not tested: "), "row %s has no test and no reason", id)
		for _, name := range names {
			assert.True(t, exist[name], "row %s names %s, which does not exist", id, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(exist)) {
		m := idsOfTest.FindStringSubmatch(name)
		if m == nil {
			continue
		}
		for _, kind := range ids {
			for _, match := range idOfTest.FindAllString(m[1], -1) {
				if kind.page == casesPage && kind.named.FindString(match) == match {
					assert.Contains(t, testName.FindAllString(explained[kind.id(match)], -1), name, "row %s of %s", kind.id(match), casesPage)
				}
			}
		}
	}
}
