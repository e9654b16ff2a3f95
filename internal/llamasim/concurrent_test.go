package llamasim

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// Everything at once, for the race detector: growing conversations, streams
// that are left, pages, a pool that runs out now and then.
func TestConcurrent(t *testing.T) {
	s := New(Options{Slots: 3, CachedPrompts: 2, UnifiedPool: 6000, KeepRequests: 10, Finished: func(Recorded) {}})
	server := start(t, s)
	do := func(ctx context.Context, method, path, body string) {
		request, err := http.NewRequestWithContext(ctx, method, server.URL+path, strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return
		}
		response, err := server.Client().Do(request)
		if err != nil {
			return // left
		}
		defer response.Body.Close()
		_, _ = io.Copy(io.Discard, response.Body)
	}
	var all sync.WaitGroup
	for worker := range 6 {
		all.Go(func() {
			c := newConversation(uint64(worker % 4))
			for i := range 12 {
				c.round(100)
				more := []string{"", `"stream":true,`, `"stream":true,"return_progress":true,`}[i%3]
				do(t.Context(), http.MethodPost, chatPath, c.body(more))
				if i%4 == worker%4 {
					ctx, cancel := context.WithCancel(t.Context())
					go cancel()
					do(ctx, http.MethodPost, chatPath, c.body(`"stream":true,`))
					cancel()
				}
			}
		})
	}
	all.Go(func() {
		for range 30 {
			for _, path := range []string{"/slots", "/metrics", "/props", "/v1/models"} {
				do(t.Context(), http.MethodGet, path, "")
			}
			s.Requests()
			s.SetWindow(5000)
			s.SetLoading(false)
			s.ForgetCache()
		}
	})
	all.Wait()
	if running, waiting := s.slots.counts(); running != 0 || waiting != 0 || s.pool.used != 0 || len(s.pool.running) != 0 {
		t.Errorf("%d running, %d waiting, %d tokens of the pool in use", running, waiting, s.pool.used)
	}
}
