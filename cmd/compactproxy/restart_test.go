package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/llamatest"
	"github.com/compactproxy/compactproxy/internal/recording"
	"github.com/compactproxy/compactproxy/internal/tinymodel"
)

// A session that is continued after a restart of the proxy keeps what the server
// has cached of it: the same bytes go out. Before a real llama-server, which is
// not restarted.
func TestRestart_RealServerKeepsItsCache(t *testing.T) {
	const window = 16384
	server := llamatest.Options{Context: window, Slots: 1, Model: tinymodel.Options{Arch: tinymodel.Gemma3}}.Start(t)
	session, err := recording.Load("ledger")
	if err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	keep := func(c *config.Config) { c.State.Path = state }
	compacted, last := 0, 0
	a, _ := startApp(t, server.URL, keep)
	for turn := range 24 {
		restarted := turn > 4 && turn%5 == 0
		if restarted {
			a.Close()
			a, _ = startApp(t, server.URL, keep)
			if _, err := a.tracker.First(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		action, prompt, cached := playTurn(t, a.base(), session.Request(turn, recording.Options{Stream: true, IncludeUsage: true, MaxTokens: 4}))
		isCompaction := func(a string) bool { return a == "passes" || a == "summary" || a == "recovery" }
		switch {
		case slices.ContainsFunc(action, isCompaction):
			compacted++
		case last > 0 && cached < last-8: // the answer that was played is not the one that the model gave
			t.Errorf("turn %d (restarted: %v): %d tokens from cache, the last prompt had %d", turn+1, restarted, cached, last)
		}
		if restarted {
			t.Logf("turn %d, after a restart: %d prompt tokens, %d from cache, %d in the last prompt (%s)", turn+1, prompt, cached, last, strings.Join(action, ", "))
			if compacted > 0 && !slices.Contains(action, "replay") && !slices.ContainsFunc(action, isCompaction) {
				t.Errorf("turn %d: nothing was replayed after a restart: %q", turn+1, action)
			}
		}
		last = prompt
	}
	if compacted == 0 {
		t.Error("the session was never compacted: it shows nothing")
	}
}

// playTurn sends a request and returns what the proxy did and what the server
// counted.
func playTurn(t *testing.T, base string, body []byte) (action []string, prompt, cached int) {
	t.Helper()
	res, err := http.Post(base+"/chat/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Fatalf("status %d", res.StatusCode)
	}
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var chunk struct {
			Usage *struct {
				Prompt  int `json:"prompt_tokens"`
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			} `json:"usage"`
		}
		payload, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if ok && json.Unmarshal(payload, &chunk) == nil && chunk.Usage != nil {
			prompt, cached = chunk.Usage.Prompt, chunk.Usage.Details.Cached
		}
	}
	return strings.Split(res.Header.Get("X-Compactproxy-Action"), ", "), prompt, cached
}
