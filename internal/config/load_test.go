package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/compactproxy/compactproxy/internal/config"
)

func load(t *testing.T, source config.Source) config.Config {
	t.Helper()
	cfg, err := config.Load(source)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func file(text string) config.Source { return config.Source{Path: "c.yaml", File: []byte(text)} }

func TestLoad_NothingIsTheDefault(t *testing.T) {
	for name, source := range map[string]config.Source{
		"no file":               {},
		"empty file":            {File: []byte{}},
		"comments only":         file("# nothing\n\n# here\n"),
		"document marker":       file("---\n"),
		"null":                  file("~\n"),
		"sections commented":    file("upstream:\n  # url: x\ncompaction:\n  summary:\n"),
		"empty variables":       {Env: []string{"COMPACTPROXY_LISTEN=", "COMPACTPROXY_API_KEYS=", "COMPACTPROXY_CONFIG="}},
		"other variables":       {Env: []string{"PATH=/bin", "LISTEN=x", "compactproxy_listen=x", "=C:=x", "nothing"}},
		"service links":         {Env: []string{"COMPACTPROXY_PORT=tcp://10.0.0.1:8090", "COMPACTPROXY_SERVICE_HOST=10.0.0.1", "COMPACTPROXY_SERVICE_PORT_HTTP=1", "COMPACTPROXY_PORT_8090_TCP_ADDR=10.0.0.1", "COMPACTPROXY_ADMIN_SERVICE_HOST=10.0.0.1", "COMPACTPROXY_ADMIN_PORT=tcp://10.0.0.1:8091"}},
		"variable for another":  {Env: []string{"COMPACTPROXY_IMAGE_REGISTRY_MIRROR=x"}},
		"path of file in env":   {Env: []string{"COMPACTPROXY_CONFIG=c.yaml"}},
		"byte order mark":       file("\ufeff# nothing\n"),
		"Windows line endings":  file("pin: true\r\nlog:\r\n  level: info\r\n"),
		"JSON is YAML":          file(`{"pin": true, "log": {"level": "info"}}`),
		"explicit empty lists":  file("models: []\napi_keys: []\ncompaction: {tools: []}\n"),
		"empty flow section":    file("log: {}\n"),
		"end of document":       file("pin: true\n...\n"),
		"flag at default":       {Flags: []config.Flag{{Name: "--mode", Key: "compaction.mode", Value: "on"}}},
		"anchors of plain data": file("log: {level: &a info}\npairing: repair\n"),
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(config.Default(), load(t, source)); diff != "" {
				t.Errorf("(-default +got):\n%s", diff)
			}
		})
	}
}

// everyKey sets every key to something else than its default.
const everyKey = `
listen: :9090
admin: 0.0.0.0:9091
admin_token: token
api_keys: [one, two]
upstream:
  url: https://llama.example/gpu/v1/
  api_key: key
  timeout: 10m
  context_window: 65_536
  send_conversation: true
models:
  - name: Qwen3.6-27B-Fable
    context_window: 32768
  - {name: org/Model.X, at_tokens: 20000}
limits: {body: 1.5GiB, conversations: 5}
shutdown: 0s
image_tokens: 1024
keepalive: 0
pin: false
pairing: reject
compaction:
  mode: observe
  threshold: 0.8
  at_tokens: 30000
  settle: 1
  keep_recent: 5
  tail_min: 0
  tail_max: 1
  thin_chars: 100
  predictive: false
  exact_count: never
  carried_state: false
  loop_guard: strict
  compact_tool: true
  tools:
    - {name: fs__read, kind: read, path: [path, file.path], range: [offset], errors: ["cannot "], refusals: [Denied]}
    - {name: sh, kind: shell, command: cmd}
    - {name: web, kind: untrusted}
    - {name: Bash, command: script, errors: ["E:"]}
  summary: {enabled: false, style: prose, validate: false, target_tokens: 700, max_tokens: 4096, timeout: 90s, model: small}
state: {path: /srv/state, archive: false, retention: 24h, max_bytes: 500MB}
log: {level: debug, format: json}
`

func TestLoad_EveryKey(t *testing.T) {
	got := load(t, file(everyKey))
	want := config.Config{
		Listen: ":9090", Admin: "0.0.0.0:9091", AdminToken: "token", APIKeys: []config.Secret{"one", "two"},
		Upstream: config.Upstream{
			URL: "https://llama.example/gpu", APIKey: "key", Timeout: 10 * time.Minute, ContextWindow: 65536, SendConversation: true,
		},
		Models: []config.Model{
			{Name: "Qwen3.6-27B-Fable", ContextWindow: 32768},
			{Name: "org/Model.X", AtTokens: 20000},
		},
		Limits:      config.Limits{Body: 3 << 29, Conversations: 5},
		ImageTokens: 1024,
		Pairing:     config.PairingReject,
		Compaction: config.Compaction{
			Mode: config.ModeObserve, Threshold: config.Exactly(0.8), AtTokens: 30000, Settle: config.Exactly(1), KeepRecent: 5,
			TailMax: 1, ThinChars: 100, ExactCount: config.ExactCountNever, LoopGuard: config.LoopGuardStrict, CompactTool: true,
			Tools: []config.Tool{
				{Name: "fs__read", Kind: config.ToolRead, Path: []string{"path", "file.path"}, Range: []string{"offset"}, Errors: []string{"cannot "}, Refusals: []string{"Denied"}},
				{Name: "sh", Kind: config.ToolShell, Command: "cmd"},
				{Name: "web", Kind: config.ToolUntrusted},
				{Name: "Bash", Command: "script", Errors: []string{"E:"}},
			},
			Summary: config.SummaryConfig{Style: config.SummaryProse, TargetTokens: 700, MaxTokens: 4096, Timeout: 90 * time.Second, Model: "small"},
		},
		State: config.State{Path: "/srv/state", Retention: 24 * time.Hour, MaxBytes: 500e6},
		Log:   config.Log{Level: config.LogDebug, Format: config.LogJSON},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLoad_Precedence(t *testing.T) {
	const yaml = "listen: 127.0.0.1:1\nkeepalive: 1s\ncompaction: {mode: observe, tail_min: 0.01}\napi_keys: [file-1, file-2, file-3]\n"
	env := []string{
		"COMPACTPROXY_LISTEN=127.0.0.1:2", "COMPACTPROXY_COMPACTION_MODE=off", "COMPACTPROXY_API_KEYS=env-1, env-2",
	}
	flags := []config.Flag{{Name: "--listen", Key: "listen", Value: "127.0.0.1:3"}}
	type values struct {
		Listen    string
		Mode      config.Mode
		Keepalive time.Duration
		APIKeys   []config.Secret
	}
	tests := []struct {
		name   string
		source config.Source
		want   values
	}{
		{"default", config.Source{}, values{"127.0.0.1:8090", "on", time.Minute, nil}},
		{"file over default", file(yaml), values{"127.0.0.1:1", "observe", time.Second, []config.Secret{"file-1", "file-2", "file-3"}}},
		{"environment over default", config.Source{Env: env}, values{"127.0.0.1:2", "off", time.Minute, []config.Secret{"env-1", "env-2"}}},
		{"environment over file", config.Source{File: []byte(yaml), Env: env}, values{"127.0.0.1:2", "off", time.Second, []config.Secret{"env-1", "env-2"}}},
		{"flag over default", config.Source{Flags: flags}, values{"127.0.0.1:3", "on", time.Minute, nil}},
		{"flag over file", config.Source{File: []byte(yaml), Flags: flags}, values{"127.0.0.1:3", "observe", time.Second, []config.Secret{"file-1", "file-2", "file-3"}}},
		{"flag over environment over file", config.Source{File: []byte(yaml), Env: env, Flags: flags}, values{"127.0.0.1:3", "off", time.Second, []config.Secret{"env-1", "env-2"}}},
		{"last of two variables", config.Source{Env: []string{"COMPACTPROXY_LISTEN=:5", "COMPACTPROXY_LISTEN=:6"}}, values{":6", "on", time.Minute, nil}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := load(t, tt.source)
			if diff := cmp.Diff(tt.want, values{cfg.Listen, cfg.Compaction.Mode, cfg.Keepalive, cfg.APIKeys}); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Every key that is not a list of entries can be set from the environment, to the value that it has in the file.
func TestLoad_EnvironmentSetsEveryKey(t *testing.T) {
	for _, key := range config.Keys() {
		if key.Env == "" {
			continue
		}
		text := map[string]string{
			"secret":       "s3cret",
			"list":         "one,two",
			"duration":     "7m",
			"size":         "7MiB",
			"whole number": "7",
			"number":       "0.125",
			"text":         "text",
		}[key.Kind]
		switch {
		case key.Kind == "auto | number":
			text = "0.5"
		case strings.Contains(key.Kind, " | "):
			options := strings.Split(key.Kind, " | ")
			if text = options[0]; text == key.Default {
				text = options[1]
			}
		case key.Name == "listen" || key.Name == "admin":
			text = "127.0.0.1:7"
		case key.Name == "upstream.url":
			text = "http://host:7"
		}
		inFile := text
		if key.Kind == "list" {
			inFile = "[" + text + "]"
		}
		for path := strings.Split(key.Name, "."); len(path) > 0; path = path[:len(path)-1] {
			inFile = "{" + path[len(path)-1] + ": " + inFile + "}"
		}
		fromFile, errFile := config.Load(file(inFile))
		fromEnv, errEnv := config.Load(config.Source{Env: []string{key.Env + "=" + text}})
		if errFile != nil || errEnv != nil {
			t.Errorf("%s: %v, %v", key.Name, errFile, errEnv)
			continue
		}
		if diff := cmp.Diff(fromFile, fromEnv); diff != "" {
			t.Errorf("%s (-file +environment):\n%s", key.Name, diff)
		}
		if cmp.Equal(fromEnv, config.Default()) {
			t.Errorf("%s: %q sets nothing", key.Name, text)
		}
	}
}

func TestLoad_InvalidEnvironmentAndFlags(t *testing.T) {
	tests := []struct {
		name   string
		source config.Source
		want   []string
	}{
		{
			name:   "duration without a unit",
			source: config.Source{Env: []string{"COMPACTPROXY_KEEPALIVE=60"}},
			want:   []string{`keepalive: needs a unit (got 60 from COMPACTPROXY_KEEPALIVE); write 60s or 60m`},
		},
		{
			name:   "value of a variable that is checked later",
			source: config.Source{Env: []string{"COMPACTPROXY_COMPACTION_MODE=of"}},
			want:   []string{`compaction.mode: must be on, observe or off (got "of" from COMPACTPROXY_COMPACTION_MODE); did you mean off?`},
		},
		{
			name:   "flag hides what the file says",
			source: config.Source{Path: "c.yaml", File: []byte("listen: :1\n"), Flags: []config.Flag{{Name: "--listen", Key: "listen", Value: ""}}},
			want:   []string{`listen: must not be empty (got "" from --listen); write it like 127.0.0.1:8090, or :8090 for every interface`},
		},
		{
			name:   "secrets are masked",
			source: config.Source{Env: []string{"COMPACTPROXY_ADMIN_TOKEN=canary\n", "COMPACTPROXY_API_KEYS=ok,canary key", "COMPACTPROXY_UPSTREAM_API_KEY=canary\xff"}},
			want: []string{
				`upstream.api_key: is not UTF-8 (got ******** from COMPACTPROXY_UPSTREAM_API_KEY)`,
				`admin_token: holds a space, a line break or a character that is not ASCII, which a header cannot carry (got ******** from COMPACTPROXY_ADMIN_TOKEN); delete it; a secret read from a file often ends in a line break`,
				`api_keys[1]: holds a space, a line break or a character that is not ASCII, which a header cannot carry (got ******** from COMPACTPROXY_API_KEYS); delete it; a secret read from a file often ends in a line break`,
			},
		},
		{
			name:   "comma at the end",
			source: config.Source{Path: "c.yaml", File: []byte("api_keys: [a,\n b]\n"), Env: []string{"COMPACTPROXY_API_KEYS=a,"}},
			want:   []string{`api_keys[1]: must not be empty (got "" from COMPACTPROXY_API_KEYS); give it a key, or delete it: with api_keys: [] every client is let in`},
		},
		{
			name:   "list of entries",
			source: config.Source{Env: []string{"COMPACTPROXY_MODELS=qwen", "COMPACTPROXY_COMPACTION_TOOLS=bash"}},
			want: []string{
				`models: cannot be set here (from COMPACTPROXY_MODELS); set models in the file`,
				`compaction.tools: cannot be set here (from COMPACTPROXY_COMPACTION_TOOLS); set compaction.tools in the file`,
			},
		},
		{
			name:   "misspelled variables",
			source: config.Source{Env: []string{"COMPACTPROXY_UPSTREAM=http://x", "COMPACTPROXY_ADMINTOKEN=canary", "COMPACTPROXY_CONFG=c.yaml"}},
			want: []string{
				`COMPACTPROXY_UPSTREAM: no such variable; did you mean COMPACTPROXY_UPSTREAM_URL?`,
				`COMPACTPROXY_ADMINTOKEN: no such variable; did you mean COMPACTPROXY_ADMIN_TOKEN?`,
				`COMPACTPROXY_CONFG: no such variable; did you mean COMPACTPROXY_CONFIG?`,
			},
		},
		{
			name: "every kind of value",
			source: config.Source{Env: []string{
				"COMPACTPROXY_PIN=yes", "COMPACTPROXY_IMAGE_TOKENS=1.5", "COMPACTPROXY_LIMITS_CONVERSATIONS=99999999999999999999",
				"COMPACTPROXY_LIMITS_BODY=256", "COMPACTPROXY_COMPACTION_TAIL_MIN=10%", "COMPACTPROXY_COMPACTION_THRESHOLD=Auto",
				"COMPACTPROXY_STATE_RETENTION=7d", "COMPACTPROXY_STATE_PATH=a\xffb",
			}},
			want: []string{
				`limits.body: needs a unit (got 256 from COMPACTPROXY_LIMITS_BODY); write 256MiB or 256B`,
				`limits.conversations: is out of range (got 99999999999999999999 from COMPACTPROXY_LIMITS_CONVERSATIONS)`,
				`image_tokens: must be a whole number (got 1.5 from COMPACTPROXY_IMAGE_TOKENS); write it in digits, as in 32768`,
				`pin: must be true or false (got yes from COMPACTPROXY_PIN)`,
				`compaction.threshold: must be auto or a number (got Auto from COMPACTPROXY_COMPACTION_THRESHOLD); write auto, or a fraction such as 0.8`,
				`compaction.tail_min: must be a number (got 10% from COMPACTPROXY_COMPACTION_TAIL_MIN); write it like 0.15`,
				`state.path: is not UTF-8 (got "a\xffb" from COMPACTPROXY_STATE_PATH)`,
				`state.retention: is not a duration (got 7d from COMPACTPROXY_STATE_RETENTION); write it like 500ms, 30s, 15m or 1h30m; the largest unit is h, as in 168h for a week`,
			},
		},
		{
			name:   "all sources at once",
			source: config.Source{Path: "c.yaml", File: []byte("log: {level: loud}\nlistne: x\n"), Env: []string{"COMPACTPROXY_PAIRING=fix"}, Flags: []config.Flag{{Name: "--mode", Key: "compaction.mode", Value: "maybe"}}},
			want: []string{
				`log.level: must be debug, info, warn or error (got "loud" at c.yaml:1)`,
				`listne: unknown key (at c.yaml:2); did you mean listen?`,
				`pairing: must be repair, reject or off (got "fix" from COMPACTPROXY_PAIRING)`,
				`compaction.mode: must be on, observe or off (got "maybe" from --mode)`,
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := config.Load(tt.source)
			if err == nil {
				t.Fatal("no error")
			}
			if diff := cmp.Diff(tt.want, strings.Split(err.Error(), "\n")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A flag for a key that does not exist is a mistake of the program, not of its user.
func TestLoad_FlagForNoKey(t *testing.T) {
	_, err := config.Load(config.Source{Flags: []config.Flag{{Name: "--x", Key: "upstream", Value: "y"}}})
	var problems config.Problems
	if err == nil || errors.As(err, &problems) {
		t.Errorf("got %v", err)
	}
}

// What viper does to a file when it is left to itself (each was measured), and what must come of it here.
func TestLoad_ViperBites(t *testing.T) {
	t.Run("names with dots and capitals", func(t *testing.T) {
		cfg := load(t, file("models:\n  - name: Qwen3.6-27B-Fable\n    context_window: 4096\n"))
		want := []config.Model{{Name: "Qwen3.6-27B-Fable", ContextWindow: 4096}}
		if diff := cmp.Diff(want, cfg.Models); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("a section without a value leaves its defaults alone", func(t *testing.T) {
		cfg := load(t, file("upstream:\n"))
		if diff := cmp.Diff(config.Default(), cfg); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("one key of a section leaves the others alone", func(t *testing.T) {
		cfg := load(t, file("compaction: {summary: {model: Small.Model}}\n"))
		want := config.Default()
		want.Compaction.Summary.Model = "Small.Model"
		if diff := cmp.Diff(want, cfg); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("an environment variable for a key that is nowhere else", func(t *testing.T) {
		cfg := load(t, config.Source{Env: []string{"COMPACTPROXY_COMPACTION_SUMMARY_MODEL=Small.Model"}})
		if got := cfg.Compaction.Summary.Model; got != "Small.Model" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("on and off stay words", func(t *testing.T) {
		cfg := load(t, file("pairing: off\ncompaction: {mode: off, loop_guard: on}\n"))
		if cfg.Pairing != "off" || cfg.Compaction.Mode != "off" || cfg.Compaction.LoopGuard != "on" {
			t.Errorf("got %q %q %q", cfg.Pairing, cfg.Compaction.Mode, cfg.Compaction.LoopGuard)
		}
	})
	t.Run("two loads share nothing", func(t *testing.T) {
		first := load(t, file("api_keys: [a, b]\nmodels: [{name: m}]\n"))
		second := load(t, file("api_keys: [c]\n"))
		if len(first.APIKeys) != 2 || len(second.APIKeys) != 1 || second.Models != nil {
			t.Errorf("got %v and %v", first.APIKeys, second)
		}
	})
	// Refused, with the file and the message in testdata/invalid: a bare number as duration (keepalive-unit), a
	// fraction as whole number (image-tokens-fraction), a number in quotes (several, threshold-quoted), a
	// misspelled key (unknown-key), a key in other letters beside itself (unknown-key-case), a key given
	// twice (key-twice), a map of models by name (models-no-list).
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "c.yaml")
	if err := os.WriteFile(path, []byte("pin: false\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(dir, "empty.yaml")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "missing.yaml")

	tests := []struct {
		name, path string
		env        []string
		want       string // path in the source
		err        string // with DIR for the folder
	}{
		{name: "no file"},
		{name: "flag", path: path, want: path},
		{name: "environment", env: []string{"COMPACTPROXY_CONFIG=" + path}, want: path},
		{name: "flag over environment", path: path, env: []string{"COMPACTPROXY_CONFIG=" + missing}, want: path},
		{name: "empty file", path: empty, want: empty},
		{name: "missing", path: missing, err: "--config: no such file (got DIR/missing.yaml); check the path, or leave it out: no file is needed"},
		{name: "missing in environment", env: []string{"COMPACTPROXY_CONFIG=" + missing}, err: "COMPACTPROXY_CONFIG: no such file (got DIR/missing.yaml); check the path, or leave it out: no file is needed"},
		{name: "odd path", path: "a\nb", err: `--config: no such file (got "a\nb"); check the path, or leave it out: no file is needed`},
		{name: "folder", path: dir, err: "--config: cannot read the file: is a directory (got DIR); check its path and permissions"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			source, err := config.Open(tt.path, tt.env, nil)
			if tt.err != "" {
				if err == nil {
					t.Fatal("no error")
				}
				want := strings.ReplaceAll(tt.err, "DIR", dir)
				if err.Error() != want {
					t.Errorf("\n got %v\nwant %s", err, want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if source.Path != tt.want || (source.File != nil) != (tt.want != "") {
				t.Errorf("got path %q, file %q", source.Path, source.File)
			}
		})
	}
}

func TestProblems_Are(t *testing.T) {
	_, err := config.Load(file("pin: maybe\nkeepalive: 60\n"))
	var problems config.Problems
	if !errors.As(err, &problems) || len(problems) != 2 {
		t.Fatalf("got %#v", err)
	}
	var problem *config.Problem
	if !errors.As(err, &problem) || problem.Key != "pin" || problem.Origin != "at c.yaml:1" {
		t.Errorf("got %+v", problem)
	}
	cfg := config.Default()
	cfg.Limits.Conversations = 0
	cfg.Shutdown = -1
	want := "limits.conversations: must be above 0 (got 0); the default is 10000\nshutdown: must not be negative (got -1ns); 0s stops at once"
	if err := cfg.Validate(); err == nil || err.Error() != want {
		t.Errorf("Validate: got %v", err)
	}
}
