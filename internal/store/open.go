package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofrs/flock"

	"github.com/compactproxy/compactproxy/internal/conversation"
)

// memory is the folder of a store that is gone with its process.
const memory = ":memory:"

// Options say where a store is and what it keeps.
type Options struct {
	Dir       string        // made if it is missing; ":memory:" for none
	Archive   bool          // keep originals
	Retention time.Duration // of a conversation that is not used, 0 for ever
	MaxBytes  int64         // of the file, 0 for no bound
	// Report is told, in a sentence for the log, what nobody else returns. It must
	// not call the store.
	Report func(event string)
}

// Store is the open file.
type Store struct {
	packer
	dir       string
	archive   bool
	retention time.Duration
	maxBytes  int64
	report    func(event string)
	lock      *flock.Flock // nil in memory

	mu     sync.RWMutex // held for reading while the file is in use
	file   *file        // nil while it cannot be opened, and after Close
	closed bool
	moved  string

	lastID   atomic.Int64 // the highest id of a checkpoint that was given
	indexing sync.Mutex   // held for a step of the indexer
	halfway  bool         // guarded by indexing: the last step may have ended inside of a text
	wake     chan struct{}
	stop     context.CancelFunc
	stopped  sync.WaitGroup
}

var _ conversation.Store = (*Store)(nil)

var errClosed = errors.New("the store is closed")

// Open opens the store of a folder and takes the folder for this process. The
// error is a *[LockedError] or a *[NewerError] where it is one of these.
func Open(o Options) (*Store, error) {
	s := &Store{
		packer: newPacker(),
		dir:    o.Dir, archive: o.Archive, retention: o.Retention, maxBytes: o.MaxBytes, report: o.Report,
		wake: make(chan struct{}, 1), halfway: true, // whatever the last process did
	}
	if s.report == nil {
		s.report = func(string) {}
	}
	if err := s.open(); err != nil {
		s.release()
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.stopped.Go(func() { s.index(ctx) })
	return s, nil
}

func (s *Store) open() error {
	if s.dir != memory {
		if err := os.MkdirAll(s.dir, 0o700); err != nil {
			return fmt.Errorf("open state: %w", err)
		}
		var err error
		if s.lock, err = lock(s.dir); err != nil {
			return err
		}
		if err := writeHolder(s.dir, holder{PID: os.Getpid()}); err != nil {
			s.report(fmt.Sprintf("other commands will not find this process: %v", err))
		}
	}
	var err error
	s.file, err = s.openFile()
	if isCorrupt(err) {
		s.file, err = s.startOver(err)
	}
	return err
}

// release gives back everything that is not the file.
func (s *Store) release() {
	if s.lock != nil {
		_ = os.Remove(filepath.Join(s.dir, serveFile))
		_ = s.lock.Close()
	}
	s.packer.close()
}

// Close stops indexing and closes the file. It may be called again.
func (s *Store) Close() error {
	s.mu.Lock()
	again := s.closed
	s.closed = true
	s.mu.Unlock()
	if again {
		return nil
	}
	s.stop()
	s.stopped.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.file != nil {
		err = s.file.close()
		s.file = nil
	}
	s.release()
	if err != nil {
		return fmt.Errorf("close state: %w", err)
	}
	return nil
}

// Moved is where a damaged file was moved, "" if none was.
func (s *Store) Moved() string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.moved
}

func (s *Store) path() string {
	if s.dir == memory {
		return memory
	}
	return filepath.Join(s.dir, "state.db")
}
