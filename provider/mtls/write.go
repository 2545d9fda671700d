package mtls

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"gpu-node-provider/provider/reload"
)

// newFile is a file to be written.
type newFile struct {
	name string
	mode fs.FileMode
	data []byte
}

// writeAll writes all files into dir or changes nothing there. Each is complete and
// synced under a temporary name before the first rename, so that a full disk or a
// missing permission fails before any change, and a running server never reads a
// partial file.
func writeAll(dir string, files []newFile) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create the directory: %w", err)
	}
	staged := make([]string, 0, len(files))
	defer func() {
		for _, path := range staged {
			_ = os.Remove(path) // fails for renamed files, which no longer exist
		}
	}()
	for _, file := range files {
		path, err := stage(dir, file)
		if path != "" {
			staged = append(staged, path)
		}
		if err != nil {
			return nil, fmt.Errorf("write %s: %w", filepath.Join(dir, file.name), err)
		}
	}

	var written []string
	var undo []func() error
	for i, file := range files {
		path := filepath.Join(dir, file.name)
		restore, err := replace(staged[i], path)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("write %s: %w", path, err), rollBack(undo))
		}
		undo = append(undo, restore)
		written = append(written, path)
	}
	syncDir(dir)
	return written, nil
}

// stage writes a file under a temporary name in dir. It returns the path also with an
// error, for the caller to remove.
func stage(dir string, file newFile) (path string, err error) {
	temp, err := os.CreateTemp(dir, "."+file.name+".*") // mode 0600
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, temp.Close()) }()
	if _, err := temp.Write(file.data); err != nil {
		return temp.Name(), err
	}
	if err := temp.Chmod(file.mode); err != nil {
		return temp.Name(), err
	}
	return temp.Name(), temp.Sync()
}

// replace renames staged to path and returns a function that restores the old state.
func replace(staged, path string) (restore func() error, err error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return func() error { return os.Remove(path) }, os.Rename(staged, path)
	}
	if err != nil {
		return nil, err
	}
	old, err := reload.ReadFile(path)
	if err != nil {
		return nil, err
	}
	restore = func() error {
		back, err := stage(filepath.Dir(path), newFile{filepath.Base(path), info.Mode().Perm(), old})
		if err == nil {
			err = os.Rename(back, path)
		}
		if err != nil && back != "" {
			_ = os.Remove(back)
		}
		return err
	}
	return restore, os.Rename(staged, path)
}

func rollBack(undo []func() error) error {
	var errs []error
	for i := len(undo) - 1; i >= 0; i-- {
		errs = append(errs, undo[i]())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("restore the old files: %w", err)
	}
	return nil
}

// syncDir makes the renames durable where the file system supports it. The files are in
// place either way, so its errors are ignored.
func syncDir(dir string) {
	d, err := os.Open(dir)
	if err != nil {
		return
	}
	_ = d.Sync()
	_ = d.Close()
}
