package store

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

// Files beside the database.
const (
	lockFile  = "serve.lock"
	serveFile = "serve.json"
)

// LockedError says that another process has the folder open.
type LockedError struct {
	Dir   string
	Admin string // address of its admin listener, "" if it is not known
	PID   int    // 0 if it is not known
}

func (e *LockedError) Error() string {
	holder := "another compactproxy"
	switch {
	case e.PID != 0 && e.Admin != "":
		holder += fmt.Sprintf(" (process %d, admin %s)", e.PID, e.Admin)
	case e.PID != 0:
		holder += fmt.Sprintf(" (process %d)", e.PID)
	}
	return fmt.Sprintf("open state: %s is in use by %s: stop that one, or set state.path to another folder", e.Dir, holder)
}

// holder is what the process that has the folder open says of itself.
type holder struct {
	PID   int    `json:"pid"`
	Admin string `json:"admin"`
}

// lockWait is how long a lock may be held by [Running], which only looks.
const lockWait = 100 * time.Millisecond

// lock takes the folder for this process.
func lock(dir string) (*flock.Flock, error) {
	l := flock.New(filepath.Join(dir, lockFile), flock.SetPermissions(0o600))
	ctx, cancel := context.WithTimeout(context.Background(), lockWait)
	defer cancel()
	ok, err := l.TryLockContext(ctx, lockWait/10)
	switch {
	case ok:
		return l, nil
	case err != nil && ctx.Err() == nil:
		return nil, fmt.Errorf("open state: lock %s: %w", l.Path(), err)
	}
	h := readHolder(dir)
	return nil, &LockedError{Dir: dir, Admin: h.Admin, PID: h.PID}
}

// SetAdmin says where this process's admin listener is, for commands that look
// for it with [Running].
func (s *Store) SetAdmin(addr string) error {
	if s.dir == memory {
		return nil
	}
	if err := writeHolder(s.dir, holder{PID: os.Getpid(), Admin: addr}); err != nil {
		return fmt.Errorf("note the admin address: %w", err)
	}
	return nil
}

// Running tells whether a process has the folder open, and where its admin
// listener is, "" if it has not said so.
func Running(dir string) (admin string, ok bool) {
	// Nobody who runs is without these files, and looking must not make any.
	for _, name := range []string{serveFile, lockFile} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return "", false
		}
	}
	l := flock.New(filepath.Join(dir, lockFile))
	if free, err := l.TryRLock(); free || err != nil {
		_ = l.Close()
		return "", false
	}
	return readHolder(dir).Admin, true
}

func readHolder(dir string) (h holder) {
	if b, err := os.ReadFile(filepath.Join(dir, serveFile)); err == nil {
		_ = json.Unmarshal(b, &h) // being written: then nothing is known
	}
	return h
}

// writeHolder replaces the file as a whole, since others read it at any time.
func writeHolder(dir string, h holder) error {
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, serveFile+"-*") // 0600
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, serveFile))
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
