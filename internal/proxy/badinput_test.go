package proxy

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/llamasim"
	"github.com/compactproxy/compactproxy/internal/pairing"
	"github.com/compactproxy/compactproxy/internal/upstream"
)

// inMode sets the mode of a rig or a bubble.
func inMode(mode config.Mode) rigOption {
	return withConfig(func(c *config.Config) { c.Compaction.Mode = mode })
}

// bodyLimit sets limits.body.
func bodyLimit(n config.ByteSize) rigOption {
	return withConfig(func(c *config.Config) { c.Limits.Body = n })
}

const (
	plainChat  = `{"model":"m","messages":[{"role":"user","content":"hi"}]}`
	streamChat = `{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}`
)

// ownError is an error of the proxy's own in the OpenAI shape.
type ownError struct {
	Message, Type, Code string
	Param               *string
}

// wantError checks that an answer is an error of the proxy's own, whole.
func wantError(t testing.TB, res *http.Response, body []byte, status int, code string) ownError {
	t.Helper()
	var e struct{ Error ownError }
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil {
		t.Fatalf("status %d with %.300q: %v", res.StatusCode, body, err)
	}
	if res.StatusCode != status || e.Error.Code != code {
		t.Errorf("status %d and code %q, want %d and %q: %s", res.StatusCode, e.Error.Code, status, code, body)
	}
	if kind := res.Header.Get("Content-Type"); kind != "application/json; charset=utf-8" {
		t.Errorf("content type %q", kind)
	}
	if !strings.HasPrefix(e.Error.Message, "compactproxy: ") || e.Error.Type == "" {
		t.Errorf("the error does not say who made it, or of what type it is: %s", body)
	}
	return e.Error
}

// untouched is a server that must not be asked.
func untouched(t testing.TB) http.Handler {
	return http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		t.Errorf("the server was asked: %s %s", req.Method, req.URL)
	})
}

// lastRequest is the log line of the last request. The handler writes it behind
// the answer, so that a client may be ahead of it.
func (r *rig) lastRequest(t testing.TB, n int) map[string]any {
	t.Helper()
	for limit := time.Now().Add(10 * time.Second); time.Now().Before(limit); runtime.Gosched() {
		if lines := r.Logs.FilterMessage("request").All(); len(lines) >= n {
			return lines[n-1].ContextMap()
		}
	}
	t.Fatalf("request %d was not logged", n)
	return nil
}

// ---- bodies

// What is no chat request that anybody could understand goes to the server as
// it is, and its answer comes back as it is.
func TestBad_TheServerAnswersWhatIsNoChat(t *testing.T) {
	t.Parallel()
	sim := llamasim.New(llamasim.Options{Seed: 1, Now: func() time.Time { return time.Unix(1, 0) }})
	server := httptest.NewServer(sim)
	t.Cleanup(server.Close)
	everyMode(t, func(t *testing.T, mode rigOption) {
		r := startBefore(t, server.URL, mode)
		for name, body := range oddBodies() {
			_, want := post(t, server.URL+"/v1/chat/completions", body)
			res, got := r.post(t, body)
			sent := sim.Requests()
			sim.ForgetRequests()
			if len(sent) != 2 || !bytes.Equal(sent[1].Body, body) || sent[1].Status != res.StatusCode {
				t.Errorf("%s: the server got %d requests, the last was changed or answered otherwise", name, len(sent))
				continue
			}
			if sent[0].Status != http.StatusOK && !bytes.Equal(got, want) {
				t.Errorf("%s: got %q, want %q", name, got, want)
			}
			if sent[0].Status != sent[1].Status {
				t.Errorf("%s: status %d, want %d", name, sent[1].Status, sent[0].Status)
			}
		}
	})
}

func TestBad_BodyOverTheLimit(t *testing.T) {
	t.Parallel()
	const limit = 1 << 10
	body := func(n int) []byte {
		b := []byte(`{"messages":[{"role":"user","content":"` + strings.Repeat("x", n))
		return append(b[:n-4], `"}]}`...)
	}
	for _, mode := range []config.Mode{config.ModeOn, config.ModeObserve} {
		r := start(t, untouched(t), inMode(mode), bodyLimit(limit))
		for name, reader := range map[string]io.Reader{
			"a byte too much":            bytes.NewReader(body(limit + 1)),
			"a byte too much, in chunks": io.MultiReader(bytes.NewReader(body(limit + 1))),
			"much":                       bytes.NewReader(body(3 << 20)),
			"much, in chunks":            io.MultiReader(bytes.NewReader(body(3 << 20))),
			"much, announced":            bytes.NewReader(body(3 << 20)),
		} {
			req := request(t, "POST", r.URL+"/v1/chat/completions", reader)
			if name == "much, announced" {
				req.Header.Set("Expect", "100-continue")
			}
			res := roundTrip(t, req)
			b := readAll(t, res.Body)
			e := wantError(t, res, b, http.StatusRequestEntityTooLarge, "request_body_too_large")
			if !strings.Contains(e.Message, "limits.body") || !strings.Contains(e.Message, "1KiB") {
				t.Errorf("%s: the message names neither the setting nor its value: %q", name, e.Message)
			}
			if refusal := upstream.Classify(res.StatusCode, b); refusal.Kind != upstream.None {
				t.Errorf("%s: the error reads like %v: %s", name, refusal.Kind, b)
			}
			for _, word := range []string{"context", "token", "length", "long", "exceed", "maximum", "prompt", "window"} {
				if strings.Contains(strings.ToLower(string(b)), word) {
					t.Errorf("%s: %q is a word of context overflows: %s", name, word, b)
				}
			}
		}
		if line := r.lastRequest(t, 5); line["reason"] != "request_body_too_large" || line["status"] != int64(413) {
			t.Errorf("logged as %v", line)
		}
	}

	got := make(chan int, 1)
	r := start(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		got <- len(b)
	}), bodyLimit(limit))
	for name, reader := range map[string]io.Reader{
		"just under":            bytes.NewReader(body(limit)),
		"just under, in chunks": io.MultiReader(bytes.NewReader(body(limit))),
	} {
		res := roundTrip(t, request(t, "POST", r.URL+"/v1/chat/completions", reader))
		if n := await(t, "the request", got); res.StatusCode != http.StatusOK || n != limit {
			t.Errorf("%s: status %d, the server got %d bytes", name, res.StatusCode, n)
		}
	}
	// The limit is for what is read: everything else passes.
	for _, path := range []string{"/v1/completions", "/upload"} {
		roundTrip(t, request(t, "POST", r.URL+path, bytes.NewReader(body(2*limit))))
		if n := await(t, "the request", got); n != 2*limit {
			t.Errorf("%s: the server got %d bytes", path, n)
		}
	}
}

func compressed(plain []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write(plain)
	_ = z.Close()
	return b.Bytes()
}

// A compressed body is understood; the server, which would answer 415 to it,
// gets the plain one. What cannot be read goes on as it came.
func TestBad_CompressedBodies(t *testing.T) {
	t.Parallel()
	type arrival struct {
		Encoding []string
		Size     int64
		Body     string
	}
	got := make(chan arrival, 1)
	r := start(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		got <- arrival{req.Header["Content-Encoding"], req.ContentLength, string(b)}
	}))
	f := func(name, coding string, body []byte, want string, wantCoding ...string) {
		t.Helper()
		res, _ := r.post(t, body, "Content-Encoding", coding)
		a := await(t, "the request", got)
		if diff := cmp.Diff(arrival{wantCoding, int64(len(want)), want}, a); diff != "" || res.StatusCode != http.StatusOK {
			t.Errorf("%s: status %d, the server got (-want +got):\n%s", name, res.StatusCode, diff)
		}
	}
	whole := compressed([]byte(plainChat))
	f("gzip", "gzip", whole, plainChat)
	f("in capitals", "GZIP", whole, plainChat)
	f("in two parts", "gzip", append(compressed([]byte(plainChat[:9])), compressed([]byte(plainChat[9:]))...), plainChat)
	f("of an orphan, to be repaired", "gzip", compressed(illegalLists()["unanswered call"]), repairedBy(t, illegalLists()["unanswered call"]))
	f("of something else", "gzip", compressed([]byte("not chat")), "not chat")
	f("of nothing", "gzip", compressed(nil), "")
	f("truncated", "gzip", whole[:len(whole)-9], string(whole[:len(whole)-9]), "gzip")
	f("truncated in its head", "gzip", whole[:5], string(whole[:5]), "gzip")
	f("of a wrong sum", "gzip", append(whole[:len(whole)-8:len(whole)-8], "\x00\x00\x00\x00\x00\x00\x00\x00"...), string(whole[:len(whole)-8])+"\x00\x00\x00\x00\x00\x00\x00\x00", "gzip")
	f("not gzip at all", "gzip", []byte(plainChat), plainChat, "gzip")
	f("another coding", "br", []byte("\x0b\x02\x80"), "\x0b\x02\x80", "br")
	f("empty", "gzip", nil, "", "gzip")
}

// repairedBy is what a plain request with that body is forwarded as.
func repairedBy(t testing.TB, body []byte) string {
	t.Helper()
	got := make(chan string, 1)
	r := start(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		got <- string(b)
	}))
	r.post(t, body)
	return await(t, "the request", got)
}

// A kilobyte that grows to a gigabyte costs what the limit allows. Not parallel:
// it looks at what the process allocates.
func TestBad_CompressionBomb(t *testing.T) {
	r := start(t, untouched(t), bodyLimit(1<<20))
	bomb := bytes.Repeat(compressed(make([]byte, 1<<20)), 900) // under the limit itself
	if len(bomb) > 1<<20 {
		t.Fatalf("the bomb has %d bytes", len(bomb))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	res, body := r.post(t, bomb, "Content-Encoding", "gzip")
	runtime.ReadMemStats(&after)
	wantError(t, res, body, http.StatusRequestEntityTooLarge, "request_body_too_large")
	if spent := after.TotalAlloc - before.TotalAlloc; spent > 24<<20 {
		t.Errorf("%d MB were allocated for a limit of 1 MB", spent>>20)
	}
}

// A client that stops half-way is told so, loses its connection, and has cost
// the server nothing. All in virtual time.
func TestBad_ClientStallsHalfWay(t *testing.T) {
	t.Parallel()
	for name, half := range map[string]string{
		"of a known length":         "Content-Length: 100\r\n\r\n{\"messages\":",
		"of a known length, large":  "Content-Length: 10000000\r\n\r\n{\"messages\":",
		"in chunks":                 "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
		"inside a chunk":            "Transfer-Encoding: chunked\r\n\r\n5\r\nhel",
		"before the first byte":     "Content-Length: 100\r\n\r\n",
		"having asked for continue": "Content-Length: 100\r\nExpect: 100-continue\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				t.Cleanup(func() { <-time.After(time.Minute) }) // net/http lingers on what it closes
				b := newBubble(t, untouched(t))
				c := rawConn(t, b)
				began := time.Now()
				if err := c.SetDeadline(began.Add(time.Hour)); err != nil {
					t.Fatal(err)
				}
				if _, err := io.WriteString(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"+half); err != nil {
					t.Fatal(err)
				}
				r := bufio.NewReader(c)
				res, err := http.ReadResponse(r, nil)
				if err == nil && res.StatusCode == http.StatusContinue {
					res, err = http.ReadResponse(r, nil)
				}
				if err != nil {
					c.Close()
					t.Fatalf("no answer after %s: %v", time.Since(began), err)
				}
				if waited := time.Since(began).Round(time.Second); waited != time.Minute {
					t.Errorf("answered after %s, want a minute", waited)
				}
				body := readAll(t, res.Body)
				e := wantError(t, res, body, http.StatusRequestTimeout, "request_timeout")
				if !strings.Contains(e.Message, "1m0s") {
					t.Errorf("the message does not say how long: %q", e.Message)
				}
				if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
					t.Errorf("the connection is still open: %v", err)
				}
				if waited := time.Since(began).Round(time.Minute); waited != time.Minute {
					t.Errorf("the connection was closed after %s", waited)
				}
			})
		})
	}
}

// rawConn is a connection to the proxy of a bubble.
func rawConn(t testing.TB, b *bubble) net.Conn {
	t.Helper()
	c, err := b.client.Transport.(*http.Transport).DialContext(t.Context(), "tcp", "proxy")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// hold waits in virtual time, no longer than the request lasts.
func hold(req *http.Request, d time.Duration) {
	select {
	case <-time.After(d):
	case <-req.Context().Done():
	}
}

// trickle hands out a byte a time.
type trickle struct {
	r     io.Reader
	every time.Duration
}

func (s *trickle) Read(b []byte) (int, error) {
	<-time.After(s.every)
	return s.r.Read(b[:1])
}

// A slow client is not a stalled one, however long it takes.
func TestBad_SlowClientIsServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, llamasim.New(llamasim.Options{}))
		began := time.Now()
		req, err := http.NewRequestWithContext(t.Context(), "POST", "http://proxy/v1/chat/completions", &trickle{strings.NewReader(plainChat), 50 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		res, err := b.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if readAll(t, res.Body); res.StatusCode != http.StatusOK {
			t.Errorf("status %d", res.StatusCode)
		}
		if took := time.Since(began); took < 40*time.Minute {
			t.Errorf("it took only %s", took)
		}
	})
}

// After a request whose body came slowly, the connection is as good as new.
func TestBad_NoDeadlineIsLeftBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.Copy(io.Discard, req.Body)
			hold(req, 10*time.Minute) // longer than a body may idle
			_, _ = io.WriteString(w, "ok")
		}))
		for range 2 {
			res, err := b.client.Do(request10(t, plainChat))
			if err != nil {
				t.Fatal(err)
			}
			if got := readAll(t, res.Body); string(got) != "ok" {
				t.Errorf("got %q", got)
			}
			res.Body.Close()
		}
	})
}

// request10 is a request in virtual time, where a deadline in the context would
// be reached.
func request10(t testing.TB, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", "http://proxy/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// A client that leaves half-way has cost the server nothing.
func TestBad_ClientLeavesHalfWay(t *testing.T) {
	t.Parallel()
	r := start(t, untouched(t))
	for i, half := range []string{
		"Content-Length: 100\r\n\r\n{\"messages\":",
		"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
		"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nnonsense\r\n",
	} {
		c, err := net.Dial("tcp", strings.TrimPrefix(r.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"+half); err != nil {
			t.Fatal(err)
		}
		c.Close()
		if line := r.lastRequest(t, i+1); line["status"] == int64(200) {
			t.Errorf("logged as %v", line)
		}
	}
}

// ---- servers

// nobody is an address where nothing listens.
func nobody(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

func TestBad_ServerIsDown(t *testing.T) {
	t.Parallel()
	everyMode(t, func(t *testing.T, mode rigOption) {
		address := nobody(t)
		r := startBefore(t, address, mode, func(o *Options) {
			o.Config.Upstream.APIKey = "sk-upstream"
			u := *o.Upstream
			u.User, u.RawQuery = url.UserPassword("user", "sk-userinfo"), "key=sk-query"
			o.Upstream = &u
		})
		n := 0
		for _, c := range []struct{ method, path, body string }{
			{"POST", "/v1/chat/completions", plainChat},
			{"POST", "/v1/chat/completions", streamChat},
			{"GET", "/v1/models", ""},
			{"POST", "/tokenize", "{}"},
		} {
			res := roundTrip(t, request(t, c.method, r.URL+c.path, strings.NewReader(c.body), "Authorization", "Bearer sk-client"))
			b := readAll(t, res.Body)
			e := wantError(t, res, b, http.StatusBadGateway, "upstream_unreachable")
			for _, want := range []string{address, "upstream.url"} {
				if !strings.Contains(e.Message, want) {
					t.Errorf("%s %s: the message does not name %s: %q", c.method, c.path, want, e.Message)
				}
			}
			if strings.Contains(string(b), "sk-") {
				t.Errorf("%s %s: the error shows a secret: %s", c.method, c.path, b)
			}
			n++
			if line := r.lastRequest(t, n); line["status"] != int64(502) {
				t.Errorf("logged as %v", line)
			}
		}
		for _, line := range r.Logs.All() {
			if text := fmt.Sprint(line.Message, line.ContextMap()); strings.Contains(text, "sk-") {
				t.Errorf("the log shows a secret: %s", text)
			}
		}
	})
}

// rawAnswer is a server that reads a request and sends what it is told, whatever
// that is, then closes. asked counts.
func rawAnswer(t testing.TB, answer string) (address string, asked *atomic.Int32) {
	t.Helper()
	asked = new(atomic.Int32)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		asked.Add(1)
		_, _ = io.Copy(io.Discard, req.Body)
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, answer)
	}))
	t.Cleanup(server.Close)
	return server.URL, asked
}

// What is no answer at all is no answer, and what it says is not shown.
func TestBad_ServerSpeaksNoHTTP(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"it closes":                "",
		"another protocol":         "SSH-2.0-SECRET\r\n",
		"a status that is none":    "HTTP/1.1 abc SECRET\r\n\r\n",
		"half a head":              "HTTP/1.1 200 OK\r\nX: SECRET",
		"a field that is none":     "HTTP/1.1 200 OK\r\nSECRET\r\n\r\n",
		"a length that is none":    "HTTP/1.1 200 OK\r\nContent-Length: SECRET\r\n\r\n",
		"an unknown coding":        "HTTP/1.1 200 OK\r\nTransfer-Encoding: SECRET\r\n\r\n",
		"an upgrade nobody wanted": "HTTP/1.1 101 Switching Protocols\r\nUpgrade: SECRET\r\nConnection: Upgrade\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			address, asked := rawAnswer(t, answer)
			everyMode(t, func(t *testing.T, mode rigOption) {
				asked.Store(0)
				r := startBefore(t, address, mode)
				for i, body := range []string{plainChat, streamChat} {
					res, b := r.post(t, []byte(body))
					wantError(t, res, b, http.StatusBadGateway, "upstream_unreachable")
					if strings.Contains(string(b), "SECRET") {
						t.Errorf("the error quotes the server: %s", b)
					}
					if got := int(asked.Load()); got != i+1 {
						t.Errorf("the server was asked %d times for %d requests", got, i+1)
					}
				}
			})
		})
	}
}

// A page where JSON was expected is the server's to answer for.
func TestBad_ServerAnswersHTML(t *testing.T) {
	t.Parallel()
	const page = "<html><body><h1>502 Bad Gateway</h1></body></html>"
	for _, status := range []int{200, 400, 403, 429, 500, 502, 503} {
		sim := llamasim.New(llamasim.Options{Reply: func(llamasim.Request) llamasim.Reply {
			return llamasim.Reply{Answer: llamasim.HTMLAnswer(status, page)}
		}})
		r := start(t, sim)
		for _, mode := range []string{"on", "observe", "off"} {
			for _, body := range []string{plainChat, streamChat} {
				res, b := r.post(t, []byte(body), headerMode, mode)
				if res.StatusCode != status || string(b) != page || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/html") {
					t.Errorf("mode %s: status %d, %q of type %q; want %d and the page", mode, res.StatusCode, b, res.Header.Get("Content-Type"), status)
				}
			}
		}
		if n := len(sim.Requests()); n != 6 {
			t.Errorf("status %d: the server was asked %d times for 6 requests", status, n)
		}
	}
}

// outcome is what a client is left with.
type outcome struct {
	Status int
	Body   string
	Broken bool // the connection ended before the answer did
}

// A server that breaks off breaks the client's connection as well, with every
// byte that came before, and never a false end.
func TestBad_ServerBreaksOff(t *testing.T) {
	t.Parallel()
	const (
		role  = "data: {\"choices\":[{\"finish_reason\":null,\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":null}}],\"created\":1,\"id\":\"x\"}\n\n"
		token = "data: {\"choices\":[{\"finish_reason\":null,\"index\":0,\"delta\":{\"content\":\"a\"}}],\"created\":1,\"id\":\"x\"}\n\n"
		half  = "data: {\"choices\":[{\"finish_rea"
		done  = "data: [DONE]\n\n"
	)
	const cut, end = true, false
	unreachable := outcome{Status: 502}
	for _, c := range []struct {
		name   string
		body   string
		kind   string
		length int // announced, 0 for chunks
		pieces []string
		cut    bool
		on     outcome // in the modes on and observe
		off    outcome
	}{
		{"a stream, before the first event", streamChat, "text/event-stream", 0, nil, cut, unreachable, outcome{200, "", true}},
		{"a stream, after the role", streamChat, "text/event-stream", 0, []string{role}, cut, outcome{200, role, true}, outcome{200, role, true}},
		{"a stream, after a token", streamChat, "text/event-stream", 0, []string{role, token}, cut, outcome{200, role + token, true}, outcome{200, role + token, true}},
		{"a stream, in a line", streamChat, "text/event-stream", 0, []string{role, token, half}, cut, outcome{200, role + token + half, true}, outcome{200, role + token + half, true}},
		{"a stream, in its first line", streamChat, "text/event-stream", 0, []string{half}, cut, outcome{200, half, true}, outcome{200, half, true}},
		{"a stream, after a comment", streamChat, "text/event-stream", 0, []string{":\n\n"}, cut, outcome{200, ":\n\n", true}, outcome{200, ":\n\n", true}},
		{"a stream, after the end", streamChat, "text/event-stream", 0, []string{role, token, done}, cut, outcome{200, role + token + done, true}, outcome{200, role + token + done, true}},
		{"a stream ends in a line", streamChat, "text/event-stream", 0, []string{role, token, half}, end, outcome{200, role + token + half, false}, outcome{200, role + token + half, false}},
		{"a stream ends without its end", streamChat, "text/event-stream", 0, []string{role, token}, end, outcome{200, role + token, false}, outcome{200, role + token, false}},
		{"a stream without any event", streamChat, "text/event-stream", 0, nil, end, outcome{200, "", false}, outcome{200, "", false}},
		{"an answer in chunks", plainChat, "application/json", 0, []string{`{"choices":[`, `{"message"`}, cut, outcome{200, `{"choices":[{"message"`, true}, outcome{200, `{"choices":[{"message"`, true}},
		{"an answer of known length", plainChat, "application/json", 100, []string{`{"choices":[`}, cut, outcome{200, `{"choices":[`, true}, outcome{200, `{"choices":[`, true}},
		{"an answer ends half-way", plainChat, "application/json", 0, []string{`{"choices":[`}, end, outcome{200, `{"choices":[`, false}, outcome{200, `{"choices":[`, false}},
		{"no stream though one was asked for", streamChat, "application/json", 0, []string{`{"choices":[`}, cut, outcome{200, `{"choices":[`, true}, outcome{200, `{"choices":[`, true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var headSeen chan struct{}
			server := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				_, _ = io.Copy(io.Discard, req.Body)
				w.Header().Set("Content-Type", c.kind)
				if c.length > 0 {
					w.Header().Set("Content-Length", fmt.Sprint(c.length))
				}
				w.(http.Flusher).Flush()
				for _, piece := range c.pieces {
					_, _ = io.WriteString(w, piece)
					w.(http.Flusher).Flush()
				}
				select {
				case <-headSeen:
				case <-req.Context().Done():
				}
				if c.cut {
					panic(http.ErrAbortHandler)
				}
			})
			everyMode(t, func(t *testing.T, mode rigOption) {
				r := start(t, server, mode)
				headSeen = make(chan struct{})
				held := (c.pieces == nil || c.pieces[0] == half) && r.mode != config.ModeOff
				if held { // the head waits for the first event
					close(headSeen)
				}
				res := roundTrip(t, request(t, "POST", r.URL+"/v1/chat/completions", strings.NewReader(c.body)))
				if !held {
					close(headSeen)
				}
				b, err := io.ReadAll(res.Body)
				got := outcome{res.StatusCode, string(b), err != nil}
				want := c.on
				if r.mode == config.ModeOff {
					want = c.off
				}
				if want.Status == http.StatusBadGateway {
					wantError(t, res, b, http.StatusBadGateway, "upstream_unreachable")
					return
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("the client is left with (-want +got):\n%s", diff)
				}
				if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("it broke with %v", err)
				}
			})
		})
	}
}

// The other routes break off as the server does, too.
func TestBad_ServerBreaksOffElsewhere(t *testing.T) {
	t.Parallel()
	r := start(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.WriteString(w, "data: 1\n\n")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	for _, path := range []string{"/v1/completions", "/v1/messages", "/slots"} {
		res := roundTrip(t, request(t, "GET", r.URL+path, nil))
		if b, err := io.ReadAll(res.Body); !errors.Is(err, io.ErrUnexpectedEOF) || string(b) != "data: 1\n\n" {
			t.Errorf("%s: got %q and %v", path, b, err)
		}
	}
}

// A prefill takes what it takes: nothing gives up in ten minutes, and a client
// that streams is kept alive meanwhile.
func TestBad_FirstByteAfterTenMinutes(t *testing.T) {
	t.Parallel()
	const answer = "data: {\"choices\":[{\"finish_reason\":null,\"index\":0,\"delta\":{\"content\":\"late\"}}],\"created\":1,\"id\":\"x\"}\n\ndata: [DONE]\n\n"
	const wait = 10*time.Minute + time.Second
	for _, c := range []struct {
		name      string
		mode      config.Mode
		body      string
		keepalive time.Duration
		chunks    int
	}{
		{"not streamed", config.ModeOn, plainChat, time.Minute, 0},
		{"not streamed, off", config.ModeOff, plainChat, time.Minute, 0},
		{"not streamed, observe", config.ModeObserve, plainChat, time.Minute, 0},
		{"streamed", config.ModeOn, streamChat, time.Minute, 1 + 9*60/15},
		{"streamed, no keep-alive wanted", config.ModeOn, streamChat, 0, 0},
		{"streamed, off", config.ModeOff, streamChat, time.Minute, 0},
		{"streamed, observe", config.ModeObserve, streamChat, time.Minute, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					_, _ = io.Copy(io.Discard, req.Body)
					hold(req, wait)
					w.Header().Set("Content-Type", "text/event-stream")
					_, _ = io.WriteString(w, answer)
				}), inMode(c.mode), keptAlive(c.keepalive))
				began := time.Now()
				res, err := b.client.Do(request10(t, c.body))
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				got := string(readAll(t, res.Body))
				if took := time.Since(began); took != wait {
					t.Errorf("it took %s, want %s", took, wait)
				}
				events := strings.SplitAfter(got, "\n\n")
				if n := len(events) - 3; n != c.chunks { // the answer's two, and what is behind the last blank line
					t.Errorf("%d keep-alive chunks, want %d: %.300q", n, c.chunks, got)
				}
				if c.chunks == 0 && got != answer {
					t.Errorf("got %q", got)
				}
				if !strings.Contains(got, `"content":"late"`) || !strings.HasSuffix(got, "data: [DONE]\n\n") {
					t.Errorf("the answer is missing: %q", got)
				}
			})
		})
	}
}

// A deadline for the first byte, where the user set one, is for that alone.
func TestBad_UpstreamTimeout(t *testing.T) {
	t.Parallel()
	timeout := withConfig(func(c *config.Config) { c.Upstream.Timeout = 90 * time.Second; c.Keepalive = 0 })
	for name, body := range map[string]string{"not streamed": plainChat, "streamed": streamChat} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				left := make(chan struct{}, 1)
				b := newBubble(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					_, _ = io.Copy(io.Discard, req.Body)
					<-req.Context().Done()
					left <- struct{}{}
				}), timeout)
				began := time.Now()
				res, err := b.client.Do(request10(t, body))
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				e := wantError(t, res, readAll(t, res.Body), http.StatusGatewayTimeout, "upstream_timeout")
				if !strings.Contains(e.Message, "upstream.timeout") || !strings.Contains(e.Message, "1m30s") {
					t.Errorf("the message names neither the setting nor its value: %q", e.Message)
				}
				if took := time.Since(began); took != 90*time.Second {
					t.Errorf("it took %s, want 90s", took)
				}
				<-left // the server was told
			})
		})
		t.Run(name+", in time but slow", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					_, _ = io.Copy(io.Discard, req.Body)
					hold(req, 80*time.Second)
					w.Header().Set("Content-Type", "text/event-stream")
					for range 10 {
						_, _ = io.WriteString(w, "data: {}\n\n")
						w.(http.Flusher).Flush()
						hold(req, 5*time.Minute)
					}
				}), timeout)
				res, err := b.client.Do(request10(t, body))
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				if got := string(readAll(t, res.Body)); got != strings.Repeat("data: {}\n\n", 10) {
					t.Errorf("got %q", got)
				}
			})
		})
	}
}

// An answer that says its length keeps it: a stream that was made in one piece
// can be recovered from, translated and kept alive all the same.
func TestBad_StreamOfAKnownLength(t *testing.T) {
	t.Parallel()
	t.Run("a refusal", func(t *testing.T) {
		const event = "data: {\"error\":{\"code\":400,\"message\":\"request (5031 tokens) exceeds the available context size (4096 tokens), try increasing it\",\"type\":\"exceed_context_size_error\",\"n_prompt_tokens\":5031,\"n_ctx\":4096}}\n\n"
		r := start(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.Copy(io.Discard, req.Body)
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Set("Content-Length", fmt.Sprint(len(event)))
			_, _ = io.WriteString(w, event)
		}))
		res := roundTrip(t, request(t, "POST", r.URL+"/v1/chat/completions", strings.NewReader(streamChat)))
		b, err := io.ReadAll(res.Body)
		if err != nil || !strings.HasSuffix(string(b), "}}\n\n") {
			t.Errorf("the event is cut: %q (%v)", b, err)
		}
	})
	t.Run("a pause", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			const event = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}],\"created\":1,\"id\":\"x\"}\n\n"
			b := newBubble(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				_, _ = io.Copy(io.Discard, req.Body)
				w.Header().Set("Content-Type", "text/event-stream")
				w.Header().Set("Content-Length", fmt.Sprint(2*len(event)))
				_, _ = io.WriteString(w, event)
				w.(http.Flusher).Flush()
				hold(req, 2*time.Minute)
				_, _ = io.WriteString(w, event)
			}), keptAlive(time.Minute))
			res, err := b.client.Do(request10(t, streamChat))
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			got, err := io.ReadAll(res.Body)
			if err != nil || strings.Count(string(got), event) != 2 {
				t.Errorf("the second event is missing: %q (%v)", got, err)
			}
		})
	})
}

// ---- clients that leave

// A client that is gone cancels the server's work: before the first byte and in
// the middle, streamed and not, in every mode, and on the other routes.
func TestBad_ClientLeaves(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, path, body string
		headers, event   bool // what the server sends before it waits
	}{
		{"before the first byte, not streamed", "/v1/chat/completions", plainChat, false, false},
		{"before the first byte, streamed", "/v1/chat/completions", streamChat, false, false},
		{"before the first byte, no chat", "/v1/chat/completions", "{}", false, false},
		{"before the first event", "/v1/chat/completions", streamChat, true, false},
		{"mid-stream", "/v1/chat/completions", streamChat, true, true},
		{"in the middle of an answer", "/v1/chat/completions", plainChat, true, true},
		{"elsewhere, before the first byte", "/v1/completions", "{}", false, false},
		{"elsewhere, mid-stream", "/v1/completions", "{}", true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			everyMode(t, func(t *testing.T, mode rigOption) {
				working, cancelled := make(chan struct{}), make(chan struct{})
				r := start(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					_, _ = io.Copy(io.Discard, req.Body)
					if c.headers {
						if c.body == streamChat {
							w.Header().Set("Content-Type", "text/event-stream")
						}
						w.(http.Flusher).Flush()
					}
					if c.event {
						_, _ = io.WriteString(w, "data: {}\n\n")
						w.(http.Flusher).Flush()
					}
					close(working)
					<-req.Context().Done()
					close(cancelled)
				}), mode)
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				req := request(t, "POST", r.URL+c.path, strings.NewReader(c.body)).WithContext(ctx)
				gone := make(chan error, 1)
				go func() {
					res, err := http.DefaultClient.Do(req)
					if err == nil {
						if c.event { // be sure that it is the middle
							_, err = io.ReadFull(res.Body, make([]byte, len("data: {}\n\n")))
						}
						leave()
						if err == nil {
							_, err = io.Copy(io.Discard, res.Body)
						}
						res.Body.Close()
					}
					gone <- err
				}()
				await(t, "the server to work", working)
				if !c.event {
					leave()
				}
				if err := await(t, "the client to be gone", gone); !errors.Is(err, context.Canceled) {
					t.Errorf("the client ended with %v", err)
				}
				await(t, "the server to be told", cancelled)
				if line := r.lastRequest(t, 1); line["status"] != int64(statusClientGone) {
					t.Errorf("logged as %v, want status %d", line, statusClientGone)
				}
			})
		})
	}
}

// ---- pairing

// illegalLists are bodies whose calls and results do not match.
func illegalLists() map[string][]byte {
	const call = `{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"read","arguments":"{}"}}]}`
	const result = `{"role":"tool","tool_call_id":"a","content":"ok"}`
	out := map[string][]byte{}
	for name, list := range map[string]string{
		"orphan result":   `{"role":"user","content":"hi"},{"role":"tool","tool_call_id":"zz","content":"lost"}`,
		"unanswered call": `{"role":"user","content":"hi"},` + call + `,{"role":"user","content":"go on"}`,
		"double result":   call + `,` + result + `,` + result,
		"text between":    call + `,{"role":"user","content":"wait"},` + result,
		"bad arguments":   `{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"read","arguments":"{\"path\":\"x"}}]},` + result,
	} {
		out[name] = []byte(`{"model":"m","messages":[` + list + `]}`)
	}
	return out
}

func TestPairing_Reject(t *testing.T) {
	t.Parallel()
	r := start(t, untouched(t), withConfig(func(c *config.Config) { c.Pairing = config.PairingReject }))
	const system = `{"role":"system","content":"s"},{"role":"developer","content":"d"},`
	n := 0
	for name, where := range map[string]struct {
		index int
		id    string
	}{
		"orphan result":   {1, "zz"},
		"unanswered call": {1, "a"},
		"double result":   {2, "a"},
		"text between":    {2, "a"},
		"bad arguments":   {0, "a"},
	} {
		for _, lead := range []string{"", system} {
			body := strings.Replace(string(illegalLists()[name]), `"messages":[`, `"messages":[`+lead, 1)
			index := where.index
			if lead != "" {
				index += 2
			}
			for _, stream := range []string{"", `"stream":true,`} {
				res, b := r.post(t, []byte(strings.Replace(body, `{`, `{`+stream, 1)))
				e := wantError(t, res, b, http.StatusBadRequest, "invalid_tool_pairing")
				at := fmt.Sprintf("messages[%d]", index)
				for _, want := range []string{at, fmt.Sprintf("%q", where.id), "pairing: repair"} {
					if !strings.Contains(e.Message, want) {
						t.Errorf("%s: the message does not name %s: %q", name, want, e.Message)
					}
				}
				if e.Param == nil || *e.Param != at {
					t.Errorf("%s: param is %v, want %s", name, e.Param, at)
				}
				if kind := upstream.Classify(res.StatusCode, b).Kind; kind != upstream.None {
					t.Errorf("%s: the error reads like %v: %s", name, kind, b)
				}
				n++
				if line := r.lastRequest(t, n); line["reason"] != "invalid_tool_pairing" {
					t.Errorf("%s: logged as %v", name, line)
				}
			}
		}
	}
}

func TestPairing_RejectActsInModeOnAlone(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	r := start(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		got <- string(b)
	}), withConfig(func(c *config.Config) { c.Pairing = config.PairingReject }))
	for name, body := range illegalLists() {
		for _, mode := range []string{"observe", "off"} {
			res, _ := r.post(t, body, headerMode, mode)
			if sent := await(t, "the request", got); res.StatusCode != http.StatusOK || sent != string(body) {
				t.Errorf("%s, mode %s: status %d, sent %q", name, mode, res.StatusCode, sent)
			}
			if got := res.Header.Get(headerAction); mode == "observe" && !strings.HasPrefix(got, "would-") {
				t.Errorf("%s, mode observe: action %q, want that it would have done something", name, got)
			}
		}
	}
}

func TestPairing_OffForwardsAsItIs(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	r := start(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		got <- string(b)
	}), withConfig(func(c *config.Config) { c.Pairing = config.PairingOff }))
	for name, body := range illegalLists() {
		res, _ := r.post(t, body)
		if sent := await(t, "the request", got); sent != string(body) || res.Header.Get(headerAction) != "none" {
			t.Errorf("%s: action %q, sent %q", name, res.Header.Get(headerAction), sent)
		}
	}
}

// A repaired list is legal, says all that the client said, and is reported.
func TestPairing_Repair(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	r := start(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		got <- string(b)
	}))
	for name, body := range illegalLists() {
		res, _ := r.post(t, body)
		sent := await(t, "the request", got)
		if v := pairing.Check(forwarded(t, []byte(sent))); v != nil {
			t.Errorf("%s: sent an illegal list: %v", name, v)
		}
		if !hasAction(res, "repair") {
			t.Errorf("%s: action %q", name, res.Header.Get(headerAction))
		}
		for _, said := range []string{"hi", "go on", "lost", "wait", "ok"} {
			if strings.Contains(string(body), said) && !strings.Contains(sent, said) {
				t.Errorf("%s: %q is lost in %s", name, said, sent)
			}
		}
		r.post(t, body)
		if second := await(t, "the request", got); second != sent {
			t.Errorf("%s: the second repair is another one:\n%s\n%s", name, sent, second)
		}
	}
}
