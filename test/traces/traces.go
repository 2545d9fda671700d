// Package traces finds the recorded calls of real Cluster Autoscalers, for the
// tests that are held to them.
package traces

import (
	"os"
	"path/filepath"
	"testing"
)

const missing = "no recorded calls: there is no shared/traces beside the repository, and TRACES_DIR names no folder with *.jsonl"

// Files lists the files of recorded calls. Where there are none the test is
// skipped, but fails in CI.
func Files(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder(t), "*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	return files
}

// folder is shared/traces beside the repository, unless TRACES_DIR says
// otherwise.
func folder(t testing.TB) string {
	if dir := os.Getenv("TRACES_DIR"); dir != "" {
		return dir
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		candidate := filepath.Join(filepath.Dir(dir), "shared", "traces")
		if info, err := os.Stat(candidate); err == nil && info.IsDir() {
			return candidate
		}
		if dir == filepath.Dir(dir) {
			return filepath.Join("no", "such", "folder")
		}
		dir = filepath.Dir(dir)
	}
}
