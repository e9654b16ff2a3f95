package proxy

import (
	"time"

	"go.uber.org/zap"

	"github.com/compactproxy/compactproxy/internal/cachelens"
	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/conversation"
	"github.com/compactproxy/compactproxy/internal/metrics"
	"github.com/compactproxy/compactproxy/internal/transcript"
	"github.com/compactproxy/compactproxy/internal/upstream"
)

// finish takes in what the server reported and ends what the exchange holds.
func (ex *exchange) finish() {
	defer ex.contain("account", func() {})
	p := ex.p
	p.pool.leave(ex)
	if ex.release != nil {
		ex.release()
	}
	if ex.conv != nil {
		stats := p.index.Stats()
		p.metrics.Conversations.Set(float64(stats.Conversations))
		p.metrics.StateBytes.Set(float64(stats.Stored))
	}
	ex.rec.answer = ex.answer
	ex.rec.action, ex.rec.forecast, ex.rec.window = ex.action(), ex.forecast, ex.window
	a := ex.answer
	if ex.conv != nil && !ex.side && ex.mode == config.ModeOn && upstream.ClassifyFinish(a.Finish).Kind.Overflow() {
		ex.conv.MarkFull(max(a.Prompt+a.Completion, ex.forecast, 1))
	}
	if ex.mode == config.ModeOn && (ex.recovered || ex.capped || ex.pooled) {
		result := metrics.RetryAnswered
		switch {
		case ex.refused:
			result = metrics.RetryRefused
		case ex.failed || !a.events:
			result = metrics.RetryFailed
		}
		p.metrics.OverflowRetries.WithLabelValues(result).Inc()
	}
	if !a.Known {
		return
	}
	p.metrics.PromptTokens.WithLabelValues("cache").Add(float64(a.Cached))
	p.metrics.PromptTokens.WithLabelValues("processed").Add(float64(a.Prompt - a.Cached))
	p.metrics.Completion.Add(float64(a.Completion))
	if ex.conv == nil {
		return
	}
	if ex.model.answers(a.model) {
		p.tracker.Invalidate("an answer named another model")
	}
	if ex.mode == config.ModeObserve && ex.checkpoint != nil {
		return // what went out is not what was planned
	}
	ex.learn()
	if !ex.side {
		ex.compare()
	}
}

// learn takes the server's report into the forecasts.
func (ex *exchange) learn() {
	p, a, w := ex.p, ex.answer, ex.weigh()
	images := ex.model.images(w.images, p.imageTokens)
	if ex.forecast > 0 && a.Prompt > 0 && !ex.counted {
		p.metrics.ForecastError.Observe(abs(float64(ex.forecast-a.Prompt)) / float64(a.Prompt))
	}
	text := 0
	if anchor := ex.conv.Anchor(); anchor.Known() && !ex.compacted {
		text = anchor.Forecast(w.bytes)
	}
	ex.model.learn(a, w.bytes, w.images, text)
	if a.CacheKnown && ex.stays > 0 {
		ex.model.rolledBack(ex.stays, ex.head, a.Cached)
	}
	if ex.side {
		return
	}
	ex.conv.Observe(compaction.Report{Tokens: max(a.Prompt-images, 0), Bytes: w.bytes})
	if ex.compacted && ex.threshold > 0 && a.Prompt >= ex.threshold {
		ex.mark(a.Prompt) // it did not help
	}
	total := a.Prompt + a.Completion
	if ex.window > 0 && total >= ex.window && a.Finish == "length" {
		ex.conv.MarkFull(total)
	}
}

func abs(x float64) float64 { return max(x, -x) }

// compare looks through the cache lens, and records the turn.
func (ex *exchange) compare() {
	p, a := ex.p, ex.answer
	turn := cachelens.Turn{
		Last: ex.last, Prompt: a.Prompt, Cached: -1,
		SystemChanged: ex.change.System, ToolsChanged: ex.change.Tools,
		Compacted: ex.compacted, ClientChanged: ex.change.Message >= 0,
	}
	if a.CacheKnown {
		turn.Cached = a.Cached
	}
	for i := range ex.originals {
		m := &ex.originals[i]
		turn.NewUser = turn.NewUser || i >= ex.change.Since && m.Role == transcript.User
		turn.Reasoning = turn.Reasoning || m.Role == transcript.Assistant && m.Volatile()
	}
	seen := cachelens.Read(turn)
	p.metrics.PrefixExpected.Add(float64(seen.Expected))
	p.metrics.PrefixReused.Add(float64(seen.Reused))
	message := 0
	if ex.change.Message >= 0 {
		message = ex.leading + ex.change.Message + 1
	}
	if seen.Miss != "" {
		p.metrics.CacheMisses.WithLabelValues(string(seen.Miss)).Inc()
		ex.rec.miss = string(seen.Miss)
	}
	if seen.Unexplained {
		p.log.Warn("the server processed again what it should have had in its cache, and nothing was changed",
			zap.String("conversation", ex.conv.ID), zap.String("reason", string(seen.Miss)),
			zap.Int("expected_tokens", seen.Expected), zap.Int("cached_tokens", seen.Reused))
	}
	rereads := 0
	if ex.checkpoint != nil {
		rereads = p.settings.Rereads(ex.entries, ex.originals, ex.checkpoint.N, ex.change.Since)
		p.metrics.Rereads.Add(float64(rereads))
	}
	p.index.Record(ex.conv, conversation.Turn{
		At: time.Now(), Action: ex.action(), Client: ex.client, Forecast: ex.forecast,
		Prompt: a.Prompt, Cached: turn.Cached, Completion: a.Completion,
		Expected: seen.Expected, Miss: string(seen.Miss), Message: message,
	}, ex.checkpoint, ex.compacted, rereads)
}
