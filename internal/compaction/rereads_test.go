package compaction

import (
	"fmt"
	"testing"

	"github.com/compactproxy/compactproxy/internal/transcript"
)

// A file counts that is read again although it had been read and a compaction took
// what was read.
func TestRereads(t *testing.T) {
	long := lines("x", 60)
	type messages = []transcript.Message
	ranged := func(path string, offset int, text string) messages {
		return round("read", fmt.Sprintf(`{"path":%q,"offset":%d,"limit":50}`, path, offset), text)
	}
	shell := func(command, text string) messages {
		return round("shell", `{"command":`+quoted(command)+`}`, text)
	}
	filler := func(n int) messages {
		var list messages
		for i := range n {
			list = append(list, read(fmt.Sprintf("/filler%d", i), lines("f", 20))...)
		}
		return list
	}
	for _, tt := range []struct {
		name   string
		before messages // what the checkpoint covers
		kept   messages // closed turns behind it, known to the server
		now    messages // what is new with this request
		want   int
	}{
		{"a file that was dropped", read("/a", long), nil, read("/a", long), 1},
		{"a new file", read("/a", long), nil, read("/b", long), 0},
		{"nothing is read", read("/a", long), nil, shell("make test", "ok"), 0},
		{"nothing is new", read("/a", long), nil, nil, 0},
		{"twice in one request is one file", read("/a", long), nil, listOf(read("/a", long), read("/a", long)), 1},
		{"two files are two", listOf(read("/a", long), read("/b", long)), nil, listOf(read("/b", long), read("/a", long)), 2},
		{"a batch", listOf(read("/a", long), read("/b", long)), nil,
			listOf(calls(toolCall{"1", "read", `{"path":"/a"}`}, toolCall{"2", "read", `{"path":"/b"}`}, toolCall{"3", "read", `{"path":"/c"}`}), answer("1", long), answer("2", long), answer("3", long)), 2},
		{"it was read before and after, and the later one is visible", read("/a", long), read("/a", long), read("/a", long), 0},
		{"only the other one is visible", listOf(read("/a", long), read("/b", long)), read("/b", long), listOf(read("/a", long), read("/b", long)), 1},
		{"a part of a file that was read whole", read("/a", long), nil, ranged("/a", 50, long), 1},
		{"the whole of a file that was read in part", ranged("/a", 1, long), nil, read("/a", long), 1},
		{"the same part again", ranged("/a", 50, long), nil, ranged("/a", 50, long), 1},
		{"two parts of one file are one file", read("/a", long), nil, listOf(ranged("/a", 1, long), ranged("/a", 50, long)), 1},
		{"cat", shell("cat /a", long), nil, shell("cat /a", long), 1},
		{"sed", read("/a", long), nil, shell("sed -n 1,80p /a", long), 1},
		{"read after cat", shell("cat /a", long), nil, read("/a", long), 1},
		{"an opaque command reads nothing that we know of", read("/a", long), nil, shell("python3 -c 'print(open(\"/a\").read())'", long), 0},
		{"writing is not reading", read("/a", long), nil, round("write", `{"path":"/a","content":"x"}`, "ok"), 0},
		{"editing is not reading", read("/a", long), nil, round("edit", `{"path":"/a","before":"x","after":"y"}`, "ok"), 0},
		{"what was only written before is not read again", round("write", `{"path":"/a","content":"x"}`, "ok"), nil, read("/a", long), 0},
		{"a call that has no answer yet", read("/a", long), nil, listOf(calls(toolCall{"9", "read", `{"path":"/a"}`})), 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			covered := listOf(user("task"), tt.before, filler(2))
			originals := listOf(covered, tt.kept, tt.now)
			since := len(covered) + len(tt.kept)
			s := DefaultSettings()
			for how, head := range map[string][]Entry{
				"dropped": {{Message: user("task and facts"), End: len(covered), Edit: Rebuilt}},
				"thinned": thinned(s, covered),
			} {
				entries := append(head, Entries(originals[len(covered):], len(covered))...)
				if got := s.Rereads(entries, originals, len(covered), since); got != tt.want {
					t.Errorf("%s: got %d, want %d", how, got, tt.want)
				}
			}
		})
	}
}

func thinned(s Settings, list []transcript.Message) []Entry {
	entries := Entries(list, 0)
	s.thin(entries, len(entries))
	return entries
}

// A checkpoint covers closed turns that it left whole: what was read there is still
// to be seen.
func TestRereads_WholeUnderTheCheckpoint(t *testing.T) {
	list := listOf(user("task"), read("/a", lines("a", 60)), read("/b", lines("b", 60)), read("/a", "again"), read("/b", "again"))
	s, entries := DefaultSettings(), Entries(list, 0)
	s.thin(entries, 3) // only the first result
	if got := s.Rereads(entries, list, 5, 5); got != 1 {
		t.Errorf("got %d: /a was thinned, /b stands there whole", got)
	}
}

// What was counted with one request is not counted again with the next, and a
// rewind below the checkpoint breaks nothing.
func TestRereads_OncePerRequest(t *testing.T) {
	covered := listOf(user("task"), read("/a", lines("a", 60)))
	list := listOf(covered, read("/a", "1"), read("/c", "2"))
	s := DefaultSettings()
	entries := append([]Entry{{Message: user("task and facts"), End: 3, Edit: Rebuilt}}, Entries(list[3:], 3)...)
	if got := s.Rereads(entries[:3], list[:5], 3, 3); got != 1 {
		t.Errorf("with the request that reads it: %d", got)
	}
	if got := s.Rereads(entries, list, 3, 5); got != 0 {
		t.Errorf("with the next: %d", got)
	}
	for _, since := range []int{0, 1, 3, 7, 100} {
		for _, n := range []int{0, 3, 7, 100} {
			s.Rereads(entries, list, n, since) // must not panic
		}
	}
}
