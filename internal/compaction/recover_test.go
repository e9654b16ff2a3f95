package compaction

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/compactproxy/compactproxy/internal/pairing"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

func TestRecoverKinds(t *testing.T) {
	big := lines("x", 200)
	reads := func(n int) []transcript.Message {
		var list []transcript.Message
		for i := range n {
			list = append(list, read(fmt.Sprintf("/%d.go", i), big)...)
		}
		return list
	}
	t.Run("the passes suffice", func(t *testing.T) {
		list := listOf(user("task"), reads(20), read("/0.go", big))
		out := mustRecover(t, refused(list, 20_000))
		if out.Kind != KindPasses {
			t.Errorf("got %s", out.Kind)
		}
		for _, pass := range []Pass{PassCalls, PassClip, PassDrop} {
			if _, ok := out.Removed[pass]; ok {
				t.Errorf("%s ran", pass)
			}
		}
		if out.Removed[PassEvict] == 0 || out.Removed[PassThin] == 0 {
			t.Errorf("got %v", out.Removed)
		}
	})
	t.Run("calls and reasoning are clipped next", func(t *testing.T) {
		list := listOf(user("task"))
		for i := range 12 {
			list = append(list, thinks(big, toolCall{"c", "write", fmt.Sprintf(`{"path":"/%d.go","content":%s}`, i, quoted(big))}), answer("c", "ok"))
		}
		out := mustRecover(t, refused(list, 20_000))
		if out.Kind != KindClip || out.Removed[PassCalls] == 0 || out.Removed[PassClip] != 0 {
			t.Errorf("got %s, %v", out.Kind, out.Removed)
		}
	})
	t.Run("then the largest texts", func(t *testing.T) {
		out := mustRecover(t, refused(listOf(user("task\n"+strings.Repeat(big, 10)), read("/a", big), user("go on")), 10_000))
		if out.Kind != KindClip || out.Removed[PassClip] == 0 || out.Removed[PassDrop] != 0 {
			t.Errorf("got %s, %v", out.Kind, out.Removed)
		}
		if got := out.Entries[len(out.Entries)-1].Text(); got != "go on" {
			t.Errorf("the newest instruction became %q", got)
		}
	})
	t.Run("then the oldest turns go", func(t *testing.T) {
		list := listOf(user("task"))
		for i := range 80 {
			list = append(list, says(fmt.Sprint("step ", i, strings.Repeat(" word", 60))), user("go on"))
		}
		out := mustRecover(t, refused(list, 8000))
		if out.Kind != KindClip || out.Removed[PassDrop] == 0 {
			t.Errorf("got %s, %v", out.Kind, out.Removed)
		}
		if out.Entries[0].Edit != Rebuilt || !strings.HasPrefix(out.Entries[0].Text(), "task\n\n"+factsHeader) {
			t.Errorf("got %.200q", out.Entries[0].Text())
		}
	})
	t.Run("what each step removed adds up", func(t *testing.T) {
		list := listOf(user("task"), reads(40), read("/0.go", big))
		req := refused(list, 6000)
		out := mustRecover(t, req)
		sum := 0
		for _, n := range out.Removed {
			sum += n
		}
		if got, want := sum, weightOf(req.Entries)-weightOf(out.Entries); got != want {
			t.Errorf("%d, want %d: %v", got, want, out.Removed)
		}
		if out.Before != req.Scale.Tokens(weightOf(req.Entries)) || out.After != req.Scale.Tokens(weightOf(out.Entries)) || out.After >= out.Before {
			t.Errorf("before %d, after %d", out.Before, out.After)
		}
	})
	t.Run("every step has a name", func(t *testing.T) {
		out := mustRecover(t, refused(listOf(user("task"), reads(40)), 1500))
		for pass := range out.Removed {
			if !slices.Contains(Passes, pass) {
				t.Errorf("no counter for %q", pass)
			}
		}
	})
}

func TestRecoverErrors(t *testing.T) {
	s := DefaultSettings()
	long := lines("x", 300)
	t.Run("overhead alone", func(t *testing.T) {
		entries := Entries(listOf(user("task"), read("/a", long)), 0)
		_, err := s.Recover(Request{Entries: entries, Open: len(entries), Scale: Scale{Prompt: 40_000, Window: 16_000, Overhead: 90_000, List: weightOf(entries)}})
		if !errors.Is(err, ErrOverhead) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("nothing to shorten", func(t *testing.T) {
		list := listOf(user("task"), says("ok"), user("go on"))
		req := refused(list, 0)
		if _, err := s.Recover(req); !errors.Is(err, ErrNothing) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("an illegal list is not sent", func(t *testing.T) {
		list := listOf(user("task"), read("/a", long), calls(toolCall{"c9", "read", `{"path":"/b"}`}), read("/a", long), read("/c", long))
		if _, err := s.Recover(refused(list, 8000)); !errors.Is(err, ErrIllegal) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a failure changes nothing of the request", func(t *testing.T) {
		list := listOf(user("task"), says("ok"), user("go on"))
		req := refused(list, 0)
		before := raws(req.Entries)
		_, _ = s.Recover(req)
		if diff := cmp.Diff(before, raws(req.Entries)); diff != "" {
			t.Error(diff)
		}
	})
}

// A recovery never changes the entries that it is given: the last good list has
// to stay good.
func TestRecoverLeavesItsInput(t *testing.T) {
	req := refused(history(rand.New(rand.NewPCG(7, 7)), 60), 3000)
	before := raws(req.Entries)
	mustRecover(t, req)
	if diff := cmp.Diff(before, raws(req.Entries)); diff != "" {
		t.Error(diff)
	}
}

func TestCheckpointEnd(t *testing.T) {
	long := lines("x", 200)
	t.Run("the end of the turn that holds the last edit", func(t *testing.T) {
		list := listOf(user("task"), read("/a", long), read("/a", long), read("/b", "y"), read("/c", "z"), read("/d", "z"), read("/e", "z"))
		req := refused(list, 0)
		req.Scale.Window = 100_000 // it fits, they say: a third smaller
		out := mustRecover(t, req)
		last := 0
		for i := range out.Entries {
			if out.Entries[i].Edit != Untouched {
				last = i
			}
		}
		if out.Covered < last+1 || out.N != out.Covered {
			t.Errorf("last edit at %d, covered %d, n %d", last, out.Covered, out.N)
		}
		if out.Covered < len(out.Entries) && out.Entries[out.Covered].Role == transcript.Tool {
			t.Error("the checkpoint ends inside a batch")
		}
	})
	t.Run("whole batches", func(t *testing.T) {
		list := listOf(user("task"),
			calls(toolCall{"a", "read", `{"path":"/a"}`}, toolCall{"b", "read", `{"path":"/b"}`}, toolCall{"c", "read", `{"path":"/c"}`}), answer("a", long), answer("b", "x"), answer("c", "y"),
			read("/a", long), read("/z", strings.Repeat(long, 2)), read("/y", "1"), read("/x", "2"))
		out := mustRecover(t, refused(list, 10_000))
		if out.Covered > 1 && out.Covered < 5 {
			t.Errorf("the checkpoint ends inside a batch: covered %d", out.Covered)
		}
	})
	t.Run("never less than what was replayed", func(t *testing.T) {
		list := listOf(user("task"), read("/a", long), read("/a", long), read("/b", "y"), read("/c", "z"), read("/d", "z"), read("/e", "z"), read("/f", "z"))
		req := refused(list, 0)
		req.Replayed = 11
		out := mustRecover(t, req)
		if out.Covered < 11 || out.N < 11 {
			t.Errorf("covered %d, n %d", out.Covered, out.N)
		}
	})
	t.Run("never over a batch that is still open", func(t *testing.T) {
		list := listOf(user("task"), read("/a", long), calls(toolCall{"b", "read", `{"path":"/b"}`}, toolCall{"c", "read", `{"path":"/c"}`}), answer("b", strings.Repeat(long, 3)))
		entries, _, violations := Repair(Entries(list, 0))
		if len(violations) != 1 {
			t.Fatalf("got %v", violations)
		}
		out := mustRecover(t, Request{Entries: entries, Originals: list, Open: 3, Scale: scaleOf(entries, 0, 6000)})
		if out.Covered > 3 || out.N > 3 {
			t.Errorf("covered %d, n %d: that batch has an invented result", out.Covered, out.N)
		}
	})
	t.Run("nothing to keep where all that changed is open", func(t *testing.T) {
		list := listOf(user("task"), calls(toolCall{"b", "read", `{"path":"/b"}`}, toolCall{"c", "read", `{"path":"/c"}`}), answer("b", strings.Repeat(long, 9)))
		entries, _, _ := Repair(Entries(list, 0))
		out := mustRecover(t, Request{Entries: entries, Originals: list, Open: 1, Scale: scaleOf(entries, 0, 6000)})
		if out.Covered > 1 || out.N > 1 {
			t.Errorf("covered %d, n %d", out.Covered, out.N)
		}
	})
	t.Run("a batch that was repaired as a whole is covered as a whole", func(t *testing.T) {
		list := listOf(user("task"), calls(toolCall{"b", "read", `{"path":"/b"}`}, toolCall{"c", "read", `{"path":"/c"}`}), answer("b", strings.Repeat(long, 2)), user("and?"), read("/e", long), read("/f", "x"), read("/g", "x"), read("/h", "x"))
		entries, _, violations := Repair(Entries(list, 0))
		if violations == nil {
			t.Fatal("legal")
		}
		req := Request{Entries: entries, Originals: list, Open: len(entries), Scale: scaleOf(entries, 0, 5000)}
		out := mustRecover(t, req)
		checkReplay(t, req, out)
	})
}

// KNOWN_FAILURES.md: the shapes that broke others.
func TestKnownFailures(t *testing.T) {
	big := lines("x", 300)
	t.Run("kimi-code#1053: a parallel batch is atomic", func(t *testing.T) {
		list := listOf(user("task"))
		for i := range 30 {
			list = append(list, calls(toolCall{"a", "read", fmt.Sprintf(`{"path":"/a%d"}`, i)}, toolCall{"b", "read", fmt.Sprintf(`{"path":"/b%d"}`, i)}), answer("b", big), answer("a", big))
		}
		for _, window := range []int{2000, 4000, 8000, 16_000, 32_000} {
			req := refused(list, window)
			checkProperties(t, req, mustRecover(t, req))
		}
	})
	t.Run("wayland-core PR#75: the last messages are a call and its result", func(t *testing.T) {
		req := refused(listOf(user("task"), read("/a", big), read("/b", strings.Repeat(big, 10))), 4000)
		out := mustRecover(t, req)
		checkProperties(t, req, out)
		last := out.Entries[len(out.Entries)-1]
		if last.Role != transcript.Tool || out.Entries[len(out.Entries)-2].Calls[0].Name != "read" {
			t.Errorf("got %q", texts(out.Entries))
		}
	})
	t.Run("hermes-agent PR#74087: no two user messages in a row", func(t *testing.T) {
		list := listOf(user("task"))
		for range 40 {
			list = append(list, says(strings.Repeat("word ", 100)), user("go on"))
		}
		req := refused(list, 3000)
		out := mustRecover(t, req)
		checkProperties(t, req, out)
		for i := 1; i < len(out.Entries); i++ {
			if out.Entries[i].Role == out.Entries[i-1].Role {
				t.Errorf("two %s messages in a row at %d", out.Entries[i].Role, i)
			}
		}
	})
	t.Run("openfox#367: the list does not end with an assistant message unless the client's did", func(t *testing.T) {
		list := listOf(user("task"))
		for range 40 {
			list = append(list, says(strings.Repeat("word ", 100)), user("go on "+strings.Repeat("x ", 100)))
		}
		for _, window := range []int{300, 1000, 3000} {
			out := mustRecover(t, refused(list, window))
			if out.Entries[len(out.Entries)-1].Role != transcript.User {
				t.Errorf("window %d: ends with %s", window, out.Entries[len(out.Entries)-1].Role)
			}
		}
	})
	t.Run("Vibe-Trading PR#1341: pages of one list stay apart", func(t *testing.T) {
		list := listOf(user("task"))
		for i := range 6 {
			list = append(list, round("f", fmt.Sprintf(`{"page":%d}`, i), lines(fmt.Sprint("page", i), 40))...)
		}
		out := mustRecover(t, refused(list, 3000))
		for i := range out.Entries {
			if out.Entries[i].Edit == Evicted {
				t.Errorf("page in entry %d was evicted", i)
			}
		}
	})
	t.Run("hermes-agent PR#6819: a 46 KB result in the tail", func(t *testing.T) {
		req := refused(listOf(user("task"), read("/a", lines("a", 1700)), read("/b", "x"), read("/c", "y")), 8192)
		out := mustRecover(t, req)
		checkProperties(t, req, out)
		if out.After >= 8192 {
			t.Errorf("%d tokens of a window of 8192", out.After)
		}
	})
	t.Run("gemini-cli PR#7047: never larger", func(t *testing.T) {
		list := listOf(user("task"), says("one"), user("two"), says("three"), user("four"))
		if out, err := DefaultSettings().Recover(refused(list, 20)); err == nil && weightOf(out.Entries) >= weightOf(Entries(list, 0)) {
			t.Errorf("%d bytes after %d", weightOf(out.Entries), weightOf(Entries(list, 0)))
		}
	})
	t.Run("software-agent-sdk#2255: one tool loop spans everything, with thinking", func(t *testing.T) {
		list := listOf(user("task"))
		for i := range 30 {
			list = append(list, thinks(lines("thought", 30), toolCall{"c", "shell", fmt.Sprintf(`{"command":"step %d"}`, i)}), answer("c", lines("out", 30)))
		}
		for _, window := range []int{1000, 4000, 16_000} {
			req := refused(list, window)
			checkProperties(t, req, mustRecover(t, req))
		}
	})
	t.Run("senpi PR#233: base64 inside a result", func(t *testing.T) {
		blob := strings.Repeat("iVBORw0KGgoAAAANSUhEUg", 4000)
		req := refused(listOf(user("task"), read("/a", lines("a", 100)), round("shell", `{"command":"base64 x.png"}`, "here:\n"+blob+"\ndone"), read("/b", lines("b", 100)), user("go on")), 16_000)
		out := mustRecover(t, req)
		checkProperties(t, req, out)
		if n := out.Entries[4].TextBytes(); n > 31_000 {
			t.Errorf("%d bytes of base64 stay", n)
		}
	})
	t.Run("pi#8196: every field is bounded", func(t *testing.T) {
		for name, m := range map[string][]transcript.Message{
			"result":    listOf(read("/a", strings.Repeat(big, 30))),
			"reasoning": listOf(thinks(strings.Repeat(big, 30), toolCall{"c", "read", `{"path":"/a"}`}), answer("c", "x")),
			"arguments": listOf(round("write", `{"path":"/a","content":`+quoted(strings.Repeat(big, 30))+`}`, "ok")),
			"text":      listOf(says(strings.Repeat(big, 30)), user("and?")),
			"user":      listOf(says("yes?"), user(strings.Repeat(big, 30))),
			"task":      nil,
		} {
			task := "task"
			if m == nil {
				task = strings.Repeat(big, 30)
			}
			out, err := DefaultSettings().Recover(refused(listOf(user(task), m), 4096))
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if out.After >= 4096 {
				t.Errorf("%s: still %d tokens of a window of 4096", name, out.After)
			}
		}
	})
	t.Run("agent-sdk#3: what the system said in the middle is not lost", func(t *testing.T) {
		const order = "From now on, answer in German."
		for name, wish := range map[string]string{
			"short wishes":  "go on",
			"pasted wishes": "Look at this:\n" + lines("pasted", 40),
		} {
			list := listOf(user("task"), says("ok"), system(order), user("go on"))
			for range 60 {
				list = append(list, says(strings.Repeat("word ", 100)), user(wish))
			}
			out := mustRecover(t, refused(list, 8192))
			if !strings.Contains(strings.Join(texts(out.Entries), "\n"), order) {
				t.Errorf("%s: the user's words fill the facts, and a system message is gone: %.600q", name, out.Entries[0].Text())
			}
		}
	})
	t.Run("opencodex#987: an image's bytes are not text", func(t *testing.T) {
		// 200 KB of image that the server counts as 300 tokens, in the task,
		// which stays: what else is there need not go for it.
		image := message(`{"role":"user","content":[{"type":"text","text":"task"},{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("QUJD", 50_000) + `"}}]}`)
		list := listOf(image)
		for i := range 20 {
			list = append(list, read(fmt.Sprintf("/%d", i), lines("x", 100))...)
		}
		entries := Entries(list, 0)
		text := weightOf(entries[1:])
		out := mustRecover(t, Request{Entries: entries, Originals: list, Open: len(entries), Scale: Scale{Prompt: 300 + text/3, Window: text/3 - 500, List: weightOf(entries)}})
		if out.Kind != KindPasses {
			t.Errorf("the passes free %d of %d bytes of text, and yet everything was clipped and dropped: %d of %d messages left", out.Removed[PassThin], text, len(out.Entries), len(entries))
		}
	})
}

// ---- properties

// history is a random well-paired history of about n messages, with everything
// in it that real ones have.
func history(r *rand.Rand, n int) []transcript.Message {
	words := []string{"the", "file", "函数", "переменная", "😀", "err", "return", "\u00e9t\u00e9", "\\", "\"x\"", "\t", "<|im_end|>", "\u2028"}
	text := func(max int) string {
		var b strings.Builder
		for range r.IntN(max + 1) {
			b.WriteString(words[r.IntN(len(words))])
			b.WriteByte(" \n"[r.IntN(8)/7])
		}
		if r.IntN(30) == 0 {
			b.WriteString(strings.Repeat("QUJDRA", 100+r.IntN(400)))
		}
		return b.String()
	}
	size := func() int { return []int{3, 40, 400, 3000}[r.IntN(4)] }
	list := []transcript.Message{user("The task: " + text(60))}
	if r.IntN(12) == 0 {
		list = []transcript.Message{says("Welcome."), user("The task: " + text(60))}
	}
	ids := 0
	for len(list) < n {
		switch r.IntN(12) {
		case 0:
			list = append(list, says(text(size())), user(fmt.Sprintf("Wish %d: %s", len(list), text(40))))
		case 1:
			if r.IntN(4) == 0 {
				list = append(list, says(text(20)), system("Mode "+text(5)), user(fmt.Sprintf("Wish %d: %s", len(list), text(10))))
			}
		case 2: // thinking only
			list = append(list, thinks(text(size())), user(fmt.Sprintf("Wish %d: go on", len(list))))
		case 3:
			parts := message(`{"role":"user","content":[{"type":"text","text":` + quoted(fmt.Sprintf("Wish %d", len(list))) + `},{"type":"image_url","image_url":{"url":"data:x"}}]}`)
			list = append(list, says("look"), parts)
		default:
			var batch []toolCall
			var results []transcript.Message
			for range 1 + r.IntN(3)*r.IntN(2) {
				ids++
				id := fmt.Sprint("call_", ids)
				if r.IntN(4) == 0 {
					id = fmt.Sprint("again", len(batch)) // ids used again across turns
				}
				path := fmt.Sprintf("/src/%d.go", r.IntN(6))
				c := []toolCall{
					{id, "read", `{"path":"` + path + `"}`},
					{id, "read", fmt.Sprintf(`{"path":"%s","offset":%d,"limit":50}`, path, 50*r.IntN(3))},
					{id, "write", `{"path":"` + path + `","content":` + quoted(text(size())) + `}`},
					{id, "edit", `{"path":"` + path + `","before":"a","after":` + quoted(text(20)) + `}`},
					{id, "shell", `{"command":"make test"}`},
					{id, "shell", `{"command":"cat ` + path + `"}`},
					{id, "todo__todo_write", `{"content":` + quoted("- [ ] "+text(20)) + `}`},
					{id, "lookup", `{ "q" : "` + fmt.Sprint(r.IntN(5)) + `" }`},
					{id, "write_stdin", `{"session_id":1,"chars":""}`},
				}[r.IntN(9)]
				batch = append(batch, c)
				out := text(size())
				switch r.IntN(8) {
				case 0:
					out = "Error: it broke\n" + strings.Repeat("trace ", 40) + "\n\nCommand exited with code 2"
				case 1:
					out = "The user has declined to run this tool. " + text(60)
				case 2:
					out = ""
				}
				results = append(results, answer(id, out))
			}
			r.Shuffle(len(results), func(i, j int) { results[i], results[j] = results[j], results[i] })
			reasoning := ""
			if r.IntN(3) == 0 {
				reasoning = text(size())
			}
			list = append(list, thinks(reasoning, batch...))
			list = append(list, results...)
		}
	}
	if r.IntN(3) == 0 {
		list = append(list, says("done so far"), user(fmt.Sprintf("Wish %d: %s", len(list), text(200))))
	}
	return list
}

// checkProperties fails where a recovery broke a promise.
func checkProperties(t testing.TB, req Request, out Outcome) {
	t.Helper()
	if v := pairing.Check(Messages(out.Entries)); v != nil {
		t.Errorf("not legally paired: %v", v)
	}
	if before, after := weightOf(req.Entries), weightOf(out.Entries); after >= before {
		t.Errorf("not smaller: %d bytes after %d", after, before)
	}
	checkReplay(t, req, out)
	checkUntouched(t, req, out)
	checkTask(t, req, out)
	checkIdempotent(t, req, out)
	for i := range out.Entries {
		if text := out.Entries[i].Text(); !utf8.ValidString(text) {
			t.Errorf("entry %d: cut inside a character", i)
		}
	}
}

// checkReplay: the checkpoint with the client's tail behind it is the very list
// that was sent, and it ends between turns.
func checkReplay(t testing.TB, req Request, out Outcome) {
	t.Helper()
	if out.N < 0 || out.N > len(req.Originals) || out.Covered < 0 || out.Covered > len(out.Entries) || (out.N == 0) != (out.Covered == 0) {
		t.Fatalf("covered %d of %d entries for %d of %d originals", out.Covered, len(out.Entries), out.N, len(req.Originals))
	}
	if out.N < replayedOriginals(req) {
		t.Errorf("n fell from %d to %d", replayedOriginals(req), out.N)
	}
	if out.Covered == 0 {
		return
	}
	if out.Entries[out.Covered-1].End != out.N {
		t.Errorf("entry %d ends at %d, n is %d", out.Covered-1, out.Entries[out.Covered-1].End, out.N)
	}
	again := append(slices.Clone(out.Entries[:out.Covered]), Entries(req.Originals[out.N:], out.N)...)
	repaired, _, _ := Repair(again)
	got, want := raws(repaired), raws(out.Entries)
	if req.Open < len(req.Entries) { // an open batch is not covered, edited or not
		got, want = got[:min(out.Covered, len(got))], want[:out.Covered]
	}
	if diff := firstDiff(want, got); diff != "" {
		t.Errorf("replaying gives another list (covered %d of %d, n %d of %d): %s", out.Covered, len(out.Entries), out.N, len(req.Originals), diff)
	}
	if out.Covered < len(out.Entries) && out.Entries[out.Covered].Role == transcript.Tool {
		t.Errorf("the checkpoint ends inside a batch, at %d", out.Covered)
	}
	last := 0
	for i := range out.Entries {
		if end := out.Entries[i].End; end >= 0 {
			if end < last {
				t.Errorf("entry %d ends at %d, before the one before it (%d)", i, end, last)
			}
			last = end
		}
	}
}

// firstDiff is where two lists part, in short.
func firstDiff(want, got []string) string {
	for i := range max(len(want), len(got)) {
		a, b := "nothing", "nothing"
		if i < len(want) {
			a = want[i]
		}
		if i < len(got) {
			b = got[i]
		}
		if a != b {
			at := 0
			for at < min(len(a), len(b)) && a[at] == b[at] {
				at++
			}
			at = max(at-60, 0)
			return fmt.Sprintf("entry %d, byte %d:\nwant %.200q\ngot  %.200q", i, at, a[min(at, len(a)):], b[min(at, len(b)):])
		}
	}
	return ""
}

func replayedOriginals(req Request) int {
	for i := req.Replayed - 1; i >= 0; i-- {
		if req.Entries[i].End >= 0 {
			return req.Entries[i].End
		}
	}
	return 0
}

// checkUntouched: an entry is one that went in, byte for byte, or it is marked,
// and an edit changes text, arguments and reasoning and nothing else. Order
// stays.
func checkUntouched(t testing.TB, req Request, out Outcome) {
	t.Helper()
	from := make(map[string]Edit)
	for i := range req.Entries {
		from[string(req.Entries[i].Raw())] = req.Entries[i].Edit
	}
	for i, e := range out.Entries {
		if _, ok := from[string(e.Raw())]; !ok && e.Edit == Untouched {
			t.Errorf("entry %d was changed and is not marked: %.200s", i, e.Raw())
		}
	}
	dropped := len(req.Entries) - len(out.Entries)
	if dropped < 0 {
		t.Fatalf("%d entries became %d", len(req.Entries), len(out.Entries))
	}
	skip := 0
	if dropped > 0 {
		skip = 1 // the rebuilt task
	}
	tools, answered := DefaultSettings().Tools, pairing.Answered(Messages(req.Entries))
	for i := skip; i < len(out.Entries); i++ {
		a, b := req.Entries[i+dropped], out.Entries[i]
		if a.Role != b.Role || a.End != b.End || a.Answers != b.Answers || len(a.Calls) != len(b.Calls) || len(a.Parts) != len(b.Parts) || a.Images() != b.Images() {
			t.Errorf("entry %d is not what entry %d was: %.200s", i, i+dropped, b.Raw())
			return
		}
		for c := range a.Calls {
			if a.Calls[c].ID != b.Calls[c].ID || a.Calls[c].Name != b.Calls[c].Name {
				t.Errorf("entry %d: call %d changed", i, c)
			}
		}
		if b.Edit == Untouched && string(a.Raw()) != string(b.Raw()) {
			t.Errorf("entry %d changed and is not marked", i)
		}
		if len(b.Raw()) > len(a.Raw()) && b.Edit != Rebuilt {
			t.Errorf("entry %d grew from %d to %d bytes", i, len(a.Raw()), len(b.Raw()))
		}
		if ref, ok := answered[i+dropped]; ok && b.Edit != a.Edit && b.Edit != Clipped {
			if name := req.Entries[ref.Message].Calls[ref.Call].Name; tools.IsRefusal(name, a.Text()) {
				t.Errorf("a refusal of %s was %s", name, b.Edit)
			}
		}
	}
}

// checkTask: the task stays first, and the newest instruction is there once.
func checkTask(t testing.TB, req Request, out Outcome) {
	t.Helper()
	task, newest := "", ""
	for i := range req.Originals {
		if req.Originals[i].Role == transcript.User {
			newest = req.Originals[i].Text()
			if task == "" {
				task = newest
			}
		}
	}
	if task == "" {
		return
	}
	first := newestUser(out.Entries, false)
	opening := firstLine(task, 20)
	opening = strings.TrimSuffix(opening, "…")
	if !strings.HasPrefix(strings.TrimSpace(first), opening) {
		t.Errorf("the first user message is not the task %q: %.300q", opening, first)
	}
	if name, _, ok := strings.Cut(newest, ":"); ok && newest != task {
		n := 0
		for _, text := range texts(out.Entries) {
			n += strings.Count(text, name+":")
		}
		if n != 1 {
			t.Errorf("the newest instruction %q stands there %d times", name, n)
		}
	}
	for i := 1; i < len(out.Entries); i++ {
		if out.Entries[i].Role == transcript.User && out.Entries[i-1].Role == transcript.User && len(out.Entries) < len(req.Entries) && i == 1 {
			t.Error("the rebuilt task is followed by a user message")
		}
	}
	all := strings.Join(texts(out.Entries), "\n")
	for _, header := range []string{factsHeader, instructionHeader, stateHeader} {
		if n := strings.Count(all, header); n > 1 {
			t.Errorf("%d times %s", n, header)
		}
	}
	if last := len(out.Entries) - 1; out.Entries[last].Role == transcript.Assistant && req.Entries[len(req.Entries)-1].Role != transcript.Assistant {
		t.Error("ends with an assistant message, which the client's list did not")
	}
}

func newestUser(entries []Entry, newest bool) string {
	text := ""
	for i := range entries {
		if entries[i].Role == transcript.User {
			text = entries[i].Text()
			if !newest {
				return text
			}
		}
	}
	return text
}

// checkIdempotent: the passes have nothing left to do.
func checkIdempotent(t testing.TB, req Request, out Outcome) {
	t.Helper()
	s := DefaultSettings()
	again := slices.Clone(out.Entries)
	tail := s.tailStart(again, req.Scale)
	s.evict(again, len(again))
	s.collapse(again, len(again))
	s.thin(again, tail)
	s.capResults(again, tail, resultCap(req.Scale))
	if diff := firstDiff(raws(out.Entries), raws(again)); diff != "" {
		t.Errorf("the passes change it again: %s", diff)
	}
}

// grow plays a history as an agent would send it, turn by turn, with a server
// of that window: whatever is refused is recovered from, and the checkpoint
// serves the next turns.
func grow(t testing.TB, list []transcript.Message, window int) {
	t.Helper()
	s := DefaultSettings()
	var checkpoint []Entry
	n := 0
	for end := 1; end <= len(list); end++ {
		if end < len(list) && list[end].Role != transcript.Assistant {
			continue // the agent sends when it is the model's turn
		}
		originals := list[:end]
		entries := append(slices.Clone(checkpoint), Entries(originals[n:], n)...)
		sc := scaleOf(entries, 300, window)
		if sc.Prompt < window {
			continue
		}
		req := Request{Entries: entries, Originals: originals, Replayed: len(checkpoint), Open: len(entries), Scale: sc}
		out, err := s.Recover(req)
		if errors.Is(err, ErrNothing) {
			continue
		}
		if err != nil {
			t.Fatalf("at %d: %v", end, err)
		}
		checkProperties(t, req, out)
		if t.Failed() {
			t.Fatalf("at %d of %d messages, window %d, replayed %d", end, len(list), window, len(checkpoint))
		}
		if out.N > 0 {
			checkpoint, n = slices.Clone(out.Entries[:out.Covered]), out.N
		}
	}
}

func TestRecoverProperties(t *testing.T) {
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 1))
		list := history(r, 20+r.IntN(60))
		for _, window := range []int{500, 2000, 8000, 30_000} {
			req := refused(list, window)
			if req.Scale.Prompt < window {
				continue
			}
			out, err := DefaultSettings().Recover(req)
			if err != nil {
				t.Fatalf("seed %d, window %d: %v", seed, window, err)
			}
			checkProperties(t, req, out)
			if t.Failed() {
				t.Fatalf("seed %d, window %d", seed, window)
			}
		}
	}
}

func TestRecoverGrowing(t *testing.T) {
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 2))
		grow(t, history(r, 80), []int{1500, 4000, 12_000}[seed%3])
	}
}

// damage makes a history illegal in the ways that clients do.
func damage(r *rand.Rand, list []transcript.Message) []transcript.Message {
	var out []transcript.Message
	for i, m := range list {
		switch {
		case m.Role == transcript.Tool && r.IntN(12) == 0: // lost
		case m.Role == transcript.Tool && r.IntN(12) == 0:
			out = append(out, m, m) // twice
		case m.Role == transcript.Tool && r.IntN(12) == 0:
			out = append(out, user(fmt.Sprint("Between ", i)), m)
		case m.Role == transcript.Assistant && len(m.Calls) > 0 && r.IntN(12) == 0:
			out = append(out, m.WithArguments(map[int][]byte{0: []byte(`{"path":"/cut`)}))
		case m.Role == transcript.Assistant && len(m.Calls) > 0 && r.IntN(20) == 0: // its results are orphans
		default:
			out = append(out, m)
		}
	}
	return out
}

// recoverSafely reports a panic as a failure, so that the other tests run.
func recoverSafely(t testing.TB, req Request) (out Outcome, err error) {
	t.Helper()
	defer func() {
		if p := recover(); p != nil {
			t.Errorf("panic: %v", p)
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return DefaultSettings().Recover(req)
}

// OpenHarness#191's shape, a call without a result before the newest
// instruction, where the overhead leaves so little room that nothing but that
// instruction can stay. A panic here ends the whole proxy: the relay of a
// streamed request recovers in a goroutine of its own.
func TestRecoverDropsTheOpenBatch(t *testing.T) {
	list := listOf(user("task"), read("/a", lines("x", 100)), read("/b", "y"), calls(toolCall{"c9", "shell", `{"command":` + quoted(strings.Repeat("make ", 150)) + `}`}), user("go on"))
	entries, _, violations := Repair(Entries(list, 0))
	if len(violations) != 1 || violations[0].Kind != pairing.UnansweredCall {
		t.Fatalf("got %v", violations)
	}
	req := Request{Entries: entries, Originals: list, Open: 5, Scale: scaleOf(entries, 11_000, 4096)}
	out, err := recoverSafely(t, req)
	if err != nil {
		return
	}
	if v := pairing.Check(Messages(out.Entries)); v != nil {
		t.Errorf("not legally paired: %v", v)
	}
	checkReplay(t, req, out)
}

// A list that had to be repaired is recovered from like any other, and the
// checkpoint with the client's tail behind it, repaired again, is what was sent.
func TestRecoverRepaired(t *testing.T) {
	recovered := 0
	for seed := range uint64(24) {
		r := rand.New(rand.NewPCG(seed, 4))
		list := damage(r, history(r, 15+r.IntN(30)))
		entries, open, _ := Repair(Entries(list, 0))
		window := []int{500, 2000, 8000}[seed%3]
		req := Request{Entries: entries, Originals: list, Open: open, Scale: scaleOf(entries, 0, window)}
		if req.Scale.Prompt < window {
			continue
		}
		recovered++
		t.Run(fmt.Sprintf("seed %d, window %d", seed, window), func(t *testing.T) {
			out, err := recoverSafely(t, req)
			if err != nil {
				t.Fatalf("%v (open %d of %d)", err, open, len(entries))
			}
			if v := pairing.Check(Messages(out.Entries)); v != nil {
				t.Errorf("not legally paired: %v", v)
			}
			checkReplay(t, req, out)
		})
	}
	if recovered < 10 {
		t.Errorf("only %d lists were too long", recovered)
	}
}

func FuzzRecover(f *testing.F) {
	f.Add(uint64(1), uint16(40), uint16(500), false)
	f.Add(uint64(2), uint16(90), uint16(4000), true)
	f.Add(uint64(3), uint16(10), uint16(60), true)
	f.Fuzz(func(t *testing.T, seed uint64, n, window uint16, growing bool) {
		list := history(rand.New(rand.NewPCG(seed, 3)), 1+int(n)%100)
		slot := 300 + int(window)%8000
		if growing {
			grow(t, list, slot)
			return
		}
		req := refused(list, slot)
		if req.Scale.Prompt < slot {
			return
		}
		out, err := DefaultSettings().Recover(req)
		if errors.Is(err, ErrNothing) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		checkProperties(t, req, out)
	})
}
