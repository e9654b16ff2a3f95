package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	openai "github.com/sashabaranov/go-openai"

	"github.com/compactproxy/compactproxy/internal/llamasim"
	"github.com/compactproxy/compactproxy/internal/npmtest"
)

const sum = `{"a":2,"b":3}`

// adder is a model that calls the tool add, and answers once it has a result.
func adder(r llamasim.Request) llamasim.Reply {
	last := r.Messages[len(r.Messages)-1]
	switch {
	case last.Role == "tool":
		return llamasim.Reply{Text: "The sum is " + last.Content + "."}
	case len(r.Tools) > 0 && r.Tools[0].Name == "add":
		return llamasim.Reply{ToolCalls: []llamasim.ToolCall{{ID: "call_1", Name: "add", Arguments: sum}}}
	}
	return llamasim.Reply{Text: "2 + 3 = 5, 漢字 😀"}
}

// patient is an adder that begins when one keep-alive chunk has left the proxy,
// and goes on after its role chunk when a second one has.
type patient struct {
	*llamasim.Server
	seen chan struct{}
}

func newPatient() *patient {
	p := &patient{seen: make(chan struct{}, 100)}
	wait := func(ctx context.Context) {
		select {
		case <-p.seen:
		case <-ctx.Done():
		}
	}
	p.Server = llamasim.New(llamasim.Options{Reply: func(r llamasim.Request) llamasim.Reply {
		reply := adder(r)
		var once sync.Once
		reply.BeforeFirstByte = wait
		reply.BetweenEvents = func(ctx context.Context) { once.Do(func() { wait(ctx) }) }
		return reply
	}})
	return p
}

// watched serves the proxy and reports each keep-alive chunk that it writes.
func (p *patient) watched(t testing.TB, proxy http.Handler) string {
	t.Helper()
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proxy.ServeHTTP(&watchedWriter{w, p.seen}, r)
	}))
	t.Cleanup(front.Close)
	return front.URL
}

type watchedWriter struct {
	http.ResponseWriter
	seen chan<- struct{}
}

func (w *watchedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *watchedWriter) Write(b []byte) (int, error) {
	n, err := w.ResponseWriter.Write(b)
	for range bytes.Count(b, []byte(`"content":""`)) {
		w.seen <- struct{}{}
	}
	return n, err
}

// ---- sashabaranov/go-openai

func goClient(address string) *openai.Client {
	config := openai.DefaultConfig("sk-local")
	config.BaseURL = address + "/v1"
	config.HTTPClient = &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	return openai.NewClientWithConfig(config)
}

var (
	question = []openai.ChatCompletionMessage{
		{Role: openai.ChatMessageRoleSystem, Content: "You are terse."},
		{Role: openai.ChatMessageRoleUser, Content: "What is 2 + 3?"},
	}
	addTool = openai.Tool{Type: openai.ToolTypeFunction, Function: &openai.FunctionDefinition{
		Name: "add", Parameters: map[string]any{"type": "object", "properties": map[string]any{"a": map[string]any{"type": "number"}, "b": map[string]any{"type": "number"}}},
	}}
)

// gathered is what a client puts together from a stream.
type gathered struct {
	content, finish string
	calls           []string // name and arguments
	ids             map[string]bool
	roles, prompt   int
	keepAlives      int // chunks without anything before the first token
}

func gather(t testing.TB, c *openai.Client, req openai.ChatCompletionRequest) (gathered, error) {
	t.Helper()
	g := gathered{ids: map[string]bool{}}
	stream, err := c.CreateChatCompletionStream(t.Context(), req)
	if err != nil {
		return g, err
	}
	defer stream.Close()
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return g, nil
		}
		if err != nil {
			return g, err
		}
		g.ids[chunk.ID] = true
		if chunk.Usage != nil {
			g.prompt = chunk.Usage.PromptTokens
		}
		for _, choice := range chunk.Choices {
			d := choice.Delta
			if d.Role != "" {
				g.roles++
			}
			if d.Content == "" && len(d.ToolCalls) == 0 && choice.FinishReason == "" && g.content == "" {
				g.keepAlives++
			}
			g.content += d.Content
			g.finish += string(choice.FinishReason)
			for _, call := range d.ToolCalls {
				for len(g.calls) <= *call.Index {
					g.calls = append(g.calls, "")
				}
				g.calls[*call.Index] += call.Function.Name + call.Function.Arguments
			}
		}
	}
}

func TestSDK_Go(t *testing.T) {
	sim := llamasim.New(llamasim.Options{Window: 4096, Reply: adder})
	r := start(t, sim)
	c := goClient(r.URL)
	t.Run("chat", func(t *testing.T) {
		res, err := c.CreateChatCompletion(t.Context(), openai.ChatCompletionRequest{Model: "m", Messages: question})
		if err != nil {
			t.Fatal(err)
		}
		if got := res.Choices[0].Message.Content; got != "2 + 3 = 5, 漢字 😀" || res.Usage.PromptTokens == 0 {
			t.Errorf("got %q, %+v", got, res.Usage)
		}
	})
	t.Run("tool call", func(t *testing.T) {
		res, err := c.CreateChatCompletion(t.Context(), openai.ChatCompletionRequest{Model: "m", Messages: question, Tools: []openai.Tool{addTool}})
		if err != nil {
			t.Fatal(err)
		}
		m := res.Choices[0].Message
		if len(m.ToolCalls) != 1 || m.ToolCalls[0].Function.Arguments != sum {
			t.Fatalf("got %+v", m)
		}
		next := append(question[:len(question):len(question)], m, openai.ChatCompletionMessage{Role: openai.ChatMessageRoleTool, ToolCallID: m.ToolCalls[0].ID, Content: "5"})
		res, err = c.CreateChatCompletion(t.Context(), openai.ChatCompletionRequest{Model: "m", Messages: next, Tools: []openai.Tool{addTool}})
		if err != nil || res.Choices[0].Message.Content != "The sum is 5." {
			t.Errorf("%v, got %+v", err, res)
		}
	})
	t.Run("stream", func(t *testing.T) {
		got, err := gather(t, c, openai.ChatCompletionRequest{Model: "m", Messages: question, StreamOptions: &openai.StreamOptions{IncludeUsage: true}})
		if err != nil || got.content != "2 + 3 = 5, 漢字 😀" || got.finish != "stop" || len(got.ids) != 1 || got.roles != 1 || got.prompt == 0 {
			t.Errorf("%v, got %+v", err, got)
		}
	})
	t.Run("streamed tool call", func(t *testing.T) {
		got, err := gather(t, c, openai.ChatCompletionRequest{Model: "m", Messages: question, Tools: []openai.Tool{addTool}})
		if err != nil || len(got.calls) != 1 || got.calls[0] != "add"+sum || got.finish != "tool_calls" {
			t.Errorf("%v, got %+v", err, got)
		}
	})
	t.Run("an overflow that nobody sees", func(t *testing.T) {
		long := question[:len(question):len(question)]
		for i := range 12 {
			long = append(long,
				openai.ChatCompletionMessage{Role: openai.ChatMessageRoleAssistant, ToolCalls: []openai.ToolCall{{ID: fmt.Sprint("c", i), Type: openai.ToolTypeFunction, Function: openai.FunctionCall{Name: "read", Arguments: fmt.Sprintf(`{"path":"/%d.go"}`, i)}}}},
				openai.ChatCompletionMessage{Role: openai.ChatMessageRoleTool, ToolCallID: fmt.Sprint("c", i), Content: strings.Repeat(fmt.Sprintf("line of file %d and so on\n", i), 80)})
		}
		sim.ForgetRequests()
		got, err := gather(t, c, openai.ChatCompletionRequest{Model: "m", Messages: long, Tools: []openai.Tool{addTool}})
		if err != nil || !strings.HasPrefix(got.content, "The sum is") {
			t.Errorf("%v, got %+v", err, got)
		}
		res, err := c.CreateChatCompletion(t.Context(), openai.ChatCompletionRequest{Model: "m", Messages: long, Tools: []openai.Tool{addTool}})
		if err != nil || !strings.HasPrefix(res.Choices[0].Message.Content, "The sum is") {
			t.Errorf("%v, got %+v", err, res)
		}
		if n := len(sim.Requests()); n != 3 { // refused, recovered; replayed
			t.Errorf("%d requests", n)
		}
	})
}

func TestSDK_GoErrors(t *testing.T) {
	tests := []struct {
		name   string
		server http.HandlerFunc
		stream bool
		want   openai.APIError
	}{
		{"a refusal that is passed on", says(400, tooLong), false, openai.APIError{HTTPStatusCode: 400, Code: "context_length_exceeded", Type: "exceed_context_size_error"}},
		{"a refusal of a stream", says(400, tooLong), true, openai.APIError{HTTPStatusCode: 400, Code: "context_length_exceeded", Type: "exceed_context_size_error"}},
		{"the server breaks", plays(cut), false, openai.APIError{HTTPStatusCode: 502, Code: "upstream_unreachable", Type: "server_error"}},
		{"an error of the server", says(503, `{"error":{"message":"Loading model","type":"unavailable_error","code":503}}`), false, openai.APIError{HTTPStatusCode: 503, Code: float64(503), Type: "unavailable_error"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := start(t, tt.server)
			c := goClient(r.URL)
			req := openai.ChatCompletionRequest{Model: "m", Messages: question}
			var err error
			if tt.stream {
				_, err = gather(t, c, req)
			} else {
				_, err = c.CreateChatCompletion(t.Context(), req)
			}
			var got *openai.APIError
			if !errors.As(err, &got) {
				t.Fatalf("got %T %v", err, err)
			}
			if got.HTTPStatusCode != tt.want.HTTPStatusCode || fmt.Sprint(got.Code) != fmt.Sprint(tt.want.Code) || got.Type != tt.want.Type || got.Message == "" {
				t.Errorf("got %+v", got)
			}
		})
	}
	t.Run("an error inside the stream", func(t *testing.T) {
		r := start(t, plays(roleEvent, tokenEvent, "data: {\"error\":{\"code\":500,\"message\":\"boom\",\"type\":\"server_error\"}}\n\n"))
		got, err := gather(t, goClient(r.URL), openai.ChatCompletionRequest{Model: "m", Messages: question})
		if err == nil || !strings.Contains(err.Error(), "boom") || got.content != "Hi" {
			t.Errorf("%v, got %+v", err, got)
		}
	})
	t.Run("a cut stream", func(t *testing.T) {
		r := start(t, plays(roleEvent, tokenEvent, cut))
		if got, err := gather(t, goClient(r.URL), openai.ChatCompletionRequest{Model: "m", Messages: question}); err == nil {
			t.Errorf("it looks finished: %+v", got)
		}
	})
}

// Two keep-alive chunks come first, one before the server's headers and one
// behind its role chunk; the stream stays one of one id.
func TestSDK_GoKeepAlive(t *testing.T) {
	for name, tt := range map[string]struct {
		tools []openai.Tool
		want  gathered
	}{
		"text":      {nil, gathered{content: "2 + 3 = 5, 漢字 😀", finish: "stop"}},
		"tool call": {[]openai.Tool{addTool}, gathered{calls: []string{"add" + sum}, finish: "tool_calls"}},
	} {
		t.Run(name, func(t *testing.T) {
			sim := newPatient()
			r := start(t, sim, keptAlive(20*time.Millisecond))
			got, err := gather(t, goClient(sim.watched(t, r.Proxy)), openai.ChatCompletionRequest{Model: "m", Messages: question, Tools: tt.tools})
			if err != nil {
				t.Fatal(err)
			}
			if got.content != tt.want.content || got.finish != tt.want.finish || !cmp.Equal(got.calls, tt.want.calls) {
				t.Errorf("got %+v", got)
			}
			if len(got.ids) != 1 || got.roles != 1 || got.keepAlives < 2 {
				t.Errorf("ids %v, %d roles, %d keep-alives", got.ids, got.roles, got.keepAlives)
			}
		})
	}
}

// ---- openai, the npm package

type nodeResult struct {
	Content  string
	Finish   string
	Role     string
	Calls    []struct{ Name, Arguments string }
	Messages []string
	Prompt   int

	IDs, Created, Roles, Chunks int
	SameID                      bool

	Error   string
	Status  int
	Code    any
	Type    string
	Message string
}

// TestSDK_Node lets the openai package for Node talk through the proxy. All
// scenarios run in one process, since starting one takes half a second.
func TestSDK_Node(t *testing.T) {
	folder := npmtest.Install(t, "testdata/openai-node")
	const said = "2 + 3 = 5, 漢字 😀"
	calledAdd := func(r nodeResult) bool {
		return r.Finish == "tool_calls" && len(r.Calls) == 1 && r.Calls[0].Name == "add" && r.Calls[0].Arguments == sum
	}
	oneStream := func(r nodeResult) bool {
		return r.IDs == 1 && r.Created == 1 && r.Roles == 1 && r.Role == "assistant" && r.SameID
	}
	plain := start(t, llamasim.New(llamasim.Options{Reply: adder})).URL
	small := llamasim.New(llamasim.Options{Window: 4096, Reply: adder})
	behind := func(server http.Handler) string { return start(t, server).URL }
	slow := func() string {
		p := newPatient()
		return p.watched(t, start(t, p, keptAlive(20*time.Millisecond)).Proxy)
	}
	refusesLate := &patient{seen: make(chan struct{}, 100)}
	late := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-refusesLate.seen:
		case <-r.Context().Done():
		}
		says(400, tooLong)(w, r)
	}), keptAlive(20*time.Millisecond))

	tests := []struct {
		name, scenario, address string
		good                    func(nodeResult) bool
	}{
		{"chat", "chat", plain, func(r nodeResult) bool { return r.Content == said && r.Prompt > 0 }},
		{"tool call", "toolCall", plain, calledAdd},
		{"stream, iterated", "iterate", plain, func(r nodeResult) bool { return r.Content == said }},
		{"stream, accumulated", "stream", plain, func(r nodeResult) bool {
			return r.Content == said && r.Finish == "stop" && r.Prompt > 0 && oneStream(r)
		}},
		{"streamed tool call, accumulated", "streamedToolCall", plain, func(r nodeResult) bool { return calledAdd(r) && oneStream(r) }},
		{"runTools", "runTools", plain, func(r nodeResult) bool {
			return r.Content == "The sum is 5." && cmp.Equal(r.Messages, []string{"system", "user", "assistant", "tool", "assistant"})
		}},
		{"an overflow that nobody sees", "overflow", behind(small), func(r nodeResult) bool {
			return strings.HasPrefix(r.Content, "The sum is") && len(small.Requests()) == 2 && oneStream(r)
		}},
		{"keep-alive first", "stream", slow(), func(r nodeResult) bool {
			return r.Content == said && r.Finish == "stop" && r.Prompt > 0 && oneStream(r)
		}},
		{"keep-alive before a tool call", "streamedToolCall", slow(), func(r nodeResult) bool { return calledAdd(r) && oneStream(r) }},
		{"keep-alive, iterated", "iterate", slow(), func(r nodeResult) bool { return r.Content == said }},
		{"an error inside the stream", "stream", behind(plays(roleEvent, tokenEvent, "data: {\"error\":{\"code\":500,\"message\":\"boom\",\"type\":\"server_error\"}}\n\n")), func(r nodeResult) bool {
			return r.Error != "" && strings.Contains(r.Message, "boom")
		}},
		{"an error behind a keep-alive", "stream", refusesLate.watched(t, late.Proxy), func(r nodeResult) bool {
			return r.Error != "" && r.Code == "context_length_exceeded" && strings.Contains(r.Message, "maximum context length is 4096 tokens")
		}},
		{"a refusal that is passed on", "stream", behind(says(400, tooLong)), func(r nodeResult) bool {
			return r.Error == "BadRequestError" && r.Status == 400 && r.Code == "context_length_exceeded" && r.Type == "exceed_context_size_error"
		}},
		{"a cut stream", "stream", behind(plays(roleEvent, tokenEvent, cut)), func(r nodeResult) bool { return r.Error != "" }},
	}
	args := []string{"testdata/openai-node/client.mjs", folder}
	for _, tt := range tests {
		args = append(args, tt.scenario+"="+tt.address+"/v1")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", args...)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s%s", err, out, complaints.Bytes())
	}
	results := json.NewDecoder(bytes.NewReader(out))
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got nodeResult
			if err := results.Decode(&got); err != nil {
				t.Fatal(err)
			}
			if !tt.good(got) {
				t.Errorf("got %+v", got)
			}
		})
	}
}
