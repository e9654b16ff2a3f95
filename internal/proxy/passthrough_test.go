package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/llamasim"
)

// everyMode runs f under each mode.
func everyMode(t *testing.T, f func(t *testing.T, mode rigOption)) {
	t.Helper()
	for _, mode := range []config.Mode{config.ModeOn, config.ModeObserve, config.ModeOff} {
		t.Run(string(mode), func(t *testing.T) {
			f(t, withConfig(func(c *config.Config) { c.Compaction.Mode = mode }))
		})
	}
}

// request is short for a request that ends with the test.
func request(t testing.TB, method, address string, body io.Reader, header ...string) *http.Request {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, address, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	return req
}

// roundTrip sends a request on a connection of its own, without net/http's
// client adding anything or following anywhere. The answer's body must be read
// or closed by the caller; the connection ends with the test.
func roundTrip(t testing.TB, req *http.Request) *http.Response {
	t.Helper()
	transport := &http.Transport{DisableCompression: true, ExpectContinueTimeout: 30 * time.Second}
	t.Cleanup(transport.CloseIdleConnections)
	res, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatalf("%s %s: %v", req.Method, req.URL.Path, err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res
}

func readAll(t testing.TB, r io.Reader) []byte {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	return b
}

// await fails the test where a signal does not come. It is the only clock here,
// and no test passes by it.
func await[T any](t testing.TB, what string, signal <-chan T) T {
	t.Helper()
	select {
	case v := <-signal:
		return v
	case <-time.After(20 * time.Second):
		t.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}

// Everything but the chat route reaches the server as it is, whatever the mode,
// and comes back as it is, without a header of ours.
func TestPassthrough_EveryOtherRoute(t *testing.T) {
	t.Parallel()
	sim := llamasim.New(llamasim.Options{Window: 4096, Seed: 1, Now: func() time.Time { return time.Unix(1, 0) }})
	server := httptest.NewServer(sim)
	t.Cleanup(server.Close)
	type seen struct {
		Status int
		Header http.Header
		Body   string
	}
	ask := func(t *testing.T, base, method, path, body string, header ...string) seen {
		var r io.Reader
		if body != "" {
			r = strings.NewReader(body)
		}
		res := roundTrip(t, request(t, method, base+path, r, header...))
		res.Header.Del("Date")       // the simulator's host adds one
		res.Header.Del("Keep-Alive") // belongs to the connection
		return seen{res.StatusCode, res.Header, string(readAll(t, res.Body))}
	}
	everyMode(t, func(t *testing.T, mode rigOption) {
		r := startBefore(t, server.URL, mode)
		for _, c := range []struct {
			method, path, body string
			header             []string
		}{
			{method: "GET", path: "/"},
			{method: "GET", path: "/v1/models"},
			{method: "GET", path: "/models"},
			{method: "GET", path: "/props"},
			{method: "GET", path: "/slots"},
			{method: "GET", path: "/health"},
			{method: "GET", path: "/v1/health"},
			{method: "GET", path: "/metrics"},
			{method: "GET", path: "/nothing/here?x=1"},
			{method: "GET", path: "/v1/chat/completions"},
			{method: "HEAD", path: "/v1/models"},
			{method: "HEAD", path: "/v1/chat/completions"},
			{method: "OPTIONS", path: "/v1/chat/completions", header: []string{"Origin", "http://ui", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization"}},
			{method: "GET", path: "/v1/models", header: []string{"Origin", "http://ui"}},
			{method: "PUT", path: "/v1/chat/completions", body: `{"messages":[]}`},
			{method: "DELETE", path: "/v1/models/x"},
			{method: "PATCH", path: "/props", body: "{}"},
			{method: "BREW", path: "/pot"},
			{method: "POST", path: "/tokenize", body: `{"content":"hello world"}`},
			{method: "POST", path: "/apply-template", body: `{"messages":[{"role":"user","content":"hi"}]}`},
			{method: "POST", path: "/v1/chat/completions/input_tokens", body: `{"messages":[{"role":"user","content":"hi"}]}`},
			{method: "POST", path: "/v1/chat/completions/", body: `{"messages":[{"role":"user","content":"hi"}]}`},
			{method: "POST", path: "/v1/completions", body: `{"prompt":"a","stream":true,"max_tokens":2,"bad":`},
			{method: "POST", path: "/v1/embeddings", body: `{"input":"a"}`},
			{method: "POST", path: "/v1/messages", body: `{"messages":[{"role":"user","content":"hi"}]}`},
			{method: "POST", path: "/v1/responses", body: `{"input":"hi"}`},
		} {
			want := ask(t, server.URL, c.method, c.path, c.body, c.header...)
			got := ask(t, r.URL, c.method, c.path, c.body, c.header...)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s %s (-direct +through the proxy):\n%s", c.method, c.path, diff)
			}
		}
	})
}

// A page of another origin may use the server through the proxy as it may use
// the server.
func TestPassthrough_KeepsCORS(t *testing.T) {
	t.Parallel()
	server := llamasim.New(llamasim.Options{})
	everyMode(t, func(t *testing.T, mode rigOption) {
		r := start(t, server, mode)
		res := roundTrip(t, request(t, "OPTIONS", r.URL+"/v1/chat/completions", nil, "Origin", "http://ui", "Access-Control-Request-Method", "POST"))
		for name, want := range map[string]string{
			"Access-Control-Allow-Origin":      "http://ui",
			"Access-Control-Allow-Credentials": "true",
			"Access-Control-Allow-Methods":     "GET, POST, DELETE, OPTIONS",
			"Access-Control-Allow-Headers":     "*",
		} {
			if got := res.Header.Get(name); got != want {
				t.Errorf("preflight: %s is %q, want %q", name, got, want)
			}
		}
		for _, stream := range []string{"false", "true"} {
			body := `{"messages":[{"role":"user","content":"hi"}],"stream":` + stream + `}`
			res = roundTrip(t, request(t, "POST", r.URL+"/v1/chat/completions", strings.NewReader(body), "Origin", "http://ui"))
			if got := res.Header.Values("Access-Control-Allow-Origin"); !cmp.Equal(got, []string{"http://ui"}) {
				t.Errorf("stream %s: Access-Control-Allow-Origin is %q", stream, got)
			}
			readAll(t, res.Body)
		}
	})
}

// The routes are the server's own names: what only looks like the chat route is
// not read.
func TestPassthrough_OnlyTheChatRouteIsRead(t *testing.T) {
	t.Parallel()
	r := start(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	for path, read := range map[string]bool{
		"/v1/chat/completions":        true,
		"/chat/completions":           true,
		"/v1/chat/completions?a=b":    true,
		"/v1/chat/completions/":       false,
		"/v1/chat/completions/x":      false,
		"//v1/chat/completions":       false,
		"/v1/chat/Completions":        false,
		"/openai/v1/chat/completions": false,
	} {
		res := roundTrip(t, request(t, "POST", r.URL+path, strings.NewReader(`{"messages":[]}`)))
		if got := res.Header.Get(headerAction) != ""; got != read {
			t.Errorf("%s: read is %v, want %v", path, got, read)
		}
	}
}

// upload hands out the body of an upload in two halves; the second waits for
// a signal.
type upload struct {
	first, second io.Reader
	release       <-chan struct{}
}

func (u *upload) Read(b []byte) (int, error) {
	n, err := u.first.Read(b)
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	if u.release != nil {
		<-u.release
		u.release = nil
	}
	return u.second.Read(b)
}

// A large upload passes as it comes: the server has its first bytes before its
// last were sent.
func TestPassthrough_StreamsUploads(t *testing.T) {
	t.Parallel()
	type arrival struct {
		n    int64
		sum  uint32
		size int64
	}
	for _, c := range []struct {
		name, path string
		half       int
		sized      bool
		mode       config.Mode
	}{
		{"in chunks", "/v1/audio/transcriptions", 32 << 20, false, config.ModeOn},
		{"of a known size", "/v1/files", 8 << 20, true, config.ModeOn},
		{"chat in mode off", "/v1/chat/completions", 8 << 20, false, config.ModeOff},
	} {
		t.Run(c.name, func(t *testing.T) {
			content := bytes.Repeat([]byte("0123456789abcdef"), c.half/16)
			begun := make(chan struct{})
			done := make(chan arrival, 1)
			r := start(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				a := arrival{size: req.ContentLength}
				sum := crc32.NewIEEE()
				n, _ := io.CopyN(sum, req.Body, 1<<20)
				close(begun)
				rest, _ := io.Copy(sum, req.Body)
				a.n, a.sum = n+rest, sum.Sum32()
				done <- a
			}), withConfig(func(cfg *config.Config) { cfg.Compaction.Mode = c.mode }))
			req := request(t, "POST", r.URL+c.path, &upload{bytes.NewReader(content), bytes.NewReader(content), begun})
			want := arrival{2 * int64(c.half), crc32.Update(crc32.ChecksumIEEE(content), crc32.IEEETable, content), -1}
			if c.sized {
				req.ContentLength, want.size = want.n, want.n
			}
			res := roundTrip(t, req) // deadlocks where the proxy collects the body
			readAll(t, res.Body)
			if got := await(t, "the upload", done); got != want {
				t.Errorf("the server got %+v, want %+v", got, want)
			}
		})
	}
}

func TestPassthrough_RequestTrailers(t *testing.T) {
	t.Parallel()
	got := make(chan http.Header, 1)
	server := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		got <- req.Trailer
	})
	for path, mode := range map[string]config.Mode{"/upload": config.ModeOn, "/v1/chat/completions": config.ModeOff} {
		r := start(t, server, withConfig(func(c *config.Config) { c.Compaction.Mode = mode }))
		req := request(t, "POST", r.URL+path, io.MultiReader(strings.NewReader("a"), strings.NewReader("b")))
		req.Trailer = http.Header{"X-Sum": {"1"}, "X-More": {"a", "b"}}
		roundTrip(t, req)
		if diff := cmp.Diff(req.Trailer, await(t, "the request", got)); diff != "" {
			t.Errorf("%s: trailers (-sent +received):\n%s", path, diff)
		}
	}
}

func TestPassthrough_ResponseTrailers(t *testing.T) {
	t.Parallel()
	for name, announce := range map[string]bool{"announced": true, "unannounced": false} {
		t.Run(name, func(t *testing.T) {
			seen := make(chan struct{})
			server := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				_, _ = io.Copy(io.Discard, req.Body)
				prefix := http.TrailerPrefix
				if announce {
					w.Header().Set("Trailer", "X-Sum")
					prefix = ""
				}
				if strings.Contains(req.URL.RawQuery, "stream") {
					w.Header().Set("Content-Type", "text/event-stream")
				}
				_, _ = io.WriteString(w, "data: {}\n\n")
				w.(http.Flusher).Flush()
				select {
				case <-seen:
				case <-req.Context().Done():
				}
				w.Header().Set(prefix+"X-Sum", "1")
			})
			everyMode(t, func(t *testing.T, mode rigOption) {
				r := start(t, server, mode)
				for path, body := range map[string]string{
					"/other":                      "",
					"/v1/chat/completions":        `{"messages":[]}`,
					"/v1/chat/completions?stream": `{"messages":[],"stream":true}`,
				} {
					res := roundTrip(t, request(t, "POST", r.URL+path, strings.NewReader(body)))
					if _, err := io.ReadFull(res.Body, make([]byte, len("data: {}\n\n"))); err != nil {
						t.Fatal(err)
					}
					seen <- struct{}{} // the trailers come later than the body
					readAll(t, res.Body)
					if got := res.Trailer.Get("X-Sum"); got != "1" {
						t.Errorf("%s: the trailer is %q, want 1", path, got)
					}
				}
			})
		})
	}
}

// A client that asks first gets the server's word, and sends nothing that the
// server does not want.
func TestPassthrough_ExpectContinue(t *testing.T) {
	t.Parallel()
	type arrival struct {
		expect string
		body   string
	}
	got := make(chan arrival, 1)
	r := start(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if strings.HasSuffix(req.URL.Path, "/refuse") {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		b, _ := io.ReadAll(req.Body)
		got <- arrival{req.Header.Get("Expect"), string(b)}
	}))
	body := `{"messages":[]}`
	for path, expect := range map[string]string{
		"/upload":              "100-continue",
		"/v1/chat/completions": "", // the proxy has the body when it asks
	} {
		res := roundTrip(t, request(t, "POST", r.URL+path, strings.NewReader(body), "Expect", "100-continue"))
		if res.StatusCode != http.StatusOK {
			t.Errorf("%s: status %d", path, res.StatusCode)
		}
		if diff := cmp.Diff(arrival{expect, body}, await(t, "the request", got), cmp.AllowUnexported(arrival{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}

	unread := &counter{Reader: strings.NewReader(body)}
	req := request(t, "POST", r.URL+"/refuse", unread, "Expect", "100-continue")
	req.ContentLength = int64(len(body))
	if res := roundTrip(t, req); res.StatusCode != http.StatusForbidden {
		t.Errorf("status %d, want 403", res.StatusCode)
	}
	if unread.n != 0 {
		t.Errorf("%d bytes of a body that the server refused were sent", unread.n)
	}
}

type counter struct {
	io.Reader
	n int
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.n += n
	return n, err
}

// A chunked request arrives whole on the chat route, and says its length.
func TestChat_TakesChunkedBodies(t *testing.T) {
	t.Parallel()
	type arrival struct {
		Size int64
		Body string
	}
	got := make(chan arrival, 1)
	r := start(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		got <- arrival{req.ContentLength, string(b)}
	}))
	body := `{"messages":[{"role":"user","content":"hi"}]}`
	roundTrip(t, request(t, "POST", r.URL+"/v1/chat/completions", io.MultiReader(strings.NewReader(body[:9]), strings.NewReader(body[9:]))))
	if diff := cmp.Diff(arrival{int64(len(body)), body}, await(t, "the request", got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The server sends each event only when the client has the last one: an answer
// that anybody holds back ends in a deadlock.
func TestStreams_EventByEvent(t *testing.T) {
	t.Parallel()
	events := []string{
		"data: {\"choices\":[{\"finish_reason\":null,\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":null}}],\"created\":1,\"id\":\"x\"}\n\n",
		"data: {\"choices\":[{\"finish_reason\":null,\"index\":0,\"delta\":{\"content\":\"a\"}}],\"created\":1,\"id\":\"x\",\"unknown\":{\"z\":1.0}}\n\n",
		":\n\n",
		": ping\n\n",
		"event: note\ndata: one\ndata: two\nid: 7\nretry: 1\n\n",
		"data:{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\\ud83d\"}}]}\r\n\r\n",
		"\n\n",
		"data: " + strings.Repeat("long ", 20_000) + "\n\n",
		"data: not json\n\n",
		"data: {\"choices\":[{\"finish_reason\":\"stop\",\"index\":0,\"delta\":{}}],\"timings\":{\"cache_n\":1,\"prompt_n\":2,\"predicted_n\":3}}\n\n",
		"data: [DONE]\n\n",
	}
	lines := []string{"plain text, ", "no event\n", "at all", strings.Repeat("x", 100_000), "end"}
	for _, c := range []struct {
		name, path, body, kind string
		pieces                 []string
	}{
		{"a stream of chat", "/v1/chat/completions", `{"messages":[{"role":"user","content":"hi"}],"stream":true}`, "text/event-stream", events},
		{"a stream of chat, unknown body", "/v1/chat/completions", `{"stream":true}`, "text/event-stream; charset=utf-8", events},
		{"another stream", "/v1/completions", `{"prompt":"hi","stream":true}`, "text/event-stream", events},
		{"chat, not streamed", "/v1/chat/completions", `{"messages":[{"role":"user","content":"hi"}]}`, "application/json", lines},
		{"chat, no stream though one was asked for", "/v1/chat/completions", `{"messages":[],"stream":true}`, "text/html", lines},
		{"anything", "/log", "", "text/plain", lines},
	} {
		t.Run(c.name, func(t *testing.T) {
			everyMode(t, func(t *testing.T, mode rigOption) {
				seen := make(chan struct{})
				r := start(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					_, _ = io.Copy(io.Discard, req.Body)
					w.Header().Set("Content-Type", c.kind)
					for _, piece := range c.pieces {
						_, _ = io.WriteString(w, piece)
						w.(http.Flusher).Flush()
						select {
						case <-seen:
						case <-req.Context().Done():
							return
						}
					}
				}), mode)
				res := roundTrip(t, request(t, "POST", r.URL+c.path, strings.NewReader(c.body)))
				for i, piece := range c.pieces {
					got := make([]byte, len(piece))
					if _, err := io.ReadFull(res.Body, got); err != nil {
						t.Fatalf("piece %d: %v after %.60q", i, err, got)
					}
					if string(got) != piece {
						t.Fatalf("piece %d is %.200q, want %.200q", i, got, piece)
					}
					seen <- struct{}{}
				}
				if rest := readAll(t, res.Body); len(rest) > 0 {
					t.Errorf("more came than was sent: %.100q", rest)
				}
			})
		})
	}
}

// A line of server-sent events may end in CR alone, and then a blank line is
// CR CR.
func TestStreams_CarriageReturns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const event = "data: {}\r\r"
		b := newBubble(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.Copy(io.Discard, req.Body)
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, event)
			w.(http.Flusher).Flush()
			<-time.After(10 * time.Second)
		}), keptAlive(0))
		began := time.Now()
		res, err := b.client.Do(request(t, "POST", "http://proxy/v1/chat/completions", strings.NewReader(`{"messages":[],"stream":true}`)))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		got := make([]byte, len(event))
		if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != event {
			t.Fatalf("got %q, %v", got, err)
		}
		if waited := time.Since(began); waited > time.Second {
			t.Errorf("the event was held back for %s", waited)
		}
		readAll(t, res.Body) // until the handler is done: no goroutine may outlive the bubble
	})
}

func TestPassthrough_Conditions(t *testing.T) {
	t.Parallel()
	server := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("ETag", `"x"`)
		if req.Header.Get("If-None-Match") == `"x"` {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		http.ServeContent(w, req, "", time.Time{}, strings.NewReader("0123456789"))
	})
	everyMode(t, func(t *testing.T, mode rigOption) {
		r := start(t, server, mode)
		res := roundTrip(t, request(t, "GET", r.URL+"/", nil, "If-None-Match", `"x"`))
		if res.StatusCode != http.StatusNotModified || res.Header.Get("ETag") != `"x"` || len(readAll(t, res.Body)) > 0 {
			t.Errorf("status %d, ETag %q", res.StatusCode, res.Header.Get("ETag"))
		}
		res = roundTrip(t, request(t, "GET", r.URL+"/", nil, "Range", "bytes=2-3"))
		if got := readAll(t, res.Body); res.StatusCode != http.StatusPartialContent || string(got) != "23" || res.Header.Get("Content-Range") != "bytes 2-3/10" {
			t.Errorf("status %d, %q, Content-Range %q", res.StatusCode, got, res.Header.Get("Content-Range"))
		}
	})
}

// What the server compressed stays compressed, on every route; where mode on
// reads the answer it is not asked to.
func TestPassthrough_LeavesCompressionAlone(t *testing.T) {
	t.Parallel()
	plain := `{"choices":[{"message":{"content":"` + strings.Repeat("hi ", 1000) + `"}}]}`
	packed := compressed([]byte(plain))
	asked := make(chan string, 1)
	server := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		asked <- strings.Join(req.Header.Values("Accept-Encoding"), "|")
		w.Header().Set("Content-Encoding", "gzip")
		if strings.Contains(req.URL.RawQuery, "stream") {
			w.Header().Set("Content-Type", "text/event-stream")
		}
		_, _ = w.Write(packed)
	})
	everyMode(t, func(t *testing.T, mode rigOption) {
		r := start(t, server, mode)
		for path, body := range map[string]string{
			"/v1/models":                  "",
			"/v1/chat/completions":        `{"messages":[]}`,
			"/v1/chat/completions?stream": `{"messages":[],"stream":true}`,
		} {
			res := roundTrip(t, request(t, "POST", r.URL+path, strings.NewReader(body), "Accept-Encoding", "gzip, br"))
			if got := readAll(t, res.Body); !bytes.Equal(got, packed) || res.Header.Get("Content-Encoding") != "gzip" {
				t.Errorf("%s: %d bytes of %q, want the %d that were sent", path, len(got), res.Header.Get("Content-Encoding"), len(packed))
			}
			want := "gzip, br"
			if r.mode == config.ModeOn && strings.Contains(path, "chat") {
				want = ""
			}
			if got := await(t, "the request", asked); got != want {
				t.Errorf("%s: the server was asked for %q, want %q", path, got, want)
			}
		}
	})
}

// ---- websockets

// frame is a websocket frame of a short message; clients mask theirs.
func frame(text string, mask bool) []byte {
	b := []byte{0x81, byte(len(text))}
	if !mask {
		return append(b, text...)
	}
	key := make([]byte, 4)
	_, _ = rand.Read(key)
	b[1] |= 0x80
	b = append(b, key...)
	for i := range len(text) {
		b = append(b, text[i]^key[i%4])
	}
	return b
}

func readFrame(r *bufio.Reader) (text string, masked bool, err error) {
	head := make([]byte, 2)
	if _, err := io.ReadFull(r, head); err != nil {
		return "", false, err
	}
	masked = head[1]&0x80 != 0
	var key uint32
	if masked {
		if err := binary.Read(r, binary.BigEndian, &key); err != nil {
			return "", masked, err
		}
	}
	b := make([]byte, head[1]&0x7f)
	_, err = io.ReadFull(r, b)
	for i := range b {
		b[i] ^= byte(key >> (8 * (3 - i%4)))
	}
	return string(b), masked, err
}

func acceptOf(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// echoSocket upgrades, greets, and sends back what it gets until the client
// leaves; closed tells when it saw that.
func echoSocket(closed chan<- error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !strings.EqualFold(req.Header.Get("Upgrade"), "websocket") || req.Header.Get("Sec-Websocket-Version") != "13" {
			http.Error(w, "not a websocket", http.StatusUpgradeRequired)
			return
		}
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			closed <- err
			return
		}
		defer c.Close()
		fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\nX-Kept: yes\r\n\r\n", acceptOf(req.Header.Get("Sec-Websocket-Key")))
		_, _ = c.Write(frame("welcome "+req.Header.Get("Authorization"), false))
		for {
			text, masked, err := readFrame(rw.Reader)
			if err != nil || text == "bye" {
				closed <- err
				return
			}
			_, _ = c.Write(frame(fmt.Sprintf("%s, masked %v", text, masked), false))
		}
	})
}

// handshake opens a websocket by hand.
func handshake(t testing.TB, address, path string, header ...string) (net.Conn, *bufio.Reader, *http.Response) {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(address, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	key := base64.StdEncoding.EncodeToString([]byte("0123456789abcdef"))
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\n", path, key)
	for i := 0; i+1 < len(header); i += 2 {
		fmt.Fprintf(c, "%s: %s\r\n", header[i], header[i+1])
	}
	fmt.Fprint(c, "\r\n")
	r := bufio.NewReader(c)
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatalf("handshake: %v", err)
	}
	if res.StatusCode == http.StatusSwitchingProtocols && res.Header.Get("Sec-Websocket-Accept") != acceptOf(key) {
		t.Errorf("handshake: Sec-WebSocket-Accept is %q", res.Header.Get("Sec-Websocket-Accept"))
	}
	return c, r, res
}

func TestPassthrough_Websocket(t *testing.T) {
	t.Parallel()
	everyMode(t, func(t *testing.T, mode rigOption) {
		closed := make(chan error, 1)
		r := start(t, echoSocket(closed), mode)
		talk := func() (net.Conn, *bufio.Reader) {
			c, in, res := handshake(t, r.URL, "/ws?x=1;y", "Authorization", "Bearer mine")
			if res.StatusCode != http.StatusSwitchingProtocols || res.Header.Get("X-Kept") != "yes" || res.Header.Get("Date") != "" {
				t.Fatalf("status %d, header %v", res.StatusCode, res.Header)
			}
			expect := func(want string) {
				t.Helper()
				got, masked, err := readFrame(in)
				if err != nil || masked || got != want {
					t.Fatalf("got %q (masked %v, %v), want %q", got, masked, err, want)
				}
			}
			expect("welcome Bearer mine") // the server speaks first
			for i := range 3 {
				_, _ = c.Write(frame(fmt.Sprintf("message %d", i), true))
				expect(fmt.Sprintf("message %d, masked true", i))
			}
			return c, in
		}
		c, _ := talk()
		c.Close() // the client leaves
		if err := await(t, "the server to see the client leave", closed); err == nil {
			t.Error("the server read on after the client left")
		}
		c, in := talk()
		_, _ = c.Write(frame("bye", true)) // the server leaves
		if err := await(t, "the server to leave", closed); err != nil {
			t.Error(err)
		}
		if _, _, err := readFrame(in); !errors.Is(err, io.EOF) {
			t.Errorf("after the server left: %v, want EOF", err)
		}
	})
}

// A server that does not want to upgrade says so itself.
func TestPassthrough_RefusedWebsocket(t *testing.T) {
	t.Parallel()
	r := start(t, llamasim.New(llamasim.Options{}))
	_, _, res := handshake(t, r.URL, "/ws")
	if res.StatusCode != http.StatusNotFound {
		t.Errorf("status %d, want the server's 404", res.StatusCode)
	}
}

// One proxy serves many at once and mixes nothing up.
func TestPassthrough_ManyAtOnce(t *testing.T) {
	t.Parallel()
	r := start(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		fmt.Fprintf(w, "%s %s", req.URL.Path, b)
	}))
	const n = 40
	failed := make(chan string, n)
	for i := range n {
		go func() {
			path := []string{"/a", "/v1/chat/completions", "/v1/completions"}[i%3]
			body := fmt.Sprintf(`{"messages":[{"role":"user","content":"%d %s"}],"stream":%v}`, i, strings.Repeat("x", i*500), i%2 == 0)
			res, err := http.DefaultClient.Post(r.URL+path, "application/json", strings.NewReader(body))
			if err != nil {
				failed <- err.Error()
				return
			}
			defer res.Body.Close()
			got, err := io.ReadAll(res.Body)
			if want := path + " " + body; err != nil || string(got) != want {
				failed <- fmt.Sprintf("%d: got %.80q (%v), want %.80q", i, got, err, want)
				return
			}
			failed <- ""
		}()
	}
	for range n {
		if f := await(t, "every answer", failed); f != "" {
			t.Error(f)
		}
	}
}

// lateEnd lets the read behind a body's last byte wait: net/http asks once more
// when everything is sent, and by then the answer may be on its way.
type lateEnd struct {
	io.ReadCloser
	left    int64
	release <-chan struct{}
	read    chan<- struct{}
}

func (l *lateEnd) Read(b []byte) (int, error) {
	last := l.left <= 0
	if last {
		<-l.release
	}
	n, err := l.ReadCloser.Read(b)
	if l.left -= int64(n); last {
		close(l.read)
	}
	return n, err
}

// An answer that begins the moment the request is complete is not cut off
// because net/http has closed the request's body meanwhile.
func TestPassthrough_QuickAnswersAreWhole(t *testing.T) {
	t.Parallel()
	for path, mode := range map[string]config.Mode{"/tokenize": config.ModeOn, "/v1/chat/completions": config.ModeOff} {
		release, read := make(chan struct{}), make(chan struct{})
		const first, rest = "first", 8 << 20
		r := start(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.Copy(io.Discard, req.Body)
			_, _ = io.WriteString(w, first)
			w.(http.Flusher).Flush()
			select {
			case <-read:
			case <-req.Context().Done():
			}
			_, _ = w.Write(make([]byte, rest))
		}), inMode(mode), func(o *Options) {
			next := o.Transport
			o.Transport = roundTrips(func(req *http.Request) (*http.Response, error) {
				req.Body = &lateEnd{req.Body, req.ContentLength, release, read}
				return next.RoundTrip(req)
			})
		})
		res := roundTrip(t, request(t, "POST", r.URL+path, strings.NewReader(plainChat)))
		if _, err := io.ReadFull(res.Body, make([]byte, len(first))); err != nil {
			t.Fatal(err)
		}
		close(release)
		if n, err := io.Copy(io.Discard, res.Body); err != nil || n != rest {
			t.Errorf("%s: the answer ends after %d of %d bytes: %v", path, n, rest, err)
		}
	}
}

// A server may answer while the request is still coming, and both go on.
func TestPassthrough_BothWaysAtOnce(t *testing.T) {
	t.Parallel()
	for path, mode := range map[string]config.Mode{"/stream": config.ModeOn, "/v1/chat/completions": config.ModeOff} {
		r := start(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
				t.Error(err)
			}
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			b := make([]byte, 100)
			for {
				n, err := req.Body.Read(b)
				_, _ = w.Write(b[:n])
				w.(http.Flusher).Flush()
				if err != nil {
					return
				}
			}
		}), inMode(mode))
		ours, theirs := io.Pipe()
		type answer struct {
			*http.Response
			error
		}
		head := make(chan answer, 1)
		transport := &http.Transport{DisableCompression: true}
		t.Cleanup(transport.CloseIdleConnections)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		context.AfterFunc(ctx, func() { theirs.CloseWithError(ctx.Err()) })
		req := request(t, "POST", r.URL+path, ours).WithContext(ctx)
		go func() {
			res, err := transport.RoundTrip(req)
			head <- answer{res, err}
		}()
		got := await(t, "the answer's head", head)
		if got.error != nil {
			t.Errorf("%s: the answer waits for the whole request: %v", path, got.error)
			continue
		}
		for i := range 3 {
			said := fmt.Sprintf("message %d", i)
			_, _ = io.WriteString(theirs, said)
			heard := make([]byte, len(said))
			if _, err := io.ReadFull(got.Body, heard); err != nil || string(heard) != said {
				t.Errorf("%s: said %q, heard %q (%v)", path, said, heard, err)
				break
			}
		}
		theirs.Close()
		if rest, err := io.ReadAll(got.Body); err != nil || len(rest) > 0 {
			t.Errorf("%s: at the end: %q, %v", path, rest, err)
		}
		got.Body.Close()
	}
}
