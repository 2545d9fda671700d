package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxProblems bounds a report. A file with more wrong lines than this is not a
// configuration, and its report must still fit a log line or an Event.
const maxProblems = 1000

// Problem is one thing that is wrong with the file, and what to do about it.
type Problem struct {
	Field   string // such as nodeGroups[1].maxSize; empty for the file as a whole
	Line    int    // 0 when it is not known
	Message string
}

// Error is everything that is wrong with a file.
type Error struct {
	Path     string // of the file; empty when there is none
	Problems []Problem
}

// Error has one line for each problem: file, line, field, what is wrong, what to do.
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

// failure makes an error of problems, and nil of none.
func failure(file string, found []Problem) error {
	if len(found) == 0 {
		return nil
	}
	return &Error{Path: file, Problems: found}
}

// problems collects what the rules find.
type problems struct {
	found []finding
	extra int // how many did not fit
}

// finding is a problem of which the cause may lie in other fields.
type finding struct {
	Problem
	causes []string
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

// addFrom is add for a rule that has also looked at other fields: where one of
// those could not be read, what the rule found means nothing.
func (p *problems) addFrom(causes []string, field, format string, args ...any) {
	before := len(p.found)
	p.add(field, format, args...)
	for i := range p.found[before:] {
		p.found[before+i].causes = causes
	}
}

// sorted is everything found in the order of the file, as far as lines are known.
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

// maxShown is how much of a value a message repeats.
const maxShown = 60

// show quotes text of the file, so that it stays short and on one line.
func show[T ~string](text T) string {
	runes := []rune(string(text))
	if len(runes) > maxShown {
		return strconv.Quote(string(runes[:maxShown])) + "…"
	}
	return strconv.Quote(string(text))
}

// key is the path of an entry of a mapping that the user names, such as labels[app].
func key(path, name string) string {
	return path + "[" + showKey(name) + "]"
}

// member is the path of a field, such as server.address.
func member(path, name string) string {
	if path == "" {
		return showKey(name)
	}
	return path + "." + showKey(name)
}

// item is the path of an element of a list, such as zones[0].
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
