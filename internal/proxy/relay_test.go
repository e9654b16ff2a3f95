package proxy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/conversation"
	"github.com/compactproxy/compactproxy/internal/corpus"
	"github.com/compactproxy/compactproxy/internal/llamasim"
	"github.com/compactproxy/compactproxy/internal/metrics"
)

// ---- a proxy without a network, for virtual time

// pipes is a listener whose connections are in memory.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		return here, nil
	case <-p.closed:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// bubble is a proxy and a server that talk over pipes. It is made inside
// synctest.Test, where time passes when everyone waits.
type bubble struct {
	*Proxy
	client   *http.Client
	server   *pipes
	logs     *observer.ObservedLogs
	registry *prometheus.Registry
}

func newBubble(t *testing.T, upstream http.Handler, options ...rigOption) *bubble {
	t.Helper()
	core, logs := observer.New(zap.DebugLevel)
	b := &bubble{server: newPipes(), logs: logs, registry: prometheus.NewRegistry()}
	transport := NewTransport()
	transport.DialContext = b.server.dial
	o := Options{
		Config:    config.Default(),
		Upstream:  &url.URL{Scheme: "http", Host: "upstream"},
		Transport: transport,
		Tracker:   &fixedWindow{},
		Settings:  compaction.DefaultSettings(),
		Index:     newIndex(t, conversation.Options{Conversations: 1000, Bytes: 64 << 20}),
		Metrics:   metrics.New(b.registry, "test", "none", MetricLabels()),
		Log:       zap.New(core),
	}
	for _, option := range options {
		option(&o)
	}
	b.Proxy = New(o)
	front := newPipes()
	servers := []*http.Server{{Handler: upstream, ErrorLog: b.stdlog}, {Handler: b.Proxy, ErrorLog: b.stdlog}}
	for i, l := range []*pipes{b.server, front} {
		go servers[i].Serve(l)
	}
	b.client = &http.Client{Transport: &http.Transport{DialContext: front.dial}}
	t.Cleanup(func() {
		b.client.CloseIdleConnections()
		transport.CloseIdleConnections()
		for _, s := range servers {
			s.Close()
		}
		synctest.Wait()
	})
	return b
}

// keptAlive sets the keep-alive of a bubble or a rig.
func keptAlive(d time.Duration) rigOption {
	return withConfig(func(c *config.Config) { c.Keepalive = d })
}

// arrival is an event and when it came.
type arrival struct {
	at    time.Duration
	event string
}

// streamed is an answer as it arrived.
type streamed struct {
	res      *http.Response
	headers  time.Duration
	arrivals []arrival
	err      error // other than the end
}

func (s streamed) bytes() string {
	var b strings.Builder
	for _, a := range s.arrivals {
		b.WriteString(a.event)
	}
	return b.String()
}

func (s streamed) times() string {
	var out []string
	for _, a := range s.arrivals {
		out = append(out, a.at.Round(time.Millisecond).String())
	}
	return strings.Join(out, " ")
}

const streamingBody = `{"model":"asked-for","stream":true,"messages":[{"role":"system","content":"s"},{"role":"user","content":"hello"}]}`

// ask sends a chat request and takes in the answer to its end.
func (b *bubble) ask(t *testing.T, body string, header ...string) streamed {
	t.Helper()
	start := time.Now()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://proxy/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := b.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	s := streamed{res: res, headers: time.Since(start)}
	r := bufio.NewReader(res.Body)
	for {
		event, err := readEvent(r)
		if event != "" {
			s.arrivals = append(s.arrivals, arrival{time.Since(start), event})
		}
		if err != nil {
			if err != io.EOF {
				s.err = err
			}
			return s
		}
	}
}

// readEvent reads up to and with a blank line.
func readEvent(r *bufio.Reader) (string, error) {
	var b strings.Builder
	for {
		line, err := r.ReadString('\n')
		b.WriteString(line)
		if err != nil || strings.TrimRight(line, "\r\n") == "" {
			return b.String(), err
		}
	}
}

// ---- scripted answers

const (
	theirID    = "chatcmpl-theirs"
	roleEvent  = `data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],"created":1700000000,"id":"` + theirID + `","model":"m","object":"chat.completion.chunk"}` + "\n\n"
	tokenEvent = `data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":"Hi"}}],"created":1700000000,"id":"` + theirID + `","model":"m","x_unknown":1.0,"object":"chat.completion.chunk"}` + "\n\n"
	endEvent   = `data: {"choices":[{"finish_reason":"stop","index":0,"delta":{}}],"created":1700000000,"id":"` + theirID + `","model":"m","object":"chat.completion.chunk","timings":{"cache_n":3,"prompt_n":4,"predicted_n":5}}` + "\n\n"
	doneEvent  = "data: [DONE]\n\n"
	poolError  = `{"error":{"code":500,"message":"Context size has been exceeded.","type":"server_error"}}`
	tooLong    = `{"error":{"code":400,"message":"request (5031 tokens) exceeds the available context size (4096 tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":5031,"n_ctx":4096}}`
)

// pause is a step of a script that waits.
type pause time.Duration

// plays returns a handler that sends events and pauses in order. Headers go out
// with the first event.
func plays(steps ...any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for _, step := range steps {
			switch step := step.(type) {
			case pause:
				select {
				case <-time.After(time.Duration(step)):
				case <-r.Context().Done():
					return
				}
			case string:
				_, _ = io.WriteString(w, step)
				_ = http.NewResponseController(w).Flush()
			case breaks:
				panic(http.ErrAbortHandler)
			default:
				panic(fmt.Sprintf("no such step: %T", step))
			}
		}
	}
}

// breaks is a step of a script at which the connection breaks.
type breaks struct{}

var cut breaks

// answers a request with JSON or another body, after a while.
func replies(after time.Duration, status int, contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-time.After(after):
		case <-r.Context().Done():
			return
		}
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// chunkOf decodes an event's data.
func chunkOf(t testing.TB, event string) (c struct {
	ID      string
	Model   string
	Object  string
	Created int64
	Choices []struct {
		Index        int
		Delta        map[string]any
		FinishReason any `json:"finish_reason"`
	}
	Error *struct{ Message, Type, Code string }
}) {
	t.Helper()
	data, ok := strings.CutPrefix(strings.TrimSuffix(event, "\n\n"), "data: ")
	if !ok {
		t.Fatalf("no data event: %q", event)
	}
	if err := json.Unmarshal([]byte(data), &c); err != nil {
		t.Fatalf("%v in %q", err, event)
	}
	return c
}

// ---- keep-alive, in virtual time

func TestKeepAlive_BeforeHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, plays(pause(100*time.Second), roleEvent, tokenEvent, endEvent, doneEvent), keptAlive(time.Minute))
		started := time.Now().Unix()
		got := b.ask(t, streamingBody)
		if got.err != nil {
			t.Fatal(got.err)
		}
		if got.headers != time.Minute || got.times() != "1m0s 1m15s 1m30s 1m40s 1m40s 1m40s" {
			t.Fatalf("headers at %v, events at %s:\n%s", got.headers, got.times(), got.bytes())
		}
		h := got.res.Header
		if got.res.StatusCode != 200 || h.Get("Content-Type") != "text/event-stream" || h.Get("X-Accel-Buffering") != "no" {
			t.Errorf("status %d, header %v", got.res.StatusCode, h)
		}
		if a := h.Get(headerAction); a != "pending" {
			t.Errorf("action %q", a)
		}
		if h.Get(headerConversation) == "" || h.Get(headerTokens) == "" {
			t.Errorf("header %v", h)
		}
		first := chunkOf(t, got.arrivals[0].event)
		if first.ID == "" || first.ID == theirID || first.Model != "asked-for" || first.Object != "chat.completion.chunk" || first.Created < started {
			t.Errorf("keep-alive: %+v", first)
		}
		for i := range 3 {
			c := chunkOf(t, got.arrivals[i].event)
			want := map[string]any{"content": ""}
			if i == 0 {
				want["role"] = "assistant"
			}
			if len(c.Choices) != 1 || c.Choices[0].FinishReason != nil || c.ID != first.ID || c.Created != first.Created {
				t.Fatalf("keep-alive %d: %s", i, got.arrivals[i].event)
			}
			if diff := cmp.Diff(want, c.Choices[0].Delta); diff != "" {
				t.Errorf("keep-alive %d:\n%s", i, diff)
			}
		}
		// The server's role chunk repeats ours and is gone; the others keep every
		// byte but id and created.
		ours := strings.NewReplacer(`"`+theirID+`"`, `"`+first.ID+`"`, `"created":1700000000`, fmt.Sprintf(`"created":%d`, first.Created))
		want := ours.Replace(tokenEvent+endEvent) + doneEvent
		if diff := cmp.Diff(want, got.bytes()[strings.Index(got.bytes(), tokenEvent[:30]):]); !strings.HasSuffix(got.bytes(), want) {
			t.Errorf("the rest:\n%s", diff)
		}
		synctest.Wait()
		if fields := requestLog(t, b.logs); fields["action"] != "pending" || fields["prompt_tokens"] != int64(7) || fields["cached_tokens"] != int64(3) {
			t.Errorf("log: %v", fields)
		}
	})
}

// requestLog returns the fields of the last request's log line.
func requestLog(t testing.TB, logs *observer.ObservedLogs) map[string]any {
	t.Helper()
	all := logs.FilterMessage("request").All()
	if len(all) == 0 {
		t.Fatal("no log line")
	}
	return all[len(all)-1].ContextMap()
}

func TestKeepAlive_AfterTheRoleChunk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, plays(pause(time.Second), roleEvent, pause(80*time.Second), tokenEvent, endEvent, doneEvent), keptAlive(time.Minute))
		got := b.ask(t, streamingBody)
		if got.headers != time.Second || got.times() != "1s 1m1s 1m16s 1m21s 1m21s 1m21s" {
			t.Fatalf("headers at %v, events at %s:\n%s", got.headers, got.times(), got.bytes())
		}
		if a := got.res.Header.Get(headerAction); a != "none" {
			t.Errorf("action %q", a)
		}
		for _, i := range []int{1, 2} {
			c := chunkOf(t, got.arrivals[i].event)
			if c.ID != theirID || c.Created != 1700000000 {
				t.Errorf("a keep-alive of another identity: %+v", c)
			}
			if diff := cmp.Diff(map[string]any{"content": ""}, c.Choices[0].Delta); diff != "" {
				t.Error(diff)
			}
		}
		rest := got.arrivals[0].event + got.arrivals[3].event + got.arrivals[4].event + got.arrivals[5].event
		if diff := cmp.Diff(roleEvent+tokenEvent+endEvent+doneEvent, rest); diff != "" {
			t.Errorf("the server's own events changed:\n%s", diff)
		}
	})
}

// Comments from the server do not reset the timer: two agents do not count them
// as life. Data does.
func TestKeepAlive_WhatResetsTheTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		comment := ":\n\n"
		b := newBubble(t, plays(comment, pause(25*time.Second), comment, pause(25*time.Second), comment, pause(15*time.Second), roleEvent,
			pause(50*time.Second), tokenEvent, pause(50*time.Second), tokenEvent, pause(59*time.Second), comment, pause(2*time.Second), endEvent, doneEvent), keptAlive(time.Minute))
		got := b.ask(t, streamingBody)
		var keepAlives []string
		for _, a := range got.arrivals {
			if strings.Contains(a.event, `"content":""`) {
				keepAlives = append(keepAlives, a.at.String())
			}
		}
		// 60 s of comments, and 60 s after the last token.
		if diff := cmp.Diff([]string{"1m0s", "3m45s"}, keepAlives); diff != "" {
			t.Errorf("keep-alives:\n%s", diff)
		}
		if n := strings.Count(got.bytes(), comment); n < 4 {
			t.Errorf("%d comments came through", n)
		}
	})
}

func TestKeepAlive_Never(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, plays(pause(10*time.Minute), roleEvent, pause(10*time.Minute), tokenEvent, pause(10*time.Minute), endEvent, doneEvent), keptAlive(0))
		got := b.ask(t, streamingBody)
		if diff := cmp.Diff(roleEvent+tokenEvent+endEvent+doneEvent, got.bytes()); diff != "" || got.headers != 10*time.Minute {
			t.Errorf("headers at %v:\n%s", got.headers, diff)
		}
	})
}

// A request that is not streamed gets nothing but its answer, however long it
// takes.
func TestKeepAlive_NotForPlainAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := `{"choices":[{"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}]}`
		b := newBubble(t, replies(10*time.Minute, 200, "application/json", body), keptAlive(time.Minute))
		got := b.ask(t, strings.Replace(streamingBody, `"stream":true,`, "", 1))
		if got.bytes() != body || got.headers != 10*time.Minute || got.res.Header.Get(headerAction) != "none" {
			t.Errorf("headers at %v: %s", got.headers, got.bytes())
		}
	})
}

// A client of the pace of ten minutes of prefill never waits more than a
// minute, and then 15 seconds, for a sign of life.
func TestKeepAlive_LongPrefill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, plays(pause(10*time.Minute), roleEvent, tokenEvent, endEvent, doneEvent), keptAlive(time.Minute))
		got := b.ask(t, streamingBody)
		if n := len(got.arrivals); n != 1+35+1+3 {
			t.Errorf("%d events", n)
		}
		last := time.Duration(0)
		for i, a := range got.arrivals {
			if gap := a.at - last; i > 0 && gap > 15*time.Second {
				t.Errorf("%v of silence before %q", gap, a.event)
			}
			last = a.at
		}
	})
}

// Once a keep-alive has spent status and headers, what goes wrong arrives in
// the stream: one data line with the error object, then the end, never a false
// [DONE].
func TestKeepAlive_ErrorsTravelInTheStream(t *testing.T) {
	refused := func(b *bubble) { b.server.Close() }
	tests := []struct {
		name     string
		upstream http.Handler
		code     string
		message  string
		exact    string // the whole payload, where it is the server's own
		before   func(*bubble)
	}{
		{name: "500 with JSON", upstream: replies(70*time.Second, 500, "application/json", "{\"error\":{\"code\":500,\n\"message\":\"boom\",\"type\":\"server_error\"}}"), exact: `{"error":{"code":500,"message":"boom","type":"server_error"}}`},
		{name: "503 while loading", upstream: replies(70*time.Second, 503, "application/json", `{"error":{"message":"Loading model","type":"unavailable_error","code":503}}`), exact: `{"error":{"message":"Loading model","type":"unavailable_error","code":503}}`},
		{name: "502 with a page", upstream: replies(70*time.Second, 502, "text/html", "<html>\n\nBad Gateway</html>"), code: "upstream_error", message: "502"},
		{name: "an empty 500", upstream: replies(70*time.Second, 500, "text/plain", ""), code: "upstream_error", message: "500"},
		{name: "the connection breaks", upstream: plays(pause(70*time.Second), cut), code: "upstream_unreachable", message: "broke"},
		{name: "nobody listens", before: refused, upstream: nil, code: "upstream_unreachable", message: "does not accept connections"},
		{name: "a refusal that cannot be recovered from", upstream: replies(70*time.Second, 400, "application/json", tooLong), code: "context_length_exceeded", message: "maximum context length is 4096 tokens"},
		{name: "an error object in the server's stream", upstream: plays(pause(70*time.Second), "data: "+strings.Replace(poolError, "Context size has been exceeded.", "boom", 1)+"\n\n"), exact: strings.Replace(poolError, "Context size has been exceeded.", "boom", 1)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				options := []rigOption{keptAlive(time.Minute)}
				if tt.before != nil {
					// The dial itself takes longer than the keep-alive.
					options = append(options, func(o *Options) {
						transport := o.Transport.(*http.Transport)
						dial := transport.DialContext
						transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
							time.Sleep(70 * time.Second)
							return dial(ctx, network, address)
						}
					})
				}
				b := newBubble(t, tt.upstream, options...)
				if tt.before != nil {
					tt.before(b)
				}
				got := b.ask(t, streamingBody)
				if got.err != nil {
					t.Fatalf("the stream broke: %v after %s", got.err, got.bytes())
				}
				if got.res.StatusCode != 200 || got.res.Header.Get(headerAction) != "pending" {
					t.Errorf("status %d, header %v", got.res.StatusCode, got.res.Header)
				}
				if len(got.arrivals) != 2 || got.times() != "1m0s 1m10s" {
					t.Fatalf("events at %s:\n%s", got.times(), got.bytes())
				}
				event := got.arrivals[1].event
				if tt.exact != "" {
					if event != "data: "+tt.exact+"\n\n" {
						t.Errorf("got %q", event)
					}
					return
				}
				c := chunkOf(t, event)
				if c.Error == nil || c.Error.Code != tt.code || !strings.Contains(c.Error.Message, tt.message) || c.Error.Type == "" {
					t.Errorf("got %q", event)
				}
			})
		})
	}
}

// upstream.timeout is for the first byte; keep-alives do not hide it.
func TestKeepAlive_Timeout(t *testing.T) {
	for _, tt := range []struct {
		keepalive time.Duration
		spent     bool
	}{{time.Minute, false}, {10 * time.Second, true}} {
		synctest.Test(t, func(t *testing.T) {
			b := newBubble(t, plays(pause(10*time.Minute), roleEvent), keptAlive(tt.keepalive), withConfig(func(c *config.Config) { c.Upstream.Timeout = 30 * time.Second }))
			got := b.ask(t, streamingBody)
			if want := map[bool]int{false: 504, true: 200}[tt.spent]; got.res.StatusCode != want {
				t.Errorf("status %d, want %d", got.res.StatusCode, want)
			}
			last := got.arrivals[len(got.arrivals)-1]
			if last.at != 30*time.Second || !strings.Contains(last.event, `"upstream_timeout"`) || strings.Contains(got.bytes(), "[DONE]") {
				t.Errorf("at %v: %s", last.at, got.bytes())
			}
		})
	}
}

// An event is never interrupted, however slowly the server sends it.
func TestKeepAlive_NotInsideAnEvent(t *testing.T) {
	large := `data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":"` + strings.Repeat("x", 1<<20+4096)
	tests := []struct {
		name   string
		pieces []string
	}{
		{"half a line", []string{tokenEvent[:20], tokenEvent[20:]}},
		{"behind the line", []string{tokenEvent[:len(tokenEvent)-2], tokenEvent[len(tokenEvent)-2:]}},
		{"inside the blank line", []string{tokenEvent[:len(tokenEvent)-1], tokenEvent[len(tokenEvent)-1:]}},
		{"an event of more than a megabyte", []string{large, `"}}]}` + "\n\n"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				steps := []any{roleEvent, tokenEvent}
				for _, p := range tt.pieces {
					steps = append(steps, p, pause(70*time.Second))
				}
				steps = append(steps, endEvent, doneEvent)
				b := newBubble(t, plays(steps...), keptAlive(time.Minute))
				got := b.ask(t, streamingBody)
				found, keepAlives := false, 0
				for _, a := range got.arrivals {
					found = found || a.event == strings.Join(tt.pieces, "")
					if strings.Contains(a.event, `"content":""`) {
						keepAlives++
					}
				}
				if !found {
					t.Errorf("the event did not arrive in one piece: %.300s", got.bytes())
				}
				if keepAlives == 0 {
					t.Error("no keep-alive at all")
				}
			})
		})
	}
}

// Some servers answer a streaming request with plain JSON. A keep-alive chunk
// would break it.
func TestKeepAlive_NotInsideJSON(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const body = `{"choices":[{"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}]}`
		b := newBubble(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, body[:20])
			_ = http.NewResponseController(w).Flush()
			time.Sleep(70 * time.Second)
			_, _ = io.WriteString(w, body[20:])
		}), keptAlive(time.Minute))
		got := b.ask(t, streamingBody)
		if got.bytes() != body {
			t.Errorf("got %s", got.bytes())
		}
	})
}

// Mode observe decides, logs and adds response headers, and that is all.
func TestKeepAlive_NotInObserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, plays(pause(70*time.Second), roleEvent, tokenEvent, endEvent, doneEvent), keptAlive(time.Minute))
		got := b.ask(t, streamingBody, headerMode, "observe")
		if diff := cmp.Diff(roleEvent+tokenEvent+endEvent+doneEvent, got.bytes()); diff != "" {
			t.Errorf("mode observe changed the answer:\n%s", diff)
		}
	})
}

func TestKeepAlive_NotWhenOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, plays(pause(70*time.Second), roleEvent, tokenEvent, endEvent, doneEvent), keptAlive(time.Minute))
		got := b.ask(t, streamingBody, headerMode, "off")
		if diff := cmp.Diff(roleEvent+tokenEvent+endEvent+doneEvent, got.bytes()); diff != "" {
			t.Errorf("mode off changed the answer:\n%s", diff)
		}
	})
}

// A client that leaves while only keep-alives have come cancels the server.
func TestKeepAlive_ClientLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := make(chan time.Time, 1)
		b := newBubble(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
			gone <- time.Now()
		}), keptAlive(time.Minute))
		ctx, cancel := context.WithCancel(t.Context())
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://proxy/v1/chat/completions", strings.NewReader(streamingBody))
		res, err := b.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := readEvent(bufio.NewReader(res.Body)); err != nil {
			t.Fatal(err)
		}
		left := time.Now()
		cancel()
		res.Body.Close()
		if took := (<-gone).Sub(left); took > time.Second {
			t.Errorf("the server learned it after %v", took)
		}
		synctest.Wait()
		if got := testutil.ToFloat64(b.metrics.Requests.WithLabelValues("chat", "499")); got != 1 {
			t.Errorf("counted as %v", requestLog(t, b.logs))
		}
	})
}

// ---- events as they come

// Each event reaches the client before the server sends the next.
func TestRelay_EventByEvent(t *testing.T) {
	events := []string{roleEvent, ":\n\n", tokenEvent, tokenEvent, "event: x\r\nid: 7\r\ndata: {\"a\":1}\r\n\r\n", tokenEvent, endEvent, doneEvent}
	for _, mode := range []string{"on", "observe", "off"} {
		t.Run(mode, func(t *testing.T) {
			next := make(chan struct{})
			r := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				for _, e := range events {
					_, _ = io.WriteString(w, e)
					_ = http.NewResponseController(w).Flush()
					select {
					case <-next:
					case <-r.Context().Done():
						return
					}
				}
			}))
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.URL+"/v1/chat/completions", strings.NewReader(streamingBody))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set(headerMode, mode)
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			for i, want := range events {
				got := make([]byte, len(want))
				if _, err := io.ReadFull(res.Body, got); err != nil {
					t.Fatalf("event %d: %v", i, err)
				}
				if string(got) != want {
					t.Fatalf("event %d: got %q, want %q", i, got, want)
				}
				select {
				case next <- struct{}{}:
				case <-ctx.Done():
					t.Fatal(ctx.Err())
				}
			}
		})
	}
}

// A server that dies in the middle of a stream is a broken connection for the
// client, never a stream that looks finished.
func TestRelay_CutMidStream(t *testing.T) {
	for name, steps := range map[string][]any{
		"after a token":      {roleEvent, tokenEvent, cut},
		"inside a line":      {roleEvent, tokenEvent, tokenEvent[:30], cut},
		"after the role":     {roleEvent, cut},
		"after the end":      {roleEvent, tokenEvent, endEvent, cut},
		"after a keep-alive": {roleEvent, pause(70 * time.Second), cut},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t, plays(steps...), keptAlive(time.Minute))
				got := b.ask(t, streamingBody)
				if got.err == nil {
					t.Errorf("it looks finished: %s", got.bytes())
				}
				if strings.Contains(got.bytes(), "[DONE]") || strings.Contains(got.bytes(), `"error"`) {
					t.Errorf("got %s", got.bytes())
				}
				if !strings.HasPrefix(got.bytes(), roleEvent) {
					t.Errorf("what came before did not come through: %s", got.bytes())
				}
			})
		})
	}
}

// What comes before the first event has a status.
func TestRelay_CutBeforeTheFirstEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, plays(cut), keptAlive(time.Minute))
		got := b.ask(t, streamingBody)
		if got.res.StatusCode != 502 || !strings.Contains(got.bytes(), "upstream_unreachable") {
			t.Errorf("status %d: %s", got.res.StatusCode, got.bytes())
		}
	})
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, plays("", pause(time.Second), cut), keptAlive(time.Minute)) // headers, then nothing
		got := b.ask(t, streamingBody)
		if got.res.StatusCode != 502 || !strings.Contains(got.bytes(), "upstream_unreachable") {
			t.Errorf("status %d: %s", got.res.StatusCode, got.bytes())
		}
	})
}

// A stream that ends without [DONE] ends without [DONE]; an empty one is empty.
func TestRelay_Ends(t *testing.T) {
	for name, steps := range map[string][]any{
		"without [DONE]":                  {roleEvent, tokenEvent},
		"without a blank line":            {roleEvent, tokenEvent, strings.TrimRight(endEvent, "\n")},
		"empty":                           {""},
		"comments alone":                  {":\n\n:\n\n"},
		"an error that is no overflow":    {roleEvent, "data: {\"error\":{\"code\":500,\"message\":\"boom\",\"type\":\"server_error\"}}\n\n"},
		"an error after a token":          {roleEvent, tokenEvent, "data: " + poolError + "\n\n"},
		"an old server's error, a token":  {roleEvent, tokenEvent, "error: " + poolError + "\n\n"},
		"something that is not an event":  {"hello\n\nworld"},
		"[DONE] alone":                    {doneEvent},
		"more behind [DONE]":              {roleEvent, doneEvent, tokenEvent},
		"null deltas, no choices, no ids": {"data: {\"choices\":[{\"delta\":null}]}\n\n", "data: {\"choices\":null}\n\n", "data: 7\n\n", "data: null\n\n", "data:\n\n", tokenEvent},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t, plays(steps...))
				got := b.ask(t, streamingBody)
				var want string
				for _, s := range steps {
					want += s.(string)
				}
				if got.err != nil || got.bytes() != want {
					t.Errorf("%v, got %q, want %q", got.err, got.bytes(), want)
				}
			})
		})
	}
}

// ---- usage and timings

// Counts are read from every server's stream as it is, and nothing is asked for
// that the client did not ask for.
func TestRelay_Counts(t *testing.T) {
	for _, tt := range []struct{ name, options string }{
		{"stream", `,"stream":true`},
		{"stream with usage", `,"stream":true,"stream_options":{"include_usage":true}`},
		{"stream with timings per token", `,"stream":true,"timings_per_token":true`},
		{"stream with progress", `,"stream":true,"return_progress":true`},
		{"plain", ``},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sim := llamasim.New(llamasim.Options{Reply: func(llamasim.Request) llamasim.Reply { return llamasim.Reply{Text: "one two three four five"} }})
			r := settling(t, sim)
			body := []byte(`{"messages":[{"role":"user","content":"` + strings.Repeat("hello there ", 100) + `"}]` + tt.options + `}`)
			for i := range 2 {
				r.post(t, body)
				sent := sim.Requests()[i]
				if !bytes.Equal(sent.Body, body) {
					t.Errorf("sent %s", sent.Body)
				}
				fields := requestLog(t, r.Logs)
				want := map[string]any{"prompt_tokens": int64(sent.PromptTokens), "cached_tokens": int64(sent.CachedTokens), "completion_tokens": int64(sent.Predicted)}
				for key, n := range want {
					if fields[key] != n {
						t.Errorf("request %d: %s %v, want %v", i, key, fields[key], n)
					}
				}
				if i == 1 && sent.CachedTokens == 0 {
					t.Error("nothing was cached")
				}
			}
			var prompt, cached, predicted int
			for _, sent := range sim.Requests() {
				prompt, cached, predicted = prompt+sent.PromptTokens, cached+sent.CachedTokens, predicted+sent.Predicted
			}
			for source, want := range map[string]int{"cache": cached, "processed": prompt - cached} {
				if got := testutil.ToFloat64(r.metrics.PromptTokens.WithLabelValues(source)); got != float64(want) {
					t.Errorf("prompt tokens from %s: %v, want %d", source, got, want)
				}
			}
			if got := testutil.ToFloat64(r.metrics.Completion); got != float64(predicted) {
				t.Errorf("completion tokens: %v, want %d", got, predicted)
			}
		})
	}
}

// counts are what a request's log line has of the server's counts, -1 for none.
type counts struct{ prompt, cached, completion int64 }

func countsOf(t testing.TB, logs *observer.ObservedLogs) counts {
	t.Helper()
	fields := requestLog(t, logs)
	c := counts{-1, -1, -1}
	if n, ok := fields["prompt_tokens"].(int64); ok {
		c.prompt, c.cached, c.completion = n, fields["cached_tokens"].(int64), fields["completion_tokens"].(int64)
	}
	return c
}

// roundTrips is a server without a network.
type roundTrips func(*http.Request) (*http.Response, error)

func (f roundTrips) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// inPieces gives a stream out in pieces of the given lengths; what is left
// comes in one.
type inPieces struct {
	data []byte
	cuts []int
}

func (p *inPieces) Read(b []byte) (int, error) {
	if len(p.data) == 0 {
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

// newTap returns a function that puts a stream through a proxy without a
// network. It is quick enough to try every cut.
func newTap() func(t testing.TB, stream []byte, mode string, cuts ...int) (string, counts) {
	core, logs := observer.New(zap.InfoLevel)
	var body io.Reader
	index, err := conversation.NewIndex(conversation.Options{Conversations: 10, Bytes: 1 << 20})
	if err != nil {
		panic(err)
	}
	p := New(Options{
		Config:   config.Default(),
		Upstream: &url.URL{Scheme: "http", Host: "upstream"},
		Transport: roundTrips(func(r *http.Request) (*http.Response, error) {
			return &http.Response{
				StatusCode: 200, ProtoMajor: 1, ProtoMinor: 1, Request: r, ContentLength: -1,
				Header: http.Header{"Content-Type": {"text/event-stream"}},
				Body:   io.NopCloser(body),
			}, nil
		}),
		Tracker: &fixedWindow{}, Settings: compaction.DefaultSettings(), Index: index,
		Metrics: metrics.New(prometheus.NewRegistry(), "test", "none", MetricLabels()), Log: zap.New(core),
	})
	return func(t testing.TB, stream []byte, mode string, cuts ...int) (string, counts) {
		t.Helper()
		logs.TakeAll()
		body = &inPieces{data: stream, cuts: cuts}
		w := httptest.NewRecorder()
		req := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(streamingBody))
		req.Header.Set(headerMode, mode)
		p.ServeHTTP(w, req)
		return w.Body.String(), countsOf(t, logs)
	}
}

// Counts stand in different chunks on different servers.
func TestRelay_CountsInAnyChunk(t *testing.T) {
	token := `data: {"choices":[{"index":0,"delta":{"content":"x"}%s}]%s}` + "\n\n"
	plain := fmt.Sprintf(token, "", "")
	usage := `,"usage":{"prompt_tokens":70,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":30}}`
	bare := `,"usage":{"prompt_tokens":70,"completion_tokens":5,"total_tokens":75}`
	timings := `,"timings":{"cache_n":30,"prompt_n":40,"prompt_ms":1.5,"predicted_n":5,"predicted_ms":2.5}`
	full := counts{70, 30, 5}
	tests := []struct {
		name   string
		stream string
		want   counts
	}{
		{"usage in a chunk of its own", plain + "data: {\"choices\":[]" + usage + "}\n\n" + doneEvent, full},
		{"usage in the finish chunk", plain + fmt.Sprintf(token, `,"finish_reason":"stop"`, usage) + doneEvent, full},
		{"usage beside a token", plain + fmt.Sprintf(token, "", usage) + plain + doneEvent, full},
		{"usage in the first chunk", fmt.Sprintf(token, "", usage) + plain + doneEvent, full},
		{"usage without details", plain + "data: {\"choices\":[]" + bare + "}\n\n" + doneEvent, counts{70, 0, 5}},
		{"usage null until the end", fmt.Sprintf(token, "", `,"usage":null`) + fmt.Sprintf(token, "", `,"usage":null`) + "data: {\"choices\":[]" + usage + "}\n\n" + doneEvent, full},
		{"timings in the finish chunk", plain + fmt.Sprintf(token, `,"finish_reason":"stop"`, timings) + doneEvent, full},
		{"timings per token: the last count", fmt.Sprintf(token, "", strings.Replace(timings, `"predicted_n":5`, `"predicted_n":1`, 1)) + fmt.Sprintf(token, "", timings) + doneEvent, full},
		{"both", plain + "data: {\"choices\":[]" + usage + timings + "}\n\n" + doneEvent, full},
		{"no blank line at the end", plain + "data: {\"choices\":[]" + usage + "}\n", full},
		{"no [DONE]", plain + "data: {\"choices\":[]" + usage + "}\n\n", full},
		{"CR LF", strings.ReplaceAll(plain+"data: {\"choices\":[]"+usage+"}\n\n"+doneEvent, "\n", "\r\n"), full},
		{"no space behind the colon", strings.ReplaceAll(plain+"data: {\"choices\":[]"+usage+"}\n\n"+doneEvent, "data: ", "data:"), full},
		{"usage with spaces", plain + "data: { \"choices\" : [ ] , \"usage\" : { \"prompt_tokens\" : 70 , \"completion_tokens\" : 5, \"prompt_tokens_details\": {\"cached_tokens\":30} } }\n\n" + doneEvent, full},
		{"reasoning before any text", `data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}` + "\n\n" + "data: {\"choices\":[]" + usage + "}\n\n" + doneEvent, full},
		{"none", plain + doneEvent, counts{-1, -1, -1}},
		{"usage of nothing", plain + "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":0,\"completion_tokens\":0}}\n\n" + doneEvent, counts{-1, -1, -1}},
		{"a token that only speaks of usage", strings.Replace(plain, `"x"`, `"\"usage\":{\"prompt_tokens\":9}"`, 1) + doneEvent, counts{-1, -1, -1}},
	}
	relayed := newTap()
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			step := 1 // every cut
			if i > 1 {
				step = 7
			}
			for cut := 0; cut <= len(tt.stream); cut += step {
				body, got := relayed(t, []byte(tt.stream), "on", cut)
				if body != tt.stream {
					t.Fatalf("cut at %d: got %q, want %q", cut, body, tt.stream)
				}
				if got != tt.want {
					t.Fatalf("cut at %d: got %+v, want %+v", cut, got, tt.want)
				}
			}
		})
	}
}

// The captured streams of a real server, cut anywhere.
func TestRelay_Captures(t *testing.T) {
	relayed := newTap()
	for _, name := range []string{"chat_stream", "chat_stream_usage", "chat_stream_timings_per_token", "chat_stream_return_progress", "stream_tool_calls_1", "empty_completion_stream", "noshift_gen_hits_nctx_stream"} {
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
			_, want := relayed(t, []byte(stream), "on")
			if want.prompt <= 0 || want.completion <= 0 {
				t.Fatalf("counts %+v", want)
			}
			step := max(len(stream)/60, 1)
			for cut := 0; cut < len(stream); cut += step {
				body, got := relayed(t, []byte(stream), "on", cut)
				if body != stream || got != want {
					t.Fatalf("cut at %d: counts %+v, want %+v, same bytes %v", cut, got, want, body == stream)
				}
			}
		})
	}
}
