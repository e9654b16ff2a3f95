package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
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

// compactEarly makes room before the request leaves. enough tells whether a
// checkpoint that another request has filed meanwhile is what this one needs.
func (ex *exchange) compactEarly(ctx context.Context, h http.Header, trigger string) {
	defer ex.p.metrics.Stage(metrics.StageCompact, time.Now())
	enough := func(ctx context.Context) bool {
		ex.count(ctx, h)
		return trigger == metrics.TriggerThreshold && ex.forecast < ex.threshold
	}
	ex.alone(ctx, "passes", ex.forecast, enough, func(ctx context.Context, work *exchange) {
		work.compactOnce(ctx, h, trigger)
	})
}

// alone has do work on a copy of the exchange, one compaction of a conversation at
// a time, and takes over what came of it. Where another request has just compacted
// the conversation, its checkpoint is taken over first, and do only runs if that
// is not enough. The work goes on for a while where the client leaves.
func (ex *exchange) alone(ctx context.Context, action string, prompt int, enough func(context.Context) bool, do func(context.Context, *exchange)) {
	for {
		work := *ex
		mine, err := ex.p.flights.join(ctx, ex.conv, func(ctx context.Context) {
			defer work.contain("compaction", work.asBefore())
			do(ctx, &work)
		})
		if err != nil {
			return // the client has gone
		}
		if mine {
			ex.sending = work.sending
			return
		}
		if cp := ex.newer(); cp != nil {
			ex.adopt(cp, prompt, action)
			if enough(ctx) {
				return
			}
		}
	}
}

// asBefore restores what was to be sent, for a fault: the last good list goes out.
func (ex *exchange) asBefore() func() {
	before := ex.sending
	return func() { ex.sending = before }
}

// compactOnce makes the list shorter and files what came of it.
func (ex *exchange) compactOnce(ctx context.Context, h http.Header, trigger string) {
	if cp := ex.newer(); cp != nil && trigger == metrics.TriggerThreshold {
		ex.adopt(cp, ex.forecast, "passes")
		if ex.count(ctx, h); ex.forecast < ex.threshold {
			return
		}
	}
	if trigger == metrics.TriggerThreshold && !ex.worthAnAttempt() {
		return // another request has just tried
	}
	before := ex.forecast
	tr := compaction.Trigger{Threshold: ex.threshold, Speed: ex.model.ratio(), Forward: ex.model.onlyForward()}
	if tr.Threshold <= 0 || trigger == metrics.TriggerRequest {
		tr.Threshold = min(max(tr.Threshold, 1), before)
		if ex.threshold <= 0 {
			tr.Threshold = before
		}
	}
	out, how, err := ex.shorter(ctx, h, trigger, tr)
	switch {
	case trigger == metrics.TriggerRequest && (errors.Is(err, compaction.ErrNothingToCut) || errors.Is(err, compaction.ErrNothing)):
		return // there is nothing to do, and that is no failure
	case err != nil && ctx.Err() != nil:
		return // nobody waits any more: as if it had never begun
	case err != nil:
		ex.rejected(trigger, err, before, ex.window)
		ex.mark(before)
		return
	case ex.mode == config.ModeObserve:
		ex.observed(trigger, how, out)
		return
	}
	undo := ex.asBefore()
	ex.take(out)
	if ex.counted = false; ex.count(ctx, h) && ex.forecast >= tr.Threshold && out.Kind == compaction.KindPasses {
		// The passes freed less than their bytes promised.
		undo()
		if again, other, err := ex.afterPasses(ctx, h, tr); err == nil {
			again.Reasons = append(out.Reasons, again.Reasons...)
			out, how = again, other
		}
		ex.take(out)
		ex.counted = false
		ex.count(ctx, h)
	}
	out.Before, out.After = before, ex.forecast
	// A rewrite that leaves it over the threshold makes the server process nearly
	// everything and buys nothing, unless it saves a refusal.
	if out.After >= tr.Threshold && trigger == metrics.TriggerThreshold && (before < ex.window || out.After >= ex.window) {
		undo()
		ex.rejected(trigger, errStillOver, before, ex.window)
		ex.mark(before)
		return
	}
	ex.did(how)
	ex.file(trigger, out)
}

var errStillOver = errors.New("compact: it would stay over the threshold")

// shorter decides between the passes alone, a summary, and the steps that need no
// model. how is the action that is reported.
func (ex *exchange) shorter(ctx context.Context, h http.Header, trigger string, tr compaction.Trigger) (out compaction.Outcome, how string, err error) {
	s := ex.p.settings
	req := ex.request(ex.forecast, ex.window)
	passes, enough, passesErr := s.Passes(req, tr)
	switch {
	case errors.Is(passesErr, compaction.ErrOverhead):
		return passes, "", passesErr
	case enough && trigger != metrics.TriggerRequest:
		return passes, "passes", nil
	case !ex.summarises():
		out, err = s.Shorten(req, tr)
		out.Reasons = append(passes.Reasons, out.Reasons...)
		return out, "passes", err
	case ex.mode == config.ModeObserve:
		return passes, "summary", passesErr
	}
	out, err = ex.summarise(ctx, h, req)
	out.Reasons = append(passes.Reasons, out.Reasons...)
	passesFit := passesErr == nil && passes.After < tr.Threshold
	switch {
	case err == nil:
		return out, "summary", nil
	case ctx.Err() != nil:
		return out, "", ctx.Err()
	case trigger == metrics.TriggerRequest && errors.Is(err, compaction.ErrNothingToCut):
		return out, "", err
	case passesFit: // they are less than was wanted, and better than nothing
		ex.warn(err)
		return passes, "passes", nil
	case errors.Is(err, compaction.ErrNothingToCut) && trigger != metrics.TriggerRequest:
		out, err = s.Shorten(req, tr)
		return out, "passes", err
	}
	return out, "", err
}

// afterPasses makes the list shorter where the passes do not suffice.
func (ex *exchange) afterPasses(ctx context.Context, h http.Header, tr compaction.Trigger) (compaction.Outcome, string, error) {
	req := ex.request(ex.forecast, ex.window)
	if ex.summarises() && !ex.noSummary {
		if out, err := ex.summarise(ctx, h, req); err == nil {
			return out, "summary", nil
		}
	}
	out, err := ex.p.settings.Shorten(req, tr)
	return out, "passes", err
}

// summarises tells whether a summary may be asked for.
func (ex *exchange) summarises() bool {
	return ex.p.settings.Summary.Enabled && ex.p.generator != nil
}

// summarise has the model write a summary, within its time.
func (ex *exchange) summarise(ctx context.Context, h http.Header, req compaction.Request) (compaction.Outcome, error) {
	p := ex.p
	ctx, cancel := context.WithTimeout(ctx, p.summary.Timeout)
	defer cancel()
	start := time.Now()
	s := p.settings
	w := writer{generator: p.generator, body: ex.body, header: h, model: p.summary.Model, progress: p.tracker.LlamaServer()}
	if w.model != "" && w.model != ex.body.Model {
		s.Summary.Style = compaction.StyleProse // another model has nothing of it cached
	}
	out, report, err := s.Summarise(ctx, compaction.Asked{Request: req, Known: ex.known()}, w)
	if errors.Is(err, compaction.ErrNothingToCut) {
		return out, err
	}
	p.metrics.SummaryDuration.Observe(time.Since(start).Seconds())
	prompt, cached, written := 0, 0, 0
	for _, c := range report.Calls {
		prompt, cached, written = prompt+c.Prompt, cached+c.Cached, written+c.Completion
	}
	p.metrics.SummaryPrompt.WithLabelValues("cache").Add(float64(cached))
	p.metrics.SummaryPrompt.WithLabelValues("processed").Add(float64(max(prompt-cached, 0)))
	for _, r := range report.Rejected {
		p.metrics.SummaryRejected.WithLabelValues(string(r)).Inc()
	}
	log := []zap.Field{
		zap.String("conversation", ex.conv.ID), zap.String("style", string(report.Style)), zap.Int("calls", len(report.Calls)),
		zap.Int("prompt_tokens", prompt), zap.Int("cached_tokens", cached), zap.Int("written_tokens", written), zap.Duration("took", time.Since(start)),
		zap.Strings("rejected", labelsOf(report.Rejected)),
	}
	if err != nil {
		ex.noSummary = true
		p.log.Warn("no summary", append(log, zap.Error(err))...)
		return out, err
	}
	p.metrics.Summaries.WithLabelValues(string(report.Style)).Inc()
	p.log.Info("summarised", append(log, zap.Strings("warnings", report.Warnings))...)
	for _, warning := range report.Warnings {
		ex.warn(errors.New(warning))
	}
	out.Reasons = append(out.Reasons, fmt.Sprintf("a summary in style %s: %d calls, %d prompt tokens of which %d were cached, %d written",
		report.Style, len(report.Calls), prompt, cached, written))
	return out, nil
}

func labelsOf(list []compaction.Rejection) []string {
	out := make([]string, len(list))
	for i, r := range list {
		out[i] = string(r)
	}
	return out
}

// known is how many entries the server has had in a prompt of this conversation.
func (ex *exchange) known() int {
	for i := range ex.entries {
		if ex.entries[i].End > ex.change.Since {
			return i
		}
	}
	return len(ex.entries)
}

// warn adds to what the client is told.
func (ex *exchange) warn(err error) {
	if ex.warning != "" {
		ex.warning += "; "
	}
	ex.warning += strings.ReplaceAll(err.Error(), "\n", " ")
}

// take puts the outcome in the list's place.
func (ex *exchange) take(out compaction.Outcome) {
	ex.entries, ex.replayed, ex.open = out.Entries, out.Covered, out.Open
	ex.forecast = out.After
	ex.compose()
}

// recover makes the refused list fit.
func (ex *exchange) recover(ctx context.Context, h http.Header, refusal upstream.Refusal) bool {
	prompt := refusal.PromptTokens
	if refusal.AtLeast || prompt <= 0 {
		prompt = max(ex.forecast, 1)
	}
	return ex.fit(ctx, h, prompt, refusal.Window)
}

// recoverFull makes room before the request leaves: the last answer ended
// because the window was full.
func (ex *exchange) recoverFull(ctx context.Context, h http.Header, full int) {
	ex.fit(ctx, h, max(full, ex.forecast), ex.window)
}

// fit makes the list fit the window.
func (ex *exchange) fit(ctx context.Context, h http.Header, prompt, window int) (ok bool) {
	start := time.Now()
	defer func() { ex.p.metrics.Stage(metrics.StageRecover, start) }()
	enough := func(context.Context) bool {
		ok = ex.forecast > 0 && (window <= 0 || ex.forecast < window-window/8) // the count is an estimate
		prompt = max(ex.forecast, 1)
		return ok
	}
	ex.alone(ctx, "recovery", prompt, enough, func(ctx context.Context, work *exchange) {
		if cp := work.newer(); cp != nil {
			after := work.adopt(cp, prompt, "recovery")
			if after > 0 && (window <= 0 || after < window-window/8) {
				ok = true
				return
			}
			prompt = max(after, 1)
		}
		ok = work.fitAnew(ctx, h, prompt, window)
	})
	return ctx.Err() == nil && ok // else the work may still be under way
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
	ex.forecast = prompt * weight() / before
	ex.compacted, ex.counted = true, false
	if action == "passes" {
		action = compactionAction(cp)
	}
	ex.did(action)
	return ex.forecast
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

// fitAnew files what it makes as a checkpoint before it is sent.
func (ex *exchange) fitAnew(ctx context.Context, h http.Header, prompt, window int) bool {
	out, err := ex.fitting(ctx, h, prompt, window)
	if ctx.Err() != nil {
		return false
	}
	if err != nil {
		ex.rejected(metrics.TriggerRecovery, err, prompt, window)
		return false
	}
	ex.did("recovery")
	if out.Kind == compaction.KindSummary {
		ex.did("summary")
	}
	if ex.mode == config.ModeObserve {
		ex.observed(metrics.TriggerRecovery, "recovery", out)
		return true
	}
	ex.take(out)
	ex.counted = false
	ex.file(metrics.TriggerRecovery, out)
	return true
}

// fitting is a list that fits: by the passes, by a summary, whose failure costs
// nothing, and by the steps that need no model.
func (ex *exchange) fitting(ctx context.Context, h http.Header, prompt, window int) (compaction.Outcome, error) {
	s := ex.p.settings
	req := ex.request(prompt, window)
	if !ex.summarises() || ex.mode == config.ModeObserve || !ex.worthAnAttempt() {
		return s.Recover(req)
	}
	if out, reached, err := s.RecoverByPasses(req); reached || errors.Is(err, compaction.ErrOverhead) {
		return out, err
	}
	out, err := ex.summarise(ctx, h, req)
	if ctx.Err() != nil {
		return out, ctx.Err() // nobody waits any more: as if it had never begun
	}
	target, _ := req.Scale.Target()
	if err != nil || window > 0 && out.After >= (window+target)/2 {
		if err != nil {
			ex.mark(prompt)
		}
		return s.Recover(req)
	}
	return out, nil
}

func (ex *exchange) rejected(trigger string, err error, prompt, window int) {
	p := ex.p
	p.metrics.Compactions.WithLabelValues(trigger, string(compaction.KindClip), metrics.ResultRejected).Inc()
	ex.warn(err)
	p.log.Warn("the request could not be made shorter", zap.String("conversation", ex.conv.ID), zap.String("trigger", trigger),
		zap.Error(err), zap.Int("prompt_tokens", prompt), zap.Int("threshold_tokens", ex.threshold), zap.Int("window_tokens", window))
}

func (ex *exchange) observed(trigger, how string, out compaction.Outcome) {
	p := ex.p
	ex.did(how)
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
	ex.compacted, ex.stays, ex.head = true, out.Stays, out.Head
	// Before the commit: the stored state is that of the new list.
	w := ex.weigh()
	ex.conv.Rebase(compaction.Report{Tokens: max(out.After-ex.model.images(w.images, p.imageTokens), 0), Bytes: w.bytes})
	if ex.noSummary {
		ex.mark(out.After) // the next attempt would fail as well
	} else {
		ex.conv.SetMark(conversation.Mark{})
	}
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
