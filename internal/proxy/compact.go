package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/conversation"
	"github.com/compactproxy/compactproxy/internal/metrics"
	"github.com/compactproxy/compactproxy/internal/pairing"
	"github.com/compactproxy/compactproxy/internal/upstream"
)

// request is the list as it stands, for a compaction.
func (ex *exchange) request(prompt, window int) compaction.Request {
	return compaction.Request{
		Entries:   ex.entries,
		Originals: ex.originals,
		Replayed:  ex.replayed,
		Open:      ex.open,
		Scale: compaction.Scale{
			Prompt:   prompt,
			Window:   window,
			Overhead: compaction.Weight(ex.body.Messages[:ex.leading]) + len(ex.body.Tools()),
			List:     compaction.Weight(compaction.Messages(ex.entries)),
		},
	}
}

// compactEarly makes room before the request leaves.
func (ex *exchange) compactEarly(ctx context.Context, h http.Header, w weight) {
	defer ex.p.metrics.Stage(metrics.StageCompact, time.Now())
	ex.conv.Compact(func() {
		defer ex.contain("compact", ex.asBefore())
		if cp := ex.newer(); cp != nil {
			ex.adopt(cp, ex.rec.forecast, "passes")
			if ex.count(ctx, h); ex.rec.forecast < ex.threshold {
				return
			}
		}
		ex.compactOnce(ctx, h)
	})
}

// asBefore restores the list after a fault: the last good one goes out.
func (ex *exchange) asBefore() func() {
	entries, replayed, open, checkpoint, wire := ex.entries, ex.replayed, ex.open, ex.checkpoint, ex.wire
	return func() {
		ex.entries, ex.replayed, ex.open, ex.checkpoint, ex.wire = entries, replayed, open, checkpoint, wire
	}
}

// compactOnce runs the passes, and where the server then still counts too many
// tokens the steps that need no model, and files what came of it.
func (ex *exchange) compactOnce(ctx context.Context, h http.Header) {
	undo, before := ex.asBefore(), ex.rec.forecast
	out, err := ex.p.settings.Compact(ex.request(before, ex.window), compaction.Trigger{Threshold: ex.threshold, Speed: ex.model.ratio()})
	if err != nil {
		ex.rejected(metrics.TriggerThreshold, err, before, ex.window)
		ex.mark(before)
		return
	}
	if ex.mode == config.ModeObserve {
		ex.observed(metrics.TriggerThreshold, out)
		return
	}
	ex.take(out)
	if ex.counted = false; ex.count(ctx, h) && ex.rec.forecast >= ex.threshold && out.Kind == compaction.KindPasses {
		// The passes freed less than their bytes promised.
		again, err := ex.p.settings.Compact(ex.request(ex.rec.forecast, ex.window), compaction.Trigger{Threshold: ex.threshold, Shorten: true})
		if err == nil {
			again.Before, again.Reasons = out.Before, append(out.Reasons, again.Reasons...)
			for pass, removed := range out.Removed {
				again.Removed[pass] += removed
			}
			out = again
			ex.take(out)
			ex.count(ctx, h)
		}
	}
	out.Before, out.After = before, ex.rec.forecast
	// A rewrite that leaves it over the threshold makes the server process nearly
	// everything and buys nothing, unless it saves a refusal.
	if out.After >= ex.threshold && (before < ex.window || out.After >= ex.window) {
		undo()
		ex.rec.forecast = before
		ex.rejected(metrics.TriggerThreshold, errStillOver, before, ex.window)
		ex.mark(before)
		return
	}
	ex.did("passes")
	ex.file(metrics.TriggerThreshold, out)
}

var errStillOver = errors.New("compact: it would stay over the threshold")

// take puts the outcome in the list's place.
func (ex *exchange) take(out compaction.Outcome) {
	ex.entries, ex.replayed, ex.open = out.Entries, out.Covered, out.Open
	ex.rec.forecast = out.After
	ex.compose()
}

// recover makes the refused list fit.
func (ex *exchange) recover(refusal upstream.Refusal) bool {
	prompt := refusal.PromptTokens
	if refusal.AtLeast || prompt <= 0 {
		prompt = max(ex.rec.forecast, 1)
	}
	return ex.compact(prompt, refusal.Window)
}

// recoverFull makes room before the request leaves: the last answer ended
// because the window was full.
func (ex *exchange) recoverFull(full int) {
	ex.compact(max(full, ex.rec.forecast), ex.window)
}

// compact makes the list fit, one request of a conversation at a time: where
// another one with the same beginning has just done it, its checkpoint serves
// both.
func (ex *exchange) compact(prompt, window int) (ok bool) {
	start := time.Now()
	defer func() { ex.p.metrics.Stage(metrics.StageRecover, start) }()
	ex.conv.Compact(func() {
		defer ex.contain("compact", func() { ok = false })
		if cp := ex.newer(); cp != nil {
			after := ex.adopt(cp, prompt, "recovery")
			if after > 0 && (window <= 0 || after < window-window/8) { // the count is an estimate
				ok = true
				return
			}
			prompt = max(after, 1)
		}
		ok = ex.compactAnew(prompt, window)
	})
	return ok
}

// newer is a checkpoint that another request of the conversation has filed
// meanwhile, nil if there is none.
func (ex *exchange) newer() *conversation.Checkpoint {
	if ex.mode != config.ModeOn {
		return nil
	}
	cp := ex.p.index.Latest(ex.conv, ex.chain)
	if cp == nil || ex.checkpoint != nil && cp.ID == ex.checkpoint.ID {
		return nil
	}
	return cp
}

// adopt takes over a checkpoint that another request of the conversation has
// just filed, and returns the size of the prompt with it in tokens, at the rate
// that was measured on the list before. 0 means that it cannot be told.
func (ex *exchange) adopt(cp *conversation.Checkpoint, prompt int, action string) int {
	weight := func() int {
		return len(ex.body.Tools()) + compaction.Weight(ex.body.Messages[:ex.leading]) + compaction.Weight(compaction.Messages(ex.entries))
	}
	before := weight()
	ex.checkpoint = cp
	if ex.list() != nil || before == 0 {
		return 0
	}
	ex.rec.forecast = prompt * weight() / before
	ex.compacted, ex.counted = true, false
	ex.did(action)
	return ex.rec.forecast
}

// contain keeps a fault of our own from costing more than its own work: it is
// logged, and what went out last goes out again. It must be deferred.
func (ex *exchange) contain(work string, undo func()) {
	if fault := recover(); fault != nil {
		undo()
		ex.warning = "a fault in the proxy's own " + work
		ex.p.log.Error("BUG: please report this", zap.String("work", work), zap.String("fault", fmt.Sprintf("%T", fault)), zap.Stack("stack"))
	}
}

// compactAnew files what it makes as a checkpoint before it is sent.
func (ex *exchange) compactAnew(prompt, window int) bool {
	out, err := ex.p.settings.Recover(ex.request(prompt, window))
	if err != nil {
		ex.rejected(metrics.TriggerRecovery, err, prompt, window)
		return false
	}
	ex.did("recovery")
	if ex.mode == config.ModeObserve {
		ex.observed(metrics.TriggerRecovery, out)
		return true
	}
	ex.take(out)
	ex.counted = false
	ex.file(metrics.TriggerRecovery, out)
	return true
}

func (ex *exchange) rejected(trigger string, err error, prompt, window int) {
	p := ex.p
	p.metrics.Compactions.WithLabelValues(trigger, string(compaction.KindClip), metrics.ResultRejected).Inc()
	ex.warning = err.Error()
	p.log.Warn("the request could not be made shorter", zap.String("conversation", ex.conv.ID), zap.String("trigger", trigger),
		zap.Error(err), zap.Int("prompt_tokens", prompt), zap.Int("threshold_tokens", ex.threshold), zap.Int("window_tokens", window))
}

func (ex *exchange) observed(trigger string, out compaction.Outcome) {
	p := ex.p
	if trigger == metrics.TriggerThreshold {
		ex.did("passes")
	}
	p.metrics.Compactions.WithLabelValues(trigger, string(out.Kind), metrics.ResultObserved).Inc()
	p.log.Info("would have compacted", zap.String("conversation", ex.conv.ID), zap.String("trigger", trigger), zap.String("kind", string(out.Kind)),
		zap.Int("tokens_before", out.Before), zap.Int("tokens_after", out.After), zap.Int("window_tokens", ex.window))
}

// file stores the checkpoint that gives the list again, before the list leaves.
func (ex *exchange) file(trigger string, out compaction.Outcome) {
	p := ex.p
	p.metrics.Compactions.WithLabelValues(trigger, string(out.Kind), metrics.ResultInstalled).Inc()
	removed := map[string]int{}
	for pass, bytes := range out.Removed {
		p.metrics.PassRemoved.WithLabelValues(string(pass)).Add(float64(max(bytes, 0)))
		if bytes != 0 {
			removed[string(pass)] = bytes
		}
	}
	p.metrics.CompactedTokens.WithLabelValues("before").Add(float64(out.Before))
	p.metrics.CompactedTokens.WithLabelValues("after").Add(float64(out.After))
	ex.compacted = true
	if out.N > 0 {
		covered := 0
		if ex.checkpoint != nil {
			covered = ex.checkpoint.N
		}
		ex.checkpoint = conversation.NewCheckpoint(out.N, ex.chain[out.N], out.Entries[:out.Covered])
		start := time.Now()
		p.index.File(ex.conv, ex.checkpoint, ex.replaced(covered, out.N), conversation.Summary{
			At: start, Trigger: trigger, Kind: string(out.Kind), Window: ex.window, Limit: ex.threshold,
			Before: out.Before, After: out.After, Exact: ex.counted, Removed: removed, Reasons: out.Reasons,
		})
		p.metrics.Stage(metrics.StageStore, start)
	}
	w := ex.weigh()
	ex.conv.Rebase(compaction.Report{Tokens: max(out.After-ex.model.images(w.images, p.imageTokens), 0), Bytes: w.bytes})
	ex.conv.SetMark(conversation.Mark{})
	p.log.Info("compacted", zap.String("conversation", ex.conv.ID), zap.String("trigger", trigger), zap.String("kind", string(out.Kind)),
		zap.Int("tokens_before", out.Before), zap.Int("tokens_after", out.After), zap.Int("threshold_tokens", ex.threshold),
		zap.Int("window_tokens", ex.window), zap.Int("messages_covered", out.N))
}

// replaced are the client's messages from the covered ones to the nth.
func (ex *exchange) replaced(covered, n int) []conversation.Original {
	list := ex.originals[:n]
	answered := pairing.Answered(list)
	originals := make([]conversation.Original, 0, n-covered)
	for i := covered; i < n; i++ {
		o := conversation.Original{N: i + 1, Chain: ex.chain[i+1], Message: list[i]}
		if ref, ok := answered[i]; ok {
			o.Tool = list[ref.Message].Calls[ref.Call].Name
		}
		originals = append(originals, o)
	}
	return originals
}
