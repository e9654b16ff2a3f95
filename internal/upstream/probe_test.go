package upstream_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/compactproxy/compactproxy/internal/upstream"
)

// A fakeServer answers by path, and remembers what it was asked.
type fakeServer struct {
	answers map[string]fakeAnswer

	mu    sync.Mutex
	asked []string
	keys  []string
}

type fakeAnswer struct {
	status int
	media  string
	body   string
}

const (
	loadingBody  = `{"error":{"message":"Loading model","type":"unavailable_error","code":503}}`
	wrongKeyBody = `{"error":{"message":"Invalid API Key","type":"authentication_error","code":401}}`
	notFoundBody = `{"error":{"message":"File Not Found","type":"not_found_error","code":404}}`
)

func ok(body string) fakeAnswer {
	return fakeAnswer{200, "application/json; charset=utf-8", body}
}

func (f *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.asked = append(f.asked, r.Method+" "+r.URL.Path)
	f.keys = append(f.keys, r.Header.Get("Authorization"))
	f.mu.Unlock()
	a, ok := f.answers[r.URL.Path]
	if !ok {
		a = fakeAnswer{404, "application/json; charset=utf-8", notFoundBody}
	}
	w.Header().Set("Content-Type", a.media)
	w.WriteHeader(a.status)
	_, _ = w.Write([]byte(a.body))
}

// probe takes one look at a server that answers like this.
func probe(t *testing.T, h http.Handler, adapt ...func(*upstream.Prober)) upstream.Status {
	t.Helper()
	server := httptest.NewServer(h)
	defer server.Close()
	p := &upstream.Prober{Client: server.Client(), BaseURL: server.URL}
	for _, f := range adapt {
		f(p)
	}
	return p.Probe(t.Context())
}

func TestProbe(t *testing.T) {
	props, models := ok(string(testdata(t, "props.json"))), ok(string(testdata(t, "models.json")))
	caps := map[string]bool{"supports_tools": true, "supports_parallel_tool_calls": true, "supports_preserve_reasoning": false}
	tiny := upstream.Model{Name: "tiny", Aliases: []string{"small", "/models/tiny.gguf"}, Window: 2048, Source: upstream.Props}
	page := fakeAnswer{200, "text/html", "<html>It works!</html>"}
	wrongKey := fakeAnswer{401, "application/json; charset=utf-8", wrongKeyBody}
	loading := fakeAnswer{503, "application/json; charset=utf-8", loadingBody}

	for _, tt := range []struct {
		name    string
		answers map[string]fakeAnswer
		want    upstream.Status
		err     string // of its error
	}{
		{
			"llama-server",
			map[string]fakeAnswer{"/props": props, "/v1/models": models},
			upstream.Status{State: upstream.Ready, LlamaServer: true, Build: "b11669-test", Slots: 2, Loaded: "tiny", Models: []upstream.Model{tiny}, Template: caps},
			"",
		},
		{
			"llama-server without a list",
			map[string]fakeAnswer{"/props": props},
			upstream.Status{State: upstream.Ready, LlamaServer: true, Build: "b11669-test", Slots: 2, Loaded: "tiny", Template: caps,
				Models: []upstream.Model{{Name: "tiny", Aliases: []string{"/models/tiny.gguf"}, Window: 2048, Source: upstream.Props}}},
			"",
		},
		{
			"llama-server without /props",
			map[string]fakeAnswer{"/v1/models": models},
			upstream.Status{State: upstream.Ready, LlamaServer: true,
				Models: []upstream.Model{{Name: "tiny", Aliases: []string{"small"}, Window: 2048, Source: upstream.Models}}},
			"",
		},
		{
			"what /props says of the loaded model counts",
			map[string]fakeAnswer{
				"/props":     ok(`{"default_generation_settings":{"n_ctx":4096},"model_path":"/models/b.gguf"}`),
				"/v1/models": ok(`{"data":[{"id":"a","meta":{"n_ctx":1024}},{"id":"b","aliases":["/models/b.gguf"],"meta":{"n_ctx":2048}}]}`),
			},
			upstream.Status{State: upstream.Ready, LlamaServer: true, Loaded: "b", Models: []upstream.Model{
				{Name: "a", Window: 1024, Source: upstream.Models},
				{Name: "b", Aliases: []string{"/models/b.gguf"}, Window: 4096, Source: upstream.Props},
			}},
			"",
		},
		{
			"the only one that is listed is the loaded one, whatever it is called",
			map[string]fakeAnswer{
				"/props":     ok(`{"default_generation_settings":{"n_ctx":4096},"model_path":"/models/b.gguf"}`),
				"/v1/models": ok(`{"data":[{"id":"a","meta":{"n_ctx":2048}}]}`),
			},
			upstream.Status{State: upstream.Ready, LlamaServer: true, Loaded: "a", Models: []upstream.Model{
				{Name: "a", Aliases: []string{"/models/b.gguf"}, Window: 4096, Source: upstream.Props},
			}},
			"",
		},
		{
			"a loaded one that is not among several listed",
			map[string]fakeAnswer{
				"/props":     ok(`{"default_generation_settings":{"n_ctx":4096},"model_path":"/models/c.gguf"}`),
				"/v1/models": ok(`{"data":[{"id":"a","meta":{"n_ctx":2048}},{"id":"b"}]}`),
			},
			upstream.Status{State: upstream.Ready, LlamaServer: true, Loaded: "/models/c.gguf", Models: []upstream.Model{
				{Name: "/models/c.gguf", Window: 4096, Source: upstream.Props},
				{Name: "a", Window: 2048, Source: upstream.Models},
				{Name: "b"},
			}},
			"",
		},
		{
			"a router has no model of its own",
			map[string]fakeAnswer{
				"/props":     ok(`{"default_generation_settings":{"n_ctx":0},"build_info":"b1"}`),
				"/v1/models": ok(`{"data":[{"id":"a","meta":null},{"id":"b"}]}`),
			},
			upstream.Status{State: upstream.Ready, LlamaServer: true, Build: "b1", Models: []upstream.Model{{Name: "a"}, {Name: "b"}}},
			"",
		},
		{
			"odd shapes are not there",
			map[string]fakeAnswer{
				"/props":     ok(`{"default_generation_settings":{"n_ctx":"4096"},"total_slots":"many","model_alias":7,"model_path":null,"chat_template_caps":{"supports_tools":1},"build_info":{}}`),
				"/v1/models": ok(`{"data":[7,null,{"id":8},{"id":"a","aliases":"b","meta":[]}]}`),
			},
			upstream.Status{State: upstream.Ready, LlamaServer: true, Models: []upstream.Model{{Name: "a"}}},
			"",
		},
		{
			"vLLM",
			map[string]fakeAnswer{"/v1/models": ok(`{"object":"list","data":[{"id":"org/model","owned_by":"vllm","max_model_len":32768}]}`)},
			upstream.Status{State: upstream.Ready, Models: []upstream.Model{{Name: "org/model", Window: 32768, Source: upstream.Models}}},
			"",
		},
		{
			"OpenRouter, Groq, Mistral, LM Studio, OpenAI",
			map[string]fakeAnswer{"/v1/models": ok(`{"data":[
				{"id":"a","context_length":131072},
				{"id":"b","context_window":65536},
				{"id":"c","max_context_length":32768},
				{"id":"d","max_context_length":32768,"loaded_context_length":4096},
				{"id":"e"}]}`)},
			upstream.Status{State: upstream.Ready, Models: []upstream.Model{
				{Name: "a", Window: 131072, Source: upstream.Models},
				{Name: "b", Window: 65536, Source: upstream.Models},
				{Name: "c", Window: 32768, Source: upstream.Models},
				{Name: "d", Window: 4096, Source: upstream.Models},
				{Name: "e"},
			}},
			"",
		},
		{
			"a page at /props is no llama-server",
			map[string]fakeAnswer{"/props": page, "/v1/models": ok(`{"data":[{"id":"a"}]}`)},
			upstream.Status{State: upstream.Ready, Models: []upstream.Model{{Name: "a"}}},
			"",
		},
		{
			"an empty list is a list",
			map[string]fakeAnswer{"/v1/models": ok(`{"data":[]}`)},
			upstream.Status{State: upstream.Ready},
			"",
		},
		{
			"loading",
			map[string]fakeAnswer{"/props": loading, "/v1/models": loading},
			upstream.Status{State: upstream.Loading},
			"the server is loading its model",
		},
		{
			"loading between two questions",
			map[string]fakeAnswer{"/props": page, "/v1/models": loading},
			upstream.Status{State: upstream.Loading},
			"the server is loading its model",
		},
		{
			"wants a key",
			map[string]fakeAnswer{"/props": wrongKey, "/v1/models": wrongKey},
			upstream.Status{State: upstream.NeedsKey},
			"GET /v1/models: 401, the server wants a key",
		},
		{
			"wants a key, but not for its list",
			map[string]fakeAnswer{"/props": wrongKey, "/v1/models": models},
			upstream.Status{State: upstream.NeedsKey, LlamaServer: true,
				Models: []upstream.Model{{Name: "tiny", Aliases: []string{"small"}, Window: 2048, Source: upstream.Models}}},
			"GET /props: 401, the server wants a key",
		},
		{
			"a gateway that denies what it does not know",
			map[string]fakeAnswer{"/props": {403, "text/html", "no"}, "/v1/models": ok(`{"data":[{"id":"a"}]}`)},
			upstream.Status{State: upstream.Ready, Models: []upstream.Model{{Name: "a"}}},
			"",
		},
		{
			"a gateway that denies everything",
			map[string]fakeAnswer{"/props": {403, "text/html", "no"}},
			upstream.Status{State: upstream.NeedsKey},
			"GET /props: 403, the server wants a key",
		},
		{
			"a gateway without a server",
			map[string]fakeAnswer{"/props": {502, "text/html", "<html>"}, "/v1/models": {502, "text/html", "<html>"}},
			upstream.Status{State: upstream.Down},
			"GET /v1/models: 502, a gateway without a server behind it",
		},
		{
			"a page",
			map[string]fakeAnswer{"/props": page, "/v1/models": page},
			upstream.Status{State: upstream.Foreign},
			"GET /v1/models: 200 text/html, neither llama-server nor a list of models",
		},
		{
			"something else that speaks JSON",
			nil,
			upstream.Status{State: upstream.Foreign},
			"GET /v1/models: 404 application/json, neither llama-server nor a list of models",
		},
		{
			"a list without an end",
			map[string]fakeAnswer{"/v1/models": ok(`{"data":[{"id":"` + strings.Repeat("a", 5<<20) + `"}]}`)},
			upstream.Status{State: upstream.Foreign},
			"GET /v1/models: 200 application/json, neither llama-server nor a list of models",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := &fakeServer{answers: tt.answers}
			got := probe(t, server)
			if diff := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(upstream.Status{}, "Err")); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if tt.err == "" && got.Err != nil || tt.err != "" && (got.Err == nil || got.Err.Error() != tt.err) {
				t.Errorf("error %v, want %q", got.Err, tt.err)
			}
			for _, asked := range server.asked {
				if asked != "GET /props" && asked != "GET /v1/models" {
					t.Errorf("asked %s", asked)
				}
			}
		})
	}
}

// The bodies that a real llama-server gave, whole.
func TestProbe_CapturedServer(t *testing.T) {
	type exchange struct {
		Response struct {
			Status int    `json:"status"`
			Body   string `json:"body_text"`
		} `json:"response"`
	}
	answers := map[string]fakeAnswer{}
	for path, file := range map[string]string{"/props": "props.json", "/v1/models": "models.json"} {
		var e exchange
		if err := json.Unmarshal(sharedFile(t, "captures/"+file), &e); err != nil {
			t.Fatal(err)
		}
		answers[path] = fakeAnswer{e.Response.Status, "application/json; charset=utf-8", e.Response.Body}
	}
	got := probe(t, &fakeServer{answers: answers})
	if got.State != upstream.Ready || !got.LlamaServer || got.Build != "b11669-Debian" || got.Slots != 2 || !got.Template["supports_tools"] {
		t.Errorf("%+v", got)
	}
	if m, ok := got.Find("any name"); !ok || m.Name != got.Loaded || m.Window != 2048 || m.Source != upstream.Props {
		t.Errorf("%+v, %v", m, ok)
	}
}

func TestProbe_Address(t *testing.T) {
	server := &fakeServer{}
	for _, suffix := range []string{"", "/", "/v1", "/v1/"} {
		probe(t, server, func(p *upstream.Prober) { p.BaseURL += suffix })
	}
	probe(t, server, func(p *upstream.Prober) { p.BaseURL += "/behind/v1" })
	want := []string{"GET /props", "GET /v1/models"}
	want = append(append(append(want, want...), want...), want...)
	want = append(want, "GET /behind/props", "GET /behind/v1/models")
	if diff := cmp.Diff(want, server.asked[:len(want)]); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestProbe_SendsTheKeyIfThereIsOne(t *testing.T) {
	server := &fakeServer{}
	probe(t, server)
	probe(t, server, func(p *upstream.Prober) { p.APIKey = "secret" })
	if diff := cmp.Diff([]string{"", "", "Bearer secret", "Bearer secret"}, server.keys); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestProbe_NothingAnswers(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	for name, url := range map[string]string{
		"nobody listens":    "http://" + closed.Addr().String(),
		"no address at all": "::",
	} {
		t.Run(name, func(t *testing.T) {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			got := (&upstream.Prober{Client: client, BaseURL: url, Timeout: 5 * time.Second}).Probe(t.Context())
			if got.State != upstream.Down || got.Err == nil {
				t.Errorf("%v, %v", got.State, got.Err)
			}
		})
	}
}

func TestProbe_HangsUp(t *testing.T) {
	got := probe(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	if got.State != upstream.Down || got.Err == nil {
		t.Errorf("%v, %v", got.State, got.Err)
	}
}

func TestProbe_AnswersTooLate(t *testing.T) {
	silent := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	got := probe(t, silent, func(p *upstream.Prober) { p.Timeout = time.Millisecond })
	if got.State != upstream.Busy && got.State != upstream.Down || got.Err == nil {
		t.Errorf("%v, %v", got.State, got.Err) // Down where a millisecond did not do to connect
	}
	got = probe(t, silent, func(p *upstream.Prober) { p.Timeout = 300 * time.Millisecond })
	if got.State != upstream.Busy {
		t.Errorf("%v, %v; want %v", got.State, got.Err, upstream.Busy)
	}
}

func TestProbe_IsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	}))
	defer server.Close()
	got := (&upstream.Prober{Client: server.Client(), BaseURL: server.URL}).Probe(ctx)
	if got.State == upstream.Ready || got.Err == nil {
		t.Errorf("%v, %v", got.State, got.Err)
	}
}

func TestStatus_Find(t *testing.T) {
	one := upstream.Status{Models: []upstream.Model{{Name: "tiny", Aliases: []string{"small"}}}}
	many := upstream.Status{Loaded: "b", Models: []upstream.Model{{Name: "a", Aliases: []string{"c"}}, {Name: "b", Aliases: []string{"a"}}, {Name: "c"}}}
	for _, tt := range []struct {
		name   string
		status upstream.Status
		asked  string
		want   string
	}{
		{"its name", one, "tiny", "tiny"},
		{"its alias", one, "small", "tiny"},
		{"any name, where there is one model", one, "gpt-5", "tiny"},
		{"no name, where there is one model", one, "", "tiny"},
		{"a name before an alias", many, "a", "a"},
		{"a name before an alias that is listed earlier", many, "c", "c"},
		{"no name: the loaded one", many, "", "b"},
		{"a name of none", many, "gpt-5", ""},
		{"no models", upstream.Status{}, "gpt-5", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, found := tt.status.Find(tt.asked)
			if m.Name != tt.want || found != (tt.want != "") {
				t.Errorf("%q, %v; want %q", m.Name, found, tt.want)
			}
		})
	}
}

func TestState_String(t *testing.T) {
	seen := map[string]bool{}
	for state := upstream.Unknown; state <= upstream.Ready; state++ {
		if name := state.String(); name == "" || strings.Contains(name, "(") || seen[name] {
			t.Errorf("state %d is called %q", state, name)
		} else {
			seen[name] = true
		}
	}
	if got := upstream.State(99).String(); got != "state(99)" {
		t.Errorf("an unknown state is called %q", got)
	}
}
