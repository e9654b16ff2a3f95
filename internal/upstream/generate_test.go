package upstream_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/compactproxy/compactproxy/internal/corpus"
	"github.com/compactproxy/compactproxy/internal/llamasim"
	"github.com/compactproxy/compactproxy/internal/llamatest"
	"github.com/compactproxy/compactproxy/internal/tinymodel"
	"github.com/compactproxy/compactproxy/internal/upstream"
)

// theirWords stands in whatever a server says; no error may quote it.
const theirWords = "the-conversation's-own-words"

// pieces reads as bytes that arrive in pieces of the given lengths, the rest in one,
// and end with an error.
type pieces struct {
	data []byte
	cuts []int
	err  error // io.EOF where nil
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.data) == 0 {
		if p.err != nil {
			return 0, p.err
		}
		return 0, io.EOF
	}
	n := len(p.data)
	if len(p.cuts) > 0 {
		n, p.cuts = min(p.cuts[0], n), p.cuts[1:]
	}
	n = copy(b, p.data[:min(n, len(b))])
	p.data = p.data[n:]
	return n, nil
}

// streaming is a generator whose server answers with that body.
func streaming(body io.Reader) upstream.Generator {
	return upstream.Generator{Server: &upstream.Counter{BaseURL: "http://server", Client: &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return nil, err
		}
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: io.NopCloser(body), Request: r}, nil
	})}}}
}

func generated(t testing.TB, stream string, minCached float64, cuts ...int) (upstream.Generated, error) {
	t.Helper()
	out, err := streaming(&pieces{data: []byte(stream), cuts: cuts}).Generate(t.Context(), []byte(`{}`), nil, minCached)
	wantWordless(t, err)
	return out, err
}

// wantWordless fails where an error says what the server said.
func wantWordless(t testing.TB, err error) {
	t.Helper()
	if err != nil && strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err), theirWords) {
		t.Errorf("the error quotes the server: %v", err)
	}
}

// The events of an answer as llama-server writes them.
func delta(member string) string {
	return `data: {"choices":[{"finish_reason":null,"index":0,"delta":{` + member + `}}],"created":1,"id":"x","model":"m","object":"chat.completion.chunk"}` + "\n\n"
}

func content(text string) string {
	quoted, _ := json.Marshal(text)
	return delta(`"content":` + string(quoted))
}

func progress(total, cache int) string {
	return fmt.Sprintf(`data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],"id":"x","prompt_progress":{"total":%d,"cache":%d,"processed":%d,"time_ms":0}}`+"\n\n", total, cache, cache)
}

func finish(reason string) string {
	return `data: {"choices":[{"finish_reason":"` + reason + `","index":0,"delta":{}}],"id":"x","timings":{"cache_n":30,"prompt_n":40,"predicted_n":5}}` + "\n\n"
}

const (
	usage = `data: {"choices":[],"usage":{"prompt_tokens":70,"completion_tokens":5,"total_tokens":75,"prompt_tokens_details":{"cached_tokens":30}}}` + "\n\n"
	role  = `data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],"id":"x"}` + "\n\n"
	done  = "data: [DONE]\n\n"
)

// ---- what is read

// The pieces in which a stream arrives do not matter.
func TestGenerate_AnyPieces(t *testing.T) {
	stream := ": comment\n\n" + progress(70, 60) + progress(70, 60) + role + content("2 + 3 = ") + delta(`"reasoning_content":"hm, 漢字"`) +
		strings.ReplaceAll(content("5, 漢字 😀\n\"q\""), "\n\n", "\r\n\r\n") + finish("stop") + usage + done
	want := upstream.Generated{Text: "2 + 3 = 5, 漢字 😀\n\"q\"", Reasoning: "hm, 漢字", Finish: "stop", Prompt: 70, Cached: 30, Completion: 5}
	for cut := range len(stream) {
		got, err := generated(t, stream, 0.8, cut)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Fatalf("cut at %d: %v\n%s", cut, err, diff)
		}
	}
	for name, r := range map[string]io.Reader{
		"byte by byte":                    iotest.OneByteReader(strings.NewReader(stream)),
		"the end comes with the last one": iotest.DataErrReader(strings.NewReader(stream)),
	} {
		got, err := streaming(r).Generate(t.Context(), []byte(`{}`), nil, 0.8)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
	}
}

// Streams of a real server, cut anywhere.
func TestGenerate_Captures(t *testing.T) {
	for name, calls := range map[string]bool{
		"chat_stream": false, "chat_stream_usage": false, "chat_stream_timings_per_token": false, "chat_stream_return_progress": false,
		"chat_stream_return_progress_repeat": false, "empty_completion_stream": false, "noshift_gen_hits_nctx_stream": false,
		"stream_tool_calls_1": true, "stream_tool_calls_2": true,
	} {
		t.Run(name, func(t *testing.T) {
			raw, err := os.ReadFile(filepath.Join(corpus.Path(t, "captures"), name+".json"))
			if err != nil {
				t.Fatal(err)
			}
			var c struct {
				Response struct {
					Text string `json:"body_text"`
				}
			}
			if err := json.Unmarshal(raw, &c); err != nil {
				t.Fatal(err)
			}
			stream := c.Response.Text
			want, err := generated(t, stream, 0)
			if err != nil || want.Finish == "" || want.Calls != calls {
				t.Fatalf("%+v, %v", want, err)
			}
			if name == "chat_stream_usage" && (want.Prompt <= 0 || want.Completion <= 0) {
				t.Errorf("counts %+v", want)
			}
			for cut := 0; cut < len(stream); cut += max(len(stream)/30, 1) {
				if got, err := generated(t, stream, 0, cut); err != nil || got != want {
					t.Fatalf("cut at %d: %+v, %v", cut, got, err)
				}
			}
		})
	}
}

// An answer is whole with [DONE], or where the server ends the connection behind a
// finish reason. Everything else is an error.
func TestGenerate_Ends(t *testing.T) {
	said := upstream.Generated{Text: "Hi", Finish: "stop"}
	tests := []struct {
		name   string
		stream string
		breaks error
		want   upstream.Generated
		fails  bool
	}{
		{name: "with [DONE]", stream: content("Hi") + finish("stop") + done, want: said},
		{name: "[DONE] without a line end", stream: content("Hi") + finish("stop") + "data: [DONE]", want: said},
		{name: "[DONE] without a space", stream: content("Hi") + finish("stop") + "data:[DONE]\n\n", want: said},
		{name: "CR LF", stream: strings.ReplaceAll(content("Hi")+finish("stop")+done, "\n", "\r\n"), want: said},
		{name: "more behind [DONE]", stream: content("Hi") + finish("stop") + done + content(" there"), want: said},
		{name: "without [DONE]", stream: content("Hi") + finish("stop"), want: said},
		{name: "without [DONE] and blank line", stream: content("Hi") + strings.TrimSpace(finish("stop")), want: said},
		{name: "[DONE] without a finish reason", stream: content("Hi") + done, want: upstream.Generated{Text: "Hi"}},
		{name: "[DONE] alone", stream: done},
		{name: "cut off by the limit", stream: content("Hi") + finish("length") + done, want: upstream.Generated{Text: "Hi", Finish: "length"}},
		{name: "without either", stream: content("Hi"), want: upstream.Generated{Text: "Hi"}, fails: true},
		{name: "nothing", stream: "", fails: true},
		{name: "comments alone", stream: ":\n\n:\n\n", fails: true},
		{name: "JSON that is no stream", stream: `{"choices":[{"message":{"content":"` + theirWords + `"},"finish_reason":"stop"}]}`, fails: true},
		{name: "a page", stream: "<html>" + theirWords + "</html>", fails: true},
		{name: "breaks", stream: content("Hi"), breaks: io.ErrUnexpectedEOF, want: upstream.Generated{Text: "Hi"}, fails: true},
		{name: "breaks in a line", stream: content("Hi") + content(theirWords)[:60], breaks: io.ErrUnexpectedEOF, want: upstream.Generated{Text: "Hi"}, fails: true},
		{name: "breaks before [DONE]", stream: content("Hi") + finish("stop"), breaks: errors.New(theirWords), want: said, fails: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := streaming(&pieces{data: []byte(tt.stream), err: tt.breaks}).Generate(t.Context(), []byte(`{}`), nil, 0)
			wantWordless(t, err)
			if (err != nil) != tt.fails || errors.Is(err, upstream.ErrTooDear) {
				t.Errorf("error %v", err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// What a server says went wrong is an error, in whatever dress, and its words stay
// where they are.
func TestGenerate_ErrorsInTheStream(t *testing.T) {
	for name, event := range map[string]string{
		"an object":                 `data: {"error":{"code":500,"message":"` + theirWords + `","type":"server_error"}}` + "\n\n",
		"a text":                    `data: {"error":"` + theirWords + `"}` + "\n\n",
		"beside choices":            `data: {"choices":[],"error":{"message":"` + theirWords + `"}}` + "\n\n",
		"no JSON":                   "data: " + theirWords + "\n\n",
		"half of some JSON":         `data: {"choices":[{"delta":{"content":"` + theirWords + "\n\n",
		"an event of that name":     "event: error\ndata: {\"message\":\"" + theirWords + "\"}\n\n",
		"an old llama-server's":     `error: {"code":500,"message":"` + theirWords + `","type":"server_error"}` + "\n\n",
		"an overflow in the stream": `data: {"error":{"code":400,"message":"` + theirWords + `","type":"exceed_context_size_error","n_prompt_tokens":5031,"n_ctx":4096}}` + "\n\n",
	} {
		for place, before := range map[string]string{"first": "", "later": role + content("Hi")} {
			t.Run(name+", "+place, func(t *testing.T) {
				got, err := generated(t, before+event, 0)
				if err == nil || errors.Is(err, upstream.ErrTooDear) {
					t.Errorf("%+v, %v", got, err)
				}
			})
		}
	}
}

// What is not understood is no error, and hides nothing that is.
func TestGenerate_OddEvents(t *testing.T) {
	want := upstream.Generated{Text: "Hi", Finish: "stop"}
	for name, event := range map[string]string{
		"error null":                  `data: {"error":null,"choices":[]}` + "\n\n",
		"choices null":                `data: {"choices":null}` + "\n\n",
		"choices of another type":     `data: {"choices":"none"}` + "\n\n",
		"no choices":                  `data: {"id":"x"}` + "\n\n",
		"delta null":                  `data: {"choices":[{"delta":null}]}` + "\n\n",
		"a delta of nothing":          delta(``),
		"content null":                delta(`"content":null`),
		"content empty":               delta(`"content":""`),
		"content in parts":            delta(`"content":[{"type":"text","text":"x"}]`),
		"a finish reason of nothing":  finish(""),
		"unknown members":             delta(`"x":1e400,"y":[[[]]]`),
		"usage null":                  `data: {"choices":[],"usage":null}` + "\n\n",
		"usage of another type":       `data: {"choices":[],"usage":[1]}` + "\n\n",
		"progress null":               `data: {"choices":[],"prompt_progress":null}` + "\n\n",
		"progress of nothing":         progress(0, 0),
		"progress of another type":    `data: {"choices":[],"prompt_progress":0.1}` + "\n\n",
		"a number":                    "data: 7\n\n",
		"null":                        "data: null\n\n",
		"a list":                      "data: [1,2]\n\n",
		"a comment":                   ": keep-alive\n",
		"a comment alone":             ":\n\n",
		"other fields":                "id: 7\nretry: 1000\nevent: message\n",
		"a field that begins alike":   "database: {\"error\":\"x\"}\n\n",
		"blank lines":                 "\n\r\n\n\n",
		"a name in another case":      `data: {"Choices":[]}` + "\n\n",
		"a second choice of no words": `data: {"choices":[{"index":1,"delta":{}}]}` + "\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			got, err := generated(t, role+event+content("Hi")+event+finish("stop")+event+done, 0.5)
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
}

// Counts are the server's, from wherever it says them; without any they are 0.
func TestGenerate_Counts(t *testing.T) {
	type counts struct{ prompt, cached, completion int }
	for name, tt := range map[string]struct {
		events string
		want   counts
	}{
		"usage at the end":        {content("Hi") + finish("stop") + usage, counts{70, 30, 5}},
		"usage beside the finish": {content("Hi") + strings.Replace(finish("stop"), `"timings"`, `"usage":{"prompt_tokens":70,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":30}},"timings"`, 1), counts{70, 30, 5}},
		"usage in every event":    {strings.ReplaceAll(usage, `:5,`, `:1,`) + content("Hi") + finish("stop") + usage, counts{70, 30, 5}},
		"usage without details":   {content("Hi") + finish("stop") + `data: {"choices":[],"usage":{"prompt_tokens":70,"completion_tokens":5}}` + "\n\n", counts{70, 0, 5}},
		"details null":            {content("Hi") + finish("stop") + `data: {"choices":[],"usage":{"prompt_tokens":70,"completion_tokens":5,"prompt_tokens_details":null}}` + "\n\n", counts{70, 0, 5}},
		"cached null":             {content("Hi") + finish("stop") + `data: {"choices":[],"usage":{"prompt_tokens":70,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":null}}}` + "\n\n", counts{70, 0, 5}},
		"usage null":              {`data: {"choices":[],"usage":null}` + "\n\n" + content("Hi") + finish("stop") + usage, counts{70, 30, 5}},
		"usage of nothing":        {content("Hi") + finish("stop") + `data: {"choices":[],"usage":{"prompt_tokens":0,"completion_tokens":0}}` + "\n\n", counts{}},
		"no usage":                {content("Hi") + strings.Replace(finish("stop"), `"timings"`, `"x_timings"`, 1), counts{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := generated(t, tt.events+done, 0)
			if err != nil || got.Text != "Hi" {
				t.Fatalf("%+v, %v", got, err)
			}
			if got := (counts{got.Prompt, got.Cached, got.Completion}); got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}

// A call of a tool is noticed in whatever pieces it comes, beside text or alone.
func TestGenerate_Calls(t *testing.T) {
	call := delta(`"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"read","arguments":"{\"pa"}}]`) +
		delta(`"tool_calls":[{"index":0,"function":{"arguments":"th\":\"/x\"}"}}]`)
	for name, tt := range map[string]struct {
		events string
		want   upstream.Generated
	}{
		"alone":       {role + call + finish("tool_calls"), upstream.Generated{Calls: true, Finish: "tool_calls"}},
		"behind text": {content("Hi") + call + finish("stop"), upstream.Generated{Text: "Hi", Calls: true, Finish: "stop"}},
		"null":        {delta(`"content":"Hi","tool_calls":null`) + finish("stop"), upstream.Generated{Text: "Hi", Finish: "stop"}},
		"none":        {delta(`"content":"Hi","tool_calls":[]`) + finish("stop"), upstream.Generated{Text: "Hi", Finish: "stop"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := generated(t, tt.events+done, 0)
			if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
}

// Reasoning is kept apart from the text.
func TestGenerate_Reasoning(t *testing.T) {
	got, err := generated(t, role+delta(`"reasoning_content":"Let me "`)+delta(`"reasoning_content":"think."`)+content("Hi")+delta(`"reasoning_content":null,"content":" there"`)+finish("stop")+done, 0)
	want := upstream.Generated{Text: "Hi there", Reasoning: "Let me think.", Finish: "stop"}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}

// A line of any length takes no more memory than the reader's, and hides nothing of
// what stands around it. What is kept of a text is bounded.
func TestGenerate_HugeLines(t *testing.T) {
	huge := strings.Repeat("x", 3<<20)
	want := upstream.Generated{Text: "Hi there", Finish: "stop"}
	for name, event := range map[string]string{
		"a comment":        ": " + huge + "\n",
		"data":             content(huge),
		"no line of SSE":   huge + "\n",
		"just under 64 KB": ": " + huge[:64<<10-4] + "\n",
		"just 64 KB":       ": " + huge[:64<<10-3] + "\n",
		"just over 64 KB":  ": " + huge[:64<<10-2] + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			got, err := generated(t, content("Hi")+event+content(" there")+finish("stop")+done, 0)
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Errorf("%v\n%.300s", err, diff)
			}
		})
	}
	t.Run("without an end", func(t *testing.T) {
		if got, err := generated(t, content("Hi")+content(huge)[:2<<20], 0); err == nil {
			t.Errorf("%d bytes", len(got.Text))
		}
	})
	t.Run("a text that does not end", func(t *testing.T) {
		chunk := content(huge[:32<<10])
		got, err := streaming(io.MultiReader(&repeated{text: chunk, n: 100}, strings.NewReader(finish("length")+done))).Generate(t.Context(), []byte(`{}`), nil, 0)
		if err != nil || got.Finish != "length" || len(got.Text) > 1<<20+32<<10 {
			t.Errorf("%d bytes, %q, %v", len(got.Text), got.Finish, err)
		}
	})
}

// ---- the price

// A server that has less of the prompt cached than was asked for is left at once.
func TestGenerate_TooDear(t *testing.T) {
	rest := role + content("Hi") + finish("stop") + usage + done
	for name, tt := range map[string]struct {
		stream    string
		minCached float64
		dear      bool
	}{
		"above":                            {progress(100, 90) + rest, 0.8, false},
		"just as much":                     {progress(100, 80) + rest, 0.8, false},
		"below":                            {progress(100, 79) + rest, 0.8, true},
		"nothing cached":                   {progress(100, 0) + rest, 0.8, true},
		"all of it":                        {progress(100, 100) + rest, 1, false},
		"behind a comment":                 {":\n\n" + progress(100, 9) + rest, 0.8, true},
		"behind the role":                  {role + progress(100, 9) + rest, 0.8, true},
		"not asked for":                    {progress(100, 0) + rest, 0, false},
		"not told":                         {rest, 0.8, false},
		"told of no prompt":                {progress(0, 0) + rest, 0.8, false},
		"told again while it is processed": {progress(100, 90) + progress(100, 90) + progress(100, 90) + rest, 0.8, false},
		"once there is text":               {content("Hi ") + progress(100, 0) + rest, 0.8, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := generated(t, tt.stream, tt.minCached)
			if errors.Is(err, upstream.ErrTooDear) != tt.dear || err != nil && !tt.dear {
				t.Fatalf("%+v, %v", got, err)
			}
			if tt.dear && (got.Text != "" || got.Prompt != 100 || got.Cached >= 80) {
				t.Errorf("%+v", got)
			}
			if !tt.dear && (got.Prompt != 70 || got.Cached != 30 || got.Finish != "stop") {
				t.Errorf("%+v", got)
			}
		})
	}
}

// slowServer answers the request with events, and reports when its client has gone.
func slowServer(t *testing.T, events ...string) (g upstream.Generator, gone <-chan struct{}) {
	t.Helper()
	left := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for _, e := range events {
			_, _ = io.WriteString(w, e)
		}
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(left)
	}))
	t.Cleanup(server.Close)
	return upstream.Generator{Server: &upstream.Counter{BaseURL: server.URL + "/v1", Client: server.Client()}}, left
}

func TestGenerate_TooDearClosesTheRequest(t *testing.T) {
	g, gone := slowServer(t, progress(100, 9))
	if _, err := g.Generate(t.Context(), []byte(`{}`), nil, 0.8); !errors.Is(err, upstream.ErrTooDear) {
		t.Errorf("error %v", err)
	}
	<-gone // else the test hangs
}

// A server that ends the stream by [DONE] alone and holds the connection is left as
// well.
func TestGenerate_DoneClosesTheRequest(t *testing.T) {
	g, gone := slowServer(t, content("Hi"), finish("stop"), done)
	if got, err := g.Generate(t.Context(), []byte(`{}`), nil, 0.8); err != nil || got.Text != "Hi" {
		t.Errorf("%+v, %v", got, err)
	}
	<-gone
}

func TestGenerate_AnErrorClosesTheRequest(t *testing.T) {
	g, gone := slowServer(t, content("Hi"), `data: {"error":{"message":"`+theirWords+`"}}`+"\n\n")
	if _, err := g.Generate(t.Context(), []byte(`{}`), nil, 0.8); err == nil {
		t.Error("no error")
	}
	<-gone
}

// ---- requests that end early

// Whoever cancels is told that it was they who did, and the server sees the close.
func TestGenerate_Cancel(t *testing.T) {
	for name, events := range map[string][]string{
		"before any event": nil, "while the prompt is processed": {progress(100, 90)}, "in the text": {progress(100, 90), content("Hi")},
	} {
		t.Run(name, func(t *testing.T) {
			g, gone := slowServer(t, events...)
			ctx, cancel := context.WithCancel(t.Context())
			failed := make(chan error)
			g.Server.Client = &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
				res, err := http.DefaultTransport.RoundTrip(r)
				cancel() // the headers are here
				return res, err
			})}
			go func() {
				_, err := g.Generate(ctx, []byte(`{}`), nil, 0)
				failed <- err
			}()
			if err := <-failed; !errors.Is(err, context.Canceled) {
				t.Errorf("error %v", err)
			}
			<-gone
		})
	}
	t.Run("before it is sent", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := streaming(strings.NewReader("")).Generate(ctx, []byte(`{}`), nil, 0); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	})
}

// The time that the caller gives is all that limits a request, however slow the
// server is.
func TestGenerate_TakesItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		go func() {
			time.Sleep(10 * time.Minute)
			_, _ = io.WriteString(w, content("Hi")+finish("stop")+done)
			w.Close()
		}()
		g := streaming(r)
		g.Server.Timeout = time.Second // for counts
		if got, err := g.Generate(t.Context(), []byte(`{}`), nil, 0); err != nil || got.Text != "Hi" {
			t.Errorf("%+v, %v", got, err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		g := upstream.Generator{Server: &upstream.Counter{BaseURL: "http://server", Client: &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})}}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		if _, err := g.Generate(ctx, []byte(`{}`), nil, 0); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Minute {
			t.Errorf("error %v after %v", err, time.Since(began))
		}
	})
}

// ---- answers that are none

func TestGenerate_OtherStatuses(t *testing.T) {
	for _, status := range []int{201, 204, 301, 307, 400, 401, 404, 413, 429, 500, 503} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			asked := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked++
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(status)
				_, _ = io.WriteString(w, `{"error":{"message":"`+theirWords+`"}}`)
			}))
			defer server.Close()
			got, err := upstream.Generator{Server: &upstream.Counter{BaseURL: server.URL, Client: server.Client()}}.Generate(t.Context(), []byte(`{}`), nil, 0)
			var failed *upstream.CountError
			if !errors.As(err, &failed) || failed.Status != status || got != (upstream.Generated{}) {
				t.Errorf("%+v, %v", got, err)
			}
			wantWordless(t, err)
			if asked != 1 {
				t.Errorf("asked %d times", asked)
			}
		})
	}
	t.Run("no server", func(t *testing.T) {
		server := httptest.NewServer(http.NotFoundHandler())
		server.Close()
		_, err := upstream.Generator{Server: &upstream.Counter{BaseURL: server.URL}}.Generate(t.Context(), []byte(`{}`), nil, 0)
		var failed *upstream.CountError
		if !errors.As(err, &failed) || failed.Status != 0 {
			t.Errorf("error %v", err)
		}
	})
	t.Run("a transport that speaks of what it saw", func(t *testing.T) {
		_, err := upstream.Generator{Server: &upstream.Counter{BaseURL: "http://server", Client: &http.Client{Transport: transport(func(*http.Request) (*http.Response, error) {
			return nil, errors.New("malformed response " + theirWords)
		})}}}.Generate(t.Context(), []byte(`{}`), nil, 0)
		if err == nil {
			t.Error("no error")
		}
		wantWordless(t, err)
	})
	// A failure to generate says nothing of whether the server counts.
	t.Run("counting is not affected", func(t *testing.T) {
		s := &site{h: llamasim.New(llamasim.Options{}), broken: map[string]fakeAnswer{"/v1/chat/completions": notThere}}
		c := counterOf(s)
		if _, err := (upstream.Generator{Server: c}).Generate(t.Context(), []byte(bodies["plain"]), nil, 0); err == nil {
			t.Error("no error")
		}
		if n, err := c.Count(t.Context(), []byte(bodies["plain"]), nil); err != nil || n == 0 {
			t.Errorf("%d, %v", n, err)
		}
	})
}

// What is sent: the body as it is, the credentials, and nothing else of the
// client's.
func TestGenerate_Request(t *testing.T) {
	s := &site{h: llamasim.New(llamasim.Options{Reply: func(llamasim.Request) llamasim.Reply { return llamasim.Reply{Text: "Hi"} }})}
	body := []byte(`{ "messages":[{"role":"user","content":"hi"}],"stream":true,"x_unknown":1.0 }`)
	h := http.Header{"Authorization": {"Bearer k"}, "X-Api-Key": {"k2"}, "Cookie": {"c"}, "X-Compactproxy-Compact": {"now"}, "Accept-Encoding": {"gzip"}, "Content-Length": {"7"}}
	before := h.Clone()
	got, err := upstream.Generator{Server: counterOf(s)}.Generate(t.Context(), body, h, 0)
	if err != nil || got.Text != "Hi" || got.Finish != "stop" {
		t.Fatalf("%+v, %v", got, err)
	}
	wantAsked(t, s, "/v1/chat/completions")
	if !bytes.Equal(s.bodies[0], body) {
		t.Errorf("sent %s", s.bodies[0])
	}
	want := http.Header{"Authorization": {"Bearer k"}, "X-Api-Key": {"k2"}, "Accept": {"application/json"}, "Content-Type": {"application/json"}, "User-Agent": {"compactproxy"}}
	sent := s.heads[0].Clone()
	sent.Del("Accept") // what it accepts is its own affair
	want.Del("Accept")
	if diff := cmp.Diff(want, sent); diff != "" {
		t.Errorf("header fields:\n%s", diff)
	}
	if diff := cmp.Diff(before, h); diff != "" {
		t.Errorf("the client's header was changed:\n%s", diff)
	}
}

// ---- before real servers

// Asked again with the same beginning, a server has it cached, and says so before it
// goes on.
func TestGenerate_Servers(t *testing.T) {
	for name, address := range servers(t, "") {
		t.Run(name, func(t *testing.T) {
			g := upstream.Generator{Server: &upstream.Counter{BaseURL: address}}
			user := strings.Repeat("for i := range 10 {\n\tfmt.Println(i)\n}\n", 40)
			body := upstream.ProseBody("any", "You write summaries.", user, 8, true)
			if _, err := g.Generate(t.Context(), body, nil, 0.8); !errors.Is(err, upstream.ErrTooDear) {
				t.Fatalf("a prompt that it never saw: %v", err)
			}
			first, err := g.Generate(t.Context(), body, nil, 0)
			if err != nil || first.Finish == "" || first.Prompt <= 0 || first.Completion <= 0 || first.Calls {
				t.Fatalf("%+v, %v", first, err)
			}
			second, err := g.Generate(t.Context(), body, nil, 0.8)
			if err != nil || second.Prompt != first.Prompt || second.Cached < first.Prompt*8/10 {
				t.Errorf("%+v, %v", second, err)
			}
			if n, err := g.Server.Count(t.Context(), body, nil); err != nil || n != first.Prompt {
				t.Errorf("a prompt of %d tokens counts as %d, %v", first.Prompt, n, err)
			}
		})
	}
}

// servers are the addresses of a simulated and a real server with one template: ""
// for one that leaves a prompt as it is once more is said, "thinking" for one that
// renders a tool loop anew. A real one that is not there is skipped, loudly.
func servers(t *testing.T, template string) map[string]string {
	t.Helper()
	o, real := llamasim.Options{Slots: 1, Seed: 1}, tinymodel.Options{}
	if template == "thinking" {
		o.Template, real.Template = llamasim.TemplateThinking, tinymodel.TemplateThinking
	}
	sim := httptest.NewServer(llamasim.New(o))
	t.Cleanup(sim.Close)
	out := map[string]string{"simulated": sim.URL}
	t.Run("start a real server", func(s *testing.T) {
		llamatest.Options{Model: real, Context: 8192}.Start(s).Stop() // skips where there is none
		out["real"] = ""
	})
	if _, ok := out["real"]; ok {
		out["real"] = llamatest.Options{Model: real, Context: 8192}.Start(t).URL
	}
	return out
}

// A loop of an agent that thinks before each call, with a result at its end.
func loop(thought string) string {
	var b strings.Builder
	b.WriteString(`{"model":"m","tools":[{"type":"function","function":{"name":"read","parameters":{"type":"object","properties":{"path":{"type":"string"}}}}}],"messages":[{"role":"system","content":"You are an agent."},{"role":"user","content":"Find the fault."}`)
	for i := range 3 {
		fmt.Fprintf(&b, `,{"role":"assistant","content":"","reasoning_content":%q,"tool_calls":[{"id":"c%d","type":"function","function":{"name":"read","arguments":"{\"path\":\"/%d.go\"}"}}]},{"role":"tool","tool_call_id":"c%d","content":"line %d of it and so on, for as long as there is any"}`,
			thought, i, i, i, i)
	}
	return b.String() + `]}`
}

// with puts a message at the end of a list.
func with(body, message string) []byte {
	return []byte(strings.TrimSuffix(body, "]}") + "," + message + "]}")
}

// Whether a prompt survives what is put behind it is the template's affair, and the
// server is asked.
func TestKeeps(t *testing.T) {
	const more = `{"role":"user","content":"?"}`
	const thought = "Let me think about where it may be, and read the next file."
	for template, want := range map[string]bool{"": true, "thinking": false} {
		for name, address := range servers(t, template) {
			t.Run(name+" "+template, func(t *testing.T) {
				g := upstream.Generator{Server: &upstream.Counter{BaseURL: address}}
				keeps := func(body string, next []byte) bool { return g.Keeps(t.Context(), []byte(body), next, nil) }
				if got := keeps(loop(thought), with(loop(thought), more)); got != want {
					t.Errorf("a user message behind a loop with thoughts: %v", got)
				}
				if got := keeps(loop(""), with(loop(""), more)); !got && name == "real" { // the simulated one writes down that there were none
					t.Error("a user message behind a loop without thoughts is said to change it")
				}
				longer := strings.Replace(loop(thought), `and so on, for as long as there is any"}]}`, `and so on, for as long as there is any\n\nSummarise."}]}`, 1)
				if longer == loop(thought) || !keeps(loop(thought), []byte(longer)) {
					t.Error("more at the end of the last result is said to change what stands before it")
				}
				changed := strings.Replace(loop(thought), "line 0", "line zero", 1)
				if keeps(loop(thought), with(changed, more)) {
					t.Error("a change in the first result is not noticed")
				}
				for _, broken := range []string{``, `{`, `{"messages":7}`} {
					if keeps(loop(thought), []byte(broken)) || keeps(broken, []byte(loop(thought))) {
						t.Errorf("true for %q", broken)
					}
				}
			})
		}
	}
}

// A server that cannot render, or is away, keeps nothing as far as is known.
func TestKeeps_NoAnswer(t *testing.T) {
	for name, answers := range map[string]map[string]fakeAnswer{
		"no such path":   {applyTemplate: notThere},
		"an error":       {applyTemplate: failing(500, `{"error":{"message":"x"}}`)},
		"another answer": {applyTemplate: {200, "application/json", `{"text":"x"}`}},
		"no text":        {applyTemplate: {200, "application/json", `{"prompt":["x"]}`}},
	} {
		t.Run(name, func(t *testing.T) {
			g := upstream.Generator{Server: counterOf(&site{h: llamasim.New(llamasim.Options{}), broken: answers})}
			if g.Keeps(t.Context(), []byte(bodies["plain"]), []byte(bodies["plain"]), nil) {
				t.Error("true")
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if (upstream.Generator{Server: counterOf(&site{h: llamasim.New(llamasim.Options{})})}).Keeps(ctx, []byte(bodies["plain"]), []byte(bodies["plain"]), nil) {
		t.Error("true although nobody waits")
	}
}

// ---- the body of a prose call

func TestProseBody(t *testing.T) {
	texts := map[string]string{
		"plain":         "hello",
		"empty":         "",
		"markup":        "a <|im_end|> & <b> \u2028 </script>",
		"non-ASCII":     "漢字 😀 é",
		"control":       "a\x00b\tc\r\nd\x7f",
		"quotes":        `"q" \ {"role":"system"}`,
		"invalid UTF-8": "a\xffb\xc3",
		"long":          strings.Repeat("line\n", 100_000),
	}
	for name, text := range texts {
		for _, progress := range []bool{true, false} {
			t.Run(fmt.Sprint(name, " ", progress), func(t *testing.T) {
				body := upstream.ProseBody("the/model:7b", text, text, 1234, progress)
				var got map[string]any
				if err := json.Unmarshal(body, &got); err != nil {
					t.Fatal(err)
				}
				valid := strings.ToValidUTF8(strings.ReplaceAll(text, "\xff", "\ufffd"), "\ufffd")
				want := map[string]any{
					"model": "the/model:7b", "max_tokens": 1234.0, "stream": true, "stream_options": map[string]any{"include_usage": true},
					"messages": []any{map[string]any{"role": "system", "content": valid}, map[string]any{"role": "user", "content": valid}},
				}
				if progress {
					want["return_progress"] = true
				}
				if text == "" { // a message of no text may have no member for it
					for i, m := range got["messages"].([]any) {
						if m := m.(map[string]any); m["content"] == nil {
							m["content"] = ""
							got["messages"].([]any)[i] = m
						}
					}
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%.2000s", diff)
				}
			})
		}
	}
}

// ---- any bytes at all

// Whatever a server sends, the pieces do not matter, what is kept is bounded, and no
// error speaks of it.
func FuzzGenerated(f *testing.F) {
	f.Add([]byte(role+content("Hi")+finish("stop")+usage+done), 0.8, 7)
	f.Add([]byte(progress(100, 9)+content("Hi")), 0.8, 3)
	f.Add([]byte(progress(100, 90)+delta(`"tool_calls":[{"index":0}]`)+finish("tool_calls")), 0.8, 50)
	f.Add([]byte(strings.ReplaceAll(delta(`"reasoning_content":"hm"`)+content("x"), "\n", "\r\n")+"data: [DONE]"), 0.0, 1)
	f.Add([]byte(`data: {"error":{"message":"`+theirWords+`"}}`+"\n\n"), 0.5, 9)
	f.Add([]byte("error: {}\n\n:\n\ndata:\ndata: 7\n"), 0.1, 2)
	f.Add([]byte(`data: {"usage":{"prompt_tokens":9e99,"completion_tokens":-1}}`), 1.0, 0)
	f.Fuzz(func(t *testing.T, stream []byte, minCached float64, cut int) {
		whole, err := streaming(bytes.NewReader(stream)).Generate(t.Context(), []byte(`{}`), nil, minCached)
		cut = max(0, min(cut, len(stream)))
		pieced, again := streaming(&pieces{data: stream, cuts: []int{cut, 1, 1, 5}}).Generate(t.Context(), []byte(`{}`), nil, minCached)
		if whole != pieced || fmt.Sprint(err) != fmt.Sprint(again) {
			t.Errorf("whole: %+v, %v; in pieces: %+v, %v", whole, err, pieced, again)
		}
		if len(whole.Text) > 1<<20+64<<10 || len(whole.Reasoning) > 1<<20+64<<10 {
			t.Errorf("%d and %d bytes are kept", len(whole.Text), len(whole.Reasoning))
		}
		switch {
		case err == nil, errors.Is(err, upstream.ErrTooDear):
		case fmt.Sprint(err) != "generate: the stream broke or carried an error":
			t.Errorf("error %v", err)
		}
	})
}
