package proxy

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap/zapcore"

	"github.com/compactproxy/compactproxy/internal/cachelens"
	"github.com/compactproxy/compactproxy/internal/conversation"
	"github.com/compactproxy/compactproxy/internal/llamasim"
)

// turnStore keeps what is noted of turns, and what is filed.
type turnStore struct {
	nothing
	mu      sync.Mutex
	turns   []conversation.Turn
	filed   []conversation.Filed
	commits int
}

func (k *turnStore) option(t testing.TB) rigOption {
	return func(o *Options) {
		o.Index = newIndex(t, conversation.Options{Store: k, Conversations: 100, Bytes: 64 << 20})
	}
}

func (k *turnStore) Commit(c conversation.Commit) (int64, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.commits++
	if c.Checkpoint == nil {
		return 0, nil
	}
	k.filed = append(k.filed, *c.Checkpoint)
	return int64(len(k.filed)), nil
}

func (k *turnStore) Note(n conversation.Notes) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.turns = append(k.turns, n.Turns...)
	return nil
}

// lens is a proxy before a server with a cache, and what it noted of each turn.
type lens struct {
	*settled
	sim  *llamasim.Server
	kept *turnStore
	seen int
}

func looking(t testing.TB, sim *llamasim.Server, window int, options ...rigOption) *lens {
	t.Helper()
	l := &lens{sim: sim, kept: &turnStore{}}
	l.settled = forecasting(t, sim, window, append([]rigOption{l.kept.option(t)}, options...)...)
	return l
}

// turn posts a body and returns what was noted of it.
func (l *lens) turn(t testing.TB, body []byte) conversation.Turn {
	t.Helper()
	l.ok(t, l.sim, body)
	return l.noted(t)
}

func (l *lens) noted(t testing.TB) conversation.Turn {
	t.Helper()
	l.index.Flush()
	if len(l.kept.turns) != l.seen+1 {
		t.Fatalf("%d turns are noted, want %d", len(l.kept.turns), l.seen+1)
	}
	l.seen++
	return l.kept.turns[l.seen-1]
}

// misses are the counted reasons, and warnings the complaints in the log.
func (l *lens) misses() string {
	var out []string
	for _, reason := range cachelens.Reasons {
		if n := testutil.ToFloat64(l.metrics.CacheMisses.WithLabelValues(string(reason))); n != 0 {
			out = append(out, fmt.Sprint(reason, " ", n))
		}
	}
	return strings.Join(out, ", ")
}

func (l *lens) warnings() int {
	return l.Logs.FilterLevelExact(zapcore.WarnLevel).FilterMessageSnippet("in its cache").Len()
}

// A prompt that extends the last one comes from the cache, and is counted as such.
func TestLens_Quiet(t *testing.T) {
	l := looking(t, okSim(65_536), 65_536)
	h := readsOf(3, 2000)
	last, expected, reused := 0, 0, 0
	for turn := range 6 {
		got := l.turn(t, h.body(plainBody))
		if got.Prompt != promptOf(t, l.sim, h.body(plainBody)) || got.Action != "none" || got.Message != 0 {
			t.Errorf("turn %d: %+v", turn, got)
		}
		if turn == 0 {
			if got.Miss != "first_turn" || got.Cached != 0 || got.Expected != 0 {
				t.Errorf("the first turn: %+v", got)
			}
		} else {
			if got.Miss != "" || got.Expected != last || got.Cached < last-1 || got.Cached > last {
				t.Errorf("turn %d, the last prompt had %d tokens: %+v", turn, last, got)
			}
			expected, reused = expected+last, reused+min(got.Cached, last)
		}
		last = got.Prompt
		h = h.reads(3+turn, 1, 2000)
	}
	if l.misses() != "first_turn 1" || l.warnings() != 0 {
		t.Errorf("misses %s, %d warnings", l.misses(), l.warnings())
	}
	if e, r := testutil.ToFloat64(l.metrics.PrefixExpected), testutil.ToFloat64(l.metrics.PrefixReused); int(e) != expected || int(r) != reused {
		t.Errorf("expected %v and reused %v tokens, want %d and %d", e, r, expected, reused)
	}
}

// A small first turn is no miss.
func TestLens_SmallFirstTurn(t *testing.T) {
	l := looking(t, okSim(65_536), 65_536)
	if got := l.turn(t, readsOf(1, 500).body(plainBody)); got.Miss != "" || l.misses() != "" {
		t.Errorf("%+v, %s", got, l.misses())
	}
}

// What was paid again has a reason, and only a server that lost what it had is
// complained of.
func TestLens_Reasons(t *testing.T) {
	h := readsOf(8, 2000)
	more := h.reads(8, 1, 2000)
	changed := func(list history, i int, old, with string) []byte {
		list = append(history(nil), list...)
		if !strings.Contains(list[i], old) {
			t.Fatalf("message %d has no %q", i, old)
		}
		list[i] = strings.ReplaceAll(list[i], old, with)
		return list.body(plainBody)
	}
	for _, tt := range []struct {
		name     string
		next     []byte
		between  func(*lens)
		miss     string
		message  int // from 1, as the client counts
		warnings int
	}{
		{"the client changed a result", changed(more, 3, "line of file 0", "another file"), nil, "client_changed", 4, 0},
		{"the client changed the task", changed(more, 1, "find the fault", "find another"), nil, "first_turn", 0, 0},
		{"the client changed a late message: little is lost", changed(more, 15, "line of file 6", "another file"), nil, "", 16, 0},
		{"the system message is another", changed(more, 0, "You are", "Today you are"), nil, "system_changed", 0, 0},
		{"the tools are others", bytes.Replace(more.body(plainBody), []byte("read a file"), []byte("read any file"), 1), nil, "tools_changed", 0, 0},
		{"the server forgot", more.body(plainBody), func(l *lens) { l.sim.ForgetCache() }, "server_evicted", 0, 1},
		{"the server forgot, and the client changed something", changed(more, 15, "line of file 6", "another file"), func(l *lens) { l.sim.ForgetCache() }, "client_changed", 16, 0},
		{"another conversation took the only slot", more.body(plainBody), func(l *lens) {
			other := readsOf(9, 2000)
			other[1] = `{"role":"user","content":"Another task."}`
			l.post(t, other.body(""))
			l.index.Flush()
			l.seen++
		}, "server_evicted", 0, 1},
		{"nothing", more.body(plainBody), nil, "", 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sim := llamasim.New(llamasim.Options{Window: 65_536, CachedPrompts: 1})
			l := looking(t, sim, 65_536)
			first := l.turn(t, h.body(plainBody))
			if tt.between != nil {
				tt.between(l)
			}
			got := l.turn(t, tt.next)
			if got.Miss != tt.miss || got.Message != tt.message {
				t.Errorf("miss %q, message %d; %d of %d tokens cached, the last prompt had %d", got.Miss, got.Message, got.Cached, got.Prompt, first.Prompt)
			}
			if n := l.warnings(); n != tt.warnings {
				t.Errorf("%d warnings", n)
			}
			if changed := tt.miss != "" && tt.miss != "server_evicted"; changed && got.Expected != 0 {
				t.Errorf("%d tokens were expected from the cache all the same", got.Expected)
			}
			// The turn after it is quiet again, and known for what it is.
			body, err := extendBody(tt.next)
			if err != nil {
				t.Fatal(err)
			}
			if again := l.turn(t, body); again.Miss != "" || again.Expected != got.Prompt {
				t.Errorf("the turn after it: %+v", again)
			}
		})
	}
}

// extendBody adds a turn to a body of [history.body].
func extendBody(body []byte) ([]byte, error) {
	end := bytes.LastIndex(body, []byte(`]`+readTool))
	if end < 0 {
		end = bytes.LastIndex(body, []byte(`],"tools"`))
	}
	if end < 0 {
		return nil, fmt.Errorf("no end of the list in %.100s", body)
	}
	return []byte(string(body[:end]) + "," + answered + `,{"role":"user","content":"Go on."}` + string(body[end:])), nil
}

// A compaction is why its own turn misses, and the one behind it is quiet.
func TestLens_Compaction(t *testing.T) {
	const window = 16_384
	for _, count := range []bool{false, true} {
		t.Run(fmt.Sprint("counted ", count), func(t *testing.T) {
			options := []rigOption{}
			if count {
				options = append(options, counted)
			}
			l := looking(t, okSim(window), window, options...)
			h := readsOf(1, 3000)
			compactions := 0
			for turn := range 30 {
				got := l.turn(t, h.body(plainBody))
				switch compacted := strings.Contains(got.Action, "passes"); {
				case compacted:
					compactions++
					if got.Miss != "compaction" || got.Expected != 0 {
						t.Errorf("turn %d: %+v", turn, got)
					}
					if got.Client <= got.Prompt {
						t.Errorf("turn %d: the client's own list has %d tokens, what was sent %d", turn, got.Client, got.Prompt)
					}
				case got.Miss != "" && turn > 0:
					t.Errorf("turn %d: %+v", turn, got)
				}
				h = h.reads(1+turn, 1, 3000)
			}
			if compactions < 2 || l.misses() != fmt.Sprint("first_turn 1, compaction ", compactions) || l.warnings() != 0 {
				t.Errorf("%d compactions, misses %s, %d warnings", compactions, l.misses(), l.warnings())
			}
		})
	}
}

// So is a recovery.
func TestLens_Recovery(t *testing.T) {
	sim := okSim(8192)
	l := looking(t, sim, 0) // unknown: only the refusal tells
	h := readsOf(5, 3000)
	l.turn(t, h.body(plainBody))
	got := l.turn(t, h.reads(5, 10, 3000).body(plainBody))
	if got.Action != "recovery" || got.Miss != "compaction" || l.warnings() != 0 {
		t.Errorf("%+v, %d warnings", got, l.warnings())
	}
}

// cacheFigures is what a server says of its cache.
var cacheFigures = regexp.MustCompile(`,"prompt_tokens_details":\{[^}]*\}|,"timings":\{[^}]*\}`)

// A server that never reports a cache figure is never accused, and nothing is
// expected of it.
func TestLens_ServerWithoutFigures(t *testing.T) {
	sim := llamasim.New(llamasim.Options{Window: 65_536, CachedPrompts: 1})
	silent := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		rec := httptest.NewRecorder()
		sim.ServeHTTP(rec, req)
		body := cacheFigures.ReplaceAll(rec.Body.Bytes(), nil)
		if bytes.Contains(body, []byte("cache")) {
			t.Errorf("it does: %s", body)
		}
		w.Header().Set("Content-Type", rec.Header().Get("Content-Type"))
		w.WriteHeader(rec.Code)
		_, _ = w.Write(body)
	})
	kept := &turnStore{}
	l := &lens{sim: sim, kept: kept, settled: forecasting(t, silent, 65_536, kept.option(t))}
	h := readsOf(8, 2000)
	for turn := range 3 {
		sim.ForgetCache()
		if got := l.turn(t, h.body(plainBody)); got.Miss != "" || got.Cached != -1 || got.Expected != 0 || got.Prompt == 0 {
			t.Errorf("turn %d: %+v", turn, got)
		}
		h = h.reads(8+turn, 1, 2000)
	}
	if l.misses() != "" || l.warnings() != 0 || testutil.ToFloat64(l.metrics.PrefixExpected) != 0 {
		t.Errorf("misses %s, %d warnings, %v expected", l.misses(), l.warnings(), testutil.ToFloat64(l.metrics.PrefixExpected))
	}
}

// A thinking template renders a tool loop anew once the user has written: that is the
// template, and not the server.
func TestLens_Template(t *testing.T) {
	sim := llamasim.New(llamasim.Options{Window: 65_536, Template: llamasim.TemplateThinking, CachedPrompts: 1})
	l := looking(t, sim, 65_536)
	h := readsOf(1, 100)
	for i := range 8 {
		h = h.and(
			fmt.Sprintf(`{"role":"assistant","content":null,"reasoning_content":%s,"tool_calls":[{"id":"t%d","type":"function","function":{"name":"read","arguments":"{\"path\":\"/t%d\"}"}}]}`, jsonText(strings.Repeat("let me think. ", 40)), i, i),
			fmt.Sprintf(`{"role":"tool","tool_call_id":"t%d","content":%s}`, i, jsonText(strings.Repeat("some text ", 200))))
	}
	l.turn(t, h.body(plainBody))
	got := l.turn(t, h.and(answered, `{"role":"user","content":"And now?"}`).body(plainBody))
	if got.Miss != "template" {
		t.Errorf("%+v", got)
	}
}

// A retry of the same prompt is expected from the cache but for its last token.
func TestLens_TheSameAgain(t *testing.T) {
	l := looking(t, okSim(65_536), 65_536)
	body := readsOf(4, 2000).body(plainBody)
	first := l.turn(t, body)
	if got := l.turn(t, body); got.Expected != first.Prompt-1 || got.Cached != first.Prompt-1 || got.Miss != "" {
		t.Errorf("%+v", got)
	}
}

// A file that is read again after a compaction took it is counted, once, and in the
// conversation's totals.
func TestLens_Rereads(t *testing.T) {
	const window = 16_384
	l := looking(t, okSim(window), window, counted)
	h := readsOf(14, 3500)
	if got := l.turn(t, h.body(plainBody)); !strings.Contains(got.Action, "passes") {
		t.Fatalf("%+v", got)
	}
	rereads := func() int { return int(testutil.ToFloat64(l.metrics.Rereads)) }
	for _, step := range []struct {
		name string
		list history
		want int
	}{
		{"a new file", h.reads(20, 1, 500), 0},
		{"one that went", h.reads(20, 1, 500).reads(2, 1, 500), 1},
		{"nothing new", h.reads(20, 1, 500).reads(2, 1, 500).and(answered, `{"role":"user","content":"Go on."}`), 1},
		{"it is visible now", h.reads(20, 1, 500).reads(2, 1, 500).and(answered, `{"role":"user","content":"Go on."}`).reads(2, 1, 500), 1},
		{"another one that went", h.reads(20, 1, 500).reads(2, 1, 500).and(answered, `{"role":"user","content":"Go on."}`).reads(2, 2, 500), 2},
	} {
		if got := l.turn(t, step.list.body(plainBody)); strings.Contains(got.Action, "passes") {
			t.Fatalf("%s: %+v", step.name, got)
		}
		if got := rereads(); got != step.want {
			t.Errorf("%s: %d rereads in all, want %d", step.name, got, step.want)
		}
	}
}
