package proxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/compactproxy/compactproxy/internal/llamasim"
)

// rhythm are the moments of keep-alive chunks up to that of the answer.
func rhythm(first, until time.Duration) (out []time.Duration) {
	for at := first; at < until; at += keepaliveEvery {
		out = append(out, at)
	}
	return out
}

// wantKeptAlive checks that the first events are keep-alive chunks of one identity
// at those moments, and returns the events behind them.
func wantKeptAlive(t *testing.T, got streamed, moments []time.Duration) (rest []arrival) {
	t.Helper()
	if got.res.StatusCode != http.StatusOK || got.res.Header.Get("Content-Type") != "text/event-stream" || got.headers != moments[0] {
		t.Errorf("status %d, header %v after %v", got.res.StatusCode, got.res.Header, got.headers)
	}
	if len(got.arrivals) < len(moments) {
		t.Fatalf("%d events, not even %d keep-alives: %s", len(got.arrivals), len(moments), got.times())
	}
	first := chunkOf(t, got.arrivals[0].event)
	for i, at := range moments {
		c := chunkOf(t, got.arrivals[i].event)
		if got.arrivals[i].at != at {
			t.Fatalf("keep-alive %d came after %v, not %v", i, got.arrivals[i].at, at)
		}
		if len(c.Choices) != 1 || c.Choices[0].Delta["content"] != "" || c.Choices[0].FinishReason != nil || c.Object != "chat.completion.chunk" {
			t.Fatalf("keep-alive %d: %s", i, got.arrivals[i].event)
		}
		if role := c.Choices[0].Delta["role"]; (role == "assistant") != (i == 0) {
			t.Errorf("keep-alive %d has the role %v", i, role)
		}
		if c.ID == "" || c.ID != first.ID || c.Created != first.Created || c.Model != "m" {
			t.Errorf("keep-alive %d is of another stream: %s", i, got.arrivals[i].event)
		}
	}
	return got.arrivals[len(moments):]
}

// wantAnswer checks that events are a whole answer in the identity of the stream
// that began with first.
func wantAnswer(t *testing.T, first string, rest []arrival, text string) {
	t.Helper()
	id := chunkOf(t, first)
	if n := len(rest); n == 0 || rest[n-1].event != doneEvent {
		t.Fatalf("no end: %v", rest)
	}
	said, finish := "", any(nil)
	for _, a := range rest[:len(rest)-1] {
		c := chunkOf(t, a.event)
		if c.ID != id.ID || c.Created != id.Created || c.Error != nil {
			t.Errorf("a chunk of another stream: %s", a.event)
		}
		for _, choice := range c.Choices {
			if choice.Delta["role"] != nil {
				t.Errorf("the role comes twice: %s", a.event)
			}
			if s, ok := choice.Delta["content"].(string); ok {
				said += s
			}
			if choice.FinishReason != nil {
				finish = choice.FinishReason
			}
		}
	}
	if said != text || finish != "stop" {
		t.Errorf("said %q and ended with %v", said, finish)
	}
}

// A streaming client that waits ten minutes for a summary gets chunks with an empty
// delta meanwhile, and then the answer as part of the same stream.
func TestKeepAliveSummary_TenMinutes(t *testing.T) {
	for name, keepalive := range map[string]time.Duration{"as configured by default": time.Minute, "every ten seconds": 10 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sim := newScribe().holdFor(10 * time.Minute)
				b := newBubble(t, sim, scribed(keptAlive(keepalive))...)
				got := b.begin(t, longSession().body(streamBody)).answer(t)
				moments := rhythm(keepalive, 10*time.Minute)
				if keepalive < keepaliveEvery {
					moments = nil
					for at := keepalive; at < 10*time.Minute; at += keepalive {
						moments = append(moments, at)
					}
				}
				rest := wantKeptAlive(t, got, moments)
				for _, a := range rest[1:] {
					if a.at != 10*time.Minute {
						t.Errorf("after %v: %s", a.at, a.event)
					}
				}
				// With both clocks at the same moment one more is due.
				if c := chunkOf(t, rest[0].event); len(c.Choices) > 0 && c.Choices[0].Delta["content"] == "" {
					rest = rest[1:]
				}
				wantAnswer(t, got.arrivals[0].event, rest, "ok")
				if a := got.res.Header.Get(headerAction); a != "pending" {
					t.Errorf("action %q", a)
				}
				if got.res.Header.Get(headerConversation) == "" {
					t.Error("no conversation in the header")
				}
				synctest.Wait()
				if a := requestLog(t, b.logs)["action"]; a != "summary, pending" {
					t.Errorf("logged as %v", a)
				}
				wantSummarised(t, sim.forwarded(t))
			})
		})
	}
}

// A checkpoint that was replayed before is still told of when the headers are spent.
func TestKeepAliveSummary_PendingBesideReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sim := newScribe()
		b := newBubble(t, sim, scribed(keptAlive(time.Minute), inProse)...)
		b.begin(t, longSession().body(streamBody)).answer(t)
		sim.holdFor(2 * time.Minute)
		got := b.begin(t, longSession().reads(12, 12, 2500).body(streamBody)).answer(t)
		if a := got.res.Header.Get(headerAction); a != "replay, pending" {
			t.Errorf("action %q", a)
		}
	})
}

// The chunks go on at their pace while the server, which has the request at last,
// processes what is new in it; they end with its first token.
func TestKeepAliveSummary_AndALongPrefill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sim := newScribe().holdFor(100 * time.Second)
		sim.chat = func(llamasim.Request) *llamasim.Reply {
			reply := llamasim.Reply{Text: "ok", BeforeFirstByte: pausing(100 * time.Second)}
			return &reply
		}
		b := newBubble(t, sim, scribed(keptAlive(time.Minute))...)
		got := b.begin(t, longSession().body(streamBody)).answer(t)
		rest := wantKeptAlive(t, got, rhythm(time.Minute, 200*time.Second))
		wantAnswer(t, got.arrivals[0].event, rest, "ok")
	})
}

// Who wants no keep-alive, or no stream, waits for as long as it takes and gets
// nothing but the answer.
func TestKeepAliveSummary_NotAskedFor(t *testing.T) {
	for name, tt := range map[string]struct {
		rest      string
		keepalive time.Duration
	}{"no stream": {plainBody, time.Minute}, "keepalive: 0": {streamBody, 0}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sim := newScribe().holdFor(10 * time.Minute)
				b := newBubble(t, sim, scribed(keptAlive(tt.keepalive))...)
				got := b.begin(t, longSession().body(tt.rest)).answer(t)
				if got.headers != 10*time.Minute || got.arrivals[0].at != 10*time.Minute {
					t.Errorf("headers after %v, the first byte after %v", got.headers, got.arrivals[0].at)
				}
				if a := got.res.Header.Get(headerAction); a != "summary" {
					t.Errorf("action %q", a)
				}
				if strings.Contains(got.bytes(), `"content":""`) {
					t.Errorf("a keep-alive: %s", got.bytes())
				}
			})
		})
	}
}

// A summary that takes longer than its time is given up, and the client, kept alive
// meanwhile, gets its answer without one.
func TestKeepAliveSummary_GivenUpInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sim := newScribe().holdFor(10 * time.Hour)
		b := newBubble(t, sim, scribed(keptAlive(time.Minute))...)
		limit := b.summary.Timeout
		got := b.begin(t, longSession().body(streamBody)).answer(t)
		if last := got.arrivals[len(got.arrivals)-1]; last.at != limit || last.event != doneEvent {
			t.Errorf("after %v: %s", last.at, last.event)
		}
		synctest.Wait() // the server takes note after the client
		if _, own := sim.split(); len(own) != 1 || !own[0].Canceled {
			t.Errorf("%d calls, the first one cancelled: %v", len(own), own[0].Canceled)
		}
	})
}

// ---- errors behind keep-alive

// otherwise answers clients' chat requests by itself, and everything else as the
// scribe does.
func (s *scribe) otherwise(answer http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.Contains(chatRoutes, r.URL.Path) {
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			if !bytes.Contains(body, []byte("[A note from the program that runs")) {
				answer(w, r)
				return
			}
		}
		s.ServeHTTP(w, r)
	})
}

// What goes wrong after keep-alive has spent status and headers is told inside the
// stream, as an error object, once, and nothing pretends that the answer is whole.
func TestKeepAliveSummary_LaterErrorsTravelInTheStream(t *testing.T) {
	const boom = `{"error":{"code":500,"message":"boom","type":"server_error"}}`
	tests := []struct {
		name    string
		answer  http.HandlerFunc
		code    string // of the error; "" for none
		message string // part of it
	}{
		{"a refusal as too long", says(400, tooLong), "context_length_exceeded", "maximum context length is 4096 tokens"},
		{"a refusal as too long, in the stream", plays("data: " + tooLong + "\n\n"), "context_length_exceeded", "maximum context length is 4096 tokens"},
		{"a refusal for another reason", says(400, `{"error":{"code":"x","message":"no such tool","type":"invalid_request_error"}}`), "x", "no such tool"},
		{"an error of the server", says(500, boom), "", "boom"},
		{"an error in pretty JSON", says(500, "{\n  \"error\": {\n    \"message\": \"boom\"\n  }\n}\n"), "", "boom"},
		{"a gateway's page", replies(0, 502, "text/html", "<html>Bad Gateway</html>"), "upstream_error", "502"},
		{"an empty answer", replies(0, 503, "text/plain", ""), "upstream_error", "503"},
		{"an error in the stream", plays("data: " + boom + "\n\n"), "", "boom"},
		{"a broken connection", plays(cut), "upstream_unreachable", "connection broke"},
		{"a connection that breaks behind the headers", plays("", pause(time.Second), cut), "upstream_unreachable", "connection broke"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sim := newScribe().holdFor(2 * time.Minute)
				b := newBubble(t, sim.otherwise(tt.answer), scribed(keptAlive(time.Minute))...)
				got := b.begin(t, longSession().body(streamBody)).answer(t)
				rest := wantKeptAlive(t, got, rhythm(time.Minute, 2*time.Minute))
				if len(rest) > 0 && strings.Contains(rest[0].event, `"content":""`) {
					rest = rest[1:] // both clocks at the same moment
				}
				if len(rest) != 1 {
					t.Fatalf("%d events behind the keep-alives: %s", len(rest), got.bytes())
				}
				if !strings.HasPrefix(rest[0].event, "data: {") || !strings.HasSuffix(rest[0].event, "}\n\n") {
					t.Errorf("not an event with one line of data: %q", rest[0].event)
				}
				if strings.Contains(got.bytes(), "[DONE]") {
					t.Error("it looks finished")
				}
				event := rest[0].event
				if !strings.Contains(event, `"error"`) || !strings.Contains(event, tt.message) {
					t.Errorf("got %s", event)
				}
				if tt.code != "" && !strings.Contains(event, fmt.Sprintf(`"code":%q`, tt.code)) {
					t.Errorf("not with code %s: %s", tt.code, event)
				}
			})
		})
	}
}

// A stream that breaks behind a keep-alive and the first of the server's events
// breaks for the client as well.
func TestKeepAliveSummary_CutLater(t *testing.T) {
	for name, steps := range map[string][]any{
		"behind the role": {roleEvent, pause(time.Second), cut},
		"behind a token":  {roleEvent, tokenEvent, pause(time.Second), cut},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sim := newScribe().holdFor(2*time.Minute + time.Second)
				b := newBubble(t, sim.otherwise(plays(steps...)), scribed(keptAlive(time.Minute))...)
				c := b.begin(t, longSession().body(streamBody))
				<-c.done
				if c.got.err == nil || strings.Contains(c.got.bytes(), "[DONE]") {
					t.Errorf("it looks finished: %s", c.got.bytes())
				}
			})
		})
	}
}

// ---- clients that leave

// A client that leaves when keep-alives have come is counted as one that left, and
// the summary has its time of grace all the same.
func TestKeepAliveSummary_ClientLeaves(t *testing.T) {
	for name, rest := range map[string]string{"streaming": streamBody, "not streaming": plainBody} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sim, kept := newScribe().holdFor(10*time.Minute), &filings{}
				b := newBubble(t, sim, scribed(keptAlive(time.Minute), storedIn(t, kept))...)
				c := b.begin(t, longSession().body(rest))
				time.Sleep(100 * time.Second)
				c.gone()
				if n := testutil.ToFloat64(b.metrics.Requests.WithLabelValues("chat", "499")); n != 1 {
					t.Errorf("logged as %v", requestLog(t, b.logs))
				}
				if b.inFlight() != 1 || testutil.ToFloat64(b.metrics.Inflight) != 0 {
					t.Errorf("%d compactions, %v requests in flight", b.inFlight(), testutil.ToFloat64(b.metrics.Inflight))
				}
				time.Sleep(flightGrace)
				synctest.Wait()
				clients, own := sim.split()
				if len(clients) != 0 || len(own) != 1 || !own[0].Canceled || len(kept.all()) != 0 || b.inFlight() != 0 {
					t.Errorf("%d requests, %d calls, %d checkpoints", len(clients), len(own), len(kept.all()))
				}
			})
		})
	}
}

// An agent that times out again and again gets its answer all the same: each
// attempt waits for the one summary.
func TestKeepAliveSummary_AnImpatientAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sim := newScribe().holdFor(10 * time.Minute)
		b := newBubble(t, sim, scribed(keptAlive(time.Minute))...)
		for range 4 {
			c := b.begin(t, longSession().body(plainBody))
			time.Sleep(120 * time.Second)
			c.gone()
			time.Sleep(10 * time.Second)
		}
		b.begin(t, longSession().body(plainBody)).answer(t)
		if clients, _ := sim.split(); sim.asked() != 1 || len(clients) != 1 {
			t.Errorf("%d calls for a summary, %d requests", sim.asked(), len(clients))
		}
	})
}

// pausing is a hook that waits, unless the client leaves first.
func pausing(d time.Duration) func(context.Context) {
	return func(ctx context.Context) {
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
	}
}
