package reload

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// change is one call of Changed.
type change struct {
	contents Contents
	err      error
}

// watch runs a Watcher on the fake clock of a synctest bubble. wait lets it read
// n times and returns what was handed over meanwhile.
func watch(t *testing.T, known Contents, files ...string) (wait func(n int) []change) {
	t.Helper()
	var mu sync.Mutex
	var changes []change
	watcher := Watcher{Files: files, Known: known, Changed: func(c Contents, err error) {
		mu.Lock()
		defer mu.Unlock()
		changes = append(changes, change{c, err})
	}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- watcher.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	synctest.Wait()
	return func(n int) []change {
		<-time.After(time.Duration(n) * DefaultInterval)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		got := changes
		changes = nil
		return got
	}
}

func write(t *testing.T, path, data string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(data), 0o600))
}

func contents(pathsAndData ...string) Contents {
	c := Contents{}
	for i := 0; i < len(pathsAndData); i += 2 {
		c[pathsAndData[i]] = []byte(pathsAndData[i+1])
	}
	return c
}

// secretVolume lays files out as the kubelet does: name -> ..data/name, and
// ..data -> a directory, which swap replaces in one rename.
func secretVolume(t *testing.T, files map[string]string) (dir string, swap func(map[string]string)) {
	t.Helper()
	dir = t.TempDir()
	swap = func(files map[string]string) {
		fresh, err := os.MkdirTemp(dir, "..version")
		require.NoError(t, err)
		for name, data := range files {
			write(t, filepath.Join(fresh, name), data)
		}
		old, _ := os.Readlink(filepath.Join(dir, "..data"))
		require.NoError(t, os.Symlink(filepath.Base(fresh), filepath.Join(dir, "..data_tmp")))
		require.NoError(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
		if old != "" {
			require.NoError(t, os.RemoveAll(filepath.Join(dir, old)))
		}
	}
	swap(files)
	for name := range files {
		require.NoError(t, os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)))
	}
	return dir, swap
}

func TestEveryWayToChangeAFileIsSeenOnce(t *testing.T) {
	cases := map[string]func(t *testing.T, path string){
		"written in place": func(t *testing.T, path string) { write(t, path, "new") },
		"renamed over": func(t *testing.T, path string) {
			write(t, path+".tmp", "new")
			require.NoError(t, os.Rename(path+".tmp", path))
		},
		"same size and same modification time": func(t *testing.T, path string) {
			info, err := os.Stat(path)
			require.NoError(t, err)
			write(t, path, "new")
			require.NoError(t, os.Chtimes(path, info.ModTime(), info.ModTime()))
		},
		"removed and written again": func(t *testing.T, path string) {
			require.NoError(t, os.Remove(path))
			write(t, path, "new")
		},
	}
	for name, act := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "file")
				write(t, path, "old")
				wait := watch(t, contents(path, "old"), path)
				require.Empty(t, wait(3), "nothing changed")
				act(t, path)
				require.Equal(t, []change{{contents: contents(path, "new")}}, wait(5))
			})
		})
	}
}

func TestSymlinkSwapOfAVolumeHandsOverAllFilesTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, swap := secretVolume(t, map[string]string{"tls.crt": "cert 1", "tls.key": "key 1", "ca.crt": "ca"})
		cert, key, ca := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "ca.crt")
		known, err := Read(cert, key, ca)
		require.NoError(t, err)
		wait := watch(t, known, cert, key, ca)
		swap(map[string]string{"tls.crt": "cert 2", "tls.key": "key 2", "ca.crt": "ca"})
		require.Equal(t, []change{{contents: contents(cert, "cert 2", key, "key 2", ca, "ca")}}, wait(5))
	})
}

func TestHalfWrittenFile(t *testing.T) {
	t.Run("is not handed over while it grows", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			write(t, path, "old")
			wait := watch(t, contents(path, "old"), path)
			write(t, path, "n")
			require.Empty(t, wait(1))
			write(t, path, "ne")
			require.Empty(t, wait(1))
			write(t, path, "new")
			require.Equal(t, []change{{contents: contents(path, "new")}}, wait(5))
		})
	})
	t.Run("is seen again when complete", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			write(t, path, "old")
			wait := watch(t, contents(path, "old"), path)
			write(t, path, "ne")
			require.Equal(t, []change{{contents: contents(path, "ne")}}, wait(5))
			write(t, path, "new")
			require.Equal(t, []change{{contents: contents(path, "new")}}, wait(5))
		})
	})
	t.Run("of two that belong together waits for the other", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			dir := t.TempDir()
			cert, key := filepath.Join(dir, "crt"), filepath.Join(dir, "key")
			write(t, cert, "cert 1")
			write(t, key, "key 1")
			wait := watch(t, contents(cert, "cert 1", key, "key 1"), cert, key)
			write(t, cert, "cert 2")
			require.Empty(t, wait(1))
			write(t, key, "key 2")
			require.Equal(t, []change{{contents: contents(cert, "cert 2", key, "key 2")}}, wait(5))
		})
	})
}

func TestUnreadableFileIsReportedOnceAndItsReturnToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "file")
		write(t, path, "old")
		wait := watch(t, contents(path, "old"), path)

		require.NoError(t, os.Remove(path))
		got := wait(20)
		require.Len(t, got, 1)
		require.Nil(t, got[0].contents)
		require.ErrorIs(t, got[0].err, fs.ErrNotExist)
		require.ErrorContains(t, got[0].err, path)

		require.NoError(t, os.Mkdir(path, 0o700))
		got = wait(20)
		require.Len(t, got, 1, "another reason is another report")
		require.ErrorContains(t, got[0].err, "is not a regular file")

		require.NoError(t, os.Remove(path))
		write(t, path, "old")
		require.Equal(t, []change{{contents: contents(path, "old")}}, wait(20), "good again, although not new")
	})
}

func TestFileMissingForAMomentIsNoError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "file")
		write(t, path, "old")
		wait := watch(t, contents(path, "old"), path)
		require.NoError(t, os.Remove(path))
		require.Empty(t, wait(1))
		write(t, path, "old")
		require.Empty(t, wait(5))
	})
}

func TestKnown(t *testing.T) {
	t.Run("a change between the caller's reading and Run is seen", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			write(t, path, "new")
			wait := watch(t, contents(path, "old"), path)
			require.Equal(t, []change{{contents: contents(path, "new")}}, wait(5))
		})
	})
	t.Run("nil hands over the first reading", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			write(t, path, "")
			wait := watch(t, nil, path)
			require.Equal(t, []change{{contents: contents(path, "")}}, wait(5))
		})
	})
}

func TestTicksReplaceTheInterval(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	write(t, path, "new")
	ticks := make(chan time.Time)
	got := make(chan change, 1)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	watcher := Watcher{
		Files: []string{path}, Interval: time.Hour, Ticks: ticks,
		Changed: func(c Contents, err error) { got <- change{c, err} },
	}
	go func() { done <- watcher.Run(ctx) }()
	ticks <- time.Time{}
	ticks <- time.Time{}
	require.Equal(t, change{contents: contents(path, "new")}, <-got)
	cancel()
	require.NoError(t, <-done)
}

func TestReadNamesEveryFileItCannotRead(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good")
	write(t, good, "x")
	pipe := filepath.Join(dir, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	huge := filepath.Join(dir, "huge")
	write(t, huge, "")
	require.NoError(t, os.Truncate(huge, maxSize+1))
	missing := filepath.Join(dir, "missing")

	got, err := Read(good, pipe, huge, missing, dir)
	require.Nil(t, got)
	require.EqualError(t, err, "read "+pipe+": is not a regular file\n"+
		"read "+huge+": is larger than 16 MiB\n"+
		"stat "+missing+": no such file or directory\n"+
		"read "+dir+": is not a regular file")
	var pathError *fs.PathError
	require.ErrorAs(t, err, &pathError)

	require.NoError(t, os.Truncate(huge, maxSize))
	data, err := ReadFile(huge)
	require.NoError(t, err)
	require.Len(t, data, maxSize)
}
