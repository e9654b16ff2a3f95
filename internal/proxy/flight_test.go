package proxy

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/conversation"
	"github.com/compactproxy/compactproxy/internal/llamasim"
	"github.com/compactproxy/compactproxy/internal/metrics"
	"github.com/compactproxy/compactproxy/internal/upstream"
)

// scribe is a simulated server whose model writes summaries. Each call for one may
// be held before its first byte, by whoever wants to see what happens meanwhile.
type scribe struct {
	*llamasim.Server
	hold  func(ctx context.Context, n int)         // runs in the nth call for a summary, from 1
	reply func(n int) llamasim.Reply               // what it is answered with, a text where nil
	chat  func(r llamasim.Request) *llamasim.Reply // what others are answered with, "ok" where nil

	mu    sync.Mutex
	calls int // for summaries
}

const scribeWindow = 12288

// theSummary is what the scribe writes.
const theSummary = "The user wants the fault found. Files 0 to 8 were read, and each holds its lines."

func newScribe() *scribe {
	s := &scribe{}
	s.Server = llamasim.New(llamasim.Options{Window: scribeWindow, Slots: 8, Seed: 1, Reply: s.answer})
	return s.knows(readsOf(11, 2500))
}

func (s *scribe) answer(r llamasim.Request) llamasim.Reply {
	last := ""
	if n := len(r.Messages); n > 0 {
		last = r.Messages[n-1].Content
	}
	switch {
	case compaction.AsksForOmissions(last):
		return llamasim.Reply{Text: "none"}
	case compaction.AsksForSummary(last):
		s.mu.Lock()
		s.calls++
		n := s.calls
		s.mu.Unlock()
		reply := llamasim.Reply{Text: theSummary}
		if s.reply != nil {
			reply = s.reply(n)
		}
		if s.hold != nil {
			reply.BeforeFirstByte = func(ctx context.Context) { s.hold(ctx, n) }
		}
		return reply
	}
	if s.chat != nil {
		if reply := s.chat(r); reply != nil {
			return *reply
		}
	}
	return llamasim.Reply{Text: "ok"}
}

// asked is how many calls for a summary came.
func (s *scribe) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// split parts the generating requests: those that clients sent, as they arrived
// here, and those that the proxy made up.
func (s *scribe) split() (clients, own []llamasim.Recorded) {
	for _, r := range s.Requests() {
		switch {
		case !slices.Contains(chatRoutes, r.RequestURI):
		case bytes.Contains(r.Body, []byte("[A note from the program that runs")):
			own = append(own, r)
		default:
			clients = append(clients, r)
		}
	}
	return clients, own
}

// forwarded is the one request that clients sent last.
func (s *scribe) forwarded(t testing.TB) []byte {
	t.Helper()
	clients, _ := s.split()
	if len(clients) == 0 {
		t.Fatal("no client's request arrived")
	}
	return clients[len(clients)-1].Body
}

// knows puts the beginning of a session into the server's cache, past the proxy.
func (s *scribe) knows(h history) *scribe {
	req := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", bytes.NewReader(h.body(plainBody)))
	s.ServeHTTP(httptest.NewRecorder(), req)
	s.ForgetRequests()
	return s
}

// holdFor makes each call for a summary take that long, unless it is cancelled
// first.
func (s *scribe) holdFor(d time.Duration) *scribe {
	wait := pausing(d)
	s.hold = func(ctx context.Context, _ int) { wait(ctx) }
	return s
}

// longSession is a list over the scribe's threshold, all but its last turn in the
// server's cache, and shortSession its beginning, which is not.
func longSession() history  { return readsOf(12, 2500) }
func shortSession() history { return readsOf(5, 2500) }

// scribed are the options of a proxy before a scribe. The passes are never enough
// there, and an omission is not looked for.
func scribed(options ...rigOption) []rigOption {
	return append([]rigOption{withWindow(scribeWindow), summarising(compaction.StyleExtend), func(o *Options) {
		o.Settings.Summary.Validate = false
	}}, options...)
}

// inProse has summaries asked for as of a text: a server that knows nothing of the
// conversation can write one, in as many questions as the text needs.
func inProse(o *Options) { o.Settings.Summary.Style = compaction.StyleProse }

// filings keeps what was filed.
type filings struct {
	nothing
	mu    sync.Mutex
	filed []conversation.Filed
}

func (f *filings) Commit(c conversation.Commit) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.Checkpoint == nil {
		return 0, nil
	}
	f.filed = append(f.filed, *c.Checkpoint)
	return int64(len(f.filed)), nil
}

func (f *filings) all() []conversation.Filed {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.filed)
}

func storedIn(t testing.TB, f *filings) rigOption {
	return func(o *Options) {
		o.Index = newIndex(t, conversation.Options{Store: f, Conversations: 1000, Bytes: 64 << 20})
	}
}

// call is a request under way.
type call struct {
	leave func() // the client goes away
	done  chan struct{}
	got   streamed // once done is closed; res is nil where there was no answer
}

// begin sends a chat request and returns when everyone waits.
func (b *bubble) begin(t *testing.T, body []byte, header ...string) *call {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://proxy/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	c := &call{leave: cancel, done: make(chan struct{})}
	start := time.Now()
	go func() { // ends with the answer, or with the test
		defer close(c.done)
		res, err := b.client.Do(req)
		if err != nil {
			c.got.err = err
			return
		}
		defer res.Body.Close()
		c.got.res, c.got.headers = res, time.Since(start)
		r := bufio.NewReader(res.Body)
		for {
			event, err := readEvent(r)
			if event != "" {
				c.got.arrivals = append(c.got.arrivals, arrival{time.Since(start), event})
			}
			if err != nil {
				if err != io.EOF {
					c.got.err = err
				}
				return
			}
		}
	}()
	synctest.Wait()
	return c
}

// answer waits for the answer.
func (c *call) answer(t *testing.T) streamed {
	t.Helper()
	<-c.done
	if c.got.err != nil {
		t.Fatal(c.got.err)
	}
	if c.got.res.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %s", c.got.res.StatusCode, c.got.bytes())
	}
	return c.got
}

// gone has the client go away, and returns when everyone knows.
func (c *call) gone() {
	c.leave()
	<-c.done
	synctest.Wait()
}

// installed is how many compactions of a kind a trigger led to.
func (p *Proxy) installed(trigger, kind string) float64 {
	return testutil.ToFloat64(p.metrics.Compactions.WithLabelValues(trigger, kind, metrics.ResultInstalled))
}

func (p *Proxy) inFlight() int {
	p.flights.mu.Lock()
	defer p.flights.mu.Unlock()
	return len(p.flights.of)
}

func wantSummarised(t *testing.T, body []byte) {
	t.Helper()
	if !bytes.Contains(body, []byte(theSummary)) {
		t.Errorf("forwarded without the summary: %.300s", body)
	}
}

// ---- sharing

// Two requests with one beginning, streamed or not, share one compaction: one call
// at the server, one checkpoint, and the same messages leave for both.
func TestFlight_OneBeginningIsCompactedOnce(t *testing.T) {
	for name, rest := range map[string][2]string{
		"alike":             {streamBody, streamBody},
		"plain":             {plainBody, plainBody},
		"one of them plain": {streamBody, plainBody},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sim, kept := newScribe().holdFor(10*time.Second), &filings{}
				b := newBubble(t, sim, scribed(storedIn(t, kept))...)
				first := b.begin(t, longSession().body(rest[0]))
				second := b.begin(t, longSession().body(rest[1]))
				if n := b.inFlight(); n != 1 {
					t.Errorf("%d compactions under way", n)
				}
				first.answer(t)
				got := second.answer(t)
				if sim.asked() != 1 || len(kept.all()) != 1 || b.installed("threshold", "summary") != 1 {
					t.Errorf("%d calls for a summary, %d checkpoints", sim.asked(), len(kept.all()))
				}
				clients, _ := sim.split()
				if len(clients) != 2 {
					t.Fatalf("%d requests arrived", len(clients))
				}
				wantSummarised(t, clients[0].Body)
				if rest[0] == rest[1] && !bytes.Equal(clients[0].Body, clients[1].Body) {
					t.Errorf("not the same bytes left:\n%s\n%s", clients[0].Body, clients[1].Body)
				}
				one, two := rawsOf(forwarded(t, clients[0].Body)), rawsOf(forwarded(t, clients[1].Body))
				if len(one) != len(two) || !extends(two, one) {
					t.Error("not the same messages left")
				}
				if !hasAction(got.res, "replay") && !hasAction(got.res, "summary") && !hasAction(got.res, "passes") {
					t.Errorf("action %q", got.res.Header.Get(headerAction))
				}
				if b.inFlight() != 0 {
					t.Error("a compaction is still under way")
				}
			})
		})
	}
}

// A longer request of the conversation joins the compaction under way and puts
// its own new messages behind the result.
func TestFlight_ALongerRequestTakesItOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sim := newScribe().holdFor(10 * time.Second)
		b := newBubble(t, sim, scribed()...)
		first := b.begin(t, longSession().body(plainBody))
		longer := longSession().reads(12, 1, 200)
		second := b.begin(t, longer.body(plainBody))
		first.answer(t)
		second.answer(t)
		if sim.asked() != 1 {
			t.Errorf("%d calls for a summary", sim.asked())
		}
		clients, _ := sim.split()
		one, two := rawsOf(forwarded(t, clients[0].Body)), rawsOf(forwarded(t, clients[1].Body))
		if len(two) != len(one)+2 || !extends(two, one) {
			t.Errorf("lists of %d and %d messages, and the one does not begin the other", len(one), len(two))
		}
	})
}

// Different conversations do not wait for each other, also those of two users who
// say the same.
func TestFlight_ConversationsRunInParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sim := newScribe().holdFor(10 * time.Second)
		b := newBubble(t, sim, scribed(inProse)...)
		began := time.Now()
		var calls []*call // of two questions each
		for i := range 3 {
			task := fmt.Sprintf(`{"role":"user","content":"Task: find fault %d."}`, i)
			h := append(history{longSession()[0], task}, longSession()[2:]...)
			calls = append(calls, b.begin(t, h.body(plainBody)))
		}
		calls = append(calls, b.begin(t, longSession().body(plainBody), "Authorization", "Bearer one"), b.begin(t, longSession().body(plainBody), "Authorization", "Bearer two"))
		if n := sim.asked(); n != 5 || b.inFlight() != 5 {
			t.Errorf("%d calls, %d compactions at a time", n, b.inFlight())
		}
		for _, c := range calls {
			c.answer(t)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("all took %v", took)
		}
	})
}

// ---- grace

// The client leaves, and the work runs on: who returns with the same beginning
// within the grace waits for the same call and gets its result.
func TestFlight_WhoReturnsGetsTheResult(t *testing.T) {
	for name, away := range map[string]time.Duration{"while it is written": 10 * time.Second, "when it is done": 25 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sim, kept := newScribe().holdFor(20*time.Second), &filings{}
				b := newBubble(t, sim, scribed(storedIn(t, kept))...)
				b.begin(t, longSession().body(streamBody)).gone()
				if clients, own := sim.split(); len(clients) != 0 || len(own) != 1 || own[0].Canceled {
					t.Fatalf("%d requests arrived, %d calls of our own", len(clients), len(own))
				}
				time.Sleep(away)
				b.begin(t, longSession().body(streamBody)).answer(t)
				if sim.asked() != 1 || len(kept.all()) != 1 {
					t.Errorf("%d calls for a summary, %d checkpoints", sim.asked(), len(kept.all()))
				}
				clients, own := sim.split()
				if len(clients) != 1 || own[0].Canceled {
					t.Errorf("%d requests of clients arrived; call cancelled: %v", len(clients), own[0].Canceled)
				}
				wantSummarised(t, sim.forwarded(t))
			})
		})
	}
}

// Nobody returns: after half a minute the call is cancelled at the server, nothing
// is filed, and a client that comes later begins anew.
func TestFlight_NobodyReturns(t *testing.T) {
	for name, rest := range map[string]string{"streaming": streamBody, "not streaming": plainBody} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sim, kept := newScribe(), &filings{}
				ended := make(chan time.Duration, 10)
				sim.hold = func(ctx context.Context, n int) {
					if n > 1 {
						return
					}
					began := time.Now()
					<-ctx.Done()
					ended <- time.Since(began)
				}
				b := newBubble(t, sim, scribed(storedIn(t, kept))...)
				c := b.begin(t, longSession().body(rest))
				time.Sleep(7 * time.Second)
				c.gone()
				time.Sleep(flightGrace - time.Millisecond)
				synctest.Wait()
				if len(ended) != 0 || b.inFlight() != 1 {
					t.Fatal("the work ended before the grace was over")
				}
				time.Sleep(2 * time.Millisecond)
				synctest.Wait()
				if got := <-ended; got != 7*time.Second+flightGrace {
					t.Errorf("the call ended %v after its beginning", got)
				}
				if b.inFlight() != 0 || len(kept.all()) != 0 {
					t.Errorf("%d compactions under way, %d checkpoints", b.inFlight(), len(kept.all()))
				}
				if clients, own := sim.split(); len(clients) != 0 || len(own) != 1 || !own[0].Canceled {
					t.Errorf("%d requests and %d calls arrived, the first one cancelled: %v", len(clients), len(own), own[0].Canceled)
				}
				// No trace: whoever comes later is served as if it had never been.
				for _, kind := range compaction.Kinds {
					if n := testutil.ToFloat64(b.metrics.Compactions.WithLabelValues("threshold", string(kind), metrics.ResultRejected)); n != 0 {
						t.Errorf("%v compactions of kind %s count as rejected", n, kind)
					}
				}
				later := b.begin(t, longSession().body(rest)).answer(t)
				if w := later.res.Header.Get(headerWarning); w != "" || !hasAction(later.res, "summary") {
					t.Errorf("later: action %q, warning %q", later.res.Header.Get(headerAction), w)
				}
				wantSummarised(t, sim.forwarded(t))
			})
		})
	}
}

// Leaving and coming back within the grace stops the clock, however often; it
// begins anew when the last one leaves.
func TestFlight_ComingBackStopsTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sim := newScribe().holdFor(5 * time.Minute)
		b := newBubble(t, sim, scribed()...)
		for range 3 {
			c := b.begin(t, longSession().body(plainBody))
			time.Sleep(20 * time.Second)
			c.gone()
			time.Sleep(29 * time.Second)
		}
		c := b.begin(t, longSession().body(plainBody))
		time.Sleep(time.Minute) // longer than the grace, and someone waits
		synctest.Wait()
		if sim.asked() != 1 || b.inFlight() != 1 {
			t.Fatalf("%d calls, %d compactions under way", sim.asked(), b.inFlight())
		}
		c.answer(t)
		wantSummarised(t, sim.forwarded(t))
		if sim.asked() != 1 {
			t.Errorf("%d calls for a summary", sim.asked())
		}
	})
}

// One of two waiting clients leaves: that is no reason to give up.
func TestFlight_OneOfTwoLeaves(t *testing.T) {
	for name, leaver := range map[string]int{"the one who began it": 0, "the other": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sim := newScribe().holdFor(5 * time.Minute)
				b := newBubble(t, sim, scribed()...)
				calls := []*call{b.begin(t, longSession().body(streamBody)), b.begin(t, longSession().body(streamBody))}
				calls[leaver].gone()
				calls[1-leaver].answer(t)
				if sim.asked() != 1 {
					t.Errorf("%d calls for a summary", sim.asked())
				}
				wantSummarised(t, sim.forwarded(t))
			})
		})
	}
}

// ---- the end of the proxy, and faults

// Close cancels the call of a compaction that nobody waits for any more, and
// returns when its work is over.
func TestFlight_CloseCancelsAndWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sim, kept := newScribe().holdFor(time.Hour), &filings{}
		b := newBubble(t, sim, scribed(storedIn(t, kept))...)
		b.begin(t, longSession().body(plainBody)).gone()
		began := time.Now()
		b.Close()
		if took := time.Since(began); took != 0 || b.inFlight() != 0 {
			t.Errorf("it took %v, and %d compactions are under way", took, b.inFlight())
		}
		synctest.Wait()
		if _, own := sim.split(); len(own) != 1 || !own[0].Canceled || len(kept.all()) != 0 {
			t.Errorf("%d calls, %d checkpoints", len(own), len(kept.all()))
		}
		b.Close() // again is harmless
	})
}

func TestFlight_CloseWaitsForWorkThatDoesNotListen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFlights()
		release := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			_, _ = f.join(ctx, &conversation.Conversation{}, func(context.Context) { <-release })
		}()
		synctest.Wait()
		cancel()
		closed := make(chan struct{})
		go func() { f.close(); close(closed) }()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("it did not wait")
		default:
		}
		close(release)
		<-closed
	})
}

// A client that waits while the proxy is closed gets an answer to what it sent.
func TestFlight_CloseReleasesWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sim := newScribe().holdFor(time.Hour)
		b := newBubble(t, sim, scribed()...)
		c := b.begin(t, longSession().body(plainBody))
		b.Close()
		c.answer(t)
		if !bytes.Equal(sim.forwarded(t), longSession().body(plainBody)) {
			t.Errorf("not the last good list left: %.200s", sim.forwarded(t))
		}
	})
}

// faulty is a generator with a fault of our own in it.
type faulty struct{ entered, release chan struct{} }

func (f faulty) Keeps(context.Context, []byte, []byte, http.Header) bool { return false }

func (f faulty) Generate(context.Context, []byte, http.Header, float64) (upstream.Generated, error) {
	f.entered <- struct{}{}
	<-f.release
	panic("a conversation's own words")
}

// A fault in the work is contained: everyone who waits goes on with the last good
// list, and the log says so without a word of the fault's.
func TestFlight_AFaultIsContained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sim := newScribe()
		broken := faulty{entered: make(chan struct{}, 10), release: make(chan struct{})}
		b := newBubble(t, sim, scribed(func(o *Options) { o.Generator = broken })...)
		body := longSession().body(plainBody)
		calls := []*call{b.begin(t, body), b.begin(t, body)}
		<-broken.entered
		close(broken.release)
		for i, c := range calls {
			if got := c.answer(t); !strings.Contains(got.res.Header.Get(headerWarning), "fault") {
				t.Errorf("client %d is not told: %v", i, got.res.Header)
			}
		}
		clients, _ := sim.split()
		for _, c := range clients {
			if !bytes.Equal(c.Body, body) {
				t.Errorf("not the last good list left: %.200s", c.Body)
			}
		}
		if len(clients) != 2 || b.inFlight() != 0 {
			t.Errorf("%d requests arrived, %d compactions under way", len(clients), b.inFlight())
		}
		bugs := b.logs.FilterMessageSnippet("BUG").All()
		if len(bugs) == 0 {
			t.Error("nothing in the log")
		}
		for _, e := range b.logs.All() {
			if strings.Contains(fmt.Sprint(e.Message, e.ContextMap()), "own words") {
				t.Errorf("the log quotes the fault: %v", e.ContextMap())
			}
		}
	})
}

// ---- the mechanism

// Many come and go at random moments: every compaction lands, nobody waits for
// ever, and never are two of one conversation under way.
func TestFlights_ComingAndGoing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFlights()
		conversations := make([]*conversation.Conversation, 5)
		for i := range conversations {
			conversations[i] = &conversation.Conversation{}
		}
		var mu sync.Mutex
		running := map[*conversation.Conversation]int{}
		var all sync.WaitGroup
		for i := range 200 {
			c := conversations[i%len(conversations)]
			all.Go(func() {
				time.Sleep(time.Duration(i*7919%100) * time.Second)
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+i*104729%60)*time.Second)
				defer cancel()
				_, err := f.join(ctx, c, func(work context.Context) {
					mu.Lock()
					if running[c]++; running[c] > 1 {
						t.Error("two of one conversation at a time")
					}
					mu.Unlock()
					select {
					case <-time.After(time.Duration(1+i*31%90) * time.Second):
					case <-work.Done():
					}
					mu.Lock()
					running[c]--
					mu.Unlock()
				})
				if err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		time.Sleep(flightGrace + time.Second)
		synctest.Wait()
		f.mu.Lock()
		if len(f.of) != 0 {
			t.Errorf("%d are still under way", len(f.of))
		}
		f.mu.Unlock()
		f.close()
	})
}
