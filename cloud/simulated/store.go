package simulated

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"gpu-node-provider/cloud"
)

// store keeps one state.
type store interface {
	// load returns nil when nothing was ever saved.
	load() (*state, error)
	// save returns once the state would survive a crash. With an error, changed
	// says whether the next load may return the new state all the same.
	save(s *state) (changed bool, err error)
	close() error
}

func openStore(options Options) (store, error) {
	if options.StateFile != "" {
		return openFile(options.StateFile)
	}
	memory := options.Memory
	if memory == nil {
		memory = &Memory{}
	}
	return memory.open(), nil
}

// Memory keeps a Cloud's state within the process, so that a test can restart
// the Cloud without a file. The zero value is empty.
type Memory struct {
	mu    sync.Mutex
	saved *state
	owner *memoryStore
}

// open takes the memory over: an earlier Cloud which was not closed counts as
// killed, and what it still tries to write is refused.
func (m *Memory) open() *memoryStore {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.owner = &memoryStore{memory: m}
	return m.owner
}

type memoryStore struct{ memory *Memory }

func (s *memoryStore) load() (*state, error) {
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	return s.memory.saved, nil
}

func (s *memoryStore) save(next *state) (bool, error) {
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	if s.memory.owner != s {
		return false, fmt.Errorf("another simulated cloud has taken over this memory: %w", cloud.ErrUnavailable)
	}
	s.memory.saved = next
	return true, nil
}

func (s *memoryStore) close() error { return nil }

// ErrInUse means that another process has the state file.
var ErrInUse = errors.New("in use by another process")

// fileStore keeps the state in a file that is replaced as a whole, so that a
// crash leaves the old or the new one and never a mixture.
type fileStore struct {
	path string
	// lock is open, and locked, as long as the store is. It is another file than
	// path because path is a new file after each save. The kernel unlocks it
	// when the process dies, however it dies.
	lock *os.File
}

func openFile(path string) (*fileStore, error) {
	path, err := filepath.Abs(path) // a later change of the working directory must not split the state
	if err != nil {
		return nil, fmt.Errorf("state file: %w", err)
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state file %s: cannot make its lock file, the folder must exist and be writable: %w", path, err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		err = errors.Join(err, lock.Close())
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("state file %s is %w: stop that process, or set another file: %w", path, ErrInUse, err)
		}
		return nil, fmt.Errorf("state file %s: cannot lock it: %w", path, err)
	}
	return &fileStore{path: path, lock: lock}, nil
}

func (f *fileStore) load() (*state, error) {
	data, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("state file: %w", err)
	}
	s, err := decodeState(data)
	if err != nil {
		return nil, fmt.Errorf("state file %s cannot be used: %w; put a good copy in its place, "+
			"or move it away to start with an empty cloud (its instances are then gone for good)", f.path, err)
	}
	return s, nil
}

func (f *fileStore) save(s *state) (bool, error) {
	data, err := encodeState(s)
	if err != nil {
		return false, fmt.Errorf("state file %s: %w: %w", f.path, err, cloud.ErrUnavailable)
	}
	temporary := f.path + ".tmp" // one name is enough under the lock, and a crash leaves no litter
	if err := writeSynced(temporary, data); err != nil {
		return false, fmt.Errorf("state file: %w: %w", err, cloud.ErrUnavailable)
	}
	if err := os.Rename(temporary, f.path); err != nil {
		return false, fmt.Errorf("state file: %w: %w", err, cloud.ErrUnavailable)
	}
	if err := syncFolder(filepath.Dir(f.path)); err != nil {
		return true, fmt.Errorf("state file: %w: %w", err, cloud.ErrUnknownOutcome)
	}
	return true, nil
}

func (f *fileStore) close() error {
	if err := f.lock.Close(); err != nil {
		return fmt.Errorf("state file %s: %w", f.path, err)
	}
	return nil
}

// writeSynced returns once the data is on the disk, not only handed to it.
func writeSynced(path string, data []byte) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// syncFolder makes a rename in the folder survive a power cut.
func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
