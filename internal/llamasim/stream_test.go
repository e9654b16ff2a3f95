package llamasim

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var everything = Reply{
	Reasoning: "The user wants files. Two calls, then.",
	Text:      "Looking at both — 漢字 included.",
	ToolCalls: []ToolCall{
		{Name: "read", Arguments: `{"path": "a.go", "limit": 20}`},
		{Name: "shell", Arguments: `{"cmd": "ls -la \"x y\""}`},
		{ID: "call_own", Name: "noop"},
	},
}

// A stream, put together again, is the plain answer.
func TestStream_AddsUpToPlain(t *testing.T) {
	server := start(t, New(Options{Reply: func(Request) Reply { return everything }}))
	c := newConversation(1)
	plain := messageOf(post(t, server, chatPath, c.body("")).body)
	for _, more := range []string{`"stream":true,`, `"stream":true,"stream_options":{"include_usage":true},"timings_per_token":true,`, `"stream":true,"return_progress":true,`} {
		streamed := assemble(post(t, server, chatPath, c.body(more)).body)
		for _, got := range []assembled{plain, streamed} {
			if got.content != everything.Text || got.reasoning != everything.Reasoning || got.finish != "tool_calls" || !got.done {
				t.Errorf("%+v", got)
			}
			calls := append([]ToolCall(nil), everything.ToolCalls...)
			calls[2].Arguments = "{}"
			if diff := cmp.Diff(calls, got.calls, cmpopts.IgnoreFields(ToolCall{}, "ID")); diff != "" {
				t.Errorf("calls (-said +heard):\n%s", diff)
			}
			if len(got.calls[0].ID) != 32 || got.calls[0].ID == got.calls[1].ID || got.calls[2].ID != "call_own" {
				t.Errorf("ids %q", got.calls)
			}
		}
		for _, name := range []string{"prompt_n", "predicted_n"} {
			// The plain answer came first, with nothing cached.
			want, got := plain.timings.number(name, -1), streamed.timings.number(name, -1)
			if name == "prompt_n" {
				got += streamed.timings.number("cache_n", -1)
			}
			if want != got {
				t.Errorf("%s: %d, plain %d", name, got, want)
			}
		}
	}
}

func TestStream_UsageOnlyWhenAsked(t *testing.T) {
	server := start(t, New(Options{}))
	without := post(t, server, chatPath, chatBody(`"stream":true,`, "user", "hi"))
	if strings.Contains(without.body, `"usage"`) || assemble(without.body).timings == nil {
		t.Error(without.body)
	}
	with := dataOf(post(t, server, chatPath, chatBody(`"stream":true,"stream_options":{"include_usage":true},`, "user", "hi")).body)
	last := members([]byte(with[len(with)-2]))
	if string(last["choices"]) != "[]" || !last.has("usage") || !last.has("timings") {
		t.Errorf("last event %s", with[len(with)-2])
	}
	if finish := with[len(with)-3]; strings.Contains(finish, "timings") || !strings.Contains(finish, `"finish_reason":"stop"`) {
		t.Errorf("event before it: %s", finish)
	}
}

func TestStream_Progress(t *testing.T) {
	s := New(Options{Window: 1 << 20})
	server := start(t, s)
	report := func(body string) (steps []int) {
		for _, data := range dataOf(post(t, server, chatPath, body).body) {
			if p := members(members([]byte(data))["prompt_progress"]); len(p) > 0 {
				if len(steps) == 0 {
					steps = append(steps, p.number("total", -1), p.number("cache", -1))
				}
				steps = append(steps, p.number("processed", -1))
			}
		}
		return steps
	}
	body := fill(t, s, 5000, `"stream":true,"return_progress":true,`)
	if diff := cmp.Diff([]int{5000, 0, 0, 2048, 4096, 5000}, report(body)); diff != "" {
		t.Errorf("first (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int{5000, 4999, 4999, 5000}, report(body)); diff != "" {
		t.Errorf("repeat (-want +got):\n%s", diff)
	}
}

func TestReply_CallsAreTextUnlessParsed(t *testing.T) {
	server := start(t, New(Options{Reply: func(Request) Reply { return Reply{ToolCalls: everything.ToolCalls[:1]} }}))
	for name, body := range map[string]string{
		"tool_choice none":  newConversation(1).body(`"tool_choice":"none",`),
		"no tools declared": chatBody("", "user", "hi"),
	} {
		got := messageOf(post(t, server, chatPath, body).body)
		if len(got.calls) != 0 || got.finish != "stop" || !strings.HasPrefix(got.content, "<tool_call>\n{\"name\": \"read\"") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestReply_Empty(t *testing.T) {
	server := start(t, New(Options{Reply: func(Request) Reply { return Reply{} }}))
	got := messageOf(post(t, server, chatPath, chatBody("", "user", "hi")).body)
	if got.content != "" || got.finish != "stop" || got.usage.number("completion_tokens", -1) != 1 {
		t.Errorf("%+v", got)
	}
}

func TestReply_SeesTheRequest(t *testing.T) {
	var seen Request
	server := start(t, New(Options{Reply: func(r Request) Reply { seen = r; return Reply{Text: "ok"} }}))
	c := newConversation(1)
	c.round(20)
	post(t, server, "/chat/completions", c.body(`"model":"wished","stream":true,"max_tokens":7,"tool_choice":{"type":"function","function":{"name":"shell"}},`))
	if seen.Number != 1 || seen.Path != "/chat/completions" || seen.Model != "wished" || !seen.Stream || seen.MaxTokens != 7 ||
		seen.ToolChoice != "shell" || len(seen.Tools) != 1 || len(seen.Messages) != 4 || seen.PromptTokens != CountTokens(seen.Prompt) {
		t.Errorf("%+v", seen)
	}
	if call := seen.Messages[2].ToolCalls[0]; call.Name != "shell" || call.ID != seen.Messages[3].ToolCallID {
		t.Errorf("%+v", seen.Messages)
	}
}

func TestTimings_FollowTheSpeeds(t *testing.T) {
	server := start(t, New(Options{PromptPerSecond: 500, PredictedPerSecond: 25, Reply: func(Request) Reply { return Reply{Endless: true, Text: "a b c"} }}))
	got := messageOf(post(t, server, chatPath, chatBody(`"max_tokens":26,`, "user", "hi")).body).timings
	prompt := got.float("prompt_n")
	for name, want := range map[string]float64{
		"prompt_ms": prompt * 2, "prompt_per_token_ms": 2, "prompt_per_second": 500,
		"predicted_ms": 1000, "predicted_per_token_ms": 40, "predicted_per_second": 25,
	} {
		if f := got.float(name); f < want*0.999 || f > want*1.001 {
			t.Errorf("%s is %v, want %v", name, f, want)
		}
	}
}
