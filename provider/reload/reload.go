// Package reload watches files and calls back with their new contents: the node group
// file, the TLS files, a password file.
//
// It polls and compares bytes. inotify is faster but unreliable here: a ConfigMap or
// Secret volume changes by a swap of a symlink above the file, network and FUSE volumes
// report no events of other writers, and a watch ends with the inode that a rename
// replaces. Modification times do not serve either, since a restored or unpacked file
// may keep an old one. Reading a few small files every two seconds costs microseconds
// and works on every volume.
//
// A change is reported when two consecutive readings agree, so that a file read while
// it is being written, or one of a pair that is, is not reported: a truncated node
// group file is often valid YAML. A partial state that lasts longer than an interval is
// reported, and the complete one after it. Kubernetes never updates a volume mounted
// with subPath.
//
// The package does not know the format of the files; the caller validates them.
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
	// DefaultInterval between two readings. A change is reported after two to four
	// seconds, little beside the minute that the kubelet takes to update the volume.
	// A longer interval saves nothing measurable.
	DefaultInterval = 2 * time.Second

	// maxSize bounds the memory for a path of the wrong file. A ConfigMap or Secret
	// has at most 1 MiB.
	maxSize = 16 << 20
)

// Contents maps paths to the bytes of files. It is read-only for callers.
type Contents map[string][]byte

// Read returns the contents of all files, or no contents and an error that joins one
// *fs.PathError for each unreadable file.
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

// ReadFile returns the contents of a regular file of at most 16 MiB. It rejects other
// kinds of files, since reading a named pipe may block forever. Its errors are of type
// *fs.PathError.
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

// Watcher watches a set of files as a unit: a change of one reports all of them, from
// one reading.
type Watcher struct {
	// Files are the paths to read. They need not exist.
	Files []string

	// Interval between two readings; zero means DefaultInterval.
	Interval time.Duration

	// Known are the contents that the caller uses when Run starts, so that a change
	// between the caller's own reading and Run is reported. With nil the first reading
	// is reported too.
	Known Contents

	// Changed is called from Run, one call at a time, with the new contents or with the
	// error of reading them. An error is reported once, not at each reading, and does
	// not affect contents reported before. After an error the contents are reported
	// even when they are the old ones, so that the caller can clear its alarm.
	Changed func(Contents, error)

	// Ticks replaces Interval, for tests with real sockets, which cannot run on a fake
	// clock. On an unbuffered channel a send returns once the tick before it is handled.
	Ticks <-chan time.Time
}

// Run watches the files until the context ends, and returns nil then.
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

// reading is the result of one Read: contents or an error.
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
