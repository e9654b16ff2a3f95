package proxy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/corpus"
	"github.com/compactproxy/compactproxy/internal/llamasim"
	"github.com/compactproxy/compactproxy/internal/metrics"
	"github.com/compactproxy/compactproxy/internal/pairing"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// history is a message list as raw JSON.
type history []string

// readsOf is a session of an agent that reads n files of so many bytes.
func readsOf(n, bytes int) history {
	h := history{`{"role":"system","content":"You are an agent."}`, `{"role":"user","content":"Task: find the fault."}`}
	return h.reads(0, n, bytes)
}

func (h history) reads(first, n, bytes int) history {
	h = h[:len(h):len(h)]
	for i := first; i < first+n; i++ {
		text := strings.Repeat(fmt.Sprintf("line of file %d and so on\n", i), bytes/25)
		h = append(h,
			fmt.Sprintf(`{"role":"assistant","content":null,"tool_calls":[{"id":"call_%d","type":"function","function":{"name":"read","arguments":"{\"path\":\"/%d.go\"}"}}]}`, i, i),
			fmt.Sprintf(`{"role":"tool","tool_call_id":"call_%d","content":%s}`, i, jsonText(text)))
	}
	return h
}

func (h history) and(messages ...string) history { return append(h[:len(h):len(h)], messages...) }

func jsonText(s string) string {
	out, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(out)
}

const (
	answered   = `{"role":"assistant","content":"Done so far."}`
	readTool   = `,"tools":[{"type":"function","function":{"name":"read","description":"read a file","parameters":{"type":"object","properties":{"path":{"type":"string"}}}}}]`
	unknown    = `,"x_unknown":1.0,"temperature":0e0`
	plainBody  = readTool + unknown
	streamBody = readTool + unknown + `,"stream":true`
)

func (h history) body(rest string) []byte {
	return []byte(`{"model":"m","messages":[` + strings.Join(h, ",") + `]` + rest + `}`)
}

// settled is a rig whose post returns when the proxy is done with the request,
// log line and all: the client has a plain answer before that.
type settled struct {
	*rig
	done chan struct{}
}

// settling starts a proxy that compacts only when the server refuses.
func settling(t testing.TB, upstream http.Handler, options ...rigOption) *settled {
	t.Helper()
	s := &settled{done: make(chan struct{}, 1000)}
	onlyWhenRefused := withConfig(func(c *config.Config) {
		c.Compaction.Threshold, c.Compaction.Predictive = config.Exactly(1), false
	})
	s.rig = start(t, upstream, append(append([]rigOption{onlyWhenRefused}, options...), func(o *Options) {
		o.Log = o.Log.WithOptions(zap.Hooks(func(e zapcore.Entry) error {
			if e.Message == "request" {
				s.done <- struct{}{}
			}
			return nil
		}))
	})...)
	return s
}

func (s *settled) post(t testing.TB, body []byte, header ...string) (*http.Response, []byte) {
	t.Helper()
	res, answer := s.rig.post(t, body, header...)
	select {
	case <-s.done:
	case <-t.Context().Done():
		t.Fatal("the request was not logged")
	}
	return res, answer
}

// recoveries reads the counters of a recovery.
type recoveries struct{ passes, clip, observed, rejected, answered, refused, failed, hopeless float64 }

func (r *settled) recoveries() recoveries {
	count := func(kind, result string) float64 {
		return testutil.ToFloat64(r.metrics.Compactions.WithLabelValues("recovery", kind, result))
	}
	retry := func(result string) float64 {
		return testutil.ToFloat64(r.metrics.OverflowRetries.WithLabelValues(result))
	}
	return recoveries{
		passes: count("passes", metrics.ResultInstalled), clip: count("clip", metrics.ResultInstalled),
		observed: count("passes", metrics.ResultObserved) + count("clip", metrics.ResultObserved),
		rejected: count("passes", metrics.ResultRejected) + count("clip", metrics.ResultRejected),
		answered: retry(metrics.RetryAnswered), refused: retry(metrics.RetryRefused), failed: retry(metrics.RetryFailed), hopeless: retry(metrics.RetryHopeless),
	}
}

func bodiesOf(sim *llamasim.Server) (out [][]byte) {
	for _, r := range sim.Requests() {
		out = append(out, r.Body)
	}
	return out
}

// inTurn answers each request with the next step, the last one for ever, and
// keeps what it was sent.
type inTurn struct {
	mu    sync.Mutex
	steps []http.HandlerFunc
	taken [][]byte
}

func (s *inTurn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	s.mu.Lock()
	step := s.steps[min(len(s.taken), len(s.steps)-1)]
	s.taken = append(s.taken, body)
	s.mu.Unlock()
	step(w, r)
}

func (s *inTurn) requests() [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.taken)
}

func says(status int, body string) http.HandlerFunc {
	return replies(0, status, "application/json; charset=utf-8", body)
}

var (
	goodStream = plays(roleEvent, tokenEvent, endEvent, doneEvent)
	goodAnswer = says(200, `{"choices":[{"finish_reason":"stop","index":0,"message":{"role":"assistant","content":"Hi"}}],"usage":{"prompt_tokens":70,"completion_tokens":5}}`)
	// refusals of other servers
	bareRefusal = `{"error":{"message":"Your prompt is too long.","type":"invalid_request_error","code":"context_length_exceeded"}}`
	// outputTooLong: 3,000 tokens of input fit a window of 4,096.
	outputTooLong = `{"error":{"message":"This model's maximum context length is 4096 tokens. However, you requested 35000 tokens (3000 in the messages, 32000 in the completion). Please reduce the length of the messages or completion.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}`
)

// ---- one overflow

// An overflow of llama-server is recovered from without the client's knowing.
func TestRecovery(t *testing.T) {
	for name, rest := range map[string]string{"plain": plainBody, "stream": streamBody} {
		t.Run(name, func(t *testing.T) {
			window := &fixedWindow{}
			sim := llamasim.New(llamasim.Options{Window: 4096})
			r := settling(t, sim, func(o *Options) { o.Tracker = window })
			h := readsOf(12, 2000)
			body := h.body(rest)
			res, answer := r.post(t, body)
			if res.StatusCode != 200 || bytes.Contains(answer, []byte("error")) {
				t.Fatalf("status %d: %s", res.StatusCode, answer)
			}
			sent := bodiesOf(sim)
			if len(sent) != 2 || !bytes.Equal(sent[0], body) {
				t.Fatalf("%d requests", len(sent))
			}
			if !hasAction(res, "recovery") || res.Header.Get(headerWarning) != "" || !strings.HasSuffix(res.Header.Get(headerTokens), "/4096") {
				t.Errorf("header %v", res.Header)
			}
			list := forwarded(t, sent[1])
			if v := pairing.Check(list); v != nil {
				t.Errorf("sent an illegal list: %v", v)
			}
			// Room was bought, not just enough to pass: half of what there is.
			if n := sim.Requests()[1].PromptTokens; n > 4096*6/10 || n < 4096/5 {
				t.Errorf("aimed for half of the window, got %d tokens", n)
			}
			// Everything but the list is the client's, byte for byte.
			head, tail := `{"model":"m","messages":[`+h[0]+`,`, `]`+rest+`}`
			if !bytes.HasPrefix(sent[1], []byte(head)) || !bytes.HasSuffix(sent[1], []byte(tail)) {
				t.Errorf("sent %.200s … %s", sent[1], sent[1][len(sent[1])-300:])
			}
			if window.tokens != 4096 {
				t.Errorf("the window was not learned: %d", window.tokens)
			}
			got := r.recoveries()
			if got.passes+got.clip != 1 || got.answered != 1 || got.refused+got.failed+got.hopeless+got.rejected+got.observed != 0 {
				t.Errorf("counters: %+v", got)
			}
			removed := 0.0
			for _, pass := range MetricLabels().Passes {
				removed += testutil.ToFloat64(r.metrics.PassRemoved.WithLabelValues(pass))
			}
			if before, after := testutil.ToFloat64(r.metrics.CompactedTokens.WithLabelValues("before")), testutil.ToFloat64(r.metrics.CompactedTokens.WithLabelValues("after")); removed < 10_000 || before < 4096 || after >= before {
				t.Errorf("removed %v bytes, %v tokens became %v", removed, before, after)
			}
			fields := requestLog(t, r.Logs)
			if fields["action"] != "recovery" || fields["refusal"] != "too_long" || fields["window_tokens"] != int64(4096) {
				t.Errorf("log %v", fields)
			}
			if n := r.Logs.FilterMessage("compacted").Len(); n != 1 {
				t.Errorf("%d lines about the compaction", n)
			}
		})
	}
}

// The carriers of a refusal that comes inside a 200, before the first token.
func TestRecovery_InTheStream(t *testing.T) {
	oldest := strings.Replace(tooLong, `"code":400,`, `"code":500,`, 1)
	tests := []struct {
		name  string
		first http.HandlerFunc
		role  bool // a role chunk came first and is spent
	}{
		{"a data line (llama-server until October 2025)", plays("data: " + tooLong + "\n\n"), false},
		{"code 500 in it", plays("data: " + oldest + "\n\n"), false},
		{"an error line (older still)", plays("error: " + tooLong + "\n\n"), false},
		{"a named event (LM Studio)", plays("event: error\ndata: " + tooLong + "\n\n"), false},
		{"a named event without a space", plays("event:error\ndata:{\"message\":\"The prompt is too long\"}\n\n"), false},
		{"behind comments, which spend the headers", plays(":\n\n", ":\n\n", "data: "+tooLong+"\n\n"), false},
		{"a finish reason alone", plays(`data: {"choices":[{"index":0,"delta":{},"finish_reason":"model_context_window_exceeded"}]}` + "\n\n" + doneEvent), false},
		{"behind a role chunk", plays(roleEvent, "data: "+tooLong+"\n\n"), true},
		{"a finish reason behind a role chunk", plays(roleEvent, strings.Replace(endEvent, `"stop"`, `"model_context_window_exceeded"`, 1), doneEvent), true},
		{"with [DONE] behind it", plays("data: "+tooLong+"\n\n", doneEvent), false},
		{"CR LF", plays("data: " + tooLong + "\r\n\r\n"), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			second := strings.NewReplacer(theirID, "chatcmpl-second", "1700000000", "1700000099")
			server := &inTurn{steps: []http.HandlerFunc{tt.first, plays(second.Replace(roleEvent), second.Replace(tokenEvent), second.Replace(endEvent), doneEvent)}}
			r := settling(t, server)
			res, answer := r.post(t, readsOf(12, 2000).body(streamBody))
			sent := server.requests()
			if len(sent) != 2 || len(sent[1]) >= len(sent[0]) {
				t.Fatalf("%d requests, answer %s", len(sent), answer)
			}
			want := second.Replace(roleEvent+tokenEvent+endEvent) + doneEvent
			if tt.role {
				want = roleEvent + tokenEvent + endEvent + doneEvent // one role chunk, one identity
			} else if !hasAction(res, "recovery") && !strings.Contains(string(answer), ":\n\n") {
				t.Errorf("action %q", res.Header.Get(headerAction))
			}
			if got := strings.ReplaceAll(string(answer), ":\n\n", ""); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if got := r.recoveries(); got.answered != 1 || got.passes+got.clip != 1 {
				t.Errorf("counters: %+v", got)
			}
		})
	}
}

// After a token it is too late: the error is passed on as it is, with what came
// before.
func TestRecovery_NotAfterAToken(t *testing.T) {
	for name, token := range map[string]string{
		"text":      tokenEvent,
		"reasoning": `data: {"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}` + "\n\n",
		"a call":    `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"read","arguments":"{"}}]}}]}` + "\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			server := &inTurn{steps: []http.HandlerFunc{plays(roleEvent, token, "data: "+tooLong+"\n\n"), goodStream}}
			r := settling(t, server)
			_, answer := r.post(t, readsOf(12, 2000).body(streamBody))
			if got, want := string(answer), roleEvent+token+"data: "+tooLong+"\n\n"; got != want || len(server.requests()) != 1 {
				t.Errorf("%d requests, got %s", len(server.requests()), got)
			}
		})
	}
}

// Every refusal that was ever recorded, positive and negative.
func TestRecovery_RecordedRefusals(t *testing.T) {
	raw, err := os.ReadFile(corpus.Path(t, "overflow.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	// Not recognised by design: no text, a rate limit, see the package upstream.
	unknown := []string{"Cerebras"}
	lines := bufio.NewScanner(bytes.NewReader(raw))
	lines.Buffer(nil, 1<<20)
	body := readsOf(12, 2000).body(streamBody)
	seen := 0
	for lines.Scan() {
		var row struct {
			Backend, Body, Shape string
			Status               int
			Overflow             bool
			Output               int `json:"n_output_requested"`
		}
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			t.Fatal(err)
		}
		if row.Status == 0 || row.Shape == "message_only" || row.Body == "" || row.Status > 500 || !row.Overflow && row.Output > 0 {
			continue
		}
		seen++
		first := says(row.Status, row.Body)
		if row.Status == 200 {
			event := row.Body
			if row.Shape != "sse" {
				event = "data: " + event + "\n\n"
			}
			if strings.Contains(event, "response.failed") {
				continue // another API
			}
			first = plays(strings.TrimRight(event, "\n") + "\n\n")
		}
		server := &inTurn{steps: []http.HandlerFunc{first, goodStream}}
		r := settling(t, server)
		res, answer := r.post(t, body)
		sent := server.requests()
		if row.Overflow && !slices.ContainsFunc(unknown, func(s string) bool { return strings.Contains(row.Backend, s) }) {
			pool := strings.Contains(row.Body, "Context size has been exceeded")
			if len(sent) != 2 || !pool && len(sent[1]) >= len(sent[0]) || pool && !bytes.Equal(sent[0], sent[1]) {
				t.Errorf("%s (%d): %d requests: %s", row.Backend, row.Status, len(sent), row.Body)
			}
			continue
		}
		if !row.Overflow && (len(sent) != 1 || res.StatusCode != row.Status || string(answer) != row.Body) {
			t.Errorf("%s (%d) is no overflow: %d requests, status %d, got %s", row.Backend, row.Status, len(sent), res.StatusCode, answer)
		}
	}
	if seen < 50 {
		t.Errorf("only %d rows", seen)
	}
}

// ---- how far

// Input and output together are too many, and the input alone fits: max_tokens
// is lowered, in every spelling, and the list stays.
func TestRecovery_OutputTooLong(t *testing.T) {
	tests := []struct{ name, asked, want string }{
		{"max_tokens", `,"max_tokens":32000`, `,"max_tokens":1080`},
		{"max_completion_tokens", `,"max_completion_tokens": 32000 `, `,"max_completion_tokens": 1080 `},
		{"both", `,"max_tokens":32000,"stop":["x"],"max_completion_tokens":64000`, `,"max_tokens":1080,"stop":["x"],"max_completion_tokens":1080`},
		{"llama-server's own", `,"n_predict":32000`, `,"n_predict":1080`},
	}
	for _, tt := range tests {
		for _, stream := range []string{"", `,"stream":true`} {
			t.Run(tt.name+stream, func(t *testing.T) {
				good := goodAnswer
				if stream != "" {
					good = goodStream
				}
				server := &inTurn{steps: []http.HandlerFunc{says(400, outputTooLong), good}}
				r := settling(t, server)
				h := readsOf(12, 2000)
				res, _ := r.post(t, h.body(tt.asked+stream))
				sent := server.requests()
				if res.StatusCode != 200 || len(sent) != 2 {
					t.Fatalf("status %d after %d requests", res.StatusCode, len(sent))
				}
				if diff := cmp.Diff(string(h.body(tt.want+stream)), string(sent[1])); diff != "" {
					t.Error(diff)
				}
				if res.Header.Get(headerAction) != "max_tokens" {
					t.Errorf("action %q", res.Header.Get(headerAction))
				}
				if got := r.recoveries(); got.answered != 1 || got.passes+got.clip+got.hopeless != 0 {
					t.Errorf("counters: %+v", got)
				}
			})
		}
	}
	t.Run("the server's default was too many: the list has to give way", func(t *testing.T) {
		server := &inTurn{steps: []http.HandlerFunc{says(400, outputTooLong), goodAnswer}}
		r := settling(t, server)
		res, _ := r.post(t, readsOf(12, 2000).body(""))
		if sent := server.requests(); res.StatusCode != 200 || len(sent) != 2 || len(sent[1]) >= len(sent[0]) {
			t.Errorf("status %d after %d requests", res.StatusCode, len(sent))
		}
	})
	t.Run("a bound for the input: our own count decides", func(t *testing.T) {
		atLeast := `{"error":{"message":"This model's maximum context length is 40960 tokens. However, you requested 32000 output tokens and your prompt contains at least 8961 input tokens, for a total of at least 40961 tokens.","type":"BadRequestError","param":"input_tokens","code":400}}`
		server := &inTurn{steps: []http.HandlerFunc{says(400, atLeast), goodAnswer}}
		r := settling(t, server)
		h := readsOf(12, 2000)
		res, _ := r.post(t, h.body(`,"max_tokens":32000`))
		sent := server.requests()
		if res.StatusCode != 200 || len(sent) != 2 {
			t.Fatalf("status %d after %d requests", res.StatusCode, len(sent))
		}
		var got struct {
			MaxTokens int `json:"max_tokens"`
		}
		if err := json.Unmarshal(sent[1], &got); err != nil {
			t.Fatal(err)
		}
		// 24,000 bytes are 8,000 tokens, more or less.
		if got.MaxTokens < 28_000 || got.MaxTokens > 32_000-1 || !bytes.Equal(sent[1], h.body(fmt.Sprintf(`,"max_tokens":%d`, got.MaxTokens))) {
			t.Errorf("max_tokens %d, list of %d bytes after %d", got.MaxTokens, len(sent[1]), len(sent[0]))
		}
	})
	t.Run("and still too long: then the list", func(t *testing.T) {
		server := &inTurn{steps: []http.HandlerFunc{says(400, outputTooLong), says(400, tooLong), goodAnswer}}
		r := settling(t, server)
		res, _ := r.post(t, readsOf(12, 2000).body(`,"max_tokens":32000`))
		sent := server.requests()
		if res.StatusCode != 200 || len(sent) != 3 || len(sent[2]) >= len(sent[1]) {
			t.Fatalf("status %d after %d requests", res.StatusCode, len(sent))
		}
		if !bytes.Contains(sent[2], []byte(`"max_tokens":1080`)) {
			t.Error("the lowered cap is forgotten")
		}
		if got := res.Header.Get(headerAction); got != "max_tokens, recovery" {
			t.Errorf("action %q", got)
		}
	})
	t.Run("twice the same", func(t *testing.T) {
		server := &inTurn{steps: []http.HandlerFunc{says(400, outputTooLong)}}
		r := settling(t, server)
		res, _ := r.post(t, readsOf(12, 2000).body(`,"max_tokens":32000`))
		distinct(t, server.requests())
		if res.StatusCode != 400 {
			t.Errorf("status %d", res.StatusCode)
		}
	})
}

// distinct fails where the same body was sent twice.
func distinct(t *testing.T, sent [][]byte) {
	t.Helper()
	for i := range sent {
		for j := range i {
			if bytes.Equal(sent[i], sent[j]) {
				t.Errorf("requests %d and %d of %d are the same", j, i, len(sent))
			}
		}
	}
}

// textOf is the bytes of text in a body's list.
func textOf(t *testing.T, body []byte) int { return transcript.Sum(forwarded(t, body)) }

// A refusal without numbers: a third smaller. So where the number is a lower
// bound ("at least"), which says nothing of the size.
func TestRecovery_WithoutNumbers(t *testing.T) {
	for name, refusal := range map[string]string{
		"no numbers": bareRefusal,
		"at least":   `{"error":{"message":"This model's maximum context length is 40960 tokens. However, you requested 100 output tokens and your prompt contains at least 40861 input tokens, for a total of at least 40961 tokens.","type":"BadRequestError","param":"input_tokens","code":400}}`,
	} {
		t.Run(name, func(t *testing.T) {
			server := &inTurn{steps: []http.HandlerFunc{says(400, refusal), goodAnswer}}
			r := settling(t, server)
			h := readsOf(12, 2000)
			// What can shrink is far in front, and small steps suffice.
			res, _ := r.post(t, h.body(""))
			sent := server.requests()
			if res.StatusCode != 200 || len(sent) != 2 {
				t.Fatalf("status %d after %d requests", res.StatusCode, len(sent))
			}
			before, after := textOf(t, sent[0]), textOf(t, sent[1])
			if after > before*7/10 {
				t.Errorf("%d bytes became %d", before, after)
			}
			if w := res.Header.Get(headerTokens); name == "no numbers" && !strings.HasSuffix(w, "/0") {
				t.Errorf("a window out of nothing: %s", w)
			}
		})
	}
}

// The numbers of a refusal are believed: the count is scaled to them.
func TestRecovery_Aims(t *testing.T) {
	refusal := func(prompt int) http.HandlerFunc {
		return says(400, fmt.Sprintf(`{"error":{"code":400,"message":"request (%d tokens) exceeds the available context size (4096 tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":%d,"n_ctx":4096}}`, prompt, prompt))
	}
	sizes := map[int]int{}
	for _, prompt := range []int{4100, 6000, 12_000, 24_000} {
		server := &inTurn{steps: []http.HandlerFunc{refusal(prompt), goodAnswer}}
		r := settling(t, server)
		var h history
		h = append(h, readsOf(0, 0)...)
		for i := range 40 { // small results: nothing for the passes, turns have to go
			h = h.and(fmt.Sprintf(`{"role":"assistant","content":%s}`, jsonText(strings.Repeat("word ", 90))), fmt.Sprintf(`{"role":"user","content":"Go on %d."}`, i))
		}
		res, _ := r.post(t, h.body(""))
		sent := server.requests()
		if res.StatusCode != 200 || len(sent) != 2 {
			t.Fatalf("status %d after %d requests", res.StatusCode, len(sent))
		}
		sizes[prompt] = textOf(t, sent[1])
		rate := float64(prompt) / float64(textOf(t, sent[0]))
		if got := rate * float64(sizes[prompt]); got > 4096*0.55 {
			t.Errorf("%d tokens: still %.0f after the recovery", prompt, got)
		}
	}
	if !(sizes[4100] > sizes[6000] && sizes[6000] > sizes[12_000] && sizes[12_000] > sizes[24_000]) {
		t.Errorf("the larger the prompt was, the less may stay: %v", sizes)
	}
}

// An answer that filled the window makes the next request compact before it
// leaves.
func TestRecovery_AnswerThatFilledTheWindow(t *testing.T) {
	for name, rest := range map[string]string{"plain": plainBody, "stream": streamBody} {
		t.Run(name, func(t *testing.T) {
			sim := llamasim.New(llamasim.Options{Window: 4096, Reply: func(r llamasim.Request) llamasim.Reply {
				return llamasim.Reply{Text: "word ", Endless: r.Number == 1}
			}})
			r := settling(t, sim, func(o *Options) { o.Tracker = &fixedWindow{tokens: 4096} })
			h := readsOf(4, 2000)
			if res, answer := r.post(t, h.body(rest)); res.StatusCode != 200 || !bytes.Contains(answer, []byte(`"length"`)) {
				t.Fatalf("status %d: %.300s", res.StatusCode, answer)
			}
			h = h.and(answered, `{"role":"user","content":"Go on."}`)
			res, _ := r.post(t, h.body(rest))
			sent := sim.Requests()
			if res.StatusCode != 200 || len(sent) != 2 || sent[1].PromptTokens >= sent[0].PromptTokens {
				t.Fatalf("status %d after %d requests", res.StatusCode, len(sent))
			}
			if !hasAction(res, "recovery") {
				t.Errorf("action %q", res.Header.Get(headerAction))
			}
			if got := r.recoveries(); got.passes+got.clip != 1 {
				t.Errorf("counters: %+v", got)
			}
			// The one after it replays, and does not compact again.
			h = h.and(answered, `{"role":"user","content":"And on."}`)
			if res, _ := r.post(t, h.body(rest)); res.Header.Get(headerAction) != "replay" {
				t.Errorf("action %q", res.Header.Get(headerAction))
			}
		})
	}
}

// Nothing was refused there, and nothing was sent again.
func TestRecovery_FilledWindowIsNoRetry(t *testing.T) {
	sim := llamasim.New(llamasim.Options{Window: 4096, Reply: func(r llamasim.Request) llamasim.Reply {
		return llamasim.Reply{Text: "word ", Endless: r.Number == 1}
	}})
	r := settling(t, sim, func(o *Options) { o.Tracker = &fixedWindow{tokens: 4096} })
	h := readsOf(4, 2000)
	r.post(t, h.body(plainBody))
	r.post(t, h.and(answered, `{"role":"user","content":"Go on."}`).body(plainBody))
	if got := r.recoveries(); got.answered+got.refused+got.failed+got.hopeless != 0 {
		t.Errorf("overflow_retries_total counts requests that were refused and sent again; none was: %+v", got)
	}
}

// Compacting ahead does not use up the one retry: where the next request is
// refused all the same, because what is new in it costs more than was thought,
// it is recovered from.
func TestRecovery_RefusedAfterAFilledWindow(t *testing.T) {
	sim := llamasim.New(llamasim.Options{Window: 4096, Reply: func(r llamasim.Request) llamasim.Reply {
		return llamasim.Reply{Text: "word ", Endless: r.Number == 1}
	}})
	r := settling(t, sim, func(o *Options) { o.Tracker = &fixedWindow{tokens: 4096} })
	h := readsOf(4, 2000)
	r.post(t, h.body(plainBody))
	// To this server a token for every byte, three times what is thought.
	h = h.and(answered, `{"role":"user","content":`+jsonText("Translate: "+strings.Repeat("漢字", 2500))+`}`)
	res, answer := r.post(t, h.body(plainBody))
	if res.StatusCode != 200 {
		t.Errorf("status %d after %d requests: %s", res.StatusCode, len(sim.Requests()), answer)
	}
}

// Two compactions in one request, one ahead and one after a refusal, leave one
// checkpoint: the next request extends what was sent at last.
func TestRecovery_CompactedTwice(t *testing.T) {
	filled := says(200, `{"choices":[{"finish_reason":"length","index":0,"message":{"role":"assistant","content":"Hi"}}],"usage":{"prompt_tokens":4000,"completion_tokens":96}}`)
	long := `{"role":"user","content":` + jsonText("Explain:\n"+strings.Repeat("another line of a log\n", 600)) + `}`
	tests := []struct {
		name   string
		before history // a request that is refused and recovered from, if any
		h      history // the one whose answer fills the window
	}{
		{"results that were read", nil, readsOf(4, 2000)},
		{"behind a checkpoint", readsOf(12, 2000), readsOf(12, 2000).reads(50, 1, 400)},
		{"behind a checkpoint of many messages", readsOf(30, 300), readsOf(30, 300).reads(50, 2, 400)},
		{"behind a checkpoint of many small turns", chatter(60), chatter(60).and(answered, `{"role":"user","content":"Go on."}`)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var steps []http.HandlerFunc
			if tt.before != nil {
				steps = append(steps, says(400, tooLong), goodAnswer)
			}
			server := &inTurn{steps: append(steps, filled, says(400, tooLong), goodAnswer)}
			r := settling(t, server, func(o *Options) { o.Tracker = &fixedWindow{tokens: 4096} })
			if tt.before != nil {
				if res, _ := r.post(t, tt.before.body("")); !hasAction(res, "recovery") {
					t.Fatalf("action %q", res.Header.Get(headerAction))
				}
			}
			r.post(t, tt.h.body(""))
			h := tt.h.and(answered, long)
			res, err := http.Post(r.URL+"/v1/chat/completions", "application/json", bytes.NewReader(h.body("")))
			if err != nil {
				t.Fatalf("no answer at all: %v", err)
			}
			answer, _ := io.ReadAll(res.Body)
			res.Body.Close()
			<-r.done
			sent := server.requests()[len(steps)+1:]
			if res.StatusCode != 200 || len(sent) != 2 || len(sent[1]) >= len(sent[0]) {
				t.Fatalf("status %d after %d requests, warning %q: %.300s", res.StatusCode, len(sent), res.Header.Get(headerWarning), answer)
			}
			if v := pairing.Check(forwarded(t, sent[1])); v != nil {
				t.Errorf("sent an illegal list: %v", v)
			}
			again, _ := r.post(t, h.and(answered, `{"role":"user","content":"And now?"}`).body(""))
			sent = server.requests()[len(steps)+1:]
			last, next := rawsOf(forwarded(t, sent[1])), rawsOf(forwarded(t, sent[len(sent)-1]))
			if again.Header.Get(headerAction) != "replay" || len(sent) != 3 {
				t.Errorf("the next request: action %q, %d requests", again.Header.Get(headerAction), len(sent)-2)
			}
			if !extends(next, last) {
				t.Errorf("the next list, of %d messages and %d bytes, does not extend the last, of %d and %d", len(next), len(sent[len(sent)-1]), len(last), len(sent[1]))
			}
		})
	}
}

// chatter is a session of n short turns, in which nothing can be thinned.
func chatter(n int) history {
	h := history{`{"role":"system","content":"You are an agent."}`, `{"role":"user","content":"Task: find the fault."}`}
	for i := range n {
		h = h.and(fmt.Sprintf(`{"role":"assistant","content":%s}`, jsonText(strings.Repeat(fmt.Sprint("word", i, " "), 60))), fmt.Sprintf(`{"role":"user","content":"Go on %d."}`, i))
	}
	return h
}

// A finish reason that says so after tokens is passed on, and the next request
// compacts first.
func TestRecovery_WindowExceededAfterTokens(t *testing.T) {
	end := strings.Replace(endEvent, `"stop"`, `"model_context_window_exceeded"`, 1)
	for name, last := range map[string]string{
		"with counts":    end,
		"without counts": end[:strings.Index(end, `,"timings"`)] + "}\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			server := &inTurn{steps: []http.HandlerFunc{plays(roleEvent, tokenEvent, last, doneEvent), goodStream}}
			r := settling(t, server)
			h := readsOf(12, 2000)
			_, answer := r.post(t, h.body(streamBody))
			if string(answer) != roleEvent+tokenEvent+last+doneEvent || len(server.requests()) != 1 {
				t.Fatalf("got %s", answer)
			}
			h = h.and(answered, `{"role":"user","content":"Go on."}`)
			res, _ := r.post(t, h.body(streamBody))
			sent := server.requests()
			if !hasAction(res, "recovery") || len(sent) != 2 || len(sent[1]) >= len(sent[0]) {
				t.Errorf("action %q, %d requests", res.Header.Get(headerAction), len(sent))
			}
		})
	}
}

// ---- where it ends

// Only overhead above the window is hopeless. The refusal goes on with its
// status, type and numbers, the code and wording that every agent knows.
func TestRecovery_Hopeless(t *testing.T) {
	for name, stream := range map[string]string{"plain": "", "stream": `,"stream":true`} {
		t.Run(name, func(t *testing.T) {
			sim := llamasim.New(llamasim.Options{Window: 1024})
			r := settling(t, sim)
			h := history{`{"role":"system","content":` + jsonText(strings.Repeat("Rule after rule. ", 500)) + `}`}
			h = h.and(readsOf(2, 200)[1:]...)
			res, answer := r.post(t, h.body(stream))
			sent := sim.Requests()
			if res.StatusCode != 400 || len(sent) != 1 {
				t.Fatalf("status %d after %d requests", res.StatusCode, len(sent))
			}
			var got struct {
				Error struct {
					Code, Message, Type string
					NPrompt             int `json:"n_prompt_tokens"`
					NCtx                int `json:"n_ctx"`
				}
			}
			if err := json.Unmarshal(answer, &got); err != nil {
				t.Fatal(err)
			}
			e := got.Error
			if e.Code != "context_length_exceeded" || e.Type != "exceed_context_size_error" || e.NCtx != 1024 || e.NPrompt != sent[0].PromptTokens {
				t.Errorf("got %+v", e)
			}
			if !strings.HasPrefix(e.Message, fmt.Sprintf("request (%d tokens) exceeds the available context size (1024 tokens), try increasing it", e.NPrompt)) ||
				!strings.Contains(e.Message, fmt.Sprintf("This model's maximum context length is 1024 tokens. However, your messages resulted in %d tokens.", e.NPrompt)) {
				t.Errorf("message %q", e.Message)
			}
			if w := res.Header.Get(headerWarning); !strings.Contains(w, "system messages and tools alone exceed the window") {
				t.Errorf("warning %q", w)
			}
			if got := r.recoveries(); got.hopeless != 1 || got.answered+got.refused+got.failed != 0 {
				t.Errorf("counters: %+v", got)
			}
			if got := int(res.ContentLength); got != len(answer) {
				t.Errorf("content length %d of %d", got, len(answer))
			}
		})
	}
}

// A refusal in the stream that is passed on is worded anew in its event; with a
// finish reason it is counted once, not for every event behind it.
func TestRecovery_HopelessInTheStream(t *testing.T) {
	huge := history{`{"role":"system","content":` + jsonText(strings.Repeat("Rule after rule. ", 2000)) + `}`, `{"role":"user","content":"x"}`}
	t.Run("error object", func(t *testing.T) {
		server := &inTurn{steps: []http.HandlerFunc{plays(roleEvent, "data: "+tooLong+"\n\n")}}
		r := settling(t, server)
		_, answer := r.post(t, huge.body(`,"stream":true`))
		got := string(answer)
		if !strings.HasPrefix(got, roleEvent+`data: {"error":{"code":"context_length_exceeded",`) || !strings.Contains(got, "maximum context length is 4096") || !strings.HasSuffix(got, "\"n_ctx\":4096}}\n\n") {
			t.Errorf("got %s", got)
		}
		if got := r.recoveries(); got.hopeless != 1 {
			t.Errorf("counters: %+v", got)
		}
	})
	t.Run("finish reason", func(t *testing.T) {
		stream := []any{roleEvent, strings.Replace(endEvent, `"stop"`, `"model_context_window_exceeded"`, 1), `data: {"choices":[],"usage":{"prompt_tokens":70,"completion_tokens":0}}` + "\n\n", doneEvent}
		server := &inTurn{steps: []http.HandlerFunc{plays(stream...)}}
		r := settling(t, server)
		// Two short messages: nothing can be shortened.
		_, answer := r.post(t, history{`{"role":"user","content":"x"}`}.body(`,"stream":true`))
		if want := fmt.Sprint(stream...); string(answer) != want || len(server.requests()) != 1 {
			t.Errorf("got %s", answer)
		}
		if got := r.recoveries(); got.hopeless != 1 || got.rejected != 1 {
			t.Errorf("one refusal is counted for each event behind it: %+v", got)
		}
	})
}

// A second refusal is passed on.
func TestRecovery_RefusedAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		rest    string
		refuses http.HandlerFunc
	}{
		"plain":             {"", says(400, tooLong)},
		"stream":            {`,"stream":true`, says(400, tooLong)},
		"inside the stream": {`,"stream":true`, plays("data: " + tooLong + "\n\n")},
		"without numbers":   {"", says(400, bareRefusal)},
	} {
		t.Run(name, func(t *testing.T) {
			server := &inTurn{steps: []http.HandlerFunc{tt.refuses}}
			r := settling(t, server)
			_, answer := r.post(t, readsOf(12, 2000).body(tt.rest))
			sent := server.requests()
			if len(sent) != 2 {
				t.Fatalf("%d requests", len(sent))
			}
			distinct(t, sent)
			if !bytes.Contains(answer, []byte(`"code":"context_length_exceeded"`)) || !bytes.Contains(answer, []byte("maximum context length")) {
				t.Errorf("got %s", answer)
			}
			if got := r.recoveries(); got.refused != 1 || got.answered != 0 {
				t.Errorf("counters: %+v", got)
			}
		})
	}
}

// Never the same list twice.
func TestRecovery_NothingToShorten(t *testing.T) {
	server := &inTurn{steps: []http.HandlerFunc{says(400, tooLong)}}
	r := settling(t, server)
	res, answer := r.post(t, history{`{"role":"user","content":"hello"}`}.body(""))
	if n := len(server.requests()); n != 1 || res.StatusCode != 400 || !bytes.Contains(answer, []byte("context_length_exceeded")) {
		t.Errorf("%d requests, status %d: %s", n, res.StatusCode, answer)
	}
}

// A retry that fails otherwise is a failure, whatever the failure looks like.
func TestRecovery_RetryFails(t *testing.T) {
	for name, tt := range map[string]struct {
		rest   string
		fails  http.HandlerFunc
		status int
	}{
		"the connection breaks":           {"", plays(cut), 502},
		"the connection breaks, streamed": {`,"stream":true`, plays(cut), 502},
		"500":                             {"", says(500, `{"error":{"code":500,"message":"boom","type":"server_error"}}`), 500},
		"500, streamed":                   {`,"stream":true`, says(500, `{"error":{"code":500,"message":"boom","type":"server_error"}}`), 500},
		"503":                             {`,"stream":true`, says(503, `{"error":{"message":"Loading model","type":"unavailable_error","code":503}}`), 503},
		"an error in the stream":          {`,"stream":true`, plays("data: {\"error\":{\"code\":500,\"message\":\"boom\",\"type\":\"server_error\"}}\n\n"), 200},
	} {
		t.Run(name, func(t *testing.T) {
			server := &inTurn{steps: []http.HandlerFunc{says(400, tooLong), tt.fails}}
			r := settling(t, server)
			res, _ := r.post(t, readsOf(12, 2000).body(tt.rest))
			if res.StatusCode != tt.status || len(server.requests()) != 2 {
				t.Errorf("status %d after %d requests", res.StatusCode, len(server.requests()))
			}
			if got := r.recoveries(); got.failed != 1 || got.answered != 0 {
				t.Errorf("counters: %+v", got)
			}
		})
	}
}

// ---- modes

// Mode observe says what it would have done and changes no byte.
func TestRecovery_Observe(t *testing.T) {
	for name, tt := range map[string]struct{ rest, action string }{
		"plain":  {plainBody, "would-recovery"},
		"stream": {streamBody, "would-recovery"},
	} {
		t.Run(name, func(t *testing.T) {
			sim := llamasim.New(llamasim.Options{Window: 4096})
			r := settling(t, sim)
			body := readsOf(12, 2000).body(tt.rest)
			direct, want := post(t, r.Upstream+"/v1/chat/completions", body)
			res, got := r.post(t, body, headerMode, "observe")
			if res.StatusCode != direct.StatusCode || !bytes.Equal(got, want) {
				t.Errorf("status %d: %s\nwant %d: %s", res.StatusCode, got, direct.StatusCode, want)
			}
			if sent := bodiesOf(sim); len(sent) != 2 || !bytes.Equal(sent[1], body) {
				t.Errorf("%d requests", len(sent)-1)
			}
			if got := res.Header.Get(headerAction); got != tt.action {
				t.Errorf("action %q", got)
			}
			if got := r.recoveries(); got.observed != 1 || got.passes+got.clip+got.answered+got.refused+got.hopeless != 0 {
				t.Errorf("counters: %+v", got)
			}
			// Nothing is on file for the next request.
			if res, _ := r.post(t, body, headerMode, "observe"); res.Header.Get(headerAction) != tt.action {
				t.Errorf("then %q", res.Header.Get(headerAction))
			}
			if got := r.index.Stats().Checkpoints; got != 0 {
				t.Errorf("%d checkpoints on file", got)
			}
		})
	}
	t.Run("max_tokens", func(t *testing.T) {
		server := &inTurn{steps: []http.HandlerFunc{says(400, outputTooLong)}}
		r := settling(t, server)
		res, answer := r.post(t, readsOf(12, 2000).body(`,"max_tokens":32000`), headerMode, "observe")
		if string(answer) != outputTooLong || len(server.requests()) != 1 || res.Header.Get(headerAction) != "would-max_tokens" {
			t.Errorf("action %q after %d requests: %s", res.Header.Get(headerAction), len(server.requests()), answer)
		}
	})
	t.Run("the shared pool", func(t *testing.T) {
		server := &inTurn{steps: []http.HandlerFunc{says(500, poolError)}}
		r := settling(t, server)
		_, answer := r.post(t, readsOf(12, 2000).body(""), headerMode, "observe")
		if string(answer) != poolError || len(server.requests()) != 1 {
			t.Errorf("%d requests: %s", len(server.requests()), answer)
		}
	})
	t.Run("a list that would be repaired first", func(t *testing.T) {
		server := &inTurn{steps: []http.HandlerFunc{says(400, tooLong)}}
		r := settling(t, server)
		h := readsOf(12, 2000)
		h = h.and(strings.Replace(h[2], "call_0", "call_lost", 1), `{"role":"user","content":"Go on."}`)
		res, answer := r.post(t, h.body(""), headerMode, "observe")
		if string(answer) != tooLong {
			t.Errorf("got %s", answer)
		}
		if got := res.Header.Get(headerAction); got != "would-repair, would-recovery" {
			t.Errorf("action %q, warning %q: in mode on, this list is repaired and recovered from", got, res.Header.Get(headerWarning))
		}
	})
	t.Run("an error in the stream", func(t *testing.T) {
		stream := roleEvent + "data: " + tooLong + "\n\n"
		server := &inTurn{steps: []http.HandlerFunc{plays(stream)}}
		r := settling(t, server)
		_, answer := r.post(t, readsOf(12, 2000).body(streamBody), headerMode, "observe")
		if string(answer) != stream || len(server.requests()) != 1 {
			t.Errorf("got %s", answer)
		}
	})
}

func TestRecovery_Off(t *testing.T) {
	for name, refuses := range map[string]http.HandlerFunc{
		"status": says(400, tooLong), "pool": says(500, poolError), "stream": plays("data: " + tooLong + "\n\n"),
	} {
		t.Run(name, func(t *testing.T) {
			server := &inTurn{steps: []http.HandlerFunc{refuses}}
			r := settling(t, server)
			body := readsOf(12, 2000).body(streamBody)
			_, want := post(t, r.Upstream+"/v1/chat/completions", body)
			res, got := r.post(t, body, headerMode, "off")
			if !bytes.Equal(got, want) || len(server.requests()) != 2 {
				t.Errorf("%d requests, got %s, want %s", len(server.requests())-1, got, want)
			}
			if v := res.Header.Get(headerAction); v != "" {
				t.Errorf("action %q", v)
			}
		})
	}
}

// ---- the requests after it

// After a recovery the next request's list begins with the very bytes that the
// recovered one had, and so on until the next recovery.
func TestReplay(t *testing.T) {
	sim := llamasim.New(llamasim.Options{Window: 4096})
	r := settling(t, sim)
	h := readsOf(10, 2000)
	var last [][]byte
	recovered := 0
	for turn := range 12 {
		sim.ForgetRequests()
		res, answer := r.post(t, h.body(streamBody))
		if res.StatusCode != 200 {
			t.Fatalf("turn %d: status %d: %s", turn, res.StatusCode, answer)
		}
		sent := bodiesOf(sim)
		list := rawsOf(forwarded(t, sent[len(sent)-1]))
		switch {
		case hasAction(res, "recovery"):
			recovered++
			if recovered > 1 && !hasAction(res, "replay") {
				t.Errorf("turn %d: a recovery does not build on the one before: %s", turn, res.Header.Get(headerAction))
			}
		case recovered > 0:
			if res.Header.Get(headerAction) != "replay" || len(sent) != 1 {
				t.Errorf("turn %d: action %q, %d requests", turn, res.Header.Get(headerAction), len(sent))
			}
			if !extends(list, last) {
				t.Errorf("turn %d does not extend the one before", turn)
			}
		}
		last = list
		h = h.reads(100+turn, 1, 1500)
	}
	if recovered < 2 || recovered > 6 {
		t.Errorf("%d recoveries in 12 turns", recovered)
	}
	all := string(bytes.Join(last, nil))
	for _, header := range []string{"Earlier turns of this conversation were removed", "The user's newest instruction"} {
		if n := strings.Count(all, header); n > 1 {
			t.Errorf("%d times %q", n, header)
		}
	}
	if !bytes.HasPrefix(last[1], []byte(`{"role":"user","content":"Task: find the fault.`)) {
		t.Errorf("the task: %s", last[1])
	}
}

// Leading system messages are always the request's own: agents put dates there.
func TestReplay_SystemMessageOfToday(t *testing.T) {
	sim := llamasim.New(llamasim.Options{Window: 4096})
	r := settling(t, sim)
	h := readsOf(12, 2000)
	r.post(t, h.body(plainBody))
	h = h.reads(50, 1, 100)
	h[0] = `{"role":"system","content":"You are an agent. Today is Friday."}`
	sim.ForgetRequests()
	res, _ := r.post(t, h.body(plainBody))
	sent := bodiesOf(sim)
	if !hasAction(res, "replay") || len(sent) != 1 || string(forwarded(t, sent[0])[0].Raw()) != h[0] {
		t.Errorf("action %q, sent %.200s", res.Header.Get(headerAction), sent[0])
	}
}

// What a client changes on a round trip does not break the chain: ids, the
// spacing of arguments, content as a part, reasoning.
func TestReplay_RoundTrips(t *testing.T) {
	sim := llamasim.New(llamasim.Options{Window: 4096})
	r := settling(t, sim)
	h := readsOf(12, 2000)
	r.post(t, h.body(plainBody))
	sim.ForgetRequests()
	changed := slices.Clone(h)
	changed[1] = `{"content":[{"type":"text","text":"Task: find the fault.","cache_control":{"type":"ephemeral"}}],"role":"user"}`
	changed[2] = strings.NewReplacer("call_0", "other_0", `{\"path\":\"/0.go\"}`, `{ \"path\" : \"\\u002f0.go\" }`, `"content":null`, `"content":"","reasoning_content":"hm"`).Replace(h[2])
	changed[3] = strings.Replace(h[3], "call_0", "other_0", 1)
	res, _ := r.post(t, changed.reads(50, 1, 100).body(plainBody))
	if !hasAction(res, "replay") || len(sim.Requests()) != 1 {
		t.Errorf("action %q after %d requests", res.Header.Get(headerAction), len(sim.Requests()))
	}
}

func TestReplay_Others(t *testing.T) {
	sim := llamasim.New(llamasim.Options{Window: 4096})
	r := settling(t, sim)
	h := readsOf(12, 2000)
	const alice = "Bearer alice"
	if res, _ := r.post(t, h.body(plainBody), "Authorization", alice); !hasAction(res, "recovery") {
		t.Fatalf("action %q", res.Header.Get(headerAction))
	}
	grown := h.reads(50, 1, 100)
	edited := slices.Clone(grown)
	edited[3] = strings.Replace(edited[3], "line of file", "LINE of file", 1)
	side := slices.Clone(h)
	side[0] = `{"role":"system","content":"You are a title generator."}`
	tests := []struct {
		name, key string
		body      []byte
		want      string
	}{
		{"the conversation goes on", alice, grown.body(plainBody), "replay"},
		{"the same request again", alice, h.body(plainBody), "replay"},
		{"a fork", alice, h.reads(70, 1, 100).body(plainBody), "replay"},
		{"a side request with another system message and no tools", alice, side.and(`{"role":"assistant","content":"x"}`, `{"role":"user","content":"A title?"}`).body(""), "replay"},
		{"and the conversation goes on", alice, grown.reads(51, 1, 100).body(plainBody), "replay"},
		{"an old message was edited", alice, edited.body(plainBody), "recovery"},
		{"another key", "Bearer bob", grown.body(plainBody), "recovery"},
		{"no key", "", grown.body(plainBody), "recovery"},
		{"a rewind to a list that fits", alice, h[:6].body(plainBody), "none"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res, answer := r.post(t, tt.body, "Authorization", tt.key)
			if got := res.Header.Get(headerAction); got != tt.want || res.StatusCode != 200 {
				t.Errorf("action %q, status %d: %.200s", got, res.StatusCode, answer)
			}
		})
	}
	ids := map[string]bool{}
	for _, tt := range tests {
		res, _ := r.post(t, tt.body, "Authorization", tt.key)
		ids[res.Header.Get(headerConversation)] = true
	}
	if len(ids) < 4 || ids[""] {
		t.Errorf("conversations %v", slices.Sorted(maps.Keys(ids)))
	}
}

// A fork keeps its own checkpoint, and the first branch its own.
func TestReplay_Fork(t *testing.T) {
	sim := llamasim.New(llamasim.Options{Window: 4096})
	r := settling(t, sim)
	h := readsOf(12, 2000)
	r.post(t, h.body(plainBody))
	left, right := h.reads(100, 1, 100), h.reads(200, 8, 1500)
	send := func(h history) (string, [][]byte) {
		sim.ForgetRequests()
		res, _ := r.post(t, h.body(plainBody))
		if res.StatusCode != 200 {
			t.Fatalf("status %d", res.StatusCode)
		}
		sent := bodiesOf(sim)
		return res.Header.Get(headerAction), rawsOf(forwarded(t, sent[len(sent)-1]))
	}
	_, first := send(left)
	if action, _ := send(right); action != "replay, recovery" {
		t.Fatalf("the right branch: %q", action)
	}
	action, second := send(left.reads(101, 1, 100))
	if action != "replay" || !extends(second, first) {
		t.Errorf("the left branch changed with the right one's compaction: %q", action)
	}
}

// A list that is illegal and too long is repaired and made to fit.
func TestRecovery_RepairedList(t *testing.T) {
	sim := llamasim.New(llamasim.Options{Window: 4096})
	r := settling(t, sim)
	h := readsOf(12, 2000)
	h = h.and(strings.Replace(h[2], "call_0", "call_lost", 1), `{"role":"user","content":"Go on."}`)
	res, answer := r.post(t, h.body(plainBody))
	sent := bodiesOf(sim)
	if res.StatusCode != 200 || len(sent) != 2 || res.Header.Get(headerAction) != "repair, recovery" {
		t.Fatalf("status %d after %d requests, action %q: %s", res.StatusCode, len(sent), res.Header.Get(headerAction), answer)
	}
	if v := pairing.Check(forwarded(t, sent[1])); v != nil {
		t.Errorf("sent %v", v)
	}
	// The next one extends it, with the call still unanswered.
	sim.ForgetRequests()
	res, _ = r.post(t, h.and(answered, `{"role":"user","content":"And on."}`).body(plainBody))
	next := bodiesOf(sim)
	if len(next) != 1 || !hasAction(res, "replay") {
		t.Fatalf("%d requests, action %q", len(next), res.Header.Get(headerAction))
	}
	if a, b := rawsOf(forwarded(t, sent[1])), rawsOf(forwarded(t, next[0])); !extends(b, a) {
		t.Errorf("the next list does not extend it")
	}
}

// Even where all that can stay is the newest instruction, and the turn that has
// to go is still open, the client gets an answer.
func TestRecovery_OpenTurnBeforeTheInstruction(t *testing.T) {
	sim := llamasim.New(llamasim.Options{Window: 4096})
	r := settling(t, sim)
	h := readsOf(3, 2000)
	h[0] = `{"role":"system","content":` + jsonText(strings.Repeat("line of rule 5 and so on\n", 465)) + `}`
	h = h.and(`{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"shell","arguments":`+jsonText(`{"command":"`+strings.Repeat("make ", 180)+`"}`)+`}}]}`, `{"role":"user","content":"Go on."}`)
	body := h.body("")
	if n, err := sim.PromptTokens(history{h[0]}.and(`{"role":"user","content":"x"}`).body("")); err != nil || n >= 4000 || n < 3500 {
		t.Fatalf("the overhead is %d tokens, %v", n, err)
	}
	res, err := http.Post(r.URL+"/v1/chat/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatalf("no answer at all: %v", err)
	}
	defer res.Body.Close()
	if answer, err := io.ReadAll(res.Body); err != nil || res.StatusCode != 200 {
		t.Errorf("%v, status %d: %s", err, res.StatusCode, answer)
	}
}

// Two identical requests at once are both answered, and agree.
func TestRecovery_AtOnce(t *testing.T) {
	sim := llamasim.New(llamasim.Options{Window: 4096})
	r := settling(t, sim)
	body := readsOf(12, 2000).body(streamBody)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if res, answer := r.post(t, body); res.StatusCode != 200 {
				t.Errorf("status %d: %s", res.StatusCode, answer)
			}
		})
	}
	wg.Wait()
	lists := map[string]bool{}
	for _, sent := range bodiesOf(sim) {
		if !bytes.Equal(sent, body) {
			lists[string(sent)] = true
		}
	}
	if len(lists) != 1 {
		t.Errorf("%d different lists were made of one", len(lists))
	}
}

// ---- the counters themselves

func TestMetrics(t *testing.T) {
	sim := llamasim.New(llamasim.Options{Window: 4096})
	r := settling(t, sim)
	ours := []string{
		"compactproxy_requests_total", "compactproxy_request_duration_seconds", "compactproxy_time_to_first_byte_seconds", "compactproxy_overhead_seconds",
		"compactproxy_inflight_requests", "compactproxy_prompt_tokens_total", "compactproxy_completion_tokens_total", "compactproxy_compactions_total",
		"compactproxy_pass_removed_bytes_total", "compactproxy_compaction_tokens_total", "compactproxy_overflow_retries_total", "compactproxy_pairing_violations_total",
		"compactproxy_upstream_context_tokens", "compactproxy_conversations", "compactproxy_state_bytes", "compactproxy_build_info",
		"compactproxy_prefix_expected_tokens_total", "compactproxy_prefix_reused_tokens_total", "compactproxy_cache_misses_total", "compactproxy_forecast_error_ratio",
		"compactproxy_rereads_total", "compactproxy_state_degraded",
		"compactproxy_summaries_total", "compactproxy_summary_duration_seconds", "compactproxy_summary_prompt_tokens_total", "compactproxy_summary_rejections_total",
	}
	// Every known child exists at 0 before the first request.
	before, err := testutil.GatherAndCount(r.Registry, ours...)
	if err != nil {
		t.Fatal(err)
	}
	h := readsOf(12, 2000)
	r.post(t, h.body(streamBody))
	r.post(t, h.reads(50, 1, 100).body(plainBody))
	r.post(t, h.and(strings.Replace(h[2], "call_0", "call_lost", 1)).body(plainBody))
	after, err := testutil.GatherAndCount(r.Registry, ours...)
	if err != nil {
		t.Fatal(err)
	}
	if before != after {
		t.Errorf("%d series before, %d after the first requests", before, after)
	}
	problems, err := testutil.GatherAndLint(r.Registry, ours...)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	if got := testutil.ToFloat64(r.metrics.Requests.WithLabelValues("chat", "200")); got != 3 {
		t.Errorf("%v requests", got)
	}
	if got := testutil.ToFloat64(r.metrics.Conversations); got != 2 {
		t.Errorf("%v conversations", got)
	}
	if got := testutil.ToFloat64(r.metrics.StateBytes); got < 1000 {
		t.Errorf("%v bytes of state", got)
	}
	if got := testutil.ToFloat64(r.metrics.Violations.WithLabelValues("unanswered_call", metrics.ActionRepaired)); got != 1 {
		t.Errorf("%v calls without a result", got)
	}
	families, err := r.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if name := f.GetName(); strings.HasPrefix(name, "compactproxy_") && !slices.Contains(ours, name) {
			t.Errorf("%s is in no test", name)
		}
	}
}

// pairing: off sends the client's list as it is; where that is refused as too
// long, a list that breaks the rules is dropped, not sent.
func TestRecovery_PairingOff(t *testing.T) {
	server := &inTurn{steps: []http.HandlerFunc{says(400, tooLong)}}
	r := settling(t, server, withConfig(func(c *config.Config) { c.Pairing = config.PairingOff }))
	h := readsOf(12, 2000)
	h = h.and(strings.Replace(h[2], "call_0", "call_lost", 1), `{"role":"user","content":"Go on."}`)
	body := h.body("")
	_, _ = r.post(t, body)
	for i, sent := range server.requests() {
		if i == 0 && !bytes.Equal(sent, body) {
			t.Error("the client's list was changed")
		}
		if i > 0 && pairing.Check(forwarded(t, sent)) != nil {
			t.Error("a rewrite that is not legally paired was sent")
		}
	}
}
