package store

import (
	"database/sql"
	"fmt"
	"time"
)

// read runs do in a transaction that sees one state of the file.
func (s *Store) read(what string, do func(tx *sql.Tx) error) error {
	return s.use(what, func(f *file) error {
		tx, err := f.read.Begin()
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		return do(tx)
	})
}

// write runs do in a transaction, all or nothing.
func (s *Store) write(what string, do func(tx *sql.Tx) error) error {
	return s.use(what, func(f *file) error {
		tx, err := f.write.Begin()
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if err := do(tx); err != nil {
			return err
		}
		return tx.Commit()
	})
}

// use runs do with the open file. Where that shows the file to be damaged, the next
// call has a new one.
func (s *Store) use(what string, do func(*file) error) error {
	f, err := s.acquire()
	if err == nil {
		err = func() error {
			defer s.mu.RUnlock() // do may panic
			return do(f)
		}()
		if isCorrupt(err) {
			s.heal(f, err)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// acquire returns the file and holds it for reading.
func (s *Store) acquire() (*file, error) {
	for {
		s.mu.RLock()
		if s.file != nil {
			return s.file, nil
		}
		s.mu.RUnlock()
		if err := s.reopen(); err != nil {
			return nil, err
		}
	}
}

// reopen opens the file again where there could be none before.
func (s *Store) reopen() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	if s.file != nil {
		return nil
	}
	var err error
	s.file, err = s.openFile()
	return err
}

// heal replaces a file that is damaged, unless another call has done so. Where
// only the search index is, that is made anew.
func (s *Store) heal(broken *file, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != broken || s.closed {
		return
	}
	if inIndex(cause) {
		if err := broken.clearIndex(); err == nil {
			s.report(fmt.Sprintf("the search index was damaged and is made anew: %v", cause))
			s.wakeIndexer()
			return
		}
	}
	_ = broken.close()
	var err error
	if s.file, err = s.startOver(cause); err != nil {
		s.report(err.Error())
	}
}

// startOver moves a damaged file aside and begins a new one.
func (s *Store) startOver(cause error) (*file, error) {
	if s.dir == memory {
		s.report(fmt.Sprintf("what was kept in memory was damaged and is lost: %v", cause))
	} else {
		to, err := moveAside(s.path(), time.Now())
		if err != nil {
			return nil, fmt.Errorf("open state: move the damaged file aside: %w", err)
		}
		s.moved = to
		s.report(fmt.Sprintf("the state file was damaged (%v); it was moved to %s and a new one begun", cause, to))
	}
	return s.openFile()
}
