package proxy

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/conversation"
	"github.com/compactproxy/compactproxy/internal/corpus"
	"github.com/compactproxy/compactproxy/internal/llamasim"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// captured are the chat bodies that an agent sent, in order.
func captured(t *testing.T, name string) [][]byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(corpus.Path(t, "clients"), name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Requests []struct {
			Path string          `json:"path"`
			Body json.RawMessage `json:"body"`
		} `json:"requests"`
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	var bodies [][]byte
	for _, r := range file.Requests {
		if bytes.Contains(r.Body, []byte(`"messages"`)) {
			bodies = append(bodies, r.Body)
		}
	}
	if len(bodies) == 0 {
		t.Fatalf("%s holds no chat request", name)
	}
	return bodies
}

// forwardedFor plays captured bodies and returns what was sent for each, with the
// answers' action.
func forwardedFor(t *testing.T, r *rig, sim *llamasim.Server, bodies [][]byte) (sent [][]byte, actions []string) {
	t.Helper()
	for i, body := range bodies {
		sim.ForgetRequests()
		res, answer := r.post(t, body)
		if res.StatusCode != http.StatusOK {
			t.Fatalf("request %d: %d %.200s", i, res.StatusCode, answer)
		}
		all := sim.Requests()
		sent = append(sent, all[len(all)-1].Body)
		actions = append(actions, res.Header.Get(headerAction))
	}
	return sent, actions
}

// prefixBreaks counts the requests of one tool list whose messages do not extend the
// ones before.
func prefixBreaks(t *testing.T, bodies [][]byte) int {
	t.Helper()
	n := 0
	var last [][]byte
	for _, body := range bodies {
		list := rawsOf(forwarded(t, body))
		if !extends(list, last) {
			n++
		}
		last = list
	}
	return n
}

// qwen-code takes the date out of the last user message on each turn; what is
// forwarded stays as it was. continue never sends reasoning back.
func TestPin_CapturedSequences(t *testing.T) {
	for _, tt := range []struct {
		name   string
		client int // requests with which the client breaks its own prefix
	}{
		{"qwen-turns", 2},
		{"continue-turns", 0},
		{"goose-turns", 0},
		{"pi-turns", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bodies := captured(t, tt.name)
			if tt.name == "goose-turns" {
				bodies = withTools(bodies) // not its titles
			}
			if got := prefixBreaks(t, bodies); got != tt.client {
				t.Errorf("the client breaks its prefix %d times, want %d", got, tt.client)
			}
			sim := llamasim.New(llamasim.Options{Window: 131072})
			sent, actions := forwardedFor(t, start(t, sim), sim, bodies)
			if got := prefixBreaks(t, sent); got != 0 {
				t.Errorf("what is forwarded breaks the prefix %d times: %q", got, actions)
			}
			pins := strings.Contains(strings.Join(actions, " "), "pin")
			if pins != (tt.client > 0) {
				t.Errorf("actions %q", actions)
			}
			// Switched off, nothing is held.
			off, _ := forwardedFor(t, start(t, sim, withConfig(func(c *config.Config) { c.Pin = false })), sim, bodies)
			if got := prefixBreaks(t, off); got != tt.client {
				t.Errorf("with pin: false the prefix breaks %d times", got)
			}
		})
	}
}

func withTools(bodies [][]byte) [][]byte {
	var out [][]byte
	for _, b := range bodies {
		if body, err := transcript.Parse(b); err == nil && body.HasTools {
			out = append(out, b)
		}
	}
	return out
}

// opencode's plan mode forbids edits in a reminder that it takes back with the
// next turn: nothing that instructs is kept against the client's will.
func TestPin_NothingThatInstructs(t *testing.T) {
	bodies := withTools(captured(t, "opencode-modes"))
	sim := llamasim.New(llamasim.Options{Window: 131072})
	sent, actions := forwardedFor(t, start(t, sim), sim, bodies)
	for i := range bodies {
		own, out := forwarded(t, bodies[i]), forwarded(t, sent[i])
		for m := range own {
			if own[m].Text() != out[m].Text() {
				t.Errorf("request %d, message %d: %q was sent as %q (%s)", i, m, own[m].Text(), out[m].Text(), actions[i])
			}
		}
	}
	if client, out := prefixBreaks(t, bodies), prefixBreaks(t, sent); client != 2 || out != client {
		t.Errorf("the client takes back %d reminders, %d are taken back from what is forwarded", client, out)
	}
}

// Reasoning that a client drops later stays as it was forwarded, also over a
// restart; a message that changed otherwise, or names other calls, is the
// client's.
func TestPin_Reasoning(t *testing.T) {
	const (
		head    = `{"model":"m","messages":[{"role":"user","content":"do it"}`
		think   = `,{"role":"assistant","reasoning_content":"hm, let me see","content":"","tool_calls":[{"id":"c1","type":"function","function":{"name":"read","arguments":"{}"}}]}`
		silent  = `,{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"read","arguments":"{}"}}]}`
		renamed = `,{"role":"assistant","content":null,"tool_calls":[{"id":"c9","type":"function","function":{"name":"read","arguments":"{}"}}]}`
		edited  = `,{"role":"assistant","content":"no","tool_calls":[{"id":"c1","type":"function","function":{"name":"read","arguments":"{}"}}]}`
		result  = `,{"role":"tool","tool_call_id":"c1","content":"found"}`
		result9 = `,{"role":"tool","tool_call_id":"c9","content":"found"}`
		more    = `,{"role":"assistant","content":"done"},{"role":"user","content":"go on"}`
		end     = `],"max_tokens":4}`
	)
	first := head + think + result + end
	for _, tt := range []struct{ name, next, want string }{
		{"dropped", head + silent + result + more + end, head + think + result + more + end},
		{"kept", head + think + result + more + end, ""},
		{"other ids", head + renamed + result9 + more + end, ""},
		{"edited", head + edited + result + more + end, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := tt.want
			if want == "" {
				want = tt.next
			}
			sim := llamasim.New(llamasim.Options{Window: 131072})
			kept := &pinStore{}
			for restart := range 2 {
				r := start(t, sim, func(o *Options) {
					o.Index = newIndex(t, conversation.Options{Store: kept, Conversations: 10, Bytes: 1 << 20})
				})
				if restart == 0 {
					r.post(t, []byte(first))
					r.index.Flush()
					if tt.name != "dropped" {
						continue
					}
				}
				sent, actions := forwardedFor(t, r, sim, [][]byte{[]byte(tt.next)})
				if string(sent[0]) != want {
					t.Errorf("restart %d: sent\n%s\nwant\n%s", restart, sent[0], want)
				}
				if (actions[0] == "pin") != (tt.want != "") {
					t.Errorf("action %q", actions[0])
				}
				if got := testutil.ToFloat64(r.metrics.CacheMisses.WithLabelValues("client_changed")); got != 0 {
					t.Errorf("%v misses of a pinned message", got)
				}
			}
		})
	}
}

// pinStore keeps states and pins.
type pinStore struct {
	nothing
	states map[string]conversation.State
	pins   map[string][]conversation.Pin
}

func (k *pinStore) Load(int) (conversation.Kept, error) {
	var out conversation.Kept
	for _, s := range k.states {
		out.Conversations = append(out.Conversations, s)
	}
	return out, nil
}

func (k *pinStore) Commit(c conversation.Commit) (int64, error) {
	if k.states == nil {
		k.states, k.pins = map[string]conversation.State{}, map[string][]conversation.Pin{}
	}
	k.states[c.State.ID] = c.State
	k.pins[c.State.ID] = append(k.pins[c.State.ID], c.Pins...)
	return 0, nil
}

func (k *pinStore) Note(n conversation.Notes) error {
	for _, s := range n.States {
		if _, err := k.Commit(conversation.Commit{State: s}); err != nil {
			return err
		}
	}
	return nil
}

func (k *pinStore) Pins(id string) ([]conversation.Pin, error) { return k.pins[id], nil }

// nothing is a store that keeps nothing.
type nothing struct{}

func (nothing) Load(int) (conversation.Kept, error)       { return conversation.Kept{}, nil }
func (nothing) Entries(int64) ([]byte, error)             { return nil, conversation.ErrGone }
func (nothing) Pins(string) ([]conversation.Pin, error)   { return nil, nil }
func (nothing) Commit(conversation.Commit) (int64, error) { return 1, nil }
func (nothing) Note(conversation.Notes) error             { return nil }
func (nothing) Forget(string) error                       { return nil }
func (nothing) Prune([]string) ([]string, error)          { return nil, nil }
func (nothing) Size() int64                               { return 0 }
