package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxProblems bounds the memory and length of a report on a file that is not a
// configuration at all.
const maxProblems = 1000

// Problem is one invalid field.
type Problem struct {
	Field   string // field path such as nodeGroups[1].maxSize; empty for the whole file
	Line    int    // 1-based; 0 when unknown
	Message string // "what is wrong; what to do"
}

// Error lists every problem of a file.
type Error struct {
	Path     string // of the file; empty for content in memory
	Problems []Problem
}

// Error returns one line for each problem: file:line: field: what is wrong; what to do.
func (e *Error) Error() string {
	lines := make([]string, 0, len(e.Problems))
	for _, p := range e.Problems {
		lines = append(lines, p.render(e.Path))
	}
	return strings.Join(lines, "\n")
}

func (p Problem) render(file string) string {
	var parts []string
	switch {
	case file != "" && p.Line > 0:
		parts = append(parts, file+":"+strconv.Itoa(p.Line))
	case file != "":
		parts = append(parts, file)
	case p.Line > 0:
		parts = append(parts, "line "+strconv.Itoa(p.Line))
	}
	if p.Field != "" {
		parts = append(parts, p.Field)
	}
	return strings.Join(append(parts, p.Message), ": ")
}

// failure returns an *Error, or nil when found is empty.
func failure(file string, found []Problem) error {
	if len(found) == 0 {
		return nil
	}
	return &Error{Path: file, Problems: found}
}

// problems collects problems up to maxProblems.
type problems struct {
	found []finding
	extra int // problems beyond maxProblems
}

// finding is a problem with the other fields that its rule looked at.
type finding struct {
	Problem
	causes []string // field paths
}

func (p *problems) add(field, format string, args ...any) {
	p.addAt(field, 0, format, args...)
}

func (p *problems) addAt(field string, line int, format string, args ...any) {
	if len(p.found) == maxProblems {
		p.extra++
		return
	}
	p.found = append(p.found, finding{Problem: Problem{Field: field, Line: line, Message: fmt.Sprintf(format, args...)}})
}

// addFrom is add for a rule that also looked at other fields: if one of those did
// not decode, merge drops the problem.
func (p *problems) addFrom(causes []string, field, format string, args ...any) {
	before := len(p.found)
	p.add(field, format, args...)
	for i := range p.found[before:] {
		p.found[before+i].causes = causes
	}
}

// sorted returns the problems by line; those without a line come first.
func (p *problems) sorted() []Problem {
	out := make([]Problem, 0, len(p.found))
	for _, f := range p.found {
		out = append(out, f.Problem)
	}
	slices.SortStableFunc(out, func(a, b Problem) int { return a.Line - b.Line })
	if p.extra > 0 {
		out = append(out, Problem{Message: fmt.Sprintf("has %d more problems; correct these first", p.extra)})
	}
	return out
}

// maxShown is the number of characters of a value that a message quotes.
const maxShown = 60

// show quotes text of the file on one line, cut at maxShown.
func show[T ~string](text T) string {
	runes := []rune(string(text))
	if len(runes) > maxShown {
		return strconv.Quote(string(runes[:maxShown])) + "…"
	}
	return strconv.Quote(string(text))
}

// key returns the path of an entry of a mapping with free keys, such as labels[app].
func key(path, name string) string {
	return path + "[" + showKey(name) + "]"
}

// member returns the path of a field, such as server.address.
func member(path, name string) string {
	if path == "" {
		return showKey(name)
	}
	return path + "." + showKey(name)
}

// item returns the path of an element of a list, such as zones[0].
func item(path string, i int) string {
	return path + "[" + strconv.Itoa(i) + "]"
}

func showKey(name string) string {
	odd := func(r rune) bool {
		return r < '!' || r > '~' || r == '"' || r == '[' || r == ']'
	}
	if name == "" || len(name) > maxShown || strings.ContainsFunc(name, odd) {
		return show(name)
	}
	return name
}
