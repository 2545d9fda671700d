package awstest

import (
	"strconv"
	"time"
	"unicode/utf8"
)

// xmlWriter appends elements to one buffer. encoding/xml would spend most of a
// benchmark's time on reflection: a page is a thousand instances.
type xmlWriter struct{ b []byte }

func (w *xmlWriter) open(name string) {
	w.b = append(w.b, '<')
	w.b = append(w.b, name...)
	w.b = append(w.b, '>')
}

func (w *xmlWriter) close(name string) {
	w.b = append(w.b, '<', '/')
	w.b = append(w.b, name...)
	w.b = append(w.b, '>')
}

// in writes an element around what write writes.
func (w *xmlWriter) in(name string, write func()) {
	w.open(name)
	write()
	w.close(name)
}

// str leaves an empty value out, as AWS does.
func (w *xmlWriter) str(name, value string) {
	if value == "" {
		return
	}
	w.open(name)
	w.escape(value)
	w.close(name)
}

func (w *xmlWriter) num(name string, value int) {
	w.open(name)
	w.b = strconv.AppendInt(w.b, int64(value), 10)
	w.close(name)
}

func (w *xmlWriter) flag(name string, value bool) {
	w.open(name)
	w.b = strconv.AppendBool(w.b, value)
	w.close(name)
}

// when writes milliseconds, as AWS does for the start of activities.
func (w *xmlWriter) when(name string, value time.Time) {
	if value.IsZero() {
		return
	}
	w.open(name)
	w.b = value.UTC().AppendFormat(w.b, "2006-01-02T15:04:05.000Z")
	w.close(name)
}

func (w *xmlWriter) list(name, item string, values []string) {
	w.open(name)
	for _, v := range values {
		w.str(item, v)
	}
	w.close(name)
}

func (w *xmlWriter) escape(s string) {
	if plain(s) { // nearly all is
		w.b = append(w.b, s...)
		return
	}
	for _, r := range s {
		switch {
		case r == '&':
			w.b = append(w.b, "&amp;"...)
		case r == '<':
			w.b = append(w.b, "&lt;"...)
		case r == '>':
			w.b = append(w.b, "&gt;"...)
		case r == '"':
			w.b = append(w.b, "&quot;"...)
		case r < ' ' && r != '\t' && r != '\n':
			w.b = utf8.AppendRune(w.b, utf8.RuneError) // XML has no way to write it
		default:
			w.b = utf8.AppendRune(w.b, r)
		}
	}
}

func plain(s string) bool {
	for n := range len(s) {
		if c := s[n]; c < ' ' || c >= utf8.RuneSelf || c == '&' || c == '<' || c == '>' || c == '"' {
			return false
		}
	}
	return true
}
