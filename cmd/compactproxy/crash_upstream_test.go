package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/llamasim"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// moment is when the proxy is killed.
type moment string

const (
	atCount      moment = "as a list is counted"
	inSummary    moment = "as a summary is written"
	atRecount    moment = "as the rewritten list is counted"
	inCommit     moment = "microseconds behind that count" // so before, in and behind the commit
	atConnect    moment = "as it connects to send that list"
	atForward    moment = "as the server has read that list"
	inAnswer     moment = "in the middle of an answer"
	inTurn       moment = "microseconds into a turn"
	betweenTurns moment = "microseconds behind a turn"
)

// moments has some twice, most of those around a commit.
var moments = []moment{atForward, inCommit, atConnect, inTurn, inSummary, inCommit, atRecount, atForward, inAnswer, atConnect, inTurn, betweenTurns, atCount}

// waits tells of moments that not every turn has.
func (m moment) waits() bool { return m != inTurn && m != betweenTurns && m != inAnswer }

// arrival is a chat request that the server has read.
type arrival struct {
	body    []byte
	list    []transcript.Message
	leading int  // system messages that open it
	own     bool // a request of the proxy's own, for a summary
	early   bool // sent by a proxy that may not have found the server yet
	status  int  // of the answer, 0 for none
}

func (a *arrival) refused() bool { return a.status >= http.StatusBadRequest }

// crashUpstream is a simulated llama-server that shows what it is sent, and kills
// the proxy at a moment that depends on it.
type crashUpstream struct {
	sim *llamasim.Server
	URL string

	mu      sync.Mutex
	came    []*arrival
	last    [][]byte // forwarded for the last turn: what does not extend it was rewritten
	armed   moment   // "" for none
	struck  bool     // it was the moment: the proxy is dead, or will be in some microseconds
	kill    func()
	rng     *rand.Rand
	connect bool       // the next connection is for the rewritten list
	held    []net.Conn // never read
	counted time.Time
	commit  time.Duration // that the last one took, from that count to the arrival
	open    map[net.Conn]bool
	closed  *sync.Cond
}

// simulated are the options of a server with that window.
func simulated(window int, reply func(llamasim.Request) llamasim.Reply) llamasim.Options {
	return llamasim.Options{Window: window, ImageTokens: 300, KeepRequests: -1, Reply: reply}
}

func startCrashUpstream(t *testing.T, window int, rng *rand.Rand) *crashUpstream {
	t.Helper()
	u := &crashUpstream{rng: rng, commit: 20 * time.Millisecond, open: map[net.Conn]bool{}}
	u.closed = sync.NewCond(&u.mu)
	u.sim = llamasim.New(simulated(window, u.reply))
	server := httptest.NewUnstartedServer(u)
	server.Listener = gate{server.Listener, u}
	server.Config.ConnState = u.connection
	server.Start()
	u.URL = server.URL
	t.Cleanup(server.Close)
	return u
}

// arm has the proxy killed at a moment of the turn that begins.
func (u *crashUpstream) arm(m moment, kill func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.came, u.armed, u.struck, u.kill, u.connect = nil, m, false, kill, false
}

// strikes kills the proxy if that is the moment.
func (u *crashUpstream) strikes(m moment) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.armed != m {
		return false
	}
	u.armed, u.struck = "", true
	u.kill()
	return true
}

// gate is a listener that can strike before a byte is read.
type gate struct {
	net.Listener
	u *crashUpstream
}

func (g gate) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		g.u.mu.Lock()
		connect := g.u.connect
		g.u.mu.Unlock()
		if !connect || !g.u.strikes(atConnect) {
			return c, nil
		}
		g.u.mu.Lock()
		g.u.held = append(g.u.held, c)
		g.u.mu.Unlock()
	}
}

func (u *crashUpstream) connection(c net.Conn, state http.ConnState) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch state {
	case http.StateNew:
		u.open[c] = true
	case http.StateClosed:
		delete(u.open, c)
		u.closed.Broadcast()
	}
}

// over tells whether the moment came in the turn that is over, and what chat
// requests did.
func (u *crashUpstream) over() (struck bool, came []*arrival) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.struck, u.came
}

// settle waits until everything was read that a proxy had sent before it was
// killed, and returns the chat requests.
func (u *crashUpstream) settle(t *testing.T) []*arrival {
	t.Helper()
	u.mu.Lock()
	u.armed, u.connect = "", false
	for _, c := range u.held {
		c.Close()
	}
	u.held = nil
	u.mu.Unlock()
	// Connections are accepted in order: none of the proxy's comes behind this one.
	get(t, u.URL+"/health", nil)
	u.mu.Lock()
	defer u.mu.Unlock()
	for len(u.open) > 0 {
		u.closed.Wait()
	}
	return u.came
}

// answered notes what was forwarded for a turn.
func (u *crashUpstream) answered(list [][]byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.last = list
}

// ServeHTTP implements [http.Handler].
func (u *crashUpstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the proxy was killed as it sent it
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	b, err := transcript.Parse(body)
	struck := false
	switch {
	case err != nil:
		u.sim.ServeHTTP(w, r)
	case r.URL.Path == "/v1/chat/completions/input_tokens":
		struck = u.count(w, r, b)
	case r.URL.Path == "/v1/chat/completions":
		struck = u.chat(w, r, b)
	default:
		u.sim.ServeHTTP(w, r)
	}
	if struck { // nothing is answered
		<-r.Context().Done()
	}
}

// rewritten tells whether a list is one that a compaction has changed.
func (u *crashUpstream) rewritten(list []transcript.Message) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.last != nil && !extends(raws(list), u.last)
}

func (u *crashUpstream) count(w http.ResponseWriter, r *http.Request, b *transcript.Body) (struck bool) {
	rewritten := u.rewritten(b.Messages)
	if u.strikes(atCount) || rewritten && u.strikes(atRecount) {
		return true
	}
	u.sim.ServeHTTP(w, r)
	if !rewritten {
		return false
	}
	// What comes next is the commit, and then the connection for the forward.
	u.mu.Lock()
	defer u.mu.Unlock()
	u.counted = time.Now()
	switch u.armed {
	case atConnect:
		u.connect = true
	case inCommit:
		u.armed, u.struck = "", true
		time.AfterFunc(time.Duration(u.rng.Int64N(int64(u.commit))), u.kill)
	}
	return false
}

func (u *crashUpstream) chat(w http.ResponseWriter, r *http.Request, b *transcript.Body) (struck bool) {
	a := &arrival{body: b.Raw(), list: b.Messages, leading: b.Leading()}
	if n := len(a.list); n > 0 {
		last := a.list[n-1].Text()
		a.own = compaction.AsksForSummary(last) || compaction.AsksForOmissions(last)
	}
	rewritten := !a.own && u.rewritten(a.list)
	u.mu.Lock()
	u.came = append(u.came, a)
	if rewritten && !u.counted.IsZero() {
		u.commit = time.Since(u.counted) + time.Millisecond
	}
	u.counted = time.Time{}
	u.mu.Unlock()
	if a.own && u.strikes(inSummary) || rewritten && u.strikes(atForward) {
		return true
	}
	seen := &seenStatus{ResponseWriter: w}
	u.sim.ServeHTTP(seen, r)
	u.mu.Lock()
	defer u.mu.Unlock()
	a.status = seen.status
	return false
}

type seenStatus struct {
	http.ResponseWriter
	status int
}

func (s *seenStatus) WriteHeader(status int) {
	s.status = status
	s.ResponseWriter.WriteHeader(status)
}

func (s *seenStatus) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// reply is what the model says. No two summaries are alike, as with a real one: a
// list that is compacted twice goes out in two ways.
func (u *crashUpstream) reply(r llamasim.Request) llamasim.Reply {
	last := ""
	if n := len(r.Messages); n > 0 {
		last = r.Messages[n-1].Content
	}
	switch {
	case compaction.AsksForOmissions(last):
		return llamasim.Reply{Text: "none"}
	case compaction.AsksForSummary(last):
		return llamasim.Reply{Text: fmt.Sprintf("Summary %d: what was asked is known, the files were read, the tests fail in one place, and that is to be mended next.", r.Number)}
	}
	return llamasim.Reply{Text: "That is one answer in several events.", BetweenEvents: func(ctx context.Context) {
		if u.strikes(inAnswer) {
			<-ctx.Done()
		}
	}}
}
