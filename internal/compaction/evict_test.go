package compaction

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/compactproxy/compactproxy/internal/transcript"
)

func TestEvict(t *testing.T) {
	long, longer := lines("first", 20), lines("second", 20)
	batch := func(parts ...transcript.Message) []transcript.Message { return parts }
	tests := []struct {
		name string
		list []transcript.Message
		want string // the edit of each message
	}{
		{"a full read supersedes the older one",
			listOf(user("task"), read("/a.go", long), read("/a.go", longer)),
			"- - evicted - -"},
		{"all but the newest of several",
			listOf(user("task"), read("/a.go", long), read("/a.go", longer), read("/a.go", long), read("/a.go", longer)),
			"- - evicted - evicted - evicted - -"},
		{"other files stay",
			listOf(user("task"), read("/a.go", long), read("/b.go", longer)),
			"- - - - -"},
		{"spellings of one path",
			listOf(user("task"), round("read_file", `{"absolute_path":"/src//a.go"}`, long), round("view", `{ "filePath" : "/src/./a.go" }`, longer)),
			"- - evicted - -"},
		{"a full write supersedes a full read",
			listOf(user("task"), read("/a.go", long), round("write", `{"path":"/a.go","content":"package a"}`, "Wrote 9 bytes.")),
			"- - evicted - -"},
		{"a full read supersedes a long answer to a write",
			listOf(user("task"), round("write", `{"path":"/a.go","content":"package a"}`, long), read("/a.go", longer)),
			"- - evicted - -"},
		{"a partial edit supersedes nothing: its result has no file",
			listOf(user("task"), read("/a.go", long), round("edit", `{"path":"/a.go","before":"x","after":"y"}`, "Edited.")),
			"- - - - -"},
		{"the same range again",
			listOf(user("task"), round("read", `{"path":"/a.go","offset":1,"limit":80}`, long), round("read", `{"limit":80,"offset":1,"path":"/a.go"}`, longer)),
			"- - evicted - -"},
		{"another range",
			listOf(user("task"), round("read", `{"path":"/a.go","offset":1,"limit":80}`, long), round("read", `{"path":"/a.go","offset":81,"limit":80}`, longer)),
			"- - - - -"},
		{"a range does not supersede the whole, nor the whole a range",
			listOf(user("task"), read("/a.go", long), round("read", `{"path":"/a.go","offset":1,"limit":80}`, longer), read("/b.go", "x"), round("read", `{"path":"/b.go","offset":9}`, long), read("/b.go", longer)),
			"- - - - - - - - - - -"},
		{"an unknown tool: name and all arguments, in canonical form",
			listOf(user("task"), round("lookup", `{"a": 1, "b": {"d":2,"c":3}}`, long), round("lookup", `{"b":{"c":3,"d":2},"a":1}`, longer)),
			"- - evicted - -"},
		{"an unknown tool with another argument",
			listOf(user("task"), round("lookup", `{"a":1}`, long), round("lookup", `{"a":2}`, longer)),
			"- - - - -"},
		{"two tools with equal arguments",
			listOf(user("task"), round("lookup", `{"a":1}`, long), round("lookdown", `{"a":1}`, longer)),
			"- - - - -"},
		{"a path that two searches share is no target",
			listOf(user("task"), round("grep", `{"path":"/src","pattern":"foo"}`, long), round("grep", `{"path":"/src","pattern":"bar"}`, longer)),
			"- - - - -"},
		{"pages of one list (Vibe-Trading PR#1341)",
			listOf(user("task"), round("f", `{"page":1}`, long), round("f", `{"page":2}`, longer), round("f", `{"page":3}`, long)),
			"- - - - - - -"},
		{"polling returns only what is new",
			listOf(user("task"), round("write_stdin", `{"session_id":1,"chars":""}`, long), round("write_stdin", `{"session_id":1,"chars":""}`, longer), round("bash_output", `{"id":"1"}`, long), round("bash_output", `{"id":"1"}`, longer)),
			"- - - - - - - - -"},
		{"a shell read of the file a tool read before",
			listOf(user("task"), read("/a.go", long), round("shell", `{"command":"cat /a.go"}`, longer)),
			"- - evicted - -"},
		{"the same range by sed",
			listOf(user("task"), round("bash", `{"command":"sed -n 1,80p /a.go"}`, long), round("bash", `{"command":"sed -n 1,80p /a.go"}`, longer)),
			"- - evicted - -"},
		{"an opaque command: only the identical one",
			listOf(user("task"), round("bash", `{"command":"cat /a.go | grep x"}`, long), round("bash", `{"command":"cat /a.go | grep y"}`, long), round("bash", `{"command":"cat /a.go | grep x"}`, longer)),
			"- - evicted - - - -"},
		{"a failure supersedes nothing",
			listOf(user("task"), read("/a.go", long), read("/a.go", "File not found: /a.go")),
			"- - - - -"},
		{"a failure is not evicted",
			listOf(user("task"), read("/a.go", "File not found: /a.go"+strings.Repeat(" ", 400)), read("/a.go", long)),
			"- - - - -"},
		{"a refusal neither supersedes nor goes",
			listOf(user("task"), read("/a.go", long), round("write", `{"path":"/a.go","content":"x"}`, "The user has declined to run this tool. DO NOT attempt to call this tool again."), round("write", `{"path":"/b.go","content":"x"}`, "Denied by the user: "+strings.Repeat("no. ", 100)), read("/b.go", longer)),
			"- - - - - - - - -"},
		{"an unanswered call supersedes nothing",
			listOf(user("task"), read("/a.go", long), calls(toolCall{"c2", "read", `{"path":"/a.go"}`})),
			"- - - -"},
		{"ids used again in a later turn, for another tool",
			listOf(user("task"),
				calls(toolCall{"0", "read", `{"path":"/a.go"}`}), answer("0", long),
				calls(toolCall{"0", "grep", `{"pattern":"x"}`}), answer("0", longer),
				calls(toolCall{"0", "read", `{"path":"/a.go"}`}), answer("0", longer)),
			"- - evicted - - - -"},
		{"results out of call order",
			listOf(user("task"), batch(
				calls(toolCall{"x", "read", `{"path":"/a.go"}`}, toolCall{"y", "read", `{"path":"/b.go"}`}), answer("y", long), answer("x", longer)),
				read("/b.go", longer)),
			"- - evicted - - -"},
		{"two reads of one file in one batch",
			listOf(user("task"), batch(
				calls(toolCall{"x", "read", `{"path":"/a.go"}`}, toolCall{"y", "read", `{"path":"/a.go"}`}), answer("x", long), answer("y", longer))),
			"- - evicted -"},
		{"the marker would be no shorter",
			listOf(user("task"), read("/a.go", "package a"), read("/a.go", longer)),
			"- - - - -"},
		{"arguments that are not JSON",
			listOf(user("task"), round("read", `{"path":"/a.go`, long), round("read", `{"path":"/a.go`, longer)),
			"- - - - -"},
		{"the user's own text about a file is no result",
			listOf(user("task\n"+long), read("/a.go", longer), says(long), user(long), read("/b.go", long)),
			"- - - - - - -"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, entries := DefaultSettings(), Entries(tt.list, 0)
			s.evict(entries, len(entries))
			if got := edits(entries); got != tt.want {
				t.Fatalf("got  %s\nwant %s", got, tt.want)
			}
			checkOnlyEdited(t, Entries(tt.list, 0), entries)
			again := append([]Entry(nil), entries...)
			s.evict(again, len(again))
			if diff := cmp.Diff(raws(entries), raws(again)); diff != "" {
				t.Errorf("not idempotent:\n%s", diff)
			}
		})
	}
}

// The marker says which call's result counts, and how to get the old one again.
func TestEvictedText(t *testing.T) {
	list := listOf(user("task"), read("/a.go", lines("a", 20)), round("write", `{"path":"/a.go","content":"x"}`, "ok"))
	entries := Entries(list, 0)
	DefaultSettings().evict(entries, len(entries))
	got := entries[2].Text()
	if !strings.Contains(got, "a later write call covers the same target") || !strings.Contains(got, "call read again") {
		t.Errorf("got %q", got)
	}
}

// A content of several parts keeps the number of its blocks, and its image.
func TestEvictKeepsParts(t *testing.T) {
	parts := message(`{"role":"tool","tool_call_id":"c1","content":[{"type":"text","text":` + quoted(lines("a", 20)) + `,"cache_control":{"type":"ephemeral"}},{"type":"image_url","image_url":{"url":"data:x"}},{"type":"text","text":"more"}]}`)
	list := listOf(user("task"), calls(toolCall{"c1", "read", `{"path":"/a.go"}`}), parts, read("/a.go", "new"))
	entries := Entries(list, 0)
	DefaultSettings().evict(entries, len(entries))
	if entries[2].Edit != Evicted {
		t.Fatalf("got %s", edits(entries))
	}
	if got := entries[2].Parts; len(got) != 3 || entries[2].Images() != 1 {
		t.Errorf("got %d parts in %s", len(got), entries[2].Raw())
	}
	if !strings.Contains(string(entries[2].Raw()), `"cache_control":{"type":"ephemeral"}`) {
		t.Errorf("lost a member: %s", entries[2].Raw())
	}
}

// A result that a recovery capped is still out of date once a newer one covers
// its target: up to 30,000 characters that are related to the work and wrong
// about it.
func TestEvictCapped(t *testing.T) {
	for _, edit := range []Edit{Capped, Clipped} {
		t.Run(edit.String(), func(t *testing.T) {
			entries := Entries(listOf(user("task"), read("/a.go", lines("old", 400)), read("/a.go", lines("new", 20))), 0)
			entries[2] = entries[2].with(entries[2].WithText(headTail(entries[2].Text(), 3000, 3000)), edit)
			DefaultSettings().evict(entries, len(entries))
			if entries[2].Edit != Evicted {
				t.Errorf("a superseded result of %d bytes that was %s once stays for ever", entries[2].TextBytes(), edit)
			}
		})
	}
}

// checkOnlyEdited fails where a message changed that is not marked as edited,
// or where an edit touched more than a message's text.
func checkOnlyEdited(t testing.TB, before, after []Entry) {
	t.Helper()
	if len(before) != len(after) {
		t.Fatalf("%d messages became %d", len(before), len(after))
	}
	for i := range before {
		a, b := before[i], after[i]
		if a.End != b.End || a.Role != b.Role || len(a.Parts) != len(b.Parts) || len(a.Calls) != len(b.Calls) || a.Answers != b.Answers {
			t.Errorf("message %d: its frame changed: %s to %s", i, a.Raw(), b.Raw())
		}
		if same := string(a.Raw()) == string(b.Raw()); same != (a.Edit == b.Edit) {
			t.Errorf("message %d: edit %q to %q, changed %v", i, a.Edit, b.Edit, !same)
		}
		if b.ContentBytes() > a.ContentBytes() {
			t.Errorf("message %d grew from %d to %d bytes", i, a.ContentBytes(), b.ContentBytes())
		}
	}
}
