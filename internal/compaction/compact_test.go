package compaction

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/compactproxy/compactproxy/internal/pairing"
	"github.com/compactproxy/compactproxy/internal/recording"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// at is the trigger of a server that counts, for a list in this window.
func at(window, overheadTokens int) Trigger {
	threshold, _ := Limits{Window: window, Overhead: overheadTokens, Exact: true}.Threshold()
	return Trigger{Threshold: threshold}
}

func mustCompact(t testing.TB, s Settings, req Request, tr Trigger) Outcome {
	t.Helper()
	out, err := s.Compact(req, tr)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// reading is a task and n reads of so many lines of different files.
func reading(n, size int) []transcript.Message {
	list := listOf(user("task"))
	for i := range n {
		list = append(list, read(fmt.Sprintf("/src/%d.go", i), lines(fmt.Sprint("v", i), size))...)
	}
	return list
}

// talking is a task and n turns without any tool: nothing for the passes.
func talking(n int) []transcript.Message {
	list := listOf(user("task"))
	for i := range n {
		list = append(list, says(fmt.Sprint("step ", i, strings.Repeat(" word", 90))), user(fmt.Sprint("Wish ", i, ": go on")))
	}
	return list
}

// checkCompacted fails where a compaction broke a promise.
func checkCompacted(t testing.TB, s Settings, req Request, tr Trigger, out Outcome) {
	t.Helper()
	if v := pairing.Check(Messages(out.Entries)); v != nil {
		t.Errorf("not legally paired: %v", v)
	}
	if before, after := weightOf(req.Entries), weightOf(out.Entries); after >= before || out.After >= out.Before {
		t.Errorf("not smaller: %d bytes after %d, %d tokens after %d", after, before, out.After, out.Before)
	}
	checkProtected(t, s, req, out)
	checkReplay(t, req, out)
	checkUntouched(t, req, out)
	checkDepth(t, s, req, tr, out)
	for pass, n := range out.Removed {
		if !slices.Contains(Passes, pass) || pass == PassCap || n < 0 {
			t.Errorf("pass %q removed %d", pass, n)
		}
	}
	if last := len(out.Entries) - 1; out.Entries[last].Role == transcript.Assistant && req.Entries[len(req.Entries)-1].Role != transcript.Assistant {
		t.Error("ends with an assistant message, which the client's list did not")
	}
}

// checkProtected: the turns of the tail are the last ones, byte for byte.
func checkProtected(t testing.TB, s Settings, req Request, out Outcome) {
	t.Helper()
	kept := raws(req.Entries[s.tailStart(req.Entries, req.Scale):])
	if len(out.Entries) < len(kept) {
		t.Errorf("%d entries are left of %d protected ones", len(out.Entries), len(kept))
		return
	}
	if diff := firstDiff(kept, raws(out.Entries[len(out.Entries)-len(kept):])); diff != "" {
		t.Errorf("a protected turn was changed: %s", diff)
	}
}

// checkDepth: the passes alone where they suffice; else down to half of the
// threshold, as far as there is anything to take.
func checkDepth(t testing.TB, s Settings, req Request, tr Trigger, out Outcome) {
	t.Helper()
	enough := int(s.Settle * float64(tr.Threshold))
	passes := slices.Clone(req.Entries)
	tail := s.tailStart(passes, req.Scale)
	s.evict(passes, tail)
	s.collapse(passes, tail)
	s.thin(passes, tail)
	left := req.Scale.Tokens(weightOf(passes))
	if req.Open < len(req.Entries) {
		return // the open batch is spared, its own tests are above
	}
	switch {
	case left <= enough && left < out.Before:
		if out.Kind != KindPasses {
			t.Errorf("the passes leave %d tokens of %d, and yet it was %s", left, tr.Threshold, out.Kind)
		}
		if diff := firstDiff(raws(passes), raws(out.Entries)); diff != "" {
			t.Errorf("the passes suffice, and more was done: %s", diff)
		}
	case out.After > enough:
		// What cannot go: overhead, task, facts and instruction behind it, the tail.
		if rest := len(out.Entries) - (len(req.Entries) - tail); rest > 1 && slices.ContainsFunc(out.Entries[:rest], func(e Entry) bool { return e.End >= 0 && e.Role == transcript.Assistant }) {
			t.Errorf("%d tokens of a threshold of %d are left, and so are %d old entries", out.After, tr.Threshold, rest)
		}
	}
}

func TestCompact(t *testing.T) {
	s := DefaultSettings()
	t.Run("the passes alone where they suffice", func(t *testing.T) {
		req := refused(reading(24, 60), 16_384)
		out := mustCompact(t, s, req, Trigger{Threshold: 12_288})
		if out.Kind != KindPasses || out.Removed[PassThin] == 0 || len(out.Entries) != len(req.Entries) {
			t.Errorf("%s, %v, %d entries of %d", out.Kind, out.Removed, len(out.Entries), len(req.Entries))
		}
		checkCompacted(t, s, req, Trigger{Threshold: 12_288}, out)
	})
	t.Run("about half of the threshold where they do not", func(t *testing.T) {
		for _, n := range []int{100, 200, 400} {
			req := refused(talking(n), 16_384)
			out := mustCompact(t, s, req, Trigger{Threshold: 12_288})
			checkCompacted(t, s, req, Trigger{Threshold: 12_288}, out)
			if out.Kind != KindClip || out.After > 12_288/2 || out.After < 12_288/3 {
				t.Errorf("%d turns: %s, %d tokens of a threshold of 12,288", n, out.Kind, out.After)
			}
		}
	})
	t.Run("half of the rest where the overhead is large", func(t *testing.T) {
		// 6,000 of 16,384 tokens are overhead: no list comes down to half.
		entries := Entries(talking(100), 0)
		req := Request{Entries: entries, Originals: Messages(entries), Open: len(entries), Scale: scaleOf(entries, 18_000, 16_384)}
		tr := at(16_384, 6000)
		out := mustCompact(t, s, req, tr)
		if out.After <= 6000 || out.After > 6000+(tr.Threshold-6000)/2 {
			t.Errorf("%d tokens of a threshold of %d, 6,000 are overhead", out.After, tr.Threshold)
		}
		checkProtected(t, s, req, out)
	})
	t.Run("it says why", func(t *testing.T) {
		for _, list := range [][]transcript.Message{reading(24, 60), talking(200)} {
			out := mustCompact(t, s, refused(list, 16_384), Trigger{Threshold: 12_288})
			if len(out.Reasons) == 0 || slices.Contains(out.Reasons, "") {
				t.Errorf("reasons %q", out.Reasons)
			}
		}
	})
	t.Run("what each step removed adds up", func(t *testing.T) {
		req := refused(listOf(talking(150), reading(20, 60)[1:]), 16_384)
		out := mustCompact(t, s, req, Trigger{Threshold: 12_288})
		sum := 0
		for _, n := range out.Removed {
			sum += n
		}
		if got := weightOf(req.Entries) - weightOf(out.Entries); sum != got {
			t.Errorf("%d of %d: %v", sum, got, out.Removed)
		}
		if out.Before != req.Scale.Prompt || out.After != req.Scale.Tokens(weightOf(out.Entries)) {
			t.Errorf("before %d, after %d", out.Before, out.After)
		}
	})
	t.Run("its input stays as it was", func(t *testing.T) {
		req := refused(history(rand.New(rand.NewPCG(3, 9)), 80), 3000)
		before := raws(req.Entries)
		mustCompact(t, s, req, at(3000, 0))
		if diff := cmp.Diff(before, raws(req.Entries)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestCompact_Errors(t *testing.T) {
	s := DefaultSettings()
	list := reading(24, 60)
	entries := Entries(list, 0)
	request := func(prompt, window, overhead int) Request {
		return Request{Entries: entries, Originals: list, Open: len(entries), Scale: Scale{Prompt: prompt, Window: window, Overhead: overhead, List: weightOf(entries)}}
	}
	t.Run("an overhead above the window is hopeless", func(t *testing.T) {
		// Two bytes in three are overhead: 20,000 of 30,000 tokens.
		if _, err := s.Compact(request(30_000, 16_384, 2*weightOf(entries)), at(16_384, 20_000)); !errors.Is(err, ErrOverhead) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("one below it is not", func(t *testing.T) {
		if _, err := s.Compact(request(24_000, 16_384, 2*weightOf(entries)), at(16_384, 16_000)); err != nil {
			t.Error(err)
		}
	})
	t.Run("without a window there is none to exceed", func(t *testing.T) {
		if _, err := s.Compact(request(30_000, 0, 2*weightOf(entries)), Trigger{Threshold: 12_000}); err != nil {
			t.Error(err)
		}
	})
	t.Run("nothing but protected turns", func(t *testing.T) {
		for name, list := range map[string][]transcript.Message{
			"one turn":          listOf(user("task"), read("/a", lines("x", 2000))),
			"one user message":  listOf(user(lines("x", 2000))),
			"a task and a turn": listOf(user(lines("task", 1000)), read("/a", lines("x", 1000))),
			"nothing at all":    nil,
		} {
			if out, err := s.Compact(refused(list, 8192), Trigger{Threshold: 6144}); !errors.Is(err, ErrNothing) {
				t.Errorf("%s: %v, %d entries", name, err, len(out.Entries))
			}
		}
	})
	t.Run("an illegal list is not sent", func(t *testing.T) {
		broken := listOf(user("task"), calls(toolCall{"c9", "read", `{"path":"/b"}`}), reading(24, 60)[1:])
		if _, err := s.Compact(refused(broken, 16_384), Trigger{Threshold: 12_288}); !errors.Is(err, ErrIllegal) {
			t.Errorf("got %v", err)
		}
	})
}

// What the agent holds in its hands is shortened in recovery alone, however large
// it is.
func TestCompact_NewestTurnStaysWhole(t *testing.T) {
	s, huge := DefaultSettings(), lines("huge", 2000)
	for name, newest := range map[string][]transcript.Message{
		"a result":      read("/huge", huge),
		"a batch":       listOf(calls(toolCall{"1", "read", `{"path":"/1"}`}, toolCall{"2", "shell", `{"command":"make"}`}), answer("1", huge), answer("2", huge)),
		"arguments":     round("write", `{"path":"/huge","content":`+quoted(huge)+`}`, "ok"),
		"reasoning":     listOf(thinks(huge, toolCall{"1", "read", `{"path":"/1"}`}), answer("1", "x")),
		"a user's text": listOf(says("Yes?"), user(huge)),
		"an answer":     listOf(says(huge), user("and?")),
	} {
		t.Run(name, func(t *testing.T) {
			list := listOf(reading(20, 60), talking(20)[1:], newest)
			req := refused(list, 8192)
			out := mustCompact(t, s, req, at(8192, 0))
			if diff := cmp.Diff(raws(req.Entries[len(list)-len(newest):]), raws(out.Entries[max(len(out.Entries)-len(newest), 0):])); diff != "" {
				t.Error(diff)
			}
			checkCompacted(t, s, req, at(8192, 0), out)
		})
	}
}

// The user's newest instruction is there word for word, wherever it stood: in the
// tail, far before it, or the task itself.
func TestCompact_NewestInstruction(t *testing.T) {
	s := DefaultSettings()
	wish := "Do only this: " + lines("wish", 40) + "and nothing else."
	work := func(n int) []transcript.Message { return listOf(talking(n)[1:], reading(6, 100)[1:]) }
	loop := func(n int) []transcript.Message { // a tool loop that the passes free nothing of
		var list []transcript.Message
		for i := range n {
			list = append(list, thinks(strings.Repeat("hm ", 60), toolCall{"c", "shell", fmt.Sprintf(`{"command":"step %d"}`, i)}), answer("c", strings.Repeat("out ", 50)))
		}
		return list
	}
	for name, list := range map[string][]transcript.Message{
		"it is the newest message":   listOf(user("task"), work(120), says("Well?"), user(wish)),
		"a short loop ago":           listOf(user("task"), work(120), says("Well?"), user(wish), loop(2)),
		"a long loop ago":            listOf(user("task"), work(80), says("Well?"), user(wish), loop(60)),
		"before everything but one":  listOf(user("task"), says("Well?"), user(wish), loop(120)),
		"it is the task":             listOf(user(wish), loop(120)),
		"behind a system message":    listOf(user("task"), work(80), says("Well?"), user(wish), system("The mode is now: build."), loop(60)),
		"the list began with an aid": listOf(says("Welcome."), user("task"), work(80), says("Well?"), user(wish), loop(60)),
	} {
		t.Run(name, func(t *testing.T) {
			req := refused(list, 16_384)
			tr := at(16_384, 0)
			if req.Scale.Prompt < tr.Threshold {
				t.Fatalf("only %d tokens", req.Scale.Prompt)
			}
			for range 3 { // and a compaction of what was compacted
				out, err := s.Compact(req, tr)
				if errors.Is(err, ErrNothing) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if n := strings.Count(strings.Join(texts(out.Entries), "\n"), wish); n != 1 {
					t.Fatalf("the newest instruction stands there %d times", n)
				}
				checkCompacted(t, s, req, tr, out)
				req.Entries, req.Replayed, req.Open = out.Entries, out.Covered, out.Open
				req.Scale = scaleOf(out.Entries, 0, 16_384)
			}
		})
	}
}

// A share of the threshold, or the price, decides whether the passes alone are
// enough.
func TestCompact_Settle(t *testing.T) {
	// The passes leave 12,000 tokens, nearly all of them near the end.
	list := listOf(reading(24, 60), talking(40)[1:])
	req := refused(list, 65_536)
	alone, _, err := DefaultSettings().Passes(req, Trigger{Threshold: 1 << 30})
	if err != nil || alone.After >= alone.Before*9/10 {
		t.Fatalf("%d of %d tokens, %v", alone.After, alone.Before, err)
	}
	left := alone.After
	for _, tt := range []struct {
		name   string
		settle float64
		tr     Trigger
		want   Kind
	}{
		{"1: they come below the threshold", 1, Trigger{Threshold: left + 1}, KindPasses},
		{"1: they come to the threshold", 1, Trigger{Threshold: left}, KindPasses},
		{"1: they do not", 1, Trigger{Threshold: left - 1}, KindClip},
		{"0.8: just enough", 0.8, Trigger{Threshold: left*10/8 + 2}, KindPasses},
		{"0.8: not enough", 0.8, Trigger{Threshold: left*10/8 - 2}, KindClip},
		{"0: never, whatever they leave", 0, Trigger{Threshold: 1 << 20}, KindClip},
		{"price: much room is cheap", -1, Trigger{Threshold: 4 * left}, KindPasses},
		{"price: hardly any room is dear", -1, Trigger{Threshold: left + left/100}, KindClip},
		{"price: no room at all", -1, Trigger{Threshold: left}, KindClip},
		{"price: at this speed a summary costs nothing", -1, Trigger{Threshold: left + left/4, Speed: 0.01}, KindClip},
		{"price: at this speed it costs too much", -1, Trigger{Threshold: left + left/4, Speed: 1000}, KindPasses},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := DefaultSettings()
			s.Settle = tt.settle
			_, enough, err := s.Passes(req, tt.tr)
			if err != nil || enough != (tt.want == KindPasses) {
				t.Errorf("enough %v, %v", enough, err)
			}
			if tt.settle == 0 && tt.tr.Threshold > alone.Before {
				return // half of such a threshold asks for nothing
			}
			if out := mustCompact(t, s, req, tt.tr); out.Kind != tt.want {
				t.Errorf("got %s: %q", out.Kind, out.Reasons)
			}
		})
	}
}

// By price, a model that cannot roll back needs more of the passes.
func TestCompact_SettleByPriceOnHybrids(t *testing.T) {
	// Two thirds of the list stand before the first thing that the passes change.
	list := listOf(talking(120), reading(24, 60)[1:])
	req := refused(list, 65_536)
	s := DefaultSettings()
	s.Settle = -1
	out, _, err := s.Passes(req, Trigger{Threshold: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	differ := 0
	for room := out.After / 50; room < out.After; room += out.After / 50 {
		tr := Trigger{Threshold: out.After + room}
		_, plain, _ := s.Passes(req, tr)
		tr.Forward = true
		_, hybrid, _ := s.Passes(req, tr)
		if hybrid && !plain {
			t.Errorf("room %d: enough on a hybrid, not elsewhere", room)
		}
		if hybrid != plain {
			differ++
		}
	}
	if differ == 0 {
		t.Error("no difference at all")
	}
}

// What people, hooks and policies refused is never touched by the passes; what
// failed stays once, the newest.
func TestCompact_RefusalsAndErrors(t *testing.T) {
	s := DefaultSettings()
	const refusal = "The user has declined to run this tool. DO NOT try it again."
	fault := "Error: it broke\n" + strings.Repeat("trace line\n", 60) + "\nCommand exited with code 2"
	long := refusal + "\n" + lines("why", 100)
	list := listOf(user("task"),
		round("shell", `{"command":"rm -rf /"}`, long),
		round("shell", `{"command":"rm -rf /"}`, long),
		round("shell", `{"command":"make"}`, fault),
		read("/a", lines("a", 100)),
		round("shell", `{"command":"make"}`, fault),
		read("/a", lines("b", 100)),
		round("shell", `{"command":"make other"}`, fault),
		reading(24, 60)[1:])
	req := refused(list, 16_384)
	out := mustCompact(t, s, req, Trigger{Threshold: 12_288})
	if out.Kind != KindPasses {
		t.Fatalf("%s, %q", out.Kind, out.Reasons)
	}
	for i, want := range map[int]Edit{2: Untouched, 4: Untouched, 6: Collapsed, 8: Evicted, 10: Thinned, 12: Thinned, 14: Thinned} {
		if got := out.Entries[i].Edit; got != want {
			t.Errorf("entry %d was %q, want %q: %.120q", i, got, want, out.Entries[i].Text())
		}
	}
	for i, want := range map[int]string{2: long, 4: long} {
		if out.Entries[i].Text() != want {
			t.Errorf("a refusal became %.200q", out.Entries[i].Text())
		}
	}
	if text := out.Entries[10].Text(); !strings.HasPrefix(text, "Error: it broke\n") || !strings.HasSuffix(text, "Command exited with code 2") {
		t.Errorf("the newest failure became %q", text)
	}
	// No failure evicts, and none is evicted.
	for i := range out.Entries {
		if out.Entries[i].Edit == Evicted && strings.Contains(req.Entries[i].Text(), "it broke") {
			t.Errorf("the failure in entry %d was evicted", i)
		}
	}
}

// The checkpoint ends with the closed turn that holds the last edit.
func TestCompact_CheckpointEnd(t *testing.T) {
	s := DefaultSettings()
	t.Run("the passes: the end of the turn that holds the last edit", func(t *testing.T) {
		list := listOf(reading(20, 80), talking(12)[1:])
		req := refused(list, 16_384)
		out := mustCompact(t, s, req, Trigger{Threshold: 12_288})
		if out.Kind != KindPasses {
			t.Fatalf("%s", out.Kind)
		}
		last := 0
		for i := range out.Entries {
			if out.Entries[i].Edit != Untouched {
				last = i
			}
		}
		if out.Covered != last+1 || out.N != last+1 || last != 40 {
			t.Errorf("last edit at %d, covered %d, n %d", last, out.Covered, out.N)
		}
	})
	t.Run("whole batches", func(t *testing.T) {
		for edited := range 3 { // which result of the last old batch is long
			text := func(i int) string {
				if i == edited {
					return lines("x", 100)
				}
				return "short"
			}
			batch := listOf(calls(toolCall{"a", "read", `{"path":"/a"}`}, toolCall{"b", "read", `{"path":"/b"}`}, toolCall{"c", "read", `{"path":"/c"}`}),
				answer("b", text(0)), answer("a", text(1)), answer("c", text(2)))
			req := refused(listOf(reading(20, 80), batch, talking(12)[1:]), 16_384)
			out := mustCompact(t, s, req, Trigger{Threshold: 12_288})
			if out.Kind != KindPasses || out.Covered != 45 || out.N != 45 {
				t.Errorf("edit %d of the batch: %s, covered %d, n %d, want 45", edited, out.Kind, out.Covered, out.N)
			}
		}
	})
	t.Run("never less than what was replayed", func(t *testing.T) {
		list := listOf(reading(20, 80), talking(12)[1:])
		for _, replayed := range []int{41, 43, 45} {
			req := refused(list, 16_384)
			req.Replayed = replayed
			out := mustCompact(t, s, req, Trigger{Threshold: 12_288})
			if out.Covered != replayed || out.N != replayed {
				t.Errorf("replayed %d: covered %d, n %d", replayed, out.Covered, out.N)
			}
			checkReplay(t, req, out)
		}
	})
	t.Run("a drop covers what it replaced", func(t *testing.T) {
		req := refused(talking(200), 16_384)
		out := mustCompact(t, s, req, Trigger{Threshold: 12_288})
		if out.Entries[0].Edit != Rebuilt || out.N < out.Entries[0].End || out.Covered < 1 {
			t.Errorf("%s first, ends at %d; covered %d, n %d", out.Entries[0].Edit, out.Entries[0].End, out.Covered, out.N)
		}
		checkReplay(t, req, out)
	})
	t.Run("never over a batch that is still open", func(t *testing.T) {
		for _, old := range [][]transcript.Message{reading(24, 80), talking(200), reading(3, 800)} {
			list := listOf(old, calls(toolCall{"b", "read", `{"path":"/b"}`}, toolCall{"c", "read", `{"path":"/c"}`}), answer("b", lines("x", 200)))
			entries, open, violations := Repair(Entries(list, 0))
			if len(violations) != 1 || open != len(old) {
				t.Fatalf("open %d, %v", open, violations)
			}
			req := Request{Entries: entries, Originals: list, Open: open, Scale: scaleOf(entries, 0, 16_384)}
			out := mustCompact(t, s, req, Trigger{Threshold: 12_288})
			if out.N > len(old) || out.Covered > out.Open {
				t.Errorf("covered %d of %d, n %d of %d: the open batch has an invented result", out.Covered, out.Open, out.N, len(old))
			}
			if out.Open >= len(out.Entries) || len(out.Entries[out.Open].Calls) != 2 {
				t.Errorf("the open batch begins at %d of %d", out.Open, len(out.Entries))
			}
			checkProtected(t, s, req, out)
			checkReplay(t, req, out)
		}
	})
}

// ---- properties

// played is what became of a session that was compacted as it grew.
type played struct{ turns, compactions, hopeless int }

// compactGrowing plays a session as an agent would send it before a server that
// counts, and holds each compaction and each list against the promises.
func compactGrowing(t testing.TB, s Settings, list []transcript.Message, overhead, window int) (p played) {
	t.Helper()
	var checkpoint []Entry
	n := 0
	for end := 1; end <= len(list); end++ {
		if end < len(list) && list[end].Role != transcript.Assistant {
			continue // the agent sends when it is the model's turn
		}
		p.turns++
		originals := list[:end]
		entries := append(slices.Clone(checkpoint), Entries(originals[n:], n)...)
		sc := scaleOf(entries, overhead, window)
		tr := at(window, sc.OverheadTokens())
		if sc.Prompt < tr.Threshold {
			continue
		}
		req := Request{Entries: entries, Originals: originals, Replayed: len(checkpoint), Open: len(entries), Scale: sc}
		out, err := s.Compact(req, tr)
		if errors.Is(err, ErrNothing) || err == nil && out.After >= tr.Threshold {
			// The last good list goes out: overhead, task with what may stand behind it, and
			// protected turns fill it.
			kept := entries[min(s.tailStart(entries, sc), len(entries)):]
			least := sc.Tokens(weightOf(kept)+weight(&entries[max(firstUser(entries), 0)].Message)) + window*3/8
			if least < tr.Threshold {
				t.Errorf("at %d of %d: nothing was done, at most %d tokens of %d have to stay", end, len(list), least, tr.Threshold)
			}
			p.hopeless++
			continue
		}
		if err != nil {
			t.Fatalf("at %d: %v", end, err)
		}
		p.compactions++
		checkCompacted(t, s, req, tr, out)
		checkWish(t, req, out)
		checkAgain(t, s, req, tr, out)
		if t.Failed() {
			t.Fatalf("at %d of %d messages, window %d, replayed %d", end, len(list), window, len(checkpoint))
		}
		if out.N > 0 {
			checkpoint, n = slices.Clone(out.Entries[:out.Covered]), out.N
		}
	}
	return p
}

// checkWish: the newest of the user's texts is there word for word, if it is of a
// size that fits behind the task.
func checkWish(t testing.TB, req Request, out Outcome) {
	t.Helper()
	newest := ""
	for i := range req.Originals {
		if req.Originals[i].Role == transcript.User {
			newest = strings.TrimSpace(req.Originals[i].Text())
		}
	}
	if room := float64(req.Scale.windowOrPrompt()) / 8 / req.Scale.Rate(); float64(len(newest)) > room {
		return
	}
	if !strings.Contains(strings.Join(texts(out.Entries), "\n"), newest) {
		t.Errorf("the newest instruction is gone: %.200q", newest)
	}
}

// checkAgain: compacting the result frees nothing or little, and breaks nothing.
func checkAgain(t testing.TB, s Settings, req Request, tr Trigger, out Outcome) {
	t.Helper()
	again := Request{Entries: out.Entries, Originals: req.Originals, Replayed: out.Covered, Open: out.Open, Scale: req.Scale}
	again.Scale.List, again.Scale.Prompt = weightOf(out.Entries), out.After
	passes, enough, err := s.Passes(again, tr)
	if err != nil && !errors.Is(err, ErrNothing) {
		t.Errorf("again: %v", err)
		return
	}
	// A drop moves no protected turn, so that the tail is where it was: the passes
	// have nothing left to do but where the old stretch ends.
	if err == nil && enough && out.Kind == KindPasses && passes.After < out.After*9/10 {
		t.Errorf("the passes free %d more of %d tokens", out.After-passes.After, out.After)
	}
	second, err := s.Compact(again, tr)
	switch {
	case errors.Is(err, ErrNothing):
	case err != nil:
		t.Errorf("again: %v", err)
	default:
		if v := pairing.Check(Messages(second.Entries)); v != nil {
			t.Errorf("again: not legally paired: %v", v)
		}
		checkProtected(t, s, again, second)
		checkReplay(t, again, second)
		checkWish(t, req, second)
	}
}

func TestCompactProperties(t *testing.T) {
	compactions := 0
	for seed := range uint64(24) {
		r := rand.New(rand.NewPCG(seed, 6))
		list := history(r, 20+r.IntN(100))
		window := []int{1500, 4000, 12_000, 30_000}[seed%4]
		compactions += compactGrowing(t, DefaultSettings(), list, 300, window).compactions
	}
	if compactions < 40 {
		t.Errorf("only %d compactions", compactions)
	}
}

// The recorded sessions, cut at every turn.
func TestCompactRecordings(t *testing.T) {
	for _, name := range recording.Sessions() {
		session, err := recording.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		body, err := transcript.Parse(session.Request(session.Turns()-1, recording.Options{}))
		if err != nil {
			t.Fatal(err)
		}
		leading := body.Leading()
		overhead := Weight(body.Messages[:leading]) + len(body.Tools())
		for _, window := range []int{8192, 16_384, 32_768, 65_536} {
			t.Run(fmt.Sprint(name, " ", window), func(t *testing.T) {
				t.Parallel()
				p := compactGrowing(t, DefaultSettings(), body.Messages[leading:], overhead, window)
				if window >= 16_384 && p.compactions*4 > p.turns {
					t.Errorf("%d compactions in %d turns", p.compactions, p.turns)
				}
				t.Logf("%d compactions in %d turns, %d in vain", p.compactions, p.turns, p.hopeless)
			})
		}
	}
}

// Lists that had to be repaired are compacted like any other.
func TestCompactRepaired(t *testing.T) {
	s, compacted := DefaultSettings(), 0
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 7))
		list := damage(r, history(r, 15+r.IntN(60)))
		entries, open, _ := Repair(Entries(list, 0))
		window := []int{1500, 3000, 8000}[seed%3]
		req := Request{Entries: entries, Originals: list, Open: open, Scale: scaleOf(entries, 0, window)}
		tr := at(window, 0)
		if req.Scale.Prompt < tr.Threshold {
			continue
		}
		t.Run(fmt.Sprintf("seed %d, window %d", seed, window), func(t *testing.T) {
			out, err := s.Compact(req, tr)
			if errors.Is(err, ErrNothing) {
				return
			}
			if err != nil {
				t.Fatalf("%v (open %d of %d)", err, open, len(entries))
			}
			compacted++
			if v := pairing.Check(Messages(out.Entries)); v != nil {
				t.Errorf("not legally paired: %v", v)
			}
			checkProtected(t, s, req, out)
			checkReplay(t, req, out)
		})
	}
	if compacted < 15 {
		t.Errorf("only %d lists were compacted", compacted)
	}
}
