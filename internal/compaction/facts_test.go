package compaction

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestFacts(t *testing.T) {
	failed := "Error: it broke\nmore\n\nCommand exited with code 1"
	tests := []struct {
		name string
		list any
		want string // behind the header; "" for no facts at all
	}{
		{"nothing to say", listOf(user("task"), says("hello"), round("lookup", `{}`, "x")), ""},
		{"an empty stretch", listOf(), ""},
		{"said: newest first, verbatim, without the task",
			listOf(user("task"), says("a"), user("second\n  line two"), says("b"), user("  third  ")),
			"\n\nSaid by the user, newest first:\n- third\n- second\n    line two"},
		{"empty user messages say nothing",
			listOf(user("task"), says("a"), user("  "), says("b"), user("x")),
			"\n\nSaid by the user, newest first:\n- x"},
		{"files, newest first, each once",
			listOf(user("task"), read("/a.go", "x"), read("/b.go", "x"), read("/a.go", "y"), round("write", `{"path":"/c.go","content":""}`, "ok"), round("edit", `{"path":"/a.go","before":"","after":""}`, "ok"), round("shell", `{"command":"cat /d.go"}`, "x")),
			"\n\nFiles written:\n- /a.go\n- /c.go\n\nFiles read:\n- /d.go\n- /a.go\n- /b.go"},
		{"a batch with several files",
			listOf(user("task"), round("read_files", `{"files":[{"path":"/a.go"},{"path":"/b.go"}]}`, `[{"query":"/a.go","result":"x","success":true}]`)),
			"\n\nFiles read:\n- /a.go\n- /b.go"},
		{"a failed read and a refused write are no reads and writes",
			listOf(user("task"), read("/a.go", "File not found: /a.go"), round("write", `{"path":"/b.go","content":""}`, "The user has declined to run this tool.")),
			"\n\nCalls that failed and have not succeeded since:\n- read {\"path\":\"/a.go\"}: File not found: /a.go"},
		{"a failure that was mended stands no more",
			listOf(user("task"), round("shell", `{"command":"make"}`, failed), round("shell", `{"command":"make"}`, "ok"), round("shell", `{"command":"make test"}`, failed)),
			"\n\nCalls that failed and have not succeeded since:\n- shell {\"command\":\"make test\"}: Error: it broke"},
		{"a failure after a success stands",
			listOf(user("task"), round("shell", `{"command":"make"}`, "ok"), round("shell", `{"command":"make"}`, failed)),
			"\n\nCalls that failed and have not succeeded since:\n- shell {\"command\":\"make\"}: Error: it broke"},
		{"a failure is told once, in its newest form",
			listOf(user("task"), round("shell", `{"command":"make"}`, "Error: old\n\nCommand exited with code 1"), round("shell", `{"command":"make"}`, failed)),
			"\n\nCalls that failed and have not succeeded since:\n- shell {\"command\":\"make\"}: Error: it broke"},
		{"system messages of the stretch",
			listOf(user("task"), system("Mode: plan."), says("a"), message(`{"role":"developer","content":"Do not write."}`)),
			"\n\nSystem messages:\n- Mode: plan.\n- Do not write."},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := DefaultSettings().facts(listOf(tt.list), "", 10_000)
			want := tt.want
			if want != "" {
				want = factsHeader + want
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// What the user said first is the task, which stays. A first message that holds
// only an image is the task as well; what the user said next is not.
func TestFactsAfterATaskWithoutText(t *testing.T) {
	image := message(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:x"}}]}`)
	got := DefaultSettings().facts(listOf(image, says("What is it?"), user("Rebuild this page in HTML."), says("ok")), "", 1000)
	if !strings.Contains(got, "Rebuild this page in HTML.") {
		t.Errorf("the instruction is lost: %q", got)
	}
}

func TestFactsAreBounded(t *testing.T) {
	list := listOf(user("task"))
	for range 200 {
		list = append(list, user(strings.Repeat("漢字 and so on. ", 20)), says("ok"))
		list = append(list, read("/src/"+strings.Repeat("long", 20)+".go", "x")...)
	}
	for _, limit := range []int{0, 1, 100, 200, 260, 400, 1000, 5000, 20_000} {
		got := DefaultSettings().facts(list, "", limit)
		if n := utf8.RuneCountInString(got); n > max(limit, 0) && got != "" {
			t.Errorf("limit %d: %d characters", limit, n)
		}
		if !utf8.ValidString(got) {
			t.Errorf("limit %d: cut inside a character", limit)
		}
	}
}

func TestFirstLine(t *testing.T) {
	for _, tt := range []struct {
		text string
		n    int
		want string
	}{
		{"\n\n one\ntwo", 10, "one"},
		{"one two three", 7, "one two…"},
		{"漢字漢字", 2, "漢字…"},
		{"", 5, ""},
	} {
		if got := firstLine(tt.text, tt.n); got != tt.want {
			t.Errorf("firstLine(%q, %d) = %q, want %q", tt.text, tt.n, got, tt.want)
		}
	}
}

// What an agent's program writes into user messages is labelled, and never the
// user's words, the task or the newest instruction.
func TestFacts_Harness(t *testing.T) {
	list := listOf(
		user("<environment_context>cwd is /srv</environment_context>"),
		user("port it to go"),
		read("a.py", lines("a", 300)), read("b.py", lines("b", 300)),
		user("keep the flags\n<turn-context>it is noon</turn-context>"),
		read("c.py", lines("c", 300)), read("d.py", lines("d", 300)),
		user("<system-reminder>no edits now</system-reminder>"),
		read("e.py", lines("e", 300)),
	)
	entries := Entries(list, 0)
	got := DefaultSettings().rebuild(entries, len(list)-2, list, scaleOf(entries, 0, 32768), "")
	head := got[0]
	if head.Task.Text() != "port it to go" {
		t.Errorf("the task is %q", head.Task.Text())
	}
	text := head.Text()
	if want := instructionHeader + "\nkeep the flags"; !strings.HasSuffix(text, want) {
		t.Errorf("the newest instruction is not %q in %q", want, text)
	}
	for _, want := range []string{"- [harness] <system-reminder>no edits now</system-reminder>", "- [harness] <turn-context>it is noon</turn-context>", "- [harness] <environment_context>"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %q", want, text)
		}
	}
	if strings.Contains(text, "Said by the user") {
		t.Errorf("words of a program are the user's in %q", text)
	}
}
