package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/llamasim"
)

// canary stands for anything that a person or a model wrote, and for a key. It
// survives JSON, URLs and header fields as it is.
const canary = "CANARY7f3a9c"

// hunt fails the test where the canary is in a log entry, its message or a
// field, or in a metric.
func (r *rig) hunt(t testing.TB) {
	t.Helper()
	encoder := zapcore.NewJSONEncoder(zapcore.EncoderConfig{MessageKey: "msg", NameKey: "name", StacktraceKey: "stack"})
	for _, e := range r.Logs.All() {
		line, err := encoder.EncodeEntry(e.Entry, e.Context)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(strings.ToLower(line.String()), strings.ToLower(canary)) {
			t.Errorf("the log has it: %s", line)
		}
	}
	families, err := r.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if strings.Contains(f.String(), canary) {
			t.Errorf("a metric has it: %s", f)
		}
	}
}

// tolerant makes a request whose answer may be of any kind, or none.
func tolerant(req *http.Request) {
	transport := &http.Transport{DisableCompression: true}
	defer transport.CloseIdleConnections()
	res, err := transport.RoundTrip(req)
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, res.Body)
	res.Body.Close()
}

// withCanary is a history with the canary in everything that a conversation is
// made of; long makes it outgrow a small window.
func withCanary(long int) []byte {
	type object = map[string]any
	call := func(id, arguments string) object {
		return object{"role": "assistant", "content": canary, "reasoning_content": canary, "tool_calls": []object{{
			"id": id, "type": "function", "function": object{"name": "read_" + canary, "arguments": arguments}}}}
	}
	list := []object{
		{"role": "system", "content": canary},
		{"role": "user", "name": canary, "content": []object{{"type": "text", "text": canary}, {"type": "image_url", "image_url": object{"url": "data:image/png;base64," + canary}}}},
		{"role": canary, "content": canary},
	}
	for i := range 8 {
		list = append(list, call(fmt.Sprint(canary, i), `{"path":"`+canary+fmt.Sprint(i)+`"}`),
			object{"role": "tool", "tool_call_id": fmt.Sprint(canary, i), "content": strings.Repeat(canary+" ", long)})
	}
	list = append(list, object{"role": "user", "content": canary})
	return aroundMessages(object{"messages": list})
}

// aroundMessages adds what stands beside the messages, with the canary in it.
func aroundMessages(m map[string]any) []byte {
	m["model"], m["user"], m["metadata"] = "m-"+canary, canary, map[string]any{canary: canary}
	m["tools"] = []any{map[string]any{"type": "function", "function": map[string]any{"name": "read_" + canary, "description": canary, "parameters": map[string]any{"type": "object"}}}}
	b, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

// Nothing that a person, an agent, a tool or a model wrote, and no key, is in
// any log entry, also at debug level and when things go wrong.
func TestCanary(t *testing.T) {
	t.Parallel()
	type say = func(*testing.T, *rig, []byte, ...string)
	ask := func(t *testing.T, r *rig, body []byte, header ...string) {
		t.Helper()
		header = append([]string{"Authorization", "Bearer " + canary, "X-Api-Key", canary, "Cookie", canary, "User-Agent", canary, "X-" + canary, canary, "Content-Type", "application/json"}, header...)
		tolerant(request(t, "POST", r.URL+"/v1/chat/completions?q="+canary, bytes.NewReader(body), header...))
	}
	quoting := func(status int) http.Handler { // an error that quotes the request
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			b, _ := io.ReadAll(req.Body)
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("X-"+canary, canary)
			w.WriteHeader(status)
			_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"code": canary, "type": canary, "message": "failed to parse: " + string(b)}})
		})
	}
	answers := func(reply llamasim.Reply, window int) http.Handler {
		return llamasim.New(llamasim.Options{Window: window, ImageTokens: 10, Reply: func(llamasim.Request) llamasim.Reply { return reply }})
	}
	said := llamasim.Reply{Reasoning: canary, Text: canary, ToolCalls: []llamasim.ToolCall{{Name: "read_" + canary, Arguments: `{"p":"` + canary + `"}`}}}
	streamed := func(b []byte) []byte { return bytes.Replace(b, []byte(`{`), []byte(`{"stream":true,`), 1) }
	both := func(b []byte) func(*testing.T, *rig, say) {
		return func(t *testing.T, r *rig, ask say) {
			ask(t, r, b)
			ask(t, r, streamed(b))
		}
	}
	short, long := withCanary(1), withCanary(600)
	for _, c := range []struct {
		name     string
		upstream http.Handler
		address  string // instead of upstream
		do       func(*testing.T, *rig, say)
		options  []rigOption
	}{
		{name: "an answer", upstream: answers(said, 1<<20), do: both(short)},
		{name: "a recovery", upstream: answers(said, 8192), do: both(long)},
		{name: "a replay", upstream: answers(said, 8192), do: func(t *testing.T, r *rig, ask say) { ask(t, r, long); ask(t, r, long) }},
		{name: "a hopeless refusal", upstream: answers(said, 64), do: both(long)},
		{name: "an answer that fills the window", upstream: answers(llamasim.Reply{Text: canary + " ", Endless: true}, 8192), do: func(t *testing.T, r *rig, ask say) { ask(t, r, short); ask(t, r, short) }},
		{name: "repairs", upstream: answers(said, 1<<20), do: func(t *testing.T, r *rig, ask say) {
			for _, b := range illegalLists() {
				ask(t, r, bytes.ReplaceAll(b, []byte(`"content":"`), []byte(`"content":"`+canary)))
				ask(t, r, bytes.ReplaceAll(b, []byte(`"arguments":"{`), []byte(`"arguments":"{`+canary)))
			}
		}},
		{name: "rejections", upstream: untouched(t), options: []rigOption{withConfig(func(c *config.Config) { c.Pairing = config.PairingReject })}, do: func(t *testing.T, r *rig, ask say) {
			for _, b := range illegalLists() {
				ask(t, r, bytes.ReplaceAll(b, []byte(`"a"`), []byte(`"`+canary+`"`)))
			}
		}},
		{name: "observing", upstream: answers(said, 8192), options: []rigOption{inMode(config.ModeObserve)}, do: both(long)},
		{name: "off", upstream: quoting(400), options: []rigOption{inMode(config.ModeOff)}, do: both(long)},
		{name: "not JSON", upstream: quoting(400), do: func(t *testing.T, r *rig, ask say) {
			for _, b := range []string{canary, `{"messages":["` + canary, `{"` + canary + `":1}`, `{"messages":[{"role":"user","content":"` + canary + "\x00"} {
				ask(t, r, []byte(b))
				ask(t, r, []byte(b), "Content-Encoding", "gzip")
				ask(t, r, compressed([]byte(b)), "Content-Encoding", "gzip")
			}
		}},
		{name: "an odd mode", upstream: quoting(400), do: func(t *testing.T, r *rig, ask say) {
			ask(t, r, short, headerMode, canary)
			ask(t, r, short, headerCompact, canary)
		}},
		{name: "quoted with 400", upstream: quoting(400), do: both(short)},
		{name: "quoted with 401", upstream: quoting(401), do: both(short)},
		{name: "quoted with 500", upstream: quoting(500), do: both(short)},
		{name: "quoted with 503", upstream: quoting(503), do: both(short)},
		{name: "quoted in a refusal", upstream: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(400)
			fmt.Fprintf(w, `{"error":{"message":"request (5031 tokens) exceeds the available context size (4096 tokens): %s","type":"exceed_context_size_error","n_prompt_tokens":5031,"n_ctx":4096,"%s":"%s"}}`, canary, canary, canary)
		}), do: both(short)},
		{name: "quoted in a stream", upstream: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.Copy(io.Discard, req.Body)
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "data: {\"id\":\"%s\",\"model\":\"%s\",\"choices\":[{\"delta\":{\"content\":\"%s\"},\"finish_reason\":\"%s\"}]}\n\ndata: {\"error\":{\"message\":\"Context size has been exceeded. %s\"}}\n\nerror: %s\n\n%s", canary, canary, canary, canary, canary, canary, canary)
		}), do: both(short)},
		{name: "HTML", upstream: answers(llamasim.Reply{Answer: llamasim.HTMLAnswer(502, "<p>"+canary)}, 1<<20), do: both(short)},
		{name: "cut off", upstream: answers(llamasim.Reply{Text: strings.Repeat(canary+" ", 20), Fault: llamasim.Fault{Kind: llamasim.FaultCutLine, After: 3}}, 1<<20), do: both(short)},
		{name: "an error in the stream", upstream: answers(llamasim.Reply{Text: canary, Fault: llamasim.Fault{Kind: llamasim.FaultError, Error: `{"error":{"code":500,"message":"` + canary + `","type":"` + canary + `"}}`}}, 1<<20), do: both(short)},
		{name: "a body too large", upstream: untouched(t), options: []rigOption{bodyLimit(1 << 10)}, do: both(long)},
		{name: "a wrong key", upstream: untouched(t), options: []rigOption{withKeys(canary+"upstream", canary+"mine")}, do: both(short)},
		{name: "a good key", upstream: quoting(400), options: []rigOption{withKeys(canary+"upstream", canary)}, do: both(short)},
		{name: "nobody there", address: nobody(t), do: both(short)},
		{name: "nobody there, and a secret in the address", address: nobody(t), options: []rigOption{func(o *Options) {
			u := *o.Upstream
			u.User, u.RawQuery = url.UserPassword(canary, canary), canary
			o.Upstream = &u
		}}, do: both(short)},
		{name: "a head that is none", address: rawAddress(t, "HTTP/1.1 200 OK\r\n"+canary+"\r\n\r\n"), do: both(short)},
		{name: "a status that is none", address: rawAddress(t, "HTTP/1.1 "+canary+"\r\n\r\n"), do: both(short)},
		{name: "no HTTP", address: rawAddress(t, canary+"\r\n\r\n"), do: both(short)},
		{name: "chunks that are none", address: rawAddress(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"+canary+"\r\n\r\n"), do: both(short)},
		{name: "a stream, chunks that are none", address: rawAddress(t, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: {}\n\r\n"+canary+"\r\n\r\n"), do: both(short)},
		{name: "trailers that are none", address: rawAddress(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n"+canary+"\r\n\r\n"), do: both(short)},
		{name: "a stream, trailers that are none", address: rawAddress(t, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\na\r\ndata: {}\n\n\r\n0\r\n"+canary+"\r\n\r\n"), do: both(short)},
		{name: "an upgrade nobody wanted", address: rawAddress(t, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+canary+"\r\n\r\n"), do: both(short)},
		{name: "other routes", upstream: quoting(400), do: func(t *testing.T, r *rig, _ say) {
			for _, c := range routes {
				tolerant(request(t, c.method, r.URL+strings.TrimSuffix(c.path, "?;")+"/"+canary+"?"+canary, strings.NewReader(canary), "Authorization", "Bearer "+canary, "Referer", canary))
			}
		}},
		{name: "other routes, trailers that are none", address: rawAddress(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n"+canary+"\r\n\r\n"), do: func(t *testing.T, r *rig, _ say) {
			tolerant(request(t, "GET", r.URL+"/slots", nil))
		}},
		{name: "a websocket", upstream: echoSocket(make(chan error, 2)), do: func(t *testing.T, r *rig, _ say) {
			c, in, _ := handshake(t, r.URL, "/ws?"+canary, "Authorization", "Bearer "+canary)
			_, _ = c.Write(frame(canary, true))
			for range 2 {
				if _, _, err := readFrame(in); err != nil {
					t.Error(err)
				}
			}
			c.Close()
			c, _, _ = handshake(t, r.URL, "/"+canary, "Upgrade", canary)
			c.Close()
		}},
		{name: "a client that leaves half-way", upstream: untouched(t), do: func(t *testing.T, r *rig, _ say) {
			c, err := net.Dial("tcp", strings.TrimPrefix(r.URL, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Length: 1000\r\n\r\n{\"messages\":[{\"%s", canary, canary)
			c.Close()
		}},
		{name: "a client that stalls", upstream: untouched(t), options: []rigOption{func(o *Options) { o.BodyIdle = 20 * time.Millisecond }}, do: func(t *testing.T, r *rig, _ say) {
			c, err := net.Dial("tcp", strings.TrimPrefix(r.URL, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Length: 1000000\r\n\r\n{\"messages\":[{\"%s", canary, canary)
			_, _ = io.Copy(io.Discard, c)
		}},
		{name: "a client that leaves mid-stream", upstream: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.Copy(io.Discard, req.Body)
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "data: %s\n\n", canary)
			w.(http.Flusher).Flush()
			<-req.Context().Done()
		}), do: func(t *testing.T, r *rig, _ say) {
			ctx, leave := context.WithCancel(t.Context())
			res := roundTrip(t, request(t, "POST", r.URL+"/v1/chat/completions", bytes.NewReader(streamed(short))).WithContext(ctx))
			_, _ = io.ReadFull(res.Body, make([]byte, 6))
			leave()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r *rig
			if c.upstream != nil {
				r = start(t, c.upstream, c.options...)
			} else {
				r = startBefore(t, c.address, c.options...)
			}
			c.do(t, r, ask)
			r.lastRequest(t, 1)
			r.checkIdle(t)
			r.hunt(t)
		})
	}
}

func rawAddress(t testing.TB, answer string) string {
	address, _ := rawAnswer(t, answer)
	return address
}

// net/http's client has a say of its own: what a server sends on a connection
// that nobody uses goes to the standard logger, word for word. Not parallel: it
// listens to that logger.
func TestCanary_StandardLogger(t *testing.T) {
	var heard syncBuffer
	was := log.Writer()
	log.SetOutput(&heard)
	defer log.SetOutput(was)

	closed := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer close(closed)
		defer c.Close()
		// A prompt in /slots that is longer than its length says.
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]%s", canary)
		_, _ = io.Copy(io.Discard, c) // until the proxy has had enough
	}))
	defer server.Close()
	r := startBefore(t, server.URL)
	res := roundTrip(t, request(t, "GET", r.URL+"/slots", nil))
	readAll(t, res.Body)
	await(t, "the proxy to drop the connection", closed)
	if strings.Contains(heard.String(), canary) {
		t.Errorf("the standard logger has it: %s", heard.String())
	}
	r.hunt(t)
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
