package compaction

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/compactproxy/compactproxy/internal/pairing"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// dropTo drops until the list has at most that weight.
func dropTo(list []transcript.Message, target int) []Entry {
	entries := Entries(list, 0)
	return DefaultSettings().drop(entries, list, scaleOf(entries, 0, 100_000), target, len(entries))
}

func TestDrop(t *testing.T) {
	text := strings.Repeat("ab ", 300)
	turn := func(path string) []transcript.Message { return read(path, text) }
	list := listOf(user("the task"), turn("/1"), turn("/2"), user("second wish"), turn("/3"), turn("/4"))

	t.Run("the oldest turns go, as few as suffice", func(t *testing.T) {
		entries := Entries(list, 0)
		got := dropTo(list, weightOf(entries)-500)
		if n := len(got); n != 8 {
			t.Fatalf("%d entries, want 8", n)
		}
		want := "the task\n\n" + factsHeader + "\n\nFiles read:\n- /1"
		if diff := cmp.Diff(want, got[0].Text()); diff != "" {
			t.Error(diff)
		}
		if got[0].End != 3 || got[0].Edit != Rebuilt || got[0].Task.Text() != "the task" {
			t.Errorf("end %d, %s, task %q", got[0].End, got[0].Edit, got[0].Task.Text())
		}
		if got[1].Role != transcript.Assistant || got[1].End != 4 {
			t.Errorf("kept part begins with %s, end %d", got[1].Role, got[1].End)
		}
	})
	t.Run("the newest instruction stands once, behind the facts", func(t *testing.T) {
		got := dropTo(list, 2500)
		want := "the task\n\n" + factsHeader + "\n\nFiles read:\n- /2\n- /1\n\n" + instructionHeader + "\nsecond wish"
		if diff := cmp.Diff(want, got[0].Text()); diff != "" {
			t.Error(diff)
		}
		if len(got) != 5 || got[1].Role != transcript.Assistant {
			t.Errorf("%d entries", len(got))
		}
	})
	t.Run("never less than the newest turn", func(t *testing.T) {
		got := dropTo(list, 10)
		if len(got) != 3 || got[1].Role != transcript.Assistant || got[2].Role != transcript.Tool {
			t.Fatalf("got %q", texts(got))
		}
	})
	t.Run("with a user message at the end, no two in a row", func(t *testing.T) {
		got := dropTo(append(list, user("third wish")), 10)
		checkShape(t, got)
		if n := strings.Count(strings.Join(texts(got), "\n"), "third wish"); n != 1 {
			t.Errorf("the newest instruction stands there %d times: %q", n, texts(got))
		}
	})
	t.Run("no assistant turn to begin at", func(t *testing.T) {
		list := listOf(user("the task"), user("page 1\n"+text), user("page 2\n"+text), user("go on"))
		entries := Entries(list, 0)
		got := DefaultSettings().drop(entries, list, scaleOf(entries, 0, 2000), 400, len(entries))
		if len(got) != 1 || !strings.HasPrefix(got[0].Text(), "the task\n\n") || !strings.HasSuffix(got[0].Text(), "go on") {
			t.Fatalf("got %q", texts(got))
		}
		if n := strings.Count(got[0].Text(), "go on"); n != 1 {
			t.Errorf("the newest instruction stands there %d times", n)
		}
	})
	t.Run("a list that opens with an assistant message", func(t *testing.T) {
		got := dropTo(listOf(says("Welcome! "+text), user("the task"), turn("/1"), turn("/2")), 1300)
		checkShape(t, got)
		if !strings.HasPrefix(got[0].Text(), "the task") {
			t.Errorf("got %q", got[0].Text())
		}
	})
	t.Run("no user message at all", func(t *testing.T) {
		got := dropTo(listOf(turn("/1"), turn("/2"), turn("/3")), 10)
		if len(got) != 3 || got[0].Role != transcript.User || !strings.Contains(got[0].Text(), "/2") {
			t.Fatalf("got %q", texts(got))
		}
	})
	t.Run("nothing can go", func(t *testing.T) {
		only := listOf(user("the task"), turn("/1"))
		got := dropTo(only, 10)
		if diff := cmp.Diff(raws(Entries(only, 0)), raws(got)); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("facts that are larger than what goes", func(t *testing.T) {
		small := listOf(user("the task"), says("x"), user("a wish"), says("y"), user("last"))
		got := dropTo(small, 10)
		if weightOf(got) > weightOf(Entries(small, 0)) {
			t.Errorf("grew: %q", texts(got))
		}
	})
	t.Run("what was repaired as a whole is not cut", func(t *testing.T) {
		broken := listOf(user("task"), turn("/1"), calls(toolCall{"x", "read", `{"path":"/2"}`}, toolCall{"y", "read", `{"path":"/3"}`}), answer("y", text), turn("/4"))
		entries, _, violations := Repair(Entries(broken, 0))
		if violations == nil {
			t.Fatal("nothing was repaired")
		}
		got := DefaultSettings().drop(entries, broken, scaleOf(entries, 0, 100_000), 10, len(entries))
		if v := pairing.Check(Messages(got)); v != nil {
			t.Errorf("%v in %q", v, texts(got))
		}
		if got[0].End < 1 || got[0].End > len(broken) {
			t.Errorf("end %d", got[0].End)
		}
	})
}

// checkShape fails where the rebuilt list could not be rendered by a strict
// template.
func checkShape(t testing.TB, entries []Entry) {
	t.Helper()
	if entries[0].Role != transcript.User {
		t.Errorf("the list begins with a %s message", entries[0].Role)
	}
	if len(entries) > 1 && entries[1].Role != transcript.Assistant {
		t.Errorf("the kept part begins with a %s message", entries[1].Role)
	}
	if v := pairing.Check(Messages(entries)); v != nil {
		t.Errorf("not legally paired: %v", v)
	}
}

// The first user message may hold an image and no text. What the user said
// next is the newest instruction, and stays.
func TestDropKeepsTheInstructionAfterAnImage(t *testing.T) {
	text := strings.Repeat("ab ", 300)
	image := message(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:x"}}]}`)
	got := dropTo(listOf(image, says("What shall I do with it?"), user("Rebuild this page in HTML."), read("/1", text), read("/2", text), read("/3", text)), 2000)
	all := strings.Join(texts(got), "\n")
	if n := strings.Count(all, "Rebuild this page in HTML."); n != 1 {
		t.Errorf("the user's only instruction stands there %d times:\n%s", n, got[0].Text())
	}
	if got[0].Images() != 1 {
		t.Error("the image went")
	}
}

// An instruction as an array of parts, with cache_control, is extended in its
// own form.
func TestDropTaskOfParts(t *testing.T) {
	text := strings.Repeat("ab ", 300)
	task := message(`{"content":[{"type":"text","text":"the task","cache_control":{"type":"ephemeral"}},{"type":"image_url","image_url":{"url":"data:x"}}],"role":"user","x_unknown":1.0}`)
	got := dropTo(listOf(task, read("/1", text), read("/2", text)), 1200)
	raw := string(got[0].Raw())
	for _, want := range []string{`"cache_control":{"type":"ephemeral"}`, `"x_unknown":1.0`, `{"url":"data:x"}`, `"text":"the task\n\n[Earlier turns`} {
		if !strings.Contains(raw, want) {
			t.Errorf("no %s in %s", want, raw)
		}
	}
}

// The same words said twice are two instructions; the newest is pinned, the
// older one is a fact.
func TestDropInstructionSaidTwice(t *testing.T) {
	text := strings.Repeat("ab ", 300)
	got := dropTo(listOf(user("the task"), says("a"), user("continue"), read("/1", text), user("continue"), read("/2", text), read("/3", text)), 1300)
	want := "the task\n\n" + factsHeader + "\n\nSaid by the user, newest first:\n- continue\n\nFiles read:\n- /2\n- /1\n\n" + instructionHeader + "\ncontinue"
	if diff := cmp.Diff(want, got[0].Text()); diff != "" {
		t.Error(diff)
	}
}

func TestDropCarriesThePlan(t *testing.T) {
	text := strings.Repeat("ab ", 300)
	plan := func(s string) []transcript.Message {
		return round("todo__todo_write", `{"content":`+quoted(s)+`}`, "Updated (46 chars)")
	}
	const current = "- [x] one\n- [ ] two"
	list := listOf(user("the task"), plan("- [ ] one"), plan(current), read("/1", text), read("/2", text))
	got := dropTo(list, 1300)
	if !strings.HasSuffix(got[0].Text(), stateHeader+"\n## todo__todo_write\n"+current) {
		t.Fatalf("the plan does not stand last: %q", got[0].Text())
	}
	if strings.Contains(got[0].Text(), "- [ ] one") {
		t.Error("an older plan stands there too")
	}

	t.Run("not where a newer one is in the tail", func(t *testing.T) {
		got := dropTo(listOf(user("the task"), plan("- [ ] one"), read("/1", text), read("/2", text), plan(current)), 700)
		if strings.Contains(got[0].Text(), stateHeader) {
			t.Errorf("got %q", got[0].Text())
		}
	})
	t.Run("not where the configuration says so", func(t *testing.T) {
		s, entries := DefaultSettings(), Entries(list, 0)
		s.CarriedState = false
		got := s.drop(entries, list, scaleOf(entries, 0, 100_000), 1300, len(entries))
		if strings.Contains(got[0].Text(), stateHeader) {
			t.Errorf("got %q", got[0].Text())
		}
	})
	t.Run("through the next drop, which it is only known from the first one", func(t *testing.T) {
		longer := append(list[:len(list):len(list)], listOf(read("/3", text), read("/4", text), read("/5", text))...)
		first := dropTo(list, 1300)
		entries := append(first[:len(first):len(first)], Entries(longer[len(list):], len(list))...)
		second := DefaultSettings().drop(entries, longer, scaleOf(entries, 0, 100_000), 1500, len(entries))
		if second[0].End <= first[0].End {
			t.Fatal("the second drop dropped nothing")
		}
		if n := strings.Count(second[0].Text(), current); n != 1 {
			t.Errorf("after the second drop the plan stands there %d times:\n%s", n, second[0].Text())
		}
	})
}

// A second drop tells everything anew, from the originals: facts do not stack.
func TestDropTwice(t *testing.T) {
	text := strings.Repeat("ab ", 300)
	list := listOf(user("the task"), read("/1", text), read("/2", text), user("second wish"), read("/3", text), read("/4", text))
	first := dropTo(list, 3000)
	longer := append(list[:len(list):len(list)], listOf(user("third wish"), read("/5", text), read("/6", text), read("/7", text))...)
	entries := append(first[:len(first):len(first)], Entries(longer[len(list):], len(list))...)
	second := DefaultSettings().drop(entries, longer, scaleOf(entries, 0, 100_000), 2500, len(entries))
	want := "the task\n\n" + factsHeader + "\n\nSaid by the user, newest first:\n- second wish\n\nFiles read:\n- /5\n- /4\n- /3\n- /2\n- /1\n\n" + instructionHeader + "\nthird wish"
	if diff := cmp.Diff(want, second[0].Text()); diff != "" {
		t.Error(diff)
	}
	if second[0].Task.Text() != "the task" {
		t.Errorf("the task became %q", second[0].Task.Text())
	}
	checkShape(t, second)
}

// The cost of a drop is linear in the list: an agent waits for it. Measured in
// allocations, which do not depend on the machine.
func TestDropIsLinear(t *testing.T) {
	measure := func(turns int) float64 {
		list := listOf(user("the task"))
		for i := range turns {
			list = append(list, round("shell", fmt.Sprintf(`{"command":"make step%d"}`, i), "built\n")...)
		}
		entries := Entries(list, 0)
		return testing.AllocsPerRun(1, func() {
			DefaultSettings().drop(entries, list, scaleOf(entries, 0, 8192), 10, len(entries))
		})
	}
	small, large := measure(20), measure(80)
	if large > 8*small {
		t.Errorf("four times the turns took %.1f times the allocations (%.0f after %.0f): every cut that is tried states the facts anew", large/small, large, small)
	}
}
