package proxy

import (
	"context"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/conversation"
	"github.com/compactproxy/compactproxy/internal/metrics"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// Counter asks the server how many tokens a request has; [upstream.Counter] is
// the real one.
type Counter interface {
	// Count returns the size in tokens of the prompt that this body makes. Of the
	// header fields the credentials are sent.
	Count(ctx context.Context, body []byte, h http.Header) (int, error)
	// Exact tells whether the server counts, Known whether that is known.
	Exact() bool
	Known() bool
}

// weight is the size of the list as it stands, before any token is counted.
type weight struct {
	bytes    int // of everything, as the forecast counts it
	overhead int // of which system messages and tools
	images   int
}

func (ex *exchange) weigh() weight {
	w := weight{overhead: len(ex.body.Tools())}
	for i := range ex.body.Messages[:ex.leading] {
		w.overhead += compaction.ForecastBytes(&ex.body.Messages[i])
	}
	w.bytes = w.overhead
	for i := range ex.entries {
		w.bytes += compaction.ForecastBytes(&ex.entries[i].Message)
		w.images += ex.entries[i].Images()
	}
	return w
}

// estimate forecasts the prompt of the list as it stands.
func (ex *exchange) estimate() {
	w := ex.weigh()
	anchor := ex.conv.Anchor()
	ex.forecast = anchor.Forecast(w.bytes)
	if !anchor.Known() {
		ex.forecast = ex.model.estimate(w.bytes)
	}
	ex.forecast += ex.model.images(w.images, ex.p.imageTokens)
	ex.client = ex.clientTokens(w)
}

// makeRoom compacts the list where it is about to outgrow the window.
func (ex *exchange) makeRoom(ctx context.Context, h http.Header) {
	w := ex.weigh()
	images := ex.model.images(w.images, ex.p.imageTokens)
	anchor := ex.conv.Anchor()
	if ex.side {
		return
	}
	ex.limit(w)
	if full := ex.conv.TakeFull(); full > 0 {
		ex.recoverFull(ctx, h, full)
		return
	}
	if ex.now {
		ex.compactEarly(ctx, h, metrics.TriggerRequest)
		return
	}
	if ex.threshold <= 0 {
		return
	}
	reported := 0
	if anchor.Known() {
		reported = anchor.Last.Tokens + images
	}
	if !ex.p.predictive {
		ex.forecast = reported
	} else if low, high := anchor.Plausible(w.bytes); (low+images < ex.threshold || !anchor.Known()) && high+images >= ex.threshold {
		ex.count(ctx, h)
		ex.limit(w) // it may be the first count, and so the first that shows that there is one
	}
	if ex.forecast >= ex.threshold && !ex.counted && ex.p.predictive && ex.p.counter != nil && !ex.p.counter.Known() {
		ex.count(ctx, h)
		ex.limit(w)
	}
	if ex.forecast < ex.threshold && (ex.counted || reported < ex.threshold) {
		return
	}
	if !ex.worthAnAttempt() {
		return
	}
	ex.compactEarly(ctx, h, metrics.TriggerThreshold)
}

// clientTokens estimates what the client's own list would take.
func (ex *exchange) clientTokens(w weight) int {
	if ex.checkpoint == nil || w.bytes == 0 {
		return ex.forecast
	}
	own := w.overhead
	for i := range ex.originals {
		own += compaction.ForecastBytes(&ex.originals[i])
	}
	return int(float64(ex.forecast) * float64(own) / float64(w.bytes))
}

// limit finds the threshold.
func (ex *exchange) limit(w weight) {
	p := ex.p
	overhead := w.overhead / 3
	if w.bytes > 0 && ex.forecast > 0 {
		overhead = ex.forecast * w.overhead / w.bytes
	}
	limits := compaction.Limits{
		Window: ex.window, Requested: ex.body.MaxTokens, Overhead: overhead, Exact: p.counter != nil && p.counter.Exact(),
		AtTokens: p.atTokens(ex.body.Model), Fraction: p.fraction,
	}
	var warning string
	ex.threshold, warning = limits.Threshold()
	if ex.model.warn(warning) {
		p.log.Warn("the threshold is not what was asked for; change compaction.threshold, compaction.at_tokens or models",
			zap.String("model", ex.body.Model), zap.String("why", warning))
	}
}

// count asks the server, and believes it. Without an answer the forecast stands.
func (ex *exchange) count(ctx context.Context, h http.Header) (ok bool) {
	p := ex.p
	if p.counter == nil {
		return false
	}
	defer p.metrics.Stage(metrics.StageCount, time.Now())
	body := ex.wire
	if ex.mode == config.ModeObserve {
		body = ex.effective()
	}
	n, err := p.counter.Count(ctx, body, h)
	if err != nil {
		p.log.Debug("the server did not count the tokens of a request", zap.String("conversation", ex.conv.ID), zap.Error(err))
		return false
	}
	ex.forecast, ex.counted = n, true
	return true
}

// worthAnAttempt is false after a compaction that did not help, until the
// conversation has grown by a tenth of the window or the user has written.
func (ex *exchange) worthAnAttempt() bool {
	mark := ex.conv.Mark()
	if mark.N == 0 || mark.N >= len(ex.chain) || ex.chain[mark.N] != mark.Chain {
		return true
	}
	if ex.forecast >= mark.Tokens+ex.window/10 {
		return true
	}
	for i := range ex.originals[mark.N:] {
		if ex.originals[mark.N+i].Role == transcript.User {
			return true
		}
	}
	return false
}

// mark notes that a compaction did not help.
func (ex *exchange) mark(tokens int) {
	ex.conv.SetMark(conversation.Mark{N: len(ex.originals), Chain: ex.chain[len(ex.originals)], Tokens: tokens})
}
