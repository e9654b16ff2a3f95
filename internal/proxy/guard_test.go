package proxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/compactproxy/compactproxy/internal/conversation"
	"github.com/compactproxy/compactproxy/internal/store"
)

// shelf is an archive that says what it was given. It counts who asks.
type shelf struct {
	err   error
	asked atomic.Int32
	hits  []store.Hit
}

func (s *shelf) Conversations(int) ([]conversation.State, error) {
	s.asked.Add(1)
	return nil, s.err
}

func (s *shelf) Conversation(id string) (conversation.State, []store.Compaction, []conversation.Turn, error) {
	s.asked.Add(1)
	if s.err == nil && id != "known" {
		return conversation.State{}, nil, nil, fmt.Errorf("read: %w", store.ErrNotFound)
	}
	return conversation.State{ID: id}, nil, nil, s.err
}

func (s *shelf) Compaction(id int64) (store.CompactionDetail, error) {
	s.asked.Add(1)
	if s.err == nil {
		return store.CompactionDetail{}, store.ErrNotFound
	}
	return store.CompactionDetail{}, s.err
}

func (s *shelf) Recall(store.Query) ([]store.Hit, error) {
	s.asked.Add(1)
	return s.hits, s.err
}

func (s *shelf) Text(string) (string, error) {
	s.asked.Add(1)
	if s.err == nil {
		return "", store.ErrNotFound
	}
	return "", s.err
}

// desk is an admin handler over a shelf.
type desk struct {
	http.Handler
	shelf *shelf
	logs  *observer.ObservedLogs
}

func newDesk(t testing.TB, change func(*AdminOptions)) *desk {
	t.Helper()
	core, logs := observer.New(zap.DebugLevel)
	d := &desk{shelf: &shelf{}, logs: logs}
	o := AdminOptions{
		Metrics: prometheus.NewRegistry(),
		Ready:   func(*http.Request) Readiness { return Readiness{Ready: true, Server: "ready", Store: "open"} },
		Index:   newIndex(t, conversation.Options{Conversations: 10, Bytes: 1 << 20}),
		Archive: d.shelf, Address: "127.0.0.1:8091", Log: zap.New(core),
	}
	if change != nil {
		change(&o)
	}
	d.Handler = Admin(o)
	return d
}

// ask sends a request straight to the handler, so that it may have any header.
func (d *desk) ask(t testing.TB, method, host, target string, header ...string) (*http.Response, []byte) {
	t.Helper()
	req := httptest.NewRequest(method, "/", nil)
	u, err := url.ParseRequestURI(target)
	if err != nil {
		t.Fatal(err)
	}
	req.URL, req.RequestURI, req.Host = u, target, host
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	d.ServeHTTP(w, req)
	res := w.Result()
	return res, readAll(t, res.Body)
}

// guarded are addresses that show transcripts, or would if there was something
// there.
var guarded = []struct {
	method, target string
	status         int // for those who may ask
}{
	{"GET", "/api/v1/conversations", 200},
	{"GET", "/api/v1/conversations/known", 200},
	{"DELETE", "/api/v1/conversations/known", 204},
	{"GET", "/api/v1/compactions/1", 404},
	{"GET", "/api/v1/recall?q=x", 200},
	{"GET", "/api/v1/texts/" + strings.Repeat("0", 64), 404},
	{"GET", "/api/v1/nothing", 404},
	{"GET", "/api/v1/", 404},
	{"GET", "/api/v1", 404},
	{"POST", "/api/v1/conversations", 405},
	{"OPTIONS", "/api/v1/conversations", 405},
}

// openTargets are for everyone.
var openTargets = []string{"/metrics", "/livez", "/readyz"}

// everywhere asks for everything under one host and with one header, and checks
// that the guard says the same everywhere: code is what it refuses with, "" for a
// request that passes.
func (d *desk) everywhere(t *testing.T, host string, header []string, status int, code string) {
	t.Helper()
	for _, g := range guarded {
		before := d.shelf.asked.Load()
		res, body := d.ask(t, g.method, host, g.target, header...)
		if name := res.Header.Get("Access-Control-Allow-Origin"); name != "" {
			t.Errorf("%s %s: other sites may read it: %q", g.method, g.target, name)
		}
		if code == "" {
			if res.StatusCode != g.status {
				t.Errorf("%s %s: status %d, want %d: %s", g.method, g.target, res.StatusCode, g.status, body)
			}
			continue
		}
		wantError(t, res, body, status, code)
		if d.shelf.asked.Load() != before {
			t.Errorf("%s %s: refused, and the archive was asked", g.method, g.target)
		}
	}
	for _, target := range openTargets {
		if res, body := d.ask(t, "GET", host, target, header...); res.StatusCode != http.StatusOK {
			t.Errorf("%s: status %d: %s", target, res.StatusCode, body)
		}
	}
}

// Hosts for which no page of another site can stand, and those for which one can:
// DNS rebinding gives a name of the attacker's this machine's number.
func TestGuard_Host(t *testing.T) {
	d := newDesk(t, nil)
	for _, host := range []string{
		"127.0.0.1:8091", "127.0.0.1", "127.8.9.10:8091", "[::1]:8091", "[::1]", "0.0.0.0:8091", "[::]:8091",
		"localhost:8091", "localhost", "LOCALHOST:8091", "LocalHost", "localhost.", "localhost.:8091", "LOCALHOST.:8091",
		"studio.localhost:8091", "Studio.LocalHost.",
		"192.168.1.5:8091", "192.168.1.5", "10.0.0.1:80", "[fe80::1]:8091", "[2001:DB8::1]:8091", "[::ffff:127.0.0.1]:8091", "127.0.0.1.:8091",
	} {
		t.Run("passes "+host, func(t *testing.T) { d.everywhere(t, host, nil, 0, "") })
	}
	for _, host := range []string{
		"", ":8091", ".", ".:8091", "[]", "[]:8091",
		"evil.example", "evil.example:8091", "EVIL.EXAMPLE.:8091",
		"127.0.0.1.evil.example", "127.0.0.1.evil.example:8091", "localhost.evil.example", "localhost.evil.example:8091",
		"evil-localhost", "evillocalhost:8091", "localhost1:8091", "localhost..:8091", "1.evil.localhost.example",
		"127.0.0.1.nip.io:8091", "127-0-0-1.example:8091", "127.0.0.1:8091.evil.example", "evil.example#127.0.0.1", "127.0.0.1@evil.example",
		"evil.example:127.0.0.1", "[::1].evil.example:8091", "[::1]evil.example:8091", "localhost:8091:evil.example",
		"2130706433:8091", "0x7f.1:8091", "0177.0.0.1:8091", "127.1:8091", // numbers to some resolvers, names to others
		"llama:8091", "studio.local:8091", "local", "ｌocalhost:8091", "localhost\x00.evil.example", "localhost /evil.example",
	} {
		t.Run("refuses "+host, func(t *testing.T) { d.everywhere(t, host, nil, http.StatusForbidden, "foreign_host") })
	}
}

// The name that the user gave the admin address is known as well, and nothing like
// it.
func TestGuard_ConfiguredName(t *testing.T) {
	d := newDesk(t, func(o *AdminOptions) { o.Address = "Studio.Local:8091" })
	for _, host := range []string{"studio.local:8091", "STUDIO.LOCAL", "studio.local.:8091", "studio.local:80", "127.0.0.1:8091"} {
		d.everywhere(t, host, nil, 0, "")
	}
	for _, host := range []string{"studio.local.evil.example:8091", "evil.studio.local:8091", "studio", ""} {
		d.everywhere(t, host, nil, http.StatusForbidden, "foreign_host")
	}
	// One that is a number, or everything, is no name of anything.
	for _, address := range []string{":8091", "0.0.0.0:8091", "[::]:8091", "127.0.0.1:8091", ""} {
		d := newDesk(t, func(o *AdminOptions) { o.Address = address })
		d.everywhere(t, "", nil, http.StatusForbidden, "foreign_host")
		d.everywhere(t, "evil.example", nil, http.StatusForbidden, "foreign_host")
	}
}

func TestGuard_OriginAndFetchSite(t *testing.T) {
	const here = "127.0.0.1:8091"
	for _, c := range []struct {
		name, host string
		header     []string
		code       string
	}{
		{"neither, as curl sends it", here, nil, ""},
		{"the same origin", here, []string{"Origin", "http://127.0.0.1:8091", "Sec-Fetch-Site", "same-origin"}, ""},
		{"the same origin behind TLS", here, []string{"Origin", "https://127.0.0.1:8091"}, ""},
		{"the same origin, in capitals", "LocalHost:8091", []string{"Origin", "HTTP://LOCALHOST:8091"}, ""},
		{"the same origin, IPv6", "[::1]:8091", []string{"Origin", "http://[::1]:8091"}, ""},
		{"typed into the address bar", here, []string{"Sec-Fetch-Site", "none"}, ""},
		{"an empty origin", here, []string{"Origin", ""}, ""},

		{"another site", here, []string{"Origin", "https://evil.example"}, "foreign_origin"},
		{"no origin to speak of", here, []string{"Origin", "null"}, "foreign_origin"},
		{"a file", here, []string{"Origin", "file://"}, "foreign_origin"},
		{"another port", here, []string{"Origin", "http://127.0.0.1:8092"}, "foreign_origin"},
		{"no port", here, []string{"Origin", "http://127.0.0.1"}, "foreign_origin"},
		{"another name for this machine", here, []string{"Origin", "http://localhost:8091"}, "foreign_origin"},
		{"a subdomain", "localhost:8091", []string{"Origin", "http://evil.localhost:8091"}, "foreign_origin"},
		{"ours as its beginning", here, []string{"Origin", "http://127.0.0.1:8091.evil.example"}, "foreign_origin"},
		{"ours as a user name", here, []string{"Origin", "http://127.0.0.1:8091@evil.example"}, "foreign_origin"},
		{"ours as a fragment", here, []string{"Origin", "http://evil.example#127.0.0.1:8091"}, "foreign_origin"},
		{"ours as a path", here, []string{"Origin", "http://evil.example/127.0.0.1:8091"}, "foreign_origin"},
		{"no scheme", here, []string{"Origin", "127.0.0.1:8091"}, "foreign_origin"},
		{"no scheme but a host", here, []string{"Origin", "//127.0.0.1:8091"}, "foreign_origin"},
		{"an extension", here, []string{"Origin", "chrome-extension://127.0.0.1:8091"}, "foreign_origin"},
		{"two origins", here, []string{"Origin", "http://evil.example http://127.0.0.1:8091"}, "foreign_origin"},
		{"two headers", here, []string{"Origin", "http://evil.example", "Origin", "http://127.0.0.1:8091"}, "foreign_origin"},
		{"an image on another site", here, []string{"Sec-Fetch-Site", "cross-site"}, "foreign_origin"},
		{"an image on another port", here, []string{"Sec-Fetch-Site", "same-site"}, "foreign_origin"},
		{"a word of tomorrow's", here, []string{"Sec-Fetch-Site", "cross-world"}, "foreign_origin"},
		{"in capitals", here, []string{"Sec-Fetch-Site", "Cross-Site"}, "foreign_origin"},
		{"both, and they disagree", here, []string{"Origin", "http://127.0.0.1:8091", "Sec-Fetch-Site", "cross-site"}, "foreign_origin"},
		{"both, and they disagree again", here, []string{"Origin", "http://evil.example", "Sec-Fetch-Site", "same-origin"}, "foreign_origin"},

		{"DNS rebinding", "evil.example:8091", []string{"Origin", "http://evil.example:8091", "Sec-Fetch-Site", "same-origin"}, "foreign_host"},
		{"DNS rebinding, an image", "evil.example:8091", []string{"Sec-Fetch-Site", "same-origin"}, "foreign_host"},
		{"an origin that is no host", "", []string{"Origin", "http://"}, "foreign_host"},
		{"line breaks", here, []string{"Origin", "http://127.0.0.1:8091\r\nX-Evil: 1"}, "foreign_origin"},
		{"zero bytes", here, []string{"Origin", "http://127.0.0.1:8091\x00"}, "foreign_origin"},
		{"very long", here, []string{"Origin", "http://" + strings.Repeat("127.0.0.1:8091", 10_000)}, "foreign_origin"},
		{"not UTF-8", here, []string{"Origin", "http://\xff\xfe"}, "foreign_origin"},
	} {
		t.Run(c.name, func(t *testing.T) {
			newDesk(t, nil).everywhere(t, c.host, c.header, http.StatusForbidden, c.code)
		})
	}
}

func TestGuard_Token(t *testing.T) {
	const secret = "s3cr3t-token"
	d := newDesk(t, func(o *AdminOptions) { o.Token = secret })
	hosts := []string{"127.0.0.1:8091", "studio.example:8091", "evil.example", ""}
	for _, c := range []struct {
		name   string
		header []string
	}{
		{"none", nil},
		{"wrong", []string{"Authorization", "Bearer another"}},
		{"empty", []string{"Authorization", ""}},
		{"the scheme alone", []string{"Authorization", "Bearer"}},
		{"a space behind it", []string{"Authorization", "Bearer "}},
		{"the beginning of it", []string{"Authorization", "Bearer " + secret[:len(secret)-1]}},
		{"it and more", []string{"Authorization", "Bearer " + secret + "1"}},
		{"in capitals", []string{"Authorization", "Bearer " + strings.ToUpper(secret)}},
		{"without a scheme", []string{"Authorization", secret}},
		{"of another scheme", []string{"Authorization", "Basic " + secret}},
		{"twice", []string{"Authorization", "Bearer " + secret + "," + secret}},
		{"behind a zero byte", []string{"Authorization", "Bearer \x00" + secret}},
		{"as agents present keys", []string{"X-Api-Key", secret}},
		{"as a cookie", []string{"Cookie", "token=" + secret}},
		{"behind a line break", []string{"Authorization", "Bearer x\r\nAuthorization: Bearer " + secret}},
		{"very long", []string{"Authorization", "Bearer " + strings.Repeat(secret, 10_000)}},
		{"its hash", []string{"Authorization", "Bearer 7c2b5fd1a0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, host := range hosts {
				d.everywhere(t, host, c.header, http.StatusUnauthorized, "invalid_api_key")
			}
		})
	}
	for _, value := range []string{"Bearer " + secret, "bearer " + secret, "BEARER  " + secret + " "} {
		for _, host := range hosts {
			d.everywhere(t, host, []string{"Authorization", value}, 0, "")
		}
	}
	good := []string{"Authorization", "Bearer " + secret}
	d.everywhere(t, "studio.example:8091", append([]string{"Origin", "http://studio.example:8091", "Sec-Fetch-Site", "same-origin"}, good...), 0, "")
	// A browser that remembers it must not lend it to other sites.
	for _, foreign := range [][]string{{"Origin", "http://evil.example"}, {"Origin", "null"}, {"Sec-Fetch-Site", "cross-site"}} {
		d.everywhere(t, "127.0.0.1:8091", append(foreign, good...), http.StatusForbidden, "foreign_origin")
	}
	if res, _ := d.ask(t, "GET", hosts[0], "/api/v1/conversations?token="+secret); res.StatusCode != http.StatusUnauthorized {
		t.Errorf("in the address, where logs would have it: status %d", res.StatusCode)
	}
	for _, e := range d.logs.All() {
		if strings.Contains(fmt.Sprint(e.Message, e.ContextMap()), secret) {
			t.Errorf("the log has the token: %v", e)
		}
	}
	// Without one there is none to be guessed.
	free := newDesk(t, nil)
	free.everywhere(t, hosts[0], []string{"Authorization", "Bearer whatever"}, 0, "")
	free.everywhere(t, "evil.example", []string{"Authorization", "Bearer "}, http.StatusForbidden, "foreign_host")
}

// A refusal says nothing of what was sent, and nothing of what is kept.
func TestGuard_RefusalsQuoteNothing(t *testing.T) {
	d := newDesk(t, func(o *AdminOptions) { o.Token = canary })
	free := newDesk(t, nil)
	for _, c := range []struct {
		*desk
		host   string
		header []string
	}{
		{d, canary, nil},
		{d, "127.0.0.1", []string{"Authorization", "Bearer " + canary + canary}},
		{free, canary, nil},
		{free, "127.0.0.1", []string{"Origin", "http://" + canary + "\r\nX-" + canary + ": 1"}},
		{free, "127.0.0.1", []string{"Sec-Fetch-Site", "cross-site", "X-" + canary, canary}},
	} {
		res, body := c.ask(t, "GET", c.host, "/api/v1/conversations/"+canary, c.header...)
		var head strings.Builder
		_ = res.Header.Write(&head)
		if res.StatusCode < 400 || strings.Contains(head.String()+string(body), canary) {
			t.Errorf("host %q, %q: status %d\n%s%s", c.host, c.header, res.StatusCode, head.String(), body)
		}
	}
}

// Answers that show transcripts stay out of caches and frames, and are what they
// say they are.
func TestGuard_HeadersOfAnswers(t *testing.T) {
	for target, kind := range map[string]string{
		"/api/v1/conversations": "application/json; charset=utf-8", "/api/v1/conversations/no": "application/json; charset=utf-8",
	} {
		res, _ := newDesk(t, nil).ask(t, "GET", "localhost", target)
		got := map[string]string{}
		for _, name := range []string{"Cache-Control", "X-Content-Type-Options", "X-Frame-Options", "Referrer-Policy", "Content-Type"} {
			got[name] = res.Header.Get(name)
		}
		want := map[string]string{"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer", "Content-Type": kind}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -want +got\n%s", target, diff)
		}
	}
}

// Ids are looked up as they are: nothing in them leads elsewhere.
func TestGuard_OddPaths(t *testing.T) {
	d := newDesk(t, nil)
	for _, id := range []string{
		"..", "%2e%2e", "..%2f..%2fmetrics", "%2e%2e%2fknown", "known%2f", "known%00", "%00", "known%0d%0aX-Evil:%201", ".", "%2F", "%5c..%5c",
		"known'--", "known%20", "KNOWN", "%ff%fe", "*", "%7Bid%7D", "{id}", strings.Repeat("a", 100_000), strings.Repeat("%2e%2e%2f", 1000), "x;y", "known;a=b",
	} {
		for _, collection := range []string{"conversations", "compactions", "texts"} {
			target := "/api/v1/" + collection + "/" + id
			res, body := d.ask(t, "GET", "localhost", target)
			wantError(t, res, body, http.StatusNotFound, "not_found")
			if len(body) > 1000 {
				t.Errorf("%.100s: the answer has %d bytes", target, len(body))
			}
		}
		res, body := d.ask(t, "DELETE", "localhost", "/api/v1/conversations/"+id)
		wantError(t, res, body, http.StatusNotFound, "not_found")
	}
	for _, target := range []string{
		"/api/v1/conversations/../../../metrics", "/api/v1/conversations//known", "/api/v1/conversations/known/", "/api/v1/conversations/known/turns",
		"/api/v1//conversations", "/api/v1/recall/", "/api/v1/../v1/conversations", "/api/v1/conversations/known/../known",
	} {
		res, body := d.ask(t, "GET", "localhost", target)
		wantError(t, res, body, http.StatusNotFound, "not_found")
	}
	// A path cannot get around the guard.
	for _, target := range []string{
		"/livez/../api/v1/conversations", "//api/v1/conversations", "/API/v1/conversations", "/api%2fv1/conversations", "/api/v1%2fconversations",
		"/metrics/../api/v1/conversations", "/%61pi/v1/conversations", "/api/v1/conversations%3F", "/./api/v1/conversations",
	} {
		before := d.shelf.asked.Load()
		if res, body := d.ask(t, "GET", "evil.example", target); res.StatusCode < 400 || d.shelf.asked.Load() != before {
			t.Errorf("%s: status %d: %s", target, res.StatusCode, body)
		}
	}
}

// Other methods on a route that only shows change nothing, and say so in our shape.
func TestGuard_Methods(t *testing.T) {
	d := newDesk(t, nil)
	for _, target := range []string{"/api/v1/conversations", "/api/v1/conversations/known", "/api/v1/compactions/1", "/api/v1/recall?q=x", "/api/v1/texts/" + strings.Repeat("0", 64)} {
		for _, method := range []string{"POST", "PUT", "PATCH", "OPTIONS", "TRACE", "DELETE"} {
			if method == "DELETE" && strings.HasSuffix(target, "/known") {
				continue
			}
			before := d.shelf.asked.Load()
			res, body := d.ask(t, method, "localhost", target, "Access-Control-Request-Method", "GET", "X-HTTP-Method-Override", "GET")
			wantError(t, res, body, http.StatusMethodNotAllowed, "method_not_allowed")
			if d.shelf.asked.Load() != before {
				t.Errorf("%s %s asks the archive", method, target)
			}
			if res.Header.Get("Allow") == "" {
				t.Errorf("%s %s: no Allow", method, target)
			}
		}
		res, _ := d.ask(t, "GET", "localhost", target, "X-HTTP-Method-Override", "DELETE")
		if res.StatusCode == http.StatusNoContent {
			t.Errorf("%s: GET forgets", target)
		}
	}
	// A load balancer's HEAD is a GET without a body (RFC 9110, 9.1).
	for _, target := range openTargets {
		if res, _ := d.ask(t, "HEAD", "service:8091", target); res.StatusCode != http.StatusOK {
			t.Errorf("HEAD %s: status %d", target, res.StatusCode)
		}
	}
}

// Where there is no store the API says so, behind the same guard.
func TestGuard_NoArchive(t *testing.T) {
	d := newDesk(t, func(o *AdminOptions) { o.Archive = nil })
	for _, g := range guarded {
		res, body := d.ask(t, g.method, "localhost:8091", g.target)
		if e := wantError(t, res, body, http.StatusNotFound, "not_found"); !strings.Contains(e.Message, "store") {
			t.Errorf("%s: %s", g.target, e.Message)
		}
		res, body = d.ask(t, g.method, "evil.example:8091", g.target)
		wantError(t, res, body, http.StatusForbidden, "foreign_host")
	}
}

// Health is told by status and body.
func TestAdmin_Ready(t *testing.T) {
	state := Readiness{Ready: false, Server: "down", Store: "degraded: the disk is full", Draining: true}
	d := newDesk(t, func(o *AdminOptions) { o.Ready = func(*http.Request) Readiness { return state } })
	res, body := d.ask(t, "GET", "prometheus.example", "/readyz")
	if want := `{"ready":false,"server":"down","store":"degraded: the disk is full","draining":true}` + "\n"; res.StatusCode != http.StatusServiceUnavailable || string(body) != want {
		t.Errorf("status %d: %s", res.StatusCode, body)
	}
	state.Ready = true
	if res, _ := d.ask(t, "GET", "prometheus.example", "/readyz"); res.StatusCode != http.StatusOK {
		t.Errorf("ready: status %d", res.StatusCode)
	}
}

// Over a connection, net/http's own checks come first; what comes through them
// meets the guard.
func TestGuard_OnTheWire(t *testing.T) {
	d := newDesk(t, nil)
	server := httptest.NewUnstartedServer(d)
	server.Config = NewServer(d, zap.NewNop())
	server.Start()
	defer server.Close()
	here := server.Listener.Addr().String()
	for _, c := range []struct {
		name, request string
		status        int
	}{
		{"as it should be", "GET /api/v1/conversations HTTP/1.1\r\nHost: " + here + "\r\n", 200},
		{"two hosts", "GET /api/v1/conversations HTTP/1.1\r\nHost: " + here + "\r\nHost: evil.example\r\n", 400},
		{"no host", "GET /api/v1/conversations HTTP/1.1\r\n", 400},
		{"no host, before there were any", "GET /api/v1/conversations HTTP/1.0\r\n", 403},
		{"an empty host", "GET /api/v1/conversations HTTP/1.1\r\nHost:\r\n", 403},
		{"a foreign host", "GET /api/v1/conversations HTTP/1.1\r\nHost: evil.example\r\n", 403},
		{"a foreign host in the request line", "GET http://evil.example/api/v1/conversations HTTP/1.1\r\nHost: " + here + "\r\n", 403},
		{"ours in the request line, which counts", "GET http://" + here + "/api/v1/conversations HTTP/1.1\r\nHost: evil.example\r\n", 200},
		{"another host behind the proxy's header", "GET /api/v1/conversations HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-Host: " + here + "\r\nForwarded: host=" + here + "\r\n", 403},
		{"a folded origin", "GET /api/v1/conversations HTTP/1.1\r\nHost: " + here + "\r\nOrigin: http://" + here + "\r\n http://evil.example\r\n", 403},
		{"a header that is none", "GET /api/v1/conversations HTTP/1.1\r\nHost: " + here + "\r\nOrigin : http://evil.example\r\n", 400},
		{"metrics for a service name", "GET /metrics HTTP/1.1\r\nHost: compactproxy.monitoring.svc:8091\r\n", 200},
		{"OPTIONS *", "OPTIONS * HTTP/1.1\r\nHost: " + here + "\r\n", 404},
		{"CONNECT", "CONNECT /api/v1/conversations HTTP/1.1\r\nHost: evil.example\r\n", 403},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, err := net.Dial("tcp", here)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, c.request+"Connection: close\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			method, _, _ := strings.Cut(c.request, " ")
			res, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
			if err != nil {
				t.Fatal(err)
			}
			body := readAll(t, res.Body)
			if res.StatusCode != c.status {
				t.Errorf("status %d, want %d: %s", res.StatusCode, c.status, body)
			}
		})
	}
}

// A store that fails says so to the client and why to the log only.
func TestAPI_StoreThatFails(t *testing.T) {
	d := newDesk(t, nil)
	d.shelf.err = errors.New("disk image of " + canary + " is malformed")
	for _, g := range guarded {
		if g.status == http.StatusMethodNotAllowed || strings.HasSuffix(g.target, "/nothing") || strings.TrimSuffix(g.target, "/") == "/api/v1" {
			continue
		}
		res, body := d.ask(t, g.method, "localhost", g.target)
		if e := wantError(t, res, body, http.StatusInternalServerError, "store_failed"); e.Type != serverError {
			t.Errorf("%s: type %q", g.target, e.Type)
		}
		if strings.Contains(string(body), canary) {
			t.Errorf("%s: the answer has the error: %s", g.target, body)
		}
	}
	if d.logs.FilterLevelExact(zap.WarnLevel).Len() == 0 {
		t.Error("the log does not say why")
	}
	for _, target := range openTargets {
		if res, _ := d.ask(t, "GET", "localhost", target); res.StatusCode != http.StatusOK {
			t.Errorf("%s: status %d", target, res.StatusCode)
		}
	}
}
