package proxy

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/compactproxy/compactproxy/internal/config"
)

// In mode observe the client's Accept-Encoding goes on, and what comes back
// compressed is passed on as it comes, not held until an event can be seen.
func TestObserve_CompressedStreamIsNotHeld(t *testing.T) {
	var first bytes.Buffer
	z := gzip.NewWriter(&first)
	_, _ = io.WriteString(z, "data: {}\n\n")
	_ = z.Flush()
	seen := make(chan struct{})
	r := start(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(first.Bytes())
		_ = http.NewResponseController(w).Flush()
		select {
		case <-seen:
		case <-req.Context().Done():
		}
	}), withConfig(func(c *config.Config) { c.Compaction.Mode = config.ModeObserve }))
	res := roundTrip(t, request(t, "POST", r.URL+"/v1/chat/completions", strings.NewReader(`{"messages":[],"stream":true}`), "Accept-Encoding", "gzip"))
	got := make([]byte, first.Len())
	if _, err := io.ReadFull(res.Body, got); err != nil || !bytes.Equal(got, first.Bytes()) {
		t.Errorf("got %x, %v", got, err)
	}
	close(seen)
	readAll(t, res.Body)
}

func TestAnswer_OddReports(t *testing.T) {
	for _, tc := range []struct {
		name, payload              string
		prompt, cached, completion int
	}{
		{"cached counted apart", `{"usage":{"prompt_tokens":12,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":1000}}}`, 1012, 1000, 3},
		{"negative", `{"usage":{"prompt_tokens":12,"completion_tokens":-1,"prompt_tokens_details":{"cached_tokens":-5}}}`, 12, 0, 0},
		{"negative timings", `{"timings":{"cache_n":-3,"prompt_n":1,"predicted_n":-1}}`, 0, 0, 0},
		{"created with a fraction, a numeric id", `{"id":5,"created":1700000000.5,"usage":{"prompt_tokens":12,"completion_tokens":3}}`, 12, 0, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var a answer
			if _, ok := a.read([]byte(tc.payload)); !ok || !a.Known || a.Prompt != tc.prompt || a.Cached != tc.cached || a.Completion != tc.completion {
				t.Errorf("%v %+v", ok, a)
			}
		})
	}
}
