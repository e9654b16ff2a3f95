package store

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/compactproxy/compactproxy/internal/conversation"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

var asStored = cmp.Options{cmpopts.EquateEmpty(), cmp.AllowUnexported(transcript.Message{})}

// kinds are the two places where a store can be.
func kinds(t *testing.T, test func(t *testing.T, dir string)) {
	t.Run("file", func(t *testing.T) { test(t, t.TempDir()) })
	t.Run("memory", func(t *testing.T) { test(t, memory) })
}

func TestStore_RoundTrip(t *testing.T) {
	kinds(t, func(t *testing.T, dir string) {
		s := openStore(t, Options{Dir: dir, Archive: true})
		state := fullState("a")
		first := conversation.Commit{State: state, Checkpoint: filed("a", 0, 2, "one", result(t, "1", "x"), result(t, "2", "y"))}
		id1, err := s.Commit(first)
		if err != nil {
			t.Fatal(err)
		}
		second := conversation.Commit{State: state, Checkpoint: filed("a", id1, 3, "two", result(t, "3", "z"))}
		id2, err := s.Commit(second)
		if err != nil {
			t.Fatal(err)
		}
		pins := []conversation.Pin{{N: 4, Chain: hashOf("4"), Raw: []byte("four")}, {N: 5, Chain: hashOf("5"), Raw: []byte("five")}}
		state.Checkpoint = id2
		if id, err := s.Commit(conversation.Commit{State: state, Pins: pins}); err != nil || id != 0 {
			t.Fatal(id, err)
		}
		turn := conversation.Turn{
			Conversation: "a", At: epoch, Action: "passes", Client: 1, Forecast: 2, Prompt: 3, Cached: -1,
			Completion: 5, Expected: 6, Miss: "template", Message: 7,
		}
		if err := s.Note(conversation.Notes{States: []conversation.State{state}, Turns: []conversation.Turn{turn}}); err != nil {
			t.Fatal(err)
		}

		kept, err := s.Load(10)
		if err != nil {
			t.Fatal(err)
		}
		want := conversation.Kept{
			Conversations: []conversation.State{state},
			Checkpoints: []conversation.Ref{
				{ID: id1, Conversation: "a", Chain: first.Checkpoint.Chain, N: 2},
				{ID: id2, Conversation: "a", Chain: second.Checkpoint.Chain, N: 3},
			},
		}
		if diff := cmp.Diff(want, kept, asStored); diff != "" {
			t.Errorf("Load: -want +got\n%s", diff)
		}
		if got, err := s.Entries(id1); err != nil || string(got) != "one" {
			t.Errorf("Entries = %q, %v", got, err)
		}
		if _, err := s.Entries(99); !errors.Is(err, conversation.ErrGone) {
			t.Errorf("Entries of none: %v", err)
		}
		if got, err := s.Pins("a"); err != nil || !cmp.Equal(got, pins) {
			t.Errorf("Pins = %v, %v", got, err)
		}
		got, list, turns, err := s.Conversation("a")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(state, got); diff != "" {
			t.Errorf("Conversation: -want +got\n%s", diff)
		}
		if diff := cmp.Diff([]conversation.Turn{turn}, turns); diff != "" {
			t.Errorf("turns: -want +got\n%s", diff)
		}
		wantList := []Compaction{
			{ID: id2, Conversation: "a", Parent: id1, N: 3, Summary: fullSummary()},
			{ID: id1, Conversation: "a", N: 2, Summary: fullSummary()},
		}
		if diff := cmp.Diff(wantList, list); diff != "" {
			t.Errorf("compactions: -want +got\n%s", diff)
		}
		detail, err := s.Compaction(id2)
		if err != nil {
			t.Fatal(err)
		}
		wantDetail := CompactionDetail{
			Compaction: wantList[0], Entries: []byte("two"), ParentEntries: []byte("one"),
			Originals: [][]byte{second.Checkpoint.Originals[0].Message.Raw()},
		}
		if diff := cmp.Diff(wantDetail, detail); diff != "" {
			t.Errorf("Compaction: -want +got\n%s", diff)
		}
		states, err := s.Conversations(1)
		if err != nil || !cmp.Equal(states, []conversation.State{state}) {
			t.Errorf("Conversations = %v, %v", states, err)
		}
		for what, err := range map[string]error{
			"conversation": errOf3(s.Conversation("none")), "compaction": errOf(s.Compaction(99)), "text": errOf(s.Text("00")),
		} {
			if !errors.Is(err, ErrNotFound) {
				t.Errorf("%s that is not there: %v", what, err)
			}
		}
		if s.Size() <= 0 {
			t.Error("no size")
		}
	})
}

func errOf[T any](_ T, err error) error                  { return err }
func errOf3[A, B, C any](_ A, _ B, _ C, err error) error { return err }

func TestLoad_NewestConversationsOnly(t *testing.T) {
	s := archiveIn(t)
	for i := range 5 {
		commit(t, s, fmt.Sprint("c", i), epoch.Add(time.Duration(i)*time.Minute), filed(fmt.Sprint("c", i), 0, 1, "e"))
	}
	kept, err := s.Load(2)
	if err != nil {
		t.Fatal(err)
	}
	if len(kept.Checkpoints) != 5 || len(kept.Conversations) != 2 || kept.Conversations[0].ID != "c4" {
		t.Errorf("Load = %+v", kept)
	}
}

func TestStore_SurvivesRestart(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(Options{Dir: dir, Archive: true})
	if err != nil {
		t.Fatal(err)
	}
	state := fullState("a")
	id := commit(t, s, "a", epoch, filed("a", 0, 1, "entries", result(t, "1", "the needle")))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error("a second Close:", err)
	}
	if _, err := s.Load(1); !errors.Is(err, errClosed) {
		t.Error("Load after Close:", err)
	}
	s = openStore(t, Options{Dir: dir, Archive: true})
	if got, err := s.Entries(id); err != nil || string(got) != "entries" {
		t.Errorf("Entries = %q, %v", got, err)
	}
	indexAll(t, s)
	if hits := recall(t, s, Query{Text: "needle"}); len(hits) != 1 {
		t.Errorf("hits = %v", hits)
	}
	if next := commit(t, s, state.ID, epoch, filed("a", id, 2, "more")); next <= id {
		t.Errorf("id %d after %d", next, id)
	}
}

func TestCommit_CheckpointDropsPinsThatItCovers(t *testing.T) {
	s := archiveIn(t)
	pin := func(n int) conversation.Pin {
		return conversation.Pin{N: n, Chain: hashOf(fmt.Sprint(n)), Raw: fmt.Append(nil, "pin ", n)}
	}
	for _, owner := range []string{"a", "b"} {
		if _, err := s.Commit(conversation.Commit{State: conversation.State{ID: owner}, Pins: []conversation.Pin{pin(1), pin(2), pin(3)}}); err != nil {
			t.Fatal(err)
		}
	}
	again := pin(3)
	again.Raw = []byte("later")
	if _, err := s.Commit(conversation.Commit{State: conversation.State{ID: "a"}, Checkpoint: filed("a", 0, 2, "e"), Pins: []conversation.Pin{again}}); err != nil {
		t.Fatal(err)
	}
	for owner, want := range map[string][]conversation.Pin{"a": {pin(3)}, "b": {pin(1), pin(2), pin(3)}} {
		if got, err := s.Pins(owner); err != nil || !cmp.Equal(got, want) {
			t.Errorf("pins of %s = %v, %v", owner, got, err)
		}
	}
}

func TestNote_KeepsTheNewestTurns(t *testing.T) {
	s := archiveIn(t)
	notes := conversation.Notes{States: []conversation.State{{ID: "a"}}}
	for i := range maxTurns + 20 {
		notes.Turns = append(notes.Turns, conversation.Turn{Conversation: "a", At: epoch, Prompt: i})
	}
	notes.Turns = append(notes.Turns, conversation.Turn{Conversation: "forgotten"})
	if err := s.Note(notes); err != nil {
		t.Fatal(err)
	}
	_, _, turns, err := s.Conversation("a")
	if err != nil || len(turns) != maxTurns || turns[0].Prompt != 20 {
		t.Errorf("%d turns from %d, %v", len(turns), turns[0].Prompt, err)
	}
	if n := count(t, s, "SELECT count(*) FROM turns"); n != maxTurns {
		t.Errorf("%d turns stored", n)
	}
}

func TestCommit_UnsavedCheckpointIsNotStored(t *testing.T) {
	s := archiveIn(t)
	if _, err := s.Commit(conversation.Commit{State: conversation.State{ID: "a", Checkpoint: -3}}); err != nil {
		t.Fatal(err)
	}
	if kept, err := s.Load(1); err != nil || kept.Conversations[0].Checkpoint != 0 {
		t.Errorf("%+v, %v", kept, err)
	}
}

func TestCommit_WithoutArchive(t *testing.T) {
	s := openStore(t, Options{Dir: t.TempDir()})
	id := commit(t, s, "a", epoch, filed("a", 0, 1, "e", result(t, "1", "secret")))
	detail, err := s.Compaction(id)
	if err != nil || len(detail.Originals) != 0 || string(detail.Entries) != "e" {
		t.Errorf("%+v, %v", detail, err)
	}
	if n := count(t, s, "SELECT count(*) FROM texts"); n != 0 {
		t.Errorf("%d texts", n)
	}
}
