package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
)

// FuzzParse checks that Parse does not panic, that each problem is one line, and that an
// accepted configuration parses back from its printed form unchanged.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob(filepath.Join("testdata", "*.yaml"))
	if err != nil || len(files) == 0 {
		f.Fatal("no seeds", err)
	}
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data)
		if err != nil {
			checkReport(t, c, err)
			return
		}
		printed, err := c.Marshal()
		if err != nil {
			t.Fatalf("cannot be printed: %v", err)
		}
		if len(printed) > maxFileSize {
			return // expanded aliases may exceed the size limit of a file
		}
		again, err := Parse(printed)
		if err != nil {
			t.Fatalf("printed form is refused: %v\n%s", err, printed)
		}
		if !equality.Semantic.DeepEqual(c, again) {
			t.Fatalf("printed form reads back as something else\n%s", printed)
		}
		if changes := c.RestartNeeded(again); len(changes) > 0 {
			t.Fatalf("a restart for nothing: %v", changes)
		}
	})
}

func checkReport(t *testing.T, c *Config, err error) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || c != nil || len(e.Problems) == 0 {
		t.Fatalf("neither a configuration nor a report: %v %v", c, err)
	}
	for _, p := range e.Problems {
		if p.Message == "" || strings.ContainsAny(p.render(""), "\n\r") {
			t.Fatalf("not one line: %q", p.render(""))
		}
	}
}
