package proxy

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5/middleware"
	"go.uber.org/zap"
)

// record is what is known of one request for its log line: sizes, decisions
// and times, never content.
type record struct {
	route        string // "chat" or "other"
	mode         string
	conversation string
	session      string // the label that the client gave
	action       string // what was done, "" for nothing
	model        string
	stream       bool
	bodyBytes    int
	sentBytes    int
	forecast     int // tokens
	window       int // tokens
	answer       answer
	miss         string // why the server's cache did not pay, "" if it did
	refusal      string // kind of a refusal as too long
	reason       string // of a failure, from a closed set
}

type recordKey struct{}

func recordOf(ctx context.Context) *record {
	if r, ok := ctx.Value(recordKey{}).(*record); ok {
		return r
	}
	return &record{} // a handler under test without the middleware
}

// statusClientGone is what the log and the counter call a request whose client
// left; no client ever sees it.
const statusClientGone = 499

// recorded writes one log line a request and counts it.
func (p *Proxy) recorded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		rec := &record{route: "other", mode: string(p.mode)}
		if r.Method == http.MethodPost && slices.Contains(chatRoutes, r.URL.Path) {
			rec.route = "chat"
		}
		if strings.Contains(r.URL.Path, "/v1/v1/") {
			rec.reason = "v1_twice" // the base URL and the client both add it
		}
		r = r.WithContext(context.WithValue(r.Context(), recordKey{}, rec))
		ww := middleware.NewWrapResponseWriter(w, r.ProtoMajor)
		p.metrics.Inflight.Inc()
		finished := false
		defer func() {
			// net/http would report it with its text, which may quote content, to a
			// logger that shows none.
			if fault := recover(); fault != nil {
				if fault != http.ErrAbortHandler {
					p.log.Error("BUG: please report this", zap.String("fault", fmt.Sprintf("%T", fault)), zap.Stack("stack"))
				}
				defer panic(http.ErrAbortHandler)
			}
			p.metrics.Inflight.Dec()
			status := ww.Status()
			switch {
			case status == 0 && finished && r.Context().Err() == nil:
				status = http.StatusOK
			case r.Context().Err() != nil && !finished, status == 0:
				status = statusClientGone
			case !finished:
				rec.reason = "upstream_broke" // and so the client's connection
			}
			p.metrics.Requests.WithLabelValues(rec.route, strconv.Itoa(status)).Inc()
			p.metrics.Duration.WithLabelValues(rec.route).Observe(time.Since(start).Seconds())
			p.log.Info("request", rec.fields(r, status, ww.BytesWritten(), time.Since(start))...)
		}()
		next.ServeHTTP(ww, r)
		finished = true
	})
}

func (rec *record) fields(r *http.Request, status, written int, took time.Duration) []zap.Field {
	f := []zap.Field{
		zap.String("method", r.Method),
		zap.String("route", rec.route),
		zap.Int("status", status),
		zap.Duration("took", took),
	}
	if rec.reason != "" {
		f = append(f, zap.String("reason", rec.reason))
	}
	if rec.route != "chat" {
		return append(f, zap.Int("answer_bytes", written))
	}
	f = append(f,
		zap.String("mode", rec.mode),
		zap.String("action", cmp.Or(rec.action, "none")),
		zap.Bool("stream", rec.stream),
		zap.Int("body_bytes", rec.bodyBytes),
		zap.Int("sent_bytes", rec.sentBytes),
		zap.Int("answer_bytes", written),
	)
	if rec.conversation != "" {
		f = append(f, zap.String("conversation", rec.conversation), zap.Int("forecast_tokens", rec.forecast), zap.Int("window_tokens", rec.window))
	}
	if rec.answer.Known {
		f = append(f, zap.Int("prompt_tokens", rec.answer.Prompt), zap.Int("cached_tokens", rec.answer.Cached), zap.Int("completion_tokens", rec.answer.Completion))
	}
	for _, s := range []struct{ key, value string }{{"session", rec.session}, {"refusal", rec.refusal}, {"cache_miss", rec.miss}} {
		if s.value != "" {
			f = append(f, zap.String(s.key, s.value))
		}
	}
	return f
}
