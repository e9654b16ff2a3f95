package store

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/compactproxy/compactproxy/internal/conversation"
)

func TestOpen_OneProcess(t *testing.T) {
	dir := t.TempDir()
	if admin, ok := Running(dir); ok || admin != "" {
		t.Error("running before anybody is")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("looking made %v", entries)
	}
	s := openStore(t, Options{Dir: dir})
	if _, ok := Running(dir); !ok {
		t.Error("not running")
	}
	if err := s.SetAdmin("127.0.0.1:8091"); err != nil {
		t.Fatal(err)
	}
	if admin, ok := Running(dir); !ok || admin != "127.0.0.1:8091" {
		t.Errorf("Running = %q, %v", admin, ok)
	}
	_, err := Open(Options{Dir: dir})
	locked, ok := errors.AsType[*LockedError](err)
	if !ok {
		t.Fatalf("a second Open: %v", err)
	}
	if diff := cmp.Diff(&LockedError{Dir: dir, Admin: "127.0.0.1:8091", PID: os.Getpid()}, locked); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	for _, part := range []string{dir, "127.0.0.1:8091", fmt.Sprint(os.Getpid()), "state.path"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %s", err, part)
		}
	}
	if err := s.Note(conversation.Notes{States: []conversation.State{{ID: "a"}}}); err != nil {
		t.Error("the first one was disturbed:", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, ok := Running(dir); ok {
		t.Error("running after Close")
	}
	// As a kill leaves it.
	if err := writeHolder(dir, holder{PID: 1, Admin: "127.0.0.1:1"}); err != nil {
		t.Fatal(err)
	}
	if admin, ok := Running(dir); ok || admin != "" {
		t.Errorf("running after a kill: %q", admin)
	}
	openStore(t, Options{Dir: dir})
	if admin, ok := Running(dir); !ok || admin != "" {
		t.Errorf("Running = %q, %v: what the one before said", admin, ok)
	}
}

func TestOpen_Memory(t *testing.T) {
	before, _ := os.ReadDir(".")
	s, other := openStore(t, Options{Dir: memory}), openStore(t, Options{Dir: memory})
	if err := s.SetAdmin("x"); err != nil {
		t.Error(err)
	}
	commit(t, s, "a", epoch, nil)
	if kept, err := other.Load(1); err != nil || len(kept.Conversations) != 0 {
		t.Errorf("two stores in memory share: %+v, %v", kept, err)
	}
	if after, _ := os.ReadDir("."); len(after) != len(before) {
		t.Errorf("files: %v", after)
	}
}

func TestOpen_Permissions(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	dir := filepath.Join(t.TempDir(), "new", "with space?#%41")
	s := openStore(t, Options{Dir: dir, Archive: true})
	if err := s.SetAdmin("x"); err != nil {
		t.Fatal(err)
	}
	commit(t, s, "a", epoch, filed("a", 0, 1, "e", result(t, "1", "x")))
	want := map[string]fs.FileMode{"state.db": 0o600, "state.db-wal": 0o600, "state.db-shm": 0o600, lockFile: 0o600, serveFile: 0o600}
	got := map[string]fs.FileMode{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		got[e.Name()] = info.Mode().Perm()
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if info, err := os.Stat(d); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", d, info.Mode(), err)
		}
	}
}

func TestOpen_Settings(t *testing.T) {
	s := openStore(t, Options{Dir: t.TempDir()})
	for pragma, want := range map[string]string{
		"journal_mode": "wal", "synchronous": "1", "busy_timeout": "5000", "secure_delete": "1", "auto_vacuum": "2", "temp_store": "2", "user_version": "1",
	} {
		var got string
		if err := s.file.write.QueryRow("PRAGMA " + pragma).Scan(&got); err != nil || got != want {
			t.Errorf("%s = %s, want %s, %v", pragma, got, want, err)
		}
	}
	if _, err := s.file.read.Exec("DELETE FROM turns"); err == nil {
		t.Error("a reader may write")
	}
}

func TestOpen_PathIsAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{path, filepath.Join(path, "below")} {
		if s, err := Open(Options{Dir: dir}); err == nil {
			t.Errorf("%s was opened", dir)
			_ = s.Close()
		}
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "state.db"), 0o700); err != nil {
		t.Fatal(err)
	}
	if s, err := Open(Options{Dir: dir}); err == nil {
		t.Error("a folder was opened as a file")
		_ = s.Close()
	}
	if _, ok := Running(dir); ok {
		t.Error("a failed Open keeps the lock")
	}
}

// stored makes a state file with one checkpoint, and returns its bytes.
func stored(t *testing.T, dir string) (id int64, b []byte) {
	t.Helper()
	s, err := Open(Options{Dir: dir, Archive: true})
	if err != nil {
		t.Fatal(err)
	}
	id = commit(t, s, "a", epoch, filed("a", 0, 1, "entries", result(t, "1", "needle")))
	indexAll(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	b, err = os.ReadFile(filepath.Join(dir, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	return id, b
}

func TestOpen_NewerVersion(t *testing.T) {
	dir := t.TempDir()
	stored(t, dir)
	path := filepath.Join(dir, "state.db")
	f, err := connect(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.write.Exec("PRAGMA user_version = 99"); err != nil {
		t.Fatal(err)
	}
	if err := f.close(); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Open(Options{Dir: dir})
	newer, ok := errors.AsType[*NewerError](err)
	if !ok || newer.Have != 99 || newer.Want != 1 || newer.Path != path {
		t.Fatalf("Open: %v", err)
	}
	if !strings.Contains(err.Error(), "upgrade") || !strings.Contains(err.Error(), "state.path") {
		t.Errorf("%q does not say what to do", err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the file was changed, %v", err)
	}
}

func TestOpen_DamagedFile(t *testing.T) {
	noSchema := func(t *testing.T, dir string) {
		f, err := connect(filepath.Join(dir, "state.db"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.write.Exec("DROP TABLE turns"); err != nil {
			t.Fatal(err)
		}
		if err := f.close(); err != nil {
			t.Fatal(err)
		}
	}
	edit := func(change func(b []byte) []byte) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			path := filepath.Join(dir, "state.db")
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, change(b), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, test := range []struct {
		name   string
		damage func(t *testing.T, dir string)
	}{
		{"not a database", edit(func([]byte) []byte { return []byte(strings.Repeat("this is a text file\n", 100)) })},
		{"header", edit(func(b []byte) []byte { copy(b, "garbage"); return b })},
		{"schema page", edit(func(b []byte) []byte { clear(b[100:8192]); return b })},
		{"a page inside", edit(func(b []byte) []byte { copy(b[3*8192:], bytes.Repeat([]byte{0xa5}, 8192)); return b })},
		{"truncated", edit(func(b []byte) []byte { return b[:len(b)/2] })},
		{"a table is missing", noSchema},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			stored(t, dir)
			test.damage(t, dir)
			var e events
			s := openStore(t, Options{Dir: dir, Archive: true, Report: e.report})
			moved := s.Moved()
			if !strings.HasPrefix(moved, filepath.Join(dir, "state.db.corrupt-2")) {
				t.Fatalf("Moved = %q", moved)
			}
			if info, err := os.Stat(moved); err != nil || info.Size() == 0 {
				t.Errorf("%v", err)
			}
			if all := e.all(); len(all) != 1 || !strings.Contains(all[0], moved) {
				t.Errorf("reported %q", all)
			}
			if kept, err := s.Load(1); err != nil || len(kept.Checkpoints) != 0 {
				t.Errorf("%+v, %v", kept, err)
			}
			commit(t, s, "b", epoch, filed("b", 0, 1, "e", result(t, "1", "x")))
			check(t, s)
		})
	}
}

// An empty file is what a crash at the very start leaves.
func TestOpen_EmptyFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "state.db"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, Options{Dir: dir})
	commit(t, s, "a", epoch, nil)
	if s.Moved() != "" {
		t.Error("moved")
	}
}

// overwrite damages every page of a file that is open, from the second on, so that
// whatever is read next is garbage.
func overwrite(t *testing.T, s *Store) {
	t.Helper()
	if err := s.reclaim(); err != nil { // the log is empty
		t.Fatal(err)
	}
	f, err := os.OpenFile(s.path(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(bytes.Repeat([]byte{0xa5}, int(info.Size())-8192), 8192); err != nil {
		t.Fatal(err)
	}
}

func TestUse_DamageAtRunTime(t *testing.T) {
	for _, test := range []struct {
		name string
		call func(s *Store, id int64) error
	}{
		{"read", func(s *Store, id int64) error { _, err := s.Entries(id); return err }},
		{"write", func(s *Store, _ int64) error {
			_, err := s.Commit(conversation.Commit{State: conversation.State{ID: "x"}})
			return err
		}},
		{"search", func(s *Store, _ int64) error { _, err := s.Recall(Query{Text: "needle"}); return err }},
		{"prune", func(s *Store, _ int64) error { _, err := s.Prune(nil); return err }},
		{"forget", func(s *Store, _ int64) error { return s.Forget("a") }},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			id, _ := stored(t, dir)
			var e events
			s := openStore(t, Options{Dir: dir, Archive: true, Report: e.report})
			if _, err := s.Load(1); err != nil {
				t.Fatal(err)
			}
			// What the connections remember of the file must not hide the damage.
			overwrite(t, s)
			f, err := connect(s.path())
			if err != nil {
				t.Fatal(err)
			}
			s.mu.Lock()
			old := s.file
			s.file = f
			s.mu.Unlock()
			if err := old.close(); err != nil {
				t.Log(err)
			}
			err = test.call(s, id)
			if err == nil {
				t.Fatal("no error")
			}
			if s.Moved() == "" || len(e.all()) == 0 {
				t.Fatalf("not moved after %v; reported %q", err, e.all())
			}
			// From here on it works, and no id is given twice.
			next := commit(t, s, "b", epoch, filed("b", 0, 1, "new", result(t, "1", "haystack")))
			if next <= id {
				t.Errorf("id %d was given before", next)
			}
			if _, err := s.Entries(id); !errors.Is(err, conversation.ErrGone) {
				t.Errorf("entries of the old file: %v", err)
			}
			indexAll(t, s)
			if hits := recall(t, s, Query{Text: "haystack"}); len(hits) != 1 {
				t.Errorf("hits = %+v", hits)
			}
			check(t, s)
		})
	}
}

// Damage of the search index costs the index, not the checkpoints.
func TestUse_DamagedIndexIsMadeAnew(t *testing.T) {
	for _, at := range []string{"run time", "open"} {
		t.Run(at, func(t *testing.T) {
			dir := t.TempDir()
			var e events
			s, err := Open(Options{Dir: dir, Archive: true, Report: e.report})
			if err != nil {
				t.Fatal(err)
			}
			id := commit(t, s, "a", epoch, filed("a", 0, 1, "entries", result(t, "1", "needle")))
			indexAll(t, s)
			if _, err := s.file.write.Exec("UPDATE search_data SET block = x'ffffffffffffff' WHERE id > 10"); err != nil {
				t.Fatal(err)
			}
			if at == "open" {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				if s, err = Open(Options{Dir: dir, Archive: true, Report: e.report}); err != nil {
					t.Fatal(err)
				}
			}
			defer func() { _ = s.Close() }()
			if _, err := s.Recall(Query{Text: "needle"}); err == nil && at == "run time" {
				t.Error("the damage does not show")
			}
			indexAll(t, s)
			if hits := recall(t, s, Query{Text: "needle"}); len(hits) != 1 {
				t.Errorf("hits = %+v", hits)
			}
			if b, err := s.Entries(id); err != nil || string(b) != "entries" || s.Moved() != "" {
				t.Errorf("%q, %v, moved to %q", b, err, s.Moved())
			}
			if len(e.all()) == 0 {
				t.Error("nothing reported")
			}
			check(t, s)
		})
	}
}

// limitPages makes the disk full.
func limitPages(t *testing.T, s *Store, more int) {
	t.Helper()
	n := count(t, s, "PRAGMA page_count")
	if _, err := s.file.write.Exec(fmt.Sprint("PRAGMA max_page_count = ", n+more)); err != nil {
		t.Fatal(err)
	}
}

func TestStore_DiskFull(t *testing.T) {
	kinds(t, func(t *testing.T, dir string) {
		s := openStore(t, Options{Dir: dir, Archive: true})
		id := commit(t, s, "a", epoch, filed("a", 0, 1, "entries", result(t, "1", "needle")))
		indexAll(t, s)
		before, err := s.Load(10)
		if err != nil {
			t.Fatal(err)
		}
		limitPages(t, s, 0)
		big := conversation.Commit{State: conversation.State{ID: "a", Model: "changed"}, Checkpoint: filed("a", id, 2, noise(1<<18), result(t, "2", noise(1<<18)))}
		for range 3 {
			if _, err := s.Commit(big); err == nil {
				t.Fatal("no error")
			}
		}
		after, err := s.Load(10)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, after, asStored); diff != "" {
			t.Errorf("a failed commit left something: -before +after\n%s", diff)
		}
		if b, err := s.Entries(id); err != nil || string(b) != "entries" {
			t.Errorf("%q, %v", b, err)
		}
		if hits := recall(t, s, Query{Text: "needle"}); len(hits) != 1 {
			t.Errorf("hits = %+v", hits)
		}
		limitPages(t, s, 1000)
		if _, err := s.Commit(big); err != nil {
			t.Error("there is room again:", err)
		}
		if s.Moved() != "" {
			t.Error("a full disk is no damage")
		}
		check(t, s)
	})
}

func TestStore_ReadOnlyFile(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, Options{Dir: dir, Archive: true})
	id := commit(t, s, "a", epoch, filed("a", 0, 1, "entries"))
	if _, err := s.file.write.Exec("PRAGMA query_only = on"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(conversation.Commit{State: conversation.State{ID: "b"}}); err == nil {
		t.Error("no error")
	}
	if err := s.Note(conversation.Notes{States: []conversation.State{{ID: "b"}}}); err == nil {
		t.Error("no error")
	}
	if b, err := s.Entries(id); err != nil || string(b) != "entries" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := s.file.write.Exec("PRAGMA query_only = off"); err != nil {
		t.Fatal(err)
	}
	commit(t, s, "b", epoch, nil)
}

func TestMigrate_Steps(t *testing.T) {
	f, err := connect(memory)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	step := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	files := fstest.MapFS{
		"migrations/0001_a.sql": step("CREATE TABLE a (x); INSERT INTO a VALUES (1);"),
		"migrations/0002_b.sql": step("ALTER TABLE a ADD COLUMN y; UPDATE a SET y = x + 1;"),
		"migrations/0003_c.sql": step("INSERT INTO a VALUES (5, 6); INSERT INTO missing VALUES (1);"),
	}
	steps, err := readMigrations(files)
	if err != nil {
		t.Fatal(err)
	}
	if err := migrate(f.write, steps[:1]); err != nil {
		t.Fatal(err)
	}
	if err := migrate(f.write, steps); err == nil || !strings.Contains(err.Error(), "migration 3") {
		t.Errorf("the third one: %v", err)
	}
	var rows, y int
	if err := f.write.QueryRow("SELECT count(*), max(y) FROM a").Scan(&rows, &y); err != nil || rows != 1 || y != 2 {
		t.Errorf("%d rows, y = %d, %v", rows, y, err)
	}
	if v, err := version(f.write); err != nil || v != 2 {
		t.Errorf("version %d, %v", v, err)
	}
	delete(files, "migrations/0002_b.sql")
	if _, err := readMigrations(files); err == nil {
		t.Error("a gap is not seen")
	}
}

func TestStore_Concurrent(t *testing.T) {
	kinds(t, func(t *testing.T, dir string) {
		s := openStore(t, Options{Dir: dir, Archive: true, MaxBytes: 1 << 20, Report: func(e string) { t.Error(e) }})
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				id := fmt.Sprint("c", w)
				var parent int64
				for i := range 10 {
					m := result(t, fmt.Sprint(i), fmt.Sprint("shared text ", i))
					parent = commit(t, s, id, epoch, filed(id, parent, i+1, "e", m))
					if b, err := s.Entries(parent); err != nil || string(b) != "e" {
						t.Error(string(b), err)
					}
					if _, err := s.Recall(Query{Text: "shared"}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Go(func() {
			for i := range 5 {
				if err := s.Forget(fmt.Sprint("none", i)); err != nil {
					t.Error(err)
				}
				if _, err := s.Prune([]string{"c0", "c1", "c2", "c3"}); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Wait()
		indexAll(t, s)
		if n := count(t, s, "SELECT count(*) FROM texts"); n != 10 {
			t.Errorf("%d texts", n)
		}
		check(t, s)
	})
}
