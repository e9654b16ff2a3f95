package llamasim

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

func TestGates_Order(t *testing.T) {
	const (
		loading  = `{"error":{"message":"Loading model","type":"unavailable_error","code":503}}`
		wrongKey = `{"error":{"message":"Invalid API Key","type":"authentication_error","code":401}}`
		notFound = `{"error":{"message":"File Not Found","type":"not_found_error","code":404}}`
	)
	s := New(Options{APIKey: "one,two", Loading: true})
	server := start(t, s)
	key := map[string]string{"Authorization": "Bearer two"}
	for _, path := range []string{"/health", "/v1/models", "/nothing", "/"} {
		if a := send(t, server, http.MethodGet, path, nil, ""); a.status != 503 || a.body != loading || a.headers["Connection"] != "close" {
			t.Errorf("loading, %s: %+v", path, a)
		}
	}
	if a := send(t, server, http.MethodOptions, chatPath, nil, ""); a.status != 200 || a.headers["Access-Control-Allow-Headers"] != "*" {
		t.Errorf("preflight: %+v", a)
	}
	s.SetLoading(false)
	for _, c := range []struct {
		method, path string
		key          map[string]string
		status       int
		body         string
	}{
		{"GET", "/health", nil, 200, `{"status":"ok"}`},
		{"GET", "/v1/health", nil, 200, `{"status":"ok"}`},
		{"GET", "/nothing", nil, 401, wrongKey},
		{"GET", "/nothing", key, 404, notFound},
		{"GET", chatPath, key, 404, notFound},
		{"POST", "/v1/models", key, 404, notFound},
		{"POST", chatPath, map[string]string{"X-Api-Key": "three"}, 401, wrongKey},
		{"POST", chatPath, map[string]string{"Authorization": "two"}, 401, wrongKey},
	} {
		if a := send(t, server, c.method, c.path, c.key, ""); a.status != c.status || a.body != c.body {
			t.Errorf("%s %s: %+v", c.method, c.path, a)
		}
	}
	if a := send(t, server, http.MethodGet, "/?x=1", nil, ""); a.status != 200 || !strings.HasPrefix(a.headers["Content-Type"], "text/html") {
		t.Errorf("page: %+v", a)
	}
	a := send(t, server, http.MethodGet, "/health", map[string]string{"Origin": "http://elsewhere"}, "")
	if a.headers["Access-Control-Allow-Origin"] != "http://elsewhere" {
		t.Errorf("origin: %+v", a)
	}
	if _, dated := a.headers["Date"]; dated {
		t.Error("there is a Date")
	}
	if a := send(t, server, http.MethodHead, "/health", nil, ""); a.status != 200 {
		t.Errorf("HEAD: %+v", a)
	}
}

// The answers of a real server that was still loading.
func TestGates_LoadingAsCaptured(t *testing.T) {
	file := filepath.Join(sharedCaptures(t), "loading.json")
	s := New(Options{APIKey: "secret1,secret2", NoUI: true})
	server := start(t, s)
	for _, raw := range elements(readFile(t, file)) {
		c := members(raw)
		if c.number("status", 0) == 200 {
			s.SetLoading(false)
		} else {
			s.SetLoading(true)
		}
		headers := map[string]string{}
		if c.flag("with_key", false) {
			headers["Authorization"] = "Bearer secret1"
		}
		a := send(t, server, http.MethodGet, c.text("path"), headers, "")
		if a.status != c.number("status", 0) || a.body != c.text("body") {
			t.Errorf("%s: %+v", c.text("path"), a)
		}
		for name, value := range texts(c["headers"]) {
			if a.headers[name] != value {
				t.Errorf("%s: %s is %q, want %q", c.text("path"), name, a.headers[name], value)
			}
		}
	}
}
