package proxy

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/compactproxy/compactproxy/internal/llamasim"
	"github.com/compactproxy/compactproxy/internal/metrics"
	"github.com/compactproxy/compactproxy/internal/recording"
)

// TestIdenticalRequests_ShareOneCompaction: both are refused before either has
// been compacted; one compaction serves both, with the same bytes.
func TestIdenticalRequests_ShareOneCompaction(t *testing.T) {
	session, err := recording.Load("depot")
	if err != nil {
		t.Fatal(err)
	}
	body := session.Request(session.Turns()-1, recording.Options{})
	var both, done sync.WaitGroup
	both.Add(2)
	var mu sync.Mutex
	seen := 0
	var retried [][]byte
	r := start(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		sent, _ := io.ReadAll(req.Body)
		mu.Lock()
		seen++
		first := seen <= 2
		if !first {
			retried = append(retried, sent)
		}
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		if first {
			both.Done()
			both.Wait()
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error":{"code":400,"message":"request (30000 tokens) exceeds the available context size (16384 tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":30000,"n_ctx":16384}}`)
			return
		}
		fmt.Fprint(w, `{"choices":[{"finish_reason":"stop","index":0,"message":{"role":"assistant","content":"ok"}}]}`)
	}))
	for range 2 {
		done.Go(func() {
			if res, answer := r.post(t, body); res.StatusCode != http.StatusOK {
				t.Errorf("status %d: %s", res.StatusCode, answer)
			}
		})
	}
	done.Wait()
	if len(retried) != 2 || !bytes.Equal(retried[0], retried[1]) {
		t.Fatalf("%d requests were sent again, not two alike", len(retried))
	}
	installed := 0.0
	for _, kind := range []string{"passes", "clip"} {
		installed += testutil.ToFloat64(r.metrics.Compactions.WithLabelValues("recovery", kind, metrics.ResultInstalled))
	}
	if installed != 1 {
		t.Errorf("%v compactions", installed)
	}
}

// TestSharedCompaction_ThatDoesNotSuffice: a longer request of the conversation
// was refused meanwhile; the checkpoint of the shorter one is not enough for it.
func TestSharedCompaction_ThatDoesNotSuffice(t *testing.T) {
	session, err := recording.Load("ledger")
	if err != nil {
		t.Fatal(err)
	}
	const window = 6000
	sim := llamasim.New(llamasim.Options{Window: window, Slots: 4})
	size := func(turn int) int {
		n, err := sim.PromptTokens(session.Request(turn, recording.Options{}))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	short := 0
	for size(short) < window {
		short++
	}
	long := short
	for size(long) < 5*window {
		long++
	}
	// Refusals are held back until both requests have had theirs.
	var both sync.WaitGroup
	both.Add(2)
	var mu sync.Mutex
	held := 0
	shortDone := make(chan struct{})
	r := start(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		mu.Lock()
		first := held < 2
		if first {
			held++
		}
		mu.Unlock()
		if first {
			if req.ContentLength > int64(len(session.Request(short, recording.Options{}))) {
				both.Done()
				<-shortDone // the long one learns of its refusal last
			} else {
				both.Done()
				both.Wait()
			}
		}
		sim.ServeHTTP(w, req)
	}))
	r.tracker.Learn("", window)
	var done sync.WaitGroup
	answers := make([]string, 2)
	for i, turn := range []int{short, long} {
		done.Go(func() {
			res, body := r.post(t, session.Request(turn, recording.Options{}))
			answers[i] = fmt.Sprint(res.StatusCode)
			if res.StatusCode != http.StatusOK {
				answers[i] += string(body)
			}
			if i == 0 {
				close(shortDone)
			}
		})
	}
	done.Wait()
	if answers[0] != "200" || answers[1] != "200" {
		t.Errorf("answers %q", answers)
	}
}
