package llamasim

import (
	"fmt"
	"strings"
	"testing"
)

// fill makes a body whose prompt has exactly n tokens.
func fill(t testing.TB, s *Server, n int, more string) string {
	t.Helper()
	empty, err := s.PromptTokens([]byte(chatBody("", "user", "x")))
	if err != nil {
		t.Fatal(err)
	}
	body := chatBody(more, "user", "x"+strings.Repeat(" x", n-empty))
	if got, err := s.PromptTokens([]byte(body)); err != nil || got != n {
		t.Fatalf("%d tokens, want %d (%v)", got, n, err)
	}
	return body
}

func TestWindow_Boundary(t *testing.T) {
	s := New(Options{Window: 500, Reply: func(Request) Reply { return Reply{Text: "and so on", Endless: true} }})
	server := start(t, s)
	for n := 495; n <= 502; n++ {
		for _, more := range []string{"", `"stream":true,`, `"stream":true,"return_progress":true,`, `"max_tokens":100000,`} {
			got := post(t, server, chatPath, fill(t, s, n, more))
			if n >= 500 {
				want := fmt.Sprintf(`{"error":{"code":400,"message":"request (%[1]d tokens) exceeds the available context size (500 tokens), try increasing it",`+
					`"type":"exceed_context_size_error","n_prompt_tokens":%[1]d,"n_ctx":500}}`, n)
				if got.status != 400 || got.body != want || got.headers["Connection"] != "close" {
					t.Errorf("%d tokens, %s: %+v", n, more, got)
				}
				continue
			}
			if prompt, predicted := promptIn(got.body), predictedIn(got.body); prompt != n || prompt+predicted != 500 {
				t.Errorf("%d tokens, %s: %d + %d", n, more, prompt, predicted)
			}
			if !strings.Contains(got.body, `"finish_reason":"length"`) {
				t.Errorf("%d tokens, %s: %s", n, more, got.body)
			}
		}
	}
	s.SetWindow(600)
	if got := post(t, server, chatPath, fill(t, s, 550, "")); got.status != 200 {
		t.Errorf("after the window grew: %+v", got)
	}
}

func TestMaxTokens(t *testing.T) {
	const text = "one two three"
	server := start(t, New(Options{Reply: func(Request) Reply { return Reply{Text: text} }}))
	for _, c := range []struct {
		name, more, content, finish string
		predicted                   int
	}{
		{"none", ``, text, "stop", 4},
		{"minus one", `"max_tokens":-1,`, text, "stop", 4},
		{"zero still gives one", `"max_tokens":0,`, "one", "length", 1},
		{"one", `"max_tokens":1,`, "one", "length", 1},
		{"completion tokens", `"max_completion_tokens":2,`, "one two", "length", 2},
		{"all words, no room to end", `"max_tokens":3,`, text, "length", 3},
		{"room to end", `"max_tokens":4,`, text, "stop", 4},
		{"null", `"max_tokens":null,`, text, "stop", 4},
		{"a stop string", `"stop":["thr","zz"],`, "one two ", "stop", 3},
		{"end ignored", `"ignore_eos":true,"max_tokens":5,`, text + "one two", "length", 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			plain := messageOf(post(t, server, chatPath, chatBody(c.more, "user", "count")).body)
			streamed := assemble(post(t, server, chatPath, chatBody(`"stream":true,`+c.more, "user", "count")).body)
			for _, got := range []assembled{plain, streamed} {
				if n := got.timings.number("predicted_n", -1); got.content != c.content || got.finish != c.finish || n != c.predicted {
					t.Errorf("%q, %s after %d tokens", got.content, got.finish, n)
				}
			}
		})
	}
}

// A call cut by max_tokens has broken arguments; sent back, they are refused.
func TestMaxTokens_CutsCall(t *testing.T) {
	server := start(t, New(Options{Reply: func(Request) Reply {
		return Reply{ToolCalls: []ToolCall{{Name: "shell", Arguments: `{"cmd": "cat a.go", "timeout": 12}`}}}
	}}))
	ask := newConversation(1).body
	whole := messageOf(post(t, server, chatPath, ask("")).body)
	cut := messageOf(post(t, server, chatPath, ask(`"max_tokens":18,`)).body)
	if cut.finish != "length" || len(cut.calls) != 1 || checkJSON([]byte(cut.calls[0].Arguments)) == nil ||
		!strings.HasPrefix(whole.calls[0].Arguments, cut.calls[0].Arguments) {
		t.Errorf("%+v", cut)
	}
	c := newConversation(1)
	c.messages = append(c.messages,
		`{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"shell","arguments":`+
			string(appendString(nil, cut.calls[0].Arguments))+`}}]}`,
		`{"role":"tool","tool_call_id":"a","content":"no"}`)
	back := post(t, server, chatPath, c.body(""))
	if back.status != 500 || !strings.Contains(back.body, "Failed to parse tool call arguments as JSON: [json.exception.parse_error.101]") {
		t.Errorf("%+v", back)
	}
	if none := messageOf(post(t, server, chatPath, ask(`"max_tokens":2,`)).body); len(none.calls) != 0 || none.finish != "length" {
		t.Errorf("cut before the arguments: %+v", none)
	}
}
