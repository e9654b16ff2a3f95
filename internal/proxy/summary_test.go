package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/llamatest"
	"github.com/compactproxy/compactproxy/internal/tinymodel"
	"github.com/compactproxy/compactproxy/internal/upstream"
)

// summarising lets the proxy ask for summaries, always in place of the passes.
func summarising(style compaction.Style) rigOption {
	return func(o *Options) {
		counting(o)
		o.Generator = upstream.Generator{Server: o.Counter.(*upstream.Counter)}
		o.Settings.Summary.Enabled, o.Settings.Summary.Style, o.Settings.Settle = true, style, 0
	}
}

// On a real server a summary that extends the conversation costs next to nothing
// to ask for; the same in prose is processed whole. Sessions go on after it, with
// lists that the template takes.
func TestSummary_RealServer(t *testing.T) {
	const window = 16384
	for _, style := range []compaction.Style{compaction.StyleExtend, compaction.StyleProse} {
		t.Run(string(style), func(t *testing.T) {
			server := llamatest.Options{Context: window, Slots: 1, Model: tinymodel.Options{Arch: tinymodel.Gemma3}}.Start(t)
			for _, s := range recordedScripts(t) {
				if s.name != "ledger" {
					continue
				}
				r := start(t, startReal(t, server.URL), withWindow(window), summarising(style))
				summaries, compactions := 0, 0
				for turn := range 40 {
					res, answer := r.post(t, s.body(turn))
					if res.StatusCode != http.StatusOK {
						t.Fatalf("turn %d: %d %.300s", turn, res.StatusCode, answer)
					}
					if hasAction(res, "summary") {
						summaries++
					}
					if hasAction(res, "passes") || hasAction(res, "recovery") || hasAction(res, "summary") {
						compactions++
					}
				}
				cached := testutil.ToFloat64(r.metrics.SummaryPrompt.WithLabelValues("cache"))
				processed := testutil.ToFloat64(r.metrics.SummaryPrompt.WithLabelValues("processed"))
				var rejected []string
				for _, reason := range compaction.Rejections {
					if n := testutil.ToFloat64(r.metrics.SummaryRejected.WithLabelValues(string(reason))); n > 0 {
						rejected = append(rejected, fmt.Sprint(reason, " ", n))
					}
				}
				t.Logf("%s: %d compactions, %d summaries; the calls had %.0f prompt tokens, %.0f from cache, %.0f processed; rejected: %s",
					style, compactions, summaries, cached+processed, cached, processed, strings.Join(rejected, ", "))
				if summaries == 0 {
					t.Error("no summary")
				}
				if style == compaction.StyleExtend && cached < 9*processed {
					t.Error("the calls for summaries do not extend the cache")
				}
			}
		})
	}
}
