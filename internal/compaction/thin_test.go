package compaction

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestThin(t *testing.T) {
	tests := []struct {
		name string
		text string
		want string // "" means untouched
	}{
		{"head and last line", strings.Repeat("a", 300) + "\n" + strings.Repeat("b", 300) + "\nlast line", strings.Repeat("a", 240) + cutMarker + "last line"},
		{"the final newline stays", strings.Repeat("a", 600) + "\nlast line\n", strings.Repeat("a", 240) + cutMarker + "last line\n"},
		{"a spilled output's path", strings.Repeat("x ", 500) + "\n[Full output saved to: /tmp/out-1.txt]", strings.Repeat("x ", 120) + cutMarker + "[Full output saved to: /tmp/out-1.txt]"},
		{"a last line of 240 characters", strings.Repeat("a", 1000) + "\n" + strings.Repeat("b", 240), strings.Repeat("a", 240) + cutMarker + strings.Repeat("b", 240)},
		{"a longer last line keeps its end", strings.Repeat("a", 1000) + "\n" + strings.Repeat("b", 100) + strings.Repeat("c", 240), strings.Repeat("a", 240) + cutMarker + strings.Repeat("c", 240)},
		{"one long line", strings.Repeat("a", 240) + strings.Repeat("b", 1000) + strings.Repeat("c", 240), strings.Repeat("a", 240) + cutMarker + strings.Repeat("c", 240)},
		{"characters, not bytes: CJK", strings.Repeat("漢", 1000) + "\n" + strings.Repeat("字", 300), strings.Repeat("漢", 240) + cutMarker + strings.Repeat("字", 240)},
		{"characters, not bytes: emoji", strings.Repeat("😀", 1000), strings.Repeat("😀", 240) + cutMarker + strings.Repeat("😀", 240)},
		{"a short result", "ok", ""},
		{"480 characters", strings.Repeat("a", 480), ""},
		{"a few more than fit: the marker would cost more", strings.Repeat("a", 500), ""},
		{"many short lines", strings.Repeat("ab\n", 60), ""},
		{"a refusal", "The user has declined to run this tool. " + strings.Repeat("x", 2000), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := DefaultSettings()
			list := listOf(user("task"), round("lookup", `{"x":`+quoted(strings.Repeat("y", 3000))+`}`, tt.text), read("/a", "x"))
			entries := Entries(list, 0)
			s.thin(entries, 3)
			want, edit := tt.want, Thinned
			if want == "" {
				want, edit = tt.text, Untouched
			}
			if got := entries[2].Text(); got != want || entries[2].Edit != edit {
				t.Errorf("%s, got\n%q\nwant\n%q", entries[2].Edit, got, want)
			}
			if string(entries[1].Raw()) != string(list[1].Raw()) {
				t.Error("a call did not stay whole")
			}
			checkOnlyEdited(t, Entries(list, 0), entries)
			again := append([]Entry(nil), entries...)
			s.thin(again, 3)
			if diff := cmp.Diff(raws(entries), raws(again)); diff != "" {
				t.Errorf("not idempotent:\n%s", diff)
			}
		})
	}
}

func TestThinStopsAtTheTail(t *testing.T) {
	long := lines("x", 100)
	list := listOf(user(long), read("/a", long), says(long), user(long), read("/b", long))
	entries := Entries(list, 0)
	DefaultSettings().thin(entries, 5)
	if got, want := edits(entries), "- - thinned - - - -"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// The last line is at most 240 characters; what only looks empty behind it
// counts too.
func TestThinTrailingSpace(t *testing.T) {
	for name, space := range map[string]string{"newlines": "\n", "spaces": " ", "carriage returns": "\r\n"} {
		t.Run(name, func(t *testing.T) {
			text := lines("x", 100) + "the end" + strings.Repeat(space, 4000)
			entries := Entries(listOf(user("task"), read("/a", text), read("/b", "x")), 0)
			DefaultSettings().thin(entries, 3)
			if n := utf8.RuneCountInString(entries[2].Text()); n > 600 {
				t.Errorf("a thinned result still has %d characters: 240, a marker and a last line of at most 240 are 540", n)
			}
		})
	}
}

func TestCap(t *testing.T) {
	s := DefaultSettings()
	refusal := "The user has declined to run this tool. " + strings.Repeat("x", 5000)
	list := listOf(user(lines("u", 100)), read("/a", strings.Repeat("a", 5000)), read("/b", strings.Repeat("b", 2500)+strings.Repeat("c", 2500)), round("shell", `{"command":"x"}`, refusal), read("/c", "short"))
	entries := Entries(list, 0)
	s.capResults(entries, 3, 1000)
	if got, want := edits(entries), "- - - - capped - - - -"; got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	want := strings.Repeat("b", 500) + cutMarker + strings.Repeat("c", 500)
	if got := entries[4].Text(); got != want {
		t.Errorf("got %q", got)
	}
	checkOnlyEdited(t, Entries(list, 0), entries)
	again := append([]Entry(nil), entries...)
	s.capResults(again, 3, 1000)
	if diff := cmp.Diff(raws(entries), raws(again)); diff != "" {
		t.Errorf("not idempotent:\n%s", diff)
	}
}

// min(30,000 characters, a quarter of the window).
func TestResultCap(t *testing.T) {
	tests := []struct {
		name string
		sc   Scale
		want int
	}{
		{"a small window", Scale{Prompt: 10_000, Window: 8000, List: 30_000}, 6000},
		{"a large window", Scale{Prompt: 200_000, Window: 131072, List: 600_000}, 30_000},
		{"no window: the prompt that was refused", Scale{Prompt: 8000, List: 24_000}, 6000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := resultCap(tt.sc); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

// A capped result grows old like any other: once it leaves the protected turns
// it is thinned.
func TestThinCapped(t *testing.T) {
	entries := Entries(listOf(user("task"), read("/a.go", lines("old", 600)), read("/b.go", "x")), 0)
	entries[2] = entries[2].with(entries[2].WithText(headTail(entries[2].Text(), 5000, 5000)), Capped)
	DefaultSettings().thin(entries, 3)
	if n := entries[2].TextBytes(); n > 1000 {
		t.Errorf("an old result of %d bytes that was capped once is never thinned", n)
	}
}

func TestHeadTail(t *testing.T) {
	tests := []struct {
		name       string
		text       string
		head, tail int
		want       string
	}{
		{"both ends", strings.Repeat("a", 100) + strings.Repeat("b", 100), 10, 10, strings.Repeat("a", 10) + cutMarker + strings.Repeat("b", 10)},
		{"head only", strings.Repeat("a", 100), 10, 0, strings.Repeat("a", 10) + cutMarker},
		{"nothing to remove", "abc", 10, 10, "abc"},
		{"they meet", "abcdef", 3, 3, "abcdef"},
		{"they overlap", "abcdef", 4, 4, "abcdef"},
		{"the marker would be longer", "abcdefghij", 2, 2, "abcdefghij"},
		{"empty", "", 5, 5, ""},
		{"emoji", strings.Repeat("😀", 100), 3, 2, "😀😀😀" + cutMarker + "😀😀"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := headTail(tt.text, tt.head, tt.tail); got != tt.want {
				t.Errorf("got %q\nwant %q", got, tt.want)
			}
		})
	}
}

// FuzzCut: a cut is never longer, never inside a character, keeps the ends it
// promises, and says that something is missing.
func FuzzCut(f *testing.F) {
	f.Add(strings.Repeat("a", 1000), 10, 20)
	f.Add(strings.Repeat("漢字", 400)+"\n😀", 7, 3)
	f.Add(lines("x", 40)+"\r\n \r\n", 240, 240)
	f.Add("\xff\xfe"+strings.Repeat("\x80", 500), 3, 3)
	f.Fuzz(func(t *testing.T, text string, head, tail int) {
		head, tail = head&1023, tail&1023
		for name, cut := range map[string]string{"headTail": headTail(text, head, tail), "headLine": headLine(text, head, tail)} {
			if cut == text {
				continue
			}
			if len(cut) >= len(text) {
				t.Fatalf("%s: %d bytes became %d", name, len(text), len(cut))
			}
			if utf8.ValidString(text) && !utf8.ValidString(cut) {
				t.Fatalf("%s: cut inside a character: %q", name, cut)
			}
			at := byteOffset(text, head)
			if cut[:at] != text[:at] || !strings.HasPrefix(cut[at:], cutMarker) {
				t.Fatalf("%s: the head did not stay, or no marker behind it: %q of %q", name, cut, text)
			}
			if rest := strings.TrimRight(cut[at+len(cutMarker):], "\n\r "); !strings.HasSuffix(strings.TrimRight(text, "\n\r "), rest) {
				t.Fatalf("%s: the end did not stay: %q of %q", name, rest, text)
			}
		}
	})
}
