package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap/zapcore"

	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/metrics"
)

// limitOf plays a growing conversation until it is compacted, and returns the size of
// the last prompt that was not and of the first that would have been, in tokens.
func limitOf(t testing.TB, r *settled, sim *simWindow, rest string) (below, above int) {
	t.Helper()
	h := readsOf(4, 2000)
	for turn := range 200 {
		body := h.body(rest)
		n := promptOf(t, sim.Server, body)
		res, got := r.ok(t, sim.Server, body)
		if got.refused > 0 {
			t.Fatalf("refused at %d tokens", n)
		}
		if hasAction(res, "passes") {
			return below, n
		}
		below = n
		h = h.reads(4+turn, 1, sim.step)
	}
	t.Fatalf("no compaction up to %d tokens", below)
	return 0, 0
}

// simWindow is a simulated server and the bytes that each turn brings.
type simWindow struct {
	simulated
	step int
}

// The threshold is what the configuration says, for the model that it says it of.
func TestThreshold_Configured(t *testing.T) {
	const window = 16_384
	perModel := func(name string, at int) rigOption {
		return withConfig(func(c *config.Config) { c.Models = append(c.Models, config.Model{Name: name, AtTokens: at}) })
	}
	fraction := func(x float64) rigOption {
		return withConfig(func(c *config.Config) { c.Compaction.Threshold = config.Exactly(x) })
	}
	for _, tt := range []struct {
		name    string
		rest    string
		options []rigOption
		want    int
	}{
		{"auto, counted", plainBody, []rigOption{counted}, 12_288},
		{"auto, counted, a max_tokens that a client always sends", plainBody + `,"max_tokens":32000`, []rigOption{counted}, 12_288},
		{"auto, counted, a small max_tokens", plainBody + `,"max_tokens":100`, []rigOption{counted}, 13_926},
		{"a fraction", plainBody, []rigOption{counted, fraction(0.5)}, 8192},
		{"at_tokens", plainBody, []rigOption{counted, atTokens(6000)}, 6000},
		{"at_tokens before a fraction", plainBody, []rigOption{counted, atTokens(6000), fraction(0.5)}, 6000},
		{"at_tokens above the room", plainBody, []rigOption{counted, atTokens(15_000)}, 12_288},
		{"at_tokens of this model", plainBody, []rigOption{counted, atTokens(9000), perModel("other", 4000), perModel("m", 6000)}, 6000},
		{"at_tokens of another model", plainBody, []rigOption{counted, atTokens(9000), perModel("other", 4000)}, 9000},
		{"a model without one", plainBody, []rigOption{counted, atTokens(9000), perModel("m", 0)}, 9000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			sim := &simWindow{simulated{okSim(window)}, 800}
			r := forecasting(t, sim, window, tt.options...)
			below, above := limitOf(t, r, sim, tt.rest)
			if below >= tt.want || above < tt.want {
				t.Errorf("%d tokens were sent, %d were compacted; the threshold is %d", below, above, tt.want)
			}
		})
	}
}

// By forecast alone it fires at 0.66 of the window, give or take what a forecast is
// off.
func TestThreshold_ByForecast(t *testing.T) {
	const window = 16_384
	sim := &simWindow{simulated{okSim(window)}, 800}
	r := forecasting(t, sim, window)
	below, above := limitOf(t, r, sim, plainBody)
	if below < window*60/100 || above > window*70/100 {
		t.Errorf("%d tokens were sent, %d were compacted", below, above)
	}
}

// at_tokens works where the window is unknown.
func TestThreshold_AtTokensWithoutAWindow(t *testing.T) {
	sim := &simWindow{simulated{okSim(16_384)}, 800}
	r := forecasting(t, sim, 0, counted, atTokens(5000))
	below, above := limitOf(t, r, sim, plainBody)
	if below >= 5000 || above < 5000 {
		t.Errorf("%d tokens were sent, %d were compacted", below, above)
	}
}

// A large overhead lifts the automatic threshold, so that not every turn fires.
func TestThreshold_LargeOverhead(t *testing.T) {
	const window = 16_384
	sim := okSim(window)
	r := forecasting(t, sim, window, counted)
	h := readsOf(0, 0)
	h[0] = fmt.Sprintf(`{"role":"system","content":%s}`, jsonText(strings.Repeat("You are an agent of some kind. ", 1300)))
	overhead := promptOf(t, sim, h.body(plainBody))
	if overhead < 9500 || overhead > 12_000 {
		t.Fatalf("the overhead is %d tokens", overhead)
	}
	compactions, refused := 0, 0
	for turn := range 30 {
		res, got := r.ok(t, sim, h.body(plainBody))
		refused += got.refused
		if hasAction(res, "passes") {
			compactions++
		}
		h = h.reads(turn, 1, 1500)
	}
	if compactions == 0 || compactions > 10 || refused > 0 {
		t.Errorf("%d compactions and %d refusals in 30 turns", compactions, refused)
	}
}

func (r *rig) thresholdWarnings() int {
	return r.Logs.FilterLevelExact(zapcore.WarnLevel).FilterMessageSnippet("threshold is not what was asked for").Len()
}

// A number that cannot stand is warned about in the log.
func TestThreshold_Warnings(t *testing.T) {
	for name, options := range map[string][]rigOption{
		"at_tokens above the room": {atTokens(1_000_000)},
		"below the overhead":       {withConfig(func(c *config.Config) { c.Compaction.Threshold = config.Exactly(0.01) })},
	} {
		t.Run(name, func(t *testing.T) {
			sim := okSim(65_536)
			r := forecasting(t, sim, 65_536, options...)
			h := readsOf(1, 500)
			h[0] = fmt.Sprintf(`{"role":"system","content":%s}`, jsonText(strings.Repeat("You are an agent of some kind. ", 300)))
			r.ok(t, sim, h.body(plainBody))
			if r.thresholdWarnings() == 0 {
				t.Error("no warning")
			}
		})
	}
	sim := okSim(65_536)
	r := forecasting(t, sim, 65_536, counted, atTokens(20_000))
	r.ok(t, sim, readsOf(1, 500).body(plainBody))
	if n := r.thresholdWarnings(); n != 0 {
		t.Errorf("%d warnings of a number that stands", n)
	}
}

// attempts are all compactions before a request left, helpful or not.
func (e early) attempts() float64 { return e.installed + e.observed + e.rejected }

// After a compaction that did not help there is no new attempt until the
// conversation has grown by a tenth of the window or the user has written.
func TestThreshold_MarkOfACompactionInVain(t *testing.T) {
	const window = 65_536 // a tenth: 6,554 tokens
	overhead := func() history {
		h := readsOf(1, 500)
		h[0] = fmt.Sprintf(`{"role":"system","content":%s}`, jsonText(strings.Repeat("You are an agent of some kind. ", 1000)))
		return h
	}
	newest := func() history { return readsOf(1, 30_000) }
	for name, begin := range map[string]func() history{"the overhead is over it": overhead, "the newest turn is": newest} {
		for how, options := range map[string][]rigOption{"counted": {counted}, "by forecast": nil} {
			t.Run(name+", "+how, func(t *testing.T) {
				sim := okSim(window)
				r := forecasting(t, sim, window, append([]rigOption{atTokens(4000)}, options...)...)
				h := begin()
				want := 1.0
				step := func(what string, list history) {
					t.Helper()
					_, got := r.ok(t, sim, list.body(plainBody))
					if got.refused > 0 {
						t.Errorf("%s: refused", what)
					}
					if n := r.early().attempts(); n != want {
						t.Fatalf("%s: %v attempts, want %v", what, n, want)
					}
				}
				step("over the threshold", h)
				if got := r.early(); got.rejected != 1 {
					t.Fatalf("it was not in vain: %+v", got)
				}
				step("the same again", h)
				// Small turns, 1,400 tokens in all.
				for i := range 4 {
					h = h.reads(1+i, 1, 1000)
					step(fmt.Sprint("small turn ", i), h)
				}
				h = h.and(answered, `{"role":"user","content":"And now?"}`)
				want++
				step("the user has written", h)
				if name == "the newest turn is" {
					return // by now it is an old one
				}
				step("the same again", h)
				// 9,000 tokens more, and no word of the user's.
				h = h.reads(10, 9, 3000)
				want++
				step("it has grown", h)
			})
		}
	}
}

// Two attempts in vain of one conversation are no matter of another's.
func TestThreshold_MarkIsOfOneConversation(t *testing.T) {
	sim := okSim(65_536)
	r := forecasting(t, sim, 65_536, counted, atTokens(4000))
	for i := range 3 {
		h := readsOf(1, 30_000)
		h[1] = fmt.Sprintf(`{"role":"user","content":"Task %d"}`, i)
		r.ok(t, sim, h.body(plainBody))
		if got := r.early(); got.rejected != float64(i+1) {
			t.Errorf("conversation %d: %+v", i, got)
		}
	}
}

// What a compaction in vain was is said: in the counter, in the log, to the client;
// and what goes out is what would have gone out.
func TestThreshold_InVainIsSaid(t *testing.T) {
	sim := okSim(65_536)
	r := forecasting(t, sim, 65_536, counted, atTokens(4000))
	body := readsOf(1, 30_000).body(plainBody)
	res, got := r.ok(t, sim, body)
	if string(got.sent()) != string(body) || res.Header.Get(headerAction) != "none" || res.Header.Get(headerWarning) == "" {
		t.Errorf("action %q, warning %q", res.Header.Get(headerAction), res.Header.Get(headerWarning))
	}
	if n := r.Logs.FilterMessage("the request could not be made shorter").Len(); n != 1 {
		t.Errorf("%d log entries", n)
	}
	if n := r.index.Stats().Checkpoints; n != 0 {
		t.Errorf("%d checkpoints", n)
	}
	if n := testutil.ToFloat64(r.metrics.CompactedTokens.WithLabelValues("before")); n != 0 {
		t.Errorf("%v tokens are counted as compacted", n)
	}
}

// A compaction that the next report shows to have been in vain leaves the mark too.
func TestThreshold_MarkByTheReport(t *testing.T) {
	// The server finds every prompt to be of 30,000 tokens, whatever it is sent.
	server := &inTurn{steps: []http.HandlerFunc{usage(30_000)}}
	r := forecasting(t, server, 65_536, atTokens(12_000))
	h := readsOf(20, 2500) // 17,000 tokens by forecast
	for i, step := range []struct {
		list     history
		attempts float64
	}{
		{h, 1},
		{h.reads(20, 1, 500), 1},
		{h.reads(20, 2, 500), 1},
		{h.reads(20, 2, 500).and(answered, `{"role":"user","content":"And now?"}`), 2},
	} {
		res, answer := r.post(t, step.list.body(plainBody))
		if res.StatusCode != http.StatusOK {
			t.Fatalf("status %d: %s", res.StatusCode, answer)
		}
		if got := r.early(); got.attempts() != step.attempts || i == 0 && got.installed != 1 {
			t.Fatalf("request %d: %+v, want %v attempts (%s)", i, got, step.attempts, res.Header.Get(headerAction))
		}
	}
}

// An overhead above the window is hopeless: nothing is tried that cannot help, and
// the client gets the server's refusal.
func TestThreshold_HopelessOverhead(t *testing.T) {
	const window = 8192
	sim := okSim(window)
	r := forecasting(t, sim, window, counted)
	h := readsOf(3, 500)
	h[0] = fmt.Sprintf(`{"role":"system","content":%s}`, jsonText(strings.Repeat("You are an agent of some kind. ", 3000)))
	res, _ := r.post(t, h.body(plainBody))
	if res.StatusCode != http.StatusBadRequest {
		t.Errorf("status %d", res.StatusCode)
	}
	got := takeTraffic(sim)
	for i, c := range got.chats {
		if string(c.Body) != string(h.body(plainBody)) {
			t.Errorf("request %d was changed", i)
		}
	}
	if n := testutil.ToFloat64(r.metrics.Compactions.WithLabelValues(metrics.TriggerThreshold, "passes", metrics.ResultInstalled)); n != 0 || r.index.Stats().Checkpoints != 0 {
		t.Errorf("%v compactions, %d checkpoints", n, r.index.Stats().Checkpoints)
	}
}
