package compaction

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/compactproxy/compactproxy/internal/transcript"
)

func TestCollapse(t *testing.T) {
	broken := "Error: the build failed\n" + lines("trace", 10) + "\n\nCommand exited with code 2"
	other := "Error: the build failed\n" + lines("another", 10) + "\n\nCommand exited with code 2"
	build := func(text string) []transcript.Message { return round("shell", `{"command":"make"}`, text) }
	codex := func(chunk, wall, out string) []transcript.Message {
		return round("exec_command", `{"cmd":"make"}`, "Chunk ID: "+chunk+"\nWall time: "+wall+" seconds\nProcess exited with code 2\nOriginal token count: 9\nOutput:\n"+out)
	}
	tests := []struct {
		name string
		list []transcript.Message
		want string
	}{
		{"all but the newest of the same failure",
			listOf(user("task"), build(broken), build(broken), build(broken)),
			"- - collapsed - collapsed - -"},
		{"another error of the same call is another fact",
			listOf(user("task"), build(broken), build(other), build(broken)),
			"- - collapsed - - - -"},
		{"the same error of another call",
			listOf(user("task"), build(broken), round("shell", `{"command":"make test"}`, broken)),
			"- - - - -"},
		{"codex: chunk id and wall time differ each time",
			listOf(user("task"), codex("a1b2", "0.1", lines("x", 10)), codex("c3d4", "7.9", lines("x", 10))),
			"- - collapsed - -"},
		{"codex: another output",
			listOf(user("task"), codex("a1b2", "0.1", lines("x", 10)), codex("a1b2", "0.1", lines("y", 10))),
			"- - - - -"},
		{"a success between two failures does not part them",
			listOf(user("task"), build(broken), build("ok\n"+lines("built", 10)), build(broken)),
			"- - collapsed - - - -"},
		{"equal successes are not failures",
			listOf(user("task"), build(lines("built", 10)), build(lines("built", 10))),
			"- - - - -"},
		{"a file that holds a traceback is no failure",
			listOf(user("task"), read("/log", "Traceback (most recent call last):\n"+lines("x", 10)), read("/log", "Traceback (most recent call last):\n"+lines("x", 10))),
			"- - - - -"},
		{"refusals are never collapsed",
			listOf(user("task"), build("The user has declined to run this tool. "+lines("x", 10)), build("The user has declined to run this tool. "+lines("x", 10))),
			"- - - - -"},
		{"the marker would be no shorter",
			listOf(user("task"), read("/a", "File not found: /a"), read("/a", "File not found: /a")),
			"- - - - -"},
		{"arguments that are not JSON have no target",
			listOf(user("task"), round("shell", `{"command":`, broken), round("shell", `{"command":`, broken)),
			"- - - - -"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, entries := DefaultSettings(), Entries(tt.list, 0)
			s.collapse(entries, len(entries))
			if got := edits(entries); got != tt.want {
				t.Fatalf("got  %s\nwant %s", got, tt.want)
			}
			checkOnlyEdited(t, Entries(tt.list, 0), entries)
			for i := range entries {
				if entries[i].Edit == Collapsed && !strings.Contains(entries[i].Text(), "failed again later in the same way") {
					t.Errorf("marker: %q", entries[i].Text())
				}
			}
			again := append([]Entry(nil), entries...)
			s.collapse(again, len(again))
			if diff := cmp.Diff(raws(entries), raws(again)); diff != "" {
				t.Errorf("not idempotent:\n%s", diff)
			}
		})
	}
}

// The marker says that the newest failure stands further down. That has to be so
// after the other passes as well, which may thin a long one.
func TestCollapseTellsTheTruth(t *testing.T) {
	broken := "Error: the build failed\n" + lines("trace", 100) + "\n\nCommand exited with code 2"
	build := round("shell", `{"command":"make"}`, broken)
	list := listOf(user("task"), build, build)
	for range 6 { // push both behind the protected turns
		list = append(list, read("/x", lines("x", 200))...)
	}
	out := mustRecover(t, refused(list, 4000))
	collapsed, stands := false, false
	for _, e := range out.Entries {
		collapsed = collapsed || strings.Contains(e.Text(), "the newest failure stands further down")
		stands = stands || strings.HasPrefix(e.Text(), broken[:200])
	}
	if collapsed && !stands {
		t.Errorf("an entry says that the newest failure stands further down, and it is not:\n%s", strings.Join(texts(out.Entries)[1:5], "\n----\n"))
	}
}
