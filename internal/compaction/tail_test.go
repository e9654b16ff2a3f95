package compaction

import (
	"strings"
	"testing"

	"github.com/compactproxy/compactproxy/internal/transcript"
)

func TestTailStart(t *testing.T) {
	// The window is 10,000 tokens at a token for each three bytes: tail_min is
	// 1,000 tokens (3,000 bytes), tail_max 1,500 (4,500 bytes).
	text := func(bytes int) string { return strings.Repeat("ab ", bytes/3) }
	turn := func(bytes int) []transcript.Message { return round("f", `{}`, text(bytes)) }
	tests := []struct {
		name string
		list []transcript.Message
		want int
	}{
		{"three turns between the limits", listOf(user("t"), turn(1300), turn(1300), turn(1300), turn(1300)), 3},
		{"small turns: more, while they stay under tail_min", listOf(user("t"), turn(600), turn(600), turn(600), turn(600), turn(600), turn(600)), 5},
		{"tiny turns: all of them", listOf(user("t"), turn(30), turn(30), turn(30), turn(30), turn(30)), 1},
		{"large turns: fewer, while they exceed tail_max", listOf(user("t"), turn(2000), turn(2000), turn(2000)), 3},
		{"one huge turn: never less than the newest", listOf(user("t"), turn(600), turn(30_000)), 3},
		{"a user message rides along", listOf(user("t"), turn(600), turn(600), turn(600), user("next"), turn(600), turn(600), turn(600), user(text(600))), 8},
		{"a huge user message at the end leaves one turn", listOf(user("t"), turn(600), turn(600), user(text(30_000))), 3},
		{"a batch is one turn", listOf(user("t"), turn(600),
			calls(toolCall{"a", "f", "{}"}, toolCall{"b", "f", "{}"}, toolCall{"c", "f", "{}"}), answer("a", text(1500)), answer("b", text(1500)), answer("c", text(1500))), 3},
		{"turns of text alone", listOf(user("t"), says(text(1400)), user("u"), says(text(1400)), user("u"), says(text(1400)), user("u"), says(text(1400)), user("u")), 3},
		{"no assistant message: the newest one", listOf(user("t"), user("u")), 1},
		{"nothing", nil, 0},
		{"an assistant message opens the list", listOf(says("hello"), user("t")), 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			entries := Entries(tt.list, 0)
			sc := Scale{Prompt: weightOf(entries) / 3, Window: 10_000, List: weightOf(entries)}
			if sc.Prompt == 0 {
				sc.Prompt, sc.List = 1, 3
			}
			got := DefaultSettings().tailStart(entries, sc)
			if got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
			if got < len(entries) && entries[got].Role != transcript.Assistant && newestAssistant(entries) < len(entries) {
				t.Errorf("the tail begins at a %s message", entries[got].Role)
			}
		})
	}
}

func TestTailKeepsRecent(t *testing.T) {
	// A turn has 516 tokens: one is below tail_min (1,000), two are above it.
	list := listOf(user("t"))
	for range 10 {
		list = append(list, round("f", `{}`, strings.Repeat("ab ", 500))...)
	}
	entries := Entries(list, 0)
	sc := Scale{Prompt: weightOf(entries) / 3, Window: 10_000, List: weightOf(entries)}
	for keep, want := range map[int]int{0: 19, 1: 19, 2: 17, 3: 15, 5: 11, 100: 1} {
		s := DefaultSettings()
		s.KeepRecent, s.TailMax = keep, 1
		if got := s.tailStart(entries, sc); got != want {
			t.Errorf("keep_recent %d: got %d, want %d", keep, got, want)
		}
	}
}

func TestWeight(t *testing.T) {
	base64 := strings.Repeat("QUJD", 1000)
	words := strings.Repeat("word ", 800)
	tests := []struct {
		name     string
		m        transcript.Message
		min, max int
	}{
		{"text", user(words), 4000, 4050},
		{"a long run of base64 costs three times its bytes", user(base64), 12000, 12050},
		{"a short one does not", user(base64[:200] + " " + base64[:200]), 401, 450},
		{"reasoning, names and arguments", thinks(words, toolCall{"c1", "read", `{"path":"/a"}`}), 4017, 4100},
		{"an image's payload is not text", message(`{"role":"user","content":[{"type":"text","text":"look"},{"type":"image_url","image_url":{"url":"data:image/png;base64,` + base64 + `"}}]}`), 4, 100},
		{"nor is what a client keeps in a member of its own", message(`{"role":"assistant","content":"hello","reasoning_details":[{"type":"reasoning.encrypted","data":"` + base64 + `"}]}`), 5, 100},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Weight([]transcript.Message{tt.m}); got < tt.min || got > tt.max {
				t.Errorf("got %d, want %d to %d", got, tt.min, tt.max)
			}
		})
	}
}

func TestTarget(t *testing.T) {
	tests := []struct {
		name string
		sc   Scale
		want int
		ok   bool
	}{
		{"half of the room", Scale{Prompt: 20_000, Window: 16_000, Overhead: 6000, List: 54_000}, 2000 + 7000, true},
		{"exactly the window is too long", Scale{Prompt: 16_000, Window: 16_000, Overhead: 0, List: 48_000}, 8000, true},
		{"no window: a third smaller", Scale{Prompt: 30_000, List: 90_000}, 20_000, true},
		{"our count says that it fits: a third smaller", Scale{Prompt: 12_000, Window: 16_000, List: 36_000}, 8000, true},
		{"no window, an overhead: a third of the list", Scale{Prompt: 30_000, Overhead: 30_000, List: 60_000}, 10_000 + 13_333, true},
		{"the overhead alone seems to fill the window, a little", Scale{Prompt: 20_000, Window: 16_000, Overhead: 50_000, List: 10_000}, 16_666, true},
		{"the overhead alone fills the window", Scale{Prompt: 24_000, Window: 16_000, Overhead: 50_000, List: 10_000}, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := tt.sc.Target()
			if ok != tt.ok || got < tt.want-1 || got > tt.want+1 {
				t.Errorf("got %d, %v, want %d, %v", got, ok, tt.want, tt.ok)
			}
		})
	}
}

// A prompt that the server counted comes back as that count: llama-server
// refuses at exactly the window, and a token less would read as "it fits".
func TestScaleIsExact(t *testing.T) {
	for weight := 1000; weight < 60_000; weight += 7 {
		sc := Scale{Prompt: weight/3 + 1, Window: weight/3 + 1, Overhead: 100, List: weight - 100}
		if got := sc.Tokens(sc.List); got != sc.Prompt {
			t.Fatalf("a list of %d bytes that the server counted as %d tokens is %d tokens: a prompt of exactly the window is taken for one that fits", weight, sc.Prompt, got)
		}
	}
}
