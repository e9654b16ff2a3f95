package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	openaigo "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/compactproxy/compactproxy/internal/llamasim"
	"github.com/compactproxy/compactproxy/internal/npmtest"
)

// slowScribe writes each summary after two keep-alive chunks have left the proxy;
// then it takes one more before it answers, and one more behind its role chunk.
type slowScribe struct {
	*scribe
	patient // counts what leaves the proxy
}

func newSlowScribe() *slowScribe {
	s := &slowScribe{scribe: newScribe(), patient: patient{seen: make(chan struct{}, 100)}}
	s.hold = func(ctx context.Context, _ int) { s.wait(ctx); s.wait(ctx) }
	s.chat = func(r llamasim.Request) *llamasim.Reply {
		reply := llamasim.Reply{Text: saidFive}
		switch {
		case len(r.Tools) == 0 || r.Tools[0].Name != "add":
		case r.Messages[len(r.Messages)-1].Role == "tool":
			reply = llamasim.Reply{Text: "The sum is 5."}
			return &reply // of a request that need not wait
		default:
			reply = llamasim.Reply{ToolCalls: []llamasim.ToolCall{{ID: "call_1", Name: "add", Arguments: sum}}}
		}
		var once sync.Once
		reply.BeforeFirstByte = s.wait
		reply.BetweenEvents = func(ctx context.Context) { once.Do(func() { s.wait(ctx) }) }
		return &reply
	}
	return s
}

const saidFive = "2 + 3 = 5, 漢字 😀"

// wait returns when one more keep-alive chunk has left.
func (s *slowScribe) wait(ctx context.Context) {
	select {
	case <-s.seen:
	case <-ctx.Done():
	}
}

// behindProxy is the address of a proxy before the scribe. Where answer is set, it
// answers clients instead of the scribe, behind the summary.
func (s *slowScribe) behindProxy(t *testing.T, answer http.HandlerFunc) string {
	t.Helper()
	var server http.Handler = s.scribe
	if answer != nil {
		server = s.otherwise(answer)
	}
	r := start(t, server, scribed(keptAlive(20*time.Millisecond), inProse)...)
	return s.watched(t, r.Proxy) + "/v1"
}

// laterErrors are what may go wrong when a summary is written and keep-alive has
// spent the headers, and what the client must be told.
var laterErrors = map[string]struct {
	answer http.HandlerFunc
	told   string // part of the message
}{
	"a refusal as too long": {says(400, tooLong), "maximum context length is 4096 tokens"},
	"an error":              {says(500, `{"error":{"code":500,"message":"boom","type":"server_error"}}`), "boom"},
	"an error in a stream":  {plays(roleEvent, "data: {\"error\":{\"code\":500,\"message\":\"boom\",\"type\":\"server_error\"}}\n\n"), "boom"},
	"an error behind text":  {plays(roleEvent, tokenEvent, "data: {\"error\":{\"code\":500,\"message\":\"boom\",\"type\":\"server_error\"}}\n\n"), "boom"},
	"a gateway's page":      {replies(0, 502, "text/html", "<html>Bad Gateway</html>"), "502"},
	"a broken connection":   {plays(cut), "no answer from the server"},
	"a stream that is cut":  {plays(roleEvent, tokenEvent, cut), ""},
}

// ---- openai/openai-go

// longHistory is a conversation over the scribe's threshold, with a question at its
// end.
func longHistory(t testing.TB, tools ...string) openaigo.ChatCompletionNewParams {
	t.Helper()
	h := longSession().and(`{"role":"user","content":"What is 2 + 3?"}`)
	var p openaigo.ChatCompletionNewParams
	var list []string
	for _, name := range tools {
		list = append(list, fmt.Sprintf(`{"type":"function","function":{"name":%q,"parameters":{"type":"object","properties":{"a":{"type":"number"},"b":{"type":"number"},"path":{"type":"string"}}}}}`, name))
	}
	if err := json.Unmarshal(h.body(`,"tools":[`+strings.Join(list, ",")+`],"stream_options":{"include_usage":true}`), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

func officialClient(address string) openaigo.Client {
	return openaigo.NewClient(option.WithBaseURL(address), option.WithAPIKey("sk-local"), option.WithMaxRetries(0),
		option.WithHTTPClient(&http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}))
}

// accumulate is what the package's own accumulator makes of a stream.
func accumulate(t testing.TB, c openaigo.Client, p openaigo.ChatCompletionNewParams) (acc openaigo.ChatCompletionAccumulator, chunks []openaigo.ChatCompletionChunk, err error) {
	t.Helper()
	stream := c.Chat.Completions.NewStreaming(t.Context(), p)
	defer stream.Close()
	for stream.Next() {
		chunk := stream.Current()
		chunks = append(chunks, chunk)
		if !acc.AddChunk(chunk) {
			return acc, chunks, errors.New("the accumulator refuses " + chunk.RawJSON())
		}
	}
	return acc, chunks, stream.Err()
}

func TestSDKSummary_OpenAIGo(t *testing.T) {
	for name, tt := range map[string]struct {
		tools           []string
		content, finish string
		calls           []string
	}{
		"text":      {[]string{"read"}, saidFive, "stop", nil},
		"tool call": {[]string{"add", "read"}, "", "tool_calls", []string{"add" + sum}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSlowScribe()
			acc, chunks, err := accumulate(t, officialClient(s.behindProxy(t, nil)), longHistory(t, tt.tools...))
			if err != nil {
				t.Fatal(err)
			}
			if len(acc.Choices) != 1 {
				t.Fatalf("%d choices", len(acc.Choices))
			}
			choice := acc.Choices[0]
			var calls []string
			for _, c := range choice.Message.ToolCalls {
				calls = append(calls, c.Function.Name+c.Function.Arguments)
			}
			if choice.Message.Content != tt.content || choice.FinishReason != tt.finish || choice.Message.Role != "assistant" || !cmp.Equal(calls, tt.calls) {
				t.Errorf("got %+v, calls %v", choice, calls)
			}
			clients, _ := s.split()
			if last := clients[len(clients)-1]; acc.Usage.PromptTokens != int64(last.PromptTokens) || acc.Usage.CompletionTokens != int64(last.Predicted) {
				t.Errorf("usage %+v, want %d and %d", acc.Usage, last.PromptTokens, last.Predicted)
			}
			roles, empty := 0, 0
			for _, c := range chunks {
				if c.ID != acc.ID || c.Created != chunks[0].Created {
					t.Errorf("a chunk of another stream: %s", c.RawJSON())
				}
				if len(c.Choices) > 0 && c.Choices[0].Delta.Role != "" {
					roles++
				}
				if len(c.Choices) > 0 && c.Choices[0].Delta.JSON.Content.Raw() == `""` {
					empty++
				}
			}
			if roles != 1 || empty < 4 {
				t.Errorf("%d roles, %d keep-alives", roles, empty)
			}
			if s.asked() == 0 {
				t.Error("no summary")
			}
			wantSummarised(t, s.forwarded(t))
		})
	}
	for name, tt := range laterErrors {
		t.Run(name, func(t *testing.T) {
			s := newSlowScribe()
			acc, chunks, err := accumulate(t, officialClient(s.behindProxy(t, tt.answer)), longHistory(t, "read"))
			if err == nil || !strings.Contains(err.Error(), tt.told) {
				t.Errorf("error %v; got %+v", err, acc.ChatCompletion)
			}
			if len(chunks) < 2 {
				t.Errorf("%d chunks: keep-alive had not spent the headers", len(chunks))
			}
		})
	}
}

// ---- npm packages

type nodeSummary struct {
	Content, Finish, Role string
	Calls                 []string
	Prompt                int
	IDs, Created, Roles   int
	Empty                 int

	Error, Message string
}

// A package and what it says of an answer that is whole.
type nodePackage struct {
	folder, script string
	toolCalls      string // its word for an answer that ends in calls
	sees           bool   // the script sees the chunks themselves
}

func TestSDKSummary_Node(t *testing.T) {
	for name, p := range map[string]nodePackage{
		"openai": {"testdata/openai-node", "testdata/openai-node-summary/client.mjs", "tool_calls", true},
		"ai":     {"testdata/ai-sdk-node", "testdata/ai-sdk-node/client.mjs", "tool-calls", false},
	} {
		t.Run(name, func(t *testing.T) { p.test(t) })
	}
}

func (p nodePackage) test(t *testing.T) {
	folder := npmtest.Install(t, p.folder)
	type run struct {
		name, scenario string
		server         *slowScribe
		address        string
		good           func(nodeSummary, *slowScribe) bool
	}
	usage := func(r nodeSummary, s *slowScribe) bool {
		clients, _ := s.split()
		return r.Prompt == clients[len(clients)-1].PromptTokens
	}
	oneStream := func(r nodeSummary) bool {
		return !p.sees || r.IDs == 1 && r.Created == 1 && r.Roles == 1 && r.Role == "assistant" && r.Empty >= 4
	}
	runs := []run{
		{"text", "text", newSlowScribe(), "", func(r nodeSummary, s *slowScribe) bool {
			return r.Content == saidFive && r.Finish == "stop" && len(r.Calls) == 0 && usage(r, s) && oneStream(r)
		}},
		{"tool call", "call", newSlowScribe(), "", func(r nodeSummary, s *slowScribe) bool {
			return cmp.Equal(r.Calls, []string{"add" + sum}) && r.Finish == p.toolCalls && r.Content == "" && usage(r, s) && oneStream(r)
		}},
		{"a loop of calls", "loop", newSlowScribe(), "", func(r nodeSummary, s *slowScribe) bool {
			clients, _ := s.split()
			return r.Content == "The sum is 5." && r.Finish == "stop" && len(clients) == 2
		}},
	}
	for i := range runs {
		runs[i].address = runs[i].server.behindProxy(t, nil)
	}
	for name, later := range laterErrors {
		s := newSlowScribe()
		runs = append(runs, run{name, "text", s, s.behindProxy(t, later.answer), func(r nodeSummary, _ *slowScribe) bool {
			return r.Error != "" && strings.Contains(r.Message, later.told)
		}})
	}
	args := []string{p.script, folder}
	for _, r := range runs {
		args = append(args, r.scenario+"="+r.address)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", args...)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s%s", err, out, complaints.Bytes())
	}
	results := json.NewDecoder(bytes.NewReader(out))
	for _, r := range runs {
		t.Run(r.name, func(t *testing.T) {
			var got nodeSummary
			if err := results.Decode(&got); err != nil {
				t.Fatal(err)
			}
			if !r.good(got, r.server) {
				t.Errorf("got %+v", got)
			}
			if r.server.asked() == 0 {
				t.Error("no summary")
			}
		})
	}
	if t.Failed() {
		t.Logf("the client complained: %s", complaints.Bytes())
	}
}
