package llamasim

import (
	"net/http"
	"os"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

func readFile(t testing.TB, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func isValid(text []byte) bool { return jsontext.Value(text).IsValid(lenient) }

func TestRequests_AsReceived(t *testing.T) {
	s := New(Options{})
	server := start(t, s)
	body := "{ \"messages\" : [ {\"role\":\"user\",\"content\":\"\\u00e9\"} ],\r\n \"x\": 1.0 }\n"
	send(t, server, http.MethodPost, chatPath+"?a=b%20c", map[string]string{"X-Trace": "7"}, body)
	send(t, server, http.MethodPost, chatPath, nil, "{")
	send(t, server, http.MethodPost, "/v1/chat/completions/input_tokens", nil, body)
	got := s.Requests()
	if len(got) != 3 {
		t.Fatalf("%d requests", len(got))
	}
	r := got[0]
	if r.Method != "POST" || r.RequestURI != chatPath+"?a=b%20c" || r.Host != "sim" || r.Header.Get("X-Trace") != "7" ||
		string(r.Body) != body || r.Status != 200 || r.PromptTokens != CountTokens(r.Prompt) || r.PromptTokens == 0 || r.Predicted == 0 {
		t.Errorf("%+v", r)
	}
	if got[1].Status != 400 || got[1].PromptTokens != 0 {
		t.Errorf("%+v", got[1])
	}
	if got[2].PromptTokens != r.PromptTokens {
		t.Errorf("counted %d, was %d", got[2].PromptTokens, r.PromptTokens)
	}
	s.ForgetRequests()
	if len(s.Requests()) != 0 {
		t.Error("not forgotten")
	}
}

func TestRequests_Bounded(t *testing.T) {
	for keep, want := range map[int]int{0: 5, 2: 2, 9: 5, -1: 0} {
		s := New(Options{KeepRequests: keep})
		server := start(t, s)
		for range 5 {
			send(t, server, http.MethodGet, "/health", nil, "")
		}
		if n := len(s.Requests()); n != want {
			t.Errorf("keep %d: %d kept, want %d", keep, n, want)
		}
	}
}
