package proxy

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/compactproxy/compactproxy/internal/config"
)

// withKeys sets api_keys and upstream.api_key.
func withKeys(upstream string, clients ...string) rigOption {
	return withConfig(func(c *config.Config) {
		c.Upstream.APIKey = config.Secret(upstream)
		for _, k := range clients {
			c.APIKeys = append(c.APIKeys, config.Secret(k))
		}
	})
}

// presented is what the server is shown.
type presented struct{ Authorization, APIKey []string }

// showsKeys is a server that says what it was shown.
func showsKeys() (http.Handler, <-chan presented) {
	got := make(chan presented, 1)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		got <- presented{req.Header.Values("Authorization"), req.Header.Values("X-Api-Key")}
	}), got
}

// routes are requests of every kind.
var routes = []struct {
	name, method, path, body string
	header                   []string
}{
	{"chat", "POST", "/v1/chat/completions", plainChat, nil},
	{"chat without /v1", "POST", "/chat/completions", plainChat, nil},
	{"chat, streamed", "POST", "/v1/chat/completions", streamChat, nil},
	{"chat, mode observe", "POST", "/v1/chat/completions", plainChat, []string{headerMode, "observe"}},
	{"chat, mode off", "POST", "/v1/chat/completions", plainChat, []string{headerMode, "off"}},
	{"no chat on the chat route", "POST", "/v1/chat/completions", "nonsense", nil},
	{"the page", "GET", "/", "", nil},
	{"models", "GET", "/v1/models", "", nil},
	{"models, only the head", "HEAD", "/v1/models", "", nil},
	{"health", "GET", "/health", "", nil},
	{"tokenize", "POST", "/tokenize", "{}", nil},
	{"messages", "POST", "/v1/messages", "{}", nil},
	{"another method on the chat route", "DELETE", "/v1/chat/completions", "", nil},
	{"a custom method", "BREW", "/pot", "", nil},
	{"an odd path", "GET", "//v1/a%2Fb?;", "", nil},
	{"OPTIONS, no preflight", "OPTIONS", "/v1/models", "", nil},
	{"GET that claims to be a preflight", "GET", "/v1/models", "", []string{"Access-Control-Request-Method", "GET"}},
}

func TestAuth_EveryRouteWantsAKey(t *testing.T) {
	t.Parallel()
	for _, mode := range []config.Mode{config.ModeOn, config.ModeOff} {
		r := start(t, untouched(t), inMode(mode), withKeys("sk-upstream", "sk-one", "sk-two"))
		for _, c := range routes {
			for name, header := range map[string][]string{
				"none":                     nil,
				"wrong":                    {"Authorization", "Bearer sk-three"},
				"empty":                    {"Authorization", "Bearer "},
				"empty, other header":      {"X-Api-Key", ""},
				"the beginning of one":     {"Authorization", "Bearer sk-on"},
				"one and more":             {"Authorization", "Bearer sk-one1"},
				"in capitals":              {"Authorization", "Bearer SK-ONE"},
				"without a scheme":         {"Authorization", "sk-one"},
				"of another scheme":        {"Authorization", "Basic sk-one"},
				"the server's":             {"Authorization", "Bearer sk-upstream"},
				"in a header nobody reads": {"Api-Key", "sk-one"},
				"both":                     {"Authorization", "Bearer sk-one,sk-two"},
			} {
				res := roundTrip(t, request(t, c.method, r.URL+c.path, strings.NewReader(c.body), append(header, c.header...)...))
				b := readAll(t, res.Body)
				if res.StatusCode != http.StatusUnauthorized {
					t.Errorf("%s with a key that is %s: status %d", c.name, name, res.StatusCode)
					continue
				}
				if c.method == "HEAD" {
					continue
				}
				e := wantError(t, res, b, http.StatusUnauthorized, "invalid_api_key")
				if e.Type != "authentication_error" || strings.Contains(string(b), "sk-") {
					t.Errorf("%s with a key that is %s: %s", c.name, name, b)
				}
			}
		}
		_, _, res := handshake(t, r.URL, "/ws", "Authorization", "Bearer wrong")
		if res.StatusCode != http.StatusUnauthorized {
			t.Errorf("a websocket without a key: status %d", res.StatusCode)
		}
		if line := r.lastRequest(t, 1); line["status"] != int64(401) {
			t.Errorf("logged as %v", line)
		}
	}
}

// A key of the proxy's own is consumed: the server sees upstream.api_key, or
// nothing.
func TestAuth_KeysAreConsumed(t *testing.T) {
	t.Parallel()
	server, got := showsKeys()
	for _, mode := range []config.Mode{config.ModeOn, config.ModeOff} {
		for _, upstreamKey := range []string{"", "sk-upstream"} {
			r := start(t, server, inMode(mode), withKeys(upstreamKey, "sk-one", "sk-two"))
			var want presented
			if upstreamKey != "" {
				want.Authorization = []string{"Bearer " + upstreamKey}
			}
			for _, c := range routes {
				for name, header := range map[string][]string{
					"bearer":                     {"Authorization", "Bearer sk-one"},
					"bearer, the other key":      {"Authorization", "Bearer sk-two"},
					"bearer in lower case":       {"Authorization", "bearer sk-one"},
					"bearer and spaces":          {"Authorization", "Bearer   sk-one"},
					"the other header":           {"X-Api-Key", "sk-two"},
					"both headers":               {"Authorization", "Bearer sk-one", "X-Api-Key", "sk-one"},
					"both headers, one is wrong": {"Authorization", "Bearer no", "X-Api-Key", "sk-one"},
					"beside other credentials":   {"Authorization", "Basic dXNlcjpwYXNz", "X-Api-Key", "sk-one"},
				} {
					res := roundTrip(t, request(t, c.method, r.URL+c.path, strings.NewReader(c.body), append(header, c.header...)...))
					if res.StatusCode != http.StatusOK {
						t.Errorf("%s, %s: status %d", c.name, name, res.StatusCode)
						continue
					}
					if diff := cmp.Diff(want, await(t, "the request", got)); diff != "" {
						t.Errorf("%s, %s: the server is shown (-want +got):\n%s", c.name, name, diff)
					}
				}
			}
		}
	}
}

// Where the proxy has no keys, the client's credentials are the server's
// business; upstream.api_key fills in where there are none.
func TestAuth_CredentialsGoOn(t *testing.T) {
	t.Parallel()
	server, got := showsKeys()
	for _, upstreamKey := range []string{"", "sk-upstream"} {
		var fallback presented
		if upstreamKey != "" {
			fallback.Authorization = []string{"Bearer " + upstreamKey}
		}
		r := start(t, server, withKeys(upstreamKey))
		for _, c := range routes {
			for name, f := range map[string]struct {
				header []string
				want   presented
			}{
				"none":        {nil, fallback},
				"bearer":      {[]string{"Authorization", "Bearer mine"}, presented{Authorization: []string{"Bearer mine"}}},
				"odd bearer":  {[]string{"authorization", "bearer  mine, too"}, presented{Authorization: []string{"bearer  mine, too"}}},
				"basic":       {[]string{"Authorization", "Basic dXNlcjpwYXNz"}, presented{Authorization: []string{"Basic dXNlcjpwYXNz"}}},
				"other":       {[]string{"X-Api-Key", "mine"}, presented{APIKey: []string{"mine"}}},
				"both":        {[]string{"Authorization", "Bearer a", "X-Api-Key", "b"}, presented{[]string{"Bearer a"}, []string{"b"}}},
				"a dummy key": {[]string{"Authorization", "Bearer none"}, presented{Authorization: []string{"Bearer none"}}},
			} {
				roundTrip(t, request(t, c.method, r.URL+c.path, strings.NewReader(c.body), append(f.header, c.header...)...))
				if diff := cmp.Diff(f.want, await(t, "the request", got)); diff != "" {
					t.Errorf("%s, %s, upstream.api_key %q: the server is shown (-want +got):\n%s", c.name, name, upstreamKey, diff)
				}
			}
		}
	}
}

// A websocket is a request like any other.
func TestAuth_Websocket(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		keys    []string
		present string
		want    string
	}{
		{[]string{"sk-one"}, "Bearer sk-one", "welcome Bearer sk-upstream"},
		{nil, "Bearer mine", "welcome Bearer mine"},
		{nil, "", "welcome Bearer sk-upstream"},
	} {
		closed := make(chan error, 1)
		r := start(t, echoSocket(closed), withKeys("sk-upstream", c.keys...))
		var header []string
		if c.present != "" {
			header = []string{"Authorization", c.present}
		}
		conn, in, res := handshake(t, r.URL, "/ws", header...)
		if res.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("status %d", res.StatusCode)
		}
		if text, _, err := readFrame(in); err != nil || text != c.want {
			t.Errorf("got %q (%v), want %q", text, err, c.want)
		}
		conn.Close()
		await(t, "the server to see the client leave", closed)
	}
}

// A browser asks before it sends credentials: without the preflight no page
// could use the proxy at all. The answer is the server's.
func TestAuth_PreflightNeedsNoKey(t *testing.T) {
	t.Parallel()
	r := start(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method != http.MethodOptions {
			t.Errorf("the server was asked: %s", req.Method)
		}
		w.Header().Set("Access-Control-Allow-Origin", req.Header.Get("Origin"))
	}), withKeys("", "sk-one"))
	for _, path := range []string{"/v1/chat/completions", "/v1/models"} {
		res := roundTrip(t, request(t, "OPTIONS", r.URL+path, nil, "Origin", "http://ui", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization"))
		if res.StatusCode != http.StatusOK || res.Header.Get("Access-Control-Allow-Origin") != "http://ui" {
			t.Errorf("%s: status %d, %v", path, res.StatusCode, res.Header)
		}
	}
}

// The refusal is for a person: it names the setting, and no key.
func TestAuth_RefusalIsReadable(t *testing.T) {
	t.Parallel()
	r := start(t, untouched(t), withKeys("", "sk-one"))
	res, b := r.post(t, []byte(plainChat), "Authorization", "Bearer sk-wrong")
	e := wantError(t, res, b, http.StatusUnauthorized, "invalid_api_key")
	for _, want := range []string{"api_keys", "Authorization", "X-Api-Key"} {
		if !strings.Contains(e.Message, want) {
			t.Errorf("the message does not name %s: %q", want, e.Message)
		}
	}
	if line := r.lastRequest(t, 1); line["reason"] != "invalid_api_key" {
		t.Errorf("logged as %v", line)
	}
}

// A stranger cannot make the proxy read a body of any size.
func TestAuth_ComesBeforeTheBody(t *testing.T) {
	t.Parallel()
	r := start(t, untouched(t), withKeys("", "sk-one"))
	unread := &counter{Reader: bytes.NewReader(make([]byte, 1<<20))}
	req := request(t, "POST", r.URL+"/v1/chat/completions", unread, "Expect", "100-continue")
	req.ContentLength = 1 << 20
	res := roundTrip(t, req)
	if readAll(t, res.Body); res.StatusCode != http.StatusUnauthorized || unread.n != 0 {
		t.Errorf("status %d after %d bytes", res.StatusCode, unread.n)
	}
}

// Two users who send the same words have two conversations: nothing that one
// compacts is replayed to the other.
func TestAuth_UsersShareNoConversation(t *testing.T) {
	t.Parallel()
	server := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") })
	for name, r := range map[string]*rig{
		"keys of ours":         start(t, server, withKeys("", "sk-one", "sk-two")),
		"keys of the server's": start(t, server),
	} {
		seen := map[string]string{}
		for _, header := range [][2]string{{"Authorization", "Bearer sk-one"}, {"Authorization", "Bearer sk-two"}, {"X-Api-Key", "sk-two"}} {
			res, _ := r.post(t, []byte(plainChat), header[0], header[1])
			id := res.Header.Get(headerConversation)
			who := fmt.Sprint(header)
			if other, ok := seen[id]; ok || id == "" {
				t.Errorf("%s: %s is in conversation %q of %s", name, who, id, other)
			}
			seen[id] = who
			if again, _ := r.post(t, []byte(plainChat), header[0], header[1]); again.Header.Get(headerConversation) != id {
				t.Errorf("%s: %s is in another conversation the second time", name, who)
			}
		}
	}
}
