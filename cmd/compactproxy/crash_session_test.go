package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/compactproxy/compactproxy/internal/corpus"
	"github.com/compactproxy/compactproxy/internal/llamasim"
	"github.com/compactproxy/compactproxy/internal/recording"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// playedSession is a recorded session as the requests of an agent.
type playedSession struct {
	name     string
	window   int // that it outgrows
	messages [][]byte
	tools    []byte
	ends     []int // of the list, for each turn
}

// body is what the agent sends in a turn. One that forgets sends the reasoning of
// its newest answer only, as many agents do, so that the proxy has to pin it.
func (s *playedSession) body(turn int, stream, forgets bool) []byte {
	list := slices.Clone(s.messages[:s.ends[turn]])
	if forgets && turn > 0 {
		i := s.ends[turn-1]
		list[i] = withReasoning(i, list[i])
	}
	var b bytes.Buffer
	b.WriteString(`{"model":"m","messages":[`)
	b.Write(bytes.Join(list, []byte(",")))
	b.WriteString(`]`)
	if len(s.tools) > 0 {
		b.WriteString(`,"tools":`)
		b.Write(s.tools)
	}
	fmt.Fprintf(&b, `,"stream":%v,"max_tokens":4}`, stream)
	return b.Bytes()
}

// withReasoning is an answer with reasoning, unless the session has some of its
// own.
func withReasoning(i int, message []byte) []byte {
	if bytes.Contains(message, []byte(`"reasoning`)) {
		return message
	}
	return slices.Concat(fmt.Appendf(nil, `{"reasoning_content":"What I thought in message %d.",`, i), message[1:])
}

// ownSessions are the sessions of this repository that outgrow a window, cut
// short.
func ownSessions(t *testing.T, windows []int, turns int) (all []*playedSession) {
	t.Helper()
	for _, name := range recording.Sessions() {
		r, err := recording.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		turns := min(turns, r.Turns())
		body, err := transcript.Parse(r.Request(turns-1, recording.Options{}))
		if err != nil {
			t.Fatal(err)
		}
		s := &playedSession{name: name, messages: raws(body.Messages), tools: body.Tools()}
		for turn := range turns {
			s.ends = append(s.ends, r.Messages(turn))
		}
		if s.outgrows(windows) {
			all = append(all, s)
		}
	}
	return all
}

// corpusSessions are those of the corpus that outgrow a window.
func corpusSessions(t *testing.T, windows []int) (all []*playedSession) {
	t.Helper()
	for _, c := range corpus.Sessions(t) {
		s := &playedSession{name: c.Name}
		for i, m := range c.Messages {
			if i > 0 && bytes.Contains(m, []byte(`"role":"assistant"`)) { // the answer to what stands before it
				s.ends = append(s.ends, i)
			}
			s.messages = append(s.messages, m)
		}
		if !bytes.Equal(c.Tools, []byte("null")) {
			s.tools = c.Tools
		}
		if len(s.ends) > 0 && s.outgrows(windows) {
			all = append(all, s)
		}
	}
	return all
}

// outgrows sets the first window that the session is longer than, and in which
// system messages, tools and task leave room.
func (s *playedSession) outgrows(windows []int) bool {
	sim := llamasim.New(simulated(0, nil))
	whole := s.body(len(s.ends)-1, true, false)
	body, err := transcript.Parse(whole)
	if err != nil {
		return false
	}
	task, err := sim.PromptTokens(body.Rewrite(body.Messages[:min(body.Leading()+1, len(body.Messages))]))
	if err != nil {
		return false
	}
	n, err := sim.PromptTokens(whole)
	if err != nil {
		return false
	}
	for _, s.window = range windows {
		if n > s.window && task <= s.window/2 {
			return true
		}
	}
	return false
}

func raws(list []transcript.Message) [][]byte {
	out := make([][]byte, len(list))
	for i := range list {
		out[i] = list[i].Raw()
	}
	return out
}

func extends(list, prefix [][]byte) bool {
	return len(list) >= len(prefix) && slices.EqualFunc(list[:len(prefix)], prefix, bytes.Equal)
}

// texts are what a message says, read with nothing of our own: what recall must
// find once a compaction has replaced it.
func texts(t *testing.T, message []byte) (all []string) {
	t.Helper()
	var m struct {
		Content   json.RawMessage `json:"content"`
		Reasoning string          `json:"reasoning_content"`
		Calls     []struct {
			Function struct {
				Arguments json.RawMessage `json:"arguments"`
			} `json:"function"`
		} `json:"tool_calls"`
	}
	if err := json.Unmarshal(message, &m); err != nil {
		t.Fatal(err)
	}
	var parts []struct{ Text string }
	if json.Unmarshal(m.Content, &parts) == nil {
		for _, p := range parts {
			all = append(all, p.Text)
		}
	} else {
		all = append(all, said(m.Content))
	}
	all = append(all, m.Reasoning)
	for _, c := range m.Calls {
		all = append(all, said(c.Function.Arguments))
	}
	return slices.DeleteFunc(all, func(s string) bool { return s == "" })
}

// said is what a JSON string says; anything else stands for itself.
func said(value json.RawMessage) string {
	var s string
	if len(value) == 0 || json.Unmarshal(value, &s) == nil { // null says nothing
		return s
	}
	return string(value)
}
