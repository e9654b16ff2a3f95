package recording

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const small = `{
  "other": [1, {"messages": 2}],
  "name": "small", "note": "a \"note\"",
  "messages": [
    {"role": "user", "content": "1e400 is 9007199254740993"},
    { "content" : [ {"type":"text","text":"A"}, {"type":"text","text":"\u00e9\ud83c\udf75"} ], "role" : "\u0061ssistant",
      "reasoning_content": "hm",
      "tool_calls":[{"id":"c1","type":"function","function":{"name":"shell","arguments":"{\"command\": \"ls\"}"}},
                    {"id":"c2","type":"function","function":{"arguments":"{}","name":"todo_write"}}] },
    {"role":"tool","tool_call_id":"c1","content":"x","content":"y"},
    {"role":"tool","tool_call_id":"c2","content":""},
    {"role":"assistant","content":null,"tool_calls":null}
  ],
  "tools": [ {"a": 1},
             {"b": 2} ]
}`

func parseSmall(t *testing.T) *Session {
	t.Helper()
	s, err := Parse([]byte(small))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestRequest_Options(t *testing.T) {
	s := parseSmall(t)
	const user = `{"role": "user", "content": "1e400 is 9007199254740993"}`
	tests := []struct {
		name string
		o    Options
		want string
	}{
		{"none", Options{}, `{"model":"local","messages":[` + user + `],"tools":[{"a": 1},{"b": 2}]}`},
		{"stream", Options{Model: `m"1`, Stream: true}, `{"model":"m\"1","messages":[` + user + `],"tools":[{"a": 1},{"b": 2}],"stream":true}`},
		{"all", Options{Model: "m", Stream: true, IncludeUsage: true, MaxTokens: 512}, `{"model":"m","messages":[` + user + `],"tools":[{"a": 1},{"b": 2}],"stream":true,"stream_options":{"include_usage":true},"max_tokens":512}`},
		{"usage without a stream", Options{IncludeUsage: true, MaxTokens: 1}, `{"model":"local","messages":[` + user + `],"tools":[{"a": 1},{"b": 2}],"max_tokens":1}`},
		{"a model that is no UTF-8", Options{Model: "a\xff"}, "{\"model\":\"a\ufffd\",\"messages\":[" + user + `],"tools":[{"a": 1},{"b": 2}]}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, string(s.Request(0, tt.o))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRequest_KeepsTheBytesOfMessages(t *testing.T) {
	s := parseSmall(t)
	body := string(s.Request(1, Options{}))
	for _, want := range []string{
		`"role" : "\u0061ssistant"`, // a role that is only known when it is decoded
		`"content":"x","content":"y"`,
		`[ {"type":"text","text":"A"}, {"type":"text","text":"\u00e9\ud83c\udf75"} ]`,
		`},{"role":"tool","tool_call_id":"c2","content":""}],"tools"`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("%s is not in\n%s", want, body)
		}
	}
	if s.Messages(1) != 4 {
		t.Errorf("%d messages, want 4", s.Messages(1))
	}
}

func TestAnswer(t *testing.T) {
	s := parseSmall(t)
	got, err := s.Answer(0)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(got.Raw), `{ "content" : [`) || !strings.HasSuffix(string(got.Raw), `] }`) {
		t.Errorf("raw: %s", got.Raw)
	}
	got.Raw = nil
	want := Answer{
		Text:      "Aé🍵",
		Reasoning: "hm",
		Calls: []Call{
			{ID: "c1", Name: "shell", Arguments: `{"command": "ls"}`},
			{ID: "c2", Name: "todo_write", Arguments: "{}"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	got, err = s.Answer(1)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Answer{Raw: []byte(`{"role":"assistant","content":null,"tool_calls":null}`)}, got); diff != "" {
		t.Error(diff)
	}
}

func TestAnswer_OddMessage(t *testing.T) {
	s, err := Parse([]byte(`{"messages":[{"role":"assistant","content":7},{"role":"assistant","content":"\ud800"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Answer(0); err == nil || !strings.Contains(err.Error(), "turn 0: content: want a string") {
		t.Errorf("error %v", err)
	}
	if a, err := s.Answer(1); err != nil || a.Text != "\ufffd" {
		t.Errorf("lone surrogate: %q, %v", a.Text, err)
	}
	if got := string(s.Request(0, Options{})); got != `{"model":"local","messages":[]}` {
		t.Errorf("the request before the first message is %s", got)
	}
}

func TestParse_Problems(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"empty", "", "EOF"},
		{"no object", "[]", "want {, got ["},
		{"no messages", `{"name":"x"}`, "no messages"},
		{"messages are no list", `{"messages":{}}`, "messages: want [, got {"},
		{"a message is no object", `{"messages":[{"role":"user"},"hi"]}`, "message 1: want {, got string"},
		{"role is no string", `{"messages":[{"role":1}]}`, "message 0: want a string, got number"},
		{"tools are no list", `{"tools":"x","messages":[]}`, "tools: want [, got string"},
		{"cut off", `{"messages":[{"role":"user"}`, "unexpected EOF"},
		{"something behind it", `{"messages":[]} {}`, "something follows"},
		{"name is no string", `{"name":{},"messages":[]}`, "name: want a string"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse([]byte(tt.in))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

func TestParse_DoesNotKeepTheInput(t *testing.T) {
	data := []byte(small)
	s, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	want := s.Request(1, Options{})
	clear(data)
	if diff := cmp.Diff(want, s.Request(1, Options{})); diff != "" {
		t.Error(diff)
	}
}

func TestParse_WithoutTools(t *testing.T) {
	for _, tools := range []string{`"tools":null,`, `"tools":[],`, ``} {
		s, err := Parse([]byte(`{` + tools + `"messages":[{"role":"assistant"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(s.Request(0, Options{})); got != `{"model":"local","messages":[]}` {
			t.Errorf("%s: %s", tools, got)
		}
	}
}
