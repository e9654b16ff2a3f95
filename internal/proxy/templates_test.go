package proxy

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/llamatest"
	"github.com/compactproxy/compactproxy/internal/pairing"
	"github.com/compactproxy/compactproxy/internal/tinymodel"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

var tables = flag.Bool("tables", false, "play every template by every way, and every model, and print the tables")

// habit is a chat template of testdata/templates, and what it takes.
type habit struct {
	name       string
	noSystem   bool     // it raises on a system message
	interrupts bool     // the user may speak right behind a result
	ways       []string // that are played without -tables
}

var habits = []habit{
	{name: "chatml", interrupts: true, ways: []string{"extend", "passes", "recovery"}},
	{name: "mistral", ways: []string{"extend", "without a model", "recovery with summaries"}},
	{name: "gemma", noSystem: true, ways: []string{"prose", "without a model", "recovery"}},
	{name: "qwen", interrupts: true, ways: []string{"extend", "prose", "recovery with summaries"}},
}

func (h habit) file(t testing.TB) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("testdata", "templates", h.name+".jinja"))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// way is how lists are made shorter in one run.
type way struct {
	name    string
	options []rigOption
	long    bool   // the session begins over the window
	tail    bool   // what is protected stays as it came
	want    string // the action that must be seen
}

// room lowers the threshold: in a window as small as the tests' the default leaves
// no room for a request for a summary on top of the prompt.
var room = withConfig(func(c *config.Config) { c.Compaction.Threshold = config.Exactly(0.6) })

// whenRefused leaves everything to recovery, which learns the window.
var whenRefused = withConfig(func(c *config.Config) {
	c.Compaction.Threshold, c.Compaction.Predictive = config.Exactly(1), false
})

func settle(share float64) rigOption {
	return func(o *Options) { o.Settings.Settle = share }
}

var ways = []way{
	{name: "extend", options: []rigOption{summarising(compaction.StyleExtend), room}, tail: true, want: "summary"},
	{name: "prose", options: []rigOption{summarising(compaction.StyleProse)}, tail: true, want: "summary"},
	{name: "passes", options: []rigOption{counting, settle(1)}, tail: true, want: "passes"},
	{name: "without a model", options: []rigOption{counting, settle(0)}, tail: true, want: "passes"},
	{name: "recovery", options: []rigOption{whenRefused, withWindow(0)}, long: true, want: "recovery"},
	{name: "recovery with summaries", options: []rigOption{summarising(compaction.StyleAuto), whenRefused, withWindow(0)}, long: true, want: "recovery"},
}

// TestTemplates_RealServer plays sessions that a template takes before a real
// llama-server, by each way of making lists shorter: the template takes every list
// that is sent, and each is what the design promises of a rebuilt one.
func TestTemplates_RealServer(t *testing.T) {
	const window = 8192
	var table strings.Builder
	table.WriteString("| template | session | way | turns | summaries | passes | recoveries | no summary |\n|---|---|---|---|---|---|---|---|\n")
	for _, h := range habits {
		t.Run(h.name, func(t *testing.T) {
			// Sliding-window attention prefills ten times as fast on a test machine.
			server := llamatest.Options{Context: window, Model: tinymodel.Options{Arch: tinymodel.Gemma3}}.Start(t, "--chat-template-file", h.file(t))
			sessions, least := map[string]*work{"work": newWork(h, 1).turns(30)}, 1
			if *tables {
				least = 2 // what was compacted is compacted again
				sessions = map[string]*work{"work": newWork(h, 1).turns(60), "talk": newWork(h, 2).talks(70)}
			}
			for _, name := range slices.Sorted(maps.Keys(sessions)) {
				s := sessions[name]
				s.taken(t, server.URL)
				for _, by := range ways {
					if !*tables && !slices.Contains(h.ways, by.name) || name == "talk" && by.name == "passes" { // there is nothing to evict
						continue
					}
					t.Run(name+"/"+by.name, func(t *testing.T) {
						b := startReal(t, server.URL)
						r := start(t, b, append([]rigOption{withWindow(window)}, by.options...)...)
						got := s.play(t, r, b, by)
						refused := r.Logs.FilterMessage("no summary").Len()
						fmt.Fprintf(&table, "| %s | %s | %s | %d | %d | %d | %d | %d |\n", h.name, name, by.name, got.turns,
							got.actions["summary"], got.actions["passes"], got.actions["recovery"], refused)
						n := got.actions[by.want]
						if by.want == "summary" && n > 0 {
							n += refused // what a random model writes is sometimes nothing
						}
						if by.want == "summary" && name == "work" && got.plans == 0 {
							t.Error("the agent's plan was never carried over")
						}
						if n < least {
							t.Errorf("%s was seen %d times, which is less than %d", by.want, n, least)
						}
					})
				}
			}
		})
	}
	if *tables {
		fmt.Fprint(os.Stdout, table.String())
		return
	}
	t.Log("\n" + table.String())
}

// work is a session of an agent with tools, made up: what it holds is what the
// template in hand takes.
type work struct {
	habit
	rng      *rand.Rand
	list     history
	requests []int // of each turn, the messages that its request holds
	calls    int
	files    int
	spoken   int // user messages
}

func newWork(h habit, seed uint64) *work {
	w := &work{habit: h, rng: rand.New(rand.NewPCG(seed, 8))}
	if !h.noSystem {
		w.list = append(w.list, `{"role":"system","content":"You are an agent in a repository of Go."}`)
	}
	w.user("The build of the depot fails since the move to modules. Find out why and mend it, one package after the other.")
	return w
}

const workTools = `,"tools":[` +
	`{"type":"function","function":{"name":"read","description":"Read a file","parameters":{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}}},` +
	`{"type":"function","function":{"name":"edit","description":"Replace text in a file","parameters":{"type":"object","properties":{"path":{"type":"string"},"old_text":{"type":"string"},"new_text":{"type":"string"}}}}},` +
	`{"type":"function","function":{"name":"shell","description":"Run a command","parameters":{"type":"object","properties":{"command":{"type":"string"}}}}},` +
	`{"type":"function","function":{"name":"todowrite","description":"Note the plan","parameters":{"type":"object","properties":{"todos":{"type":"array"}}}}},` +
	`{"type":"function","function":{"name":"todo__todo_write","description":"Note the plan","parameters":{"type":"object","properties":{"content":{"type":"string"}}}}}]`

// user speaks, every other time in parts, as some agents send it.
func (w *work) user(text string) {
	content := jsonText(text)
	if w.spoken++; w.spoken%2 == 0 {
		content = `[{"type":"text","text":` + content + `}]`
	}
	w.list = append(w.list, `{"role":"user","content":`+content+`}`)
}

// prose is about n bytes of text that does not repeat itself.
func (w *work) prose(n int) string {
	words := strings.Fields("func return package error context table index buffer reader length window stream parse build test module depot ledger route server client answer token")
	var b strings.Builder
	for b.Len() < n {
		fmt.Fprintf(&b, "%s %s_%x %s", words[w.rng.IntN(len(words))], words[w.rng.IntN(len(words))], w.rng.IntN(1<<16), words[w.rng.IntN(len(words))])
		if w.rng.IntN(3) == 0 {
			b.WriteByte('\n')
		} else {
			b.WriteByte(' ')
		}
	}
	return b.String()
}

type made struct{ name, arguments, result string }

// says is an assistant message, extra are more members of it; what its calls return
// follows. Where it has no text, agents send null, nothing in quotes, or no content.
func (w *work) says(text, extra string, calls ...made) {
	w.requests = append(w.requests, len(w.list))
	content := []string{`"content":null,`, `"content":"",`, ``}[w.calls%3]
	if text != "" {
		content = `"content":` + jsonText(text) + `,`
	}
	var list, results []string
	for _, c := range calls {
		w.calls++
		id := fmt.Sprintf("call%05d", w.calls) // nine letters and digits
		list = append(list, fmt.Sprintf(`{"id":%q,"type":"function","function":{"name":%q,"arguments":%s}}`, id, c.name, jsonText(c.arguments)))
		results = append(results, fmt.Sprintf(`{"role":"tool","tool_call_id":%q,"content":%s}`, id, jsonText(c.result)))
	}
	message := `{` + content + extra
	if len(list) > 0 {
		message += `"tool_calls":[` + strings.Join(list, ",") + `],`
	}
	w.list = append(w.list, message+`"role":"assistant"}`)
	w.list = append(w.list, results...)
}

func (w *work) read(bytes int) made {
	w.files++
	return made{"read", fmt.Sprintf(`{"path":"/depot/pkg%d.go"}`, w.files), w.prose(bytes)}
}

// turns adds n turns of all kinds: parallel calls, text beside calls, a file read
// again, a failure that repeats itself, the plan, and the user, who speaks behind
// an answer or, where the template allows that, into a tool loop.
func (w *work) turns(n int) *work {
	for i := range n {
		if i%20 == 13 {
			w.says("The first half is done: "+w.prose(120), "")
			w.user(fmt.Sprintf("Good. Number %d: leave the vendored packages as they are, and go on with the rest.", i))
		}
		if w.interrupts && i%20 == 17 {
			w.user(fmt.Sprintf("Stop, number %d: run the linter as well, before anything else.", i))
		}
		switch i % 8 {
		case 0, 6:
			w.says("", "", w.read(1400))
		case 1:
			w.says("I look at both. "+w.prose(60), "", w.read(700), made{"shell", fmt.Sprintf(`{"command":"go vet ./pkg%d"}`, i), w.prose(300)})
		case 2:
			w.says("", "", made{"todowrite", fmt.Sprintf(`{"todos":[{"content":"mend package %d","status":"in_progress"}]}`, i), "ok"})
		case 3:
			w.says("", "", made{"read", `{"path":"/depot/go.mod"}`, w.prose(900)}) // again and again
		case 4:
			w.says("", "", made{"shell", `{"command":"go build ./..."}`, "Exit code 1\nbuild failed: module depot not found\n" + strings.Repeat("at depot\n", 60)})
		case 5:
			w.says("I change it.", "", made{"edit", fmt.Sprintf(`{"path":"/depot/pkg%d.go","old_text":%s,"new_text":%s}`, i, jsonText(w.prose(300)), jsonText(w.prose(400))), "ok"})
		case 7:
			w.says("", "", made{"todo__todo_write", fmt.Sprintf(`{"content":%s}`, jsonText(fmt.Sprintf("- [x] up to package %d\n- [ ] the rest", i))), "Updated (40 chars)"}, w.read(500))
		}
	}
	w.requests = append(w.requests, len(w.list))
	return w
}

// talks adds n turns without any call.
func (w *work) talks(n int) *work {
	for i := range n {
		w.says("I would do it like this: "+w.prose(500+300*(i%3)), "")
		w.user(fmt.Sprintf("Yes. And number %d? %s", i, w.prose(80+200*(i%2))))
	}
	w.requests = append(w.requests, len(w.list))
	return w
}

func (w *work) body(request int) []byte {
	return w.list[:w.requests[request]].body(workTools + `,"stream":true,"max_tokens":4,"seed":1`)
}

// taken fails the test where the template refuses the session as it is. It judges a
// list from its beginning, so that the last request speaks for all.
func (w *work) taken(t *testing.T, server string) {
	t.Helper()
	if res, answer := post(t, server+"/apply-template", w.body(len(w.requests)-1)); res.StatusCode != http.StatusOK {
		t.Fatalf("the template does not take the session as it is: %d %.400s", res.StatusCode, answer)
	}
}

// session is what came of a session.
type session struct {
	turns   int
	plans   int // lists with the agent's plan in the task
	actions map[string]int
}

// How what stands behind the task in a rebuilt list begins.
const (
	summaryBlock = "[Summary of earlier turns"
	planBlock    = "[The plan as it stands now"
)

// play sends the session's requests in order.
func (w *work) play(t *testing.T, r *rig, b backend, by way) session {
	t.Helper()
	got := session{actions: map[string]int{}}
	recovered := -2
	begin := 3000
	if by.long {
		begin = 10000
	}
	first := 0
	for ; first < len(w.requests)-1; first++ {
		if n, err := b.count(t, w.body(first)); err != nil || n > begin {
			break
		}
	}
	for i := first; i < len(w.requests); i++ {
		body := w.body(i)
		got.turns++
		b.taken()
		res, answer := r.post(t, body)
		sent := b.taken()
		actions := res.Header.Get(headerAction)
		if res.StatusCode != http.StatusOK || bytes.Contains(answer, []byte(`"error"`)) {
			t.Fatalf("request %d (%s): status %d: %.400s", i, actions, res.StatusCode, answer)
		}
		for action := range strings.SplitSeq(actions, ", ") {
			got.actions[action]++
		}
		if hasAction(res, "recovery") {
			if i == recovered+1 {
				t.Errorf("request %d was recovered, and the one before it as well: a loop", i)
			}
			recovered = i
			if !by.long {
				t.Errorf("request %d (%s): the list outgrew the window", i, actions)
			}
		}
		final := sent[len(sent)-1]
		if bytes.Contains(final, []byte(planBlock)) {
			got.plans++
		}
		if actions != "none" && actions != "replay" { // else the answer has shown it
			if res, answer := post(t, r.Upstream+"/apply-template", final); res.StatusCode != http.StatusOK {
				t.Errorf("request %d (%s): the template does not take the list that was sent: %d %.400s", i, actions, res.StatusCode, answer)
			}
		}
		w.sound(t, fmt.Sprintf("request %d (%s)", i, actions), forwarded(t, body), forwarded(t, final), by.tail, hasAction(res, "summary"))
		if t.Failed() {
			for _, m := range forwarded(t, final) {
				t.Logf("%.600s", m.Raw())
			}
			t.FailNow()
		}
	}
	return got
}

// sound compares a list that was sent with the client's.
func (w *work) sound(t *testing.T, at string, client, sent []transcript.Message, tail, rebuilt bool) {
	t.Helper()
	if v := pairing.Check(sent); v != nil {
		t.Errorf("%s: not legally paired: %v", at, v)
	}
	if sent[len(sent)-1].Role == transcript.Assistant {
		t.Errorf("%s: an assistant message at the end", at)
	}
	for _, header := range []string{summaryBlock, planBlock, "[Earlier turns of this", "[The user's newest instruction"} {
		found := 0
		for i := range sent {
			found += strings.Count(sent[i].Text(), header)
		}
		if found > 1 || rebuilt && found == 0 && header == summaryBlock {
			t.Errorf("%s: %d blocks %q", at, found, header)
		}
	}
	own := map[string]bool{} // pairs of user messages that the client put there
	for i := 1; i < len(client); i++ {
		own[string(client[i-1].Raw())+string(client[i].Raw())] = true
	}
	for i := 1; i < len(sent); i++ {
		if sent[i-1].Role == transcript.User && sent[i].Role == transcript.User && !own[string(sent[i-1].Raw())+string(sent[i].Raw())] {
			t.Errorf("%s: two user messages in a row, at %d", at, i)
		}
		if sent[i].Role.Instructs() {
			t.Errorf("%s: a system message at %d", at, i)
		}
	}
	if diff := cmp.Diff(leadingOf(client), leadingOf(sent)); diff != "" {
		t.Errorf("%s: the system messages changed:\n%s", at, diff)
	}
	if !tail {
		return
	}
	// The protected part: the newest turn, and behind a summary all that follows the
	// task, since nothing touches that.
	from := len(sent) - 1
	for from > 0 && sent[from].Role != transcript.Assistant {
		from--
	}
	if rebuilt {
		from = len(leadingOf(sent)) + 1
	}
	kept := rawsOf(sent[from:])
	if len(kept) > len(client) {
		t.Fatalf("%s: %d messages kept of %d", at, len(kept), len(client))
	}
	if diff := cmp.Diff(rawsOf(client[len(client)-len(kept):]), kept); diff != "" && from > 0 {
		t.Errorf("%s: the protected part is not as it came (-client +sent):\n%s", at, diff)
	}
}

func leadingOf(list []transcript.Message) [][]byte {
	n := slices.IndexFunc(list, func(m transcript.Message) bool { return !m.Role.Instructs() })
	return rawsOf(list[:max(n, 0)])
}
