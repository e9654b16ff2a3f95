package config_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/compactproxy/compactproxy/internal/config"
)

func TestDefault_IsValid(t *testing.T) {
	if err := config.Default().Validate(); err != nil {
		t.Error(err)
	}
}

// The keys of the design, in its order. A key that is added, renamed or dropped has to be so here too.
const designKeys = `listen admin admin_token api_keys
upstream.url upstream.api_key upstream.timeout upstream.context_window upstream.send_conversation
models models[].name models[].context_window models[].at_tokens
limits.body limits.conversations shutdown image_tokens keepalive pin pairing
compaction.mode compaction.threshold compaction.at_tokens compaction.settle compaction.keep_recent
compaction.tail_min compaction.tail_max compaction.thin_chars compaction.predictive compaction.exact_count
compaction.carried_state compaction.loop_guard compaction.compact_tool
compaction.tools compaction.tools[].name compaction.tools[].kind compaction.tools[].path compaction.tools[].range
compaction.tools[].command compaction.tools[].errors compaction.tools[].refusals
compaction.summary.enabled compaction.summary.style compaction.summary.validate compaction.summary.target_tokens
compaction.summary.max_tokens compaction.summary.timeout compaction.summary.model
state.path state.archive state.retention state.max_bytes
log.level log.format`

func TestKeys(t *testing.T) {
	// viper lower-cases keys and splits them at dots, so a key has neither in its own name
	name := regexp.MustCompile(`^[a-z][a-z_]*(\[\])?(\.[a-z][a-z_]*(\[\])?)*$`)
	doc := regexp.MustCompile(`^[A-Z].*\.$`)
	var names []string
	env := map[string]string{config.EnvFile: "the file"}
	for _, key := range config.Keys() {
		names = append(names, key.Name)
		if !name.MatchString(key.Name) {
			t.Errorf("%s: not a name", key.Name)
		}
		if !doc.MatchString(key.Doc) {
			t.Errorf("%s: %q is not a sentence", key.Name, key.Doc)
		}
		if other, taken := env[key.Env]; taken && key.Env != "" {
			t.Errorf("%s: %s is %s already", key.Name, key.Env, other)
		}
		env[key.Env] = key.Name
	}
	if got, want := strings.Join(names, " "), strings.Join(strings.Fields(designKeys), " "); got != want {
		t.Errorf("keys:\n got %s\nwant %s", got, want)
	}
}

func TestLookup(t *testing.T) {
	got, ok := config.Lookup("compaction.summary.timeout")
	want := config.Key{
		Name:    "compaction.summary.timeout",
		Kind:    "duration",
		Default: "15m",
		Env:     "COMPACTPROXY_COMPACTION_SUMMARY_TIMEOUT",
		Doc:     "Longest time for one summary, from its request to its last token.",
	}
	if !ok || got != want {
		t.Errorf("got %+v, %v\nwant %+v", got, ok, want)
	}
	if _, ok := config.Lookup("compaction.summary"); ok {
		t.Error("a section is not a key")
	}
}

func TestLoopback(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1:1":            true,
		"127.8.9.1:1":            true,
		"[::1]:1":                true,
		"[::ffff:127.0.0.1]:1":   true,
		"localhost:1":            true,
		"LOCALHOST:1":            true,
		":1":                     false,
		"0.0.0.0:1":              false,
		"[::]:1":                 false,
		"192.168.1.5:1":          false,
		"localhost.example.com:": false,
		"127.0.0.1":              false,
		"":                       false,
	} {
		if got := config.Loopback(addr); got != want {
			t.Errorf("%q: got %v", addr, got)
		}
	}
}

func TestUpstream_Root(t *testing.T) {
	for raw, want := range map[string]string{
		"http://127.0.0.1:8080":         "http://127.0.0.1:8080",
		"http://127.0.0.1:8080/":        "http://127.0.0.1:8080",
		"http://127.0.0.1:8080/v1":      "http://127.0.0.1:8080",
		"http://127.0.0.1:8080/v1/":     "http://127.0.0.1:8080",
		"http://127.0.0.1:8080//v1//":   "http://127.0.0.1:8080",
		"HTTPS://Host/llama/v1":         "https://Host/llama",
		"https://host/llama":            "https://host/llama",
		"https://host/v1/llama":         "https://host/v1/llama",
		"https://host/av1":              "https://host/av1",
		"https://host/a%2Fb/v1/":        "https://host/a%2Fb",
		"https://host/team@home/v1":     "https://host/team@home",
		"http://[::1]:8080/v1":          "http://[::1]:8080",
		"http://llama_server:8080/v1":   "http://llama_server:8080",
		"https://host/chat/completions": "",
		"https://user@host/v1":          "",
		"":                              "",
	} {
		root, err := config.Upstream{URL: raw}.Root()
		switch {
		case want == "" && err == nil:
			t.Errorf("%q: got %s, want an error", raw, root)
		case want != "" && err != nil:
			t.Errorf("%q: %v", raw, err)
		case want != "" && root.String() != want:
			t.Errorf("%q: got %s, want %s", raw, root, want)
		}
	}
}

func TestNearest(t *testing.T) {
	candidates := []string{"listen", "admin", "admin_token", "keepalive", "pin", "log"}
	for word, want := range map[string]string{
		"listne":     "listen",
		"Listen":     "listen",
		"admintoken": "admin_token",
		"admin-tokn": "admin_token",
		"keep_alive": "keepalive",
		"lgo":        "log",
		"admi":       "admin",
		"pi":         "pin",
		"":           "",
		"x":          "",
		"upstream":   "",
	} {
		if got := config.Nearest(word, candidates); got != want {
			t.Errorf("%q: got %q, want %q", word, got, want)
		}
	}
}
