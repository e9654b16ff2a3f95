package compaction

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/compactproxy/compactproxy/internal/pairing"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// What a client's list breaks is mended on every turn in the same way, also
// behind a checkpoint: each list that is sent is legal and extends the one
// before, except where a compaction made it anew.
func TestGrowingDamaged(t *testing.T) {
	compactions := 0
	for seed := range uint64(12) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 5))
			list := damage(r, history(r, 60))
			window := []int{1500, 4000, 9000}[seed%3]
			var checkpoint []Entry
			var last []string
			n := 0
			for end := 1; end <= len(list); end++ {
				if end < len(list) && list[end].Role != transcript.Assistant {
					continue
				}
				originals := list[:end]
				before := append(slices.Clone(checkpoint), Entries(originals[n:], n)...)
				entries, open, violations := Repair(before)
				if diff := firstDiff(last, raws(entries)[:min(len(last), len(entries))]); diff != "" {
					t.Fatalf("at %d of %d: does not extend the last list: %s", end, len(list), diff)
				}
				req := Request{Entries: entries, Originals: originals, Replayed: len(checkpoint), Open: open, Scale: scaleOf(entries, 300, window)}
				sent := entries
				if req.Scale.Prompt >= window {
					out, err := recoverSafely(t, req)
					switch {
					case errors.Is(err, ErrNothing):
					case err != nil:
						t.Fatalf("at %d of %d, window %d: %v", end, len(list), window, err)
					default:
						compactions++
						checkReplay(t, req, out)
						sent = out.Entries
						if out.N > 0 {
							checkpoint, n = slices.Clone(out.Entries[:out.Covered]), out.N
						}
						if req.Open < len(entries) {
							sent = sent[:out.Covered] // an open batch may change yet
						}
					}
				}
				if v := pairing.Check(Messages(sent)); v != nil {
					t.Fatalf("at %d of %d: not legally paired: %v", end, len(list), v)
				}
				last = raws(sent)
				if t.Failed() {
					t.Fatalf("at %d of %d, window %d, open %d of %d, %v", end, len(list), window, req.Open, len(entries), violations)
				}
			}
		})
	}
	if compactions < 20 {
		t.Errorf("only %d compactions", compactions)
	}
}

// The agent's plan as it stands is in every list that is sent: in its newest
// call, or carried behind the task.
func TestGrowingKeepsThePlan(t *testing.T) {
	list := listOf(user("the task"))
	plan := func(i int) string { return fmt.Sprintf("- [ ] step %d of the plan", i) }
	for i := range 40 {
		if i%13 == 0 {
			list = append(list, round("todo__todo_write", `{"content":`+quoted(plan(i))+`}`, "Updated (46 chars)")...)
		}
		list = append(list, read(fmt.Sprintf("/%d", i), lines("x", 30))...)
		if i%10 == 5 {
			list = append(list, says("done"), user(fmt.Sprint("wish ", i)))
		}
	}
	for _, window := range []int{900, 1500, 3000} {
		var checkpoint []Entry
		n, current := 0, -1
		for end := 1; end <= len(list); end++ {
			for i := range 40 {
				for _, c := range list[end-1].Calls {
					if strings.Contains(string(c.Arguments), plan(i)+`"`) {
						current = i
					}
				}
			}
			if end < len(list) && list[end].Role != transcript.Assistant {
				continue
			}
			entries := append(slices.Clone(checkpoint), Entries(list[n:end], n)...)
			req := Request{Entries: entries, Originals: list[:end], Replayed: len(checkpoint), Open: len(entries), Scale: scaleOf(entries, 0, window)}
			if req.Scale.Prompt < window {
				continue
			}
			out := mustRecover(t, req)
			checkpoint, n = slices.Clone(out.Entries[:out.Covered]), out.N
			all := ""
			for _, e := range out.Entries {
				all += string(e.Raw())
			}
			if current >= 0 && strings.Count(all, plan(current)) != 1 {
				t.Fatalf("window %d, at %d of %d: the plan %q stands there %d times", window, end, len(list), plan(current), strings.Count(all, plan(current)))
			}
		}
	}
}

// Whatever an earlier recovery left of a call or a thought, it is cut like any
// other once it is old.
func TestClipCallsThatWereClipped(t *testing.T) {
	code := strings.Repeat("func f() { return }\n", 1000)
	list := listOf(user("task"), thinks(code, toolCall{"c1", "write", `{"path":"/a.go","content":` + quoted(code) + `}`}), answer("c1", "ok"), read("/b.go", "x"))
	s, entries := DefaultSettings(), Entries(list, 0)
	entries[1] = entries[1].clipped(15_000, -1)
	if entries[1].Edit != Clipped || entries[1].ContentBytes() < 20_000 {
		t.Fatalf("%s, %d bytes", entries[1].Edit, entries[1].ContentBytes())
	}
	s.clipCalls(entries, 3)
	if n := entries[1].ContentBytes(); n > 1200 {
		t.Errorf("a turn that was clipped to 15,000 characters while it was the newest keeps %d bytes of arguments and reasoning for ever", n)
	}
}

// A result is judged by what the tool said, not by what a cut left of it: a long
// file that begins like an error message is no failure once it is thinned.
func TestThinnedResultKeepsItsOutcome(t *testing.T) {
	log := "ENOENT: no such file or directory, open 'x'\n" + lines("log", 200)
	list := listOf(user("task"), read("/app.log", log), read("/x", "x"))
	s, entries := DefaultSettings(), Entries(list, 0)
	before := s.results(entries)[0].outcome
	s.thin(entries, 3)
	if after := s.results(entries)[0].outcome; entries[2].Edit != Thinned || after != before {
		t.Errorf("%s: the outcome was %v and is %v now", entries[2].Edit, before, after)
	}
}

// A huge newest instruction behind many small turns, in any script: it is cut,
// and as many of the oldest turns go as have to. Characters are no bytes: what
// is pinned behind the task is bounded in tokens too.
func TestRecoverHugeInstruction(t *testing.T) {
	for name, text := range map[string]string{
		"English":  strings.Repeat("Look at this log line again. ", 1500),
		"Chinese":  strings.Repeat("漢字", 15_000),
		"no space": strings.Repeat("x-", 20_000),
	} {
		for _, turns := range []int{5, 12, 13, 40, -30} {
			t.Run(fmt.Sprintf("%s, %d turns", name, turns), func(t *testing.T) {
				list := listOf(user("task"))
				for i := range max(turns, -turns) {
					if turns > 0 {
						list = append(list, says(strings.Repeat(fmt.Sprint("word", i, " "), 100)))
					}
					list = append(list, user(fmt.Sprint("wish ", i, strings.Repeat(" please", 100))))
				}
				if turns > 0 {
					list = append(list, says("Well?"))
				}
				list = append(list, user("The wish: "+text))
				const window = 4096
				req := refused(list, window)
				out := mustRecover(t, req)
				if out.After > window*3/4 {
					t.Errorf("%d tokens of a window of %d: %d entries", out.After, window, len(out.Entries))
				}
				checkReplay(t, req, out)
				if all := strings.Join(texts(out.Entries), "\n"); strings.Count(all, "The wish: ") != 1 {
					t.Errorf("the newest instruction stands there %d times", strings.Count(all, "The wish: "))
				}
			})
		}
	}
}
