package proxy

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/llamatest"
	"github.com/compactproxy/compactproxy/internal/tinymodel"
	"github.com/compactproxy/compactproxy/internal/transcript"
	"github.com/compactproxy/compactproxy/internal/upstream"
)

// thinking are the habits of templates with the assistant's reasoning.
var thinking = []struct {
	name  string
	habit habit
	drops bool // a new user message has what the assistant thought before rendered anew
}{
	{"keeps it", habit{name: "chatml"}, false},
	{"drops it before the last user message", habit{name: "qwen"}, true},
	{"knows preserve_thinking", habit{name: "preserve"}, false},
}

// memories are the ways in which a server can return to an earlier prompt.
var memories = []struct {
	name string
	arch tinymodel.Arch
}{
	{"full attention", tinymodel.Qwen2},
	{"sliding window", tinymodel.Gemma3},
	{"hybrid", tinymodel.LFM2},
}

// TestReasoning_RealServer measures what stays in a real server's cache where the
// history holds reasoning, and that summaries are asked for so that it stays. The
// table is for docs/benchmarks.md.
func TestReasoning_RealServer(t *testing.T) {
	var table strings.Builder
	asked, summaries := 0, 0
	table.WriteString("| model | template, of reasoning | what is sent | prompt | cached | % |\n|---|---|---|---|---|---|\n")
	for _, m := range memories {
		for _, h := range thinking {
			if !*tables && !h.drops { // the one that is hard
				continue
			}
			t.Run(m.name+"/"+h.name, func(t *testing.T) {
				server := llamatest.Options{Context: 8192, Model: tinymodel.Options{Arch: m.arch}}.Start(t, "--chat-template-file", h.habit.file(t))
				row := func(what string, c cached) {
					fmt.Fprintf(&table, "| %s | %s | %s | %d | %d | %.0f |\n", m.name, h.name, what, c.prompt, c.cached, 100*c.share())
				}
				for _, summarised := range []bool{testLoop(t, server.URL, h.habit, row), testNewUser(t, server.URL, h.habit, h.drops, row)} {
					asked++
					if summarised {
						summaries++
					}
				}
			})
		}
	}
	// What a random model writes is sometimes nothing, and then refused.
	if summaries*2 < asked {
		t.Errorf("%d of %d summaries", summaries, asked)
	}
	if *tables {
		fmt.Fprint(os.Stdout, table.String())
		return
	}
	t.Log("\n" + table.String())
}

// testLoop: everything within a tool loop, where no template changes anything
// that stands before, so that a summary costs next to nothing with any model.
func testLoop(t *testing.T, address string, h habit, row func(string, cached)) (summarised bool) {
	t.Helper()
	w := newThinker(h, 1)
	at := w.loop(10)

	// What either place for the question costs, without the proxy.
	shares := map[bool]float64{}
	for i, asUser := range []bool{true, false} {
		if !asUser && !*tables {
			continue // that is where the proxy will ask
		}
		w := newThinker(h, uint64(2+i)) // another beginning, so that nothing of it is cached
		at := w.loop(10)
		chatOn(t, address, w.body(at))
		c := chatOn(t, address, asking(t, w.body(at+1), asUser))
		row(map[bool]string{false: "the question at the end of the last result", true: "the question as a user message"}[asUser], c)
		shares[asUser] = c.share()
	}

	r, asked := startThinking(t, address)
	first, _ := r.turn(t, w.body(at))
	if first.prompt < 2000 {
		t.Fatalf("%d tokens are too few to see anything", first.prompt)
	}
	next, _ := r.turn(t, w.body(at+1))
	row("the next turn of a tool loop", next)
	if next.share() < 0.8 {
		t.Errorf("the next turn of a tool loop has %.2f of its prompt cached", next.share())
	}
	after, res := r.turn(t, w.body(at+2), headerCompact, "now")
	first = asked.taken(row, "")[0]
	if best := max(shares[true], shares[false]); first.prose || first.share() < best-0.05 || first.share() < 0.8 {
		t.Errorf("the call for the summary has %.2f of its prompt cached (prose: %t); %.2f as a user message", first.share(), first.prose, shares[true])
	}
	if !hasAction(res, "summary") {
		return false
	}
	row("the first turn after the summary", after)
	then, _ := r.turn(t, w.body(at+3))
	row("the turn after that", then)
	if then.share() < 0.7 {
		t.Errorf("two turns after the summary %.2f of the prompt is cached", then.share())
	}
	return true
}

// testNewUser: the user has just spoken. Where the template renders what came
// before anew, a summary is asked for in prose.
func testNewUser(t *testing.T, address string, h habit, drops bool, row func(string, cached)) (summarised bool) {
	t.Helper()
	spoken := func(seed uint64) (w *work, before, behind int) {
		w = newThinker(h, seed)
		before = w.loop(10) + 3
		w.thinks("That was all. " + w.prose(80))
		w.user("Now the same for the tests.")
		return w, before, w.loop(3) - 3
	}
	if !drops || *tables {
		w, before, behind := spoken(4)
		r, _ := startThinking(t, address)
		r.turn(t, w.body(before))
		c, _ := r.turn(t, w.body(behind))
		row("a new user message", c)
		if !drops && c.share() < 0.8 {
			t.Errorf("behind a new user message %.2f of the prompt is cached", c.share())
		}
	}

	w, before, behind := spoken(5)
	r, asked := startThinking(t, address)
	r.turn(t, w.body(before))
	after, res := r.turn(t, w.body(behind), headerCompact, "now")
	calls := asked.taken(row, ", behind a new user message")
	if first := calls[0]; first.prose || !drops && first.share() < 0.8 {
		t.Errorf("the call for the summary behind a new user message has %.2f of its prompt cached (prose: %t)", first.share(), first.prose)
	}
	if drops && !calls[len(calls)-1].prose {
		t.Error("the whole prompt was processed to be asked for a summary")
	}
	if hasAction(res, "summary") {
		row("the first turn after that summary", after)
		then, _ := r.turn(t, w.body(behind+1))
		row("the turn after that", then)
	}
	return hasAction(res, "summary")
}

// newThinker is a session that thinks before everything that it says. No two of
// different seeds have a beginning in common.
func newThinker(h habit, seed uint64) *work {
	w := newWork(h, seed)
	w.list, w.spoken = nil, 0
	w.list = append(w.list, fmt.Sprintf(`{"role":"system","content":"%d is the number of this agent in a repository of Go."}`, 1000*seed))
	w.user("The build of the depot fails since the move to modules. Find out why and mend it, one package after the other.")
	return w
}

// thinks is says with reasoning.
func (w *work) thinks(text string, calls ...made) {
	w.says(text, `"reasoning_content":`+jsonText("I think about it. "+w.prose(240))+`,`, calls...)
}

// loop adds n turns of a tool loop, and a few to go on with; it returns the
// request that holds n of them.
func (w *work) loop(n int) (request int) {
	for range n + 3 {
		w.thinks("", w.read(500))
	}
	w.requests = append(w.requests, len(w.list))
	return len(w.requests) - 4
}

// cached is how much of a prompt the server had.
type cached struct {
	prompt, cached int
	prose          bool // it was asked with a text alone
}

func (c cached) share() float64 { return float64(c.cached) / float64(max(c.prompt, 1)) }

// thinkingRig is a proxy that shows what the server had cached.
type thinkingRig struct {
	*rig
	b backend
}

// startThinking lets the proxy summarise by hand only.
func startThinking(t *testing.T, address string) (*thinkingRig, *asker) {
	t.Helper()
	asked := &asker{}
	b := startReal(t, address)
	r := start(t, b, withWindow(8192), summarising(compaction.StyleAuto), whenRefused, func(o *Options) {
		asked.Generator = o.Generator
		o.Generator = asked
	})
	return &thinkingRig{r, b}, asked
}

// turn sends a request and fails the test where it is not answered, or what was
// sent is not what a rebuilt list must be.
func (r *thinkingRig) turn(t *testing.T, body []byte, header ...string) (cached, *http.Response) {
	t.Helper()
	r.b.taken()
	res, raw := r.post(t, body, header...)
	sent := r.b.taken()
	c := read(t, res, raw)
	var w work
	w.sound(t, "a turn ("+res.Header.Get(headerAction)+")", forwarded(t, body), forwarded(t, sent[len(sent)-1]), true, hasAction(res, "summary"))
	return c, res
}

// chatOn sends a request to the server itself.
func chatOn(t *testing.T, address string, body []byte) cached {
	t.Helper()
	res, raw := post(t, address+"/v1/chat/completions", body)
	return read(t, res, raw)
}

func read(t *testing.T, res *http.Response, raw []byte) cached {
	t.Helper()
	if res.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %.400s", res.StatusCode, raw)
	}
	var a answer
	for line := range bytes.Lines(raw) {
		if payload, ok := dataPayload(line); ok && matters(payload) {
			a.read(payload)
		}
	}
	if !a.CacheKnown {
		t.Fatalf("the answer does not say what was cached: %.400s", raw)
	}
	return cached{prompt: a.Prompt, cached: a.Cached}
}

// asking is a request for a summary, as long as the proxy's own, in either place.
func asking(t *testing.T, body []byte, asUser bool) []byte {
	t.Helper()
	b, err := transcript.Parse(body)
	if err != nil {
		t.Fatal(err)
	}
	question := strings.Repeat("Write down what was done so far, and what remains to be done. ", 35)
	list := b.Messages
	if n := len(list); asUser {
		list = append(list[:n:n], transcript.NewUser(question))
	} else {
		list = append(list[:n-1:n-1], list[n-1].WithAppended(question))
	}
	out, err := b.Extend(list, 16, true)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// asker notes what calls for a summary had cached.
type asker struct {
	Generator
	calls []cached // one request at a time
}

func (a *asker) Generate(ctx context.Context, body []byte, h http.Header, minCached float64) (upstream.Generated, error) {
	g, err := a.Generator.Generate(ctx, body, h, minCached)
	a.calls = append(a.calls, cached{g.Prompt, g.Cached, minCached == 0})
	return g, err
}

// taken writes down the calls since it was last asked, and returns them.
func (a *asker) taken(row func(string, cached), where string) []cached {
	calls := a.calls
	a.calls = nil
	names := map[bool][]string{}
	for _, c := range calls {
		if names[c.prose] == nil {
			names[c.prose] = []string{"the call for the summary", "the check of it", "the call for a better one"}
		}
		style := " (extend)"
		if c.prose {
			style = " (prose)"
		}
		row(names[c.prose][0]+style+where, c)
		names[c.prose] = names[c.prose][1:]
	}
	return append(calls, cached{})[:max(len(calls), 1)]
}
