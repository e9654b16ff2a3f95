package proxy

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/compactproxy/compactproxy/internal/llamasim"
)

// ---- the waiting itself

func TestPool_WaitsForTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool()
		a, b, c := &exchange{}, &exchange{}, &exchange{}
		for _, ex := range []*exchange{a, b, c} {
			p.enter(ex)
		}
		var release func()
		go func() { release, _ = p.alone(t.Context(), a) }()
		synctest.Wait()
		p.leave(b)
		synctest.Wait()
		if release != nil {
			t.Fatal("did not wait for all")
		}
		late := &exchange{}
		p.enter(late) // came after the refusal: nobody waits for it
		p.leave(c)
		synctest.Wait()
		if release == nil {
			t.Fatal("still waits")
		}
		release()
		p.leave(late)
		if len(p.running) != 0 {
			t.Errorf("%d are running", len(p.running))
		}
	})
}

// Two that are refused together wait for one another's turn, not for one
// another.
func TestPool_TwoRefusedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool()
		list := make([]*exchange, 5)
		for i := range list {
			list[i] = &exchange{}
			p.enter(list[i])
		}
		var mu sync.Mutex
		alone, most, done := 0, 0, 0
		for _, ex := range list {
			go func() {
				release, err := p.alone(t.Context(), ex)
				if err != nil {
					t.Error(err)
					return
				}
				p.enter(ex)
				mu.Lock()
				alone++
				most = max(most, alone)
				mu.Unlock()
				time.Sleep(time.Minute) // the retry, in virtual time
				mu.Lock()
				alone--
				done++
				mu.Unlock()
				p.leave(ex)
				release()
			}()
		}
		time.Sleep(5*time.Minute + time.Second)
		synctest.Wait()
		if most != 1 || done != len(list) {
			t.Errorf("%d were done, at most %d at once", done, most)
		}
	})
}

// A client that leaves while it waits gives its turn back.
func TestPool_Leaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool()
		a, b := &exchange{}, &exchange{}
		p.enter(a)
		p.enter(b)
		ctx, cancel := context.WithCancel(t.Context())
		errs := make(chan error, 2)
		go func() { // waits for b
			_, err := p.alone(ctx, a)
			errs <- err
		}()
		synctest.Wait()
		c := &exchange{}
		p.enter(c)
		second, cancelSecond := context.WithCancel(t.Context())
		go func() { // waits for its turn
			_, err := p.alone(second, c)
			errs <- err
		}()
		synctest.Wait()
		cancelSecond()
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		cancel()
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		p.leave(b)
		release, err := p.alone(t.Context(), &exchange{})
		if err != nil {
			t.Fatal("the turn was not given back")
		}
		release()
	})
}

func TestPool_EnterAndLeaveTwice(t *testing.T) {
	p := newPool()
	ex := &exchange{}
	p.enter(ex)
	p.enter(ex)
	p.leave(ex)
	p.leave(ex)
	if len(p.running) != 0 {
		t.Error("still running")
	}
}

// ---- the shared pool of a llama-server

// crowd is a server whose pool is too small for the prompts of two requests at
// once: the first n prompts are held until all of them are there.
func crowd(n int) *llamasim.Server {
	var mu sync.Mutex
	here := 0
	all := make(chan struct{})
	return llamasim.New(llamasim.Options{UnifiedPool: 4096, Reply: func(r llamasim.Request) llamasim.Reply {
		reply := llamasim.Reply{Text: "ok"}
		if r.Number <= n {
			reply.BeforeFirstByte = func(ctx context.Context) {
				mu.Lock()
				if here++; here == n {
					close(all)
				}
				mu.Unlock()
				select {
				case <-all:
				case <-ctx.Done():
				}
			}
		}
		return reply
	}})
}

// Requests that exhaust the pool together all fail, and are all sent again as
// they were, one after the other; no client sees it.
func TestPool_Exhausted(t *testing.T) {
	for name, rest := range map[string]string{"plain": plainBody, "stream": streamBody} {
		t.Run(name, func(t *testing.T) {
			sim := crowd(2)
			r := settling(t, sim)
			bodies := [][]byte{readsOf(4, 2000).body(rest), readsOf(4, 2100).body(rest)}
			var wg sync.WaitGroup
			for _, body := range bodies {
				wg.Go(func() {
					res, answer := r.post(t, body)
					if res.StatusCode != 200 || bytes.Contains(answer, []byte("error")) {
						t.Errorf("status %d: %s", res.StatusCode, answer)
					}
					if hasAction(res, "recovery") {
						t.Error("the history was compacted, though it fits")
					}
				})
			}
			wg.Wait()
			sent := map[string]int{}
			for _, body := range bodiesOf(sim) {
				sent[string(body)]++
			}
			if len(sent) != 2 || sent[string(bodies[0])] != 2 || sent[string(bodies[1])] != 2 {
				t.Errorf("%d different bodies: %v", len(sent), len(bodiesOf(sim)))
			}
			if got := r.recoveries(); got.answered != 2 || got.passes+got.clip != 0 {
				t.Errorf("counters: %+v", got)
			}
		})
	}
}

// The carriers of the pool's error, before the first token; a role chunk may
// have come.
func TestPool_Carriers(t *testing.T) {
	for name, tt := range map[string]struct {
		rest  string
		first http.HandlerFunc
		want  string
	}{
		"500":                  {"", replies(0, 500, "application/json", poolError), ""},
		"500 for a stream":     {`,"stream":true`, replies(0, 500, "application/json", poolError), roleEvent + tokenEvent + endEvent + doneEvent},
		"in the stream":        {`,"stream":true`, plays("data: " + poolError + "\n\n"), roleEvent + tokenEvent + endEvent + doneEvent},
		"behind the role":      {`,"stream":true`, plays(strings.NewReplacer(theirID, "chatcmpl-first", "1700000000", "1600000000").Replace(roleEvent), "data: "+poolError+"\n\n"), strings.NewReplacer(theirID, "chatcmpl-first", "1700000000", "1600000000").Replace(roleEvent + tokenEvent + endEvent + doneEvent)},
		"in a named event":     {`,"stream":true`, plays("event: error\ndata: " + poolError + "\n\n"), roleEvent + tokenEvent + endEvent + doneEvent},
		"on an old error line": {`,"stream":true`, plays("error: " + poolError + "\n\n"), roleEvent + tokenEvent + endEvent + doneEvent},
	} {
		t.Run(name, func(t *testing.T) {
			second := goodAnswer
			if tt.rest != "" {
				second = goodStream
			}
			server := &inTurn{steps: []http.HandlerFunc{tt.first, second}}
			r := settling(t, server)
			body := readsOf(4, 2000).body(tt.rest)
			res, answer := r.post(t, body)
			sent := server.requests()
			if res.StatusCode != 200 || len(sent) != 2 || !bytes.Equal(sent[0], body) || !bytes.Equal(sent[1], body) {
				t.Fatalf("status %d after %d requests: %s", res.StatusCode, len(sent), answer)
			}
			if tt.want != "" && string(answer) != tt.want {
				t.Errorf("got\n%s\nwant\n%s", answer, tt.want)
			}
		})
	}
}

// After a token the error is passed on.
func TestPool_MidStream(t *testing.T) {
	stream := roleEvent + tokenEvent + "data: " + poolError + "\n\n"
	server := &inTurn{steps: []http.HandlerFunc{plays(stream), goodStream}}
	r := settling(t, server)
	_, answer := r.post(t, readsOf(4, 2000).body(streamBody))
	if string(answer) != stream || len(server.requests()) != 1 {
		t.Errorf("%d requests, got %s", len(server.requests()), answer)
	}
}

// Exhausted again although it was alone: then a smaller list may pass, once.
func TestPool_ExhaustedAlone(t *testing.T) {
	server := &inTurn{steps: []http.HandlerFunc{replies(0, 500, "application/json", poolError)}}
	r := settling(t, server)
	body := readsOf(12, 2000).body("")
	res, answer := r.post(t, body)
	sent := server.requests()
	if len(sent) != 3 || !bytes.Equal(sent[1], body) || len(sent[2]) >= len(body) {
		t.Fatalf("%d requests", len(sent))
	}
	if res.StatusCode != 500 || !bytes.Contains(answer, []byte("context_length_exceeded")) {
		t.Errorf("status %d: %s", res.StatusCode, answer)
	}
}

// The retry waits until the requests that ran beside it are done, however long
// that takes, and its client is kept alive meanwhile.
func TestPool_KeepAliveWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var mu sync.Mutex
		var retried time.Duration
		n := 0
		b := newBubble(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			n++
			number := n
			mu.Unlock()
			switch number {
			case 1: // a long answer
				plays(roleEvent, tokenEvent, pause(100*time.Second), tokenEvent, endEvent, doneEvent)(w, r)
			case 2:
				plays("data: "+poolError+"\n\n")(w, r)
			default:
				mu.Lock()
				retried = time.Since(start)
				mu.Unlock()
				goodStream(w, r)
			}
		}), keptAlive(time.Minute))
		var wg sync.WaitGroup
		wg.Go(func() { b.ask(t, streamingBody) })
		time.Sleep(time.Second)
		got := b.ask(t, strings.Replace(streamingBody, "hello", "another", 1))
		wg.Wait()
		if retried != 100*time.Second {
			t.Errorf("sent again after %v", retried)
		}
		if got.times() != "1m0s 1m15s 1m30s 1m39s 1m39s 1m39s" || got.res.Header.Get(headerAction) != "pending" {
			t.Errorf("events at %s, action %q", got.times(), got.res.Header.Get(headerAction))
		}
		if !strings.HasSuffix(got.bytes(), doneEvent) || strings.Contains(got.bytes(), "error") {
			t.Errorf("got %s", got.bytes())
		}
	})
}

// A client that leaves while it waits for the others frees its turn for the
// next.
func TestPool_ClientLeavesWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		n := 0
		b := newBubble(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			n++
			number := n
			mu.Unlock()
			switch number {
			case 1:
				plays(roleEvent, tokenEvent, pause(30*time.Second), endEvent, doneEvent)(w, r)
			case 2, 3:
				plays("data: "+poolError+"\n\n")(w, r)
			default:
				goodStream(w, r)
			}
		}), keptAlive(time.Minute))
		var wg sync.WaitGroup
		wg.Go(func() { b.ask(t, streamingBody) })
		time.Sleep(time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		wg.Go(func() {
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://proxy/v1/chat/completions", strings.NewReader(streamingBody))
			if res, err := b.client.Do(req); err == nil {
				res.Body.Close()
				t.Error("answered")
			}
		})
		time.Sleep(time.Second)
		var got streamed
		wg.Go(func() { got = b.ask(t, strings.Replace(streamingBody, "hello", "third", 1)) })
		time.Sleep(time.Second)
		cancel()
		wg.Wait()
		if got.bytes() != roleEvent+tokenEvent+endEvent+doneEvent || got.headers != 28*time.Second {
			t.Errorf("headers at %v: %s", got.headers, got.bytes())
		}
		synctest.Wait()
		if len(b.pool.running) != 0 || len(b.pool.turn) != 0 {
			t.Errorf("the pool holds %d requests and %d turns", len(b.pool.running), len(b.pool.turn))
		}
	})
}
