package store

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/conversation"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// openStore opens a store that is closed with the test.
func openStore(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func archiveIn(t testing.TB) *Store {
	return openStore(t, Options{Dir: t.TempDir(), Archive: true, Report: func(e string) { t.Error(e) }})
}

// events collects what a store reports.
type events struct {
	mu   sync.Mutex
	list []string
}

func (e *events) report(event string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, event)
}

func (e *events) all() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.list...)
}

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// fullState is a state of which every field is set.
func fullState(id string) conversation.State {
	return conversation.State{
		ID: id, Parent: "parent", Session: "session", Model: "model",
		Started: epoch, Used: epoch.Add(time.Hour + time.Nanosecond),
		First: hashOf("first", id), Last: hashOf("last", id), System: hashOf("system"), Tools: hashOf("tools"),
		Prints: []uint64{1, 1 << 63, 3}, Checkpoint: 7, Prompt: 100,
		Anchor: compaction.Anchor{Last: compaction.Report{Tokens: 1, Bytes: 2}, Before: compaction.Report{Tokens: 3, Bytes: 4}},
		Full:   5, Mark: conversation.Mark{N: 6, Chain: hashOf("mark"), Tokens: 7}, Taint: []string{"web", "mail"},
		Totals: conversation.Totals{Requests: 1, Compactions: 2, Prompt: 3, Cached: 4, Completion: 5, Misses: 6, Rereads: 7},
	}
}

func fullSummary() conversation.Summary {
	return conversation.Summary{
		At: epoch, Trigger: "threshold", Kind: "passes", Window: 32768, Limit: 30000, Before: 31000, After: 9000,
		Exact: true, Removed: map[string]int{"evict": 1000}, Reasons: []string{"because"},
	}
}

func hashOf(parts ...string) (h transcript.Hash) {
	sum := sha256.Sum256(fmt.Append(nil, parts))
	copy(h[:], sum[:])
	return h
}

func message(t testing.TB, raw string) transcript.Message {
	t.Helper()
	m, err := transcript.ParseMessage([]byte(raw))
	if err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return m
}

// result is a tool message.
func result(t testing.TB, id, text string) transcript.Message {
	t.Helper()
	q, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	return message(t, fmt.Sprintf(`{"role":"tool","tool_call_id":%q,"content":%s}`, id, q))
}

// filed is a checkpoint of n messages over originals that end with the n-th.
func filed(owner string, parent int64, n int, entries string, messages ...transcript.Message) *conversation.Filed {
	f := &conversation.Filed{
		Ref:    conversation.Ref{Conversation: owner, Chain: hashOf(owner, fmt.Sprint(n)), N: n},
		Parent: parent, Entries: []byte(entries), Summary: fullSummary(),
	}
	for i, m := range messages {
		at := n - len(messages) + 1 + i
		f.Originals = append(f.Originals, conversation.Original{N: at, Chain: hashOf(owner, fmt.Sprint(at)), Tool: "read", Message: m})
	}
	return f
}

// commit files a checkpoint for a conversation that was used then.
func commit(t testing.TB, s *Store, id string, used time.Time, f *conversation.Filed) int64 {
	t.Helper()
	state := conversation.State{ID: id, Session: "s-" + id, Started: used, Used: used}
	n, err := s.Commit(conversation.Commit{State: state, Checkpoint: f})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func indexAll(t testing.TB, s *Store) {
	t.Helper()
	if err := s.IndexAll(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func recall(t testing.TB, s *Store, q Query) []Hit {
	t.Helper()
	hits, err := s.Recall(q)
	if err != nil {
		t.Fatalf("recall %q: %v", q.Text, err)
	}
	return hits
}

// count asks the file directly.
func count(t testing.TB, s *Store, query string, args ...any) (n int) {
	t.Helper()
	if err := s.file.write.QueryRow(query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// contents are the bytes of all files in a folder.
func contents(t testing.TB, dir string) (all []byte) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b...)
	}
	return all
}

// check runs SQLite's own check over everything.
func check(t testing.TB, s *Store) {
	t.Helper()
	var answer string
	if err := s.file.write.QueryRow("PRAGMA integrity_check").Scan(&answer); err != nil || answer != "ok" {
		t.Errorf("integrity check: %s %v", answer, err)
	}
}
