package transcript

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestExtend(t *testing.T) {
	const own = `"stream":true,"stream_options":{"include_usage":true},"return_progress":true,"max_tokens":77`
	tests := []struct{ name, body, want string }{
		{"plain", `{"model":"m","messages":[{"role":"user","content":"a"}],"temperature":0.20000000298}`,
			`{"model":"m","messages":[{"role":"user","content":"a"},{"role":"user","content":"ask"}],"temperature":0.20000000298,` + own + `}`},
		{"tools are kept, none may be called", `{"tools":[{"type":"function","function":{"name":"f"}}], "tool_choice" : "required" ,"messages":[]}`,
			`{"tools":[{"type":"function","function":{"name":"f"}}] ,"messages":[{"role":"user","content":"ask"}],` + own + `,"tool_choice":"none"}`},
		{"what would bend the answer goes, wherever it stands", `{"stop":["x"],"n":2,"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_object"},"seed":1,"max_tokens":5,"stream":false}`,
			`{"messages":[{"role":"user","content":"a"},{"role":"user","content":"ask"}],"seed":1,` + own + `}`},
		{"unknown members and spacing stay", "{ \"x_unknown\" : 1.0 ,\n \"messages\" : [ {\"role\":\"user\",\"content\":\"a\"} ],\n \"chat_template_kwargs\":{\"b\":1,\"a\":2} }\n",
			"{ \"x_unknown\" : 1.0 ,\n \"messages\" : [ {\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"ask\"} ],\n \"chat_template_kwargs\":{\"b\":1,\"a\":2} ," + own + "}\n"},
		{"an escaped key", `{"messages":[],"\u0073top":"x"}`, `{"messages":[{"role":"user","content":"ask"}],` + own + `}`},
		{"a bending member twice", `{"n":1,"n":2,"messages":[]}`, `{"messages":[{"role":"user","content":"ask"}],` + own + `}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			body, err := Parse([]byte(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			got, err := body.Extend(append(body.Messages, NewUser("ask")), 77, true)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, string(got)); diff != "" {
				t.Error(diff)
			}
			if !json.Valid(got) {
				t.Errorf("not JSON: %s", got)
			}
		})
	}
}

// Whatever a client sends, the extended request is JSON, streams, allows no call,
// and holds no member that bends.
func FuzzExtend(f *testing.F) {
	f.Add(`{"model":"m","stop":1,"messages":[{"role":"user","content":"a"}],"n":2}`)
	f.Add(`{"n":1 , "messages":[] , "stop" : [ ] }`)
	f.Add("{\t\"messages\":[],\"tools\":[{}],\"max_tokens\":1,\"a\":{\"stop\":1}}\r\n")
	f.Fuzz(func(t *testing.T, raw string) {
		body, err := Parse([]byte(raw))
		if err != nil {
			return
		}
		got, err := body.Extend(append(body.Messages, NewUser("ask")), 9, false)
		if err != nil {
			t.Fatalf("refused: %v", err)
		}
		again, err := Parse(got)
		if err != nil {
			t.Fatalf("%v: %q became %q", err, raw, got)
		}
		if !again.Stream || again.MaxTokens != 9 || len(again.Messages) != len(body.Messages)+1 || string(again.Tools()) != string(body.Tools()) {
			t.Errorf("%q became %q", raw, got)
		}
		if strings.Count(string(got), `"stream":true`) < 1 {
			t.Errorf("does not stream: %q", got)
		}
	})
}
