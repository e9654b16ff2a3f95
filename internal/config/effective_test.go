package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/compactproxy/compactproxy/internal/config"
)

func TestEffective_RoundTrip(t *testing.T) {
	changed := config.Default()
	changed.Upstream.URL = "https://host/team@home"
	changed.Models = []config.Model{{Name: "4.5"}, {Name: "yes", AtTokens: 7}, {Name: "Qwen3.6: #1 'x' \"y\" é", ContextWindow: 1}}
	changed.Keepalive = 90*time.Second + 5*time.Millisecond
	changed.Shutdown = 0
	changed.Limits.Body = 1234567
	changed.Compaction.Threshold = config.Exactly(0.1 + 0.2)
	changed.Compaction.Settle = config.Exactly(0)
	changed.Compaction.TailMin = 1e-9
	changed.Compaction.Mode = config.ModeOff
	changed.Compaction.Tools = []config.Tool{
		{Name: "~", Errors: []string{"a\nb", " - x", "\ttab", "null", "~", "🛑", "a\u2028b\u0085c", "trailing \n"}, Refusals: []string{"no: never", "2026-01-01", "0x10", "<<"}},
		{Name: "r", Kind: config.ToolRead, Path: []string{"files[]: path"}, Range: []string{"on"}},
	}
	changed.State.Path = "/srv/a b: c"
	for name, cfg := range map[string]config.Config{"default": config.Default(), "changed": changed} {
		t.Run(name, func(t *testing.T) {
			if err := cfg.Validate(); err != nil {
				t.Fatal(err)
			}
			text := config.Effective(cfg)
			got, err := config.Load(config.Source{Path: "effective.yaml", File: text})
			if err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			if diff := cmp.Diff(cfg, got); diff != "" {
				t.Errorf("(-want +got):\n%s\n%s", diff, text)
			}
		})
	}
}

func TestEffective_Default(t *testing.T) {
	const want = `listen: 127.0.0.1:8090
admin: 127.0.0.1:8091
admin_token: ""
api_keys: []
upstream:
  url: http://127.0.0.1:8080
  api_key: ""
  timeout: 0s
  context_window: 0
  send_conversation: false
models: []
limits:
  body: 256MiB
  conversations: 10000
shutdown: 30s
image_tokens: 0
keepalive: 1m
pin: true
pairing: repair
compaction:
  mode: on
  threshold: auto
  at_tokens: 0
  settle: auto
  keep_recent: 3
  tail_min: 0.1
  tail_max: 0.15
  thin_chars: 240
  predictive: true
  exact_count: auto
  carried_state: true
  loop_guard: on
  compact_tool: false
  tools: []
  summary:
    enabled: true
    style: auto
    validate: true
    target_tokens: 0
    max_tokens: 8192
    timeout: 15m
    model: ""
state:
  path: ""
  archive: true
  retention: 168h
  max_bytes: 2GiB
log:
  level: info
  format: console
`
	if diff := cmp.Diff(want, string(config.Effective(config.Default()))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A masked secret does not become the secret when the effective configuration is used as a file.
func TestEffective_MaskIsRefused(t *testing.T) {
	cfg := config.Default()
	cfg.AdminToken, cfg.Upstream.APIKey = "canary", "canary"
	cfg.APIKeys = []config.Secret{"canary"}
	text := config.Effective(cfg)
	if strings.Contains(string(text), "canary") {
		t.Fatalf("a secret is shown:\n%s", text)
	}
	_, err := config.Load(config.Source{File: text})
	if err == nil || strings.Count(err.Error(), "is the mask that stands for a secret") != 3 {
		t.Errorf("got %v", err)
	}
}
