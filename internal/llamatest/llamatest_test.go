package llamatest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/compactproxy/compactproxy/internal/tinymodel"
)

// object is a JSON object in a request.
type object map[string]any

func user(text string) object      { return object{"role": "user", "content": text} }
func assistant(text string) object { return object{"role": "assistant", "content": text} }

// readTool has no parameter that is a free string: see package tinymodel.
var readTool = object{"type": "function", "function": object{
	"name":        "read",
	"description": "Read a line of a file.",
	"parameters": object{
		"type":     "object",
		"required": []string{"file", "line"},
		"properties": object{
			"file": object{"type": "string", "enum": []string{"main.go", "go.mod"}},
			"line": object{"type": "integer", "minimum": 1, "maximum": 99},
		},
	},
}}

// answer is what the tests look at in llama-server's answers.
type answer struct {
	Status  int `json:"-"`
	Choices []struct {
		FinishReason string `json:"finish_reason"`
		Message      struct {
			Content   string
			ToolCalls []struct {
				Function struct{ Name, Arguments string }
			} `json:"tool_calls"`
		}
	}
	Usage struct {
		PromptTokens        int `json:"prompt_tokens"`
		CompletionTokens    int `json:"completion_tokens"`
		PromptTokensDetails struct {
			CachedTokens int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	Timings *struct {
		CacheN     int `json:"cache_n"`
		PromptN    int `json:"prompt_n"`
		PredictedN int `json:"predicted_n"`
	}
	Error *struct {
		Code          int
		Type, Message string
		PromptTokens  int `json:"n_prompt_tokens"`
		Context       int `json:"n_ctx"`
	}
	Prompt string // of /apply-template
}

func (s *Server) post(t *testing.T, path string, body object) answer {
	t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+path, bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err = io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	a := answer{Status: res.StatusCode}
	if err := json.Unmarshal(raw, &a); err != nil {
		t.Fatalf("%s answers %s", path, raw)
	}
	return a
}

// chat asks for a repeatable answer.
func (s *Server) chat(t *testing.T, body object) answer {
	t.Helper()
	body["temperature"], body["seed"] = 0, 1
	return s.post(t, "/v1/chat/completions", body)
}

func TestStart(t *testing.T) {
	for _, arch := range []tinymodel.Arch{tinymodel.Qwen2, tinymodel.Gemma3, tinymodel.LFM2} {
		t.Run(string(arch), func(t *testing.T) {
			s := Options{Model: tinymodel.Options{Arch: arch}}.Start(t)
			t.Run("is healthy", func(t *testing.T) { testHealth(t, s) })
			t.Run("answers with timings", func(t *testing.T) { testTimings(t, s) })
			t.Run("ends by itself", func(t *testing.T) { testEnds(t, s) })
			t.Run("caches a prompt", func(t *testing.T) { testCache(t, s) })
			t.Run("refuses a long prompt", func(t *testing.T) { testOverflow(t, s) })
			t.Run("calls a tool when forced", func(t *testing.T) { testToolCall(t, s) })
		})
	}
}

func testHealth(t *testing.T, s *Server) {
	res, err := http.Get(s.URL + "/health")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	if diff := cmp.Diff(`{"status":"ok"}`, string(body)); res.StatusCode != http.StatusOK || diff != "" {
		t.Errorf("status %d, body (-want +got):\n%s", res.StatusCode, diff)
	}
}

func testTimings(t *testing.T, s *Server) {
	a := s.chat(t, object{"messages": []object{user("What is a proxy?")}, "max_tokens": 12})
	if a.Status != http.StatusOK || len(a.Choices) != 1 {
		t.Fatalf("unexpected answer %+v", a)
	}
	if text := a.Choices[0].Message.Content; text == "" || strings.ContainsFunc(text, func(r rune) bool { return r > '~' }) {
		t.Errorf("content is not ASCII text: %q", text)
	}
	if a.Timings == nil {
		t.Fatal("no timings")
	}
	if got := a.Timings.CacheN + a.Timings.PromptN; got != a.Usage.PromptTokens {
		t.Errorf("timings count %d prompt tokens, usage %d", got, a.Usage.PromptTokens)
	}
	if a.Timings.PredictedN != a.Usage.CompletionTokens {
		t.Errorf("timings count %d predicted tokens, usage %d", a.Timings.PredictedN, a.Usage.CompletionTokens)
	}
}

func testEnds(t *testing.T, s *Server) {
	a := s.post(t, "/v1/chat/completions", object{"messages": []object{user("Say something.")}, "seed": 1})
	if len(a.Choices) != 1 || a.Choices[0].FinishReason != "stop" {
		t.Errorf("no natural end: %+v", a)
	}
	a = s.chat(t, object{
		"messages":   []object{user("Say nothing.")},
		"logit_bias": [][2]int{{tinymodel.TokenTurnEnd, 100}},
	})
	if len(a.Choices) != 1 || a.Choices[0].Message.Content != "" || a.Usage.CompletionTokens != 1 {
		t.Errorf("not an empty answer: %+v", a)
	}
}

func testCache(t *testing.T, s *Server) {
	ask := func() answer {
		return s.chat(t, object{"messages": []object{user(strings.Repeat("A long story. ", 100))}, "max_tokens": 5})
	}
	first, second := ask(), ask()
	if first.Status != http.StatusOK || second.Status != http.StatusOK {
		t.Fatalf("unexpected answers %+v, %+v", first, second)
	}
	// All but the last token with full attention; a model that returns to a
	// checkpoint lacks a few more.
	cached, all := second.Usage.PromptTokensDetails.CachedTokens, second.Usage.PromptTokens
	if cached < all-8 || cached >= all {
		t.Errorf("second time %d of %d tokens cached", cached, all)
	}
	if second.Timings == nil || second.Timings.CacheN != cached {
		t.Errorf("usage says %d cached, timings %+v", cached, second.Timings)
	}
}

func testOverflow(t *testing.T, s *Server) {
	a := s.chat(t, object{"messages": []object{user(strings.Repeat("much ", 6000))}})
	if a.Status != http.StatusBadRequest || a.Error == nil {
		t.Fatalf("unexpected answer %+v", a)
	}
	want := fmt.Sprintf("request (%d tokens) exceeds the available context size (4096 tokens), try increasing it", a.Error.PromptTokens)
	if a.Error.Type != "exceed_context_size_error" || a.Error.Context != 4096 || a.Error.PromptTokens < 4096 || a.Error.Message != want {
		t.Errorf("unexpected refusal %+v", *a.Error)
	}
}

func testToolCall(t *testing.T, s *Server) {
	a := s.chat(t, object{
		"messages":            []object{user("Read the file.")},
		"tools":               []object{readTool},
		"logit_bias":          tinymodel.ForceToolCall(),
		"parallel_tool_calls": false,
		"max_tokens":          500,
	})
	if a.Status != http.StatusOK || len(a.Choices) != 1 {
		t.Fatalf("unexpected answer %+v", a)
	}
	c := a.Choices[0]
	if c.FinishReason != "tool_calls" || len(c.Message.ToolCalls) != 1 {
		t.Fatalf("no single tool call: %+v", c)
	}
	call := c.Message.ToolCalls[0].Function
	var arguments struct {
		File string
		Line int
	}
	if err := json.Unmarshal([]byte(call.Arguments), &arguments); err != nil {
		t.Fatalf("arguments %q: %v", call.Arguments, err)
	}
	if call.Name != "read" || arguments.File == "" || arguments.Line < 1 || arguments.Line > 99 {
		t.Errorf("call %+v does not fit the tool", call)
	}
}

// exchange is a call of readTool with its result.
func exchange(id, thought string) []object {
	return []object{
		{"role": "assistant", "content": "", "reasoning_content": thought, "tool_calls": []object{{
			"id": id, "type": "function",
			"function": object{"name": "read", "arguments": `{"file":"go.mod","line":1}`},
		}}},
		{"role": "tool", "tool_call_id": id, "content": "module example " + strings.Repeat("and more ", 20)},
	}
}

func TestTemplate_RendersToolHistory(t *testing.T) {
	s := Start(t)
	history := append([]object{user("Look.")}, exchange("a", "")...)
	history[1]["tool_calls"] = append(history[1]["tool_calls"].([]object), exchange("b", "")[0]["tool_calls"].([]object)...)
	history[2]["content"] = "one"
	history = append(history, object{"role": "tool", "tool_call_id": "b", "content": "two"}, user("Well?"))
	got := s.post(t, "/apply-template", object{"messages": history}).Prompt
	want := `<|im_start|>system
You help with programming.<|im_end|>
<|im_start|>user
Look.<|im_end|>
<|im_start|>assistant
<tool_call>
{"name": "read", "arguments": {"file": "go.mod", "line": 1}}
</tool_call>
<tool_call>
{"name": "read", "arguments": {"file": "go.mod", "line": 1}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
one
</tool_response>
<tool_response>
two
</tool_response><|im_end|>
<|im_start|>user
Well?<|im_end|>
<|im_start|>assistant
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("prompt (-want +got):\n%s", diff)
	}
}

func TestTemplateStrict(t *testing.T) {
	s := Options{Model: tinymodel.Options{Template: tinymodel.TemplateStrict}}.Start(t)
	pair := exchange("a", "")
	for _, c := range []struct {
		name     string
		messages []object
		raises   string // nothing: the history is in order
	}{
		{"user only", []object{user("a")}, ""},
		{"user and assistant by turns", []object{user("a"), assistant("b"), user("c")}, ""},
		{"call and result", append([]object{user("a")}, pair...), ""},
		{"answer behind a result", append(append([]object{user("a")}, pair...), assistant("b"), user("c")), ""},
		{"no user", []object{{"role": "system", "content": "s"}}, "No user query found in messages."},
		{"no user but results", pair[1:], "No user query found in messages."},
		{"two users", []object{user("a"), user("b")}, "Conversation roles must alternate"},
		{"user behind a result", append(append([]object{user("a")}, pair...), user("b")), "Conversation roles must alternate"},
		{"call without result", []object{user("a"), pair[0], user("b")}, "Not the same number of function calls and responses."},
		{"result without call", []object{user("a"), assistant("b"), pair[1], user("c")}, "Unexpected tool result"},
		{"result twice", append(append([]object{user("a")}, pair...), pair[1]), "Unexpected tool result"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := s.chat(t, object{"messages": c.messages, "tools": []object{readTool}, "max_tokens": 1})
			switch {
			case c.raises == "" && a.Status != http.StatusOK:
				t.Errorf("refused: %+v", a.Error)
			case c.raises != "" && (a.Status != http.StatusBadRequest || a.Error == nil || !strings.Contains(a.Error.Message, c.raises)):
				t.Errorf("status %d, error %+v, want one that says %q", a.Status, a.Error, c.raises)
			}
		})
	}
}

// Sharing a prefix with the cached prompt is what makes a summary call cheap,
// and this template takes the prefix away when a user message is appended.
func TestTemplateThinking(t *testing.T) {
	s := Options{Model: tinymodel.Options{Template: tinymodel.TemplateThinking}}.Start(t)
	loop := []object{user("Look at the files.")}
	for i := range 8 {
		loop = append(loop, exchange(fmt.Sprint(i), fmt.Sprintf("thought %d", i))...)
	}
	lost := func(appended ...object) int {
		t.Helper()
		for _, messages := range [][]object{loop, append(loop[:len(loop):len(loop)], appended...)} {
			a := s.chat(t, object{"messages": messages, "tools": []object{readTool}, "max_tokens": 1})
			if a.Status != http.StatusOK {
				t.Fatalf("unexpected answer %+v", a)
			}
			if &messages[0] != &loop[0] {
				return a.Usage.PromptTokens - a.Usage.PromptTokensDetails.CachedTokens
			}
		}
		panic("unreachable")
	}
	asTool := lost(object{"role": "tool", "tool_call_id": "7", "content": "Now summarise."})
	asUser := lost(user("Now summarise."))
	if asTool > 60 || asUser < 300 {
		t.Errorf("evaluated anew: %d tokens behind a tool message, %d behind a user message", asTool, asUser)
	}

	prompt := s.post(t, "/apply-template", object{"messages": loop}).Prompt
	if n := strings.Count(prompt, "<think>"); n != 8 {
		t.Errorf("%d thoughts rendered in a loop of 8", n)
	}
	prompt = s.post(t, "/apply-template", object{"messages": append(loop[:len(loop):len(loop)], user("So?"))}).Prompt
	if strings.Contains(prompt, "<think>") {
		t.Errorf("thoughts in front of a user message:\n%s", prompt)
	}
}

func TestOptions_ReachTheServer(t *testing.T) {
	s := Options{Context: 2048, Slots: 2}.Start(t, "--alias", "some-name")
	res, err := http.Get(s.URL + "/props")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	type props struct {
		TotalSlots int    `json:"total_slots"`
		Alias      string `json:"model_alias"`
		Template   string `json:"chat_template"`
		Defaults   struct {
			Context int `json:"n_ctx"`
		} `json:"default_generation_settings"`
	}
	var got props
	if err := json.NewDecoder(res.Body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	want := props{TotalSlots: 2, Alias: "some-name", Template: tinymodel.Template}
	want.Defaults.Context = 1024 // of each slot
	got.Template, want.Template = strings.TrimSpace(got.Template), strings.TrimSpace(want.Template)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("props (-want +got):\n%s", diff)
	}
	if !strings.Contains(s.Log(), "model loaded") {
		t.Errorf("log does not mention the loaded model:\n%s", s.Log())
	}
}

// The server may run where it sees nothing of this machine but what it is given.
func TestStart_TemplateFileAnywhere(t *testing.T) {
	file := filepath.Join(t.TempDir(), "an odd 'name'.jinja")
	if err := os.WriteFile(file, []byte("{%- for m in messages %}[{{ m.content }}]{% endfor -%}"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := Start(t, "--chat-template-file", file)
	got := s.post(t, "/apply-template", object{"messages": []object{user("a"), assistant("b"), user("c")}}).Prompt
	if got != "[a][b][c]" {
		t.Errorf("prompt %q", got)
	}
}

func TestServer_Stop(t *testing.T) {
	s := Start(t)
	s.Stop()
	s.Stop()
	if _, err := http.Get(s.URL + "/health"); err == nil {
		t.Error("the server answers after Stop")
	}
	// It went by itself; killed, it could not have written this.
	if !strings.Contains(s.Log(), "cleaning up before exit") {
		t.Errorf("the log shows no orderly end:\n%s", s.Log())
	}
}

func TestServer_Kill_BreaksAStream(t *testing.T) {
	s := Start(t)
	res, err := http.Post(s.URL+"/v1/chat/completions", "application/json", strings.NewReader(
		`{"messages": [{"role": "user", "content": "Go on."}], "stream": true, "ignore_eos": true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.ReadFull(res.Body, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	rest, err := io.ReadAll(res.Body)
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the stream ends with %v and %.200q, want it cut off", err, rest)
	}
}

// launchDirectly is Start without its help.
func launchDirectly(t *testing.T, port string, args ...string) (*Server, error) {
	t.Helper()
	script, err := find()
	if err != nil {
		unavailable(t, err)
	}
	model, err := cachedModel(t, tinymodel.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := launch(t.Context(), script, port, model, args)
	if err == nil {
		t.Cleanup(s.Stop)
	}
	return s, err
}

func TestLaunch_PortTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	if _, err := launchDirectly(t, port); !errors.Is(err, errPortTaken) {
		t.Errorf("launch says %v, want %v", err, errPortTaken)
	}
}

func TestLaunch_TellsWhatTheServerSaid(t *testing.T) {
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	_, err = launchDirectly(t, port, "--no-such-option")
	if err == nil || !strings.Contains(err.Error(), "--no-such-option") {
		t.Errorf("launch says %v", err)
	}
}

// abandon makes a test of this binary leave a running server behind.
const abandon = "LLAMATEST_ABANDON"

func TestStart_ServerDiesWithTheTest(t *testing.T) {
	if os.Getenv(abandon) == "1" {
		fmt.Println("serving at", Start(t).URL)
		os.Exit(0) // like a panic or a time limit: no cleanup
	}
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends a child with its parent")
	}
	if _, err := find(); err != nil {
		unavailable(t, err)
	}
	test := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	test.Env = append(os.Environ(), abandon+"=1")
	out, err := test.CombinedOutput()
	_, url, ok := strings.Cut(strings.TrimSpace(string(out)), "serving at http://")
	if err != nil || !ok {
		t.Fatalf("%v: %s", err, out)
	}
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for {
		conn, err := net.Dial("tcp", url)
		if err != nil {
			return
		}
		conn.Close()
		select {
		case <-poll.C:
		case <-deadline.C:
			t.Fatalf("the server at %s outlives its test", url)
		}
	}
}
