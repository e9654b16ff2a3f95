package store

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/compactproxy/compactproxy/internal/conversation"
)

var update = flag.Bool("update", false, "write testdata/v1.db.zst; only while there is no migration behind the first")

const golden = "testdata/v1.db.zst"

// What an older version wrote is there after the migrations, all of it.
func TestMigrate_FromVersion1(t *testing.T) {
	state := fullState("a")
	first := filed("a", 0, 2, "first entries", message(t, nasty[7]), message(t, nasty[19]))
	second := filed("a", 1, 3, "second entries", result(t, "3", "the needle"))
	pin := conversation.Pin{N: 4, Chain: hashOf("pin"), Raw: []byte(`{"role":"user"}`)}
	turn := conversation.Turn{Conversation: "a", At: epoch, Action: "passes", Prompt: 1, Cached: -1}
	p := newPacker()
	defer p.close()

	if *update {
		dir := t.TempDir()
		s, err := Open(Options{Dir: dir, Archive: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []conversation.Commit{
			{State: state, Checkpoint: first}, {State: state, Checkpoint: second}, {State: state, Pins: []conversation.Pin{pin}},
		} {
			if _, err := s.Commit(c); err != nil {
				t.Fatal(err)
			}
		}
		indexAll(t, s)
		if err := s.Note(conversation.Notes{Turns: []conversation.Turn{turn}}); err != nil {
			t.Fatal(err)
		}
		if v := count(t, s, "PRAGMA user_version"); v != 1 {
			t.Fatalf("this program writes version %d", v)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(dir, "state.db"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(golden, p.pack(b)[1:], 0o644); err != nil {
			t.Fatal(err)
		}
	}

	packed, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	b, err := p.unpack(append([]byte{zipped}, packed...))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "state.db"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, Options{Dir: dir, Archive: true, Report: func(e string) { t.Error(e) }})
	kept, err := s.Load(10)
	if err != nil {
		t.Fatal(err)
	}
	want := conversation.Kept{
		Conversations: []conversation.State{state},
		Checkpoints:   []conversation.Ref{{ID: 1, Conversation: "a", Chain: first.Chain, N: 2}, {ID: 2, Conversation: "a", Chain: second.Chain, N: 3}},
	}
	if diff := cmp.Diff(want, kept); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if pins, err := s.Pins("a"); err != nil || !cmp.Equal(pins, []conversation.Pin{pin}) {
		t.Errorf("%+v, %v", pins, err)
	}
	_, _, turns, err := s.Conversation("a")
	if err != nil || !cmp.Equal(turns, []conversation.Turn{turn}) {
		t.Errorf("%+v, %v", turns, err)
	}
	for id, f := range map[int64]*conversation.Filed{1: first, 2: second} {
		d, err := s.Compaction(id)
		if err != nil {
			t.Fatal(err)
		}
		detail := CompactionDetail{
			Compaction: Compaction{ID: id, Conversation: "a", Parent: f.Parent, N: f.N, Summary: f.Summary}, Entries: f.Entries,
		}
		if id == 2 {
			detail.ParentEntries = first.Entries
		}
		for i := range f.Originals {
			detail.Originals = append(detail.Originals, f.Originals[i].Message.Raw())
		}
		if diff := cmp.Diff(detail, d); diff != "" {
			t.Errorf("%d: -want +got\n%s", id, diff)
		}
	}
	indexAll(t, s)
	if hits := recall(t, s, Query{Text: "needle"}); len(hits) != 1 {
		t.Errorf("hits = %+v", hits)
	}
	check(t, s)
}
