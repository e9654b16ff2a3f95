package llamasim

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// session sends a conversation that grows to about 60,000 tokens, straight to
// the handler.
func session(t testing.TB, s *Server, turns int) (last Recorded, bytes int) {
	c := newConversation(1)
	for range turns {
		c.round(48000 / turns)
		body := c.body(`"stream":true,`)
		bytes += len(body)
		s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, chatPath, strings.NewReader(body)))
	}
	all := s.Requests()
	last = all[len(all)-1]
	if last.Status != http.StatusOK {
		t.Fatalf("status %d", last.Status)
	}
	return last, bytes
}

func TestLongSession(t *testing.T) {
	s := New(Options{Window: 128 << 10})
	last, _ := session(t, s, 16)
	all := s.Requests()
	if last.PromptTokens < 55000 {
		t.Errorf("only %d tokens", last.PromptTokens)
	}
	for i, r := range all[1:] {
		if r.CachedTokens < all[i].PromptTokens-1 {
			t.Errorf("turn %d: %d of %d tokens cached, the prompt before had %d", i+1, r.CachedTokens, r.PromptTokens, all[i].PromptTokens)
		}
	}
}

// One iteration is a whole session of 64 turns, about two million prompt tokens: 0.25 s here,
// half a second would be too much.
func BenchmarkSession(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_, n := session(b, New(Options{Window: 128 << 10}), 64)
		b.SetBytes(int64(n))
	}
}

func BenchmarkTokens(b *testing.B) {
	code := source(b)
	tokens := make([]uint64, 0, len(code))
	b.SetBytes(int64(len(code)))
	b.ReportAllocs()
	for b.Loop() {
		tokens = appendTokens(tokens[:0], code, true)
	}
}
