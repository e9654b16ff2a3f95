package proxy

import (
	"bytes"
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/llamasim"
	"github.com/compactproxy/compactproxy/internal/llamatest"
	"github.com/compactproxy/compactproxy/internal/pairing"
	"github.com/compactproxy/compactproxy/internal/tinymodel"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

var prefill = flag.Bool("prefill", false, "measure the tokens prefilled over whole sessions against the floor and print the table")

// An arm is a way to make a session fit.
type arm struct {
	name string
	// rewrite makes the body that goes out of the one that the agent sends; nil
	// sends it through the proxy.
	rewrite func(m *masker, body []byte) []byte
	options []rigOption
}

var arms = []arm{
	{name: "direct (ends at the window)", rewrite: func(_ *masker, body []byte) []byte { return body }},
	{name: "compactproxy", options: []rigOption{summarising(compaction.StyleAuto), bySettle(-1)}},
	{name: "compactproxy, summaries in prose", options: []rigOption{summarising(compaction.StyleProse), bySettle(-1)}},
	{name: "compactproxy, always a summary", options: []rigOption{summarising(compaction.StyleAuto)}},
	{name: "compactproxy, no summaries", options: []rigOption{counting}},
	{name: "compactproxy, no summaries, no exact count"},
	{name: "compactproxy, no summaries, only when refused", options: []rigOption{withConfig(func(c *config.Config) {
		c.Compaction.Threshold, c.Compaction.Predictive = config.Exactly(1), false
	})}},
	{name: "a mask that slides every turn", rewrite: (*masker).slide},
}

func bySettle(share float64) rigOption {
	return func(o *Options) { o.Settings.Settle = share }
}

// spent is what one arm needed for one session.
type spent struct {
	turns, answered, refusals    int
	compactions, summaries       int
	prefilled, summarised, floor int     // tokens; summarised is the part of prefilled that was for summaries
	verbatim, shown              float64 // sums over requests past two thirds of the window
}

// TestPrefill measures how many tokens a server prefills over whole sessions,
// against the floor of prefilling each distinct token once, with the share of the
// history that still goes out verbatim. It asserts what section 15 of the design
// asks at least; -prefill prints the table for docs/benchmarks.md.
func TestPrefill(t *testing.T) {
	windows := []int{16384}
	if *prefill {
		windows = []int{16384, 32768, 65536, 131072}
	}
	var out strings.Builder
	fmt.Fprintf(&out, "| window | sessions | arm | turns answered | refusals | compactions in 100 turns | summaries | prefilled/floor | of it for summaries | verbatim |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, window := range windows {
		var scripts []script
		for _, s := range append(recordedScripts(t), longCorpus(t)...) {
			if n := fullSize(t, s); n >= window*2/3 {
				scripts = append(scripts, s)
			}
		}
		for _, a := range arms {
			if !*prefill && a.name != "compactproxy" {
				continue
			}
			var sum spent
			for _, s := range scripts {
				sum.add(run1(t, a, s, window))
			}
			fmt.Fprintf(&out, "| %d | %d | %s | %d of %d | %d | %.1f | %.1f | %.2f | %.2f | %.2f |\n", window, len(scripts), a.name,
				sum.answered, sum.turns, sum.refusals, 100*float64(sum.compactions)/float64(max(sum.answered, 1)), 100*float64(sum.summaries)/float64(max(sum.answered, 1)),
				float64(sum.prefilled)/float64(sum.floor), float64(sum.summarised)/float64(sum.floor), sum.verbatim/max(sum.shown, 1))
			if a.name == "compactproxy" {
				if sum.compactions*4 > sum.answered {
					t.Errorf("%d compactions in %d turns", sum.compactions, sum.answered)
				}
				if sum.answered < sum.turns {
					t.Errorf("%d of %d turns answered", sum.answered, sum.turns)
				}
			}
		}
	}
	t.Log("\n" + out.String())
	if *prefill {
		fmt.Fprint(os.Stdout, out.String())
	}
}

// summariser is a model that writes summaries of the length that is asked for, and
// finds nothing missing in them.
func summariser(r llamasim.Request) llamasim.Reply {
	if n := len(r.Messages); n > 0 {
		switch last := r.Messages[n-1].Content; {
		case compaction.AsksForOmissions(last):
			return llamasim.Reply{Text: "none"}
		case compaction.AsksForSummary(last):
			return llamasim.Reply{Text: strings.Repeat("a fact that was established, and the path of a file; ", 45)}
		}
	}
	return llamasim.Reply{Text: "ok"}
}

func longCorpus(t *testing.T) (scripts []script) {
	t.Run("corpus", func(t *testing.T) { scripts = corpusScripts(t) }) // skips itself where there is none
	return scripts
}

func (s *spent) add(o spent) {
	s.turns, s.answered, s.refusals = s.turns+o.turns, s.answered+o.answered, s.refusals+o.refusals
	s.compactions, s.summaries = s.compactions+o.compactions, s.summaries+o.summaries
	s.prefilled, s.summarised, s.floor = s.prefilled+o.prefilled, s.summarised+o.summarised, s.floor+o.floor
	s.verbatim, s.shown = s.verbatim+o.verbatim, s.shown+o.shown
}

// fullSize is the last request's whole history in tokens.
func fullSize(t *testing.T, s script) int {
	t.Helper()
	n, err := llamasim.New(llamasim.Options{ImageTokens: 300}).PromptTokens(s.body(s.turns - 1))
	if err != nil {
		return 0
	}
	return n
}

// run1 plays one session through one arm.
func run1(t *testing.T, a arm, s script, window int) spent {
	t.Helper()
	sim := llamasim.New(llamasim.Options{Window: window, Slots: 1, ImageTokens: 300, Reply: summariser})
	r := start(t, sim, append([]rigOption{withWindow(window)}, a.options...)...)
	m := &masker{settings: compaction.DefaultSettings()}
	var sum spent
	for turn := range s.turns {
		body := s.body(turn)
		full, err := sim.PromptTokens(body)
		if err != nil {
			continue // the template refuses the list itself
		}
		sum.turns++
		address, out := r.URL, body
		if a.rewrite != nil {
			address, out = r.Upstream, a.rewrite(m, body)
		}
		sim.ForgetRequests()
		res, _ := post(t, address+"/v1/chat/completions", out)
		if hasAction(res, "passes") || hasAction(res, "recovery") || hasAction(res, "summary") {
			sum.compactions++
		}
		if hasAction(res, "summary") {
			sum.summaries++
		}
		var last llamasim.Recorded
		for _, rec := range sim.Requests() {
			if !slices.Contains(chatRoutes, rec.RequestURI) {
				continue
			}
			if rec.Status != http.StatusOK {
				sum.refusals++
				continue
			}
			if last.Status != 0 {
				sum.summarised += last.PromptTokens - last.CachedTokens
			}
			sum.prefilled += rec.PromptTokens - rec.CachedTokens
			last = rec
		}
		if res.StatusCode != http.StatusOK {
			if a.rewrite != nil {
				sum.turns += s.turns - turn - 1
				break // the session is over
			}
			continue
		}
		sum.answered++
		sum.floor = full
		if full >= window*2/3 {
			sum.verbatim += verbatimShare(t, body, last.Body)
			sum.shown++
		}
	}
	return sum
}

// verbatimShare is the share of the client's text that went out as it came.
func verbatimShare(t *testing.T, client, sent []byte) float64 {
	t.Helper()
	left := map[string]int{}
	for _, raw := range rawsOf(forwarded(t, sent)) {
		left[string(raw)]++
	}
	kept, all := 0, 0
	for _, m := range forwarded(t, client) {
		n := m.ContentBytes()
		all += n
		if left[string(m.Raw())] > 0 {
			left[string(m.Raw())]--
			kept += n
		}
	}
	return float64(kept) / float64(max(all, 1))
}

// masker is the usual way: on every turn, results older than the newest six turns
// keep their first 240 characters.
type masker struct{ settings compaction.Settings }

func (m *masker) slide(raw []byte) []byte {
	body, err := transcript.Parse(raw)
	if err != nil {
		return raw
	}
	list := slices.Clone(body.Messages)
	turns := transcript.Turns(list)
	kept := 0
	for i := len(turns) - 1; i >= 0; i-- {
		if turns[i].Role != transcript.Assistant {
			continue
		}
		if kept++; kept <= 6 {
			continue
		}
		for j := turns[i].Start; j < turns[i].End; j++ {
			text := list[j].Text()
			if list[j].Role == transcript.Tool && len(text) > 300 {
				list[j] = list[j].WithText(strings.ToValidUTF8(text[:240], "") + "\n[older output was cut]")
			}
		}
	}
	if pairing.Check(list) != nil {
		return raw
	}
	return bytes.Clone(body.Rewrite(list))
}

// TestPrefill_RealServer measures the same on a real llama-server, for the longest
// sessions: tokens processed for the turns and for the calls for summaries, in
// both styles and without.
func TestPrefill_RealServer(t *testing.T) {
	if !*prefill {
		t.Skip("run with -prefill (make prefill)")
	}
	fmt.Println("| model | window | session | arm | turns | compactions | summaries (extend + prose) | processed/floor | of it for summaries | tokens processed for a summary call |\n|---|---|---|---|---|---|---|---|---|---|")
	scripts := corpusScripts(t)
	slices.SortFunc(scripts, func(a, b script) int { return b.turns - a.turns })
	scripts = append(recordedScripts(t)[1:2], scripts[:2]...)
	for _, kind := range []struct {
		name string
		arch tinymodel.Arch
	}{{"full attention", ""}, {"sliding window", tinymodel.Gemma3}} {
		for _, window := range []int{16384, 32768} {
			server := llamatest.Options{Context: window, Slots: 1, Model: tinymodel.Options{Arch: kind.arch}}.Start(t)
			for i, s := range scripts {
				if kind.arch == "" && (i > 0 || window > 16384) {
					continue // it takes a quarter of an hour each on a test machine
				}
				for _, a := range arms[1:5] {
					if a.name == "compactproxy, always a summary" {
						continue
					}
					b := startReal(t, server.URL)
					r := start(t, b, append([]rigOption{withWindow(window)}, a.options...)...)
					p := play(t, s, window, b, r)
					count := func(style compaction.Style) float64 {
						return testutil.ToFloat64(r.metrics.Summaries.WithLabelValues(string(style)))
					}
					asked := testutil.ToFloat64(r.metrics.SummaryPrompt.WithLabelValues("processed"))
					calls := float64(r.Logs.FilterMessage("summarised").Len() + r.Logs.FilterMessage("no summary").Len())
					fmt.Printf("| %s | %d | %s | %s | %d | %d | %.0f + %.0f | %.2f | %.2f | %.0f |\n", kind.name, window, s.name, a.name, p.turns, p.compactions,
						count(compaction.StyleExtend), count(compaction.StyleProse), (float64(p.processed)+asked)/float64(p.floor), asked/float64(p.floor), asked/max(calls, 1))
				}
			}
		}
	}
}
