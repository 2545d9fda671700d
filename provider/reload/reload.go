// Package reload notices that files have other contents than before and hands
// the new contents over: the node group file, the TLS files, a password file.
//
// It polls and compares bytes. inotify would be quicker and is wrong too often
// here: a ConfigMap or Secret volume changes by a swap of the symlink above the
// file, network and FUSE volumes of other writers give no event at all, and a
// watch dies with the inode that a rename replaced. Modification times are no
// help either: a file restored or unpacked may keep an old one. Reading a few
// small files every two seconds costs microseconds and works on every volume.
//
// A change is handed over when two readings in a row agree, so a writer caught
// in the middle of a file, or between two files that belong together, is not
// taken at its word: a node group file cut short is often still valid YAML. If
// the half stays longer than an interval it is handed over, and the whole after
// it. A volume mounted with subPath never changes; that is a limit of Kubernetes.
//
// The package does not know what the files mean: whether contents are good, and
// what to do when they are not, is the caller's.
package reload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"time"
)

const (
	// DefaultInterval between two readings. A change is live after two to four
	// seconds, little beside the minute that the kubelet takes to bring it to
	// the volume. Longer saves nothing that can be measured.
	DefaultInterval = 2 * time.Second

	// maxSize is a guard against a path that names the wrong file, since all
	// of it is held in memory. A ConfigMap or Secret holds 1 MiB at most.
	maxSize = 16 << 20
)

// Contents are the bytes of files by path. They are read-only once handed over.
type Contents map[string][]byte

// Read reads every file. The error holds one *fs.PathError for each file that
// could not be read; there are no contents then.
func Read(files ...string) (Contents, error) {
	contents := make(Contents, len(files))
	var errs []error
	for _, path := range files {
		data, err := ReadFile(path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		contents[path] = data
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return contents, nil
}

// ReadFile reads one file. Only a regular file of sensible size is read: a named
// pipe would block the caller for ever. The error is always an *fs.PathError.
func ReadFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("is not a regular file")}
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // nothing was written
	data, err := io.ReadAll(io.LimitReader(file, maxSize+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxSize {
		return nil, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("is larger than %d MiB", maxSize>>20)}
	}
	return data, nil
}

// Watcher watches a set of files as one: a change of any hands over all of them,
// from one reading.
type Watcher struct {
	// Files to read. They need not exist.
	Files []string

	// Interval between two readings; zero means DefaultInterval.
	Interval time.Duration

	// Known are the contents that the caller works with when Run starts, so
	// that a change between the caller's own reading and Run is not lost. Nil:
	// the first reading is handed over too.
	Known Contents

	// Changed is called from Run, never twice at once, with the new contents,
	// or with why a file could not be read; that error comes once, not at each
	// reading. What the caller had before then stays good. After an error the
	// contents are handed over even when they are the old ones, so that the
	// caller can call off its alarm.
	Changed func(Contents, error)

	// Ticks, when set, say when to read, instead of Interval. They are there
	// for tests with real sockets, which cannot run on a fake clock. On an
	// unbuffered channel a send returns when the tick before it was dealt with.
	Ticks <-chan time.Time
}

// Run watches until the context ends; that is not an error.
func (w Watcher) Run(ctx context.Context) error {
	ticks := w.Ticks
	if ticks == nil {
		interval := w.Interval
		if interval <= 0 {
			interval = DefaultInterval
		}
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		ticks = ticker.C
	}

	taken := reading{contents: w.Known}
	last := taken
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticks:
		}
		seen := newReading(w.Files)
		settled := seen.equal(last)
		last = seen
		if settled && !seen.equal(taken) {
			taken = seen
			w.Changed(seen.contents, seen.err)
		}
	}
}

// reading is what the files looked like once: contents or an error.
type reading struct {
	contents Contents
	err      error
}

func newReading(files []string) reading {
	contents, err := Read(files...)
	return reading{contents: contents, err: err}
}

func (r reading) equal(other reading) bool {
	if r.err != nil || other.err != nil {
		return r.err != nil && other.err != nil && r.err.Error() == other.err.Error()
	}
	return maps.EqualFunc(r.contents, other.contents, bytes.Equal)
}
