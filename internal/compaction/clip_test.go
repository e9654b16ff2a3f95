package compaction

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestClipStrings(t *testing.T) {
	long := strings.Repeat("a", 300) + strings.Repeat("b", 300)
	cut := func(s string, limit int) string { return headTail(s, limit/2, limit-limit/2) }
	tests := []struct {
		name  string
		in    string
		limit int
		want  string
	}{
		{"a long string", `{"path":"/a","content":"` + long + `"}`, 100, `{"path":"/a","content":` + quoted(cut(long, 100)) + `}`},
		{"spacing, numbers, duplicate keys and escapes stay", "{ \"n\" : 1.0e3,\n\"k\\u00e9y\":\"caf\\u00e9\", \"k\":null,\"k\":[true] , \"v\": \"" + long + "\" }", 100,
			"{ \"n\" : 1.0e3,\n\"k\\u00e9y\":\"caf\\u00e9\", \"k\":null,\"k\":[true] , \"v\": " + quoted(cut(long, 100)) + " }"},
		{"nested", `{"edits":[{"oldText":"x","newText":"` + long + `"},["` + long + `",9007199254740993]]}`, 100,
			`{"edits":[{"oldText":"x","newText":` + quoted(cut(long, 100)) + `},[` + quoted(cut(long, 100)) + `,9007199254740993]]}`},
		{"keys are never cut", `{"` + long + `":1}`, 100, `{"` + long + `":1}`},
		{"a bare string", `"` + long + `"`, 100, quoted(cut(long, 100))},
		{"short strings", `{"a":"x"}`, 100, `{"a":"x"}`},
		{"an escaped string is measured in characters", `{"a":"` + strings.Repeat(`\u6f22`, 60) + `"}`, 200, `{"a":"` + strings.Repeat(`\u6f22`, 60) + `"}`},
		{"surrogate pairs are not split", `{"a":"` + strings.Repeat(`\ud83d\ude00`, 200) + `"}`, 101, `{"a":` + quoted(cut(strings.Repeat("😀", 200), 101)) + `}`},
		{"not JSON", `{"a":"` + long, 100, `{"a":"` + long},
		{"not JSON behind a long string", `{"a":"` + long + `","b":`, 100, `{"a":"` + long + `","b":`},
		{"two values", `{"a":"` + long + `"} {`, 100, `{"a":"` + long + `"} {`},
		{"text", long, 100, long},
		{"empty", "", 100, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, string(clipStrings([]byte(tt.in), tt.limit))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Clipping what was clipped already changes nothing: it can free only its own
// marker, and the marker would then tell a wrong number.
func TestClipCallsIsIdempotent(t *testing.T) {
	code := lines("func", 400)
	list := listOf(user("task"),
		thinks(lines("thought", 200), toolCall{"c1", "write", `{"path":"/a.go","content":` + quoted(code) + `}`}), answer("c1", "ok"),
		read("/b.go", "x"))
	s, entries := DefaultSettings(), Entries(list, 0)
	s.clipCalls(entries, 3)
	if entries[1].Edit != Clipped {
		t.Fatal("the call was not clipped")
	}
	again := append([]Entry(nil), entries...)
	s.clipCalls(again, 3)
	if diff := cmp.Diff(raws(entries), raws(again)); diff != "" {
		t.Errorf("the second time:\n%s", diff)
	}
}

func TestClipCalls(t *testing.T) {
	long := strings.Repeat("x", 3000)
	plan := `{"content":` + quoted("- [ ] one\n"+strings.Repeat("- [x] done\n", 300)) + `}`
	list := listOf(user(long),
		thinks(long, toolCall{"a", "write", `{"path":"/a","content":"` + long + `"}`}, toolCall{"b", "todo__todo_write", plan}), answer("a", long), answer("b", "Updated (46 chars)"),
		calls(toolCall{"c", "todo__todo_write", plan}), answer("c", "Updated (46 chars)"),
		thinks(long, toolCall{"d", "write", `{"path":"/a","content":"` + long + `"}`}), answer("d", "ok"))
	s, entries := DefaultSettings(), Entries(list, 0)
	s.clipCalls(entries, 6)
	if got, want := edits(entries), "- clipped - - - - - -"; got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	m := entries[1]
	if n := utf8.RuneCountInString(m.Reasoning()); n > 320 {
		t.Errorf("reasoning has %d characters", n)
	}
	var args struct{ Path, Content string }
	if err := json.Unmarshal(m.Calls[0].Arguments, &args); err != nil || args.Path != "/a" || len(args.Content) > 560 {
		t.Errorf("arguments: %v, %s", err, m.Calls[0].Arguments)
	}
	if m.Calls[0].ID != "a" || m.Calls[0].Name != "write" || m.Calls[1].ID != "b" {
		t.Errorf("calls: %s", m.Raw())
	}
	if len(m.Calls[1].Arguments) >= len(plan) {
		t.Error("an older plan was not clipped")
	}
	if string(entries[4].Calls[0].Arguments) != plan {
		t.Error("the newest plan was clipped")
	}
	checkOnlyEdited(t, Entries(list, 0), entries)
}

// Some clients send arguments as an object. They stay one.
func TestClipObjectArguments(t *testing.T) {
	list := listOf(user("task"),
		message(`{"role":"assistant","tool_calls":[{"id":"c1","type":"function","function":{"name":"write","arguments":{"path": "/a","content":"`+strings.Repeat("x", 3000)+`"}}}]}`), answer("c1", "ok"),
		read("/b.go", "x"))
	entries := Entries(list, 0)
	DefaultSettings().clipCalls(entries, 3)
	if !strings.Contains(string(entries[1].Raw()), `"arguments":{"path": "/a","content":"xxx`) {
		t.Errorf("got %.200s", entries[1].Raw())
	}
	if len(entries[1].Raw()) > 1000 {
		t.Errorf("still %d bytes", len(entries[1].Raw()))
	}
}

func TestClipLargest(t *testing.T) {
	s := DefaultSettings()
	text := func(n int) string { return strings.Repeat("ab ", n/3) }
	list := listOf(user(text(9000)), round("f", `{}`, text(30_000)), user(text(12_000)), round("f", `{}`, text(900)), round("f", `{}`, text(6000)))
	entries := Entries(list, 0)
	s.clipLargest(entries, 40_000, clipFloor)
	if got, want := edits(entries), "- - clipped - - - - -"; got != want {
		t.Fatalf("only the largest text had to be cut:\ngot  %s\nwant %s", got, want)
	}
	if w := weightOf(entries); w > 40_000 || w < 34_000 {
		t.Errorf("weight %d, want a little under 40,000", w)
	}

	entries = Entries(list, 0)
	s.clipLargest(entries, 22_000, clipFloor)
	if got, want := edits(entries), "clipped - clipped - - - - clipped"; got != want {
		t.Fatalf("the newest instruction is cut last:\ngot  %s\nwant %s", got, want)
	}

	entries = Entries(list, 0)
	s.clipLargest(entries, 1000, clipFloor)
	if got, want := edits(entries), "clipped - clipped clipped - - - clipped"; got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	for i := range entries {
		if n := entries[i].ContentBytes(); n > 1100 {
			t.Errorf("entry %d has %d bytes", i, n)
		}
	}
	checkOnlyEdited(t, Entries(list, 0), entries)
}

// The facts behind a rebuilt task are not cut; the task is.
func TestClipRebuilt(t *testing.T) {
	task := user(strings.Repeat("task ", 2000))
	facts := "[facts]\n" + strings.Repeat("fact ", 1000)
	head := Entry{Message: task.WithAppended(facts), End: 5, Edit: Rebuilt, Task: &task}
	entries := append([]Entry{head}, Entries(listOf(read("/a", "x"), user("next")), 5)...)
	DefaultSettings().clipLargest(entries, 1000, clipFloor)
	got := entries[0]
	if got.Edit != Rebuilt || got.Task == nil {
		t.Fatalf("got %s, task %v", got.Edit, got.Task != nil)
	}
	if !strings.HasSuffix(got.Text(), facts) {
		t.Errorf("the facts did not stay: %q", got.Text())
	}
	if n := got.Task.TextBytes(); n > 1100 {
		t.Errorf("the task has %d bytes", n)
	}
	if !strings.HasPrefix(got.Text(), got.Task.Text()) {
		t.Error("the task that is kept apart is not the one that is sent")
	}
	if got.End != 5 {
		t.Errorf("end %d", got.End)
	}
}

func TestClipKeepsThePlan(t *testing.T) {
	plan := `{"content":` + quoted(strings.Repeat("- [ ] step\n", 500)) + `}`
	entries := Entries(listOf(user("task"), calls(toolCall{"c1", "todo__todo_write", plan}), answer("c1", "Updated"), read("/a", lines("x", 300))), 0)
	DefaultSettings().clipLargest(entries, 1000, clipFloor)
	if string(entries[1].Calls[0].Arguments) != plan {
		t.Error("the plan was clipped")
	}
}

// FuzzClipStrings: what was JSON stays JSON, nothing grows, and a string that
// fits keeps its bytes.
func FuzzClipStrings(f *testing.F) {
	f.Add(`{"path":"/a","content":"`+strings.Repeat(`\ud83d\ude00é漢`, 100)+`"}`, 80)
	f.Add(`[["`+strings.Repeat("a", 300)+`"],1e400,{"a":"\ud800"}]`, 10)
	f.Add(`{"a":`, 1)
	f.Fuzz(func(t *testing.T, text string, limit int) {
		limit = 1 + limit&511
		out := clipStrings([]byte(text), limit)
		if len(out) > len(text) {
			// A literal with raw invalid UTF-8 is written anew with U+FFFD.
			if utf8.ValidString(text) {
				t.Fatalf("%d bytes became %d: %q", len(text), len(out), out)
			}
		}
		if json.Valid([]byte(text)) && !json.Valid(out) {
			t.Fatalf("no JSON any more: %q", out)
		}
		if !json.Valid([]byte(text)) && utf8.ValidString(text) && string(out) != text && !strings.Contains(text, "\\u") {
			t.Fatalf("text that is not JSON was changed: %q to %q", text, out)
		}
	})
}
