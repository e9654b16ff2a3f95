package main

import (
	"context"
	"net/http"
	"net/url"

	"go.uber.org/zap"

	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/metrics"
	"github.com/compactproxy/compactproxy/internal/upstream"
)

// newTracker watches the server: says what it found, and again when that
// changes.
func newTracker(cfg config.Config, prober *upstream.Prober, counter *upstream.Counter, log *zap.Logger, m *metrics.Metrics) *upstream.Tracker {
	return upstream.NewTracker(upstream.TrackerOptions{
		Probe:      prober.Probe,
		Configured: func(asked, served string) int { return configuredWindow(cfg, asked, served) },
		OnChange: func(_, now upstream.Status) {
			if now.State == upstream.Ready && cfg.Compaction.ExactCount == config.ExactCountAuto {
				counter.Reset()
				if err := counter.Probe(context.Background()); err != nil {
					log.Debug("the server did not count the tokens of a test request", zap.Error(err))
				}
			}
			report(now, cfg, counter.Exact(), prober.BaseURL, log)
			window := 0
			if model, ok := now.Find(""); ok {
				window = model.Window
			}
			if own := configuredWindow(cfg, now.Loaded, now.Loaded); own > 0 && (window == 0 || own < window) {
				window = own
			}
			m.ContextTokens.Set(float64(window))
		},
		OnCapped: func(c upstream.Capped) {
			log.Warn("the configured context window is larger than the server's and was lowered to it; correct upstream.context_window or models",
				zap.String("model", c.Model), zap.Int("configured_tokens", c.Configured), zap.Int("window_tokens", c.Shown))
		},
	})
}

func newProber(cfg config.Config, root *url.URL, transport http.RoundTripper) *upstream.Prober {
	return &upstream.Prober{
		Client:  &http.Client{Transport: transport},
		BaseURL: root.String(),
		APIKey:  cfg.Upstream.APIKey.Reveal(),
	}
}

func newCounter(cfg config.Config, root *url.URL, transport http.RoundTripper) *upstream.Counter {
	return &upstream.Counter{
		Client:  &http.Client{Transport: transport},
		BaseURL: root.String(),
		APIKey:  cfg.Upstream.APIKey.Reveal(),
	}
}

// configuredWindow is what the user set for a model, 0 for nothing.
func configuredWindow(cfg config.Config, asked, served string) int {
	for _, m := range cfg.Models {
		if m.ContextWindow > 0 && (m.Name == asked || m.Name == served) {
			return m.ContextWindow
		}
	}
	return cfg.Upstream.ContextWindow
}

// report says what was found, and what to do where that is not a server that
// answers.
func report(s upstream.Status, cfg config.Config, counts bool, address string, log *zap.Logger) {
	at := zap.String("server", address)
	switch s.State {
	case upstream.Ready:
		fields := []zap.Field{at}
		for _, m := range s.Models {
			fields = append(fields, zap.String("model", m.Name), zap.Int("window_tokens", m.Window))
			break // servers with several models say more than a line can hold
		}
		if len(s.Models) > 1 {
			fields = append(fields, zap.Int("models", len(s.Models)))
		}
		if s.LlamaServer {
			fields = append(fields, zap.Int("slots", s.Slots), zap.String("build", s.Build))
		}
		fields = append(fields, zap.Bool("counts_tokens", counts))
		if model, ok := s.Find(""); ok {
			limits := compaction.Limits{
				Window: model.Window, AtTokens: cfg.Compaction.AtTokens, Fraction: cfg.Compaction.Threshold.Value, Exact: counts,
			}
			if own := configuredWindow(cfg, model.Name, model.Name); own > 0 && (own < model.Window || model.Window == 0) {
				limits.Window = own
			}
			threshold, _ := limits.Threshold()
			fields = append(fields, zap.Int("compacts_at_tokens", threshold))
		}
		log.Info("found the server", fields...)
		if model, ok := s.Find(""); (!ok || model.Window == 0) && cfg.Upstream.ContextWindow == 0 {
			log.Warn("the server does not tell its window: it is learned from the first refusal; set upstream.context_window if the server cuts long prompts instead of refusing them", at)
		}
	case upstream.Loading:
		log.Info("the server is loading its model; requests go through and are answered when it is done", at)
	case upstream.Busy:
		log.Info("the server is busy and did not answer in time; asking again", at)
	case upstream.NeedsKey:
		log.Warn("the server wants a key: set upstream.api_key to learn its window, or upstream.context_window", at)
	case upstream.Foreign:
		log.Warn("what answers is not llama-server and lists no models; check upstream.url, or set upstream.context_window", at)
	default:
		log.Warn("no server answers yet; asking again until one does (upstream.url names it)", at)
	}
}
