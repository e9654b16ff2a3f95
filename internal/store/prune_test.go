package store

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/compactproxy/compactproxy/internal/conversation"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// empty fails where a table still has rows.
func empty(t *testing.T, s *Store, tables ...string) {
	t.Helper()
	for _, table := range tables {
		if n := count(t, s, "SELECT count(*) FROM "+table); n != 0 {
			t.Errorf("%d rows in %s", n, table)
		}
	}
}

var allTables = []string{"conversations", "checkpoints", "compactions", "pins", "turns", "originals", "messages", "parts", "texts", "pieces"}

func TestForget_LeavesNothingInTheFile(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, Options{Dir: dir, Archive: true})
	canaries := map[string]string{
		"text": "zq1canarytext", "entries": "zq2canaryentries", "pin": "zq3canarypin", "session": "zq4canarysession",
		"turn": "zq5canaryturn", "shell": "zq6canaryshell", "summary": "zq7canarysummary", "tool": "zq8canarytool",
	}
	f := filed("a", 0, 2, canaries["entries"], result(t, "1", canaries["text"]), result(t, canaries["shell"], "y"))
	f.Summary.Reasons = []string{canaries["summary"]}
	f.Originals[0].Tool = canaries["tool"]
	state := conversation.State{ID: "a", Session: canaries["session"], Used: epoch}
	if _, err := s.Commit(conversation.Commit{State: state, Checkpoint: f, Pins: []conversation.Pin{{N: 3, Raw: []byte(canaries["pin"])}}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Note(conversation.Notes{Turns: []conversation.Turn{{Conversation: "a", Action: canaries["turn"]}}}); err != nil {
		t.Fatal(err)
	}
	// Among others, so that pages are shared.
	for i := range 50 {
		id := fmt.Sprint("other", i)
		commit(t, s, id, epoch, filed(id, 0, 1, "e", result(t, id, fmt.Sprint("another text ", i))))
		indexAll(t, s)
	}
	stored := contents(t, dir)
	for what, canary := range canaries {
		if !bytes.Contains(stored, []byte(canary)) {
			t.Fatalf("the test shows nothing: %s is not to be seen in the file", what)
		}
	}
	if err := s.Forget("a"); err != nil {
		t.Fatal(err)
	}
	stored = contents(t, dir)
	for what, canary := range canaries {
		if bytes.Contains(stored, []byte(canary)) {
			t.Errorf("%s can still be read in the file", what)
		}
	}
	if bytes.Contains(stored, []byte("canarytext")) { // as the index has it: without its beginning
		t.Error("a word can still be read in the search index")
	}
	if hits := recall(t, s, Query{Text: canaries["text"]}); len(hits) != 0 {
		t.Errorf("hits = %+v", hits)
	}
	if hits := recall(t, s, Query{Text: "another"}); len(hits) != defaultLimit {
		t.Errorf("%d hits of another conversation", len(hits))
	}
	if err := s.Forget("a"); err != nil {
		t.Errorf("once more: %v", err)
	}
	for i := range 50 {
		if err := s.Forget(fmt.Sprint("other", i)); err != nil {
			t.Fatal(err)
		}
	}
	empty(t, s, allTables...)
	check(t, s)
}

func TestForget_GivesPagesBack(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, Options{Dir: dir, Archive: true})
	commit(t, s, "small", epoch, filed("small", 0, 1, "e", result(t, "1", "x")))
	indexAll(t, s)
	if err := s.reclaim(); err != nil {
		t.Fatal(err)
	}
	before := s.Size()
	commit(t, s, "large", epoch, filed("large", 0, 1, "e", result(t, "1", noise(1<<18))))
	indexAll(t, s)
	if s.Size() < before+1<<18 {
		t.Fatalf("size %d after %d", s.Size(), before)
	}
	if err := s.Forget("large"); err != nil {
		t.Fatal(err)
	}
	if s.Size() > before+64<<10 {
		t.Errorf("size %d, it was %d", s.Size(), before)
	}
}

// noise does not compress well.
func noise(n int) string {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	b := make([]byte, n)
	for i := range b {
		if b[i] = "abcdefghijklmnopqrstuvwxyz0123456789"[r.IntN(36)]; i%9 == 8 {
			b[i] = ' '
		}
	}
	return string(b)
}

// texts of the originals of a checkpoint.
func originalTexts(t *testing.T, s *Store, id int64) (out []string) {
	t.Helper()
	d, err := s.Compaction(id)
	if err != nil {
		t.Fatal(err)
	}
	for _, raw := range d.Originals {
		m := message(t, string(raw))
		out = append(out, m.Text())
	}
	return out
}

func TestForget_HandsOverWhatAnotherReplays(t *testing.T) {
	s := archiveIn(t)
	first := commit(t, s, "a", epoch, filed("a", 0, 2, "first", result(t, "1", "one"), result(t, "2", "two")))
	second := commit(t, s, "a", epoch, filed("a", first, 3, "second", result(t, "3", "three")))
	third := commit(t, s, "a", epoch, filed("a", second, 5, "third", result(t, "4", "four"), result(t, "5", "five")))
	// b is a fork that replays the second one, c has gone on from the first, d is an older fork.
	for id, used := range map[string]int{"b": 2, "d": 1} {
		state := conversation.State{ID: id, Parent: "a", Checkpoint: second, Used: epoch.Add(time.Duration(used) * time.Hour)}
		if err := s.Note(conversation.Notes{States: []conversation.State{state}}); err != nil {
			t.Fatal(err)
		}
	}
	own := commit(t, s, "c", epoch, filed("c", first, 3, "own", result(t, "3", "other three")))
	indexAll(t, s)

	if err := s.Forget("a"); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[int64]error{first: conversation.ErrGone, second: nil, third: conversation.ErrGone, own: nil} {
		if _, err := s.Entries(id); !errors.Is(err, want) {
			t.Errorf("entries of %d: %v", id, err)
		}
	}
	kept, err := s.Load(10)
	if err != nil {
		t.Fatal(err)
	}
	owners := map[int64]string{}
	for _, ref := range kept.Checkpoints {
		owners[ref.ID] = ref.Conversation
	}
	if diff := cmp.Diff(map[int64]string{second: "b", own: "c"}, owners); diff != "" {
		t.Errorf("owners: -want +got\n%s", diff)
	}
	for id, want := range map[int64][]string{second: {"one", "two", "three"}, own: {"one", "two", "other three"}} {
		if diff := cmp.Diff(want, originalTexts(t, s, id)); diff != "" {
			t.Errorf("originals of %d: -want +got\n%s", id, diff)
		}
	}
	if d, err := s.Compaction(second); err != nil || d.Parent != 0 || d.ParentEntries != nil {
		t.Errorf("%+v, %v", d, err)
	}
	if hits := recall(t, s, Query{Text: "four"}); len(hits) != 0 {
		t.Errorf("hits = %+v", hits)
	}
	if hits := recall(t, s, Query{Text: "two"}); len(hits) != 2 {
		t.Errorf("hits = %+v", hits)
	}
	for _, id := range []string{"b", "c", "d"} {
		if err := s.Forget(id); err != nil {
			t.Fatal(err)
		}
	}
	empty(t, s, allTables...)
}

func TestPrune_ByAge(t *testing.T) {
	s := openStore(t, Options{Dir: t.TempDir(), Archive: true, Retention: time.Hour})
	now := time.Now()
	for id, age := range map[string]time.Duration{"old": 3 * time.Hour, "older": 4 * time.Hour, "live": 5 * time.Hour, "fresh": time.Minute} {
		commit(t, s, id, now.Add(-age), filed(id, 0, 1, "e", result(t, "1", "text of "+id)))
	}
	removed, err := s.Prune([]string{"live", "not stored"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"older", "old"}, removed); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if kept, err := s.Load(10); err != nil || len(kept.Conversations) != 2 || len(kept.Checkpoints) != 2 {
		t.Errorf("%+v, %v", kept, err)
	}
	if n := count(t, s, "SELECT count(*) FROM texts"); n != 2 {
		t.Errorf("%d texts", n)
	}
	if removed, err := s.Prune(nil); err != nil || !slices.Equal(removed, []string{"live"}) {
		t.Errorf("%v, %v", removed, err)
	}
}

// fill stores conversations of about 100 KB each, the first one used first. The
// results are the ids of their two checkpoints.
func fill(t *testing.T, s *Store, n int) (ids [][2]int64) {
	t.Helper()
	for i := range n {
		id := fmt.Sprint("c", i)
		used := epoch.Add(time.Duration(i) * time.Minute)
		sum := sha256.Sum256([]byte(id))
		text := func(part string, size int) transcript.Message {
			return result(t, part, fmt.Sprintf("%x %s %s", sum, part, noise(size)[i:]))
		}
		first := commit(t, s, id, used, filed(id, 0, 1, noise(20_000+i), text("one", 40_000)))
		second := commit(t, s, id, used, filed(id, first, 2, noise(21_000+i), text("two", 41_000)))
		ids = append(ids, [2]int64{first, second})
	}
	return ids
}

func TestPrune_ByBytes(t *testing.T) {
	all := func(n int) (ids []string) {
		for i := range n {
			ids = append(ids, fmt.Sprint("c", i))
		}
		return ids
	}
	const conversations = 10
	for _, test := range []struct {
		name      string
		percent   int64 // of what is stored may stay
		live      []string
		removed   []string // exactly, nil for not checked
		checks    func(t *testing.T, s *Store, ids [][2]int64)
		unbounded bool // what is needed does not fit
	}{
		{name: "all fits", percent: 200, removed: []string{}},
		{name: "oldest first", percent: 70, checks: func(t *testing.T, s *Store, ids [][2]int64) {
			if _, err := s.Entries(ids[0][1]); !errors.Is(err, conversation.ErrGone) {
				t.Errorf("the oldest is there: %v", err)
			}
			if _, err := s.Entries(ids[9][0]); err != nil {
				t.Errorf("the newest is not there: %v", err)
			}
		}},
		{name: "not the live ones", percent: 50, live: []string{"c0", "c1"}, checks: func(t *testing.T, s *Store, ids [][2]int64) {
			for i := range 2 {
				if texts := originalTexts(t, s, ids[i][1]); len(texts) != 1 {
					t.Errorf("originals of c%d: %d", i, len(texts))
				}
			}
			if _, err := s.Entries(ids[2][0]); !errors.Is(err, conversation.ErrGone) {
				t.Errorf("the oldest that is not live is there: %v", err)
			}
		}},
		{name: "superseded checkpoints of live ones", percent: 95, live: all(conversations), removed: []string{}, checks: func(t *testing.T, s *Store, ids [][2]int64) {
			if _, err := s.Entries(ids[0][0]); !errors.Is(err, conversation.ErrGone) {
				t.Errorf("superseded and there: %v", err)
			}
			if texts := originalTexts(t, s, ids[0][1]); len(texts) != 2 {
				t.Errorf("the last one has not got its originals: %d", len(texts))
			}
			if texts := originalTexts(t, s, ids[9][1]); len(texts) != 1 {
				t.Errorf("the newest one was touched: %d", len(texts))
			}
		}},
		{name: "originals of live ones", percent: 70, live: all(conversations), removed: []string{}, checks: func(t *testing.T, s *Store, ids [][2]int64) {
			if texts := originalTexts(t, s, ids[0][1]); len(texts) != 0 {
				t.Errorf("originals of the oldest: %d", len(texts))
			}
			if texts := originalTexts(t, s, ids[9][1]); len(texts) != 2 {
				t.Errorf("originals of the newest: %d", len(texts))
			}
		}},
		{name: "what live ones need stays", percent: 1, live: all(conversations), removed: []string{}, unbounded: true, checks: func(t *testing.T, s *Store, ids [][2]int64) {
			for i := range ids {
				if b, err := s.Entries(ids[i][1]); err != nil || len(b) == 0 {
					t.Errorf("entries of c%d: %v", i, err)
				}
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := openStore(t, Options{Dir: t.TempDir(), Archive: true})
			s.indexing.Lock() // sizes are those of the tables alone
			defer s.indexing.Unlock()
			ids := fill(t, s, conversations)
			s.maxBytes = int64(count(t, s, "PRAGMA page_count")) * 8192 * test.percent / 100
			removed, err := s.Prune(test.live)
			if err != nil {
				t.Fatal(err)
			}
			for _, id := range removed {
				if slices.Contains(test.live, id) {
					t.Errorf("%s was live", id)
				}
			}
			if test.removed != nil && len(removed) != len(test.removed) {
				t.Errorf("removed %v", removed)
			}
			if test.checks != nil {
				test.checks(t, s, ids)
			}
			var shm int64 = 32 << 10 // not the bound's
			if size := s.Size(); size-shm > s.maxBytes && !test.unbounded {
				t.Errorf("size %d, bound %d", size, s.maxBytes)
			}
			check(t, s)
		})
	}
}
