package store

import (
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// suffixes of the files that a database consists of.
var suffixes = []string{"", "-wal", "-shm"}

// file is a database with its connections: one that writes, and some that read.
// In memory there is one for both.
type file struct {
	path        string
	write, read *sql.DB
}

// readers may run at once; a page and a few commands are all there is.
const readers = 4

// checkBelow is the size up to which a file is checked as it is opened. The check
// reads all of it.
const checkBelow = 32 << 20

// openFile opens the database and brings its schema up to date. If the error is
// [isCorrupt], the file should be replaced.
func (s *Store) openFile() (*file, error) {
	path := s.path()
	if path != memory {
		// SQLite gives the files beside it the same permissions.
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open state: %w", err)
		}
		err = f.Chmod(0o600) // whatever the umask is
		if e := f.Close(); err == nil {
			err = e
		}
		if err != nil {
			return nil, fmt.Errorf("open state: %w", err)
		}
	}
	f, err := connect(path)
	if err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	if err := s.prepare(f); err != nil {
		_ = f.close()
		if _, ok := errors.AsType[*NewerError](err); ok {
			return nil, err
		}
		return nil, fmt.Errorf("open state: %w", err)
	}
	return f, nil
}

// connect makes the pools. Nothing is read yet.
func connect(path string) (*file, error) {
	pragmas := []string{
		"busy_timeout(5000)",
		"synchronous(normal)",         // a kill loses nothing, a power cut at most the last commits
		"secure_delete(on)",           // what was deleted is overwritten
		"temp_store(memory)",          // nothing of a conversation outside of the folder
		"journal_size_limit(8388608)", // of the log, once it was much larger
	}
	dsn := func(more ...string) string {
		q := url.Values{"_pragma": append(more, pragmas...)}
		if path == memory {
			return "file::memory:?" + q.Encode()
		}
		u := url.URL{Scheme: "file", Path: filepath.ToSlash(path), RawQuery: q.Encode()}
		if !strings.HasPrefix(u.Path, "/") {
			u.Path = "/" + u.Path // a drive letter
		}
		return u.String()
	}
	if path != memory {
		var err error
		if path, err = filepath.Abs(path); err != nil {
			return nil, err
		}
	}
	write, err := sql.Open("sqlite", dsn()+"&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	write.SetMaxOpenConns(1)
	if path == memory {
		return &file{path, write, write}, nil
	}
	read, err := sql.Open("sqlite", dsn("query_only(on)"))
	if err != nil {
		_ = write.Close()
		return nil, err
	}
	read.SetMaxOpenConns(readers)
	read.SetMaxIdleConns(readers)
	return &file{path, write, read}, nil
}

func (f *file) close() error {
	err := f.read.Close()
	if f.write != f.read {
		err = errors.Join(err, f.write.Close()) // last, since it empties the log
	}
	return err
}

// prepare checks a database and brings it up to date. A new one gives no id of a
// checkpoint that an older one has given.
func (s *Store) prepare(f *file) error {
	steps, err := readMigrations(migrations)
	if err != nil {
		return err
	}
	have, err := version(f.write)
	if err != nil {
		return err
	}
	if have > len(steps) {
		return &NewerError{Path: f.path, Have: have, Want: len(steps)}
	}
	if info, err := os.Stat(f.path); err == nil && info.Size() < checkBelow {
		err := f.check()
		if inIndex(err) {
			if err = f.clearIndex(); err == nil {
				err = f.check()
			}
			s.report("the search index was damaged and is made anew")
		}
		if err != nil {
			return err
		}
	}
	// In this order, and before there is any table. Texts are some kilobytes: on pages of
	// 4 KiB, which hold one each, the file is a third larger.
	for _, pragma := range []string{"page_size = 8192", "auto_vacuum = incremental", "journal_mode = wal"} {
		if _, err := f.write.Exec("PRAGMA " + pragma); err != nil {
			return err
		}
	}
	if err := migrate(f.write, steps); err != nil {
		return err
	}
	if err := f.checkSchema(); err != nil {
		return err
	}
	_, err = f.write.Exec(`INSERT INTO sqlite_sequence (name, seq) SELECT 'checkpoints', ?1
		WHERE ?1 > 0 AND NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'checkpoints')`, s.lastID.Load())
	return err
}

// corruptError is damage that SQLite itself did not call so.
type corruptError struct{ what string }

func (e *corruptError) Error() string { return "the database is damaged: " + e.what }

func (f *file) check() error {
	var answer string
	if err := f.write.QueryRow("PRAGMA quick_check(1)").Scan(&answer); err != nil {
		return err
	}
	if answer != "ok" {
		return &corruptError{answer}
	}
	return nil
}

// checkSchema tells whether the tables are those of the version that the file
// claims. It reads none of them.
func (f *file) checkSchema() error {
	_, err := f.write.Exec(`SELECT 1 FROM conversations, checkpoints, compactions, pins, turns,
		originals, messages, parts, texts, pieces, search LIMIT 0`)
	if e, ok := errors.AsType[*sqlite.Error](err); ok && e.Code() == sqlite3.SQLITE_ERROR {
		return &corruptError{e.Error()}
	}
	return err
}

// isCorrupt tells damage of the file from everything else that can go wrong.
func isCorrupt(err error) bool {
	if _, ok := errors.AsType[*corruptError](err); ok {
		return true
	}
	e, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return false
	}
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return true
	}
	return false
}

// inIndex tells that only the search index is damaged, which can be made anew.
func inIndex(err error) bool {
	if e, ok := errors.AsType[*corruptError](err); ok {
		return strings.Contains(strings.ToLower(e.what), "fts5")
	}
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && e.Code() == sqlite3.SQLITE_CORRUPT_VTAB
}

// moveAside renames the files of a damaged database, which must be closed.
func moveAside(path string, now time.Time) (to string, err error) {
	base := path + ".corrupt-" + now.UTC().Format("20060102T150405Z")
	for i := 0; ; i++ {
		to = base
		if i > 0 {
			to = fmt.Sprintf("%s.%d", base, i)
		}
		if _, err := os.Lstat(to); errors.Is(err, os.ErrNotExist) {
			break
		}
	}
	for _, suffix := range suffixes {
		if e := os.Rename(path+suffix, to+suffix); e != nil && !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return to, err
}
