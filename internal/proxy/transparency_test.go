package proxy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/textproto"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/corpus"
)

// The tests of this file speak HTTP by hand at both ends, so that nothing is
// compared that net/http has tidied up before.

// field is one header line.
type field struct{ Name, Value string }

// message is a request or an answer as it stood on the wire. Chunked bodies are
// joined; how they were cut is framing.
type message struct {
	Line    string
	Fields  []field
	Body    []byte
	Trailer []field
}

func (m message) value(name string) (string, bool) {
	for _, f := range m.Fields {
		if strings.EqualFold(f.Name, name) {
			return f.Value, true
		}
	}
	return "", false
}

func (m message) status() int {
	_, rest, _ := strings.Cut(m.Line, " ")
	code, _, _ := strings.Cut(rest, " ")
	n, _ := strconv.Atoi(code)
	return n
}

// readMessage reads one message. bodiless says that no body follows whatever
// the fields say.
func readMessage(r *bufio.Reader, bodiless func(message) bool) (m message, err error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return m, err
	}
	m.Line = strings.TrimRight(line, "\r\n")
	if m.Fields, err = readFields(r); err != nil {
		return m, err
	}
	return m, m.readBody(r, bodiless)
}

func (m *message) readBody(r *bufio.Reader, bodiless func(message) bool) (err error) {
	length, sized := m.value("Content-Length")
	coding, _ := m.value("Transfer-Encoding")
	switch {
	case bodiless(*m):
	case strings.EqualFold(coding, "chunked"):
		if m.Body, err = io.ReadAll(httputil.NewChunkedReader(r)); err != nil {
			return err
		}
		m.Trailer, err = readFields(r)
	case sized:
		n, _ := strconv.Atoi(length)
		m.Body = make([]byte, n)
		_, err = io.ReadFull(r, m.Body)
	case strings.HasPrefix(m.Line, "HTTP/"): // until the connection ends
		m.Body, err = io.ReadAll(r)
	}
	return err
}

func readFields(r *bufio.Reader) (fields []field, err error) {
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return fields, io.ErrUnexpectedEOF
		}
		line = strings.TrimRight(line, "\r\n")
		if line == "" {
			return fields, nil
		}
		name, value, _ := strings.Cut(line, ":")
		fields = append(fields, field{name, strings.Trim(value, " \t")})
	}
}

// rawServer records requests as they came and gives the answer it was told to.
type rawServer struct {
	Addr string

	mu     sync.Mutex
	answer []byte
	got    []message
	conns  map[net.Conn]bool
}

func newRawServer(t testing.TB) *rawServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &rawServer{Addr: l.Addr().String(), conns: map[net.Conn]bool{}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns[c] = true
			s.mu.Unlock()
			wg.Go(func() {
				s.serve(c)
				s.mu.Lock()
				delete(s.conns, c)
				s.mu.Unlock()
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		s.mu.Lock()
		for c := range s.conns {
			c.Close()
		}
		s.mu.Unlock()
		wg.Wait()
	})
	return s
}

func (s *rawServer) serve(c net.Conn) {
	defer c.Close()
	r := bufio.NewReaderSize(c, 64<<10)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		m := message{Line: strings.TrimRight(line, "\r\n")}
		if m.Fields, err = readFields(r); err != nil {
			return
		}
		if _, ok := m.value("Expect"); ok { // as llama-server does
			if _, err := io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
				return
			}
		}
		if m.readBody(r, func(message) bool { return false }) != nil {
			return
		}
		s.mu.Lock()
		s.got = append(s.got, m)
		answer := s.answer
		s.mu.Unlock()
		if _, err := c.Write(answer); err != nil {
			return
		}
		if sized := bytes.Contains(answer, []byte("Content-Length:")) || bytes.Contains(answer, []byte("chunked")); !sized || closes(m) {
			return
		}
	}
}

func closes(m message) bool {
	v, _ := m.value("Connection")
	return strings.EqualFold(v, "close")
}

// say sets the answer to every request that follows, and forgets the last ones.
func (s *rawServer) say(answer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer, s.got = []byte(answer), nil
}

// take returns the one request that has come since the last call.
func (s *rawServer) take(t testing.TB) message {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.got) != 1 {
		t.Fatalf("the server got %d requests, want 1", len(s.got))
	}
	m := s.got[0]
	s.got = nil
	return m
}

// talk sends a request as it stands and returns the answers to it: the interim
// ones and the last. {host} in the head becomes addr. A body that was announced
// with Expect waits for the first interim answer.
func talk(t testing.TB, addr, head string, body []byte) []message {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	head = strings.ReplaceAll(head, "{host}", addr)
	bodiless := func(m message) bool {
		n := m.status()
		return strings.HasPrefix(head, "HEAD ") || n < 200 || n == 204 || n == 304
	}
	r := bufio.NewReader(c)
	var answers []message
	read := func() message {
		m, err := readMessage(r, bodiless)
		if err != nil {
			t.Fatalf("read the answer from %s: %v (so far %q)", addr, err, m.Line)
		}
		answers = append(answers, m)
		return m
	}
	if _, err := io.WriteString(c, head); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(head, "\r\nExpect:") && read().status() >= 200 {
		return answers
	}
	if _, err := c.Write(body); err != nil {
		t.Fatalf("send to %s: %v", addr, err)
	}
	for read().status() < 200 {
	}
	return answers
}

// onWire is one exchange as the server and the client saw it.
type onWire struct {
	Request message
	Answers []message
}

// notCompared are the fields that belong to one connection, RFC 9110 7.6.1, and
// to framing.
var notCompared = []string{"connection", "proxy-connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}

// plain leaves what must be the same with and without a proxy: order and case
// of names are not.
func (m message) plain() message {
	norm := func(fields []field) []field {
		out := []field{}
		for _, f := range fields {
			name := strings.ToLower(f.Name)
			if !slices.Contains(notCompared, name) && !strings.HasPrefix(name, "x-compactproxy-") {
				out = append(out, field{name, f.Value})
			}
		}
		slices.SortStableFunc(out, func(a, b field) int { return strings.Compare(a.Name, b.Name) })
		return out
	}
	m.Fields, m.Trailer = norm(m.Fields), norm(m.Trailer)
	if strings.HasPrefix(m.Line, "HTTP/") { // the reason phrase means nothing
		m.Line = fmt.Sprint(m.status())
	}
	if m.Body == nil {
		m.Body = []byte{}
	}
	return m
}

// plain also leaves out the lengths of bodies, which are compared themselves;
// that of an answer to HEAD stays.
func (e onWire) plain() onWire {
	sized := func(m message) message {
		m = m.plain()
		m.Fields = slices.DeleteFunc(m.Fields, func(f field) bool { return f.Name == "content-length" })
		return m
	}
	out := onWire{Request: sized(e.Request)}
	for _, a := range e.Answers {
		if strings.HasPrefix(e.Request.Line, "HEAD ") {
			out.Answers = append(out.Answers, a.plain())
			continue
		}
		out.Answers = append(out.Answers, sized(a))
	}
	return out
}

// sameOnWire compares two exchanges and keeps a difference readable where the
// bodies are large.
func sameOnWire(t testing.TB, how string, want, got onWire) {
	t.Helper()
	bodies := cmp.Comparer(bytes.Equal)
	if cmp.Equal(want, got, bodies) {
		return
	}
	short := cmp.Transformer("short", func(b []byte) string {
		if len(b) > 400 {
			return fmt.Sprintf("%d bytes, %.200q…", len(b), b)
		}
		return fmt.Sprintf("%q", b)
	})
	diff := cmp.Diff(want, got, short)
	if diff == "" {
		diff = "the bodies differ somewhere in the middle"
	}
	t.Errorf("%s is not what a direct call is (-direct +through the proxy):\n%s", how, diff)
}

// offRig is a recording server and two proxies before it that are off: by the
// configuration, and by a header.
type offRig struct {
	server         *rawServer
	byConf, byHead *rig
}

func newOffRig(t testing.TB) *offRig {
	t.Helper()
	s := newRawServer(t)
	return &offRig{
		server: s,
		byConf: startBefore(t, "http://"+s.Addr, withConfig(func(c *config.Config) { c.Compaction.Mode = config.ModeOff })),
		byHead: startBefore(t, "http://"+s.Addr),
	}
}

// same makes the same exchange directly and through both proxies. head has no
// blank line at its end.
func (o *offRig) same(t testing.TB, head string, body []byte, answer string) {
	t.Helper()
	o.server.say(answer)
	host := func(r *rig) string { return strings.TrimPrefix(r.URL, "http://") }
	run := func(addr, head string) onWire {
		answers := talk(t, addr, head+"\r\n", body)
		return onWire{o.server.take(t), answers}.plain()
	}
	direct := run(o.server.Addr, head)
	sameOnWire(t, "mode off", direct, run(host(o.byConf), head))
	sameOnWire(t, "a request with the header of mode off", direct, run(host(o.byHead), head+headerMode+": off\r\n"))
}

const okJSON = "HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: 11\r\n\r\n{\"ok\":true}"

func chatHead(body []byte) string {
	return fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", len(body))
}

func TestOff_KeepsTheRequestLine(t *testing.T) {
	t.Parallel()
	o := newOffRig(t)
	for name, line := range map[string]string{
		"root":                     "GET / HTTP/1.1",
		"chat":                     "GET /v1/chat/completions HTTP/1.1",
		"double slashes":           "GET //v1//models HTTP/1.1",
		"double slash alone":       "GET // HTTP/1.1",
		"dots":                     "GET /a/./b/../c HTTP/1.1",
		"slash at the end":         "GET /v1/models/ HTTP/1.1",
		"escapes":                  "GET /a%2Fb/%e4%C3%A4/%20x%00 HTTP/1.1",
		"escapes nobody needs":     "GET /%76%31/models HTTP/1.1",
		"sub-delimiters":           "GET /a;b=c,d:e@f!g$h&i'j(k)l*m+n~o HTTP/1.1",
		"brackets":                 "GET /a[0] HTTP/1.1",
		"query":                    "GET /slots?fail_on_no_slot=1 HTTP/1.1",
		"query with semicolons":    "GET /x?a=1;b=2;c HTTP/1.1",
		"query, broken escapes":    "GET /x?a=%zz&b=%&c=%4 HTTP/1.1",
		"query, raw characters":    "GET /x?a={\"b\"|c}^`\\<>[] HTTP/1.1",
		"query, UTF-8":             "GET /x?q=\u00e4\u4e2d HTTP/1.1",
		"query with question mark": "GET /x?a?b??c HTTP/1.1",
		"a lone question mark":     "GET /v1/models? HTTP/1.1",
		"only delimiters":          "GET /x?&&==& HTTP/1.1",
		"asterisk":                 "OPTIONS * HTTP/1.1",
		"custom method":            "BREW /pot HTTP/1.1",
		"lower-case method":        "get / HTTP/1.1",
		"HEAD":                     "HEAD /v1/models HTTP/1.1",
		"DELETE":                   "DELETE /v1/x?y HTTP/1.1",
		"long":                     "GET /" + strings.Repeat("long/", 1500) + " HTTP/1.1",
	} {
		t.Run(name, func(t *testing.T) {
			o.same(t, line+"\r\nHost: {host}\r\n", nil, okJSON)
		})
	}
}

// Servers take these in a path as they stand; net/url would escape them.
func TestOff_KeepsRawCharactersOfThePath(t *testing.T) {
	t.Parallel()
	o := newOffRig(t)
	for name, path := range map[string]string{
		"pipe":     "/a|b",
		"braces":   "/slots/{id}",
		"quotes":   `/a"b`,
		"caret":    "/a^b",
		"backtick": "/a`b",
		"angles":   "/a<b>",
		"hash":     "/a#b",
		"UTF-8":    "/\u00e4\u4e2d",
	} {
		t.Run(name, func(t *testing.T) {
			o.same(t, "GET "+path+"?q HTTP/1.1\r\nHost: {host}\r\n", nil, okJSON)
		})
	}
}

func TestOff_KeepsThePathUnderAServersPrefix(t *testing.T) {
	t.Parallel()
	s := newRawServer(t)
	s.say(okJSON)
	for _, c := range []struct{ root, path, want string }{
		{"/llama", "/v1/models?x", "/llama/v1/models?x"},
		{"/llama", "//v1/a%2Fb", "/llama//v1/a%2Fb"},
		{"/llama/", "/", "/llama/"},
		{"/a%2Fb", "/v1/models", "/a%2Fb/v1/models"},
		{"/a%2Fb", "/c%2Fd", "/a%2Fb/c%2Fd"},
	} {
		t.Run(c.root+c.path, func(t *testing.T) {
			r := startBefore(t, "http://"+s.Addr+c.root, withConfig(func(c *config.Config) { c.Compaction.Mode = config.ModeOff }))
			talk(t, strings.TrimPrefix(r.URL, "http://"), "GET "+c.path+" HTTP/1.1\r\nHost: {host}\r\n\r\n", nil)
			if got, want := s.take(t).Line, "GET "+c.want+" HTTP/1.1"; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func TestOff_KeepsRequestFields(t *testing.T) {
	t.Parallel()
	o := newOffRig(t)
	body := []byte(`{"messages":[{"role":"user","content":"hi"}],"stream":true}`)
	for name, fields := range map[string]string{
		"none":                   "",
		"no user agent":          "Accept: */*\r\n",
		"curl":                   "User-Agent: curl/8.5.0\r\nAccept: */*\r\n",
		"openai for node":        "Accept: application/json\r\nUser-Agent: OpenAI/JS 6.1.0\r\nX-Stainless-Lang: js\r\nX-Stainless-Retry-Count: 0\r\nAuthorization: Bearer sk-client\r\nconnection: keep-alive\r\naccept-language: *\r\nsec-fetch-mode: cors\r\naccept-encoding: gzip, deflate\r\n",
		"every encoding":         "Accept-Encoding: gzip, deflate, br, zstd\r\n",
		"identity only":          "Accept-Encoding: identity\r\n",
		"no encoding wanted":     "Accept-Encoding:\r\n",
		"a browser":              "Origin: http://localhost:3000\r\nReferer: http://localhost:3000/x\r\nCookie: a=1; b=\"2\"\r\nSec-Fetch-Site: cross-site\r\nCache-Control: no-cache\r\nPragma: no-cache\r\nUpgrade-Insecure-Requests: 1\r\nDNT: 1\r\n",
		"another proxy's":        "X-Forwarded-For: 10.0.0.1, 10.0.0.2\r\nX-Forwarded-Host: example.org\r\nX-Forwarded-Proto: https\r\nForwarded: for=10.0.0.1;proto=https\r\nVia: 1.1 front\r\nX-Real-Ip: 10.0.0.1\r\nX-Forwarded-Port: 443\r\n",
		"repeated":               "X-Twice: 1\r\nX-Twice: 2\r\nCookie: a=1\r\nCookie: b=2\r\nX-Forwarded-For: 10.0.0.1\r\nX-Forwarded-For: 10.0.0.2\r\n",
		"odd names":              "x_under.score: 1\r\nX-!#$%&'*+.^`|~: 2\r\nwEIRD-case: 3\r\nETag: 4\r\nx-y-z: 5\r\n",
		"odd values":             "X-Latin: \xe4\xff\r\nX-Utf8: \u4e2d\r\nX-Comma: a,, b ,\"c,d\"\r\nX-Tab: a\tb\r\nX-Spaces: a  b\r\nX-Colon: :a:\r\n",
		"empty values":           "X-Empty:\r\nX-Blank:   \r\nReferer:\r\n",
		"tracing":                "Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\nTracestate: a=b\r\nX-Request-Id: 1\r\nIdempotency-Key: k\r\n",
		"basic credentials":      "Authorization: Basic dXNlcjpwYXNz\r\n",
		"two kinds of keys":      "Authorization: Bearer a\r\nX-Api-Key: b\r\nApi-Key: c\r\n",
		"conditions":             "If-None-Match: \"x\"\r\nIf-Modified-Since: Tue, 01 Jan 2030 00:00:00 GMT\r\nRange: bytes=0-1\r\n",
		"a date of its own":      "Date: Tue, 01 Jan 2030 00:00:00 GMT\r\nServer: me\r\nContent-Language: de\r\n",
		"a conversation's label": "Session_id: s\r\nX-Session-Affinity: s\r\nUser-Agent: opencode/1\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			o.same(t, chatHead(body)+fields, body, okJSON)
			o.same(t, "GET /v1/models HTTP/1.1\r\nHost: {host}\r\n"+fields, nil, okJSON)
		})
	}
}

// answersOnWire are answers of many kinds as servers send them.
func answersOnWire() map[string]string {
	const events = "HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nAccess-Control-Allow-Origin:\r\nX-Accel-Buffering: no\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nKeep-Alive: timeout=5, max=100\r\n\r\n"
	return map[string]string{
		"no field at all":         "HTTP/1.1 200 OK\r\n\r\n<html>sniff me</html>",
		"no type":                 "HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{\"sniff\":\"me\"}",
		"an empty type":           "HTTP/1.1 200 OK\r\nContent-Type:\r\nContent-Length: 2\r\n\r\nhi",
		"its own date":            "HTTP/1.1 200 OK\r\nDate: Tue, 01 Jan 2030 00:00:00 GMT\r\nServer: nginx\r\nVia: 1.1 x\r\nContent-Length: 0\r\n\r\n",
		"cookies":                 "HTTP/1.1 200 OK\r\nSet-Cookie: a=1; Path=/\r\nSet-Cookie: b=2\r\nset-cookie: a=1; Path=/\r\nContent-Length: 0\r\n\r\n",
		"repeated fields":         "HTTP/1.1 200 OK\r\nVary: Origin\r\nVary: Accept\r\nLink: </a>\r\nLink: </b>\r\nContent-Length: 2\r\n\r\nok",
		"odd values":              "HTTP/1.1 200 OK\r\nX-Latin: \xe4\r\nx_y.z: :a:,b\r\nX-Empty:\r\nContent-Length: 2\r\n\r\nok",
		"limits":                  "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nX-Ratelimit-Remaining-Tokens: 0\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
		"a redirection":           "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://elsewhere.invalid/v1?x#y\r\nContent-Length: 0\r\n\r\n",
		"no content":              "HTTP/1.1 204 No Content\r\nServer: x\r\nContent-Type: text/html\r\n\r\n",
		"not modified":            "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nCache-Control: max-age=1\r\n\r\n",
		"an unknown status":       "HTTP/1.1 599 Whatever\r\nContent-Length: 2\r\n\r\nno",
		"no reason":               "HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok",
		"an error":                "HTTP/1.1 500 Internal Server Error\r\nServer: llama.cpp\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: 82\r\nConnection: close\r\n\r\n{\"error\":{\"code\":500,\"message\":\"Context size has been exceeded.\",\"type\":\"x_error\"}}",
		"gzip":                    "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nVary: Accept-Encoding\r\nContent-Length: 5\r\n\r\n\x1f\x8b\x00\xff\x00",
		"gzip in chunks":          "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n\x1f\x8b\x00\xff\x00\r\n0\r\n\r\n",
		"a stream":                events + "a\r\ndata: {}\n\n\r\n3\r\n:\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n",
		"an error in a stream":    events + "57\r\ndata: {\"error\":{\"code\":500,\"message\":\"Context size has been exceeded.\",\"type\":\"x\"}}\n\n\n\n\r\n0\r\n\r\n",
		"a stream without a done": events + "a\r\ndata: {}\n\n\r\n0\r\n\r\n",
		"half a line":             events + "8\r\ndata: {\"\r\n0\r\n\r\n",
		"an empty stream":         events + "0\r\n\r\n",
		"a stream of one length":  "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 24\r\n\r\ndata: {}\n\ndata: [DONE]\n\n",
		"a stream to the end":     "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {}\n\ndata: [DONE]\n\n",
		"trailers":                "HTTP/1.1 200 OK\r\nTrailer: X-Sum, X-More\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\nX-More: a\r\n\r\n",
		"trailers unannounced":    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\n\r\n",
	}
}

// askChat are the bodies that answers are asked with.
var askChat = []string{
	`{"messages":[{"role":"user","content":"hi"}]}`,
	`{"messages":[{"role":"user","content":"hi"}],"stream":true}`,
}

func TestOff_KeepsTheAnswer(t *testing.T) {
	t.Parallel()
	o := newOffRig(t)
	for name, answer := range answersOnWire() {
		t.Run(name, func(t *testing.T) {
			for _, body := range askChat {
				o.same(t, chatHead([]byte(body)), []byte(body), answer)
			}
			o.same(t, "GET /props HTTP/1.1\r\nHost: {host}\r\n", nil, answer)
		})
	}
	t.Run("HEAD", func(t *testing.T) {
		o.same(t, "HEAD /v1/models HTTP/1.1\r\nHost: {host}\r\n", nil, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1234\r\nETag: \"x\"\r\n\r\n")
		o.same(t, "HEAD /v1/models HTTP/1.1\r\nHost: {host}\r\n", nil, "HTTP/1.1 404 Not Found\r\nX-A: b\r\nTransfer-Encoding: chunked\r\n\r\n")
	})
}

// What net/http changes before a handler or behind it has no remedy here short
// of another server. This test says what it is, and fails when it is no more.
func TestOff_LimitsOfNetHTTP(t *testing.T) {
	t.Parallel()
	o := newOffRig(t)
	get := "GET /v1/models HTTP/1.1\r\nHost: {host}\r\n"
	type change struct{ Request, Answer []field }
	f := func(name, head, answer string, want change) {
		t.Run(name, func(t *testing.T) {
			o.server.say(answer)
			run := func(addr string) onWire {
				answers := talk(t, addr, head+"\r\n", nil)
				return onWire{o.server.take(t), answers}.plain()
			}
			direct, through := run(o.server.Addr), run(strings.TrimPrefix(o.byConf.URL, "http://"))
			got := change{
				Request: difference(direct.Request.Fields, through.Request.Fields),
				Answer:  difference(direct.Answers[0].Fields, through.Answers[0].Fields),
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("net/http changes something else (-want +got):\n%s", diff)
			}
		})
	}
	f("Pragma alone gains its successor", get+"Pragma: no-cache\r\n", okJSON, change{Request: []field{{"+cache-control", "no-cache"}}})
	f("also in an answer", get, strings.Replace(okJSON, "Server", "Pragma: no-cache\r\nServer", 1), change{Answer: []field{{"+cache-control", "no-cache"}}})
	f("an empty user agent is none", get+"User-Agent:\r\n", okJSON, change{Request: []field{{"-user-agent", ""}}})
	f("one user agent", get+"User-Agent: a\r\nUser-Agent: b\r\n", okJSON, change{Request: []field{{"-user-agent", "b"}}})
	f("a 304 has no type", get+"If-None-Match: x\r\n", "HTTP/1.1 304 Not Modified\r\nETag: x\r\nContent-Type: text/html\r\n\r\n", change{Answer: []field{{"-content-type", "text/html"}}})
	t.Run("a broken escape in the path is refused", func(t *testing.T) {
		answers := talk(t, strings.TrimPrefix(o.byConf.URL, "http://"), "GET /a%zz HTTP/1.1\r\nHost: {host}\r\n\r\n", nil)
		if got := answers[0].status(); got != http.StatusBadRequest {
			t.Errorf("status %d, want 400", got)
		}
	})
}

// difference lists what is only in one of two lists of fields.
func difference(a, b []field) (out []field) {
	for _, f := range a {
		if !slices.Contains(b, f) {
			out = append(out, field{"-" + f.Name, f.Value})
		}
	}
	for _, f := range b {
		if !slices.Contains(a, f) {
			out = append(out, field{"+" + f.Name, f.Value})
		}
	}
	return out
}

// Interim answers come through, and the last answer is no other for them.
func TestOff_KeepsInterimAnswers(t *testing.T) {
	t.Parallel()
	o := newOffRig(t)
	body := []byte(`{"messages":[]}`)
	t.Run("early hints", func(t *testing.T) {
		hints := "HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\nX-Hint: 1\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </b.css>\r\n\r\n"
		o.same(t, "GET / HTTP/1.1\r\nHost: {host}\r\n", nil, hints+"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 13\r\n\r\n<html></html>")
		o.same(t, chatHead(body), body, hints+okJSON)
	})
	t.Run("processing", func(t *testing.T) {
		o.same(t, chatHead(body), body, "HTTP/1.1 102 Processing\r\n\r\n"+okJSON)
	})
	t.Run("continue", func(t *testing.T) {
		o.same(t, chatHead(body)+"Expect: 100-continue\r\n", body, "HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 13\r\n\r\n<html></html>")
		o.same(t, "PUT /slots HTTP/1.1\r\nHost: {host}\r\nContent-Length: 15\r\nExpect: 100-continue\r\n", body, okJSON)
	})
}

// oddBodies are what JSON libraries and clients disagree about. None of them
// needs anything from the proxy.
func oddBodies() map[string][]byte {
	nest := func(n int) []byte {
		return []byte(`{"messages":[{"role":"user","content":"hi"}],"x":` + strings.Repeat("[", n) + strings.Repeat("]", n) + "}")
	}
	odd := map[string]string{
		"empty":                   "",
		"spaces":                  " \r\n\t ",
		"not JSON":                "hello, world",
		"half":                    `{"messages":[{"role":"user","content":"h`,
		"two values":              `{"messages":[]}{"messages":[]}`,
		"byte order mark":         "\xef\xbb\xbf" + `{"messages":[]}`,
		"UTF-16":                  "\xff\xfe{\x00}\x00",
		"NUL bytes":               "{\"messages\":[]}\x00\x00",
		"array":                   `[{"role":"user","content":"hi"}]`,
		"form":                    "messages=hi&stream=true",
		"no messages":             `{"prompt":"hi"}`,
		"messages, a string":      `{"messages":"hi"}`,
		"messages, an object":     `{"messages":{"role":"user"}}`,
		"messages, null":          `{"messages":null}`,
		"a message, a string":     `{"messages":["hi"]}`,
		"empty list":              `{"messages":[]}`,
		"empty message":           `{"messages":[{}]}`,
		"duplicate keys":          `{"messages":[{"role":"user","content":"a"}],"messages":[{"role":"user","role":"user","content":"b","content":"c"}],"stream":true,"stream":false,"model":1,"model":"m"}`,
		"escaped keys":            `{"m\u0065ssages":[{"r\u006fle":"user","c\u006fntent":"hi"}]}`,
		"escapes":                 `{"messages":[{"role":"user","content":"\u00e4\u4E2d\/\b\f\n\r\t\"\\ \u003c\u003e\u0026 \u2028 \ud83d\ude00"}]}`,
		"unescaped":               "{\"messages\":[{\"role\":\"user\",\"content\":\"\u00e4\u4e2d <>& \u2028\u2029 \U0001F600 \x7f\"}]}",
		"lone surrogates":         `{"messages":[{"role":"user","content":"\ud800 \udc00 \ud83dx \udE00\uD83d"}]}`,
		"numbers":                 `{"messages":[{"role":"user","content":"hi"}],"seed":9007199254740993,"temperature":1e400,"top_p":-0.0,"x":1E+2,"y":0.1000000000000000055511151231257827,"z":-1e-400,"max_tokens":100.0}`,
		"numbers that are none":   `{"messages":[],"temperature":NaN,"x":Infinity,"y":01,"z":.5,"w":+1}`,
		"NUL in strings":          `{"messages":[{"role":"user","content":"a\u0000b"}],"\u0000":1}`,
		"raw NUL in strings":      "{\"messages\":[{\"role\":\"user\",\"content\":\"a\x00b\"}]}",
		"raw newline in strings":  "{\"messages\":[{\"role\":\"user\",\"content\":\"a\nb\"}]}",
		"invalid UTF-8":           "{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe \xc3 \xed\xa0\x80 \xf4\x90\x80\x80\"}]}",
		"invalid UTF-8 in a key":  "{\"\xff\":1,\"messages\":[{\"\xc3\":2,\"role\":\"user\",\"content\":\"hi\"}]}",
		"Python's spaces":         `{"messages": [{"role": "user", "content": "hi"}], "stream": true, "tools": []}`,
		"much space":              "\n{ \"messages\" :\t[\r\n {\"role\" : \"user\" , \"content\" : [ ] } \n] ,\"stream\":\nfalse }\n\n",
		"comments":                `{"messages":[/* hi */]} // there`,
		"a comma too many":        `{"messages":[{"role":"user","content":"hi"},],}`,
		"unknown role":            `{"messages":[{"role":"wizard","content":"hi"},{"role":7,"content":"hi"},{"content":"hi"}]}`,
		"role in capitals":        `{"messages":[{"role":"User","content":"hi"}]}`,
		"unknown fields":          `{"messages":[{"role":"user","content":"hi","cache_control":{"type":"ephemeral"},"x":[1,{"y":null}]}],"return_progress":true,"id_slot":3,"chat_template_kwargs":{"a":1}}`,
		"odd contents":            `{"messages":[{"role":"user","content":7},{"role":"user","content":null},{"role":"user"},{"role":"user","content":{"a":1}},{"role":"user","content":[1,"x",null,{"type":"text"},{"type":"text","text":5},{"type":"input_audio","input_audio":{"data":"","format":"wav"}}]}]}`,
		"odd calls":               `{"messages":[{"role":"assistant","content":"x","tool_calls":null},{"role":"assistant","content":"y","tool_calls":"z"},{"role":"assistant","content":"z","tool_calls":[]},{"role":"user","content":"hi"}]}`,
		"a pair":                  `{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"read","arguments":"{\"path\" :\"\\u00e4\"}"}}]},{"role":"tool","tool_call_id":"a","content":""},{"role":"user","content":"go on"}],"tools":[{"type":"function","function":{"name":"read","parameters":{"z":1.0,"a":9007199254740993}}}]}`,
		"results out of order":    `{"messages":[{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"r","arguments":"{}"}},{"id":"b","function":{"name":"r","arguments":"{}"}}]},{"role":"tool","tool_call_id":"b","content":"1"},{"role":"tool","tool_call_id":"a","content":"2"}]}`,
		"a call is last":          `{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"I begin with"}]}`,
		"a system message inside": `{"messages":[{"role":"system","content":"a"},{"role":"developer","content":"b"},{"role":"user","content":"hi"},{"role":"system","content":"c"},{"role":"user","content":"ho"}]}`,
	}
	bodies := map[string][]byte{"nested 500 deep": nest(500), "nested 9,000 deep": nest(9_000), "nested 200,000 deep": nest(200_000)}
	for name, body := range odd {
		bodies[name] = []byte(body)
	}
	return bodies
}

// largeBody is a chat request of 30 MB, as images and long outputs make it.
var largeBody = sync.OnceValue(func() []byte {
	var b bytes.Buffer
	b.WriteString(`{"model":"m","messages":[{"role":"system","content":"s"}`)
	text := strings.Repeat(`line \u00e4 <of> \"output\" 0123456789abcdef\n`, 700)
	image := strings.Repeat("iVBORw0KGgo/+A==", 1<<16)
	for i := 0; b.Len() < 30<<20; i++ {
		fmt.Fprintf(&b, `, {"role" : "user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}}, {"type":"text","text":"%d"}]}`, image, i)
		fmt.Fprintf(&b, `,{"role":"assistant","content":"%d %s"}`, i, text)
	}
	b.WriteString(`],"stream":true}`)
	return b.Bytes()
})

// A body of 30 MB goes on as it is, read or not; mode observe reads what mode
// on reads.
func TestOffAndOn_Keep30MB(t *testing.T) {
	t.Parallel()
	s := newRawServer(t)
	s.say(okJSON)
	r := startBefore(t, "http://"+s.Addr)
	body := largeBody()
	for _, mode := range []config.Mode{config.ModeOff, config.ModeOn} {
		talk(t, strings.TrimPrefix(r.URL, "http://"), chatHead(body)+headerMode+": "+string(mode)+"\r\n\r\n", body)
		if got := s.take(t).Body; !bytes.Equal(got, body) {
			t.Errorf("mode %s: %d bytes arrived changed as %d", mode, len(body), len(got))
		}
	}
}

func TestOff_KeepsOddBodies(t *testing.T) {
	t.Parallel()
	o := newOffRig(t)
	for name, body := range oddBodies() {
		t.Run(name, func(t *testing.T) { o.same(t, chatHead(body), body, okJSON) })
	}
	t.Run("over the limit", func(t *testing.T) {
		o.byHead.maxBody, o.byConf.maxBody = 10, 10
		body := []byte(`{"messages":[{"role":"user","content":"hi"}]}`)
		o.same(t, chatHead(body), body, okJSON)
	})
	t.Run("in chunks", func(t *testing.T) {
		o.same(t, "POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n",
			[]byte("5;ext=1\r\nhello\r\n1\r\n!\r\n0\r\nX-Sum: 1\r\n\r\n"), okJSON)
	})
	t.Run("compressed", func(t *testing.T) {
		body := []byte("\x1f\x8b\x08\x00not really")
		o.same(t, chatHead(body)+"Content-Encoding: gzip\r\n", body, okJSON)
	})
	t.Run("illegal pairing", func(t *testing.T) {
		body := []byte(`{"messages":[{"role":"tool","tool_call_id":"x","content":"orphan"}]}`)
		o.same(t, chatHead(body), body, okJSON)
	})
}

// capture is a recorded request to llama-server with its answer.
type capture struct {
	name string
	head string
	body []byte
	// answer is what the server sent, headers and all.
	answer string
	status int
	chat   bool
}

func captures(t testing.TB) []capture {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(corpus.Path(t, "captures"), "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no captures: %v", err)
	}
	var all []capture
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var c struct {
			Request *struct {
				Method, Path string
				Headers      map[string]string
				Body         json.RawMessage
			}
			Response struct {
				Status  int
				Headers map[string]string
				Text    string `json:"body_text"`
			}
		}
		if json.Unmarshal(raw, &c) != nil || c.Request == nil || c.Request.Method == "" {
			continue // a table of measurements
		}
		one := capture{name: filepath.Base(file), body: c.Request.Body, status: c.Response.Status}
		var text string
		switch {
		case string(c.Request.Body) == "null":
			one.body = nil
		case json.Unmarshal(c.Request.Body, &text) == nil:
			one.body = []byte(text) // sent as it is, not as JSON
		}
		one.chat = c.Request.Method == http.MethodPost && strings.HasSuffix(c.Request.Path, "/chat/completions")
		var head strings.Builder
		fmt.Fprintf(&head, "%s %s HTTP/1.1\r\nHost: {host}\r\nUser-Agent: capture\r\nAccept: */*\r\nAccept-Encoding: gzip\r\n", c.Request.Method, c.Request.Path)
		for name, value := range c.Request.Headers {
			fmt.Fprintf(&head, "%s: %s\r\n", name, value)
		}
		if one.body != nil {
			fmt.Fprintf(&head, "Content-Type: application/json\r\nContent-Length: %d\r\n", len(one.body))
		}
		one.head = head.String()

		var answer strings.Builder
		fmt.Fprintf(&answer, "HTTP/1.1 %d %s\r\n", c.Response.Status, http.StatusText(c.Response.Status))
		chunked := false
		for name, value := range c.Response.Headers {
			switch textproto.CanonicalMIMEHeaderKey(name) {
			case "Content-Length":
				value = strconv.Itoa(len(c.Response.Text)) // some were shortened
			case "Transfer-Encoding":
				chunked = true
			}
			fmt.Fprintf(&answer, "%s: %s\r\n", name, value)
		}
		answer.WriteString("\r\n")
		if chunked {
			for event := range strings.SplitAfterSeq(c.Response.Text, "\n\n") {
				if event != "" {
					fmt.Fprintf(&answer, "%x\r\n%s\r\n", len(event), event)
				}
			}
			answer.WriteString("0\r\n\r\n")
		} else {
			answer.WriteString(c.Response.Text)
		}
		one.answer = answer.String()
		all = append(all, one)
	}
	if len(all) < 100 {
		t.Fatalf("only %d of %d captures could be read", len(all), len(files))
	}
	return all
}

// onePerBody leaves one capture of those that sent the same to servers with
// different templates.
func onePerBody(all []capture) (out []capture) {
	seen := map[string]bool{}
	for _, c := range all {
		if key := c.head[:strings.Index(c.head, "\r")] + string(c.body); !seen[key] {
			seen[key] = true
			out = append(out, c)
		}
	}
	return out
}

func TestOff_KeepsCaptures(t *testing.T) {
	t.Parallel()
	o := newOffRig(t)
	for _, c := range captures(t) {
		t.Run(c.name, func(t *testing.T) { o.same(t, c.head, c.body, c.answer) })
	}
}

// forwardsUntouched makes the exchange directly and through the proxy. It
// reports the action that the proxy states, and both exchanges but for
// Accept-Encoding, which mode on does not forward on a route that it reads.
func forwardsUntouched(t testing.TB, s *rawServer, r *rig, head string, body []byte, answer string) (action string, direct, through onWire) {
	t.Helper()
	s.say(answer)
	drop := func(e onWire) onWire {
		e = e.plain()
		if r.mode == config.ModeOn {
			e.Request.Fields = slices.DeleteFunc(e.Request.Fields, func(f field) bool { return f.Name == "accept-encoding" })
		}
		return e
	}
	answers := talk(t, s.Addr, head+"\r\n", body)
	direct = drop(onWire{s.take(t), answers})
	answers = talk(t, strings.TrimPrefix(r.URL, "http://"), head+"\r\n", body)
	action, _ = answers[len(answers)-1].value(headerAction)
	s.mu.Lock()
	first := s.got[0]
	s.got = nil
	s.mu.Unlock()
	through = drop(onWire{first, answers})
	return action, direct, through
}

// In mode on a body goes on byte for byte where it needs nothing, and so does
// the answer.
func TestOn_ForwardsTheSameBytesWhereItHasNothingToDo(t *testing.T) {
	t.Parallel()
	s := newRawServer(t)
	r := startBefore(t, "http://"+s.Addr)
	for name, body := range oddBodies() {
		t.Run(name, func(t *testing.T) {
			action, direct, through := forwardsUntouched(t, s, r, chatHead(body)+"Accept-Encoding: gzip\r\nX-Forwarded-For: 1.2.3.4\r\n", body, okJSON)
			if action != "none" {
				t.Errorf("action %q, want none", action)
			}
			sameOnWire(t, "mode on with nothing to do", direct, through)
		})
	}
	t.Run("in chunks", func(t *testing.T) {
		head := "POST /v1/chat/completions?a=%zz;b HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n"
		_, direct, through := forwardsUntouched(t, s, r, head, []byte("f\r\n{\"messages\":[]}\r\n0\r\n\r\n"), okJSON)
		sameOnWire(t, "mode on with nothing to do", direct, through)
	})
}

func TestOn_ForwardsCaptures(t *testing.T) {
	t.Parallel()
	s := newRawServer(t)
	r := startBefore(t, "http://"+s.Addr)
	untouched := 0
	for _, c := range onePerBody(captures(t)) {
		action, direct, through := forwardsUntouched(t, s, r, c.head, c.body, c.answer)
		if action != "none" && c.chat {
			continue // it had something to do
		}
		untouched++
		if c.status >= 400 || strings.Contains(c.answer, `"error"`) {
			direct.Answers, through.Answers = nil, nil // a refusal's code may change
		}
		sameOnWire(t, c.name+" in mode on", direct, through)
	}
	if untouched < 80 {
		t.Errorf("only %d captures needed nothing", untouched)
	}
}

// What reads an answer as it passes changes nothing in it but the header fields
// of its own: in mode on, where there is nothing to recover from, and in mode
// observe whatever comes.
func TestOnAndObserve_KeepTheAnswer(t *testing.T) {
	t.Parallel()
	s := newRawServer(t)
	all := answersOnWire()
	all["interim answers"] = "HTTP/1.1 103 Early Hints\r\nLink: </b.css>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n" + okJSON
	everyMode(t, func(t *testing.T, mode rigOption) {
		r := startBefore(t, "http://"+s.Addr, mode)
		if r.mode == config.ModeOff {
			return // has a test of its own
		}
		for name, answer := range all {
			if r.mode == config.ModeOn && strings.Contains(answer, "Context size") {
				continue
			}
			for _, body := range askChat {
				_, direct, through := forwardsUntouched(t, s, r, chatHead([]byte(body)), []byte(body), answer)
				sameOnWire(t, name, direct, through)
			}
		}
	})
}

// In mode observe every body goes on as it came, and every answer as well.
func TestObserve_ForwardsTheSameBytes(t *testing.T) {
	t.Parallel()
	s := newRawServer(t)
	for _, pairing := range []config.Pairing{config.PairingRepair, config.PairingReject} {
		r := startBefore(t, "http://"+s.Addr, withConfig(func(c *config.Config) {
			c.Compaction.Mode, c.Pairing = config.ModeObserve, pairing
		}))
		same := func(name, head string, body []byte, answer string) {
			_, direct, through := forwardsUntouched(t, s, r, head, body, answer)
			sameOnWire(t, name+" in mode observe", direct, through)
		}
		for name, body := range oddBodies() {
			same(name, chatHead(body), body, okJSON)
		}
		for name, body := range illegalLists() {
			same(name, chatHead(body), body, okJSON)
		}
		gz := compressed([]byte(`{"messages":[{"role":"user","content":"hi"}]}`))
		same("gzip", chatHead(gz)+"Content-Encoding: gzip\r\n", gz, okJSON)
	}
	t.Run("captures", func(t *testing.T) {
		r := startBefore(t, "http://"+s.Addr, withConfig(func(c *config.Config) { c.Compaction.Mode = config.ModeObserve }))
		for _, c := range onePerBody(captures(t)) {
			_, direct, through := forwardsUntouched(t, s, r, c.head, c.body, c.answer)
			sameOnWire(t, c.name+" in mode observe", direct, through)
		}
	})
}
