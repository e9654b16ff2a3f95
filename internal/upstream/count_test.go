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
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/compactproxy/compactproxy/internal/llamasim"
	"github.com/compactproxy/compactproxy/internal/llamatest"
	"github.com/compactproxy/compactproxy/internal/tinymodel"
	"github.com/compactproxy/compactproxy/internal/upstream"
)

const (
	inputTokens   = "/v1/chat/completions/input_tokens"
	applyTemplate = "/apply-template"
	tokenize      = "/tokenize"
)

// A site is a server by its handler, without a network, so that it works in virtual time too. Paths in
// broken are answered as said there, the others by the handler.
type site struct {
	h http.Handler

	mu     sync.Mutex
	broken map[string]fakeAnswer
	asked  []string
	heads  []http.Header
	bodies [][]byte
}

func (s *site) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		r.Body.Close()
	}
	if int64(len(body)) != r.ContentLength {
		return nil, fmt.Errorf("a body of %d bytes is announced as %d", len(body), r.ContentLength)
	}
	s.mu.Lock()
	s.asked = append(s.asked, r.URL.Path)
	s.heads = append(s.heads, r.Header.Clone())
	s.bodies = append(s.bodies, body)
	a, broken := s.broken[r.URL.Path]
	s.mu.Unlock()
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	rec := httptest.NewRecorder()
	if broken {
		rec.Header().Set("Content-Type", a.media)
		rec.WriteHeader(a.status)
		rec.WriteString(a.body)
	} else {
		in := r.Clone(r.Context())
		in.Body = io.NopCloser(bytes.NewReader(body))
		s.h.ServeHTTP(rec, in)
	}
	return rec.Result(), nil
}

// breaks has paths answered in another way from now on.
func (s *site) breaks(answers map[string]fakeAnswer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = answers
}

// took returns the paths that were asked for, and forgets them.
func (s *site) took() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := s.asked
	s.asked = nil
	return asked
}

func wantAsked(t *testing.T, s *site, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, s.took()); diff != "" {
		t.Errorf("asked for: -want +got\n%s", diff)
	}
}

func counterOf(s *site) *upstream.Counter {
	return &upstream.Counter{Client: &http.Client{Transport: s}, BaseURL: "http://server/v1/"}
}

func failing(status int, body string) fakeAnswer {
	return fakeAnswer{status, "application/json; charset=utf-8", body}
}

var (
	notThere     = failing(404, notFoundBody)
	withoutFirst = map[string]fakeAnswer{inputTokens: notThere}
	withoutBoth  = map[string]fakeAnswer{inputTokens: notThere, applyTemplate: notThere}
)

// bodies are chat requests of every kind that changes how a prompt is written.
var bodies = map[string]string{
	"plain":         `{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"hi there"}]}`,
	"streamed":      `{"stream":true, "stream_options":{"include_usage":true}, "messages":[{"role":"user","content":"hi there"}]}`,
	"content parts": `{"messages":[{"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":"two\nthree"}]}]}`,
	"non-ASCII":     `{"messages":[{"role":"user","content":"Grüße, 世界 \ud83d\ude00 \u00e9 \"q\" \\ \t <b> \u2028 \u0000"}]}`,
	"special words": `{"messages":[{"role":"user","content":"a <|im_end|> b <tool_call> c <|endoftext|>"}]}`,
	"tools": `{"model":"any","tools":[{"type":"function","function":{"name":"read","description":"Reads a file.","parameters":{"type":"object","properties":{"path":{"type":"string"},"lines":{"type":"integer"}},"required":["path"]}}}],
		"tool_choice":"auto","messages":[{"role":"user","content":"What is in a.txt?"}]}`,
	"tool results": `{"tools":[{"type":"function","function":{"name":"read","parameters":{"type":"object","properties":{"n":{"type":"integer"}}}}}],"messages":[
		{"role":"user","content":"Read 1 and 2."},
		{"role":"assistant","content":null,"tool_calls":[
			{"id":"a","type":"function","function":{"name":"read","arguments":"{\"n\": 1}"}},
			{"id":"b","type":"function","function":{"name":"read","arguments":"{\"n\":2}"}}]},
		{"role":"tool","tool_call_id":"a","content":"first"},
		{"role":"tool","tool_call_id":"b","content":"second"}]}`,
	"assistant prefill": `{"messages":[{"role":"user","content":"Count."},{"role":"assistant","content":"One, two,"}]}`,
	"long":              `{"messages":[{"role":"user","content":"` + strings.Repeat(`for i := range 10 {\n\tfmt.Println(i)\n}\n`, 150) + `"}]}`,
}

func TestCount_BothWaysAreExact(t *testing.T) {
	sim := llamasim.New(llamasim.Options{Seed: 1})
	for name, body := range bodies {
		want, err := sim.PromptTokens([]byte(body))
		if err != nil {
			t.Fatal(name, err)
		}
		for way, broken := range map[string]map[string]fakeAnswer{"input_tokens": nil, "apply-template and tokenize": withoutFirst} {
			t.Run(name+", "+way, func(t *testing.T) {
				s := &site{h: sim, broken: broken}
				c := counterOf(s)
				if c.Exact() || c.Known() {
					t.Error("it knows before it has asked")
				}
				got, err := c.Count(t.Context(), []byte(body), nil)
				if got != want || err != nil {
					t.Errorf("%d, %v; want %d", got, err, want)
				}
				if !c.Exact() || !c.Known() {
					t.Error("it does not know that it counts")
				}
				for i, path := range s.asked {
					if path != tokenize && string(s.bodies[i]) != body {
						t.Errorf("%s got another body", path)
					}
				}
			})
		}
	}
}

// The real server counts in both ways what it then takes for the prompt.
func TestCount_RealServer(t *testing.T) {
	for name, args := range map[string][]string{
		"as it is": nil,
		// Gemma, Llama and Mistral models want a BOS; the template of this one writes none.
		"a model that wants a BOS":                    {"--override-kv", "tokenizer.ggml.add_bos_token=bool:true"},
		"and a template that writes it":               {"--override-kv", "tokenizer.ggml.add_bos_token=bool:true", "--chat-template-file", bosTemplate(t)},
		"a template that writes it for another model": {"--chat-template-file", bosTemplate(t)},
	} {
		t.Run(name, func(t *testing.T) {
			server := llamatest.Start(t, args...)
			for name, body := range bodies {
				real := promptTokens(t, server.URL, body)
				for way, broken := range map[string]map[string]fakeAnswer{"input_tokens": nil, "apply-template and tokenize": withoutFirst} {
					c := &upstream.Counter{Client: client(broken), BaseURL: server.URL}
					n, err := c.Count(t.Context(), []byte(body), nil)
					if err != nil || n != real {
						t.Errorf("%s, %s: %d tokens, %v; the chat has %d", name, way, n, err, real)
					}
					if err := c.Probe(t.Context()); err != nil || !c.Exact() {
						t.Errorf("%s: probe: %v", way, err)
					}
				}
			}
			// What the template or the server refuses is this request's misfortune.
			c := &upstream.Counter{Client: client(withoutFirst), BaseURL: server.URL}
			for _, body := range []string{
				`{"messages":[{"role":"user"}]}`,
				`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]}`,
				`{"messages":`, `[]`, ``,
			} {
				_, err := c.Count(t.Context(), []byte(body), nil)
				var failed *upstream.CountError
				if !errors.As(err, &failed) || failed.Status != 400 && failed.Status != 500 {
					t.Errorf("%q: %v", body, err)
				}
			}
			if n, err := c.Count(t.Context(), []byte(bodies["plain"]), nil); err != nil || n == 0 {
				t.Errorf("afterwards: %d, %v", n, err)
			}
		})
	}
}

func bosTemplate(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bos.jinja")
	if err := os.WriteFile(path, []byte("{{- bos_token -}}\n"+tinymodel.Template), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// client is one for a real server, without the paths named.
func client(broken map[string]fakeAnswer) *http.Client {
	direct := &http.Transport{DisableKeepAlives: true}
	return &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
		if _, ok := broken[r.URL.Path]; ok {
			r.URL.Path = "/none" // the server's own 404
		}
		return direct.RoundTrip(r)
	})}
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// promptTokens chats and returns the size of the prompt as the server reports it.
func promptTokens(t *testing.T, url, body string) int {
	t.Helper()
	// Spliced: decoded and encoded again, the tools' members would come in another order and make another
	// prompt.
	body = strings.TrimSuffix(body, "}") + `,"stream":false,"max_tokens":1}`
	res, err := client(nil).Post(url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var answer struct {
		Usage struct {
			Prompt int `json:"prompt_tokens"`
		}
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	if answer.Usage.Prompt == 0 {
		t.Fatalf("the chat failed with status %d", res.StatusCode)
	}
	return answer.Usage.Prompt
}

// What the server does not know is not asked again, until an hour has passed or there is another server.
func TestCount_RemembersWhatIsMissing(t *testing.T) {
	missing := map[string]fakeAnswer{
		"llama-server":        notThere,
		"FastAPI":             failing(404, `{"detail":"Not Found"}`),
		"Go":                  {404, "text/plain", "404 page not found\n"},
		"a path with model":   failing(404, `{"error":"no handler for /models/a-model/chat/completions/input_tokens"}`),
		"wrong method":        {405, "text/html", "<html>405 Not Allowed</html>"},
		"not implemented":     failing(501, `{"error":{"code":501,"message":"no","type":"not_supported_error"}}`),
		"LM Studio":           ok(`{"error":"Unexpected endpoint or method. (POST /v1/chat/completions/input_tokens)"}`),
		"a page":              {200, "text/html", "<html>It works!</html>"},
		"a chat":              ok(`{"choices":[{"message":{"content":"input_tokens"}}],"usage":{"prompt_tokens":7}}`),
		"a long chat":         ok(`{"choices":["` + strings.Repeat("x", 100_000) + `"]}`),
		"a stream":            {200, "text/event-stream", "data: {}\n\ndata: [DONE]\n\n"},
		"nothing":             {200, "application/json", ""},
		"a number":            ok(`3`),
		"a list":              ok(`[{"input_tokens":3}]`),
		"null":                ok(`{"input_tokens":null,"prompt":null}`),
		"a number in quotes":  ok(`{"input_tokens":"3","prompt":3}`),
		"another level":       ok(`{"usage":{"input_tokens":3,"prompt":"x"}}`),
		"no JSON after all":   ok(`{"usage":{]`),
		"an empty object":     ok(`{}`),
		"the name in a value": ok(`{"a":"input_tokens","b":"prompt"}`),
	}
	for name, answer := range missing {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &site{h: llamasim.New(llamasim.Options{}), broken: map[string]fakeAnswer{inputTokens: answer, applyTemplate: answer}}
				c := counterOf(s)
				count := func() error {
					t.Helper()
					_, err := c.Count(t.Context(), []byte(bodies["plain"]), nil)
					if got := c.Known() && c.Exact(); got != (err == nil) {
						t.Errorf("error %v, but exact: %t", err, got)
					}
					return err
				}
				for range 3 {
					if err := count(); err != upstream.ErrCannotCount {
						t.Fatal(err)
					}
				}
				wantAsked(t, s, inputTokens, applyTemplate)
				if !c.Known() || c.Exact() {
					t.Error("it does not know that the server cannot count")
				}

				time.Sleep(time.Hour)
				if !c.Known() {
					t.Error("it wavers after an hour")
				}
				for range 2 {
					if err := count(); err != upstream.ErrCannotCount {
						t.Fatal(err)
					}
				}
				wantAsked(t, s, inputTokens, applyTemplate)

				s.breaks(withoutFirst) // as an update would
				c.Reset()
				if c.Known() || c.Exact() {
					t.Error("it knows after a reset")
				}
				for range 2 {
					if err := count(); err != nil {
						t.Fatal(err)
					}
				}
				wantAsked(t, s, inputTokens, applyTemplate, tokenize, applyTemplate, tokenize)

				s.breaks(nil)
				time.Sleep(time.Hour)
				for range 2 {
					if err := count(); err != nil {
						t.Fatal(err)
					}
				}
				wantAsked(t, s, inputTokens, inputTokens)
			})
		})
	}
}

const secret = "CANARY"

// A failure is this call's. What was known stays known, what was not is still not; and no word of either
// side gets into the error.
func TestCount_Fails(t *testing.T) {
	said := `{"error":{"code":400,"message":"` + secret + `","type":"` + secret + `"}}`
	refusals := map[string]fakeAnswer{
		"the template":                      failing(400, said),
		"an unreadable call":                failing(500, said),
		"no key":                            failing(401, wrongKeyBody),
		"not this key":                      failing(403, said),
		"loading":                           failing(503, loadingBody),
		"a gateway":                         {502, "text/html", "<html>" + secret},
		"too many":                          failing(429, said),
		"too large":                         failing(413, said),
		"FastAPI":                           failing(422, said),
		"elsewhere":                         {307, "text/html", ""},
		"no such model, vLLM":               failing(404, "{\"error\":{\"message\":\"The model `"+secret+"` does not exist.\",\"type\":\"NotFoundError\",\"param\":\"model\",\"code\":404}}"),
		"no such model, OpenAI":             failing(404, `{"error":{"message":"`+secret+`","type":"invalid_request_error","param":null,"code":"model_not_found"}}`),
		"no such model, Ollama":             failing(404, `{"error":"model \"`+secret+`\" not found, try pulling it first"}`),
		"an answer cut short":               ok(`{"input_tok`),
		"an answer cut short in the number": ok(`{"prompt":"` + secret),
	}
	for name, answer := range refusals {
		for way, without := range map[string]map[string]fakeAnswer{"first": nil, "second": withoutFirst} {
			for _, path := range map[string][]string{"first": {inputTokens}, "second": {applyTemplate, tokenize}}[way] {
				t.Run(name+", "+path, func(t *testing.T) {
					s := &site{h: llamasim.New(llamasim.Options{}), broken: map[string]fakeAnswer{}}
					for path, answer := range without {
						s.broken[path] = answer
					}
					s.broken[path] = answer
					c := counterOf(s)
					fail := func() {
						t.Helper()
						n, err := c.Count(t.Context(), []byte(strings.Replace(bodies["plain"], "hi", secret, 1)), http.Header{"Authorization": {"Bearer " + secret}})
						var failed *upstream.CountError
						if n != 0 || !errors.As(err, &failed) {
							t.Fatalf("%d, %v", n, err)
						}
						if strings.Contains(err.Error(), secret) {
							t.Errorf("the error has words of others: %v", err)
						}
						if failed.Path != path || failed.Status != answer.status {
							t.Errorf("%s %d: %v", failed.Path, failed.Status, err)
						}
					}
					for range 2 {
						s.took()
						fail()
						if asked := s.took(); asked[len(asked)-1] != path {
							t.Errorf("asked for %q", asked)
						}
						if c.Known() {
							t.Error("it learned from a failure")
						}
					}
					s.breaks(without)
					if err := c.Probe(t.Context()); err != nil {
						t.Fatal(err)
					}
					s.breaks(map[string]fakeAnswer{inputTokens: without[inputTokens], path: answer})
					fail()
					if !c.Exact() {
						t.Error("a failure made it forget")
					}
				})
			}
		}
	}
}

// A way that has worked is not given up for what one request was answered.
func TestCount_HoldsOnToWhatWorked(t *testing.T) {
	for _, tt := range []struct {
		path    string
		without map[string]fakeAnswer
	}{{inputTokens, nil}, {applyTemplate, withoutFirst}, {tokenize, withoutFirst}} {
		s := &site{h: llamasim.New(llamasim.Options{}), broken: tt.without}
		c := counterOf(s)
		if err := c.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, answer := range []fakeAnswer{notThere, {200, "text/html", "<html>Down for maintenance</html>"}} {
			s.breaks(map[string]fakeAnswer{inputTokens: tt.without[inputTokens], tt.path: answer})
			_, err := c.Count(t.Context(), []byte(bodies["plain"]), nil)
			var failed *upstream.CountError
			if !errors.As(err, &failed) || failed.Path != tt.path || failed.Status != answer.status || !c.Exact() {
				t.Errorf("%s: %v, exact: %t", tt.path, err, c.Exact())
			}
		}
		s.breaks(tt.without)
		if n, err := c.Count(t.Context(), []byte(bodies["plain"]), nil); err != nil || n == 0 {
			t.Errorf("%s: then %d, %v", tt.path, n, err)
		}
	}
}

// Nothing that a body brings about may have the server taken for one that cannot count.
func TestCount_OddAnswersToOddBodies(t *testing.T) {
	huge := ok(`{"prompt":"` + strings.Repeat("x", 5<<20) + `"}`)
	for name, broken := range map[string]map[string]fakeAnswer{
		"no tokens":              {inputTokens: ok(`{"input_tokens":0}`)},
		"fewer":                  {inputTokens: ok(`{"input_tokens":-3}`)},
		"no tokens in the list":  {inputTokens: notThere, tokenize: ok(`{"tokens":[]}`)},
		"an image":               {inputTokens: notThere, applyTemplate: ok(`{"prompt":"<|im_start|>user\n<__media_Ab3__>\nWhat is it?"}`)},
		"an image, older server": {inputTokens: notThere, applyTemplate: ok(`{"prompt":"<__media__>"}`)},
		"an endless prompt":      {inputTokens: notThere, applyTemplate: huge},
		"an endless list":        {inputTokens: notThere, tokenize: ok(`{"tokens":[` + strings.Repeat("1,", 3<<20))},
	} {
		c := counterOf(&site{h: llamasim.New(llamasim.Options{}), broken: broken})
		n, err := c.Count(t.Context(), []byte(bodies["plain"]), nil)
		var failed *upstream.CountError
		if !errors.As(err, &failed) || c.Known() {
			t.Errorf("%s: %d, %v, known: %t", name, n, err, c.Known())
		}
	}
}

func TestCount_NumbersAndLists(t *testing.T) {
	for answer, want := range map[string]int{
		`{"input_tokens":311,"object":"response.input_tokens"}`:            311,
		`{"object":{"input_tokens":1},"input_tokens":2, "input_tokens":3}`: 2,
		"\n{ \"input_tokens\" : 12 }\n":                                    12,
		`{"input_tokens":1e3}`:                                             1000,
		`{"input_tokens":99999999999999999999}`:                            1<<31 - 1,
		`{"input_tokens":4} and what follows is not looked at`:             4,
	} {
		c := counterOf(&site{h: llamasim.New(llamasim.Options{}), broken: map[string]fakeAnswer{inputTokens: ok(answer)}})
		if n, err := c.Count(t.Context(), nil, nil); n != want || err != nil {
			t.Errorf("%s: %d, %v", answer, n, err)
		}
	}
	for list, want := range map[string]int{
		`{"tokens":[1]}`:                           1,
		`{"tokens":[1,22,333]}`:                    3,
		`{"count":7,"x":[[1]],"tokens":[ 1 , 2 ]}`: 2,
		`{"tokens":[{"id":1,"piece":"a"}]}`:        0, // not what was asked for
		`{"tokens":["a","b"]}`:                     0,
		`{"tokens":{}}`:                            0,
		`{"tokens":[1,2`:                           0,
		`{"tokens":[1,2}`:                          0,
	} {
		c := counterOf(&site{h: llamasim.New(llamasim.Options{}), broken: map[string]fakeAnswer{inputTokens: notThere, tokenize: ok(list)}})
		if n, err := c.Count(t.Context(), []byte(bodies["plain"]), nil); n != want || (err == nil) != (want > 0) {
			t.Errorf("%s: %d, %v", list, n, err)
		}
	}
}

// The tokenizer gets the prompt as the template wrote it, the model that a router goes by, and nothing
// else of the body.
func TestCount_Tokenize(t *testing.T) {
	for body, want := range map[string]string{
		`{"messages":[],"model":"a \"b\"","stream":true}`: `{"add_special":true,"parse_special":true,"model":"a \"b\"","content":"p \u00e9\n\ud83d\ude00"}`,
		`{"messages":[{"model":"c"}]}`:                    `{"add_special":true,"parse_special":true,"content":"p \u00e9\n\ud83d\ude00"}`,
		`{"model":7}`:                                     `{"add_special":true,"parse_special":true,"content":"p \u00e9\n\ud83d\ude00"}`,
		`{"model":`:                                       `{"add_special":true,"parse_special":true,"content":"p \u00e9\n\ud83d\ude00"}`,
	} {
		s := &site{h: llamasim.New(llamasim.Options{}), broken: map[string]fakeAnswer{
			inputTokens: notThere, applyTemplate: ok(`{"prompt":"p \u00e9\n\ud83d\ude00"}`),
		}}
		if _, err := counterOf(s).Count(t.Context(), []byte(body), nil); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, string(s.bodies[2])); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
	}
}

// Of a client's header fields the credentials go out, and go to each path.
func TestCount_Credentials(t *testing.T) {
	sim := llamasim.New(llamasim.Options{APIKey: "sk-a,sk-b"})
	h := http.Header{"Authorization": {"Bearer sk-a"}, "X-Api-Key": {"sk-b"}, "Cookie": {"x"}, "Content-Length": {"3"}, "Content-Encoding": {"gzip"}, "Accept": {"text/event-stream"}}
	s := &site{h: sim, broken: withoutFirst}
	if _, err := counterOf(s).Count(t.Context(), []byte(bodies["plain"]), h); err != nil {
		t.Fatal(err)
	}
	want := http.Header{"Authorization": {"Bearer sk-a"}, "X-Api-Key": {"sk-b"}, "Accept": {"application/json"}, "Content-Type": {"application/json"}, "User-Agent": {"compactproxy"}}
	if diff := cmp.Diff([]http.Header{want, want, want}, s.heads); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}

	s = &site{h: sim}
	c := counterOf(s)
	var failed *upstream.CountError
	if err := c.Probe(t.Context()); !errors.As(err, &failed) || failed.Status != 401 || c.Known() {
		t.Errorf("a probe without the key: %v", err)
	}
	c.APIKey = "sk-b"
	if _, err := c.Count(t.Context(), []byte(bodies["plain"]), nil); !errors.As(err, &failed) || failed.Status != 401 {
		t.Errorf("a client without a key counts by ours: %v", err)
	}
	if err := c.Probe(t.Context()); err != nil || !c.Exact() {
		t.Errorf("a probe with the key: %v", err)
	}
}

// A redirect would take the conversation and the key to who knows where.
func TestCount_FollowsNoRedirect(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") }))
	defer elsewhere.Close()
	server := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer server.Close()
	c := &upstream.Counter{BaseURL: server.URL}
	_, err := c.Count(t.Context(), []byte(bodies["plain"]), http.Header{"X-Api-Key": {"sk-a"}})
	var failed *upstream.CountError
	if !errors.As(err, &failed) || failed.Status != 307 {
		t.Error(err)
	}
}

// What breaks below HTTP is told without quoting what came.
func TestCount_NoAnswer(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	garbage := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { hijack(w, r, secret+" "+secret+"\r\n\r\n") }))
	defer garbage.Close()
	silent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { hijack(w, r, "") }))
	defer silent.Close()
	cut := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hijack(w, r, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{\"input_tokens\":3")
	}))
	defer cut.Close()
	for name, tt := range map[string]struct{ url, want string }{
		"gone":    {gone.URL, "POST " + inputTokens + ": connection refused"},
		"garbage": {garbage.URL, "POST " + inputTokens + ": no connection, or no answer that could be read"},
		"silent":  {silent.URL, "POST " + inputTokens + ": unexpected EOF"},
		"cut":     {cut.URL, "POST " + inputTokens + ": 200, unexpected EOF"},
		"no URL":  {"http://[" + secret, "POST " + inputTokens + ": no connection, or no answer that could be read"},
	} {
		c := &upstream.Counter{BaseURL: tt.url}
		_, err := c.Count(t.Context(), []byte(bodies["plain"]), nil)
		if fmt.Sprint(err) != tt.want || c.Known() {
			t.Errorf("%s: %v, known: %t", name, err, c.Known())
		}
	}
}

// hijack writes bytes in place of an answer and ends the connection.
func hijack(w http.ResponseWriter, r *http.Request, answer string) {
	_, _ = io.Copy(io.Discard, r.Body) // what is left unread would reset the connection
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, answer)
}

func TestCount_Deadlines(t *testing.T) {
	// hang takes its time, until the caller gives up: before it answers, or in the middle of that.
	hang := func(start string) transport {
		return func(r *http.Request) (*http.Response, error) {
			if start == "" {
				<-r.Context().Done()
				return nil, r.Context().Err()
			}
			pr, pw := io.Pipe()
			go func() {
				_, _ = io.WriteString(pw, start)
				<-r.Context().Done()
				pw.CloseWithError(r.Context().Err())
			}()
			return &http.Response{StatusCode: 200, Body: pr}, nil
		}
	}
	for _, start := range []string{"", `{"input_`} {
		for timeout, want := range map[time.Duration]time.Duration{0: 10 * time.Second, time.Second: time.Second} {
			synctest.Test(t, func(t *testing.T) {
				c := &upstream.Counter{Client: &http.Client{Transport: hang(start)}, BaseURL: "http://server", Timeout: timeout}
				began := time.Now()
				_, err := c.Count(t.Context(), nil, nil)
				if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took != want || c.Known() {
					t.Errorf("%q, %v: %v after %v", start, timeout, err, took)
				}
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				if _, err := c.Count(ctx, nil, nil); !errors.Is(err, context.Canceled) || c.Known() {
					t.Errorf("%q: %v", start, err)
				}
			})
		}
	}
}

// An answer that was under way when the server changed says nothing of the new one.
func TestCount_ResetOvertakes(t *testing.T) {
	s := &site{h: llamasim.New(llamasim.Options{}), broken: withoutBoth}
	c := counterOf(s)
	c.Client = &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
		defer c.Reset()
		return s.RoundTrip(r)
	})}
	for range 2 {
		if _, err := c.Count(t.Context(), []byte(bodies["plain"]), nil); err != upstream.ErrCannotCount || c.Known() {
			t.Errorf("%v, known: %t", err, c.Known())
		}
	}
	s.breaks(nil)
	if _, err := c.Count(t.Context(), []byte(bodies["plain"]), nil); err != nil || c.Known() {
		t.Errorf("%v, known: %t", err, c.Known())
	}
}

func TestCount_Concurrent(t *testing.T) {
	sim := llamasim.New(llamasim.Options{KeepRequests: -1})
	s := &site{h: sim}
	c := counterOf(s)
	want, err := sim.PromptTokens([]byte(bodies["tools"]))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for j := range 20 {
				switch (i + j) % 8 {
				case 0:
					c.Reset()
				case 1:
					s.breaks(withoutFirst)
				case 2:
					s.breaks(nil)
				}
				if n, err := c.Count(t.Context(), []byte(bodies["tools"]), nil); n != want && err == nil {
					t.Errorf("%d, want %d", n, want)
				} else if failed := (*upstream.CountError)(nil); err != nil && (!errors.As(err, &failed) || failed.Status != 404) {
					t.Error(err) // a way that worked a moment ago may have gone
				}
				c.Exact()
				c.Known()
			}
		})
	}
	wg.Wait()
	c.Reset()
	s.breaks(nil)
	if err := c.Probe(t.Context()); err != nil || !c.Exact() {
		t.Error(err)
	}
}

// A list of millions of tokens is counted, not kept.
func TestCount_KeepsNoTokens(t *testing.T) {
	const tokens = 1 << 20
	prompt := strings.Repeat("x", 256<<10)
	some := strings.Repeat("123456,", 1024)
	body := []byte(`{"messages":[{"role":"user","content":"` + prompt + `"}]}`)
	answers := map[string]func() io.Reader{
		applyTemplate: func() io.Reader { return strings.NewReader(`{"prompt":"` + prompt + `"}`) },
		tokenize: func() io.Reader {
			return io.MultiReader(strings.NewReader(`{"tokens":[`), &repeated{text: some, n: tokens / 1024}, strings.NewReader(`7]}`))
		},
	}
	c := &upstream.Counter{BaseURL: "http://server", Client: &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return nil, err
		}
		if answer := answers[r.URL.Path]; answer != nil {
			return &http.Response{StatusCode: 200, Body: io.NopCloser(answer())}, nil
		}
		return &http.Response{StatusCode: 404, Body: http.NoBody}, nil
	})}}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	n, err := c.Count(t.Context(), body, nil)
	runtime.ReadMemStats(&after)
	if n != tokens+1 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	// The prompt is read once, into a buffer that doubles.
	if took := after.TotalAlloc - before.TotalAlloc; took > 3<<20 {
		t.Errorf("%d bytes were allocated for a list of %d", took, tokens*7)
	}
}

// repeated reads as a text n times over.
type repeated struct {
	text string
	n    int
	rest string
}

func (r *repeated) Read(b []byte) (int, error) {
	if r.rest == "" {
		if r.n == 0 {
			return 0, io.EOF
		}
		r.rest, r.n = r.text, r.n-1
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
